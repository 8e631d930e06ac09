"""The closed forms and numbers that single problems promise."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import cos, log, pi, sin, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bipareto import problems
from bipareto.methods.parts import envelope
from problems.cases import generator, normal, preference, problem


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(seed=st.integers(0, 2**20), dim=st.integers(1, 30), m=st.integers(2, 4))
@settings(max_examples=20)
def test_generated_quadratics_are_well_posed(seed: int, dim: int, m: int) -> None:
    dim = max(dim, m - 1)
    known = problems.get("quadratic", seed=seed, dim=dim, m=m)
    assert 0.3 <= torch.linalg.svdvals(known.A).min() <= torch.linalg.matrix_norm(known.A, 2) <= 0.9
    metric = torch.eye(dim, dtype=torch.float64) + known.A.T @ known.A
    minima = torch.linalg.solve(metric, (known.p + (known.q - known.b) @ known.A).T).T
    torch.testing.assert_close(minima, known.minima)
    gaps = (minima[:, None] - minima)[torch.triu(torch.ones(m, m), 1).bool()]
    torch.testing.assert_close(
        ((gaps @ metric) * gaps).sum(-1).mean(), torch.tensor(2.0 * dim, dtype=torch.float64)
    )
    assert (known.s > 0).all()
    assert known.extent >= dim


@pytest.mark.parametrize("case", ["quadratic", "quadratic-m4", "pl-sin2"])
def test_hypergradient_of_affine_responses(case: str) -> None:
    """grad f_i(x, y*(x)) = x - p_i + A^T (Ax + b - q_i)."""
    known = problem(case)
    x = normal(generator(0), *known.x0.shape)
    closed = x - known.p + (known.A @ x + known.b - known.q) @ known.A
    torch.testing.assert_close(closed, torch.func.jacrev(known.objectives)(x))


@given(w=st.floats(0.02, 0.98), seed=st.integers(0, 5))
@settings(max_examples=10)
def test_positions_on_the_two_objective_quadratic(w: float, seed: int) -> None:
    """At z = F*: Tchebycheff t = sqrt(w_2)/(sqrt(w_1) + sqrt(w_2)), linear t = w_2; front sqrt(d_1)
    + sqrt(d_2) = D/sqrt 2.
    """
    known = problems.get("quadratic", seed=seed)
    weights, ideal = vector(w, 1 - w), known.front().amin(0)
    sharp = known.exact(weights, "tchebycheff", ideal, 1.0)
    torch.testing.assert_close(
        sharp.coordinates, vector(sqrt(1 - w) / (sqrt(w) + sqrt(1 - w))), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        known.exact(weights, "linear", ideal, 1.0).coordinates, vector(1 - w), rtol=0, atol=1e-12
    )
    off = (sharp.objectives - ideal).clamp_min(0).sqrt().sum()
    torch.testing.assert_close(
        off, torch.tensor(sqrt(known.A.shape[0]), dtype=torch.float64)
    )  # D^2 = 2 d


@pytest.mark.parametrize("m", [3, 4])
@given(seed=st.integers(0, 2**16))
@settings(max_examples=5)
def test_optimality_of_preferences_on_simplices(m: int, seed: int) -> None:
    """Linear: barycentric coordinates w.  STCH: coordinates w tau.  Tchebycheff: objectives with
    positive coordinates agree.
    """
    known = problems.get("quadratic", m=m, seed=seed % 7)
    w, z = preference(generator(seed), m), torch.zeros(m, dtype=torch.float64)
    torch.testing.assert_close(
        known.exact(w, "linear", z, 1.0).coordinates, w[1:], rtol=0, atol=1e-12
    )

    smooth = known.exact(w, "stch", z, 2.0)
    pull = w * torch.softmax(2.0 * w * smooth.objectives, 0)
    torch.testing.assert_close(smooth.coordinates, pull[1:] / pull.sum(), rtol=0, atol=1e-11)

    sharp = known.exact(w, "tchebycheff", z, 1.0)
    barycentric = torch.cat([1 - sharp.coordinates.sum()[None], sharp.coordinates])
    levels = w * sharp.objectives
    assert barycentric.min() >= -1e-11
    assert levels[barycentric > 1e-9].max() - levels[barycentric > 1e-9].min() <= 1e-10
    assert levels.max() - levels[barycentric > 1e-9].max() <= 1e-10


@pytest.mark.parametrize("m", [2, 3])
def test_pl_sin2_has_the_front_of_the_quadratic(m: int) -> None:
    one, other = (
        problems.get("pl-sin2", dim=7, m=m, seed=4, kappa=3.0),
        problems.get("quadratic", dim=7, m=m, seed=4),
    )
    assert torch.equal(one.front(), other.front())
    assert not torch.equal(one.front(), problems.get("quadratic", dim=7, m=m, seed=5).front())


@pytest.mark.parametrize(
    ("kappa", "stationary"), [(0.5, 1), (1.5, 1), (2.3, 1), (2.4, 5), (4.0, 5)]
)
def test_stationary_points_of_the_ripple(kappa: float, stationary: int) -> None:
    """u + kappa sin 2u changes sign only at 0 up to kappa = 2.3016."""
    known = problems.get("pl-sin2", dim=1, kappa=kappa)
    u = torch.linspace(-3.5, 3.5, 20002, dtype=torch.float64)
    y = (known.b + u[:, None] * known.R[0])[:, :]
    slope = torch.func.vmap(torch.func.grad(known.lower, argnums=1), in_dims=(None, 0))(
        known.x0, y
    )[:, 0]
    assert int((slope[1:].sign() != slope[:-1].sign()).sum()) == stationary
    assert known.constants.rho_y == max(0.0, 2 * kappa - 1)


def test_joint_constant_of_pl_sin2_is_attained() -> None:
    known = problem("pl-sin2")
    x, y = known.x0, known.lower_solution(known.x0)
    hessian = torch.func.hessian(lambda v: known.lower(v[: len(x)], v[len(x) :]))(torch.cat([x, y]))
    assert float(torch.linalg.matrix_norm(hessian, 2)) == pytest.approx(
        known.constants.L_g, rel=1e-12
    )


def test_moreau_gap_of_the_quadratic() -> None:
    known, gamma = problem("quadratic"), 0.7
    x, y = known.start(0)
    r = y - known.lower_solution(x)
    matrix = known.H @ torch.linalg.solve(
        torch.eye(5, dtype=torch.float64) + gamma * known.H, gamma * known.H
    )
    torch.testing.assert_close(
        envelope.gap(known, x[None], y[None], gamma)[0], 0.5 * r @ matrix @ r, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize(
    ("n", "x", "F"),
    [
        (1, 2.35619, 0.253749),
        (2, 2.474926, 0.338332),
        (5, 2.593657, 0.422915),
        (20, 2.678466, 0.483331),
    ],
)
def test_sin_values(n: int, x: float, F: float) -> None:
    known = problems.get("sin", n=n)
    point = known.solution([1.0])
    assert float(point.x) == pytest.approx(x, abs=1e-5)
    assert float(point.objectives) == pytest.approx(F, abs=1e-6)
    assert float(known.front()) == pytest.approx(float(point.objectives), abs=1e-14)
    torch.testing.assert_close(
        torch.sin(point.x + point.y - 2), -torch.ones(n, dtype=torch.float64)
    )
    assert known.is_lower_minimum(point.x, point.y)
    assert float(known.coordinates(point.x[None] + 0.25)) == pytest.approx(0.25)


@given(n=st.integers(1, 20), a=st.floats(-10, 10))
def test_sin_is_the_best_of_all_branches(n: int, a: float) -> None:
    known = problems.get("sin", n=n, a=a)
    x = torch.linspace(a - 6, a + 6, 2401, dtype=torch.float64)
    branches = -pi / 2 + 2 * pi * torch.arange(-6, 7, dtype=torch.float64)[:, None]
    # Each y_i takes the branch it likes best: sum_i min_k (C_k - x - a)^2.
    brute = (x - a).square() + n * (branches - x - a).square().amin(0)
    assert brute.min() >= known.front() - 1e-12
    assert brute.min() <= known.front() + (n + 1) * 0.005**2 + 1e-12


def test_sin_trap_is_about_a_lower_maximum() -> None:
    known = problem("sin-trap")
    assert float(known.front()) == pytest.approx(3.6785, abs=1e-4)
    assert float(known.solution([1.0]).x) == pytest.approx(0.75 * pi)
    x, y = vector(pi / 4), vector(pi / 4 + 2)
    assert torch.func.grad(known.lower, argnums=1)(x, y).abs() <= 1e-15
    assert float(known.upper(x, y)) == pytest.approx(0.0921, abs=1e-4)
    assert not known.is_lower_minimum(x, y)
    # The start descends to the right minimum, though it lies near the maximum.
    assert 0 < float(known.x0 + known.y0 - 2) - pi / 2 < 0.5


def test_mo_sin_numbers() -> None:
    known = problem("mo-sin")
    ((low, high),) = known.intervals
    assert (low, high) == pytest.approx((2.2099, 2.6899), abs=1e-4)
    front = known.front()
    assert front.amin(0).tolist() == pytest.approx([0.9899, 0.1902], abs=1e-4)
    assert front.amax(0).tolist() == pytest.approx([2.1419, 1.3422], abs=1e-4)


def test_mo_sin2_numbers() -> None:
    known = problem("mo-sin2")
    assert [end for interval in known.intervals for end in interval] == pytest.approx(
        [-2.6279, -1.5566, 1.9699, 3.4699], abs=1e-4
    )
    assert known.front().amin(0).tolist() == pytest.approx([5.2872, 1.3264], abs=1e-4)
    first, second = known.intervals
    # The first branch is cut where the best f_1 of the second comes to the same.
    cut = known.objectives(vector(first[0]))
    assert float(cut[0]) == pytest.approx(float(known.objectives(vector(second[1]))[0]), abs=1e-12)
    eight = problem("mo-sin-8")
    assert [end for interval in eight.intervals for end in interval] == pytest.approx(
        [1.078, 3.411, 6.663, 7.088], abs=1e-3
    )


@given(
    n=st.integers(2, 4), a=st.floats(-4, 4), apart=st.floats(0.1, pi), sign=st.sampled_from([-1, 1])
)
@settings(max_examples=8)
def test_mo_sin_against_all_mixtures_of_branches(n: int, a: float, apart: float, sign: int) -> None:
    targets = (a, a + sign * apart)
    known = problems.get("mo-sin", n=n, a=targets)
    nearest = round((sum(targets) + pi / 2) / (2 * pi))
    branches = [-pi / 2 + 2 * pi * (nearest + k) for k in (-2, -1, 0, 1, 2)]
    x = torch.linspace(sum(targets) / 2 - 8, sum(targets) / 2 + 8, 801, dtype=torch.float64)[
        :, None
    ]
    pair = vector(*targets)
    mixtures = torch.tensor(list(combinations_with_replacement(branches, n)), dtype=torch.float64)
    f = (x - pair).square() + (mixtures[:, None, :, None] - x[:, None] - pair).square().sum(2)
    f = f.reshape(-1, 2)
    f = f[f[:, 0].argsort()]
    best = f[f[:, 1] <= f[:, 1].cummin(0).values]
    # Nothing on the grid beats the front, and what the grid finds best lies near it.
    front = known.front(101)
    assert not (best[:, None] < front - 1e-9).all(-1).any()
    slope = 2 * (n + 1) * (apart + 0.02)
    assert known.distance_to_front(best).max() * known.extent <= 0.02 * slope


def test_merely_convex_front_and_free_block() -> None:
    known = problem("merely-convex")
    squared = float((known.a[0] - known.a[1]).square().sum())
    point = known.exact(vector(0.5, 0.5), "linear", vector(0, 0), 1.0)
    torch.testing.assert_close(point.objectives, vector(squared / 8, squared / 8))
    torch.testing.assert_close(point.y[1], point.x)
    hessian = torch.func.hessian(known.lower, argnums=1)(known.x0, known.y0).reshape(20, 20)
    assert int(torch.linalg.matrix_rank(hessian)) == 10
    # The free block is chosen by f: moving it helps no objective.
    y = point.y + torch.stack(
        [torch.zeros(10, dtype=torch.float64), 0.1 * normal(generator(0), 10)]
    )
    assert known.lower(point.x, y) == known.lower(point.x, point.y)
    assert (known.upper(point.x, y) > point.objectives).all()


def test_tp2_front() -> None:
    known = problem("tp2-s")
    f = known.front(301)
    torch.testing.assert_close(f[:, 0], f[:, 1] / 2 + (1 - (f[:, 1] / 2).sqrt()).square())
    assert (float(f[:, 1].min()), float(f[:, 1].max())) == pytest.approx((0, 0.5))
    torch.testing.assert_close(
        known.coordinates(vector(0.5, 0.75, 1.0)[:, None]), vector(0, 0.5, 1)[:, None]
    )


def test_ds1_front_is_an_arc() -> None:
    known = problem("ds1")
    level = 1 + 0.1 * (1 - 1 / sqrt(2))
    torch.testing.assert_close(
        (level - known.front()).square().sum(-1), torch.ones(201, dtype=torch.float64)
    )
    x = known.pareto_point(vector(0.4))
    torch.testing.assert_close(
        x, torch.cat([vector(2.2), torch.arange(1, 10, dtype=torch.float64) / 2])
    )
    torch.testing.assert_close(
        known.objectives(x), vector(level - cos(2.2 * pi), level - sin(2.2 * pi))
    )
    period = x + torch.nn.functional.one_hot(torch.tensor(0), 10) * 2
    torch.testing.assert_close(known.objectives(period), known.objectives(x))
    torch.testing.assert_close(
        known.coordinates(torch.stack([x, period])), vector(0.4, 0.4)[:, None]
    )
    assert known.constants.rho_y == 0
    assert problem("ds1-nonconvex").constants.rho_y > 0


def test_ridge_weights_solve_the_normal_equations() -> None:
    known = problem("ridge")
    features, targets = known.training
    x = vector(log(0.3))
    matrix = features.T @ features / 40 + 0.3 * torch.eye(10, dtype=torch.float64)
    torch.testing.assert_close(
        known.lower_solution(x), torch.linalg.solve(matrix, features.T @ targets / 40)
    )


@given(seed=st.integers(0, 2**20), dim=st.integers(1, 39))
@settings(max_examples=4)
def test_ridge_front_by_sweeping(seed: int, dim: int) -> None:
    known = problems.get("ridge", seed=seed, dim=dim)
    x = torch.linspace(-8, 4, 401, dtype=torch.float64)[:, None]
    f = torch.func.vmap(known.objectives)(x)
    best = ~((f[:, None] >= f).all(-1) & (f[:, None] > f).any(-1)).any(1)
    assert known.distance_to_front(f[best]).max() <= 4e-2
    assert not (f[:, None] < known.front(101) - 1e-9).all(-1).any()


def test_bistable_front_by_brute_force() -> None:
    known = problem("bistable")
    x = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    y = torch.linspace(-2.5, 2.5, 2001, dtype=torch.float64)
    lower = (y.square() - 1).square() / 4 - x[:, None] * y
    for sign in (-1, 1):  # at x = 0 both wells are lowest
        rows = x * sign >= 0
        lowest = y[lower[rows].masked_fill(y * sign < 0, torch.inf).argmin(1)]
        f = torch.func.vmap(known.upper)(x[rows, None], lowest[:, None])
        worth = (f[:, None] < known.front(101) - 0.02).all(-1)
        assert not worth.any()
        solved = torch.func.vmap(known.lower_solution)(x[rows & (x != 0), None])[:, 0]
        torch.testing.assert_close(solved, lowest[x[rows] != 0], rtol=0, atol=2e-3)
    # A gap from (1/4, 17/4) to (17/4, 1/4), the two sides of x = 0.
    front = known.front(400)
    widest = int(front[:, 0].diff().argmax())
    torch.testing.assert_close(
        front[widest : widest + 2], torch.tensor([[0.25, 4.25], [4.25, 0.25]], dtype=torch.float64)
    )
    left, right = (
        known.pareto_point(vector(t))
        for t in (known.geometry.intervals[0][1], known.geometry.intervals[1][0])
    )
    assert float(left) == float(right) == 0
    assert (float(known.lower_solution(left)), float(known.lower_solution(right))) == (-1, 1)


@given(x=st.floats(-1e3, 1e3))
def test_bistable_wells(x: float) -> None:
    y = float(problem("bistable").lower_solution(vector(x)))
    assert y**3 - y == pytest.approx(x, rel=1e-12, abs=1e-12)
    assert abs(y) >= 1
