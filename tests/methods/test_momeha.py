"""MOMEHA and MB-MOMEHA against Algorithms 1 and 2 written out, their ancestor MEHA, and their
symmetries.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods import Method
from bipareto.methods.base import State
from bipareto.methods.parts.coordinates import Coordinates
from bipareto.methods.parts.scalarization import Tracked
from bipareto.methods.parts.schedule import Complement, Power
from bipareto.problem import oracle
from bipareto.problem.sampler import Role
from bipareto.run.stepping import draw
from helpers import DOUBLE, nonconvex

SETTINGS = {
    "gamma": 0.2,
    "mu": 3.0,
    "alpha_theta": Power(0.05, -0.1),
    "alpha_x": Power(0.04, -0.2),
    "alpha_y": Power(0.03, -0.1),
    "c": Power(2.0, 0.3),
    "ideal": (0.1, 0.2),
}


def stch_weights(f: Tensor, w: Tensor, z: Tensor, mu: float) -> Tensor:
    e = torch.exp(mu * w * (f - z))
    return e * w / e.sum()


def partials(fn: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """d fn / dx and d fn / dy of a function of (x, y, ...)."""
    return torch.func.jacrev(fn, argnums=0), torch.func.jacrev(fn, argnums=1)


def run(method: Method, problem: bp.Problem, state: State, steps: int, seed: int = 0) -> State:
    m = 2 if not hasattr(state, "preference") else state.preference.shape[0]
    for t in range(steps):
        state, _ = method.step(problem, state, draw(problem, method.roles(m), t, [seed]))
    return state


def test_algorithm_1_line_by_line() -> None:
    problem, x, y = nonconvex()
    w, z = torch.tensor([0.7, 0.3], dtype=DOUBLE), torch.tensor([0.1, 0.2], dtype=DOUBLE)
    method = bp.MOMEHA(**SETTINGS)
    state = method.init(problem, x, y, w)
    theta = y.clone()
    (f_x, f_y), (g_x, g_y) = partials(problem.upper), partials(problem.lower)
    for t in range(25):
        state, info = method.step(problem, state)
        c, gamma = 2.0 * (1 + t) ** 0.3, 0.2
        torch.testing.assert_close(info["objectives"], problem.upper(x, y))
        theta = theta - 0.05 * (1 + t) ** -0.1 * (g_y(x, theta) + (theta - y) / gamma)
        weights = stch_weights(problem.upper(x, y), w, z, 3.0)
        d_x = weights @ f_x(x, y) / c + g_x(x, y)
        x_new = x - 0.04 * (1 + t) ** -0.2 * (d_x - g_x(x, theta))
        weights = stch_weights(problem.upper(x_new, y), w, z, 3.0)
        d_y = weights @ f_y(x_new, y) / c + g_y(x_new, y) + (theta - y) / gamma
        x, y = x_new, y - 0.03 * (1 + t) ** -0.1 * d_y
    for found, wanted in ((state.x, x), (state.y, y), (state.theta, theta)):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("exact_weights", [False, True])
def test_algorithm_2_line_by_line(exact_weights: bool) -> None:
    plain, x, y = nonconvex()

    def sampler(role: Role, t: int, seed: int) -> Tensor:
        # A batch scales each objective and tilts g; "full" is the exact problem.
        stream = bp.sampler.generator(role, t, seed)
        return (
            torch.zeros(3, dtype=DOUBLE)
            if role.full
            else 0.1 * torch.randn(3, generator=stream, dtype=DOUBLE)
        )

    def upper(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        return plain.upper(x, y) * (1 + b[:2])

    def lower(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        return plain.lower(x, y) + b @ y * (1 + x.sum())

    problem = bp.Problem(upper, lower, sampler=sampler)
    w, z = torch.tensor([0.4, 0.6], dtype=DOUBLE), torch.tensor([0.1, 0.2], dtype=DOUBLE)
    method = bp.MBMOMEHA(**SETTINGS, beta=Complement(0.6, -0.25), exact_weights=exact_weights)
    found = run(method, problem, method.init(problem, x, y, w), 15, seed=4)

    def side(name: str, x: Tensor, y: Tensor, t: int, argument: int) -> Tensor:
        """sum_i weight_i grad f_i / c, each objective on its own draw."""
        batches = [sampler(Role("upper", name, i), t, 4) for i in range(2)]
        f = torch.stack([upper(x, y, batches[i])[i] for i in range(2)])
        weights = stch_weights(plain.upper(x, y) if exact_weights else f, w, z, 3.0)
        rows = [
            torch.func.grad(lambda a, b, i=i: upper(a, b, batches[i])[i], argnums=argument)(x, y)
            for i in range(2)
        ]
        return weights @ torch.stack(rows) / (2.0 * (1 + t) ** 0.3)

    theta, m_theta, m_x, m_y = (
        y.clone(),
        torch.zeros(3, dtype=DOUBLE),
        torch.zeros(3, dtype=DOUBLE),
        torch.zeros(3, dtype=DOUBLE),
    )
    g_x, g_y = partials(lower)
    for t in range(15):
        beta, gamma = 1 - 0.6 * (1 + t) ** -0.25, 0.2
        rho_theta, rho_x, rho_y = (
            sampler(Role("lower", name), t, 4) for name in ("theta", "x", "y")
        )
        m_theta = beta * m_theta + (1 - beta) * (g_y(x, theta, rho_theta) + (theta - y) / gamma)
        theta = theta - 0.05 * (1 + t) ** -0.1 * m_theta
        d_x = side("x", x, y, t, 0) + g_x(x, y, rho_x) - g_x(x, theta, rho_x)
        m_x = beta * m_x + (1 - beta) * d_x
        x = x - 0.04 * (1 + t) ** -0.2 * m_x
        m_y = beta * m_y + (1 - beta) * (
            (theta - y) / gamma + g_y(x, y, rho_y) + side("y", x, y, t, 1)
        )
        y = y - 0.03 * (1 + t) ** -0.1 * m_y
    for got, wanted in ((found.x, x), (found.y, y), (found.theta, theta), (found.momentum.x, m_x)):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@given(st.integers(0, 50), st.floats(0.05, 0.5), st.floats(0.5, 10))
def test_with_one_objective_momeha_is_meha(seed: int, gamma: float, mu: float) -> None:
    problem, x, y = nonconvex(m=1, seed=seed)
    momeha = bp.MOMEHA(
        gamma=gamma, mu=mu, alpha_theta=0.05, alpha_x=0.03, alpha_y=0.02, c=Power(2.0, 0.3)
    )
    meha = bp.MEHA(gamma=gamma, eta=0.05, alpha=0.03, beta=0.02, c=Power(2.0, 0.3))
    a, b = momeha.init(problem, x, y, [1.0]), meha.init(problem, x, y)
    for _ in range(50):
        (a, info_a), (b, info_b) = momeha.step(problem, a), meha.step(problem, b)
    for name in ("x", "y", "theta"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-12)
    report_a, report_b = (
        momeha.report(problem, a, momeha.step(problem, a)[0], info_a),
        meha.report(problem, b, meha.step(problem, b)[0], info_b),
    )
    torch.testing.assert_close(report_a["residual"], report_b["residual"], rtol=1e-9, atol=1e-12)


@given(st.permutations(range(3)), st.integers(0, 20))
def test_permuting_objectives_permutes_the_answer(order: list[int], seed: int) -> None:
    problem, x, y = nonconvex(m=3, seed=seed)
    permuted = bp.Problem(lambda x, y: problem.upper(x, y)[order], problem.lower)
    w = torch.tensor([0.5, 0.3, 0.2], dtype=DOUBLE)
    method = bp.MOMEHA(gamma=0.2, c=5.0, ideal=Tracked(0.1))
    a, b = (
        run(method, problem, method.init(problem, x, y, w), 40),
        run(method, permuted, method.init(permuted, x, y, w[order]), 40),
    )
    torch.testing.assert_close(a.x, b.x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(a.ideal[order], b.ideal, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", [bp.MOMEHA(), bp.MBMOMEHA(), bp.MBMOMEHA(exact_weights=True)])
def test_declared_oracles_are_the_counted_ones(method: bp.MOMEHA) -> None:
    plain, x, y = nonconvex(m=3)
    problem = oracle.Counting(oracle.noisy(plain, 0.1, x, y))
    state = method.init(problem, x, y)
    problem.counts.clear()
    method.step(problem, state, draw(problem, method.roles(3), 0, [0]))
    declared = method.oracles(3)
    assert problem.counts["lower"] == declared["lower_gradients"] == 4
    assert problem.counts["upper"] == declared["upper_gradients"] + declared.get("upper_values", 0)


def test_warm_up_is_plain_descent_on_the_lower_level() -> None:
    problem, x, y = nonconvex()
    state = bp.MOMEHA(alpha_theta=0.1, warmup=7).init(problem, x, y)
    for _ in range(7):
        y = y - 0.1 * partials(problem.lower)[1](x, y)
    torch.testing.assert_close(state.y, y)
    torch.testing.assert_close(state.theta, y)


def test_the_paper_presets() -> None:
    assert bp.MOMEHA.paper() == bp.MOMEHA(
        gamma=8.0, mu=4.0, alpha_theta=0.01, alpha_x=0.01, alpha_y=0.01, c=Power(1.0, 0.25)
    )
    assert bp.MOMEHA.paper("comparison") == bp.MOMEHA(
        gamma=8.0, mu=4.0, alpha_theta=0.05, alpha_x=0.1, alpha_y=0.05, c=1.0
    )
    assert bp.MBMOMEHA.paper().beta == bp.schedule.Constant(0.9)
    with pytest.raises(InvalidInput, match="sensitivity, comparison"):
        bp.MOMEHA.paper("best")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma": 0.0}, "gamma = 0"),
        ({"mu": -1.0}, "mu = -1"),
        ({"alpha_x": 0.0}, "alpha_x"),
        ({"c": -1.0}, "c = -1"),
        ({"scalarization": "max"}, "stch"),
    ],
)
def test_numbers_that_make_no_sense_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bp.MOMEHA(**options)  # type: ignore[arg-type]


def test_meha_takes_one_objective_and_no_preference() -> None:
    problem, x, y = nonconvex()
    with pytest.raises(InvalidInput, match="m = 2; use MOMEHA"):
        bp.MEHA().init(problem, x, y)
    with pytest.raises(InvalidInput, match="MEHA has no preferences"):
        bp.MEHA().init(problem, x, y, [0.5, 0.5])
    with pytest.raises(InvalidInput, match="alpha = -1; it must be > 0"):
        bp.MEHA(alpha=-1)


def test_structure_forgets_numbers_and_keeps_the_rest() -> None:
    method = bp.MOMEHA()
    assert (
        method.structure()
        == dataclasses.replace(method, gamma=0.3, mu=7.0, alpha_x=0.5).structure()
    )
    assert method.structure() != dataclasses.replace(method, scalarization="linear").structure()
    assert method.structure() != dataclasses.replace(method, alpha_x=Power(0.1, 0.1)).structure()
    assert method.structure() != dataclasses.replace(method, ideal=Tracked(0.1)).structure()


def test_an_ideal_above_the_start_is_warned_of_unless_it_was_measured_with_a_range() -> None:
    problem = bp.problems.get("quadratic", dim=2)
    f = problem.upper(problem.x0, problem.y0)
    above = tuple((f + 1).tolist())
    with pytest.warns(BiparetoWarning, match="ideal point is above the objectives at the start"):
        bp.MOMEHA(ideal=above).prepare(problem, problem.x0, problem.y0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BiparetoWarning)
        bp.MOMEHA(ideal=above, extent=(1.0, 1.0)).prepare(problem, problem.x0, problem.y0)


def test_what_a_run_begins_with() -> None:
    """Warm-up steps of the first alpha_theta on g, objectives there, theta = y, and the extent."""
    problem, x, y = nonconvex(m=2)
    method = bp.MOMEHA(
        warmup=3, alpha_theta=Power(0.1, -0.5), extent=(2.0, 3.0), ideal=(-1.0, -2.0)
    )
    state = method.init(problem, x, y, [0.4, 0.6])
    for _ in range(3):
        y = y - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, y)
    torch.testing.assert_close(state.y, y)
    assert torch.equal(state.theta, state.y)
    assert state.extent.tolist() == [2.0, 3.0]
    assert state.ideal.tolist() == [-1.0, -2.0]
    assert state.preference.tolist() == [0.4, 0.6]
    assert float(state.t) == 0
    start = method.prepare(problem, *nonconvex(m=2)[1:])
    torch.testing.assert_close(start.objectives, problem.upper(x, y))
    # F is taken of (f - z)/s: the gradient of each objective weighs tau w/s.
    f = problem.upper(x, y)
    w = torch.tensor([0.4, 0.6], dtype=f.dtype) / state.extent
    wanted = w * torch.softmax(4.0 * w * (f - state.ideal), 0)
    torch.testing.assert_close(method.weights(f, state), wanted)
    assert method.preparation(2) == {"lower_gradients": 3}
    assert method.cost(2, 10, starts=2)["lower_gradients"] == 40 + 6
    with pytest.raises(InvalidInput, match="extent has 3 entries"):
        bp.MOMEHA(extent=(1.0, 2.0, 3.0)).init(problem, x, y)


def test_another_y_leaves_nothing_of_the_old_one_s_averages() -> None:
    problem, x, y = nonconvex(m=2)
    method = bp.MBMOMEHA()
    state, _ = method.step(problem, method.init(problem, x, y))
    other = method.relearned(state, y + 1)
    assert torch.equal(other.y, y + 1)
    assert torch.equal(other.theta, y + 1)
    assert not other.momentum.theta.any()
    assert not other.momentum.y.any()
    assert torch.equal(other.momentum.x, state.momentum.x)
    assert state.momentum.x.any()
    assert bp.MOMEHA().relearned(bp.MOMEHA().init(problem, x, y), y + 1).momentum == ()


def test_fitted_runs_are_renewed_and_shortened() -> None:
    fitted = bp.MOMEHA(coordinates="fitted")
    marks = fitted.renewals(20_000)
    assert marks == tuple(sorted(set(marks)))
    assert all(0 < mark < 20_000 for mark in marks)
    assert fitted.renewals(1000) == (5, 10, 20, 40, 80, 150, 250, 400, 600, 800)
    assert fitted.renewals(100) == (1, 8, 15, 25, 40, 60, 80)
    assert bp.MOMEHA().renewals(20_000) == ()
    eye = torch.eye(2, dtype=torch.float64)
    problem, x, y = nonconvex(m=2)
    state = bp.MOMEHA().init(problem, x, y)
    assert fitted.shortened(state).coordinates == state.coordinates
    frame = Coordinates(*(eye * (i + 1) for i in range(len(Coordinates._fields))))
    short = fitted.shortened(state._replace(coordinates=frame)).coordinates
    torch.testing.assert_close(short.x, frame.x / 8)
    torch.testing.assert_close(short.y, frame.y / 2)
    with pytest.raises(InvalidInput, match="MB-MOMEHA runs in plain ones"):
        bp.MBMOMEHA(coordinates="fitted")


def test_a_run_with_coordinates_is_algorithm_1_in_them() -> None:
    """x = A u and y = B v + W x: steps and reports are those of the problem written in (u, v)."""
    problem, x, y = nonconvex(m=2)
    stream = torch.Generator().manual_seed(2)
    A, B, W = (0.3 * torch.randn(3, 3, generator=stream, dtype=DOUBLE) for _ in range(3))
    A, B = A + torch.eye(3, dtype=DOUBLE), B + 2 * torch.eye(3, dtype=DOUBLE)

    def there(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return A @ u, B @ v + W @ A @ u

    inner = bp.Problem(
        lambda u, v: problem.upper(*there(u, v)), lambda u, v: problem.lower(*there(u, v))
    )
    method = bp.MOMEHA(
        gamma=0.2, mu=1.5, alpha_theta=0.04, alpha_x=0.03, alpha_y=0.02, c=3.0, ideal=-2.0
    )
    u = torch.linalg.solve(A, x)
    plain = method.init(inner, u, torch.linalg.solve(B, y - W @ x))
    state = method.init(problem, x, y)
    state = state._replace(coordinates=Coordinates(A @ A.T, B @ B.T, W, x, y, x, y))
    for _ in range(4):
        before, state_before = plain, state
        plain, seen = method.step(inner, plain)
        state, info = method.step(problem, state)
        torch.testing.assert_close((state.x, state.y), there(plain.x, plain.y))
        torch.testing.assert_close(state.theta, there(plain.x, plain.theta)[1])
        torch.testing.assert_close(
            method.report(problem, state_before, state, info),
            method.report(inner, before, plain, seen),
        )


def test_the_warm_up_ends_when_y_rests() -> None:
    """In coordinates in which g curves alike y comes to rest in a few dozen of the 300 steps."""
    H = torch.diag(torch.tensor([1.0, 100.0, 1e4], dtype=DOUBLE))
    calls = []

    def lower(x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return 0.5 * (y - x) @ H @ (y - x)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(x - y - 1).square().sum(), (y + 1).square().sum()])

    problem = bp.Problem(upper, lower)
    x, y = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE)
    method = bp.MOMEHA.tuned(problem, x, y)
    assert method.warmup == 300
    calls.clear()
    start = method.prepare(problem, x, y)
    assert len(calls) < 100
    torch.testing.assert_close(start.y, x, rtol=0, atol=1e-13)
    calls.clear()
    dataclasses.replace(method, coordinates="plain", alpha_theta=1e-5).prepare(problem, x, y)
    assert len(calls) >= 300
