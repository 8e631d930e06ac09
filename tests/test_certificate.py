from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto import envelope, tree
from bipareto.certificate import Certificate, certify
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.inspection import conic_minimum, simplex_minimum
from bipareto.problems import KnownProblem
from bipareto.schedule import Power
from helpers import DICT_PROBLEM, DOUBLE, dict_start


def quietly(*args: object, **kwargs: object) -> Certificate:
    """A certificate of a point that deserves a warning, which is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        return certify(*args, **kwargs)  # type: ignore[arg-type]


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def lower_hessian(problem: KnownProblem, x: Tensor, y: Tensor) -> Tensor:
    return torch.func.hessian(lambda v: problem.lower(x, v))(y)


def dense(problem: bp.Problem, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of f (m, d) and B = [g_xy; g_yy] (d, d_y), written out."""
    rows = torch.cat(torch.func.jacrev(problem.upper, argnums=(0, 1))(x, y), dim=-1)
    (_, xy), (_, yy) = torch.func.hessian(problem.lower, argnums=(0, 1))(x, y)
    return rows, torch.cat([xy, yy])


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
    near = certify(problem, point.x, point.y + 1e-5 * numbers(5), gamma=0.5, preference=[0.5, 0.5], mu=2.0, c=3.0)
    assert near.stationarity is not None
    assert near.paper_stationarity is not None
    assert near.paper_stationarity >= near.stationarity > 0.5
    assert near.kkt < 1e-4


# --- closed forms


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
    assert found.paper_stationarity == pytest.approx(float(((w * tau) @ rows / s + c / s * normal).norm()), rel=1e-8)
    assert found.constraint_gradient == pytest.approx(float(normal.norm()), rel=1e-6)


def test_kkt_is_the_minimum_over_multipliers() -> None:
    for seed in range(10):
        problem = bp.problems.get("pl-sin2", dim=6, m=3, seed=seed)
        x, y = numbers(6, seed=seed), numbers(6, seed=seed + 100)
        found = quietly(problem, x, y, gamma=0.2)
        rows, B = dense(problem, x, y)
        rest = rows - rows @ B @ torch.linalg.pinv(B)
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
    rows, B = dense(problem, x, y)
    rest = rows - rows @ B @ torch.linalg.pinv(B)
    step = -1e-4 * (torch.tensor(found.kkt_multipliers, dtype=DOUBLE) @ rest)[:5]
    assert bool((problem.objectives(x + step) < problem.objectives(x)).all())


def test_bounds_hold_when_the_budget_is_too_small() -> None:
    problem, x, y = wide(400, condition=1e3, off=0.05)
    rows, B = dense(problem, x, y)
    rest = rows - rows @ B @ torch.linalg.pinv(B)
    exact = float((simplex_minimum(rest)[0] @ rest).norm())
    for budget in (60, 120, 200, 600):
        found = quietly(problem, x, y, gamma=1.0, budget=budget)
        assert found.kkt_lower <= exact * (1 + 1e-9)
        assert found.kkt >= exact * (1 - 1e-9)
        assert found.gradients <= budget
        assert (found.common_descent is None) == any("not settled" in note for note in found.notes)


# --- the quadratic programs


def conic_slack(rows: Tensor, normal: Tensor, lam: Tensor, p: float) -> float:
    """How far (lambda, p) is from the optimality conditions of min ||rows^T lambda + p normal||, relative to the rows' scale."""
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
        rows = torch.randn(m, d, generator=stream, dtype=DOUBLE) * 10 ** (2 * torch.rand(m, 1, generator=stream, dtype=DOUBLE) - 1)
        normal = torch.randn(d, generator=stream, dtype=DOUBLE) * 10 ** float(6 * torch.rand(1, generator=stream, dtype=DOUBLE) - 5)
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
    problems = [bp.problems.get("quadratic", m=m) for m in (2, 3, 4)] + [bp.problems.get("pl-sin2", dim=5, m=m) for m in (2, 3)]
    for i in range(count):
        problem = problems[i % len(problems)]
        x = numbers(5, seed=i)
        yield problem, x, problem.lower_solution(x) + numbers(5, seed=i + count, scale=10 ** (-i % 5 - 1.0))


