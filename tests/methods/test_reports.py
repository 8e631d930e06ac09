"""What every method reports of a step, and what a step costs, from the definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.methods.parts.hypergradient import CG, FiniteDifference, Neumann, Unrolled
from bipareto.methods.parts.schedule import Power
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
