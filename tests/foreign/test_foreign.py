"""Other people's functions: the default call does not depend on units, offsets, starts and
precision, and says what is wrong with a problem.
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
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.run.arrival import arrival
from foreign.problems import CASES, _random_quadratic, coverage, distance

#: steps that are enough for a front of a small problem to settle, and from anywhere
STEPS, FAR = 120, 1000
LOGS = st.floats(-3.0, 3.0)
PAIR = st.tuples(LOGS, LOGS)
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
    """Objectives (3, m) of the default call with the lower level solved."""
    weights = bp.preferences.covering(2)[[0, 5, 10]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        found = bp.front(problem, x0, y0, preferences=weights, steps=steps, compile=False)
        return found.resolve_lower().objectives.double()


START = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)


@pytest.fixture(scope="module")
def plain() -> Tensor:
    return front(nonlinear(), *START)


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference of two fronts, in units of the first one's extent."""
    return float(((a - b) / (a.amax(0) - a.amin(0))).abs().max())


def _in_other_units(plain: Tensor, a: Any, b: Any, D: Any, E: Any, s: float) -> None:
    """a f + b, D x, E y and s g in place of f, x, y and g; a, D, E and s are logarithms."""
    a, D, E = (10 ** torch.tensor(logs, dtype=torch.float64) for logs in (a, D, E))
    b = torch.tensor(b, dtype=torch.float64)
    problem = nonlinear()
    changed = bp.Problem(
        lambda x, y: a * problem.upper(x / D, y / E) + b,
        lambda x, y: 10**s * problem.lower(x / D, y / E),
    )
    assert apart(plain, (front(changed, *START) - b) / a) < SAME


OFFSETS = st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))


@settings(max_examples=1)
@given(PAIR, OFFSETS, PAIR, PAIR, st.floats(-8.0, 8.0))
def test_units_and_offsets(plain: Tensor, a: Any, b: Any, D: Any, E: Any, s: float) -> None:
    _in_other_units(plain, a, b, D, E, s)


@pytest.mark.slow
@settings(max_examples=25)
@given(PAIR, OFFSETS, PAIR, PAIR, st.floats(-8.0, 8.0))
def test_many_units_and_offsets(plain: Tensor, a: Any, b: Any, D: Any, E: Any, s: float) -> None:
    _in_other_units(plain, a, b, D, E, s)


@pytest.mark.parametrize("start", [(-2.0, 1.0)])
def test_another_start_in_the_same_basin(plain: Tensor, start: tuple[float, float]) -> None:
    x = torch.tensor(start, dtype=torch.float64)
    assert apart(plain, front(nonlinear(), x, 0.5 * x, FAR)) < SAME


@pytest.mark.slow
@settings(max_examples=15)
@given(st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)))
def test_many_starts_in_the_same_basin(plain: Tensor, start: tuple[float, float]) -> None:
    x = torch.tensor(start, dtype=torch.float64)
    assert apart(plain, front(nonlinear(), x, 0.5 * x, FAR)) < SAME


def test_single_precision(plain: Tensor) -> None:
    assert apart(plain, front(nonlinear(), *(p.float() for p in START))) < SAME


def test_the_readme_s_problem_in_both_precisions() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        first = (x - 1).square().sum() + y.square().sum()
        return torch.stack([first, x.square().sum() + (y - 2).square().sum()])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return ((y - x).square() / 2 + 1.5 * torch.sin(y - x).square()).sum()

    # y* = x, and per coordinate the front is ((x - 1)^2 + x^2, x^2 + (x - 2)^2) over [1/2, 1].
    t = torch.linspace(0.5, 1, 4001, dtype=torch.float64)
    truth = 10 * torch.stack([(t - 1) ** 2 + t**2, t**2 + (t - 2) ** 2], 1)
    problem = bp.Problem(upper=upper, lower=lower)
    single, double = (
        front(problem, *torch.zeros(2, 10, dtype=dtype)) for dtype in (torch.float32, torch.float64)
    )
    assert apart(double, single) < 1e-3
    assert float(distance(double, truth).max()) < 1e-3
    assert float(coverage(double, truth).min()) > 0.95


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
    weights = bp.preferences.covering(2)[[0, 5, 10]]
    found = bp.front(
        case.problem, case.x0, case.y0, preferences=weights, steps=STEPS, compile=False
    )
    assert found.remaining is not None
    assert float(found.remaining.max()) < 1e-3
    assert found[2].remaining == float(found.remaining[2])


def test_a_run_that_is_too_short_says_so_and_how_many_steps_it_needs() -> None:
    case = CASES["far_start"]()
    with pytest.warns(
        BiparetoWarning, match=r"not converged: .* about [\d,]+ steps would be"
    ) as seen:
        answer = bp.solve(case.problem, case.x0, case.y0, steps=16, record_every=1)
    assert answer.remaining is not None
    assert answer.remaining > 0.01
    assert len([w for w in seen if "not converged" in str(w.message)]) == 1
    (diagnosis,) = bp.diagnose(answer)
    assert diagnosis.name == "not-converged"
    assert "steps would be needed" in diagnosis.remedy