def check_points(count: int) -> None:
    for problem, x, y in random_points(count):
        found = quietly(problem, x, y, gamma=0.2)
        assert found.qp_slack <= 1e-9
        assert found.stationarity is not None
        assert found.stationarity_multipliers is not None
        lam, p = found.stationarity_multipliers
        rows, B = dense(problem, x, y)
        theta = envelope.proximal_point(problem, x[None], y[None], 0.2, tol=1e-13).y[0]
        (g_x, g_y), t_x = torch.func.grad(problem.lower, argnums=(0, 1))(x, y), torch.func.grad(problem.lower)(x, theta)
        normal = torch.cat([g_x - t_x, g_y - (y - theta) / 0.2])
        # The normal itself is known to about 1e-9 of its length (it is a difference of gradients at a solved point), the program to rounding.
        assert conic_slack(rows, normal, torch.tensor(lam, dtype=DOUBLE), p) <= 1e-6
        rest = rows - rows @ B @ torch.linalg.pinv(B)
        slopes = rest @ (torch.tensor(found.kkt_multipliers, dtype=DOUBLE) @ rest)
        weights = torch.tensor(found.kkt_multipliers, dtype=DOUBLE)
        assert float(weights @ slopes - slopes.min()) <= 1e-9 * float(rows.square().sum(1).max())


def test_programs_of_random_points() -> None:
    check_points(25)


@pytest.mark.slow
def test_programs_of_a_thousand_random_points() -> None:
    check_points(1000)


# --- what kind of stationary point


@pytest.mark.parametrize("n", [1, 3])
def test_every_stationary_point_of_the_sine_is_named(n: int) -> None:
    problem = bp.problems.get("sin", n=n)
    x = torch.tensor([0.3], dtype=DOUBLE)
    signs = list(itertools.product((-1.0, 1.0), repeat=n))
    for sign, branch in itertools.product(signs, (-1, 0, 2)):
        # sin' = 0 at -pi/2 (a minimum) and pi/2 (a maximum) in every coordinate
        y = math.pi / 2 * torch.tensor(sign, dtype=DOUBLE) + 2 * math.pi * branch + 2.0 - x
        kind = certify(problem, x, y, gamma=0.4).lower_curvature
        assert kind == ("minimum" if max(sign) < 0 else "maximum" if min(sign) > 0 else "saddle")


