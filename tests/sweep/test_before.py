"""A sweep that was begun before the library's rooms were moved, and killed in its second slice.

`begun_before` is its folder, `expected.csv` the front that the code of then made of it.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from bipareto.cli import main

BEGUN = Path(__file__).parent / "begun_before"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_of_the_version_before_is_resumed_to_the_same_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(BEGUN, run)
    with pytest.raises(SystemExit) as end:
        main(["resume", str(run)])
    assert not end.value.code
    said = " ".join(capsys.readouterr().err.split())
    # The state of a run has one part more today: its checkpoint is not taken for another's.
    assert "is of a version of bipareto whose states are others (13 tensors, 14 here)" in said
    found, expected = rows(run / "front.csv"), rows(BEGUN / "expected.csv")
    assert len(found) == len(expected) == 6
    for row, wanted in zip(found, expected, strict=True):
        for name, value in wanted.items():
            try:
                assert float(row[name]) == pytest.approx(float(value), rel=1e-9, abs=1e-12), name
            except ValueError:
                assert row[name] == value
    # Slices that were done are not done again.
    attempts = [
        len((run / "slices" / index / "attempts.jsonl").read_text().splitlines())
        for index in ("00000", "00001")
    ]
    assert attempts[0] == 1 < attempts[1]
    # Every reading command reads it, or says that its states are of another version.
    page = str(tmp_path / "page.html")
    for words in (["ls"], ["watch", "--once"], ["certify"], ["report", "--out", page]):
        with pytest.raises(SystemExit) as end:
            main([*words, str(run)])
        assert not end.value.code, words
    with pytest.raises(SystemExit):
        main(["doctor", str(run)])
    assert "earlier version of bipareto" in " ".join(capsys.readouterr().err.split())