def said(upper: Any, lower: Any, steps: int = 60) -> tuple[bp.ParetoFront, str]:
    """A front of the default call from (0.1, 0.2), and all that was said."""
    start = torch.full((2,), 0.1, dtype=torch.float64), torch.full((2,), 0.2, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        found = bp.front(bp.Problem(upper, lower), *start, steps=steps, compile=False)
    return found, "\n".join(str(w.message) for w in caught)


def near(x: Tensor, y: Tensor) -> Tensor:
    return (y - x).square().sum()


def pair(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(x - 1).square().sum() + y.square().sum(), (y + 1).square().sum()])


def test_objectives_that_agree_are_said_to() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        loss = (x - 1).square().sum() + (y - 1).square().sum()
        return torch.stack([loss, 3 * loss])

    assert "end at one point: the objectives do not conflict" in said(upper, near, STEPS)[1]


@pytest.mark.parametrize(
    ("upper", "lower", "words"),
    [
        (
            lambda x, y: torch.stack([0 * x.sum() + 1, y.square().sum()]),
            near,
            "objective 0 depends",
        ),
        (pair, lambda x, y: 0 * y.sum(), "lower does not depend on y"),
        (
            lambda x, y: torch.stack([(y - 1).square().sum(), (y + 1).square().sum()]),
            lambda x, y: y.square().sum(),
            "depends on x",
        ),
    ],
)
def test_what_leaves_nothing_to_choose_is_refused(upper: Any, lower: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        said(upper, lower)


@pytest.mark.parametrize("lower", [lambda x, y: -near(x, y), lambda x, y: (y * (1 + x * x)).sum()])
def test_a_lower_level_without_a_minimum_is_named(lower: Any) -> None:
    assert "lower has no minimum in y" in said(pair, lower)[1]


def test_an_objective_that_is_undefined_somewhere_harms_no_other_run() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(x - 1).square().sum() + y.square().sum(), torch.sqrt(x + 0.3).sum()])

    found, words = said(upper, near, 150)
    failed = [failure is not None for failure in found.failure]
    assert "left the finite numbers" in words
    assert 0 < sum(failed) < len(found)
    # f_2 falls with x: what is left of the front is x between its edge and f_1's minimum, 1/2.
    good = found.subset(torch.tensor(failed).logical_not()).resolve_lower()
    x = torch.linspace(-0.3, 0.5, 2001, dtype=torch.float64)
    truth = torch.stack([2 * (x - 1) ** 2 + 2 * x**2, 2 * (x + 0.3).sqrt()], 1)
    assert float(distance(good.objectives, truth).max()) < 0.02


def test_a_lower_level_without_curvature_is_named() -> None:
    case = CASES["quartic_valley"]()
    with pytest.warns(BiparetoWarning, match="g has no curvature at"):
        bp.front(case.problem, case.x0, case.y0, steps=20, compile=False)


def test_answers_in_another_basin_are_named() -> None:
    # f_2 = (x^2 - 1)^2 + (x - 1)^2/10 has a second, higher valley; f_1 is least at 0.2.
    def upper(x: Tensor, y: Tensor) -> Tensor:
        wells = (x * x - 1).square() + 0.1 * (x - 1).square()
        return torch.stack([(y - 0.2).square().sum(), wells.sum()])

    # f_2' = (x - 1)(4 x (x + 1) + 1/5) vanishes there.
    valley = -(1 + 0.8**0.5) / 2
    x = torch.tensor([[0.2], [0.6], [1.0], [valley]], dtype=torch.float64)
    seen = arrival(bp.Problem(upper, near), None, x, x.clone(), [None] * 4)
    assert seen.remaining is not None
    assert float(seen.remaining.max()) < 1e-6
    (sentence,) = seen.said
    assert sentence.startswith("1 of 4 answers are dominated by another of these runs")
    assert "another basin" in sentence
    # A trained y is judged as it is returned: it may be better than the lower solution, or worse.
    problem = bp.Problem(upper, near)
    (sentence,) = arrival(problem, None, x, x.clone(), [None] * 4, trained=True).said
    assert sentence.startswith("1 of 4 answers are dominated")
    assert "basin" not in sentence
    y = torch.tensor([[0.2], [0.3], [1.0], [0.4]], dtype=torch.float64)
    assert not arrival(problem, None, x, y, [None] * 4, trained=True).said


def test_runs_that_still_fall_are_in_no_other_basin() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(y - 1).square().sum(), (y + 1).square().sum()])

    x = torch.tensor([[0.5], [4.0], [5.0]], dtype=torch.float64)
    (sentence,) = arrival(bp.Problem(upper, near), None, x, x.clone(), [None] * 3).said
    assert sentence.startswith("2 of 3 runs have not converged")


def test_what_single_precision_cannot_tell_is_named() -> None:
    """A lower level of condition 1e6, turned: two runs far from the front, in both precisions."""
    H = torch.tensor([[1.0, 1.0], [1.0, 1.0]]) / 2 + 1e-6 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return (y - x) @ (H.double() @ (y - x).double()).to(y)

    x = torch.tensor([[5.0, 5.0], [6.0, 6.0]])
    for dtype, count in ((torch.float32, 1), (torch.float64, 0)):
        at = x.to(dtype)
        said = arrival(bp.Problem(pair, lower), None, at, at.clone(), [None] * 2).said
        assert "2 of 2 runs have not converged" in said[0]
        assert [one.startswith("float32 cannot tell") for one in said[1:]] == [True] * count


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