def test_every_stationary_point_of_the_double_well_is_named() -> None:
    problem = bp.problems.get("bistable")
    fold = 2 / (3 * math.sqrt(3))
    for x in [-1.0, -0.5, *torch.linspace(-0.99 * fold, 0.99 * fold, 9, dtype=DOUBLE).tolist(), 0.5, 1.0]:
        companion = torch.tensor([[0.0, 1.0, x], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=DOUBLE)  # y^3 - y - x = 0
        roots = torch.linalg.eigvals(companion)
        for y in roots.real[roots.imag.abs() < 1e-9].tolist():
            found = certify(problem, torch.tensor([x], dtype=DOUBLE), torch.tensor([y], dtype=DOUBLE), gamma=0.4)
            assert found.lower_curvature == ("minimum" if 3 * y**2 > 1 else "maximum")
            assert found.lower_residual < 1e-12
    for sign in (-1, 1):
        at_fold = certify(problem, torch.tensor([sign * fold], dtype=DOUBLE), torch.tensor([-sign / math.sqrt(3)], dtype=DOUBLE), gamma=0.4)
        assert at_fold.lower_curvature == "degenerate"


def test_a_free_direction_is_degenerate_and_a_flat_bottom_too() -> None:
    problem = bp.problems.get("merely-convex")
    x = numbers(10)
    assert certify(problem, x, problem.lower_solution(x)).lower_curvature == "degenerate"
    quartic = bp.Problem(lambda x, y: torch.stack([x.sum() + y.sum()]), lambda x, y: (y**4).sum() + 0 * x.sum())
    assert certify(quartic, torch.zeros(1, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)).lower_curvature == "degenerate"


def trap(ratio: float) -> bp.Solution:
    problem = bp.problems.get("sin-trap")
    method = bp.MOMEHA(gamma=0.4, alpha_theta=ratio * 0.1, alpha_x=0.1, alpha_y=0.1, c=Power(5.0, 0.3))
    return bp.solve(problem, problem.x0, problem.y0, method=method, steps=1200, compile=False, progress=False)


def test_a_run_caught_by_a_lower_maximum_is_found_out() -> None:
    problem = bp.problems.get("sin-trap")
    caught = trap(3.0)
    assert float(caught.x) == pytest.approx(math.pi / 4, abs=0.02)
    assert float(torch.sin(caught.x + caught.y - 2)) > 0.999
    found = certify(problem, caught.x, caught.y, gamma=0.4)
    # The paper's two measures see nothing wrong: the curvature does.
    assert found.gap < 1e-3
    assert found.stationarity is not None
    assert found.stationarity < 0.05
    assert found.lower_curvature == "maximum"
    assert "maximum" in str(found)
    free = trap(1.0)
    assert quietly(problem, free.x, free.y, gamma=0.4).lower_curvature == "minimum"


# --- cost


def wide(d: int, condition: float = 4.0, off: float = 0.0) -> tuple[bp.Problem, Tensor, Tensor]:
    """Two objectives over a diagonal quadratic of the given condition; a point of its Pareto set, moved by `off`."""
    a, b, p, q = torch.rand(d, dtype=DOUBLE), numbers(d, seed=1), numbers(2, d, seed=2), numbers(2, d, seed=3)
    h = torch.logspace(0, -math.log10(condition), d, dtype=DOUBLE)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - p).square().sum(1) + (y - q).square().sum(1))

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (h * (y - a * x - b).square()).sum()

    best = (p + a * (q - b)) / (1 + a.square())
    x = 0.4 * best[0] + 0.6 * best[1] + off * numbers(d, seed=4)
    return bp.Problem(upper, lower), x, a * x + b + 0.1 * off * numbers(d, seed=5)


@pytest.mark.parametrize("off", [0.0, 0.01])
def test_a_hundred_thousand_dimensions_cost_two_hundred_gradients(off: float) -> None:
    problem, x, y = wide(50_000, off=off)  # 10^5 in (x, y) together
    counted = bp.oracle.Counting(problem)
    found = certify(counted, x, y, gamma=1.0)
    assert found.gradients <= 200
    # A value and a gradient of g are one call; a Hessian product needs none beyond the one that all share.
    assert counted.counts["lower"] <= 200
    assert counted.counts["upper"] <= 4
    assert found.lower_curvature == "minimum"
    assert found.common_descent is (off > 0)
    if not off:
        assert found.kkt <= 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("condition", [4.0, 100.0, 1e4])
def test_cost_and_honesty_at_a_hundred_thousand_lower_variables(condition: float) -> None:
    problem, x, y = wide(100_000, condition)
    found = quietly(problem, x, y, gamma=1.0)
    assert found.gradients <= 200
    assert found.lower_curvature == "minimum"
    assert found.common_descent is not True  # it is a Pareto point: no claim to the contrary, however ill-conditioned


# --- forms of input


def test_trees_modules_and_single_precision() -> None:
    x, y = dict_start()
    found = quietly(DICT_PROBLEM, x, y)
    flat = quietly(DICT_PROBLEM, tree.map_(lambda leaf: leaf.float(), x), tree.map_(lambda leaf: leaf.float(), y))
    assert flat.kkt == pytest.approx(found.kkt, rel=1e-4)
    assert flat.gap == pytest.approx(found.gap, rel=1e-4)


