from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

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


def steihaug(
    H: torch.Tensor, r: list[float], radius: float, goal: float = 1e-14, share: float = 1e-14
) -> tuple[torch.Tensor, float, float]:
    one = torch.ones(1, dtype=DOUBLE)
    row = torch.tensor([r], dtype=DOUBLE)
    s, predicted, bend = envelope._steihaug(
        lambda p: p @ H, row, radius * one, goal * one, share * one
    )
    return s[0], float(predicted), float(bend)


class TestSteihaug:
    """Conjugate gradients within a ball: <r, s> + <s, H s>/2 for ||s|| <= radius."""

    H = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=DOUBLE)
    r = torch.tensor([1.0, -4.0], dtype=DOUBLE)

    def test_inside_it_is_newton_s_step(self) -> None:
        s, predicted, bend = steihaug(self.H, self.r.tolist(), 100.0)
        wanted = -torch.linalg.solve(self.H, self.r)
        torch.testing.assert_close(s, wanted)
        assert bend == pytest.approx(float(wanted @ self.H @ wanted))
        assert predicted == pytest.approx(0.5 * bend)  # of a minimiser

    def test_it_leaves_the_ball_along_the_first_or_the_second_direction(self) -> None:
        r, H = self.r, self.H
        first = float(r @ r / (r @ H @ r)) * -r
        s, predicted, bend = steihaug(H, r.tolist(), 0.5 * float(first.norm()))
        torch.testing.assert_close(s, 0.5 * first)
        assert bend == pytest.approx(0.25 * float(first @ H @ first))
        assert predicted == pytest.approx(-0.5 * float(r @ first) - 0.5 * bend)
        newton = -torch.linalg.solve(H, r)
        radius = 0.5 * float(first.norm() + newton.norm())
        s, _, _ = steihaug(H, r.tolist(), radius)
        # In two dimensions the second direction leads from the first point to Newton's.
        way = newton - first
        assert float(s.norm()) == pytest.approx(radius)
        share = (s - first) / way
        assert float(share[0]) == pytest.approx(float(share[1]))
        assert 0 < float(share[0]) < 1

    def test_negative_curvature_is_followed_to_the_boundary(self) -> None:
        H = torch.diag(torch.tensor([1.0, -1.0], dtype=DOUBLE))
        s, predicted, bend = steihaug(H, [0.0, 2.0], 3.0)
        assert s.tolist() == pytest.approx([0.0, -3.0])
        assert (predicted, bend) == pytest.approx((6 + 4.5, -9.0))

    def test_it_stops_at_the_share_of_the_residual_that_is_asked_for(self) -> None:
        H = torch.diag(torch.tensor([1.0, 1.1], dtype=DOUBLE))
        newton = [-1.0, -1 / 1.1]
        # After one product the residual is about 5 % of what it was.
        for share, goal, early in ((0.1, 1e-9, True), (0.01, 1e-9, False), (5.0, 1e-9, True)):
            s, _, _ = steihaug(H, [1.0, 1.0], 9.0, goal=goal, share=share)
            assert (s.tolist() != pytest.approx(newton)) is early
        assert steihaug(H, [1.0, 1.0], 9.0, goal=1.3)[0].tolist() != pytest.approx(newton)
        assert steihaug(H, [1.0, 1.0], 9.0, goal=0.5)[0].tolist() == pytest.approx(newton)
        assert steihaug(H, [1.0, 1.0], 9.0, goal=1.5)[0].tolist() == [0.0, 0.0]


def rosenbrock(scale: float = 1.0) -> bp.Problem:
    """g with a bent valley, the test of every trust-region method; least at (1, 1)."""
    return bp.Problem(
        lambda x, y: y.square().sum()[None],
        lambda x, y: scale * (100 * (y[1] - y[0] ** 2) ** 2 + (1 - y[0]) ** 2),
    )


def test_the_first_step_goes_twice_as_far_as_an_exact_one_along_the_gradient() -> None:
    """With a gradient along an axis of a quadratic: Newton's step is half of that radius."""
    x = torch.zeros(1, 2, dtype=DOUBLE)
    y = torch.tensor([[-1.2, 1.0]], dtype=DOUBLE)
    problem = rosenbrock()
    r = torch.func.grad(lambda v: problem.lower(x[0], v))(y[0])
    H = torch.func.hessian(lambda v: problem.lower(x[0], v))(y[0])
    radius = 2 * float(r.norm() ** 3 / (r @ H @ r).abs())
    step, _, _ = steihaug(H, r.tolist(), radius, goal=0.0, share=1.0)
    found = envelope.solve_lower(problem, x, y, max_iter=1)
    torch.testing.assert_close(found.y[0], y[0] + step)
    assert found.iterations == 1
    assert not bool(found.converged.any())


@pytest.mark.parametrize(("start", "steps"), [((-1.2, 1.0), 25), ((3.0, -2.0), 14)])
def test_a_bent_valley_takes_few_steps(start: tuple[float, float], steps: int) -> None:
    """As many as the rules of the radius give: it doubles, shrinks to a quarter or stays."""
    x = torch.zeros(1, 2, dtype=DOUBLE)
    found = envelope.solve_lower(
        rosenbrock(), x, torch.tensor([start], dtype=DOUBLE), tol=1e-9, max_iter=60
    )
    assert bool(found.converged.all())
    assert found.iterations == steps
    torch.testing.assert_close(found.y[0], torch.ones(2, dtype=DOUBLE), rtol=1e-7, atol=1e-7)


