"""Twin: its adjoint solves the damped system, y sees g alone, and rho = 1 is one unrolled step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods.parts.schedule import Cosine
from bipareto.methods.twin import SECOND_MOMENT_Y, TINY
from bipareto.problem import tree

HESSIAN = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.5]], dtype=torch.float64)
MIXED = torch.tensor([[1.0, 0.0], [0.3, 1.0], [-0.5, 0.4]], dtype=torch.float64)
X0 = torch.tensor([0.4, -0.7], dtype=torch.float64)
Y0 = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def lower(x: Tensor, y: Tensor) -> Tensor:
    u = y - MIXED @ x
    return 0.5 * u @ HESSIAN @ u


def upper(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(y - 1).square().sum() + x.square().sum(), (y + 1).square().sum() + 1])


PROBLEM = bp.Problem(upper, lower)


def test_the_adjoint_solves_the_damped_system() -> None:
    """((1 - rho) H + rho D/alpha_y) v = grad_y F once x and y stand still."""
    method = bp.Twin(rho=0.2, alpha_x=1e-30, alpha_y=0.02, scalarization="linear")
    state = method.init(PROBLEM, X0, MIXED @ X0 + 1e-3, [0.3, 0.7])
    # A metric that stays: y rests, and its second moments are those of unit gradients.
    fixed = state.moments._replace(square_y=torch.ones(3, dtype=torch.float64))
    state = state._replace(moments=fixed, t=torch.tensor(1e6, dtype=torch.float64))
    y = state.y
    for _ in range(600):
        moments = state.moments._replace(square_y=fixed.square_y)
        state, _ = method.step(PROBLEM, state._replace(y=y, moments=moments))
    last = SECOND_MOMENT_Y + (1 - SECOND_MOMENT_Y) * (HESSIAN @ (y - MIXED @ X0)).square()
    metric = torch.diag(last.sqrt() + TINY)
    ahead = y - 0.02 * (HESSIAN @ (y - MIXED @ X0)) / metric.diagonal()
    gradient = 0.3 * 2 * (ahead - 1) + 0.7 * 2 * (ahead + 1)
    expected = torch.linalg.solve(0.8 * HESSIAN + 0.2 / 0.02 * metric, gradient)
    torch.testing.assert_close(state.v, expected, rtol=1e-6, atol=1e-9)


def test_rho_one_is_the_unrolled_step() -> None:
    """With rho = 1 and no averages, h is d/dx F(x, y - alpha_y D^-1 grad_y g(x, y)), D held: on the
    first step and, with what v has learned there, on the second.
    """
    alpha = 0.3
    method = bp.Twin(rho=1.0, beta=0.0, alpha_x=1e-30, alpha_y=alpha, scalarization="linear")
    before = method.init(PROBLEM, X0, Y0, [0.3, 0.7])
    for _ in range(2):
        after, _ = method.step(PROBLEM, before)
        squares = after.moments.square_y / (1 - SECOND_MOMENT_Y**after.t)

        def unrolled(x: Tensor, y: Tensor = before.y, squares: Tensor = squares) -> Tensor:
            slope = torch.func.grad(lambda v: lower(x, v))(y)
            ahead = y - alpha * slope / (squares.sqrt() + TINY)
            return torch.tensor([0.3, 0.7], dtype=torch.float64) @ upper(x, ahead)

        torch.testing.assert_close(after.moments.x, torch.func.grad(unrolled)(X0))
        before = after


def test_y_never_sees_the_upper_level() -> None:
    """With x held, two problems with other objectives leave y on the same path, to the last bit."""
    method = bp.Twin(alpha_x=1e-30)
    other = bp.Problem(lambda x, y: 100 * upper(x, y).flip(0) + 7, lower)
    paths = []
    for problem in (PROBLEM, other):
        state = method.init(problem, X0, Y0)
        for _ in range(50):
            state, _ = method.step(problem, state)
        paths.append(state.y)
    assert torch.equal(*paths)


def test_preferences_lead_to_the_exact_points() -> None:
    problem = bp.problems.get("quadratic")
    x0, y0 = problem.start(0)
    steps = 1500
    method = bp.Twin(
        rho=0.01, alpha_x=Cosine(0.03, float(steps)), alpha_y=Cosine(0.03, float(steps)), mu=50.0
    )
    front = bp.front(
        problem, x0, y0, preferences=[[0.3, 0.7], [0.6, 0.4]], method=method, steps=steps
    )
    front = front.resolve_lower()
    distance = problem.distance_to_front(front.objectives)
    assert (distance.abs() < 0.02).all()
    assert front.objectives[0, 0] > front.objectives[1, 0]


def test_y_norm_and_adjoint_are_recorded() -> None:
    front = bp.front(PROBLEM, X0, Y0, preferences=[[0.5, 0.5]], method=bp.Twin(), steps=20)
    history = front[0].history
    torch.testing.assert_close(history["y_norm"][-1], tree.norm(front[0].y))
    assert (history["adjoint"] > 0).any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"rho": 0.0}, "rho"), ({"rho": 2.0}, "> 0 and <= 1"), ({"beta": 1.0}, "beta")],
)
def test_what_cannot_be(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bp.Twin(**wrong)
