"""All draws of one step: what the roles of a method are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problem.base import Problem
from bipareto.problem.sampler import Role


def draw(problem: Problem, roles: Sequence[Role], t: int, seeds: Sequence[int]) -> dict[Role, Any]:
    """The draws of one step, role -> batch; with several seeds every leaf has one row per seed."""
    if problem.sampler is None:
        return {}
    per_seed = [{role: problem.sampler(role, t, seed) for role in roles} for seed in seeds]
    if len(seeds) == 1:
        return per_seed[0]
    # Roles that were given one and the same batch go on sharing its memory.
    same = {role: tuple(id(drawn[role]) for drawn in per_seed) for role in roles}
    stacked: dict[Any, Any] = {}
    for role in reversed(roles):
        try:
            stacked[same[role]] = tree.stack([drawn[role] for drawn in per_seed])
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"the draws of role {str(role)!r} differ in shape from seed to seed "
                f"({str(error).splitlines()[0]}); runs side by side need batches of one shape: "
                "make them so, or solve one seed after the other"
            ) from error
    return {role: stacked[same[role]] for role in roles}
