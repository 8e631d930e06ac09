"""Parts of a certificate against formulas written out, and what each of them spends."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate import certificate
from bipareto.certificate.inspection import Point, Subspace, conic_minimum, simplex_minimum
from bipareto.certificate.proximal import proximal_point
from bipareto.certificate.remaining import (
    Gain,
    _ranges,
    along_lower,
    left_to_gain,
    on_tangents,
    remaining,
    tangent_products,
)
from bipareto.methods.parts import envelope
from certificate.points import dense, numbers, projected, quietly
from helpers import DOUBLE

EYE = torch.eye(3, dtype=DOUBLE)


def bowls(curvatures: Tensor, m: int = 2, offset: float = 0.0) -> bp.Problem:
    """g = sum h (y - x)^2/2 + offset below m paraboloids in (x, y) around random centres."""
    n = len(curvatures)
    p, q = numbers(m, n, seed=11), numbers(m, n, seed=12)
    return bp.Problem(
        lambda x, y: (x - p).square().sum(1) + 2 * (y - q).square().sum(1),
        lambda x, y: 0.5 * (curvatures * (y - x).square()).sum() + offset,
    )


# --- what is left to gain


def spd(seed: int, n: int = 3) -> Tensor:
    A = numbers(n, n, seed=seed)
    return A @ A.T + torch.eye(n, dtype=DOUBLE)


@pytest.mark.parametrize("m", [2, 3])
def test_ranges_are_those_of_the_payoff_table(m: int) -> None:
    h, H = numbers(m, 3, seed=1), torch.stack([spd(i) for i in range(m)])
    ends = [-torch.linalg.solve(H[i], h[i]) for i in range(m)]

    def change(i: int, d: Tensor) -> float:
        return float(h[i] @ d + 0.5 * d @ H[i] @ d)

    for i, found in enumerate(_ranges(h, H, None).tolist()):
        seen = [change(i, d) for d in [*ends, 0 * h[0]]]
        assert found == pytest.approx(max(seen) - min(seen))
    # The size of x counts only where the ends agree.
    torch.testing.assert_close(_ranges(h, H, 9 * h[0]), _ranges(h, H, None))
    same, x = h[:1].repeat(m, 1), numbers(3, seed=5, scale=7.0)
    whole = _ranges(same, H[:1].repeat(m, 1, 1), x)
    end = ends[0]
    wanted = max(abs(change(0, -x)), abs(change(0, end)))
    assert whole.tolist() == pytest.approx([wanted] * m)
    for size in (1e-9, 1e9):
        scaled = [_ranges(size * slopes, size * H[:m], x) for slopes in (h, same)]
        torch.testing.assert_close(scaled[0] / size, _ranges(h, H, x))
        torch.testing.assert_close(scaled[1] / size, _ranges(same, H, x))
    # One end apart from the others is enough for a range.
    if m == 3:
        apart = torch.stack([h[0], h[0], h[1]])
        curved = torch.stack([H[0], H[0], H[1]])
        torch.testing.assert_close(_ranges(apart, curved, x), _ranges(apart, curved, None))


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_straight_slopes_have_no_size(size: float) -> None:
    flat = torch.zeros(2, 2, 2, dtype=DOUBLE)
    apart = size * torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=DOUBLE)
    assert left_to_gain(apart, flat) == (1.0, 1.0)
    assert left_to_gain(torch.stack([apart[0], -2 * apart[0]]), flat) == (0.0, 0.0)


def test_the_gain_is_the_best_common_step_of_the_models() -> None:
    """Three quadratics in three dimensions, against a search over the simplex of multipliers: for
    each the best step is known, and the least of these gains is the answer.
    """
    h, H = numbers(3, 3, seed=21), torch.stack([spd(i + 5) for i in range(3)])
    s = _ranges(h, H, None)
    gain = left_to_gain(h, H)
    best = math.inf
    for w in bp.preferences.grid(3, 60, boundary=True).to(DOUBLE):
        a = w / s
        slope, bend = a @ h, torch.einsum("i,ijk->jk", a, H)
        best = min(best, float(0.5 * slope @ torch.linalg.solve(bend, slope)))
    assert gain.bound == pytest.approx(best, rel=5e-3)
    assert 0.5 * best < gain.reached <= gain.bound


@pytest.mark.parametrize("m", [1, 2, 3])
def test_tangents_are_the_dense_picture_in_their_span_and_are_paid_for(m: int) -> None:
    problem = bowls(torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE), m)
    x = numbers(3, seed=3)
    at = Point(problem, x, x.clone(), 200)
    space = Subspace(at, seed=0)
    space.grow(0)
    before = at.spent
    found = on_tangents(at, space)
    assert at.spent - before == tangent_products(at) == 2 * m * m
    T = projected(problem, x, x)
    # Along y = x every objective is (x - p)^2 + 2 (x - q)^2.
    h = torch.func.jacrev(lambda v: problem.upper(v, v))(x)
    t = T[:, :3]
    bend = torch.stack([6 * t @ t.T] * m)
    wanted = left_to_gain(h @ t.T, bend)
    assert found == pytest.approx(wanted, rel=1e-6)
    before = at.spent
    whole = along_lower(at, degenerate=False)
    assert whole == pytest.approx(left_to_gain(h, torch.stack([6 * EYE] * m), x), rel=1e-6)
    assert at.spent == before


def test_what_is_read_beside_a_flat_point_is_paid_for() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([(x - 1).square().sum(), (y + 2).square().sum()]),
        lambda x, y: (y - x).pow(4).sum(),
    )
    x = numbers(3, seed=3)
    at = Point(problem, x, x.clone(), 200)
    before = at.spent
    found = along_lower(at, degenerate=True)
    # y follows x: f_2 = (x + 2)^2; two objectives, three tangents, a product counted as two.
    assert at.spent - before == 2 * 2 * 3
    h = torch.stack([2 * (x - 1), 2 * (x + 2)])
    assert found == pytest.approx(left_to_gain(h, torch.stack([2 * EYE] * 2), x), rel=1e-3)


# --- by going there


def along_one(n_x: int, n_y: int, scale: float = 1.0) -> bp.Problem:
    """f = y_1^4 with y* = scale (x_1, 0, ...)."""
    return bp.Problem(
        lambda x, y: y[0].pow(4)[None],
        lambda x, y: (y[0] - scale * x[0]).square() + y[1:].square().sum() + x[1:].square().sum(),
    )


@pytest.mark.parametrize("unit", [0.5, 1.0, 40.0])
def test_each_round_is_a_newton_step(unit: float) -> None:
    """Newton's step on y^4 takes a third of the way: four rounds from 3 leave 3 (2/3)^4."""
    x = torch.tensor([[3.0, 0.1], [0.0, 0.2]], dtype=DOUBLE)
    y = torch.tensor([[3.0, 0.0], [0.0, 0.0]], dtype=DOUBLE)
    left = remaining(along_one(2, 2), x, y, torch.tensor([unit], dtype=DOUBLE))
    assert left.tolist() == pytest.approx([81 * (1 - (2 / 3) ** 16) / unit, 0.0], rel=1e-9)


