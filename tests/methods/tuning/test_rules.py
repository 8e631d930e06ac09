"""The rules of tuning where they have a closed form."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.methods.tuning import envelope_methods
from helpers import DOUBLE


@pytest.mark.parametrize("response", [0.4, 3.0])
def test_the_first_penalty_of_one_dimension_is_the_closed_one(response: float) -> None:
    """g = a (y - k x)^2/2, f = (p x, q y) (twice, to have two objectives).

    gamma = 4/a, alpha = 0.64/a; x's pull counts as k/(k^2 + alpha), y's as itself, both four times
    for a coordinate on its own; the gap's slope peaks at the largest distance looked at, sqrt(10)
    times the size of y, where it is a gamma a/(1 + gamma a) = 4a/5 times that.
    """
    a, p, q, k = 2.0, 1.5, -0.7, response

    def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([p * x.sum() + q * y.sum(), p * x.sum() + q * y.sum()]) + 20

    problem = bp.Problem(upper, lambda x, y: a / 2 * (y - k * x).square().sum())
    one = torch.ones(1, dtype=DOUBLE)
    found = envelope_methods.tune_momeha(problem, one, k * one)
    alpha = 0.64 / a
    assert found["gamma"] == pytest.approx(4 / a)
    assert found["alpha_theta"] == pytest.approx(alpha)
    tilt = 4 * abs(q) + k / (k**2 + alpha) * 4 * abs(p)
    assert found["c"].scale == pytest.approx(tilt / (0.8 * a * 10**0.5 * k), rel=1e-3)
    assert found["mu"] == pytest.approx(4 * 2 / (20 + p + q * k))
    # the coupling is g_xy = a k; g is a sum over coordinates, so alpha_x is twice 1/stiffness
    stiffness = 4 / a * (a * k) ** 2 / 5
    assert found["alpha_x"] == pytest.approx(2 / stiffness, rel=1e-3)


def test_the_penalty_grows_as_fast_as_x_can_still_travel() -> None:
    """rate sum_t (1 + t)^-p ~ rate T^(1 - p)/(1 - p) = 8."""
    power = envelope_methods._power
    for rate in (0.003, 0.006, 0.012):
        p = power(rate, 20_000)
        assert 0.1 < p < 0.45
        assert rate * 20_000 ** (1 - p) / (1 - p) == pytest.approx(8.0, rel=1e-4)
    assert power(1e6, 20_000) == 0.45
    assert power(1e-9, 20_000) == pytest.approx(0.1)
    assert power(0.0, 20_000) == power(-1.0, 20_000) == 0.25
