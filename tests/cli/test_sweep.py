"""`bipareto sweep`, `resume`, `ls` and `tune` as users type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bipareto.sweep.durable import StoreError
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
    assert "it goes on when that command is called again with --out" in capsys.readouterr().err
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


TRIALS = [
    {"method": "MOMEHA()", "preference": [0.9, 0.1], "seed": 0},
    {"method": "MOMEHA()", "preference": [0.1, 0.9], "seed": 0},
]


def trained(run: Path, objectives: torch.Tensor, reasons: tuple[str, str]) -> None:
    """An experiment's folder with a training of two trials that is done and one that is begun."""
    for name, done in (("a", True), ("b", False)):
        part = SliceFolder(run / "trainings" / name)
        with part.held():
            part.note_attempt(0)
            if done:
                meta = {"trials": TRIALS, "reason": list(reasons)}
                part.write_result({"objectives": objectives}, meta)
    (run / "experiment.json").write_text('{"experiment": "fewshot"}')


def test_the_folder_of_an_experiment_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "few"
    trained(run, torch.linspace(1, 0.5, 8)[:, None, None] * torch.ones(2, 2), ("steps", "steps"))
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
    assert call("certify", run) == 2
    told = capsys.readouterr().err
    assert "holds an experiment of a version that did not note its command" in told
    assert f"bipareto doctor {run}" in told
    assert call("report", run) == 2
    assert "holds no results.json; go on with the command that began it" in capsys.readouterr().err
    (run / "experiment.json").write_text("{")
    assert call("watch", run) == 2
    assert "does not say whose the folder is" in capsys.readouterr().err
    assert call("ls", tmp_path) == 0
    assert "does not say whose the folder is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "reason", "diagnoses"),
    [
        ([1.0, 0.5], [1.0, 0.8], "steps", []),
        ([1.0, 0.5], [1.0, 0.5], "steps", ["preference-without-effect"]),
        ([1.0, 0.5], [1.0, 1.5], "steps", ["worse-than-start"]),
        ([1.0, 0.5], [1.0, 0.8], "nonfinite", ["steps-too-large"]),
        ([1.0, 0.5], [1.0, float("nan")], "steps", ["steps-too-large"]),
    ],
)
def test_the_records_of_an_experiment_are_diagnosed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: list[float],
    second: list[float],
    reason: str,
    diagnoses: list[str],
) -> None:
    ends = torch.tensor([first, second], dtype=torch.float64).T  # (start and end, trials)
    share = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    path = (1 - share) * ends[0] + share * ends[1]
    trained(tmp_path, torch.stack([path, path], -1), ("steps", reason))
    assert call("doctor", tmp_path, "--json", "-q") == int(bool(diagnoses))
    found = answer(capsys)
    assert (found["runs"], [one["name"] for one in found["diagnoses"]]) == (2, diagnoses)


def test_a_comparison_goes_on_by_the_words_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", "quadratic", "--methods", "moco", "--preferences", "2", "--amount", "60"]
    run, stopped = tmp_path / "moved", tmp_path / "made"
    with monkeypatch.context() as patched:
        patched.setattr("bipareto.report.plot_comparison", interrupt)
        assert call(*words, "-o", "dim=2", "--out", stopped) == 2
    stopped.rename(run)
    assert call("resume", run, "--json", "-q") == 0
    told = capsys.readouterr()
    assert f"note: bipareto {' '.join(words)} -o dim=2 --out {run}" in told.err
    assert len(json.loads(told.out.splitlines()[-1])["methods"]) == 1
    assert call("resume", run) == 0
    assert "holds a comparison that is done" in capsys.readouterr().out
    (run / "comparison.json").unlink()
    for text in ('{"command": ["front", "mine:code"]}', '{"command": [', '{"command": [1]}', "[]"):
        (run / "command.json").write_text(text)
        assert call("resume", run) == 2
        assert "command.json is damaged" in capsys.readouterr().err


def interrupt(*_: object, **__: object) -> None:
    raise StoreError("interrupted")


def test_an_experiment_goes_on_and_is_drawn_by_its_own_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "cleaning"
    rows = [
        {
            "method": "momeha",
            "seed": 0,
            "preference": [w, 1 - w],
            "objectives": [1 - w, w],
            **{key: [w, 1 - w] for key in ("test", "last", "retrained")},
            "clean_weight": [0.6, 0.7],
            "noisy_weight": [0.4, 0.3],
        }
        for w in (0.2, 0.8)
    ]
    # The data it asks for is not there: what the words are is seen by what is refused.
    words = ["experiment", "cleaning", "--method", "none", "--small"]
    assert call(*words, "--out", run) == 2
    refusal = capsys.readouterr().err
    assert json.loads((run / "experiment.json").read_text())["command"] == [
        *words,
        "--out",
        str(run),
    ]
    assert call("resume", run) == 2
    assert capsys.readouterr().err == f"note: bipareto {' '.join(words)} --out {run}\n{refusal}"
    assert call("report", run) == 2
    assert "holds no results of hyper-cleaning" in capsys.readouterr().err
    (run / "cleaning.json").write_text(json.dumps({"rows": rows}))
    assert call("report", run, "--json", "-q") == 0
    assert answer(capsys)["files"] == [str(run / f"cleaning.{kind}") for kind in ("csv", "png")]
    assert (run / "cleaning.png").stat().st_size > 10_000
    assert call("doctor", run) == 0
    assert "2 runs, nothing found" in capsys.readouterr().out
    for text in ("{", "[]", '{"rows": [{"method": "momeha"}]}', '{"rows": 3}'):
        (run / "cleaning.json").write_text(text)
        assert call("doctor", run) == 2
        assert "cleaning.json is no result of an experiment" in capsys.readouterr().err
    assert call("report", run, "--out", tmp_path / "page.html") == 2
    assert "has pictures and tables, no page" in capsys.readouterr().err