def test_shorter_steps_are_tried_where_the_whole_one_goes_too_far() -> None:
    """f = sqrt(1 + y^2) from y = 3: Newton's step is y (1 + y^2) = 30, a tenth of it hits 0."""
    problem = bp.Problem(
        lambda x, y: (1 + y.square().sum()).sqrt()[None], lambda x, y: (y - x).square().sum()
    )
    x = torch.tensor([[3.0], [0.0]], dtype=DOUBLE)
    left = remaining(problem, x, x.clone(), torch.ones(1, dtype=DOUBLE))
    assert left.tolist() == pytest.approx([10**0.5 - 1, 0.0], abs=1e-9)


@pytest.mark.parametrize(("n_x", "n_y"), [(2, 200), (200, 2), (128, 128)])
def test_up_to_256_variables_the_unit_of_x_is_not_seen(n_x: int, n_y: int) -> None:
    x, y = torch.zeros(1, n_x, dtype=DOUBLE), torch.zeros(1, n_y, dtype=DOUBLE)
    x[0, 0], y[0, 0] = 3.0 / 50, 3.0
    left = remaining(along_one(n_x, n_y, 50.0), x, y, torch.ones(1, dtype=DOUBLE))
    assert float(left) == pytest.approx(81 * (1 - (2 / 3) ** 16), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_beyond_256_variables_one_step_is_tried(scale: float) -> None:
    """The length comes from two slopes a thousandth of x's size apart: a third of the way again."""
    x, y = torch.zeros(1, 150, dtype=DOUBLE), torch.zeros(1, 150, dtype=DOUBLE)
    x[0, 0], y[0, 0] = 3.0 / scale, 3.0
    left = remaining(along_one(150, 150, scale), x, y, torch.ones(1, dtype=DOUBLE))
    assert float(left) == pytest.approx(81 - 16, rel=5e-3)


# --- the proximal point


def test_a_ball_costs_one_gradient() -> None:
    """With g's curvature known and the same all around, the first step is the last."""
    problem = bowls(torch.full((4,), 3.0, dtype=DOUBLE))
    x = numbers(4, seed=1)
    at = Point(problem, x, x + numbers(4, seed=2), 200)
    before = at.spent
    found = proximal_point(at, 0.5, 3.0)
    assert at.spent == before + 1
    assert found.solved
    torch.testing.assert_close(found.shift, -at.g_y / (3.0 + 2.0))


def test_below_the_rounding_of_g_the_slope_decides() -> None:
    problem = bowls(torch.tensor([1.0, 2.0, 5.0], dtype=DOUBLE), offset=1e9)
    x = numbers(3, seed=1)
    at = Point(problem, x, x + 1e-5 * numbers(3, seed=2), 200)
    found = proximal_point(at, 1.0, 5.0)
    assert found.solved
    wanted = -at.g_y / (torch.tensor([1.0, 2.0, 5.0], dtype=DOUBLE) + 1)
    torch.testing.assert_close(found.shift, wanted, rtol=1e-3, atol=1e-10)


def test_values_that_rise_by_rounding_are_no_obstacle() -> None:
    """g seems to rise a little at every evaluation; its slope is what it is."""
    h = torch.tensor([1.0, 2.0, 5.0], dtype=DOUBLE)
    x = numbers(3, seed=1)

    class Rising(Point):
        seen = 0

        def lower(self, flat: Tensor) -> tuple[float, Tensor]:
            self.seen += 1
            return 1.0 + self.seen * 1e-15, super().lower(flat)[1]

    at = Rising(bowls(h), x, x + 1e-9 * numbers(3, seed=2), 200)
    found = proximal_point(at, 1.0, 5.0)
    assert found.solved
    torch.testing.assert_close(found.shift, -at.g_y / (h + 1), rtol=1e-3, atol=1e-14)


def test_a_step_that_goes_too_far_is_taken_back() -> None:
    """The curvature that is given is a hundredth of the true one."""
    problem = bowls(torch.tensor([100.0, 80.0], dtype=DOUBLE))
    x = numbers(2, seed=1)
    at = Point(problem, x, x + numbers(2, seed=2), 200)
    found = proximal_point(at, 10.0, 1.0)
    assert found.solved
    wanted = -at.g_y / (torch.tensor([100.0, 80.0], dtype=DOUBLE) + 0.1)
    torch.testing.assert_close(found.shift, wanted, rtol=1e-6, atol=1e-9)


def test_a_step_into_infinity_is_taken_back() -> None:
    """g = cosh 3 y with a curvature that is said to be none: the first step overflows."""
    problem = bp.Problem(
        lambda x, y: torch.stack([x.sum(), y.sum()]), lambda x, y: torch.cosh(3 * (y - x)).sum()
    )
    x = torch.zeros(2, dtype=DOUBLE)
    at = Point(problem, x, torch.tensor([2.0, -1.0], dtype=DOUBLE), 200)
    found = proximal_point(at, 100.0, 0.0)
    wanted = envelope.proximal_point(problem, x[None], at.y_flat[None], 100.0, tol=1e-12).y[0]
    torch.testing.assert_close(at.y_flat + found.shift, wanted, rtol=1e-5, atol=1e-6)
    assert found.solved


def test_a_budget_that_ends_early_leaves_it_unsolved() -> None:
    problem = bowls(torch.logspace(0, 4, 30, dtype=DOUBLE))
    x = numbers(30, seed=1)
    at = Point(problem, x, x + numbers(30, seed=2), 22)
    found = proximal_point(at, 1.0, 1e4)
    assert at.left() == 4
    assert not found.solved
    assert 1e-4 < found.residual / float(at.g_y.norm()) < 1
    assert found.residual == pytest.approx(
        float((at.lower(at.flat + torch.cat([0 * x, found.shift]))[1][30:] + found.shift).norm())
    )


# --- the subspace


def test_nothing_is_looked_for_where_the_residual_is_settled() -> None:
    problem = bowls(torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE))
    x = numbers(3, seed=3)
    space = Subspace(Point(problem, x, x.clone(), 200), seed=0)
    assert not space.solved
    assert len(list(space._for_kkt())) > 0
    space.slack = 1e-8
    assert not list(space._for_kkt())
    space.slack, space.residual = 1.0, 0 * space.residual
    assert space.solved
    assert not list(space._for_kkt())


