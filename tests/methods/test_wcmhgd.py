"""WC-MHGD against its equations written out, at the Tchebycheff points of the quadratic, and where
it cannot work.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods import WCMHGD, Method, MoCo
from bipareto.methods.parts import simplex
from bipareto.methods.parts.hypergradient import CG, FiniteDifference, Hypergradient, Unrolled
from bipareto.methods.parts.schedule import Power
from bipareto.problem.oracle import Counting
from helpers import DOUBLE, nonconvex
from methods.quadratic import QUADRATIC, SLOPE, L, run, tchebycheff


@pytest.mark.filterwarnings("ignore:WCMHGD needs")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("steps", [None, 3])
def test_equations_line_by_line(steps: int | None, warm: bool) -> None:
    problem, x, y = nonconvex(m=3)
    r = torch.tensor([0.5, 0.3, 0.2], dtype=DOUBLE)
    method = WCMHGD(
        alpha_x=0.05,
        u=2.0,
        lower_steps=2,
        beta=0.1,
        hypergradient=CG(3),
        qp_steps=steps,
        qp_lr=0.1,
        qp_warm_start=warm,
    )
    state = method.init(problem, x, y, r)
    lam = torch.full((3,), 1 / 3, dtype=DOUBLE)
    for _ in range(6):
        state, _ = method.step(problem, state)
        for _ in range(2):
            y = y - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, y)
        K = (r[:, None] * CG(3)(problem.upper, problem.lower, x, y, CG(3).numbers).gradients).T
        b = 2.0 * r * problem.upper(x, y)
        if steps is None:
            lam = simplex.quadratic(K.T @ K, b).weights
        else:
            lam = lam if warm else torch.full((3,), 1 / 3, dtype=DOUBLE)
            for _ in range(steps):
                lam = simplex.project(lam - 0.1 * (2 * K.T @ K @ lam - b))
        x = x - 0.05 * K @ lam
        torch.testing.assert_close(
            (state.x, state.y, state.weights), (x, y, lam), rtol=1e-9, atol=1e-10
        )


@pytest.mark.parametrize(
    "method",
    [
        WCMHGD(lower_steps=2, beta=Power(0.4, -1.0)),
        MoCo(lower_steps=2, lower_step=Power(0.4, -1.0)),
    ],
)
def test_the_lower_steps_may_follow_a_schedule(method: Method) -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([y.square().sum() + 1, (x - 2).square().sum() + y.sum().exp()]),
        lambda x, y: (y - x).square().sum() / 2,
    )
    state: Any = method.init(
        problem,
        torch.ones(2, dtype=DOUBLE),
        torch.zeros(2, dtype=DOUBLE),
        [0.5, 0.5] if method.uses_preference else None,
    )
    for t in range(3):
        x, y = state.x, state.y
        for _ in range(2):
            y = y - 0.4 / (1 + t) * (y - x)
        state, _ = method.step(problem, state)
        torch.testing.assert_close(state.y, y, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:objective . does not depend on y")
def test_an_objective_without_y_needs_no_linear_system() -> None:
    """Named as such, it changes nothing but the work: with and without draws, unrolled or
    solved.
    """
    x, y = torch.ones(3, dtype=DOUBLE), torch.full((3,), 0.5, dtype=DOUBLE)
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE))
    seen: list[int] = []

    def lower(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return ((y - x) @ matrix @ (y - x)) / 2

    def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [x.square().sum() + 1, (y - 1).square().sum() + 1, (x - 2).square().sum()]
        )

    for estimate in (CG(3), FiniteDifference(2, 0.1), Unrolled(2, 0.1)):
        method, ends, work = (
            WCMHGD(alpha_x=0.05, u=2.0, lower_steps=1, beta=0.1, hypergradient=estimate),
            [],
            [],
        )
        for parts in ((), (None, 0, None)):
            problem = bp.Problem(upper, lower)
            problem.parts = parts
            state = method.init(problem, x, y, [0.5, 0.3, 0.2])
            seen.clear()
            state, info = method.step(problem, state)
            ends.append((state.x, state.y, info["objectives"]))
            work.append(len(seen))
        torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
        assert work[1] <= work[0]
        assert work[1] < work[0] or not isinstance(estimate, FiniteDifference)


class InParts(bp.Problem):
    """Coordinates 0 and 1 of y answer x_0, coordinate 2 answers x_1; one objective uses no y, and
    two use the same part.
    """

    def __init__(self, parts: tuple[int | None, ...]) -> None:
        super().__init__(
            self.criteria, lambda x, y: self.lower_part(0, x, y) + self.lower_part(1, x, y)
        )
        self.parts = parts

    def criteria(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [
                (y[2] - 1).square() + 1,
                (y[:2] - x[0]).square().sum() + 2,
                x.square().sum() + 1,
                y[2].square() + x[1].square() + 1,
            ]
        )

    def lower_part(
        self, part: int, x: torch.Tensor, y: torch.Tensor, batch: object = None
    ) -> torch.Tensor:
        if part == 0:
            return (y[0] - x[0]).square() + (y[1] - x[0] * y[0]).square()
        return 0.5 * (y[2] - x[1].sin()).square()


@pytest.mark.filterwarnings("ignore:objective 2 does not depend on y")
@pytest.mark.parametrize(
    "estimate", [CG(3), FiniteDifference(2, 0.1), Unrolled(2, 0.1)], ids=lambda e: type(e).__name__
)
def test_a_step_by_parts_is_the_same(estimate: Hypergradient) -> None:
    method = WCMHGD(alpha_x=0.05, u=2.0, lower_steps=1, beta=0.1, hypergradient=estimate)
    ends = []
    for parts in ((), (1, 0, None, 1)):
        problem = Counting(InParts(parts))
        state = method.init(
            problem,
            torch.tensor([0.3, 0.7], dtype=DOUBLE),
            torch.tensor([0.1, 0.2, 0.4], dtype=DOUBLE),
            [0.25] * 4,
        )
        problem.counts.clear()
        state, info = method.step(problem, state)
        ends.append((state.x, state.y, info["objectives"]))
        assert (problem.counts["lower"] == 1) == bool(
            parts
        )  # the step of y; the estimates ask for parts alone
    torch.testing.assert_close(*ends, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("u", [1.0, 10.0])
def test_the_exact_program_ends_at_the_tchebycheff_points(u: float) -> None:
    found = run(
        WCMHGD(alpha_x=0.2 / SLOPE, u=u, lower_steps=4, beta=1 / L, hypergradient=CG(5)), 200
    )
    assert (found.position - tchebycheff()).abs().max() < 0.005
    assert found.distance.max() < 1e-6


def test_tuned_does_too() -> None:
    found = run(WCMHGD.tuned(QUADRATIC, QUADRATIC.x0, QUADRATIC.y0), 60)
    assert (found.position - tchebycheff()).abs().max() < 0.005
    assert found.info["solver_residual"].max() < 1e-8


def test_without_the_chebyshev_term_preferences_are_not_followed() -> None:
    found = run(
        WCMHGD(alpha_x=1 / SLOPE, u=0.0, lower_steps=4, beta=1 / L, hypergradient=CG(5)), 100
    )
    assert found.distance.max() < 1e-5
    assert (found.position - tchebycheff()).abs().max() > 0.05


def test_the_paper_s_eight_projected_steps_blur_preferences() -> None:
    paper = WCMHGD.paper()
    assert (paper.u, paper.lower_steps, paper.qp_steps, paper.qp_lr) == (10.0, 4, 8, 0.01)
    settings = {
        "alpha_x": 0.2 / SLOPE,
        "u": 10.0,
        "lower_steps": 4,
        "beta": 1 / L,
        "hypergradient": CG(5),
        "qp_steps": 8,
        "qp_lr": 0.01,
    }
    found = run(WCMHGD(**settings), 200)
    assert found.info["weights_slack"].max() > 1e-3
    assert 0.005 < (found.position - tchebycheff()).abs().max() < 0.3


def test_what_it_cannot_do_it_says() -> None:
    below = bp.Problem(
        lambda x, y: QUADRATIC.upper(x, y) - torch.tensor([0.0, 100.0], dtype=DOUBLE),
        QUADRATIC.lower,
    )
    with pytest.raises(
        InvalidInput, match=r"WCMHGD .*needs every f_i > 0, but f_2 = -9.* at the start.*MOMEHA"
    ):
        WCMHGD().init(below, QUADRATIC.x0, QUADRATIC.y0)
    flat = bp.problems.get("merely-convex")
    with pytest.warns(BiparetoWarning, match=r"WCMHGD needs a strongly convex lower level.*MOMEHA"):
        found = run(WCMHGD.tuned(flat, flat.x0, flat.y0), 50, flat)
    assert found.info["curvature"].max() < 1e-12
    assert found.info["solver_residual"].min() > 0.1
    with pytest.raises(InvalidInput, match="u = -1"):
        WCMHGD(u=-1.0)
