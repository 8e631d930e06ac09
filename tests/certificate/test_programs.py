"""The quadratic programs of a certificate against their own optimality conditions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.inspection import conic_minimum, simplex_minimum
from bipareto.methods.parts import envelope
from bipareto.problems import KnownProblem
from certificate.points import dense, numbers, projected, quietly
from helpers import DOUBLE


def conic_slack(rows: Tensor, normal: Tensor, lam: Tensor, p: float) -> float:
    """How far (lambda, p) is from the optimality conditions of min ||rows^T lambda + p normal||,
    relative to the rows' scale.
    """
    residual = lam @ rows + p * normal
    scale = float(rows.norm(dim=1).max())
    slopes = rows @ residual / scale**2
    along = float(normal @ residual / normal.norm() / scale)
    feasible = max(abs(float(lam.sum()) - 1), float(-lam.min()), -p)
    optimal = float((lam * (slopes - slopes.min())).sum())
    return max(feasible, optimal, -along, abs(along) if p > 0 else 0.0)


def test_thousand_random_programs_satisfy_their_own_conditions() -> None:
    stream = torch.Generator().manual_seed(0)
    inactive = 0
    for i in range(1000):
        m, d = 1 + i % 8, 2 + i % 7
        rows = torch.randn(m, d, generator=stream, dtype=DOUBLE) * 10 ** (
            2 * torch.rand(m, 1, generator=stream, dtype=DOUBLE) - 1
        )
        normal = torch.randn(d, generator=stream, dtype=DOUBLE) * 10 ** float(
            6 * torch.rand(1, generator=stream, dtype=DOUBLE) - 5
        )
        found = conic_minimum(rows, normal)
        assert conic_slack(rows, normal, found.weights, found.multiplier) <= 1e-9
        assert found.slack <= 1e-9
        inactive += found.multiplier == 0
        weights, slack = simplex_minimum(rows)
        slopes = rows @ (weights @ rows)
        assert float(weights @ slopes - slopes.min()) <= 1e-9 * float(rows.square().sum(1).max())
        assert slack <= 1e-9
    assert 100 < inactive < 900  # both cases were met


def random_points(count: int) -> Iterator[tuple[KnownProblem, Tensor, Tensor]]:
    problems = [bp.problems.get("quadratic", m=m) for m in (2, 3, 4)] + [
        bp.problems.get("pl-sin2", dim=5, m=m) for m in (2, 3)
    ]
    for i in range(count):
        problem = problems[i % len(problems)]
        x = numbers(5, seed=i)
        yield (
            problem,
            x,
            problem.lower_solution(x) + numbers(5, seed=i + count, scale=10 ** (-i % 5 - 1.0)),
        )


def check_points(count: int) -> None:
    for problem, x, y in random_points(count):
        found = quietly(problem, x, y, gamma=0.2)
        assert found.qp_slack <= 1e-9
        assert found.stationarity is not None
        assert found.stationarity_multipliers is not None
        lam, p = found.stationarity_multipliers
        rows, _ = dense(problem, x, y)
        theta = envelope.proximal_point(problem, x[None], y[None], 0.2, tol=1e-13).y[0]
        (g_x, g_y), t_x = (
            torch.func.grad(problem.lower, argnums=(0, 1))(x, y),
            torch.func.grad(problem.lower)(x, theta),
        )
        normal = torch.cat([g_x - t_x, g_y - (y - theta) / 0.2])
        # The normal itself is known to about 1e-9 of its length (it is a difference of gradients at
        # a solved point), the program to rounding.
        assert conic_slack(rows, normal, torch.tensor(lam, dtype=DOUBLE), p) <= 1e-6
        rest = projected(problem, x, y)
        slopes = rest @ (torch.tensor(found.kkt_multipliers, dtype=DOUBLE) @ rest)
        weights = torch.tensor(found.kkt_multipliers, dtype=DOUBLE)
        assert float(weights @ slopes - slopes.min()) <= 1e-9 * float(rows.square().sum(1).max())


def test_programs_of_random_points() -> None:
    check_points(25)


@pytest.mark.slow
def test_programs_of_a_thousand_random_points() -> None:
    check_points(1000)
