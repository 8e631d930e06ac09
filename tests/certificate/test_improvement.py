"""What is left to gain: closed forms, no units, and curvature that vanishes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import certify
from bipareto.certificate.remaining import left_to_gain
from certificate.points import numbers, quietly
from helpers import DOUBLE

QUADRATIC = bp.problems.get("quadratic")
exponents = st.floats(-6, 6)


def off_the_front(by: float) -> tuple[Tensor, Tensor]:
    point = QUADRATIC.solution(torch.tensor([0.3, 0.7], dtype=DOUBLE))
    x = point.x + by * torch.ones_like(point.x)
    return x, QUADRATIC.lower_solution(x)


def in_other_units(a: Tensor, D: Tensor, s: float) -> bp.Problem:
    """f_i -> a_i f_i + i, x -> x/D, g -> s g."""
    return bp.Problem(
        lambda x, y: a * QUADRATIC.upper(D * x, y) + torch.arange(2),
        lambda x, y: s * QUADRATIC.lower(D * x, y),
    )


@settings(max_examples=8)
@given(a=st.lists(exponents, min_size=2, max_size=2), d=st.integers(0, 10**6), s=exponents)
def test_units_do_not_matter(a: list[float], d: int, s: float) -> None:
    D = 10 ** (3 * (2 * torch.rand(5, generator=torch.Generator().manual_seed(d)) - 1).double())
    problem = in_other_units(10 ** torch.tensor(a, dtype=DOUBLE), D, 10**s)
    for by, left in ((0.0, False), (0.01, False), (1.0, True)):
        x, y = off_the_front(by)
        plain, found = certify(QUADRATIC, x, y), quietly(problem, x / D, y)
        assert found.common_descent is left
        assert found.improvement == pytest.approx(plain.improvement, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("unit", [1e7, 1e-7])
def test_a_far_point_is_far_in_any_unit_of_x(unit: float) -> None:
    problem = in_other_units(torch.tensor([1e6, 1.0], dtype=DOUBLE), torch.tensor(unit), 1.0)
    x, y = off_the_front(1.0)
    assert certify(problem, x / unit, y).common_descent is True


def test_a_many_dimensional_point_is_judged_without_units_of_the_objectives() -> None:
    """Beyond 256 variables: two paraboloids with centres 0 and 1 in every coordinate."""
    n = 200
    one = torch.ones(n, dtype=DOUBLE)
    for a in (1.0, 1e6):
        problem = bp.Problem(
            lambda x, y, a=a: torch.stack([a * y.square().sum(), (y - 1).square().sum()]),
            lambda x, y: (y - x).square().sum(),
        )
        at = 0.5 * one
        assert certify(problem, at, at).common_descent is False
        aside = at + torch.where(torch.arange(n) % 2 == 0, 0.5, -0.5)
        found = certify(problem, aside, aside)
        # Half a unit aside: the gain is the square of it, of a range of one.
        assert found.improvement == pytest.approx(0.25, rel=1e-3)
        assert found.common_descent is True


def test_the_gain_of_two_balls_is_the_closed_one() -> None:
    """q_i = ||d - c_i||^2 - ||c_i||^2: from a point at height h over the segment between centres a
    unit apart, both fall by h^2.
    """
    for height in (0.01, 0.3, 2.0):
        c = torch.tensor([[0.4, -height], [-0.6, -height]], dtype=DOUBLE)
        gain = left_to_gain(-2 * c, 2 * torch.eye(2, dtype=DOUBLE).expand(2, 2, 2))
        ranges = [max(1.0, float(row.square().sum())) for row in c]
        # the best common step moves down and along the segment
        grid = torch.cartesian_prod(*[torch.linspace(-3, 3, 1201, dtype=DOUBLE)] * 2)
        values = torch.stack(
            [
                ((grid - row).square().sum(1) - row.square().sum()) / s
                for row, s in zip(c, ranges, strict=True)
            ]
        )
        best = float(-values.amax(0).min())
        assert gain.reached <= gain.bound * (1 + 1e-12)
        assert gain.reached == pytest.approx(best, abs=2e-2 * max(height**2, 1e-3))


def test_the_bounds_meet_where_metric_and_multipliers_have_to_agree() -> None:
    """Each new metric asks for other multipliers: four rounds reach half of the gain."""
    h = torch.tensor([[0, 6], [3, 4], [6, 6]], dtype=DOUBLE)
    bends = torch.tensor([[0.1, 10], [100, 1], [10, 10]], dtype=DOUBLE)
    gain = left_to_gain(h, torch.diag_embed(bends))
    assert 0.03 < gain.reached <= gain.bound < 1.001 * gain.reached


def test_one_objective_is_measured_by_the_size_of_x() -> None:
    problem = bp.Problem(lambda x, y: (y - 1).square().sum()[None], follows)
    for by, left in ((0.0, False), (1e-3, False), (0.5, True), (50.0, True)):
        at = torch.full((3,), 1 + by, dtype=DOUBLE)
        found = certify(problem, at, at)
        assert found.common_descent is left
        # f falls by by^2; with x = 0 it would be 1, so its range is | by^2 - 1 | or by^2.
        assert found.improvement == pytest.approx(by**2 / max(abs(by**2 - 1), by**2), rel=1e-3)


def follows(x: Tensor, y: Tensor) -> Tensor:
    return (y - x).square().sum()


@pytest.mark.parametrize("n", [1, 4])
def test_a_quartic_lower_level_is_followed(n: int) -> None:
    """g = (y - x)^4 has no curvature at its solution; along y = x the front is x in [1/2, 1]."""
    problem = bp.Problem(
        lambda x, y: torch.stack(
            [(x - 1).square().sum() + y.square().sum(), x.square().sum() + (y - 2).square().sum()]
        ),
        lambda x, y: (y - x).pow(4).sum(),
    )
    for place in (0.5, 0.7, 1.0):
        at = torch.full((n,), place, dtype=DOUBLE)
        found = quietly(problem, at, at)
        assert found.lower_curvature == "degenerate"
        assert found.common_descent is False, place
    for place in (-0.5, 0.2, 1.5, 30.0):
        at = torch.full((n,), place, dtype=DOUBLE)
        assert quietly(problem, at, at).common_descent is True, place


def test_answers_are_told_from_points_that_are_far() -> None:
    """Answers of a short run are within the tolerance, their start is not."""
    problem = bp.problems.get("pl-sin2")
    answer = bp.solve(
        problem, problem.x0, problem.y0, preference=[0.3, 0.7], steps=1000, compile=False
    )
    assert certify(problem, answer.x, problem.lower_solution(answer.x)).common_descent is False
    start = problem.lower_solution(problem.x0)
    assert certify(problem, problem.x0, start).common_descent is True


def test_an_objective_that_nothing_changes_cannot_fall() -> None:
    problem = bp.Problem(lambda x, y: torch.stack([y.square().sum(), 0 * y.sum() + 3]), follows)
    at = numbers(3, seed=1)
    found = certify(problem, at, at)
    assert found.improvement == 0
    assert found.common_descent is False


def test_a_linear_objective_is_ranged_by_the_other() -> None:
    """f_1 = sum x, f_2 = ||x||^2: the front is x = -t (1, 1), t >= 0."""
    problem = bp.Problem(lambda x, y: torch.stack([y.sum(), y.square().sum()]), follows)
    on = torch.full((2,), -1.0, dtype=DOUBLE)
    assert certify(problem, on, on).common_descent is False
    off = torch.tensor([1.0, -0.5], dtype=DOUBLE)
    assert certify(problem, off, off).common_descent is True


def test_straight_objectives_fall_for_ever_or_not_at_all() -> None:
    def straight(*slopes: list[float]) -> bp.Problem:
        rows = torch.tensor(slopes, dtype=DOUBLE)
        return bp.Problem(lambda x, y: rows @ y, follows)

    # Wherever one stands, and in whatever units: a model without curvature has no minimiser that
    # rounding could hit or miss.
    for seed, size in ((3, 1.0), (4, 1e-9), (5, 1e9)):
        at = size * numbers(2, seed=seed)
        assert certify(straight([1.0, 0.0], [1e6, 1.0]), at, at).common_descent is True
        assert certify(straight([1.0, 0.0]), at, at).improvement == 1
        assert certify(straight([1.0, 2.0], [-1e6, -2e6]), at, at).common_descent is False
