"""Which kind of stationary point of the lower level y is."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import bipareto as bp
from bipareto.certificate.certificate import certify
from bipareto.methods.parts.schedule import Power
from certificate.points import numbers, quietly
from helpers import DOUBLE


@pytest.mark.parametrize("n", [1, 3])
def test_every_stationary_point_of_the_sine_is_named(n: int) -> None:
    problem = bp.problems.get("sin", n=n)
    x = torch.tensor([0.3], dtype=DOUBLE)
    signs = list(itertools.product((-1.0, 1.0), repeat=n))
    for sign, branch in itertools.product(signs, (-1, 0, 2)):
        # sin' = 0 at -pi/2 (a minimum) and pi/2 (a maximum) in every coordinate
        y = math.pi / 2 * torch.tensor(sign, dtype=DOUBLE) + 2 * math.pi * branch + 2.0 - x
        kind = certify(problem, x, y, gamma=0.4).lower_curvature
        assert kind == ("minimum" if max(sign) < 0 else "maximum" if min(sign) > 0 else "saddle")


def test_every_stationary_point_of_the_double_well_is_named() -> None:
    problem = bp.problems.get("bistable")
    fold = 2 / (3 * math.sqrt(3))
    for x in [
        -1.0,
        -0.5,
        *torch.linspace(-0.99 * fold, 0.99 * fold, 9, dtype=DOUBLE).tolist(),
        0.5,
        1.0,
    ]:
        companion = torch.tensor(
            [[0.0, 1.0, x], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=DOUBLE
        )  # y^3 - y - x = 0
        roots = torch.linalg.eigvals(companion)
        for y in roots.real[roots.imag.abs() < 1e-9].tolist():
            found = certify(
                problem, torch.tensor([x], dtype=DOUBLE), torch.tensor([y], dtype=DOUBLE), gamma=0.4
            )
            assert found.lower_curvature == ("minimum" if 3 * y**2 > 1 else "maximum")
            assert found.lower_residual < 1e-12
    for sign in (-1, 1):
        at_fold = certify(
            problem,
            torch.tensor([sign * fold], dtype=DOUBLE),
            torch.tensor([-sign / math.sqrt(3)], dtype=DOUBLE),
            gamma=0.4,
        )
        assert at_fold.lower_curvature == "degenerate"


def test_a_free_direction_is_degenerate_and_a_flat_bottom_too() -> None:
    problem = bp.problems.get("merely-convex")
    x = numbers(10)
    assert certify(problem, x, problem.lower_solution(x)).lower_curvature == "degenerate"
    quartic = bp.Problem(
        lambda x, y: torch.stack([x.sum() + y.sum()]), lambda x, y: (y**4).sum() + 0 * x.sum()
    )
    assert (
        certify(quartic, torch.zeros(1, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)).lower_curvature
        == "degenerate"
    )


def trap(ratio: float) -> bp.Solution:
    problem = bp.problems.get("sin-trap")
    method = bp.MOMEHA(
        gamma=0.4, alpha_theta=ratio * 0.1, alpha_x=0.1, alpha_y=0.1, c=Power(5.0, 0.3)
    )
    return bp.solve(
        problem, problem.x0, problem.y0, method=method, steps=1200, compile=False, progress=False
    )


def test_a_run_caught_by_a_lower_maximum_is_found_out() -> None:
    problem = bp.problems.get("sin-trap")
    caught = trap(3.0)
    assert float(caught.x) == pytest.approx(math.pi / 4, abs=0.02)
    assert float(torch.sin(caught.x + caught.y - 2)) > 0.999
    found = certify(problem, caught.x, caught.y, gamma=0.4)
    # The paper's two measures see nothing wrong: the curvature does.
    assert found.gap < 1e-3
    assert found.stationarity is not None
    assert found.stationarity < 0.05
    assert found.lower_curvature == "maximum"
    assert "maximum" in str(found)
    free = trap(1.0)
    assert quietly(problem, free.x, free.y, gamma=0.4).lower_curvature == "minimum"