def test_a_lower_bound_from_half_of_the_space() -> None:
    """Curvatures between 1 and 2: a few directions settle the residual nearly, and say so."""
    problem = bowls(torch.linspace(1, 2, 60, dtype=DOUBLE))
    x = numbers(60, seed=3)
    y = x + 1e-3 * numbers(60, seed=4)
    rest = projected(problem, x, y)
    exact = float((simplex_minimum(rest)[0] @ rest).norm())
    at = Point(problem, x, y, 60)
    space = Subspace(at, seed=0)
    space.grow(20)
    space.judge()
    assert space.size < 30
    low, high = space.eigenvalues
    B = dense(problem, x, y)[1]
    size = float(space.residual.norm())
    assert space.slack == pytest.approx(float((B.T @ space.residual).norm()) / (space.scale * size))
    missed = space.slack * space.scale * size / min(abs(low), abs(high))
    bound = (size**2 - missed * float(space.rest.norm(dim=1).max())) / size
    if space.slack > 1e-7:
        assert space.kkt_lower("minimum") == pytest.approx(max(bound, 0.0))
        assert space.kkt_lower("saddle") == 0
    assert 0.3 * exact < space.kkt_lower("minimum") <= exact * (1 + 1e-9)


def test_a_certificate_looks_before_it_takes_gamma() -> None:
    """gamma = 1/L needs the largest curvature, here that of one coordinate of eight."""
    h = torch.ones(8, dtype=DOUBLE)
    h[3] = 50.0
    problem = bp.Problem(
        lambda x, y: torch.stack([(y - 1).square().sum(), (y + x).square().sum()]),
        lambda x, y: 0.5 * (h * y.square()).sum() + 0 * x.sum(),
    )
    found = quietly(problem, numbers(8, seed=1), 0.01 * numbers(8, seed=2))
    assert found.gamma == pytest.approx(1 / 50, rel=0.05)
    assert found.lower_eigenvalues == pytest.approx((1.0, 50.0))


