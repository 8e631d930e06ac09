"""What every known problem must satisfy, whatever it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization
from bipareto.problems import KnownProblem
from problems.cases import (
    CASES,
    MULTI,
    generator,
    normal,
    on_front,
    points_of,
    preference,
    problem,
    start,
)

every = pytest.mark.parametrize("case", CASES)
multi = pytest.mark.parametrize("case", MULTI)
SMOOTH = [case for case in CASES if not case.startswith("merely-convex")]


def lower_gradient(known: KnownProblem, x: Tensor, y: Tensor) -> Tensor:
    return torch.func.grad(lambda v: known.lower(x, v))(y)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def value(known: KnownProblem, form: str, x: Tensor, w: Tensor, mu: float) -> Tensor:
    """The scalarized true objective at x, ideal point zero."""
    return scalarization.get(form).value(
        known.objectives(x), w, torch.zeros(known.m, dtype=torch.float64), number(mu)
    )


@every
def test_front_lies_on_itself_and_is_spread_out(case: str) -> None:
    known = problem(case)
    front = known.front(101)
    assert known.distance_to_front(front).max() <= 1e-12
    assert known.extent > 0
    assert (known.reference > front.amax(0)).all()
    if known.m == 1:
        assert front.shape == (1, 1)
        return
    assert front.shape[0] >= 101
    assert not (front[:, None] < front - 1e-12).all(-1).any(), (
        "a point of the front dominates another"
    )
    if known.m == 2:
        assert (front[:, 0].diff() >= -1e-12).all()
        assert (front[:, 1].diff() <= 1e-12).all()


@every
def test_pareto_points_map_to_the_front_and_back(case: str) -> None:
    known = problem(case)
    t = on_front(known, generator(1), 30)
    x, f = points_of(known, t)
    assert known.distance_to_front(f).max() <= 1e-10
    torch.testing.assert_close(known.coordinates(x), t, rtol=0, atol=1e-10)


@every
def test_nothing_near_or_far_dominates_the_front(case: str) -> None:
    known = problem(case)
    stream = generator(2)
    near = points_of(known, on_front(known, stream, 40))[0]
    near = near + 0.1 * normal(stream, *near.shape)
    far = torch.stack([start(known, seed)[0] for seed in range(40)])
    f = torch.stack([known.objectives(x) for x in torch.cat([near, far])])
    front = known.front(401)
    assert not (f[:, None] < front - 1e-9 * known.extent).all(-1).any()


@every
@pytest.mark.parametrize("seed", range(3))
def test_lower_solution_is_stationary_and_global(case: str, seed: int) -> None:
    known = problem(case)
    x, far = start(known, seed)
    y = known.lower_solution(x)
    assert y.shape == known.y0.shape
    assert lower_gradient(known, x, y).norm() <= 1e-12 * (1 + y.norm() + x.norm())
    best = known.lower(x, y)
    stream = generator(seed)
    for scale in (1e-3, 0.1, 1.0, 4.0):
        assert known.lower(x, y + scale * normal(stream, *y.shape)) >= best - 1e-12
    assert known.lower(x, far) >= best - 1e-12


@pytest.mark.parametrize("case", SMOOTH)
def test_lower_solution_moves_as_the_implicit_function_theorem_says(case: str) -> None:
    known = problem(case)
    x, _ = start(known, 0)
    y = known.lower_solution(x)
    moved = torch.func.jacrev(known.lower_solution)(x)
    across = torch.func.jacrev(torch.func.grad(known.lower, argnums=1), argnums=0)(x, y)
    along = torch.func.hessian(known.lower, argnums=1)(x, y)
    torch.testing.assert_close(along @ moved, -across, rtol=1e-9, atol=1e-9)


@every
def test_gradient_of_the_true_objectives_equals_finite_differences(case: str) -> None:
    known = problem(case)
    x, _ = start(known, 1)
    jacobian = torch.func.jacrev(known.objectives)(x)
    direction = normal(generator(0), *x.shape)
    step = 1e-5
    difference = (
        known.objectives(x + step * direction) - known.objectives(x - step * direction)
    ) / (2 * step)
    torch.testing.assert_close(jacobian @ direction, difference, rtol=1e-6, atol=1e-6)


@settings(max_examples=2)
@pytest.mark.parametrize("form", ["stch", "tchebycheff", "linear"])
@multi
@given(seed=st.integers(0, 2**16), mu=st.sampled_from([0.1, 1.0, 10.0]))
def test_exact_is_the_minimiser(case: str, form: str, seed: int, mu: float) -> None:
    known = problem(case)
    stream = generator(seed)
    w = preference(stream, known.m)
    mu = mu / float(known.front().mean())
    point = known.exact(w, form, torch.zeros(known.m, dtype=torch.float64), mu)
    torch.testing.assert_close(point.objectives, known.objectives(point.x), rtol=0, atol=0)
    torch.testing.assert_close(
        known.coordinates(point.x[None])[0], point.coordinates, rtol=0, atol=1e-9
    )
    assert known.distance_to_front(point.objectives[None]) <= 1e-12

    best = value(known, form, point.x, w, mu)
    least = best - 1e-12 * (1 + best.abs())
    on_grid = scalarization.get(form).value(
        known.front(801), w, torch.zeros(known.m, dtype=torch.float64), number(mu)
    )
    assert on_grid.min() >= least
    for scale in (1e-6, 1e-3, 0.1, 1.0):
        assert value(known, form, point.x + scale * normal(stream, *point.x.shape), w, mu) >= least

    at_a_jump = case == "bistable" and bool(point.x.abs() < 1e-12)
    if form != "tchebycheff" and not at_a_jump:
        slope = torch.func.grad(lambda x: value(known, form, x, w, mu))(point.x)
        assert slope.norm() <= 1e-9 * known.extent


@multi
@given(seed=st.integers(0, 2**16), form=st.sampled_from(["stch", "tchebycheff"]))
@settings(max_examples=2)
def test_a_zero_weight_still_has_an_answer(case: str, seed: int, form: str) -> None:
    known = problem(case)
    w = preference(generator(seed), known.m)
    w[seed % known.m] = 0
    point = known.exact(w / w.sum(), form, torch.zeros(known.m, dtype=torch.float64), 1.0)
    assert known.distance_to_front(point.objectives[None]) <= 1e-10


@multi
def test_sharp_smoothing_approaches_tchebycheff(case: str) -> None:
    known = problem(case)
    w, z = preference(generator(5), known.m), torch.zeros(known.m, dtype=torch.float64)
    sharp = known.exact(w, "stch", z, 1e6 / known.extent).objectives
    torch.testing.assert_close(
        sharp, known.exact(w, "tchebycheff", z, 1.0).objectives, rtol=0, atol=1e-4 * known.extent
    )


@multi
@given(seed=st.integers(0, 2**16))
@settings(max_examples=2)
def test_distance_agrees_with_brute_force(case: str, seed: int) -> None:
    known = problem(case)
    stream = generator(seed)
    base = points_of(known, on_front(known, stream, 6))[1]
    rows = torch.cat(
        [base + scale * known.extent * normal(stream, *base.shape) for scale in (1e-3, 0.1, 1.0)]
    )
    found = known.distance_to_front(rows)
    samples = known.front(4001 if known.m == 2 else 8000)
    brute = (
        torch.cdist(rows, samples, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        / known.extent
    )
    assert (found <= brute + 1e-12).all()
    # A sample lies within half the spacing of the nearest point, more for lattices of two and three
    # dimensions.
    assert (brute - found <= {2: 1e-3, 3: 2e-2, 4: 6e-2}[known.m]).all()


@multi
def test_small_steps_off_the_front_are_measured_exactly(case: str) -> None:
    """Along the normal of the front, away from its ends, the distance is the length of the step."""
    known = problem(case)
    t = torch.full((1, known.m - 1), 1 / known.m, dtype=torch.float64)
    if known.m == 2:
        t[:] = sum(known.geometry.intervals[0]) / 2
    f = points_of(known, t)[1]
    tangents = torch.func.jacrev(lambda s: known.objectives(known.pareto_point(s)))(t[0])
    normal_to = torch.linalg.svd(tangents).U[:, -1]
    for length in (1e-9, 1e-5, 1e-3):
        moved = f + length * known.extent * torch.stack([normal_to, -normal_to])
        torch.testing.assert_close(
            known.distance_to_front(moved),
            torch.full((2,), length, dtype=torch.float64),
            rtol=1e-6,
            atol=1e-14,
        )


@every
def test_diverged_rows_have_no_finite_distance(case: str) -> None:
    known = problem(case)
    rows = known.front(2)[:1].repeat(3, 1)
    rows[0, 0], rows[1, 0] = torch.inf, torch.nan
    distance = known.distance_to_front(rows.float())
    assert not distance[:2].isfinite().any()
    assert distance[2] <= 1e-6
    with pytest.raises(InvalidInput, match=r"shape \(\d+,\); pass one row per run"):
        known.distance_to_front(rows[0])


def in_region(case: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Moved to where the problem states its constants."""
    if case.startswith("ds1"):
        return torch.cat([1 + 3 * x[:1].sigmoid(), x[1:]]), y.shape[0] * y.tanh()
    if case.startswith("ridge"):
        return -x.abs(), y / y.norm()
    return (x, 2 * y.tanh()) if case == "bistable" else (x, y)


