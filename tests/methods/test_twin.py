"""Twin: its adjoint solves the damped system, y sees g alone, and rho = 1 is one unrolled step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.parts.scalarization import Tracked
from bipareto.methods.parts.schedule import Cosine, Power
from bipareto.methods.twin import SECOND_MOMENT_X, SECOND_MOMENT_Y, TINY
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


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("long", [False, True])
def test_a_step_is_the_printed_one(shared: float, long: bool) -> None:
    """The fourth step, from moments and an adjoint that are not zero, term by term; an adjoint
    that is too long is cut to (1/rho) times its source.
    """
    rho, beta, mu, eps = 0.2, 0.7, 1.3, 0.01
    alpha_x, alpha_y = Power(0.05, -0.5), Power(0.02, -0.25)
    method = bp.Twin(
        *(rho, alpha_x, alpha_y, mu), Tracked(0.5), beta=beta, epsilon=eps, shared=shared
    )
    state = method.init(PROBLEM, X0, Y0, [0.3, 0.7])
    stream = torch.Generator().manual_seed(0)

    def some(n: int) -> Tensor:
        return torch.rand(n, generator=stream, dtype=torch.float64) + 0.5

    t = torch.tensor(3.0, dtype=torch.float64)
    v, before = some(3) * (100 if long else 0.01), 1e-3 if long else 1.0
    old = type(state.moments)(some(2), some(3), some(3), some(2), some(3), t * 0 + before)
    state = state._replace(v=v, t=t, moments=old)
    new, info = method.step(PROBLEM, state)

    g_y = torch.func.grad(lower, argnums=1)(X0, Y0)
    a_x, a_y, first = 0.05 * 4**-0.5, 0.02 * 4**-0.25, 1 - beta**4
    square_y = SECOND_MOMENT_Y * old.square_y + (1 - SECOND_MOMENT_Y) * g_y**2
    D = (square_y / (1 - SECOND_MOMENT_Y**4)).sqrt() + TINY
    m_y = (1 - beta) * g_y + beta * old.y
    torch.testing.assert_close(new.y, Y0 - a_y / first * m_y / D)
    ahead, w, z = Y0 - a_y * g_y / D, torch.tensor([0.3, 0.7], dtype=torch.float64), state.ideal
    torch.testing.assert_close(z, upper(X0, Y0) - 0.5)
    f = upper(X0, ahead)
    weights = w * torch.softmax(mu * w * (f - z), 0)
    F_x, F_y = torch.func.grad(lambda x, y: weights @ upper(x, y), argnums=(0, 1))(X0, ahead)
    wanted = (1 - rho) * (v - a_y * old.v / D) + a_y * F_y / D
    source = max(SECOND_MOMENT_X * before, a_y * float((F_y / D).norm()))
    assert (float(wanted.norm()) > source / rho) is long
    if long:
        wanted = wanted * (source / rho / wanted.norm())
    torch.testing.assert_close(new.v, wanted, rtol=1e-6, atol=1e-9)
    # g is quadratic: differences are products.
    h = F_x + MIXED.T @ HESSIAN @ wanted
    m_v = (1 - beta) * (HESSIAN @ wanted) + beta * old.v
    square_x = SECOND_MOMENT_X * old.square_x + (1 - SECOND_MOMENT_X) * h**2
    root = (square_x / (1 - SECOND_MOMENT_X**4)).sqrt()
    typical = root.square().mean().sqrt()
    m_x = (1 - beta) * h + beta * old.x
    move = a_x / first * m_x / (shared * typical + (1 - shared) * root)
    torch.testing.assert_close(new.x, X0 - move, rtol=1e-5, atol=1e-8)
    expected = (m_x, m_y, m_v, square_x, square_y, t * 0 + source)
    torch.testing.assert_close(tuple(new.moments), expected, rtol=1e-6, atol=1e-9)
    assert float(new.t) == 4
    torch.testing.assert_close(info["objectives"], f)
    torch.testing.assert_close(new.ideal, torch.minimum(z, f - 0.5))

    seen = method.report(PROBLEM, state, new, info)
    size = float(m_y.norm()) / first, float(m_x.norm()) / first
    assert float(seen["lower_residual"]) == pytest.approx(size[0], rel=1e-6)
    assert float(seen["stationarity"]) == pytest.approx(size[1], rel=1e-6)
    assert float(seen["residual"]) == pytest.approx(max(size), rel=1e-6)
    assert float(seen["lower"]) == pytest.approx(float(lower(X0, Y0)))
    # Another training of y leaves nothing of what was learned of it.
    fresh = method.relearned(new, Y0)
    assert torch.equal(fresh.y, Y0)
    for forgotten in (fresh.v, fresh.moments.y, fresh.moments.v, fresh.moments.source):
        assert not forgotten.any()
    assert torch.equal(fresh.moments.x, new.moments.x)


def test_the_first_step_is_adams_and_the_rule_knows_its_budget() -> None:
    method = bp.Twin(beta=0.0, alpha_x=0.5, alpha_y=0.25, scalarization="linear")
    new, _ = method.step(PROBLEM, method.init(PROBLEM, X0, Y0))
    slope = torch.func.grad(lambda y: lower(X0, y))(Y0)
    # Adam's first step is the sign, of y and of x.
    torch.testing.assert_close(new.y, Y0 - 0.25 * slope.sign(), rtol=1e-5, atol=1e-6)
    ahead = Y0 - 0.25 * slope.sign()
    pull = 0.25 * torch.func.grad(lambda y: upper(X0, y).mean())(ahead) / slope.abs()
    h = X0 + MIXED.T @ HESSIAN @ pull
    torch.testing.assert_close(new.x, X0 - 0.5 * h.sign(), rtol=1e-5, atol=1e-6)
    tuned = bp.Twin.tuned(PROBLEM, X0, Y0, steps=700)
    assert (tuned.rho, tuned.alpha_x, tuned.alpha_y) == (0.03, Cosine(0.03, 700.0), tuned.alpha_x)
    assert bp.Twin.tuned(PROBLEM, X0, Y0).alpha_y == Cosine(0.03, 2000.0)
    assert method.oracles(3) == {"lower_gradients": 2, "upper_gradients": 3, "hessian_products": 0}


def test_an_ideal_above_the_start_is_warned_of() -> None:
    with pytest.warns(BiparetoWarning, match="add a constant to these objectives"):
        bp.Twin(ideal=100.0).prepare(PROBLEM, X0, Y0)
    bp.Twin(ideal=Tracked(0.1)).prepare(PROBLEM, X0, Y0)
    bp.Twin(ideal=100.0, scalarization="linear").prepare(PROBLEM, X0, Y0)
