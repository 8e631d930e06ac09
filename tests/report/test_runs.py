"""Folders read back for a report, thinned curves, and the commands that use them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.report.curves import read_curves
from bipareto.sweep import checksums
from bipareto.sweep.durable import Damaged, last_record
from bipareto.sweep.progress import progress
from bipareto.sweep.reading import Source, read_runs
from bipareto.sweep.store import RunFolder
from helpers import answer, call

SWEEP = """
problem: {name: quadratic, options: {dim: 2}}
method: {hyperparameters: plain}
preferences: {count: 5}
seeds: [0, 1]
steps: 40
slice: 4
compile: false
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/front, runs/sweep and runs/compare, as the commands write them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "sweep.yaml").write_text(SWEEP)
    quick = ("--no-compile", "-q")
    assert (
        call(
            "front",
            "quadratic",
            "--dim",
            2,
            "--steps",
            40,
            "--hyperparameters",
            "plain",
            "--preferences",
            4,
            "--out",
            folder / "front",
            *quick,
        )
        == 0
    )
    assert call("sweep", folder / "sweep.yaml", "--out", folder / "sweep", "-q") == 0
    compare = ("--preferences", 3, "--amount", 400, "--methods", "momeha,moco", "--seed", "0,1")
    assert (
        call("compare", "quadratic", "--dim", 2, *compare, "--out", folder / "compare", *quick) == 0
    )
    return folder


def test_every_kind_of_folder_is_read(folders: Path) -> None:
    (front,) = read_runs(folders / "front")
    assert (front.method, len(front.front)) == ("momeha", 4)
    assert front.known is not None
    (sweep,) = read_runs(folders / "sweep")
    assert (sweep.method, len(sweep.front)) == ("momeha", 10)
    assert sweep.question == front.question  # one page may compare them
    assert [source.runs for source in sweep.sources] == [4, 4, 2]  # the last slice is padded
    compared = read_runs(folders / "compare")
    assert {run.method: len(run.front) for run in compared} == {"momeha": 6, "moco": 2}
    (bare,) = read_runs(folders / "front" / "front.npz")
    assert bare.known is None
    for run in (front, sweep, *compared):
        x, y = bp.ParetoFront.load(run.path).point(len(run.front) - 1)
        assert x.shape == y.shape == (2,)


def test_curves_of_slices_stand_side_by_side(folders: Path) -> None:
    (sweep,) = read_runs(folders / "sweep")
    curves = read_curves(sweep.sources, ["f1", "f2"])
    assert curves is not None
    assert curves.total == 10
    assert curves.names == ("f1", "f2", "gap", "stationarity")
    assert curves.values.shape == (4, 10, 40)
    lines = [
        json.loads(line)
        for line in (folders / "sweep/slices/00002/metrics.jsonl").read_text().splitlines()
    ]
    assert curves.values[1, 9].tolist() == pytest.approx(
        [line["objectives"][1][1] for line in lines]
    )
    assert curves.low[0].tolist() == pytest.approx(curves.values[0].min(0).tolist())


