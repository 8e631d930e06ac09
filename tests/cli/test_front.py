"""`bipareto front` in a folder: it survives being killed, and takes a problem of one's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    assert not (killed / "front.csv").exists()
    assert call("resume", killed, "-q") == 0
    assert (killed / "front.csv").read_bytes() == (tmp_path / "whole/front.csv").read_bytes()


def test_a_problem_of_ones_own_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file in the folder at hand, as `python -m` would find it."""
    (tmp_path / "own_problem.py").write_text(OWN)
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


def test_batches_are_not_given_to_momeha_without_a_word(
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
    assert call(*words) == 0
    assert "for which momeha is not made; use --method twin" in capsys.readouterr().err
    assert call(*words, "--method", "mb-momeha") == 0
    assert "momeha is not made" not in capsys.readouterr().err
