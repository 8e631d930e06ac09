"""gMOBA against its equations written out, and on the quadratic."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.methods import GMOBA
from bipareto.methods.parts import simplex
from bipareto.methods.parts.schedule import Power
from helpers import DOUBLE, nonconvex
from methods.quadratic import QUADRATIC, run


@pytest.mark.filterwarnings("ignore:GMOBA needs")
def test_equations_line_by_line() -> None:
    problem, x, y = nonconvex(m=3)
    method = GMOBA(alpha_x=Power(0.05, -0.5), beta=0.1, eta=0.2)
    state = method.init(problem, x, y)
    v = torch.zeros(3, 3, dtype=DOUBLE)
    for t in range(10):
        state, info = method.step(problem, state)
        f_x, f_y = torch.func.jacrev(problem.upper, argnums=(0, 1))(x, y)
        (_, cross), (_, curvature) = torch.func.hessian(problem.lower, argnums=(0, 1))(x, y)
        d = f_x - v @ cross.T
        lam = simplex.quadratic(d @ d.T).weights
        residual = ((v @ curvature - f_y).norm(dim=1) / f_y.norm(dim=1)).max()
        x_new = x - 0.05 * (1 + t) ** -0.5 * lam @ d
        y_new = y - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, y)
        x, y, v = x_new, y_new, v - 0.2 * (v @ curvature - f_y)
        torch.testing.assert_close((state.x, state.y, state.v), (x, y, v), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close((info["weights"], info["solver_residual"]), (lam, residual))


def test_it_reaches_the_front_of_the_quadratic() -> None:
    found = run(GMOBA.tuned(QUADRATIC, QUADRATIC.x0, QUADRATIC.y0), 120)
    assert found.distance < 1e-6
    assert found.info["solver_residual"] < 1e-6
    assert found.info["residual"] < 1e-6


def test_a_singular_lower_hessian_is_named_and_the_failure_visible() -> None:
    flat = bp.problems.get("merely-convex")
    method = GMOBA.tuned(flat, flat.x0, flat.y0)
    with pytest.warns(
        BiparetoWarning, match=r"GMOBA needs a strongly convex lower level.*MOMEHA and WCPenalty"
    ):
        found = run(method, 200, flat)
    assert found.distance > 0.1
    assert found.info["solver_residual"] > 0.01


def test_the_paper_s_steps() -> None:
    assert GMOBA.paper() == GMOBA(alpha_x=0.1, beta=0.05, eta=0.05)
