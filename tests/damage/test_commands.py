"""Random command lines and configurations: none ends in a traceback, or not at all."""

from __future__ import annotations

import shutil
import sys
from itertools import islice
from pathlib import Path

import pytest

from damage.commands import command_lines, configurations, try_configuration, try_line
from damage.harness import make_runs


def tracebacks(home: Path, number: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What ended in one, of so many command lines and as many configurations."""
    runs, work = make_runs(home / "runs"), home / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    found: list[object] = [
        (trace, words)
        for words in islice(command_lines(seed, list(runs.values()), work), number)
        if (trace := try_line(words))
    ]
    for data in islice(configurations(seed), number):
        shutil.rmtree(work / "sweep", ignore_errors=True)
        if trace := try_configuration(data, work):
            found.append((trace, data))
    sys.stdout.write(f"{number} lines, {number} configurations: {len(found)} tracebacks\n")
    return found


def test_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracebacks(tmp_path, 8, 7, monkeypatch) == []


@pytest.mark.slow
def test_a_thousand_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracebacks(tmp_path, 1_000, 8, monkeypatch) == []


def test_a_page_takes_no_other_files_place(tmp_path: Path) -> None:
    run = make_runs(tmp_path)["done"]
    before = (run / "front.npz").read_bytes()
    assert try_line(["report", str(run), "--out", str(run / "front.npz")]) is None
    assert (run / "front.npz").read_bytes() == before
