"""What a certificate costs, and that it stays honest when its budget is too small."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import certify
from bipareto.certificate.inspection import simplex_minimum
from certificate.points import numbers, projected, quietly
from helpers import DOUBLE


def wide(d: int, condition: float = 4.0, off: float = 0.0) -> tuple[bp.Problem, Tensor, Tensor]:
    """Two objectives over a diagonal quadratic of the given condition; a point of its Pareto set,
    moved by `off`.
    """
    a, b, p, q = (
        torch.rand(d, dtype=DOUBLE),
        numbers(d, seed=1),
        numbers(2, d, seed=2),
        numbers(2, d, seed=3),
    )
    h = torch.logspace(0, -math.log10(condition), d, dtype=DOUBLE)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - p).square().sum(1) + (y - q).square().sum(1))

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (h * (y - a * x - b).square()).sum()

    best = (p + a * (q - b)) / (1 + a.square())
    x = 0.4 * best[0] + 0.6 * best[1] + off * numbers(d, seed=4)
    return bp.Problem(upper, lower), x, a * x + b + 0.1 * off * numbers(d, seed=5)


def test_bounds_hold_when_the_budget_is_too_small() -> None:
    problem, x, y = wide(400, condition=1e3, off=0.05)
    rest = projected(problem, x, y)
    exact = float((simplex_minimum(rest)[0] @ rest).norm())
    for budget in (60, 120, 200, 600):
        found = quietly(problem, x, y, gamma=1.0, budget=budget)
        assert found.kkt_lower <= exact * (1 + 1e-9)
        assert found.kkt >= exact * (1 - 1e-9)
        assert found.gradients <= budget
        assert (found.common_descent is None) == any("not settled" in note for note in found.notes)


def test_each_objective_costs_one_gradient_more() -> None:
    """Objectives given twice change nothing but their number."""
    problem, x, y = wide(20, off=0.3)
    twice = bp.Problem(lambda x, y: problem.upper(x, y).repeat(2), problem.lower)
    once, again = quietly(problem, x, y), quietly(twice, x, y)
    assert again.gradients == once.gradients + 2
    assert again.kkt == pytest.approx(once.kkt)
    assert again.improvement == pytest.approx(once.improvement, rel=1e-3)


@pytest.mark.parametrize("off", [0.0, 0.1])
def test_a_hundred_thousand_dimensions_cost_two_hundred_gradients(off: float) -> None:
    problem, x, y = wide(50_000, off=off)  # 10^5 in (x, y) together
    counted = bp.oracle.Counting(problem)
    found = certify(counted, x, y, gamma=1.0)
    assert found.gradients <= 200
    # A value and a gradient of g are one call; a Hessian product needs none beyond the one that all
    # share.
    assert counted.counts["lower"] <= 200
    # two objectives, their gradients and curvatures; twice to see that they are pure
    assert counted.counts["upper"] <= 12
    assert found.lower_curvature == "minimum"
    assert found.common_descent is (off > 0)
    if not off:
        assert found.kkt <= 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("condition", [4.0, 100.0, 1e4])
def test_cost_and_honesty_at_a_hundred_thousand_lower_variables(condition: float) -> None:
    problem, x, y = wide(100_000, condition)
    found = quietly(problem, x, y, gamma=1.0)
    assert found.gradients <= 200
    assert found.lower_curvature == "minimum"
    assert (
        found.common_descent is not True
    )  # it is a Pareto point: no claim to the contrary, however ill-conditioned
