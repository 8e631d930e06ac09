"""Hypergradients against the closed form, finite differences of the true objective, and each
other.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.parts.differentiation import descend, jacobian, lower_pullback
from bipareto.methods.parts.hypergradient import (
    CG,
    FiniteDifference,
    Hypergradient,
    Neumann,
    Unrolled,
    warn_if_singular,
)
from bipareto.problem import tree
from helpers import DICT_PROBLEM, DOUBLE, dict_start, nonconvex

QUADRATIC = bp.problems.get("quadratic", dim=5, m=3)
CURVATURES = torch.linalg.eigvalsh(QUADRATIC.H)
ETA = 1 / float(CURVATURES[-1])


def point(seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return x, QUADRATIC.lower_solution(x)


def closed_form(x: Tensor) -> Tensor:
    """grad Phi_i = x - p_i + A^T (Ax + b - q_i)."""
    return x - QUADRATIC.p + (QUADRATIC.A @ x + QUADRATIC.b - QUADRATIC.q) @ QUADRATIC.A


def error(estimate: Hypergradient, x: Tensor, y: Tensor) -> float:
    return float(
        (
            estimate(QUADRATIC.upper, QUADRATIC.lower, x, y, estimate.numbers).gradients
            - closed_form(x)
        )
        .abs()
        .max()
    )


@pytest.mark.parametrize(
    "estimate",
    [
        CG(5),
        CG(12),
        Neumann(80, ETA),
        FiniteDifference(80, ETA),
        FiniteDifference(80, ETA, eps=0.01, relative=False),
        Unrolled(80, ETA),
    ],
    ids=str,
)
def test_converged_estimates_are_the_closed_form(estimate: Hypergradient) -> None:
    for seed in range(3):
        assert error(estimate, *point(seed)) < 1e-8


@pytest.mark.parametrize("kind", [Unrolled, Neumann])
def test_truncation_shrinks_geometrically(kind: type[Unrolled] | type[Neumann]) -> None:
    """By 1 - h/L per step: started at y*, the two truncations are one and the same matrix
    polynomial.
    """
    x, y = point()
    rate = 1 - float(CURVATURES[0]) * ETA
    errors = [error(kind(count, ETA), x, y) for count in (4, 8, 16, 32)]
    for coarse, fine, more in zip(errors, errors[1:], (4, 8, 16), strict=False):
        assert fine <= 1.3 * rate**more * coarse + 1e-14
    assert errors[0] > 1e-3


def test_unrolling_moves_y_and_the_others_do_not() -> None:
    x, y = point()
    y = y + 1
    moved = Unrolled(3, 0.1)(QUADRATIC.upper, QUADRATIC.lower, x, y, (0.1,)).y
    expected = y
    for _ in range(3):
        expected = descend(QUADRATIC.lower, x, expected, 0.1)
    torch.testing.assert_close(moved, expected)
    assert CG(2)(QUADRATIC.upper, QUADRATIC.lower, x, y, (1e-8,)).y is y


def test_the_true_residual_is_reported() -> None:
    x, y = point()
    f_y = y - QUADRATIC.q
    found = Neumann(3, 0.2)(QUADRATIC.upper, QUADRATIC.lower, x, y, (0.2,))
    step = torch.eye(5, dtype=DOUBLE) - 0.2 * QUADRATIC.H
    v = 0.2 * f_y @ (torch.eye(5, dtype=DOUBLE) + step + step @ step)
    assert found.solver_residual is not None
    torch.testing.assert_close(
        found.solver_residual, ((v @ QUADRATIC.H - f_y).norm(dim=1) / f_y.norm(dim=1)).max()
    )
    assert CG(2)(QUADRATIC.upper, QUADRATIC.lower, x, y, (1e-10,)).solver_residual > 1e-3
    # A step beyond 2/L diverges, and says so.
    assert (
        Neumann(40, 3 * ETA)(QUADRATIC.upper, QUADRATIC.lower, x, y, (3 * ETA,)).solver_residual
        > 10
    )


def test_cg_stops_at_its_tolerance() -> None:
    x, y = point()
    for tol in (1e-1, 1e-4):
        estimate = CG(10, tol)
        assert (
            1e-6 * tol
            < float(
                estimate(QUADRATIC.upper, QUADRATIC.lower, x, y, estimate.numbers).solver_residual
            )
            <= tol
        )


def test_singular_and_negative_curvature_are_reported_not_hidden() -> None:
    problem = bp.problems.get("merely-convex")
    y = problem.y0 + torch.linspace(-1, 1, problem.y0.numel(), dtype=DOUBLE).reshape(
        problem.y0.shape
    )
    found = CG(20)(problem.upper, problem.lower, problem.x0, y, (1e-10,))
    assert found.curvature <= 1e-12
    assert found.solver_residual > 0.1
    assert torch.isfinite(found.gradients).all()
    hollow = bp.Problem(
        lambda x, y: torch.stack([x.sum() + y.sum(), (y**2).sum()]),
        lambda x, y: (x * y).sum() - (y**2).sum() + (y**4).sum(),
    )
    x, y = torch.ones(2, dtype=DOUBLE), torch.full((2,), 0.1, dtype=DOUBLE)
    assert CG(4)(hollow.upper, hollow.lower, x, y, (1e-10,)).curvature < 0
    assert Neumann(4, 0.1)(hollow.upper, hollow.lower, x, y, (0.1,)).curvature < 0


def test_the_warning_names_the_method_and_others_that_can() -> None:
    problem = bp.problems.get("merely-convex")
    with pytest.warns(
        BiparetoWarning,
        match=r"MyMethod needs a strongly convex.*zero to rounding.*MOMEHA and WCPenalty",
    ):
        warn_if_singular("MyMethod", problem, problem.x0, problem.y0)
    problem, x, _ = nonconvex()
    with pytest.warns(BiparetoWarning, match=r"negative"):
        warn_if_singular("MyMethod", problem, x, x)
    warn_if_singular("MyMethod", QUADRATIC, *point())


@pytest.mark.parametrize(
    "estimate", [CG(30), Neumann(400, 0.2), FiniteDifference(400, 0.2, eps=1e-4)], ids=str
)
def test_nonquadratic_lower_level_against_differences_of_the_true_objective(
    estimate: Hypergradient,
) -> None:
    """g = sum cosh(y - Bx^2) + ||y||^2/2 in y: third derivatives, and a Jacobian that depends
    on x.
    """
    B = 0.3 * torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=DOUBLE)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return torch.cosh(y - B @ x**2).sum() + 0.5 * (y**2).sum()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([torch.exp(x.sum() - y[0]), (x * y[:3]).sum() + (y**3).sum()])

    def solved(x: Tensor) -> Tensor:
        y = torch.zeros(4, dtype=DOUBLE)
        for _ in range(30):
            y = y - torch.linalg.solve(
                torch.func.hessian(lambda v: lower(x, v))(y),
                torch.func.grad(lambda v: lower(x, v))(y),
            )
        return y

    x = torch.tensor([0.5, -0.8, 0.3], dtype=DOUBLE)
    found = estimate(upper, lower, x, solved(x), estimate.numbers).gradients
    shifts = 1e-5 * torch.eye(3, dtype=DOUBLE)
    expected = torch.stack(
        [(upper(x + s, solved(x + s)) - upper(x - s, solved(x - s))) / 2e-5 for s in shifts], dim=1
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "estimate", [CG(3), Neumann(4, 0.2), FiniteDifference(3, 0.2), Unrolled(3, 0.1)], ids=str
)
def test_trees_and_vmap_agree_with_the_flat_eager_run(estimate: Hypergradient) -> None:
    x, y = dict_start()

    def nested(u: Tensor, v: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
        return {"a": u[:2], "b": u[2:]}, [v[:2], v[2:]]

    def flat_upper(u: Tensor, v: Tensor) -> Tensor:
        return DICT_PROBLEM.upper(*nested(u, v))

    def flat_lower(u: Tensor, v: Tensor) -> Tensor:
        return DICT_PROBLEM.lower(*nested(u, v))

    u, v = tree.ravel(x), tree.ravel(y)
    expected = estimate(flat_upper, flat_lower, u, v, estimate.numbers)
    found = estimate(DICT_PROBLEM.upper, DICT_PROBLEM.lower, x, y, estimate.numbers)
    torch.testing.assert_close(found.gradients, expected.gradients)
    torch.testing.assert_close(tree.ravel(found.y), expected.y)
    batched = torch.func.vmap(
        lambda a, b: estimate(flat_upper, flat_lower, a, b, estimate.numbers)[:3]
    )(torch.stack([u, u + 1]), torch.stack([v, v]))
    for got, wanted in zip(batched, expected, strict=False):
        torch.testing.assert_close(got[0], wanted)
    assert not any(
        leaf.requires_grad for leaf in tree.leaves((found.gradients, found.objectives, found.y))
    )


def test_rows_and_products() -> None:
    problem, x, y = nonconvex(m=3)
    f, f_x, f_y = jacobian(problem.upper, x, y)
    torch.testing.assert_close(f, problem.upper(x, y))
    torch.testing.assert_close((f_x, f_y), torch.func.jacrev(problem.upper, argnums=(0, 1))(x, y))
    g_y, pair = lower_pullback(problem.lower, x, y)
    (_, cross), (_, curvature) = torch.func.hessian(problem.lower, argnums=(0, 1))(x, y)
    torch.testing.assert_close(g_y, torch.func.grad(problem.lower, argnums=1)(x, y))
    torch.testing.assert_close(pair(f_y), (f_y @ cross.T, f_y @ curvature))


def test_an_objective_without_y_and_a_lower_level_linear_in_y() -> None:
    """Zero derivatives are zeros, not errors."""
    found = CG(2)(
        lambda x, y: torch.stack([(x**2).sum()]),
        lambda x, y: (x * y).sum(),
        torch.ones(2),
        torch.ones(2),
        (1e-8,),
    )
    torch.testing.assert_close(found.gradients, 2 * torch.ones(1, 2))


@pytest.mark.parametrize("kind", [CG, Neumann, Unrolled, FiniteDifference])
def test_counts_must_be_positive(kind: type[Hypergradient]) -> None:
    with pytest.raises(InvalidInput, match=r"= 0; it must be a whole number of at least 1"):
        kind(0, 0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "make", [lambda: FiniteDifference(1, 0.1, eps=0.0), lambda: bp.WCPenalty(difference=0.0)]
)
def test_a_difference_over_no_distance_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=r"(eps|difference) = 0.0; it must be > 0"):
        make()


def test_the_flattest_curvature_that_cg_reports_has_no_length_in_it() -> None:
    """A Rayleigh quotient: 2 for the matrix 2 I and between the ends of any spectrum, whatever the
    right-hand side's size.
    """
    spectrum = torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=DOUBLE)
    for size in (1e-3, 1.0, 1e3):
        rhs = torch.full((1, 4), size, dtype=DOUBLE)
        solution, flattest = CG(3)._solve(lambda: lambda rows: 2 * rows, rhs, (1e-10,))
        torch.testing.assert_close(solution, rhs / 2)
        assert flattest is not None
        assert float(flattest) == pytest.approx(2.0)
        flattest = CG(4)._solve(lambda: lambda rows: spectrum * rows, rhs, (1e-10,))[1]
        assert flattest is not None
        assert 1 <= float(flattest) <= 4  # at most the mean
