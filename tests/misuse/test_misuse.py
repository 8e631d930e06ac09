"""Misuses of the Python interface: none may pass in silence, hang, or end in foreign words."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from misuse.cases import cases
from misuse.harness import Case, count, try_case

#: Of the misuses, the share that may end in an error of torch, NumPy or Python.
FOREIGN = 0.01
#: Every so-manieth of them is tried by `make test`.
SHARE = 12


def judge(chosen: Sequence[Case]) -> None:
    outcomes = [try_case(case, 60.0) for case in chosen]
    counts = count(outcomes)
    sys.stdout.write(f"{len(outcomes)} misuses: {counts}\n")
    wrong = [outcome for outcome in outcomes if outcome.kind in ("silent", "hang")]
    assert not wrong, wrong
    foreign = [outcome for outcome in outcomes if outcome.kind == "foreign"]
    assert len(foreign) <= FOREIGN * len(outcomes), foreign


def test_a_share_of_the_misuses() -> None:
    judge(cases()[::SHARE])


@pytest.mark.slow
def test_all_misuses() -> None:
    every = cases()
    assert len(every) >= 2_500
    judge(every)
