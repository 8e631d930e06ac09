"""Pictures and tables of fronts."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from matplotlib.colors import to_hex

from bipareto import problems
from bipareto.fronts import drawing
from bipareto.fronts.pareto import ParetoFront
from bipareto.fronts.tables import write_csv
from bipareto.methods import METHODS
from bipareto.methods.parts.preferences import grid
from bipareto.report import plot_front
from bipareto_experiments.nas.settings import METHODS as SEARCHES


def some_front(m: int, *, preferences: bool = True) -> ParetoFront:
    w = grid(m, 3)
    runs = len(w)
    return ParetoFront(
        x=torch.zeros(runs, 2),
        y=torch.zeros(runs, 2),
        objectives=1 / (1 + w),
        preference=w if preferences else torch.full_like(w, torch.nan),
        seed=torch.arange(runs),
        reason=("steps",) * runs,
        failure=(None,) * runs,
        seconds=1.0,
    )


def words(path: Path) -> str:
    """The text of a picture saved as SVG."""
    return path.read_text("utf-8")


@pytest.mark.parametrize(
    ("m", "legend"),
    [(1, "exact minimum"), (2, "exact front"), (3, "exact front"), (4, "range of the exact front")],
)
def test_every_number_of_objectives_has_a_picture(m: int, legend: str, tmp_path: Path) -> None:
    known = problems.get("sin") if m == 1 else problems.get("quadratic", dim=4, m=m)
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot_front(some_front(m), known, tmp_path / "a.svg", names=[f"loss {i}" for i in range(m)])
        plot_front(some_front(m), None, tmp_path / "b.svg", title="a title")
    drawn = words(tmp_path / "a.svg")
    assert legend in drawn
    assert known.name in drawn
    assert all(f"loss {i}" in drawn for i in range(m))
    plain = words(tmp_path / "b.svg")
    assert legend not in plain
    assert "a title" in plain


def test_methods_without_preferences_have_no_colour_bar(tmp_path: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        for name, preferences in (("with", True), ("without", False)):
            plot_front(some_front(2, preferences=preferences), None, tmp_path / f"{name}.svg")
    assert "weight of" in words(tmp_path / "with.svg")
    assert "weight of" not in words(tmp_path / "without.svg")


def test_a_method_has_one_colour_in_every_picture() -> None:
    own = {name: tuple(drawing.styles([name])[0].values()) for name in {*METHODS, *SEARCHES}}
    assert len(set(own.values())) == len(own)
    points = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    for names in (["moco", "momeha"], ["momeha", "forum", "moco"]):
        (axes,) = drawing.draw_fronts(dict.fromkeys(names, points)).axes
        assert [to_hex(dots.get_facecolor()[0]) for dots in axes.collections] == [
            own[name][0].lower() for name in names
        ]
        (axes,) = drawing.draw_hypervolumes(
            {f"run {name}": [1.0] for name in names}, methods=names
        ).axes
        assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == [
            own[name][0].lower() for name in names
        ]
    # Two runs of one method, and runs of unknown ones, are told apart from it.
    found = [style["color"] for style in drawing.styles(["a", "momeha", "b", "momeha"])]
    assert found[1] == own["momeha"][0]
    assert len(set(found)) == 4
    assert len(drawing.styles([str(i) for i in range(20)])) == 20


def test_equal_fronts_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plot_front(some_front(2), None, tmp_path / f"{name}.png")
        write_csv(some_front(2), tmp_path / f"{name}.csv")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_csv_has_distances_only_where_they_are_known(tmp_path: Path) -> None:
    found = some_front(2)
    write_csv(found, tmp_path / "a.csv")
    write_csv(found, tmp_path / "b.csv", torch.full((3,), 1 / 3, dtype=torch.float64))
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "run,seed,w1,w2,f1,f2"
    header, first, *_ = (tmp_path / "b.csv").read_text().splitlines()
    assert header == "run,seed,w1,w2,f1,f2,distance"
    assert first == f"0,0,0.75,0.25,{1 / 1.75!r},0.8,{1 / 3!r}"
