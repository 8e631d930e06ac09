"""Every example runs at a small size and draws its picture."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest

from bipareto.errors import BiparetoWarning
from helpers import write_image_sets

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_five() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path), "--small"])
    if example.stem == "hyper_cleaning":
        write_image_sets(tmp_path)
        monkeypatch.setenv("BIPARETO_DATA", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", BiparetoWarning
        )  # a lower level that is not quite solved at this size
        names = runpy.run_path(str(example))
    (picture,) = tmp_path.glob("*.png")
    assert 10_000 < picture.stat().st_size < 300_000
    if "front" in names:
        # The preferences order the points: the first weighs the first objective most.
        first, second = names["front"].objectives.T
        assert float(first[0]) < float(first[-1])
        assert float(second[0]) > float(second[-1])