def test_what_has_no_minimum_does_not_converge() -> None:
    problem = bp.Problem(lambda x, y: y.square().sum()[None], lambda x, y: (x * y).sum())
    one = torch.ones(2, 2, dtype=DOUBLE)
    found = envelope.solve_lower(problem, one, one, max_iter=5)
    assert not bool(found.converged.any())
    assert found.iterations == 5


def test_a_solution_at_zero_is_one() -> None:
    """Without a gradient and without a size of y there is no scale, and nothing left to solve."""
    problem = bp.Problem(lambda x, y: y.sum()[None], lambda x, y: (y - x).square().sum())
    x = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=DOUBLE)
    found = envelope.solve_lower(problem, x, x.clone())
    assert found.converged.tolist() == [True, True]
    assert found.iterations == 0
    assert torch.equal(found.y, x)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_units_of_y_do_not_hide_it_from_rounding(dtype: torch.dtype) -> None:
    """y in units of 1e3, 1 and 1e-3: the solution is the same in each of them, to the precision."""
    H = torch.tensor([[2.0, 0.3, -0.4], [0.3, 1.0, 0.2], [-0.4, 0.2, 3.0]], dtype=dtype)
    unit = torch.tensor([1e3, 1.0, 1e-3], dtype=dtype)

    def lower(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        r = y / unit - x
        return 0.5 * r @ (H @ r)

    problem = bp.Problem(lambda x, y: torch.stack([x.sum() + y.sum()]), lower)
    x = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]], dtype=dtype)
    start = unit * torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 3.0]], dtype=dtype)
    found = envelope.solve_lower(problem, x, start, tol=1e-9)
    assert bool(found.converged.all())
    # What a solution starts from stays, where it is one.
    again = envelope.solve_lower(problem, x, found.y, tol=1e-5)
    assert again.iterations == 0
    torch.testing.assert_close(again.y, found.y)
    accuracy = 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.y / unit, x, rtol=accuracy, atol=accuracy)
    slope = torch.func.vmap(torch.func.grad(lower, argnums=1))(x, found.y).norm(dim=1)
    torch.testing.assert_close(found.residual, slope, rtol=1e-3, atol=1e3 * accuracy)


def test_units_are_read_off_curvatures_that_are_far_apart_only() -> None:
    rows = [[1.0, 2e6], [1.0, 5e5], [-1.0, 4e8], [0.0, 1.0], [1.0, float("inf")], [3e6, 1.0]]
    H = torch.diag_embed(torch.tensor(rows, dtype=DOUBLE)) + torch.ones(2, 2, dtype=DOUBLE).triu(1)
    wanted = [[1.0, 2e6**-0.5], [1, 1], [1.0, 4e8**-0.5], [1, 1], [1, 1], [3e6**-0.5, 1.0]]
    torch.testing.assert_close(envelope._units(H), torch.tensor(wanted, dtype=DOUBLE))


def test_a_run_that_has_arrived_holds_up_no_other() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([x.sum() + y.sum()]), lambda x, y: torch.cosh(y - x).sum()
    )
    x = torch.zeros(3, 2, dtype=DOUBLE)
    y = torch.tensor([[0.0, 0.0], [5.0, -3.0], [1.0, 0.5]], dtype=DOUBLE)
    together = envelope.solve_lower(problem, x, y, tol=1e-10)
    alone = [envelope.solve_lower(problem, x[i : i + 1], y[i : i + 1], tol=1e-10) for i in range(3)]
    torch.testing.assert_close(together.y, torch.cat([one.y for one in alone]), rtol=0, atol=1e-12)
    assert together.iterations == max(one.iterations for one in alone)
    assert together.converged.tolist() == [True] * 3


@pytest.mark.parametrize(
    ("written", "bend", "more"), [(True, 0, False), (True, 1, True), (False, 0, True)]
)
def test_a_hessian_that_foresees_the_gradients_serves_again(
    written: bool, bend: float, more: bool
) -> None:
    H = torch.diag(torch.tensor([1.0, 5.0, 30.0], dtype=DOUBLE))
    asked = []

    def evaluate(v: Tensor) -> tuple[Tensor, Tensor]:
        value = 0.5 * (v * (v @ H)).sum(1) + bend * v.pow(4).sum(1)
        return value, v @ H + 4 * bend * v.pow(3)

    def curve(v: Tensor) -> envelope.Product:
        asked.append(v)
        return lambda p: p @ H + 12 * bend * v.square() * p

    start = torch.tensor([[1.0, -2.0, 3.0]], dtype=DOUBLE)
    found = envelope._trust_region(evaluate, curve, start, 1e-9, 50, written)
    assert bool(found.converged.all())
    assert found.point.norm() < 1e-6
    assert found.iterations > 1
    assert (len(asked) > 1) == more