def test_small_problems_keep_no_gradients_for_tangents() -> None:
    """Six objectives would ask for 72 gradients; all curvatures of 50 coordinates need 100 more
    than are left then.
    """
    h = torch.logspace(-2, 2, 50, dtype=DOUBLE)
    problem = bowls(h, m=6)
    x = numbers(50, seed=1)
    found = quietly(problem, x, x + 1e-6 * numbers(50, seed=2), gamma=1e-3, budget=160)
    assert found.gradients <= 160
    assert found.lower_eigenvalues == pytest.approx((1e-2, 1e2), rel=1e-6)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_slacks_know_no_units(size: float) -> None:
    rows, normal = size * numbers(3, 5, seed=1), numbers(5, seed=2)
    assert abs(simplex_minimum(rows)[1]) < 1e-12
    for sign in (1.0, -1.0):
        found = conic_minimum(rows, sign * normal)
        assert 0 <= found.slack < 1e-12
        best = math.inf
        for w in bp.preferences.grid(3, 40, boundary=True).to(DOUBLE):
            r = w @ rows
            p = max(0.0, -float(r @ normal) * sign / float(normal @ normal))
            best = min(best, float((r + p * sign * normal).norm()))
        assert found.norm <= best * (1 + 1e-9)
        assert found.norm >= 0.95 * best
        point = found.weights @ rows + found.multiplier * sign * normal
        assert found.norm == pytest.approx(float(point.norm()))
    assert sum(conic_minimum(rows, s * normal).multiplier > 0 for s in (1.0, -1.0)) >= 1


def test_a_corner_has_no_slack() -> None:
    rows = torch.tensor([[1.0, 0.0], [5.0, 1.0], [3.0, -9.0]], dtype=DOUBLE)
    weights, slack = simplex_minimum(rows)
    assert weights.tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert slack == pytest.approx(0.0, abs=1e-12)