def test_a_noisy_problem_is_certified_on_its_means() -> None:
    plain, noisy = bp.problems.get("quadratic"), bp.problems.get("quadratic", noise=0.5)
    x = numbers(5)
    y = plain.lower_solution(x) + 1e-3
    assert quietly(plain, x, y, gamma=0.5) == quietly(noisy, x, y, gamma=0.5)


def test_it_reads_well() -> None:
    problem = bp.problems.get("quadratic")
    x = numbers(5)
    found = certify(problem, x, problem.lower_solution(x) + 1e-3, gamma=0.5, preference=[0.5, 0.5], mu=1.0, c=2.0)
    text = str(found)
    for word in ("lower level", "minimum", "gap", "kkt", "lambda", "stationarity", "paper's", "gradient evaluations"):
        assert word in text


# --- bad input


def test_a_gamma_above_the_known_bound_is_refused() -> None:
    problem = bp.problems.get("pl-sin2")
    with pytest.raises(InvalidInput, match=r"gamma = 0\.25 is not below 1/\(2 rho_y\) = 0\.25"):
        certify(problem, problem.x0, problem.y0, gamma=0.25, rho_y=2.0)
    with pytest.raises(InvalidInput, match="gamma = -1"):
        certify(problem, problem.x0, problem.y0, gamma=-1)


def test_a_gamma_above_the_bound_seen_is_warned_of() -> None:
    problem = bp.problems.get("sin", n=2)
    x = torch.zeros(1, dtype=DOUBLE)
    y = torch.full((2,), math.pi / 2 + 2, dtype=DOUBLE)
    with pytest.warns(BiparetoWarning, match=r"gamma = 0\.6 is not below 1/\(2 rho_y\): .* eigenvalue -1 .* < 0\.5"):
        found = certify(problem, x, y, gamma=0.6)
    assert any("gamma" in note for note in found.notes)
    assert certify(problem, x, y).gamma == pytest.approx(0.45)


def test_a_point_far_from_stationary_is_warned_of() -> None:
    problem = bp.problems.get("quadratic")
    with pytest.warns(BiparetoWarning, match=r"not near lower stationarity: \|\|grad_y g\|\| = "):
        certify(problem, problem.x0, problem.y0 + 1, gamma=0.5)


def test_an_ideal_point_above_the_objectives_is_refused() -> None:
    problem = bp.problems.get("quadratic")
    x = numbers(5)
    with pytest.raises(InvalidInput, match=r"z_1 = 1e\+06 >= f_1 = "):
        certify(problem, x, problem.lower_solution(x), preference=[0.5, 0.5], mu=1.0, ideal=1e6, c=1.0)


def test_nan_curvature_and_nan_gradients_are_named() -> None:
    def curved(x: Tensor, y: Tensor) -> Tensor:
        return (y - x).square().sum() + y.abs().pow(1.5).sum()  # infinite curvature at y = 0

    upper = lambda x, y: torch.stack([x.sum() + y.sum()])  # noqa: E731
    zero = torch.zeros(2, dtype=DOUBLE)
    with pytest.raises(InvalidInput, match="curvature of g is not finite"):
        certify(bp.Problem(upper, curved), zero, zero)
    with pytest.raises(InvalidInput, match="not finite: f = "):
        certify(bp.Problem(upper, lambda x, y: y.sqrt().sum() + x.sum()), zero, zero)


def test_a_kink_is_warned_of_and_smooth_functions_are_not() -> None:
    kinked = bp.Problem(lambda x, y: torch.stack([(x - y).square().sum()]), lambda x, y: y.abs().sum() + 0.5 * (y - x).square().sum())
    with pytest.warns(BiparetoWarning, match="does not look twice differentiable"):
        certify(kinked, torch.zeros(3, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE))


def test_a_budget_too_small_for_anything_is_refused() -> None:
    problem = bp.problems.get("quadratic")
    with pytest.raises(InvalidInput, match="budget = 10"):
        certify(problem, problem.x0, problem.y0, budget=10)
