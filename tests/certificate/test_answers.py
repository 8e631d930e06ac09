"""What a certificate says of exact answers, and its numbers against closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import certify
from bipareto.methods.parts import envelope
from bipareto.problems import KnownProblem
from certificate.points import dense, numbers, projected, quietly
from helpers import DOUBLE

# --- what must hold at exact answers


@pytest.mark.parametrize("m", [2, 3, 4])
def test_exact_pareto_points_of_the_quadratic_have_no_kkt_residual(m: int) -> None:
    problem = bp.problems.get("quadratic", m=m)
    for seed in range(5):
        w = torch.softmax(numbers(m, seed=seed), 0)
        point = problem.solution(w)
        found = certify(problem, point.x, point.y, gamma=0.5)
        assert found.kkt <= 1e-10
        assert found.common_descent is False
        assert found.lower_curvature == "minimum"
        assert found.gap <= 1e-14
        assert found.stationarity is None
        assert "undefined" in str(found)
        assert found.gradients <= 60


@pytest.mark.parametrize("name", ["pl-sin2", "mo-sin", "merely-convex", "tp2-s", "ds1", "ridge"])
def test_exact_points_of_the_other_problems_leave_no_common_descent(name: str) -> None:
    problem = bp.problems.get(name)
    point = problem.solution(torch.tensor([0.4, 0.6], dtype=DOUBLE))
    found = certify(problem, point.x, point.y)
    assert found.kkt <= 1e-8
    assert found.common_descent is False
    assert found.lower_curvature == ("degenerate" if name == "merely-convex" else "minimum")


def test_the_paper_measure_degenerates_where_kkt_does_not() -> None:
    problem = bp.problems.get("quadratic")
    point = problem.solution(torch.tensor([0.5, 0.5], dtype=DOUBLE))
    near = certify(
        problem,
        point.x,
        point.y + 1e-5 * numbers(5),
        gamma=0.5,
        preference=[0.5, 0.5],
        mu=2.0,
        c=3.0,
    )
    assert near.stationarity is not None
    assert near.paper_stationarity is not None
    assert near.paper_stationarity >= near.stationarity > 0.5
    assert near.kkt < 1e-4


# --- closed forms


def lower_hessian(problem: KnownProblem, x: Tensor, y: Tensor) -> Tensor:
    return torch.func.hessian(lambda v: problem.lower(x, v))(y)


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1e-2])
def test_gap_and_residual_of_the_quadratic_are_the_closed_ones(size: float) -> None:
    problem = bp.problems.get("quadratic")
    x, r, gamma = numbers(5, seed=1), numbers(5, seed=2, scale=size), 0.7
    y = problem.lower_solution(x) + r
    H = lower_hessian(problem, x, y)
    shrink = torch.linalg.inv(torch.eye(5, dtype=DOUBLE) + gamma * H)
    # y carries r only to rounding of y itself
    tolerance = max(1e-6, 1e-15 / size * 10)
    found = certify(problem, x, y, gamma=gamma)
    assert found.lower_residual == pytest.approx(float((H @ r).norm()), rel=tolerance)
    assert found.gap == pytest.approx(float(0.5 * r @ H @ shrink @ (gamma * H) @ r), rel=tolerance)
    normal_y = H @ r - shrink @ H @ r
    normal = torch.cat([-problem.A.T @ normal_y, normal_y])
    assert found.constraint_gradient == pytest.approx(float(normal.norm()), rel=tolerance)


def test_the_paper_multipliers_give_the_paper_residual() -> None:
    problem = bp.problems.get("pl-sin2", dim=4)
    x, gamma, c, mu = numbers(4, seed=3), 0.2, 5.0, 1.5
    y = problem.lower_solution(x) + numbers(4, seed=4, scale=0.02)
    w, z = torch.tensor([0.3, 0.7], dtype=DOUBLE), torch.tensor([0.1, 0.2], dtype=DOUBLE)
    found = certify(problem, x, y, gamma=gamma, preference=w, mu=mu, ideal=z, c=c)
    rows, _ = dense(problem, x, y)
    theta = envelope.proximal_point(problem, x[None], y[None], gamma, tol=1e-12).y[0]
    g_x, g_y = torch.func.grad(problem.lower, argnums=(0, 1))(x, y)
    normal = torch.cat([g_x - torch.func.grad(problem.lower)(x, theta), g_y - (y - theta) / gamma])
    tau = torch.softmax(mu * w * (problem.upper(x, y) - z), 0)
    s = (w * tau).sum()
    assert found.paper_stationarity == pytest.approx(
        float(((w * tau) @ rows / s + c / s * normal).norm()), rel=1e-8
    )
    assert found.constraint_gradient == pytest.approx(float(normal.norm()), rel=1e-6)


def test_kkt_is_the_minimum_over_multipliers() -> None:
    for seed in range(10):
        problem = bp.problems.get("pl-sin2", dim=6, m=3, seed=seed)
        x, y = numbers(6, seed=seed), numbers(6, seed=seed + 100)
        found = quietly(problem, x, y, gamma=0.2)
        rest = projected(problem, x, y)
        grid = bp.preferences.grid(3, 60, boundary=True)
        coarse = float((grid @ rest).norm(dim=1).min())
        assert found.kkt <= coarse * (1 + 1e-9)
        assert found.kkt >= 0.95 * coarse
        lam = torch.tensor(found.kkt_multipliers, dtype=DOUBLE)
        assert found.kkt == pytest.approx(float((lam @ rest).norm()), rel=1e-8)


def test_a_residual_is_a_common_descent_direction_of_the_hyperobjectives() -> None:
    problem = bp.problems.get("quadratic")
    x = numbers(5, seed=7)
    y = problem.lower_solution(x)
    found = certify(problem, x, y)
    assert found.common_descent is True
    rest = projected(problem, x, y)
    step = -1e-4 * (torch.tensor(found.kkt_multipliers, dtype=DOUBLE) @ rest)[:5]
    assert bool((problem.objectives(x + step) < problem.objectives(x)).all())