def test_thinning_keeps_every_spike(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    values = stream.normal(size=(5000, 2))
    values[1234, 0], values[4000, 1] = 50.0, -70.0
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for t, row in enumerate(values.tolist()):
            file.write(
                json.dumps(
                    {
                        "step": 10 * t,
                        "objectives": [[v, v * v] for v in row],
                        "gap": [float("nan")] * 2,
                    }
                )
                + "\n"
            )
        file.write('{"step": 50000, "obj')  # a line that is being written
    curves = read_curves([Source(tmp_path / "metrics.jsonl", 2)], ["a", "b"], points=100)
    assert curves is not None
    assert curves.values.shape == (3, 2, 100)
    assert curves.records == 5000
    for run, value, step in ((0, 50.0, 12340), (1, -70.0, 40000)):
        at = int(np.abs(curves.values[0, run]).argmax())
        assert curves.values[0, run, at] == value
        assert abs(curves.steps[at] - step) <= 1000
        # Of each bucket the extremes are kept, in the order in which they came.
        for bucket in range(50):
            part = values[100 * bucket : 100 * (bucket + 1), run]
            first, second = sorted((part.argmin(), part.argmax()))
            assert curves.values[0, run, 2 * bucket : 2 * bucket + 2].tolist() == [
                part[first],
                part[second],
            ]
    assert np.isnan(curves.values[2]).all()


def test_nothing_recorded_is_nothing_drawn(tmp_path: Path) -> None:
    assert read_curves([], ["a"]) is None
    (tmp_path / "metrics.jsonl").write_text("")
    assert read_curves([Source(tmp_path / "metrics.jsonl", 1)], ["a"]) is None


def test_the_page_and_the_figures_are_written(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="pages need plotly")
    out = tmp_path / "pages" / "all.html"
    words = (
        folders / "front",
        folders / "sweep",
        "--out",
        out,
        "--figures",
        tmp_path / "figures",
        "--format",
        "svg",
        "--json",
    )
    assert call("report", *words) == 0
    found = answer(capsys)
    assert [run["points"] for run in found["runs"]] == [4, 10]
    text = out.read_text("utf-8")
    assert "http-equiv" in text
    assert "src=" not in text.partition("<style>")[0]
    names = {Path(name).name for name in found["files"][1:]}
    assert names == {
        "front-1.svg",
        "convergence-1.svg",
        "front-2.svg",
        "convergence-2.svg",
        "comparison.svg",
        "hypervolume.svg",
    }
    assert all((tmp_path / "figures" / name).stat().st_size > 1000 for name in names)
    assert call("report", folders / "compare", "--quiet", "--no-certify") == 0
    assert (folders / "compare" / "report.html").exists()


def test_folders_without_a_front_are_named(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(
        InvalidInput, match="holds no front; give a folder that `bipareto front --out`"
    ):
        read_runs(tmp_path)
    RunFolder(tmp_path / "begun").create(SWEEP, {"runs": 10})
    with pytest.raises(InvalidInput, match="is not finished; look at it with: bipareto watch"):
        read_runs(tmp_path / "begun")
    assert call("report", folders / "front", "--format", "gif") == 2
    assert "choose pdf, png or svg" in capsys.readouterr().err


def test_front_plot_makes_a_figure_and_a_file(folders: Path, tmp_path: Path) -> None:
    found = bp.ParetoFront.load(folders / "front" / "front.npz")
    figure = found.plot(tmp_path / "front.pdf", names=["speed", "cost"], title="one")
    assert [axes.get_xlabel() for axes in figure.axes[:1]] == ["speed"]
    assert (tmp_path / "front.pdf").read_bytes().startswith(b"%PDF")


def test_watching_a_sweep_that_is_done(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("watch", folders / "sweep", "--json") == 0
    found = answer(capsys)
    measured = json.loads((folders / "sweep" / "measures.json").read_text())
    assert (found["state"], found["done"], found["runs"]) == ("done", 1.0, 10)
    assert found["hypervolume"] == pytest.approx(measured["hypervolume"])
    assert found["slowest"] is None
    assert call("watch", folders / "sweep", "--once") == 0
    assert "100.0% of all steps" in capsys.readouterr().out


def test_watching_a_sweep_on_its_way(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep whose second slice is at step 10 and whose third has not begun."""
    import shutil

    run = tmp_path / "run"
    shutil.copytree(folders / "sweep", run)
    (run / "front.csv").unlink()
    # Until a run is done, its checksums name these and the results alone.
    checksums.seal(run, ["config.yaml", "manifest.json", "slices/00000/result.safetensors"])
    for part in (1, 2):
        (run / f"slices/0000{part}/result.safetensors").unlink()
    records = run / "slices/00001/metrics.jsonl"
    lines = records.read_text().splitlines()
    records.write_text("".join(line + "\n" for line in lines[:10]) + '{"step": 11, "resid')
    shutil.rmtree(run / "slices/00002")
    with RunFolder(run).locked():
        seen = progress(run)
        assert [part.state for part in seen.slices] == ["done", "begun", "waiting"]
        assert [part.step for part in seen.slices] == [40, 10, 0]
        assert seen.done == pytest.approx(50 / 120)
        assert seen.state == "running"
        last = json.loads(lines[9])
        assert seen.worst == (4 + int(np.argmax(last["residual"])), max(last["residual"]))
        assert seen.slowest is not None
        assert (seen.slowest.number, seen.slowest.first, seen.slowest.last) == (1, 4, 7)
        assert seen.hypervolume is not None
        assert call("watch", run, "--once") == 0
        assert "slice 1, runs 4-7: step 10 of 40" in capsys.readouterr().out
    # Nobody works on it: it would go on from its last checkpoint, of which there is none.
    seen = progress(run)
    assert (seen.state, [part.step for part in seen.slices]) == ("stopped", [40, 0, 0])
    assert call("watch", tmp_path) == 2


def test_the_last_record_of_a_long_file_is_found_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_record(path) is None
    path.write_text('{"step": 1}')
    assert last_record(path) is None  # not whole
    wide = {
        "step": 0,
        "objectives": [[0.123456789] * 2] * 9000,
    }  # a line longer than what is read at a time
    path.write_text("".join(json.dumps({**wide, "step": t}) + "\n" for t in range(3)) + '{"st')
    found = last_record(path)
    assert found is not None
    assert found["step"] == 2


def test_a_page_needs_plotly_and_says_so(
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    assert call("report", folders / "front", "--no-certify", "--out", tmp_path / "a.html") == 2
    assert "pip install 'bipareto[report]'" in capsys.readouterr().err


def test_zeros_in_place_of_records_are_named(tmp_path: Path) -> None:
    """A line that was cut short is no damage, zeros are: no text has them."""
    path = tmp_path / "attempts.jsonl"
    path.write_bytes(b'{"step": 1')
    assert last_record(path) is None
    path.write_bytes(bytes(40))
    with pytest.raises(Damaged, match=r"attempts.jsonl is damaged \(zeros"):
        last_record(path)
