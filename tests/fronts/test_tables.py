"""Fronts, solutions, certificates and diagnoses for other tools, and in the cells of notebooks."""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem import notebook
from bipareto.run.bars import bar


@pytest.fixture(scope="module")
def front() -> bp.ParetoFront:
    known = bp.problems.get("quadratic", dim=2)
    method = bp.MOMEHA(gamma=0.2, c=5.0)
    preferences = bp.preferences.grid(2, 3)
    return bp.front(known, *known.start(0), preferences=preferences, method=method, steps=60)


def test_a_dataframe_has_every_digit(front: bp.ParetoFront) -> None:
    pytest.importorskip("pandas")
    table = front.to_dataframe()
    assert list(table) == ["run", "seed", "w1", "w2", "f1", "f2", "reason"]
    assert torch.equal(torch.tensor(table[["f1", "f2"]].to_numpy()), front.objectives)
    solved = front.resolve_lower().to_dataframe()
    assert (solved["lower_residual"] < 1e-6).all()
    history = front[1].to_dataframe()
    assert list(history)[:3] == ["step", "f1", "f2"]
    assert history["step"].iloc[-1] == 60


def test_a_printed_front_has_a_line_for_each_run_and_no_tensors(front: bp.ParetoFront) -> None:
    caption, header, *rows = str(front).splitlines()
    assert caption.startswith("Pareto front: 3 runs")
    assert header.split() == ["run", "seed", "w1", "w2", "f1", "f2", "reason"]
    shown = [[float(cell) for cell in row.split()[4:6]] for row in rows]
    torch.testing.assert_close(torch.tensor(shown).double(), front.objectives, rtol=1e-4, atol=1e-6)
    assert "tensor(" not in repr(front[1])
    assert "after 60 steps" in str(front[1])
    assert notebook.text_table([], ["run", "f1"]) == "run  f1"


def test_a_csv_file_reads_back_as_the_same_numbers(front: bp.ParetoFront, tmp_path: Path) -> None:
    front.to_csv(tmp_path / "front.csv")
    with (tmp_path / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    read = torch.tensor([[float(row["f1"]), float(row["f2"])] for row in rows]).double()
    exact = [[float(row[name]) for name in ("f1", "f2")] for row in rows]
    assert exact == front.objectives.tolist()
    assert read.shape == front.objectives.shape
    with pytest.raises(InvalidInput, match="folder that exists"):
        front.to_csv(tmp_path / "no" / "front.csv")


def test_plain_tensors_are_saved_and_loaded_without_pickles(
    front: bp.ParetoFront, tmp_path: Path
) -> None:
    torch.save(front.to_torch(), tmp_path / "front.pt")
    again = torch.load(tmp_path / "front.pt", weights_only=True)
    assert torch.equal(again["objectives"], front.objectives)
    assert torch.equal(again["x"], front.x)


def test_without_pandas_the_error_names_the_remedy(
    front: bp.ParetoFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pip install pandas"):
        front.to_dataframe()


def test_results_show_themselves_as_tables(front: bp.ParetoFront) -> None:
    html = front._repr_html_()
    assert html.count("<tr>") == 1 + len(front)
    assert f"{float(front.objectives[2, 0]):.5g}" in html
    answer = front.resolve_lower()[0]
    assert answer._repr_html_().startswith("<table>")
    assert "after 60 steps" in answer._repr_html_()
    assert answer.problem is not None
    certificate = bp.certify(answer.problem, answer.x, answer.y)
    for word in ("lower level", "kkt", "gradient evaluations"):
        assert word in certificate._repr_html_()
        assert word in str(certificate)


def test_a_figure_shows_itself_without_pyplot(front: bp.ParetoFront) -> None:
    """IPython asks for a PNG; a plain Figure would be shown by its name."""
    assert front.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_texts_in_tables_are_escaped() -> None:
    trouble = bp.doctor.Diagnosis("<script>", (0, 1), "f < g", "none & never")
    html = bp.doctor.Diagnoses([trouble])._repr_html_()
    assert html == trouble._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "No trouble" in bp.doctor.Diagnoses()._repr_html_()


def test_long_tables_leave_out_their_middle() -> None:
    html = notebook.html_table([[i] for i in range(1000)])
    assert html.count("<tr>") == notebook.ROWS + 1
    assert "<td>0</td>" in html
    assert "<td>999</td>" in html


@pytest.mark.parametrize(("m", "kind"), [(2, "scatter"), (3, "scatter3d"), (4, "parcoords")])
def test_an_interactive_front_has_every_finite_point(m: int, kind: str) -> None:
    pytest.importorskip("plotly")
    from bipareto.fronts.tables import interactive_front

    objectives = torch.arange(5.0 * m).reshape(5, m)
    objectives[1, 0] = torch.nan
    figure = interactive_front(objectives, torch.full((5, m), 1 / m), [f"f{i}" for i in range(m)])
    (trace,) = figure.data
    assert trace.type == kind
    first = trace.x if m < 4 else trace.dimensions[0].values
    assert list(first) == [0.0, 2.0 * m, 3.0 * m, 4.0 * m]


def test_a_bar_in_a_notebook_ends_at_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, value: Any) -> None:
            shown.append(value.data)

    def display(value: Any, display_id: bool) -> Handle:
        shown.append(value.data)
        return Handle()

    module = types.ModuleType("IPython.display")
    module.HTML = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "HTML", lambda text: types.SimpleNamespace(data=text))
    monkeypatch.setattr(module, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("bipareto.run.bars.in_notebook", lambda: True)
    with bar("<steps>", 3) as advance:
        advance(1)
        advance(2)
    assert "&lt;steps&gt;" in shown[0]
    assert 'value="3" max="3"' in shown[-1]
    assert "3 of 3 in" in shown[-1]


def test_outside_of_a_notebook_nothing_is_drawn() -> None:
    assert not notebook.in_notebook()
