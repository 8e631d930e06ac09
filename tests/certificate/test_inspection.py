"""What a certificate is built from, against dense matrices: products, a subspace, L-BFGS."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.inspection import Point, Subspace
from bipareto.certificate.proximal import (
    Proximal,
    _quasi_newton,
    constraint_gradient,
    gap_of,
    proximal_point,
)
from bipareto.errors import InvalidInput
from certificate.points import dense, numbers
from helpers import DOUBLE


def at_point(d: int = 4, m: int = 3, budget: int = 200, size: float = 1.0) -> tuple[Point, Tensor]:
    """A point of a nonconvex problem and its dense B."""
    problem = bp.problems.get("pl-sin2", dim=d, m=m)
    x, y = numbers(d, seed=1), numbers(d, seed=2, scale=size)
    return Point(problem, x, y, budget), dense(problem, x, y)[1]


def test_products_are_those_of_the_dense_matrix_and_are_counted() -> None:
    at, B = at_point()
    # three gradients of f, one kept for all products, one with g's value
    assert at.spent == 3 + 1 + 1
    assert at.left() == 195
    v, u = numbers(4, seed=3), numbers(8, seed=4)
    torch.testing.assert_close(at.lift(v), B @ v)
    assert at.spent == 7
    torch.testing.assert_close(at.drop(u), B.T @ u)
    assert at.spent == 9
    g, gradient = at.lower(at.flat + 0.1)
    assert at.spent == 10
    x, y = (at.flat + 0.1).split(4)
    assert g == pytest.approx(float(at.problem.lower(x, y)))
    wanted = torch.cat(torch.func.grad(at.problem.lower, argnums=(0, 1))(x, y))
    torch.testing.assert_close(gradient, wanted)
    torch.testing.assert_close(at.g_y, at.grad_g[4:])
    torch.testing.assert_close(at.y_flat, at.flat[4:])


@pytest.mark.parametrize("size", [1e-3, 10.0])
def test_the_size_of_y_is_at_least_one(size: float) -> None:
    at, _ = at_point(size=size)
    assert at.y_size == pytest.approx(max(1.0, float(at.y_flat.norm())))
    assert (at.y_size > 1) is (size > 1)


def test_a_budget_that_cannot_hold_the_objectives_is_refused() -> None:
    assert at_point(budget=23)[0].left() == 18
    with pytest.raises(InvalidInput, match="3 objectives need at least 23"):
        at_point(budget=22)


def test_a_whole_subspace_knows_the_spectrum_and_the_residual() -> None:
    at, B = at_point()
    space = Subspace(at, seed=0)
    space.grow(0)
    values = torch.linalg.eigvalsh(B[4:])
    assert space.eigenvalues == pytest.approx((float(values[0]), float(values[-1])), abs=1e-9)
    V = space.V[: space.size]
    torch.testing.assert_close(V @ V.T, torch.eye(space.size, dtype=DOUBLE), rtol=0, atol=1e-12)
    torch.testing.assert_close(space.HV[: space.size], V @ B[4:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        space.T[: space.size, : space.size], V @ B[4:] @ V.T, rtol=1e-9, atol=1e-9
    )
    assert space.scale == pytest.approx(float((V @ B.T).norm(dim=1).max()))
    rest = at.J - at.J @ B @ torch.linalg.pinv(B)
    torch.testing.assert_close(space.rest, rest, rtol=1e-8, atol=1e-9)
    gradient = space.judge()
    torch.testing.assert_close(gradient, B.T @ space.residual, rtol=1e-6, atol=1e-9)
    assert space.slack <= 1e-7
    assert space.kkt_lower("saddle") == pytest.approx(float(space.residual.norm()))


@pytest.mark.parametrize(
    ("curvatures", "kind"),
    [
        ((1.0, 2.0), "minimum"),
        ((-1.0, -2.0), "maximum"),
        ((-1.0, 2.0), "saddle"),
        ((0.0, 2.0), "degenerate"),
        ((0.0, -2.0), "degenerate"),
        ((0.0, 0.0), "degenerate"),
        ((1e-9, 1.0), "degenerate"),
        ((1e-7, 1.0), "minimum"),
    ],
)
def test_the_kind_of_a_spectrum(curvatures: tuple[float, float], kind: str) -> None:
    h = torch.tensor(curvatures, dtype=DOUBLE)
    problem = bp.Problem(lambda x, y: (y + x).sum()[None], lambda x, y: 0.5 * (h * y * y).sum())
    zero = torch.zeros(2, dtype=DOUBLE)
    space = Subspace(Point(problem, zero, zero, 100), seed=0)
    space.grow(0)
    assert space.kind(0.0) == kind
    # Curvature that is nothing beside 1/gamma is none.
    assert space.kind(1e9) == "degenerate"


def test_quasi_newton_is_bfgs_written_as_a_matrix() -> None:
    H = torch.eye(3, dtype=DOUBLE)
    pairs = []
    for seed in range(3):
        s = numbers(3, seed=seed)
        pairs.append((s, s * torch.tensor([1.0, 3.0, 0.5], dtype=DOUBLE)))
    s, change = pairs[-1]
    H = float(s @ change / (change @ change)) * torch.eye(3, dtype=DOUBLE)
    for s, change in pairs:
        left = torch.eye(3, dtype=DOUBLE) - torch.outer(s, change) / (s @ change)
        H = left @ H @ left.T + torch.outer(s, s) / (s @ change)
    slope = numbers(3, seed=9)
    torch.testing.assert_close(_quasi_newton(slope, pairs, 7.0), -H @ slope)
    torch.testing.assert_close(_quasi_newton(pairs[-1][1], pairs, 7.0), -pairs[-1][0])
    torch.testing.assert_close(_quasi_newton(slope, [], 7.0), -7 * slope)


@pytest.mark.parametrize("gamma", [0.05, 2.0])
def test_the_proximal_point_of_a_quadratic(gamma: float) -> None:
    problem = bp.problems.get("quadratic")
    x = numbers(5, seed=1)
    y = problem.lower_solution(x) + numbers(5, seed=2)
    at = Point(problem, x, y, 200)
    H = torch.func.hessian(lambda v: problem.lower(x, v))(y)
    found = proximal_point(at, gamma, float(torch.linalg.eigvalsh(H)[-1]))
    wanted = -torch.linalg.solve(H + torch.eye(5, dtype=DOUBLE) / gamma, at.g_y)
    torch.testing.assert_close(found.shift, wanted, rtol=1e-6, atol=1e-8)
    assert found.solved
    assert found.residual <= 1e-6 * float(at.g_y.norm())
    assert found.g == pytest.approx(float(problem.lower(x, y + found.shift)))
    assert 5 < at.spent <= 30
    gap = at.g - found.g - float(found.shift.square().sum()) / (2 * gamma)
    assert gap_of(at, found, gamma) == pytest.approx(gap)
    # Where the difference drowns in rounding, half the slope along the shift stands for it.
    near = Proximal(1e-9 * found.shift, at.g, found.gradient, 0.0, True)
    assert gap_of(at, near, gamma) == pytest.approx(0.5e-9 * abs(float(at.g_y @ found.shift)))


@pytest.mark.parametrize("gamma", [0.05, 0.4])
def test_the_constraint_gradient_and_its_uncertainty(gamma: float) -> None:
    at, B = at_point()
    space = Subspace(at, seed=0)
    space.grow(0)
    shift, gradient, left = numbers(4, seed=5, scale=0.1), numbers(8, seed=6), 1e-5
    normal, noise = constraint_gradient(
        at, space, Proximal(shift, 0.0, gradient, left, True), gamma
    )
    wanted = torch.cat([at.grad_g[:4] - gradient[:4], at.grad_g[4:] + shift / gamma])
    torch.testing.assert_close(normal, wanted)
    low = float(torch.linalg.eigvalsh(B[4:])[0])
    strong = max(1 / gamma + min(low, 0.0), 0.1 / gamma)
    rounding = torch.finfo(DOUBLE).eps * at.y_size
    assert noise == pytest.approx((space.scale + 1 / gamma) * (left / strong + rounding))
    assert math.isfinite(noise)