@every
def test_constants_bound_sampled_hessians(case: str) -> None:
    known = problem(case)
    L_g, L_f, rho_y = known.constants
    stream, size = generator(3), known.x0.numel()

    def joint(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda v: function(
            v[:size].reshape(known.x0.shape), v[size:].reshape(known.y0.shape)
        )

    for scale in (0.1, 1.0, 3.0):
        x, y = in_region(
            case, scale * normal(stream, *known.x0.shape), scale * normal(stream, *known.y0.shape)
        )
        both = torch.cat([x.flatten(), y.flatten()])
        g, f = (
            torch.func.hessian(joint(function))(both) for function in (known.lower, known.upper)
        )
        assert torch.linalg.matrix_norm(g, 2) <= L_g * (1 + 1e-12)
        assert torch.linalg.matrix_norm(f, 2).max() <= L_f * (1 + 1e-12)
        assert torch.linalg.eigvalsh(g[size:, size:])[0] >= -rho_y - 1e-12
    assert known.constants.gamma_max == (1 / (2 * rho_y) if rho_y else float("inf"))


@every
def test_evaluations_batch_and_objectives_are_positive(case: str) -> None:
    known = problem(case)
    assert known.check(known.x0, known.y0) == known.m
    x, y = (
        torch.stack(rows) for rows in zip(*(start(known, seed) for seed in range(5)), strict=True)
    )
    f, g = torch.func.vmap(known.upper)(x, y), torch.func.vmap(known.lower)(x, y)
    torch.testing.assert_close(
        f, torch.stack([known.upper(*row) for row in zip(x, y, strict=True)])
    )
    torch.testing.assert_close(
        g, torch.stack([known.lower(*row) for row in zip(x, y, strict=True)])
    )
    assert (f >= 0).all()
    assert (known.front() >= 0).all()


@every
def test_starts_are_seeded(case: str) -> None:
    known = problem(case)
    assert all(torch.equal(a, b) for a, b in zip(known.start(3), known.start(3), strict=True))
    assert not torch.equal(known.start(3)[0], known.start(4)[0])


@every
def test_solution_takes_the_tuned_question(case: str) -> None:
    known = problem(case)
    w = torch.stack([preference(generator(seed), known.m) for seed in range(2)])
    x = torch.stack([known.solution(row).x for row in w])
    assert known.position_error(x, w).max() <= 1e-9
    if known.m > 1:
        assert known.position_error(x.flip(0), w).max() > 1e-3
        asked = known.solution(w[0], scalarization="linear", ideal=[0.0] * known.m, mu=2)
        assert torch.equal(
            asked.x, known.exact(w[0], "linear", torch.zeros(known.m, dtype=torch.float64), 2.0).x
        )
        tuned = bp.MOMEHA.tuned(known, known.x0, known.y0, steps=100)
        assert torch.equal(
            x[0], known.solution(w[0], mu=tuned.mu, ideal=tuned.ideal, extent=tuned.extent).x
        )


@pytest.mark.parametrize("noise", [0.0, 0.3])
@every
def test_pickling_keeps_everything(case: str, noise: float) -> None:
    known = type(problem(case))(**CASES[case][1], noise=noise)
    copy = pickle.loads(pickle.dumps(known))
    assert torch.equal(copy.front(), known.front())
    x, y = known.start(0)
    assert torch.equal(
        copy.upper(x, y, copy.batch("upper", "full")),
        known.upper(x, y, known.batch("upper", "full")),
    )
    assert copy.noise == noise
