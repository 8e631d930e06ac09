"""MOML against its equations written out, its truncation bias, and the two readings of its
weights.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods import MOML
from bipareto.methods.parts import simplex
from helpers import nonconvex
from methods.quadratic import QUADRATIC, SLOPE, L, run


@pytest.mark.filterwarnings("ignore:MOML needs")
@pytest.mark.parametrize("normalize", [False, True])
def test_equations_line_by_line(normalize: bool) -> None:
    problem, x, y = nonconvex(m=3)
    method = MOML(inner_steps=3, eta=0.05, alpha_x=0.1, normalize=normalize)
    state = method.init(problem, x, y)

    def through(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(3):
            y = y - 0.05 * torch.func.grad(problem.lower, argnums=1)(x, y)
        return y

    for _ in range(5):
        state, info = method.step(problem, state)
        h = torch.func.jacrev(lambda x_, y=y: problem.upper(x_, through(x_, y)))(x)
        rows = h / h.norm(dim=1, keepdim=True) if normalize else h
        lam = simplex.quadratic(rows @ rows.T).weights
        x, y = x - 0.1 * lam @ h, through(x, y)
        torch.testing.assert_close(
            (state.x, state.y, info["weights"]), (x, y, lam), rtol=1e-10, atol=1e-12
        )


def test_truncation_bias_shrinks_with_the_inner_steps() -> None:
    distance = {
        K: float(run(MOML(inner_steps=K, eta=1 / L, alpha_x=1 / SLOPE), 60).distance)
        for K in (1, 4, 16)
    }
    assert distance[1] > 10 * distance[4] > 100 * distance[16]
    assert distance[16] < 1e-6


def test_tuned_reaches_the_front() -> None:
    assert run(MOML.tuned(QUADRATIC, QUADRATIC.x0, QUADRATIC.y0), 60).distance < 1e-5


def test_the_paper_s_four_steps_leave_the_weights_near_equal() -> None:
    method = MOML.paper()
    assert (method.inner_steps, method.weight_steps, method.weight_lr) == (4, 4, 0.05)
    small = bp.Problem(lambda x, y: 0.1 * QUADRATIC.upper(x, y), QUADRATIC.lower)
    _, info = method.step(small, method.init(small, QUADRATIC.x0, QUADRATIC.y0))
    assert info["weights_slack"] > 1e-3
    assert (info["weights"] - 0.5).abs().max() < 0.05


def test_what_it_cannot_do_it_says() -> None:
    with pytest.raises(InvalidInput, match=r"MOML has no preferences.*MOMEHA"):
        MOML().init(QUADRATIC, QUADRATIC.x0, QUADRATIC.y0, [0.5, 0.5])
    with pytest.raises(InvalidInput, match=r"MOML has no preferences.*MOMEHA"):
        bp.front(
            QUADRATIC, QUADRATIC.x0, QUADRATIC.y0, method=MOML(), preferences=[[0.5, 0.5]], steps=1
        )
    flat = bp.problems.get("merely-convex")
    with pytest.warns(BiparetoWarning, match=r"MOML needs a strongly convex lower level.*MOMEHA"):
        MOML().init(flat, flat.x0, flat.y0)
    with pytest.raises(InvalidInput, match=r"alpha_x = 0; it must be > 0"):
        MOML(alpha_x=0)
