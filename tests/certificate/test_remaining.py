"""What can still be gained, by going there: two paraboloids a unit apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.remaining import remaining, values
from helpers import DOUBLE

ONE = torch.ones(2, dtype=DOUBLE)


def balls(n: int, scale: float = 1.0) -> bp.Problem:
    """f_i = ||y - c_i||^2 with c = (0, 0, ...) and (1, 0, ...) over y* = scale x."""
    end = torch.zeros(n, dtype=DOUBLE)
    end[0] = 1.0
    return bp.Problem(
        lambda x, y: torch.stack([y.square().sum(), (y - end).square().sum()]),
        lambda x, y: (y - scale * x).square().sum(),
    )


def points(n: int, *places: tuple[float, float], scale: float = 1.0) -> Tensor:
    found = torch.zeros(len(places), n, dtype=DOUBLE)
    found[:, :2] = torch.tensor(places, dtype=DOUBLE)
    return found / scale


@pytest.mark.parametrize("n", [2, 200])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_from_above_the_segment_both_gain_the_squared_height(n: int, scale: float) -> None:
    if n > 100 and scale > 1:
        pytest.skip("without written-down curvature the unit of x is seen")
    places = (0.5, 0.0), (0.5, 0.3), (0.5, 1.0), (0.2, 0.0)
    x = points(n, *places, scale=scale)
    left = remaining(balls(n, scale), x, scale * x, ONE)
    assert left.tolist() == pytest.approx([0.0, 0.09, 1.0, 0.0], abs=2e-3)
    half = remaining(balls(n, scale), x, scale * x, torch.tensor([1.0, 2.0], dtype=DOUBLE))
    # What counts is the smaller share: the second falls by about h^2/2 of its range.
    assert 0.03 < float(half[1]) < 0.046


def test_beyond_an_end_both_gain_the_way_to_it() -> None:
    """At (-a, 0) moving to 0 lowers f_1 by a^2 and f_2 by (1 + a)^2 - 1."""
    x = points(2, (-0.5, 0.0), (-2.0, 0.0))
    left = remaining(balls(2), x, x, ONE)
    assert left.tolist() == pytest.approx([0.25, 4.0], rel=1e-2)


def test_the_lower_level_is_solved_first() -> None:
    x = points(2, (0.5, 0.3))
    off = x + 5.0
    assert float(remaining(balls(2), x, off, ONE)) == pytest.approx(0.09, abs=2e-3)


def test_what_is_not_finite_is_nan_and_harms_no_other() -> None:
    x = points(2, (0.5, 0.3), (math.nan, 0.0))
    left = remaining(balls(2), x, x.nan_to_num(), ONE)
    assert float(left[0]) == pytest.approx(0.09, abs=2e-3)
    assert math.isnan(float(left[1]))


def test_values_are_the_objectives() -> None:
    x = points(2, (0.5, 0.3), (1.0, 0.0))
    expected = torch.tensor([[0.34, 0.34], [1.0, 0.0]], dtype=DOUBLE)
    torch.testing.assert_close(values(balls(2), x, x), expected)


def test_values_are_taken_on_all_the_data() -> None:
    problem = bp.Problem(
        lambda x, y, b: b * torch.stack([x.sum(), y.sum()]),
        lambda x, y, b: b * (y - x).square().sum(),
        sampler=lambda role, t, seed: torch.tensor(
            {"upper": 3.0, "lower": 5.0}[role.level] if role.full else 1.0
        ).double(),
    )
    x = points(2, (0.5, 0.25))
    assert values(problem, x, 2 * x).tolist() == [[2.25, 4.5]]
