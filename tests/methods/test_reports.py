"""What every method reports of a step, and what a step costs, from the definitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods import common
from bipareto.methods.parts.differentiation import difference, pullback_of
from bipareto.methods.parts.hypergradient import (
    CG,
    FiniteDifference,
    Hypergradients,
    Neumann,
    Unrolled,
)
from bipareto.methods.parts.schedule import Power
from bipareto.problem.sampler import Role
from helpers import nonconvex

pytestmark = pytest.mark.filterwarnings("ignore::bipareto.errors.BiparetoWarning")
STEP = Power(0.05, -0.5)
NESTED = [
    bp.MoCo(alpha_x=STEP, lower_steps=2, hypergradient=CG(3)),
    bp.MOML(alpha_x=STEP, inner_steps=3),
    bp.WCMHGD(alpha_x=STEP, lower_steps=2),
]


def taken(method: Any, m: int = 3) -> tuple[bp.Problem, Any, Any, dict[str, Tensor]]:
    """The second step of a run, with its report."""
    problem, x, y = nonconvex(m=m)
    before, _ = method.step(problem, method.init(problem, x, y))
    after, info = method.step(problem, before)
    return problem, before, after, method.report(problem, before, after, info)


@pytest.mark.parametrize("method", NESTED, ids=lambda method: type(method).__name__)
def test_nested_methods(method: Any) -> None:
    problem, before, after, seen = taken(method)
    g_y = torch.func.grad(problem.lower, argnums=1)(before.x, after.y)
    direction = (before.x - after.x).norm() / (0.05 * 2**-0.5)
    torch.testing.assert_close(seen["lower"], problem.lower(before.x, after.y))
    torch.testing.assert_close(seen["lower_residual"], g_y.norm())
    torch.testing.assert_close(seen["stationarity"], direction)
    torch.testing.assert_close(seen["residual"], torch.maximum(direction, g_y.norm()))
    torch.testing.assert_close(seen["objectives"], problem.upper(before.x, after.y))


def test_gmoba_and_forum_report_at_the_point_before() -> None:
    for method in (bp.GMOBA(alpha_x=STEP, beta=0.03), bp.FORUM(alpha_x=STEP, alpha_y=0.02)):
        problem, before, after, seen = taken(method)
        torch.testing.assert_close(seen["lower"], problem.lower(before.x, before.y))
        torch.testing.assert_close(seen["objectives"], problem.upper(before.x, before.y))
        d_x = (before.x - after.x).norm() / (0.05 * 2**-0.5)
        g_y = torch.func.grad(problem.lower, argnums=1)(before.x, before.y).norm()
        if isinstance(method, bp.GMOBA):
            torch.testing.assert_close(seen["lower_residual"], g_y)
            torch.testing.assert_close(seen["stationarity"], d_x)
            adjoint = (before.v - after.v).norm(dim=1).max() / 0.1
            wanted = torch.stack([d_x, g_y, adjoint])
        else:
            d = torch.hypot(d_x, (before.y - after.y).norm() / 0.02)
            torch.testing.assert_close(seen["stationarity"], d)
            wanted = torch.stack([d, seen["gap"]])
        torch.testing.assert_close(seen["residual"], wanted.max())


def test_wcpenalty() -> None:
    method = bp.WCPenalty(u=3.0, v=2.0, alpha_x=STEP, alpha_y=0.02, eta=0.01, rho_init=0.4)
    problem, before, after, seen = taken(method)
    moves = [
        (before.x - after.x).norm() / (0.05 * 2**-0.5),
        (before.y - after.y).norm() / 0.02,
        (before.rho - after.rho).abs() / 0.01,
        (before.delta - after.delta).norm() / 0.01,
    ]
    size = torch.stack(moves).square().sum().sqrt()
    g_y = torch.func.grad(problem.lower, argnums=1)(before.x, before.y).norm()
    torch.testing.assert_close(seen["stationarity"], size)
    torch.testing.assert_close(seen["lower_residual"], g_y)
    torch.testing.assert_close(seen["residual"], torch.maximum(size, g_y))
    torch.testing.assert_close(seen["lower"], problem.lower(before.x, before.y))


@pytest.mark.parametrize("kind", [bp.MOMEHA, bp.MBMOMEHA])
def test_momeha(kind: type[bp.MOMEHA]) -> None:
    gamma, mu = 0.3, 1.5
    method = kind(
        gamma=gamma, mu=mu, alpha_theta=0.04, alpha_x=STEP, alpha_y=0.02, c=Power(2.0, 0.5),
        ideal=-1.0,
    )  # fmt: skip
    problem, before, after, seen = taken(method, m=2)
    x, y, theta = before.x, before.y, after.theta
    gap = problem.lower(x, y) - problem.lower(x, theta) - (theta - y).square().sum() / (2 * gamma)
    f = problem.upper(x, y)
    weights = 0.5 * torch.softmax(mu * 0.5 * (f + 1), 0)
    d = torch.hypot((x - after.x).norm() / (0.05 * 2**-0.5), (y - after.y).norm() / 0.02)
    stationarity = 2 * 2**0.5 / weights.sum() * d
    torch.testing.assert_close(seen["gap"], gap)
    torch.testing.assert_close(seen["lower"], problem.lower(x, y))
    torch.testing.assert_close(seen["stationarity"], stationarity)
    torch.testing.assert_close(seen["residual"], torch.maximum(gap, stationarity))


COSTS = [
    (bp.MOMEHA(), (4, 6, 0)),
    (bp.MBMOMEHA(), (4, 6, 0)),
    (bp.MEHA(), (4, 2, 0)),
    (bp.Twin(), (2, 3, 0)),
    (bp.GMOBA(), (1, 3, 6)),
    (bp.FORUM(inner_steps=4), (6, 3, 0)),
    (bp.MOML(inner_steps=4), (4, 3, 21)),
    (bp.WCPenalty(), (1, 3, 2)),
    (bp.WCPenalty(difference=0.1), (3, 3, 0)),
    (bp.WCMHGD(lower_steps=4, hypergradient=CG(5)), (6, 3, 21)),
    (bp.MoCo(lower_steps=2, hypergradient=Neumann(1, 0.1)), (3, 3, 6)),
    (bp.MoCo(lower_steps=2, hypergradient=Neumann(4, 0.1)), (4, 3, 15)),
    (bp.MoCo(lower_steps=0, hypergradient=Unrolled(4, 0.1)), (4, 3, 21)),
    (bp.MoCo(lower_steps=1, hypergradient=FiniteDifference(4, 0.1)), (25, 3, 0)),
]


@pytest.mark.parametrize(("method", "counts"), COSTS, ids=lambda v: str(v)[:40])
def test_what_a_step_costs(method: Any, counts: tuple[int, int, int]) -> None:
    """Gradients of g, of the f_i, and Hessian products, for three objectives."""
    found = method.oracles(3)
    names = ("lower_gradients", "upper_gradients", "hessian_products")
    assert tuple(found[name] for name in names) == counts
    assert set(found) == set(names)
    total = method.cost(3, 10)
    assert {name: total[name] for name in names} == {name: 10 * found[name] for name in names}


def test_meha_and_the_cost_of_short_series() -> None:
    method = bp.MEHA(gamma=0.3, alpha=0.04, beta=0.03, eta=0.02)
    problem, x, y = nonconvex(m=1)
    before, _ = method.step(problem, method.init(problem, x, y))
    after, info = method.step(problem, before)
    seen = method.report(problem, before, after, info)
    g, g_theta = (problem.lower(before.x, at) for at in (before.y, after.theta))
    gap = g - g_theta - (after.theta - before.y).square().sum() / 0.6
    torch.testing.assert_close(seen["gap"], gap)
    torch.testing.assert_close(seen["lower"], g)
    d = torch.hypot((before.x - after.x).norm() / 0.04, (before.y - after.y).norm() / 0.03)
    torch.testing.assert_close(seen["stationarity"], before.knobs.c(before.t) * d)
    assert [Neumann(n, 0.1).oracles(3)["lower_gradients"] for n in (1, 2, 3)] == [1, 2, 2]


def test_each_objective_is_differentiated_on_its_own_draw() -> None:
    problem = bp.Problem(
        lambda x, y, b: torch.stack([b * x.sum() + y.square().sum(), x.square().sum() - b * y[0]]),
        lambda x, y, b: (y - b * x).square().sum(),
        sampler=lambda role, t, seed: torch.tensor(float(10 * (role.objective or 0) + t + seed)),
    )
    x, y = torch.tensor([1.0, 2.0]).double(), torch.tensor([0.5, -1.0]).double()
    draw = {Role("upper", "x", i): torch.tensor(3.0 + 4 * i).double() for i in range(2)}
    f, f_x, f_y = common.upper_jacobian(problem, draw, x, y, 2)
    torch.testing.assert_close(f, torch.tensor([3 * 3 + 1.25, 5 - 7 * 0.5]).double())
    torch.testing.assert_close(f_x, torch.stack([torch.full((2,), 3.0).double(), 2 * x]))
    torch.testing.assert_close(f_y, torch.stack([2 * y, torch.tensor([-7.0, 0.0]).double()]))


def test_a_start_is_judged_on_all_the_data_and_its_draws_are_looked_at() -> None:
    def sampler(role: Any, t: int, seed: int) -> Tensor:
        return torch.tensor(100.0 if role.full else 1.0).double() + (role.level == "upper")

    x, y = torch.tensor([1.0, 2.0]).double(), torch.tensor([0.5, -1.0]).double()
    losses = (
        lambda x, y, b: torch.stack([b * x.sum() + y.sum(), x.square().sum() - b * y.sum()]),
        lambda x, y, b: b * (y - x).square().sum(),
    )
    wanted = torch.tensor([303 - 0.5, 5 + 101 * 0.5]).double()
    for method in (bp.GMOBA(), bp.MOMEHA(ideal=-999.0)):
        start = method.prepare(bp.Problem(*losses, sampler=sampler), x, y)
        torch.testing.assert_close(start.objectives, wanted)
    impure = bp.Problem(*losses, sampler=lambda role, t, seed: torch.rand(()).double() + role.full)
    with pytest.raises(InvalidInput, match="sampler"):
        bp.GMOBA().prepare(impure, x, y)


def test_one_batched_point_is_enough_for_a_functional_pullback() -> None:
    y = torch.tensor([1.0, -2.0]).double()

    def rows(x: Tensor) -> tuple[Tensor, Tensor]:
        _, _, pull = pullback_of(lambda a, b: ((a * b * b)[None].sum(1), ()), x, y)
        return pull(torch.ones(1).double())

    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double()
    in_x, in_y = torch.func.vmap(rows)(x)
    torch.testing.assert_close(in_x, (y * y).expand(2, 2))
    torch.testing.assert_close(in_y, 2 * x * y)


def test_estimates_of_groups_are_put_together() -> None:
    """Rows go to their places, each group's move of y counts, the worst residual and the least
    curvature stand for all.
    """
    y = torch.tensor([1.0, 2.0]).double()
    moves = [torch.tensor([0.5, 0.0]).double(), torch.tensor([0.0, -3.0]).double()]
    parts = [
        Hypergradients(
            torch.tensor([10.0 * k, 10.0 * k + 1]), torch.full((2, 3), 1.0 + k), y + moves[k],
            torch.tensor(2.0 - k), torch.tensor(5.0 + k),
        )
        for k in range(2)
    ]  # fmt: skip
    still = Hypergradients(torch.tensor([7.0]), torch.zeros(1, 3), y, None, None)
    found = common._together([*parts, still], [3, 0, 1, 4, 2], y)
    assert found.objectives.tolist() == [1.0, 10.0, 7.0, 0.0, 11.0]
    assert found.gradients[:, 0].tolist() == [1.0, 2.0, 0.0, 1.0, 2.0]
    torch.testing.assert_close(found.y, y + moves[0] + moves[1])
    assert tuple(map(float, found[3:])) == (2.0, 5.0)
    alone = common._together([parts[1], still], [0, 1, 2], y)
    assert torch.equal(alone.y, parts[1].y)
    assert alone.objectives.tolist() == [10.0, 11.0, 7.0]
    none = common._together([still], [0], y)
    assert (none.y is y, *none[3:]) == (True, None, None)


def test_draws_of_a_step() -> None:
    x_draws = (Role("lower", "x"), Role("upper", "x", 0), Role("upper", "x", 1))
    assert common.roles(2) == bp.GMOBA().roles(2) == bp.FORUM().roles(2) == x_draws
    assert common.roles(2, 2) == (Role("lower", "y", 0), Role("lower", "y", 1), *x_draws)


def test_what_is_no_problem_and_no_coordinates_is_refused() -> None:
    zero = torch.zeros(2)
    for kind in (bp.MOMEHA, bp.MBMOMEHA, bp.Twin, bp.GMOBA):
        with pytest.raises(InvalidInput, match="roblem"):
            kind.tuned("quadratic", zero, zero)
    with pytest.raises(InvalidInput, match="coordinates"):
        bp.MOMEHA(coordinates="polar")


def test_admissible_steps_of_levels_of_different_sizes() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([x.square().sum() + y.square().sum(), (y[2] - x[1]).square()]),
        lambda x, y: (y - torch.cat([x, x[:1]])).square().sum(),
    )
    x, y = torch.ones(2).double(), torch.zeros(3).double()
    constants: Any = SimpleNamespace(L_g=4.0, L_f=6.0, rho_y=0.0)
    given: dict[str, Any] = {"constants": constants, "gamma": 0.1, "mu": 1.0, "ideal": -1.0}
    assert bp.MOMEHA.admissible(problem, x, y, **given).gamma == 0.1
    plain, given_c = (
        bp.MBMOMEHA.admissible(problem, x, y, **given, **c) for c in ({}, {"c0": 1.0})
    )
    assert plain == given_c
    zero = torch.zeros(())
    assert float(plain.alpha_x(zero)) <= float(plain.alpha_y(zero))
    with pytest.raises(InvalidInput, match="not below the objectives"):
        bp.MOMEHA.admissible(problem, x, y, **given | {"ideal": (-1.0, 99.0)})
    # Bounds are for the method's own step of theta where that is admissible.
    for step, kept in ((1e-4, True), (10.0, False)):
        own = bp.MOMEHA(gamma=0.1, mu=1.0, ideal=-1.0, alpha_theta=step, c=2.0)
        bounds = own.bounds(problem, x, y, constants=constants)
        assert (bounds.alpha_theta == step) is kept
        assert float(bounds.alpha_theta or 0) <= bounds.u_theta


@pytest.mark.parametrize(
    "method", [bp.GMOBA(), bp.FORUM()], ids=lambda method: type(method).__name__
)
def test_steps_on_draws_see_as_many_objectives_as_there_are(method: Any) -> None:
    """Two objectives, three coordinates of y: each objective on its own draw."""
    problem = bp.Problem(
        lambda x, y, b: b * torch.stack([x.square().sum() + y.sum(), y.square().sum()]),
        lambda x, y, b: b * (y - x.sum()).square().sum(),
        sampler=lambda role, t, seed: torch.tensor(1.0 + (role.objective or 0)).double(),
    )
    x, y = torch.ones(2).double(), torch.tensor([0.5, -1.0, 2.0]).double()
    draw = {role: problem.sampler(role, 0, 0) for role in method.roles(2)}
    _, info = method.step(problem, method.init(problem, x, y), draw)
    assert info["objectives"].tolist() == pytest.approx([3.5, 2 * 5.25])


def test_the_twin_is_as_far_as_it_is_told() -> None:
    """g is looked at in y and beside it, epsilon ||y|| away, whatever the size of v."""
    seen: list[Tensor] = []

    def lower(x: Tensor, y: Tensor) -> Tensor:
        seen.append(y.detach().clone())
        return (y - x).square().sum()

    problem = bp.Problem(lambda x, y: torch.stack([y.sum(), (y - 2).square().sum()]), lower)
    x, y = torch.zeros(3).double(), torch.tensor([3.0, 4.0, 12.0]).double()
    for epsilon, rho in ((3e-3, 0.01), (1e-2, 1.0)):
        method = bp.Twin(epsilon=epsilon, rho=rho)
        state, _ = method.step(problem, method.init(problem, x, y))
        seen.clear()
        method.step(problem, state)
        away = max(float((at - state.y).norm()) for at in seen)
        assert away == pytest.approx(epsilon * float(state.y.norm()))


def test_wcpenalty_with_slacks_by_hand() -> None:
    """omega = u (w f + delta - rho), delta <- [delta - eta omega]_+, rho <- rho - eta (1 - sum)."""
    problem, x, y = nonconvex(m=3)
    method = bp.WCPenalty(u=3.0, v=2.0, alpha_x=0.05, alpha_y=0.02, eta=0.01, rho_init=0.4)
    delta = torch.tensor([0.3, 0.02, 5.0], dtype=x.dtype)
    before = method.init(problem, x, y)._replace(delta=delta)
    after, info = method.step(problem, before)
    omega = 3 * (before.preference * problem.upper(x, y) + delta - before.rho)
    torch.testing.assert_close(info["weights"], omega)
    new = (delta - 0.01 * omega).clamp_min(0)
    assert not torch.equal(new, delta)
    torch.testing.assert_close(after.delta, new)
    torch.testing.assert_close(after.rho, before.rho - 0.01 * (1 - omega.sum()))
    seen = method.report(problem, before, after, info)
    moves = [
        (before.x - after.x).norm() / 0.05, (before.y - after.y).norm() / 0.02,
        (before.rho - after.rho).abs() / 0.01, (delta - new).norm() / 0.01,
    ]  # fmt: skip
    torch.testing.assert_close(seen["stationarity"], torch.stack(moves).norm())


def test_momentum_has_the_shapes_of_what_it_averages() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([x.square().sum() + y.sum(), y.square().sum()]),
        lambda x, y: (y - x.sum()).square().sum(),
    )
    x, y = torch.ones(2).double(), torch.zeros(3).double()
    momentum = bp.MBMOMEHA().init(problem, x, y).momentum
    assert [leaf.numel() for leaf in (momentum.theta, momentum.x, momentum.y)] == [3, 2, 3]


def test_a_rise_is_counted_from_where_a_block_began() -> None:
    problem, x, y = nonconvex(m=2)
    state = bp.MOMEHA(extent=(2.0, 4.0)).init(problem, x, y)
    high = torch.tensor([100.0, 100.0], dtype=x.dtype)
    for rise, thrown in (
        ((19.0, 0.0), False), ((21.0, 0.0), True), ((0.0, 39.0), False),
        ((1.9, 39.0), False), ((2.1, 4.1), True),  # all of them by an extent
    ):  # fmt: skip
        after = high + torch.tensor(rise, dtype=x.dtype)
        seen = bp.MOMEHA().thrown(state, {"objectives": high}, {"objectives": after})
        assert bool(seen) is thrown


def test_a_relative_difference_does_not_depend_on_the_length_of_its_direction() -> None:
    y, v = torch.tensor([0.3, -0.7]).double(), torch.tensor([0.6, 0.8]).double()

    def gradient(at: Tensor) -> Tensor:
        return at**3

    for length in (1.0, 50.0):
        found = difference(gradient, y, length * v, 0.1, True) / length
        # (a + e)^3 - (a - e)^3 = 6 a^2 e + 2 e^3
        torch.testing.assert_close(found, v * (3 * y**2 + (0.1 * v) ** 2))
        plain = difference(gradient, y, length * v, 0.1, False) / length
        torch.testing.assert_close(plain, v * (3 * y**2 + (0.1 * length * v) ** 2))


def test_a_tolerance_below_zero_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tol"):
        CG(3, tol=-1.0)
    with pytest.raises(InvalidInput, match="q"):
        bp.schedule.lemma12(0.1, 0.1, 0.1, q=0.6, p=0.0)


@pytest.mark.parametrize("kind", [bp.MoCo, bp.MOML, bp.GMOBA, bp.FORUM])
def test_methods_without_preferences_refuse_them(kind: Any) -> None:
    problem, x, y = nonconvex(m=2)
    with pytest.raises(InvalidInput, match="preference"):
        kind().init(problem, x, y, [0.5, 0.5])
