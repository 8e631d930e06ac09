"""Other people's functions: runs in fitted coordinates do not depend on units, offsets, starts and
precision.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bipareto as bp
from bipareto.certificate.remaining import remaining
from bipareto.errors import BiparetoWarning
from foreign.problems import CASES, _random_quadratic, coverage, distance

#: steps that are enough for a front of a small problem to settle
STEPS = 250
LOGS = st.floats(-3.0, 3.0)
#: in units of the front's extent, what may change with units, offsets, starts or precision
SAME = 0.02


def nonlinear() -> bp.Problem:
    """A lower level that is not quadratic, y* = sinh(x)/2 per coordinate, not separable."""

    def upper(x: Tensor, y: Tensor) -> Tensor:
        near = (y - 0.5).square().sum() + 0.1 * x.square().sum()
        far = (y + 0.3 * x.sum() + 1).square().sum() + 0.2 * (x[0] - x[1]).square()
        return torch.stack([near, far])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        r = torch.asinh(2 * y) - x
        return r.square().sum() + 0.5 * (r[0] - r[1]).square()

    return bp.Problem(upper=upper, lower=lower)


def front(problem: bp.Problem, x0: Any, y0: Any, steps: int = STEPS) -> Tensor:
    """Objectives (3, m) of `MOMEHA.tuned` with the lower level solved."""
    weights = bp.preferences.covering(2)[[0, 5, 10]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        method = bp.MOMEHA.tuned(problem, x0, y0, steps=steps)
        found = bp.front(
            problem, x0, y0, preferences=weights, method=method, steps=steps, compile=False
        )
        return found.resolve_lower().objectives.double()


START = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)


@pytest.fixture(scope="module")
def plain() -> Tensor:
    return front(nonlinear(), *START)


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference of two fronts, in units of the first one's extent."""
    return float(((a - b) / (a.amax(0) - a.amin(0))).abs().max())


@pytest.mark.slow
@settings(max_examples=2)
@given(st.tuples(LOGS, LOGS), st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)))
def test_units_and_offsets_of_objectives(
    plain: Tensor, logs: tuple[float, float], offsets: tuple[float, float]
) -> None:
    a, b = 10 ** torch.tensor(logs).double(), torch.tensor(offsets).double()
    problem = nonlinear()
    changed = bp.Problem(lambda x, y: a * problem.upper(x, y) + b, problem.lower)
    assert apart(plain, (front(changed, *START) - b) / a) < SAME


@pytest.mark.slow
@settings(max_examples=2)
@given(st.tuples(LOGS, LOGS), st.tuples(LOGS, LOGS), st.floats(-8.0, 8.0))
def test_units_of_x_of_y_and_of_g(
    plain: Tensor, x_logs: tuple[float, float], y_logs: tuple[float, float], g_log: float
) -> None:
    D, E = (10 ** torch.tensor(logs).double() for logs in (x_logs, y_logs))
    problem = nonlinear()
    changed = bp.Problem(
        lambda x, y: problem.upper(x / D, y / E),
        lambda x, y: 10**g_log * problem.lower(x / D, y / E),
    )
    assert apart(plain, front(changed, *START)) < SAME


@pytest.mark.slow
@settings(max_examples=2)
@given(st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)))
def test_another_start_in_the_same_basin(plain: Tensor, start: tuple[float, float]) -> None:
    x = torch.tensor(start, dtype=torch.float64)
    assert apart(plain, front(nonlinear(), x, 0.5 * x)) < SAME


@pytest.mark.slow
def test_single_precision(plain: Tensor) -> None:
    assert apart(plain, front(nonlinear(), *(p.float() for p in START))) < SAME


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_readme_s_problem_in_both_precisions(dtype: torch.dtype) -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        first = (x - 1).square().sum() + y.square().sum()
        return torch.stack([first, x.square().sum() + (y - 2).square().sum()])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return ((y - x).square() / 2 + 1.5 * torch.sin(y - x).square()).sum()

    # y* = x, and per coordinate the front is ((x - 1)^2 + x^2, x^2 + (x - 2)^2) over [1/2, 1].
    t = torch.linspace(0.5, 1, 4001, dtype=torch.float64)
    truth = 10 * torch.stack([(t - 1) ** 2 + t**2, t**2 + (t - 2) ** 2], 1)
    x0, y0 = torch.zeros(2, 10, dtype=dtype)
    found = front(bp.Problem(upper=upper, lower=lower), x0, y0, steps=1000)
    assert float(distance(found, truth).max()) < 1e-3
    assert float(coverage(found, truth).min()) > 0.95


def test_what_is_left_to_gain_is_the_distance_to_the_front() -> None:
    case = _random_quadratic(3, 4, 2, 8, condition=1e3)
    extent = case.truth.amax(0) - case.truth.amin(0)
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=stream, dtype=torch.float64)
    y = torch.randn(6, 4, generator=stream, dtype=torch.float64)
    left = remaining(case.problem, x, y, extent)
    off = distance(torch.stack([case.reduced(row) for row in x]), case.truth)
    assert float(off.min()) > 0.05
    # It was reached, so it cannot exceed the distance; four Newton steps find most of it.
    assert bool((left <= off + 1e-6).all())
    assert bool((left >= 0.5 * off).all())
    # The same in other units of x and of the objectives.
    unit, scale = torch.tensor([1e3, 1.0, 1e-3]).double(), torch.tensor([1e4, 1e-4]).double()
    changed = bp.Problem(
        lambda x, y: scale * case.problem.upper(x / unit, y),
        lambda x, y: case.problem.lower(x / unit, y),
    )
    torch.testing.assert_close(
        remaining(changed, x * unit, y, extent * scale), left, rtol=1e-3, atol=1e-6
    )


def test_at_the_front_nothing_is_left() -> None:
    case = _random_quadratic(3, 4, 2, 9)
    method = bp.MOMEHA.tuned(case.problem, case.x0, case.y0, steps=400)
    found = bp.front(case.problem, case.x0, case.y0, method=method, steps=400, compile=False)
    assert found.remaining is not None
    assert float(found.remaining.max()) < 1e-3


def test_objectives_that_agree_are_said_to() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        loss = (x - 1).square().sum() + (y - 1).square().sum()
        return torch.stack([loss, 3 * loss])

    zero = torch.zeros(2, dtype=torch.float64)
    problem = bp.Problem(upper, lambda x, y: (y - x).square().sum())
    method = bp.MOMEHA.tuned(problem, zero, zero, steps=STEPS)
    with pytest.warns(BiparetoWarning, match="all preferences end at one point"):
        bp.front(problem, zero, zero, method=method, steps=STEPS, compile=False)


@pytest.mark.parametrize(
    "name", ["units_of_x", "one_dimension", "three_objectives", "concave_front", "many_minima"]
)
def test_truths_are_fronts(name: str) -> None:
    """No point of a truth dominates another, and `reduced` is f at a lower stationary point."""
    case = CASES[name]()
    some = case.truth[:: max(len(case.truth) // 200, 1)]
    better = (some[:, None] <= some[None] - 1e-9).all(-1)
    assert not bool(better.any())
    assert float(distance(some, case.truth).max()) == 0
