"""`bipareto front` in a folder: it survives being killed, and takes a problem of one's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import bipareto as bp
from bipareto.cli import main

OWN = """
import torch
import bipareto as bp

def make(width=2):
    def upper(x, y):
        return torch.stack([(x - 1).square().sum() + y.square().sum(), (y - 1).square().sum()])

    zero = torch.zeros(width, dtype=torch.float64)
    return bp.Problem(upper, lambda x, y: (y - x).square().sum()), zero, zero
"""
WORDS = ["front", "pl-sin2", "--dim", "5", "--preferences", "3", "--no-compile", "-q"]


def call(*words: object) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


def test_a_front_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Killed wherever it is, its folder ends with every digit of a front that was left alone."""
    steps = ["--steps", "1500"]
    assert call(*WORDS, *steps, "--out", tmp_path / "whole") == 0
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "bipareto", *WORDS, *steps, "--out", str(killed)]
    source = str(Path(__file__).parents[2] / "src")
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": source})
    try:
        while not (killed / "slices/00000/metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # A busy machine may let it come to its end before it is killed: that is no other front.
    assert call("resume", killed, "-q") == 0
    assert (killed / "front.csv").read_bytes() == (tmp_path / "whole/front.csv").read_bytes()


def test_a_problem_of_ones_own_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file in the folder at hand, as `python -m` would find it."""
    (tmp_path / "own_problem.py").write_text(OWN)
    sys.modules.pop("own_problem", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["own_problem:make", "-o", "width=3", "--steps", "200", "--no-compile"]
    assert call("front", *words, "--preferences", "2", "--out", "run") == 0
    shown = capsys.readouterr().out
    assert "own_problem:make" in shown
    assert "distance" not in shown  # its front is not known
    for command in (
        ["certify", "--trust"],
        ["watch", "--once"],
        ["report", "--no-certify"],
        ["resume"],
    ):
        assert call(*command, "run") == 0
    assert call("doctor", "run", "--trust") in (0, 1)
    assert call("solve", *words) == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:make", "cannot be imported"),
        ("own_problem:missing", "cannot be imported"),
        ("own_problem:OTHER", "returned int; it must return (problem, x0, y0)"),
    ],
)
def test_a_problem_that_is_none_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    said: str,
) -> None:
    (tmp_path / "own_problem.py").write_text(OWN + "\n\ndef OTHER():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("own_problem", None)
    assert call("front", name, "--out", "run") == 2
    assert said in capsys.readouterr().err


NETWORK = """
import torch
import bipareto as bp

MADE = []


def make(size=15):
    MADE.append(size)
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    data = rows, rows @ torch.tensor([1.0, 2.0, 0.0]), rows @ torch.tensor([-1.0, 0.5, 1.0])

    def upper(x, y, batch):
        return torch.stack([(batch[0] @ y - target).square().mean() for target in batch[1:]])

    def lower(x, y, batch):
        return x.softmax(0) @ upper(x, y, batch)

    sampler = bp.sampler.Minibatches(lower=data, upper=data, size=size)
    return bp.Problem(upper, lower, sampler=sampler), torch.zeros(2), torch.zeros(3)
"""


@pytest.mark.parametrize("folder", [False, True])
def test_the_command_races_as_front_does_and_builds_the_problem_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: bool,
) -> None:
    (tmp_path / "own_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("own_network", None)
    words = ["own_network:make", "-o", "size=12", "--steps", "150", "--json"]
    out = ["--out", "run"] if folder else []
    assert call("front", *words, "--preferences", "2", *out) == 0
    shown = json.loads(capsys.readouterr().out)
    made = sys.modules["own_network"].MADE
    assert made == [12]
    problem, x0, y0 = sys.modules["own_network"].make(12)
    expected = bp.front(
        problem, x0, y0, preferences=bp.preferences.grid(2, 2, boundary=False), steps=150,
        progress=False,
    )  # fmt: skip
    assert shown["method"]["name"] == "twin"
    assert shown["hypervolume"] == expected.hypervolume(shown["reference"])
    assert expected.remaining is not None
    assert shown["remaining"] == float(expected.remaining.max())
    assert shown["unseen"] is None
    if folder:
        kept = bp.ParetoFront.load("run/front.npz")
        assert torch.equal(kept.y, expected.y)
        manifest = json.loads(Path("run/manifest.json").read_text("utf-8"))
        assert manifest["race"]["winner"]["value"] == expected.race.winner.value
        assert (
            yaml.safe_load(Path("run/config.yaml").read_text("utf-8"))["method"]["name"] == "twin"
        )
        made.clear()
        for command in (["ls", "."], ["watch", "--once", "run"], ["report", "--no-certify", "run"]):
            assert call(*command) == 0
        assert not made  # what only reads calls nothing


def test_a_race_of_losses_that_cannot_be_batched_says_the_same_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = NETWORK.replace(
        "    def upper(x, y, batch):\n", "    def upper(x, y, batch):\n        y.sum().item()\n"
    )
    (tmp_path / "asking_network.py").write_text(asking)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["asking_network:make", "--steps", "150", "--preferences", "2", "--out", "run"]
    assert call("front", *words) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "go one after the other" in said
    assert "objectives with y trained on g" in said  # no lower level was solved
    assert said.count("not looked at, because the losses cannot be batched by vmap") == 2
    assert call("resume", "run") == 0
    assert "with y trained on g" in " ".join("".join(capsys.readouterr()).split())


def test_solve_races_as_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("own_network", None)
    words = ["own_network:make", "--steps", "300", "--json"]
    assert call("solve", *words, "--preference", "0.8,0.2") == 0
    shown = json.loads(capsys.readouterr().out)
    made = sys.modules["own_network"]
    assert made.MADE == [15]
    answer = bp.solve(*made.make(), preference=[0.8, 0.2], steps=300, progress=False)
    assert answer.race is not None
    assert shown["x"] == answer.x.tolist()
    assert shown["objectives"] == answer.objectives.tolist()


def test_a_sampler_that_draws_no_batches_gets_mb_momeha(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batched = OWN.replace("def upper(x, y):", "def upper(x, y, batch):").replace(
        "lambda x, y: (y - x).square().sum())",
        "lambda x, y, batch: (y - x).square().sum(), sampler=lambda role, t, seed: torch.zeros(1))",
    )
    (tmp_path / "batched_problem.py").write_text(batched)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["front", "batched_problem:make", "--steps", "5", "--no-compile", "--preferences", "2"]
    assert call(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["method"]["name"] == "mb-momeha"
