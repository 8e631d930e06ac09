"""MoCo against its equations written out, on the quadratic, and under noise."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods import MoCo
from bipareto.methods.parts import simplex
from bipareto.methods.parts.hypergradient import (
    CG,
    FiniteDifference,
    Hypergradient,
    Neumann,
    Unrolled,
)
from bipareto.methods.parts.schedule import Power
from helpers import DOUBLE, nonconvex
from methods.quadratic import QUADRATIC, run


@pytest.mark.filterwarnings("ignore:MoCo needs")
@pytest.mark.parametrize(
    "estimate", [CG(3), Neumann(2, 0.1), Unrolled(2, 0.1), FiniteDifference(1, 0.1)], ids=str
)
def test_equations_line_by_line(estimate: Hypergradient) -> None:
    problem, x, y = nonconvex(m=3)
    method = MoCo(
        alpha_x=0.05,
        beta=Power(0.5, -0.5),
        gamma=0.02,
        rho=0.1,
        lower_steps=2,
        lower_step=0.1,
        hypergradient=estimate,
    )
    state = method.init(problem, x, y)
    tracked, lam = torch.zeros(3, 3, dtype=DOUBLE), torch.full((3,), 1 / 3, dtype=DOUBLE)
    for t in range(8):
        state, info = method.step(problem, state)
        for _ in range(2):
            y = y - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, y)
        found = estimate(problem.upper, problem.lower, x, y, estimate.numbers)
        y = found.y
        tracked = tracked - 0.5 * (1 + t) ** -0.5 * (tracked - found.gradients)
        lam = simplex.project(
            lam - 0.02 * (tracked @ tracked.T + 0.1 * torch.eye(3, dtype=DOUBLE)) @ lam
        )
        x = x - 0.05 * lam @ tracked
        torch.testing.assert_close(
            (state.x, state.y, state.tracked, info["weights"]),
            (x, y, tracked, lam),
            rtol=1e-10,
            atol=1e-12,
        )


def test_it_reaches_the_front_of_the_quadratic() -> None:
    found = run(MoCo.tuned(QUADRATIC, QUADRATIC.x0, QUADRATIC.y0), 80)
    assert found.distance < 1e-6
    assert found.info["residual"] < 1e-6


def test_under_noise_tracking_keeps_it_near_the_front() -> None:
    noisy = bp.problems.get("quadratic", dim=5, m=2, noise=0.1)
    method = MoCo.tuned(noisy, noisy.x0, noisy.y0)
    assert isinstance(method.beta, Power)
    assert run(method, 150, noisy).distance < 1e-2


def test_what_it_cannot_do_it_says() -> None:
    flat = bp.problems.get("merely-convex")
    with pytest.warns(BiparetoWarning, match=r"MoCo needs a strongly convex lower level.*MOMEHA"):
        found = run(MoCo.tuned(flat, flat.x0, flat.y0), 50, flat)
    assert found.info["curvature"] < 1e-12
    assert found.info["solver_residual"] > 0.1
    with pytest.raises(InvalidInput, match="lower_steps = -1"):
        MoCo(lower_steps=-1)
