"""Damaged run folders: every command names what is wrong, or says and does what it would have."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

from damage.harness import Trial, count, make_runs, trials


def judge(found: list[Trial]) -> None:
    sys.stdout.write(f"{len(found)} trials: {count(found)}\n")
    wrong = [trial for trial in found if trial.kind in ("traceback", "silent")]
    assert not wrong, wrong


def test_a_share_of_the_damages(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs")
    for folder in ("done", "stopped"):
        some = trials(runs, tmp_path, seed=0, rounds=1, share=25, folders=[folder])
        judge(list(islice(some, 25)))


@pytest.mark.slow
def test_damages_of_every_file(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs")
    found = list(trials(runs, tmp_path, seed=1, rounds=2))
    assert len(found) >= 1_500
    judge(found)
