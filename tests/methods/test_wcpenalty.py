"""WC-penalty against the gradient of its penalised function, at the Tchebycheff points of the
quadratic, and where others fail.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods import WCPenalty
from bipareto.methods.wcpenalty import WcpenaltyState
from helpers import DOUBLE, nonconvex, quadratic
from methods.quadratic import QUADRATIC, run, tchebycheff


@pytest.mark.parametrize(
    ("rho_init", "difference", "tolerance"),
    [(None, None, 1e-9), (0.3, None, 1e-9), (None, 1e-4, 1e-6)],
)
def test_it_is_projected_gradient_descent_on_the_penalised_function(
    rho_init: float | None, difference: float | None, tolerance: float
) -> None:
    problem, x, y = nonconvex(m=3)
    w = torch.tensor([0.5, 0.3, 0.2], dtype=DOUBLE)
    method = WCPenalty(
        u=3.0, v=2.0, alpha_x=0.01, alpha_y=0.02, eta=0.03, rho_init=rho_init, difference=difference
    )
    state = method.init(problem, x, y, w)
    assert method.oracles(3)["hessian_products"] == (2 if difference is None else 0)

    def penalised(x: Tensor, y: Tensor, rho: Tensor, delta: Tensor) -> Tensor:
        residual = torch.func.grad(problem.lower, argnums=1)(x, y)
        return (
            rho
            + 1.5 * (w * problem.upper(x, y) + delta - rho).square().sum()
            + (residual @ residual)
        )

    rho, delta = state.rho, state.delta
    for _ in range(10):
        state, _ = method.step(problem, state)
        d_x, d_y, d_rho, d_delta = torch.func.grad(penalised, argnums=(0, 1, 2, 3))(
            x, y, rho, delta
        )
        x, y, rho, delta = (
            x - 0.01 * d_x,
            y - 0.02 * d_y,
            rho - 0.03 * d_rho,
            (delta - 0.03 * d_delta).clamp_min(0),
        )
        torch.testing.assert_close(
            (state.x, state.y, state.rho, state.delta),
            (x, y, rho, delta),
            rtol=tolerance,
            atol=tolerance,
        )


def test_the_start_minimises_over_rho_and_delta() -> None:
    """omega >= 0 with sum 1, and delta = 0 where omega > 0: nothing to ramp up."""
    problem, x, y = nonconvex(m=4)
    for u in (0.01, 1.0, 100.0):
        method = WCPenalty(u=u)
        state = method.init(problem, x, y, [0.4, 0.3, 0.2, 0.1])
        omega = u * (state.preference * problem.upper(x, y) + state.delta - state.rho)
        assert (omega > -1e-9).all()
        torch.testing.assert_close(omega.sum(), torch.ones((), dtype=DOUBLE), rtol=1e-9, atol=1e-9)
        assert ((omega < 1e-9) | (state.delta < 1e-9)).all()
    assert WCPenalty(rho_init=0.5).init(problem, x, y).rho == 0.5


def test_strong_penalties_end_at_the_tchebycheff_points() -> None:
    found = run(WCPenalty(u=50.0, v=50.0, alpha_x=0.003, alpha_y=0.003, eta=0.005), 3500)
    assert (found.position - tchebycheff()).abs().max() < 0.005
    assert found.distance.max() < 1e-3
    assert found.info["lower_residual"].max() < 0.02


def test_the_paper_s_penalties_are_a_linear_scalarization() -> None:
    found = run(WCPenalty.paper(), 500)
    assert found.info["weights"].diff(dim=1).abs().max() < 0.01
    assert found.info["lower_residual"].min() > 0.1


def test_a_flat_lower_level_is_no_obstacle() -> None:
    flat = bp.problems.get("merely-convex")
    found = run(WCPenalty.tuned(flat, flat.x0, flat.y0, steps=2000), 2000, flat)
    assert found.distance.max() < 0.05


def known(name: str, **options: int) -> tuple[bp.Problem, Tensor, Tensor]:
    problem = bp.problems.get(name, **options)
    return problem, problem.x0, problem.y0


TUNED = [
    quadratic(),
    known("mo-sin"),
    known("tp2-s"),
    known("ridge"),
    known("pl-sin2", m=3),
    nonconvex(m=4, seed=1),
]


@pytest.mark.parametrize("budget", [400, 20_000])
@pytest.mark.parametrize(
    ("problem", "x", "y"),
    TUNED,
    ids=["quadratic", "mo-sin", "tp2-s", "ridge", "pl-sin2", "nonconvex"],
)
def test_tuned_steps_descend_whatever_the_preference(
    problem: bp.Problem, x: Tensor, y: Tensor, budget: int
) -> None:
    """P, with the penalties of the step, falls from the first step on, near every corner of the
    simplex and in its middle: the steps are below 2 over its curvature.
    """
    method = WCPenalty.tuned(problem, x, y, steps=budget)
    m = problem.check(x, y)

    def penalised(state: WcpenaltyState, t: Tensor) -> float:
        residual = torch.func.grad(problem.lower, argnums=1)(state.x, state.y)
        excess = state.preference * problem.upper(state.x, state.y) + state.delta - state.rho
        u, v = (s(t) for s in (method.u, method.v))
        return float(state.rho + u / 2 * excess.square().sum() + v / 2 * residual.square().sum())

    corners = torch.full((m, m), 0.04 / (m - 1), dtype=DOUBLE).fill_diagonal_(0.96)
    for w in (*corners, torch.full((m,), 1 / m, dtype=DOUBLE)):
        state = method.init(problem, x, y, w)
        for _ in range(30):
            before, t = penalised(state, state.t), state.t
            state, _ = method.step(problem, state)
            assert penalised(state, t) <= before + 1e-12 * abs(before)


def test_tuned_leaves_little_hypergradient_on_a_quadratic_of_condition_four() -> None:
    """The penalties grow along the run: constant ones of the same rule leave 0.1 to 0.7 here."""
    stream = torch.Generator().manual_seed(14)
    A, p, q = (torch.randn(*s, generator=stream, dtype=DOUBLE) for s in ((4, 4), (2, 4), (2, 4)))
    A, h = 0.7 * A, torch.linspace(1, 4, 4, dtype=DOUBLE)
    problem = bp.Problem(
        lambda x, y: 0.5 * ((x - p).square().sum(1) + (y - q).square().sum(1)),
        lambda x, y: 0.5 * (h * (y - A @ x).square()).sum(),
    )
    zero, steps = torch.zeros(4, dtype=DOUBLE), 3000
    method = WCPenalty.tuned(problem, zero, zero, steps=steps)
    preferences = [[0.5, 0.5], [0.85, 0.15], [0.15, 0.85]]

    found = bp.front(
        problem, zero, zero, preferences=preferences, method=method, steps=steps, compile=False
    )
    rows = [(x - p) + (x @ A.T - q) @ A for x in found.x]
    assert max(bp.pareto_stationarity(row).epsilon for row in rows) < 0.06


def test_what_it_cannot_do_it_says() -> None:
    below = bp.Problem(lambda x, y: QUADRATIC.upper(x, y) - 100, QUADRATIC.lower)
    with pytest.raises(
        InvalidInput,
        match=r"WCPenalty .*needs every f_i > 0, but f_1 = -.*, f_2 = -.* at the start.*MOMEHA",
    ):
        WCPenalty().init(below, QUADRATIC.x0, QUADRATIC.y0)
    with pytest.raises(InvalidInput, match="u = 0"):
        WCPenalty(u=0.0)