def test_directions_of_any_length_are_taken_in_until_the_reserve() -> None:
    h = torch.logspace(0, 4, 60, dtype=DOUBLE)
    problem = bowls(h)
    x = numbers(60, seed=3)
    at = Point(problem, x, x + 1e-3 * numbers(60, seed=4), 60)
    space = Subspace(at, seed=0)
    for size in (1e-12, 1e12):
        assert space._add(size * numbers(60, seed=7 + int(size > 1)))
    assert not space._add(1e-12 * space.V[0])
    assert not space._add(0 * space.V[0])
    # The Ritz pair at an end: theta = u'Hu, and what H u has beyond it.
    k = space.size
    values, vectors = torch.linalg.eigh(space.V[:k] @ torch.diag(h) @ space.V[:k].T)
    for end in (0, -1):
        u = vectors[:, end] @ space.V[:k]
        (found,) = space._ritz_residual(end)
        wanted = h * u - values[end] * u
        torch.testing.assert_close(found * torch.sign(found @ wanted), wanted)
    # Products cost two; four are kept for the last look.
    space.grow(20)
    assert at.left() == 22


def test_all_orders_of_objectives_give_one_answer() -> None:
    rows = numbers(3, 4, seed=3)
    wanted, _ = simplex_minimum(rows)
    for order in itertools.permutations(range(3)):
        found, slack = simplex_minimum(rows[list(order)])
        torch.testing.assert_close(found, wanted[list(order)])
        assert abs(slack) < 1e-12


# --- what is noted


def notes(found: bp.Certificate, words: str) -> int:
    return sum(words in note for note in found.notes)


def test_a_flat_valley_is_noted_where_kkt_has_no_multipliers() -> None:
    words = "kkt has no multipliers there"

    def quartic(place: float, size: float = 1.0) -> bp.Certificate:
        def upper(x: Tensor, y: Tensor) -> Tensor:
            return size * torch.stack([(x - 1) ** 2 + y**2, x**2 + (y - 2) ** 2])

        problem = bp.Problem(upper, lambda x, y: (y - x).pow(4))
        at = torch.tensor(place, dtype=DOUBLE)
        return quietly(problem, at, at)

    for size in (1e-6, 1.0, 1e6):
        assert notes(quartic(0.7, size), words) == 1
    # Nor is there one where a small objective makes kkt small.
    uneven = bp.Problem(
        lambda x, y: torch.stack([1e-6 * ((x - 1) ** 2 + y**2), x**2 + (y - 2) ** 2]),
        lambda x, y: (y - x).pow(4),
    )
    at = torch.tensor(0.7, dtype=DOUBLE)
    assert notes(quietly(uneven, at, at), words) == 0
    # Far from the front something is left to gain, and kkt says so.
    assert quartic(5.0).common_descent
    assert notes(quartic(5.0), words) == 0
    exact = bp.problems.get("merely-convex")
    point = exact.solution(torch.tensor([0.4, 0.6], dtype=DOUBLE))
    flat = quietly(exact, point.x, point.y)
    assert flat.lower_curvature == "degenerate"
    assert notes(flat, words) == 0


@pytest.mark.parametrize(("budget", "short"), [(30, True), (200, False)])
def test_an_unsolved_proximal_point_is_noted(budget: int, short: bool) -> None:
    problem = bowls(torch.logspace(0, 2, 30, dtype=DOUBLE))
    x = numbers(30, seed=1)
    found = quietly(problem, x, x + 0.1 * numbers(30, seed=2), gamma=1.0, budget=budget)
    assert notes(found, "the proximal point was solved only to") == short
    assert found.gradients <= budget
    h = torch.logspace(0, 2, 30, dtype=DOUBLE)
    r = 0.1 * numbers(30, seed=2)
    gap = float((0.5 * h * h * r * r / (1 + h)).sum())
    assert found.gap == pytest.approx(gap, rel=0.5 if short else 1e-6)
    assert found.lower_residual == pytest.approx(float((h * r).norm()))
    assert found.objectives == pytest.approx(tuple(problem.upper(x, x + r).tolist()))


def test_nothing_is_claimed_where_kkt_is_not_settled() -> None:
    """Beyond 256 variables, curvatures from 1e-4 to 1, and a budget of 40."""
    n = 150
    problem = bowls(torch.logspace(-4, 0, n, dtype=DOUBLE))
    x = numbers(n, seed=1)
    found = quietly(problem, x, x.clone(), gamma=1.0, budget=40)
    assert notes(found, "kkt was not settled within 40 gradient evaluations") == 1
    assert found.common_descent is None
    assert math.isnan(found.improvement)
    assert found.kkt_lower < 0.9 * found.kkt
    easy = quietly(bowls(torch.ones(n, dtype=DOUBLE)), x, x.clone(), gamma=1.0)
    assert notes(easy, "not settled") == 0
    assert easy.common_descent is True
    assert easy.kkt_lower == pytest.approx(easy.kkt)
    rest = projected(bowls(torch.ones(n, dtype=DOUBLE)), x, x)
    assert easy.kkt == pytest.approx(float((simplex_minimum(rest)[0] @ rest).norm()))


