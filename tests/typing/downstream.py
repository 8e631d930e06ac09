"""What a user's file looks like to a type checker: every result has a type that says something."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import Certificate
from bipareto.doctor import Diagnoses


def upper(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(x - 1).square().sum(), (y - 2).square().sum()])


def lower(x: Tensor, y: Tensor) -> Tensor:
    return (y - x).square().sum()


problem = bp.Problem(upper=upper, lower=lower)
assert_type(problem, bp.Problem)
x0, y0 = torch.zeros(2), torch.zeros(2)

front = bp.front(problem, x0, y0, preferences=bp.preferences.grid(2, 3), steps=10)
assert_type(front, bp.ParetoFront)
assert_type(front.objectives, Tensor)
assert_type(front[0], bp.Solution)
assert_type(front[1:], bp.ParetoFront)
assert_type(front.resolve_lower(), bp.ParetoFront)
assert_type(front.hypervolume([1.0, 1.0]), float)

answer = bp.solve(problem, x0, y0, preference=[0.7, 0.3], method=bp.MOMEHA(mu=4.0), steps=10)
assert_type(answer, bp.Solution)
assert_type(answer.objectives, Tensor)
assert_type(bp.certify(problem, answer.x, answer.y), Certificate)
assert_type(bp.diagnose(answer), Diagnoses)

bp.solve(problem, x0, y0, stepps=10)  # wrong: no such argument
bp.MOMEHA(gama=0.2)  # wrong: no such hyperparameter
front.objektives  # wrong: no such attribute
