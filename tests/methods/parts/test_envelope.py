from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bipareto as bp
from bipareto.methods.parts import envelope
from bipareto.problem import tree
from helpers import DICT_PROBLEM, DOUBLE, dict_start, nonconvex


@given(st.integers(0, 100), st.floats(0.05, 3.0))
def test_the_proximal_point_and_gap_of_a_quadratic_are_the_closed_ones(
    seed: int, gamma: float
) -> None:
    problem = bp.problems.get("quadratic", dim=4)
    stream = torch.Generator().manual_seed(seed)
    x, y = (
        torch.randn(2, 4, generator=stream, dtype=DOUBLE),
        torch.randn(2, 4, generator=stream, dtype=DOUBLE),
    )
    H = torch.func.hessian(lambda v: problem.lower(x[0], v))(y[0])
    center = x @ problem.A.T + problem.b
    eye = torch.eye(4, dtype=DOUBLE)
    wanted = torch.linalg.solve(H + eye / gamma, (center @ H + y / gamma).T).T
    found = envelope.proximal_point(problem, x, y, gamma, tol=1e-11)
    torch.testing.assert_close(found.y, wanted, rtol=1e-8, atol=1e-8)
    r = y - center
    exact = 0.5 * torch.einsum(
        "ri,ij,rj->r", r, H @ torch.linalg.inv(eye + gamma * H) @ (gamma * H), r
    )
    torch.testing.assert_close(
        envelope.gap(problem, x, y, gamma, tol=1e-11), exact, rtol=1e-8, atol=1e-12
    )


def test_the_lower_level_is_solved_in_the_basin_it_starts_in() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([x.sum() + y.sum()]), lambda x, y: torch.sin(x + y).sum()
    )
    x = torch.zeros(5, 2, dtype=DOUBLE)
    minima = -torch.pi / 2 + 2 * torch.pi * torch.arange(-2, 3, dtype=DOUBLE)[:, None].expand(5, 2)
    offsets = torch.tensor([-0.7, -0.3, 0.1, 0.4, 0.9], dtype=DOUBLE)[:, None]
    found = envelope.solve_lower(problem, x, minima + offsets, tol=1e-10)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.y, minima, rtol=0, atol=1e-9)


def test_it_leaves_maxima_and_saddles() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([x.sum() + y.sum()]), lambda x, y: torch.sin(x + y).sum()
    )
    y = torch.full((1, 3), torch.pi / 2, dtype=DOUBLE) + torch.tensor(
        [[1e-3, -1e-3, 2e-3]], dtype=DOUBLE
    )
    found = envelope.solve_lower(problem, torch.zeros(1, 3, dtype=DOUBLE), y)
    torch.testing.assert_close(torch.sin(found.y), torch.full((1, 3), -1.0, dtype=DOUBLE))


def test_trees_one_by_one_and_side_by_side_agree() -> None:
    x, y = dict_start()
    xs, ys = tree.stack([x, x]), tree.stack([y, tree.map_(lambda leaf: leaf + 3, y)])
    for batched in (True, False):
        found = envelope.solve_lower(DICT_PROBLEM, xs, ys, tol=1e-12, batched=batched)
        assert bool(found.converged.all())
        torch.testing.assert_close(found.y[0], xs["a"])
        torch.testing.assert_close(found.y[1], xs["b"])


def test_hard_starts_of_the_nonconvex_problem_are_solved() -> None:
    problem, x, y = nonconvex(20)
    found = envelope.solve_lower(
        problem, tree.expand(x, 3), torch.stack([y, 5 * y, -3 * y]), tol=1e-10
    )
    assert bool(found.converged.all())
    assert found.residual.max() <= 1e-10


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_solution_does_not_depend_on_units(unit: float, scale: float) -> None:
    # The answer (1, -2) in units of y, of a lower level of condition number 100 in units of g.
    center, h = torch.tensor([1.0, -2.0], dtype=DOUBLE), torch.tensor([1.0, 100.0], dtype=DOUBLE)

    def lower(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        r = y / unit - center * x
        return scale * (h * (r.square() + r.pow(4))).sum()

    problem = bp.Problem(lambda x, y: torch.stack([x.sum() + y.sum()]), lower)
    found = envelope.solve_lower(
        problem, torch.ones(1, 2, dtype=DOUBLE), torch.full((1, 2), 0.3 * unit, dtype=DOUBLE)
    )
    assert bool(found.converged.all())
    torch.testing.assert_close(found.y[0] / unit, center, rtol=1e-7, atol=1e-7)


def test_an_ill_conditioned_quadratic_takes_few_newton_steps() -> None:
    """Its inner solves are conjugate gradients: with 24 curvatures over four decades steepest
    descent would need thousands of products.
    """
    h = torch.logspace(0, -4, 24, dtype=DOUBLE)
    problem = bp.Problem(lambda x, y: y.square().sum()[None], lambda x, y: (h * (y - x) ** 2).sum())
    zero, one = torch.zeros(1, 24, dtype=DOUBLE), torch.ones(1, 24, dtype=DOUBLE)
    found = envelope.solve_lower(problem, one, zero, tol=1e-9, max_iter=12)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.y, one, rtol=1e-4, atol=1e-4)