@pytest.mark.parametrize(
    ("far", "near", "found"),
    [(0.0116, 1.0, False), (0.0118, 1.0, True), (5.0, 0.29, False), (5.0, 0.31, True)],
)
def test_a_jump_is_what_a_tenth_of_the_step_hardly_lessens(
    far: float, near: float, found: bool
) -> None:
    """eps = 1e-6, ||y|| = 5, ||grad_y g|| = 7, curvature up to 2: the step is 0.05, and the
    gradient may change by 0.1 * 0.05 * 2 + 1e-4 (7 + 2 * 5) = 0.0117 more than the Hessian says.
    """
    y, v = torch.tensor([3.0, 4.0], dtype=DOUBLE), torch.tensor([0.6, -0.8], dtype=DOUBLE)
    image, g_y = torch.tensor([0.3, 1.1], dtype=DOUBLE), torch.tensor([0.0, 7.0], dtype=DOUBLE)

    def lower(flat: Tensor) -> tuple[float, Tensor]:
        step = float((flat[1:] - y) @ v)
        assert float(flat[0]) == 9.0
        jump = far if step == pytest.approx(0.05) else near * far
        assert step == pytest.approx(0.05) or step == pytest.approx(0.005)
        return 0.0, torch.cat([flat[:1], g_y + step * image + jump * v])

    flat = torch.cat([torch.tensor([9.0], dtype=DOUBLE), y])
    at: Any = SimpleNamespace(
        eps=1e-6, split=1, flat=flat, y_flat=y, y_size=5.0, g_y=g_y, lower=lower
    )
    space: Any = SimpleNamespace(V=v[None], HV=image[None], scale=2.0)
    seen = certificate._jump(at, space)
    assert seen == (pytest.approx(near * far) if found else None)


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ((0.002, 0.003), True),
        ((0.0005, 0.002), None),
        ((0.0, 0.001), False),
        ((0.001, 0.002), None),
    ],
)
def test_a_verdict_needs_its_bound(
    gain: tuple[float, float], verdict: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, "along_lower", lambda at, degenerate: Gain(*gain))
    x = numbers(3, seed=3)
    found = quietly(bowls(torch.ones(3, dtype=DOUBLE)), x, x.clone())
    assert (found.improvement, found.common_descent) == (gain[0], verdict)


def test_another_unit_of_g_costs_and_finds_the_same() -> None:
    x = numbers(5, seed=1)
    y = x + 0.01 * numbers(5, seed=2)
    h = torch.linspace(1, 3, 5, dtype=DOUBLE)
    plain, *others = (quietly(bowls(s * h), x, y, gamma=1 / s) for s in (1.0, 0.01, 100.0))
    for found in others:
        assert found.gradients == plain.gradients
        assert found.kkt == pytest.approx(plain.kkt)
        assert found.improvement == pytest.approx(plain.improvement)
    assert plain.qp_slack < 1e-9
    assert quietly(bowls(h), x, x.clone()).qp_slack < 1e-9


def test_curvature_beside_one_over_gamma_is_none() -> None:
    """sqrt(eps)/gamma = 1.5e-5 for gamma = 1e-3."""
    for h, kind in ((2e-5, "minimum"), (1e-5, "degenerate")):
        problem = bowls(torch.full((1,), h, dtype=DOUBLE))
        zero = torch.zeros(1, dtype=DOUBLE)
        assert quietly(problem, zero, zero, gamma=1e-3).lower_curvature == kind


def test_a_loss_that_draws_is_refused() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([x.sum() + torch.rand(()), y.sum()]), lambda x, y: (y - x).sum()
    )
    zero = torch.zeros(2, dtype=DOUBLE)
    with pytest.raises(bp.errors.InvalidInput):
        certificate.certify(problem, zero, zero)


def test_an_objective_without_a_slope_stops_all() -> None:
    h = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=DOUBLE)
    assert left_to_gain(h, torch.eye(2, dtype=DOUBLE).expand(2, 2, 2)) == (0.0, 0.0)
