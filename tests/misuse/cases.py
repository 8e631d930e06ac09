"""All misuses in one list."""

from __future__ import annotations

from misuse.calls import call_cases, preference_cases
from misuse.certificates import certify_cases
from misuse.data import data_cases
from misuse.fronts import front_cases
from misuse.harness import Case
from misuse.losses import impure_cases, problem_cases
from misuse.methods import method_cases
from misuse.modules import module_cases, state_cases
from misuse.optimizers import optimizer_cases
from misuse.trees import tree_cases


def cases() -> list[Case]:
    """All of them, with names that differ."""
    parts = (
        method_cases,
        problem_cases,
        impure_cases,
        tree_cases,
        call_cases,
        preference_cases,
        front_cases,
        certify_cases,
        optimizer_cases,
        data_cases,
        module_cases,
        state_cases,
    )
    found = [case for part in parts for case in part()]
    names = [case.name for case in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, sorted(twice)
    return found
