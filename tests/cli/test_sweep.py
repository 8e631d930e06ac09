"""`bipareto sweep`, `resume`, `ls` and `tune` as users type them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bipareto.sweep.store import RunFolder, SliceFolder
from helpers import answer, call

SWEEP = """
problem: {name: quadratic, options: {dim: 2}}
method: {hyperparameters: plain}
preferences: {count: 3}
steps: 20
compile: false
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "front.yaml").write_text(SWEEP)
    return tmp_path / "front.yaml"


def test_a_sweep_is_run_listed_and_resumed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs/a"
    assert call("sweep", config, "--out", run, "--json", "-q") == 0
    found = answer(capsys)
    assert found["runs"] == 3
    assert len(found["reference"]) == 2
    written = (run / "front.csv").read_bytes()
    assert call("ls", tmp_path / "runs", "--json") == 0
    assert [(item["state"], item["progress"]) for item in answer(capsys)["runs"]] == [("done", 1.0)]
    (run / "front.csv").unlink()
    assert call("resume", run, "--json", "-q") == 0
    assert (run / "front.csv").read_bytes() == written


def test_mistakes_are_one_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(SWEEP + "stpes: 3\n")
    assert call("sweep", config, "--out", tmp_path / "run") == 2
    assert "stpes is not a key that is known here; did you mean steps?" in capsys.readouterr().err
    assert call("resume", tmp_path / "none") == 2
    assert "holds no run (there is no manifest.json)" in capsys.readouterr().err
    (tmp_path / "nas").mkdir()
    (tmp_path / "nas" / "experiment.json").write_text('{"experiment": "nas"}')
    assert call("resume", tmp_path / "nas") == 2
    assert (
        "holds an experiment, which goes on when its own command is called again"
        in capsys.readouterr().err
    )
    assert call("ls", tmp_path / "none") == 2
    config.write_text(SWEEP)
    assert call("sweep", config, "--out", tmp_path / "run", "--engine", "slurm") == 2
    assert "local, processes, ray" in capsys.readouterr().err


def test_a_run_in_use_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    call("sweep", config, "--out", run, "-q")
    with RunFolder(run).locked():
        assert call("resume", run) == 2
    error = capsys.readouterr().err
    assert "is being run by process" in error
    assert error.count("\n") == 1


def test_the_best_numbers_of_a_search_make_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna", reason="tuning needs optuna")
    lines = "".join(f"  {line}\n" for line in SWEEP.strip().splitlines())
    (tmp_path / "search.yaml").write_text(
        f"sweep:\n{lines}space: {{mu: {{low: 1, high: 8}}}}\ntrials: 2\n"
    )
    assert call("tune", tmp_path / "search.yaml", "--out", tmp_path / "tune", "--json", "-q") == 0
    found = answer(capsys)
    assert 1 <= found["hyperparameters"]["mu"] <= 8
    assert call("sweep", found["config"], "--out", tmp_path / "run", "--json", "-q") == 0
    assert answer(capsys)["hypervolume"] == pytest.approx(found["value"], rel=1e-9)


def test_the_folder_of_an_experiment_is_named_by_reading_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "few"
    for name, done in (("a", True), ("b", False)):
        part = SliceFolder(run / "trainings" / name)
        with part.held():
            part.note_attempt(0)
            if done:
                part.write_result({"x": torch.ones(2)}, {})
    (run / "experiment.json").write_text('{"experiment": "fewshot"}')
    assert call("ls", tmp_path, "--json") == 0
    (found,) = answer(capsys)["runs"]
    assert (found["problem"], found["method"], found["state"]) == (
        "experiment",
        "fewshot",
        "stopped",
    )
    assert (found["slices_done"], found["slices"]) == (1, 2)
    assert call("watch", run) == 0
    assert "experiment fewshot, stopped; 1 of 2 trainings" in capsys.readouterr().out
    for command in ("certify", "doctor", "report"):
        assert call(command, run) == 2
        assert "holds an experiment (fewshot, stopped)" in capsys.readouterr().err
    (run / "results.json").write_text("{}")
    assert call("report", run) == 2
    assert f"bipareto experiment fewshot figures {run}" in capsys.readouterr().err
    (run / "experiment.json").write_text("{")
    assert call("watch", run) == 2
    assert "does not say whose the folder is" in capsys.readouterr().err
    assert call("ls", tmp_path) == 0
    assert "does not say whose the folder is" in capsys.readouterr().err
