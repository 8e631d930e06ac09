"""Measures against what can be said by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts import measures

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6)


@given(POINTS, POINTS)
def test_more_points_never_lower_the_hypervolume(
    a: list[tuple[float, float]], b: list[tuple[float, float]]
) -> None:
    assert measures.hypervolume(a + b, [1.0, 1.0]) >= measures.hypervolume(a, [1.0, 1.0]) - 1e-12


@given(POINTS)
def test_a_front_has_no_distance_to_itself(points: list[tuple[float, float]]) -> None:
    assert measures.igd_plus(points, points) == 0


def test_points_that_are_not_finite_do_not_count() -> None:
    points = [[0.5, 0.5], [math.nan, 0.0], [0.0, -math.inf]]
    with pytest.warns(BiparetoWarning, match="2 of 3 rows hold NaN or infinity"):
        assert measures.hypervolume(points, [1.0, 1.0]) == 0.25
    assert measures.spread(points) == 0
    with pytest.warns(BiparetoWarning, match="2 of 2 rows hold NaN or infinity"):
        assert measures.hypervolume(points[1:], [1.0, 1.0]) == 0
    assert measures.igd_plus(points[1:], [[0.0, 0.0]]) == math.inf
    assert measures.spread(points[1:]) == 0


def test_wrong_shapes_are_named() -> None:
    for target in ([[0.0, 1.0, 2.0]], [[math.nan, 1.0]], torch.zeros(0, 2)):
        with pytest.raises(InvalidInput, match="pass finite points of the exact front"):
            measures.igd_plus([[0.0, 1.0]], target)
    with pytest.raises(InvalidInput, match="finite numbers"):
        measures.hypervolume([[0.0, 1.0]], [1.0, math.inf])
    with pytest.raises(InvalidInput, match=r"seed has shape \(1,\)"):
        measures.attainment(torch.zeros(2, 2), [0])
    with pytest.raises(InvalidInput, match=r"preference has shape \(1, 2\)"):
        measures.response(torch.zeros(2, 2), torch.zeros(1, 2))
    for levels in ([0, 101], [-1], 50.0):
        with pytest.raises(InvalidInput, match="numbers from 0 to 100"):
            measures.attainment(torch.zeros(2, 2), [0, 1], levels)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"reference has shape \(3,\)"):
        measures.hypervolume([[0.0, 1.0]], [1.0, 1.0, 1.0])
    with pytest.raises(InvalidInput, match=r"objectives has shape \(2,\)"):
        measures.spread([0.0, 1.0])
    with pytest.raises(InvalidInput, match="2 and 3 objectives"):
        measures.attainment(torch.zeros(2, 4), [0, 1])


def test_response_has_the_standard_error_of_the_textbook() -> None:
    w = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    noise = torch.randn(9, dtype=torch.float64)
    f = torch.stack([1 - 2 * w + 0.1 * noise, w], 1)
    found = measures.response(f, torch.stack([w, 1 - w], 1))
    design = np.stack([np.ones(9), w.numpy()], 1)
    fit, squares, *_ = np.linalg.lstsq(design, f[:, 0].numpy(), rcond=None)
    error = np.sqrt(squares[0] / 7 * np.linalg.inv(design.T @ design)[1, 1])
    assert found.slope[0] == pytest.approx(fit[1])
    assert found.standard_error[0] == pytest.approx(error)
    assert found.slope[1] == pytest.approx(-1)


def test_response_over_seeds() -> None:
    w = torch.tensor([[0.2, 0.8], [0.8, 0.2]] * 2, dtype=torch.float64)
    f = w * torch.tensor([-1.0, -1.0, -3.0, -3.0], dtype=torch.float64)[:, None]
    found = measures.response(f, w, [0, 0, 1, 1])
    assert found.slope == pytest.approx([-2, -2])
    assert found.standard_error == pytest.approx([1, 1])


def test_attainment_by_any_and_by_all() -> None:
    points = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]
    found = measures.attainment(points, [0, 0, 1], (0, 100))
    assert sorted(found[0]) == [[0.0, 1.0], [1.0, 0.0]]
    assert found[100] == [[2.0, 2.0]]
    # Runs in any order, and those that are not finite left out; any, half and all if not asked.
    points = [[2.0, 2.0], [0.0, 1.0], [math.nan, -9.0], [1.0, 0.0]]
    again = measures.attainment(points, [1, 0, 0, 0])
    assert list(again) == [0, 50, 100]
    assert sorted(again[0]) == sorted(again[50]) == sorted(found[0])
    assert again[100] == found[100]
    solid = measures.attainment([[0.0, 1.0, 2.0]], [0], (50,))
    assert solid == {50: [[0.0, 1.0, 2.0]]}


def test_a_slope_needs_points_that_tell() -> None:
    """Two points have a slope and no error of it, one or equal weights have none."""
    w = torch.tensor([[0.2, 0.8], [0.8, 0.2]], dtype=torch.float64)
    two = measures.response(3 * w, w)
    assert two.slope == pytest.approx([3, 3])
    assert all(map(math.isnan, two.standard_error))
    assert all(map(math.isnan, measures.response(w[:1], w[:1]).slope))
    assert all(map(math.isnan, measures.response(w, torch.full_like(w, 0.5)).slope))
    # A run that is not finite does not count.
    bad = torch.cat([3 * w, torch.tensor([[math.inf, 0.0]], dtype=torch.float64)])
    assert measures.response(bad, torch.cat([w, w[:1]])).slope == pytest.approx([3, 3])


def test_what_is_measured_depends_on_what_there_is() -> None:
    class Front:
        objectives = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        preference = torch.full((2, 2), torch.nan)
        seed = torch.tensor([3, 3])
        lower_residual = None

    front = Front()
    found = measures.measure(front, [2.0, 2.0])
    assert found == {
        "reference": [2.0, 2.0],
        "lower_level": "as returned",
        "hypervolume": 3.0,
        "hypervolume_by_seed": {3: 3.0},
        "spread": pytest.approx(math.sqrt(2)),
        "response": None,
    }
    front.seed = torch.tensor([0, 1])
    front.preference = torch.tensor([[0.4, 0.6], [0.6, 0.4]])
    target = torch.tensor([[0.0, 0.0]])
    found = measures.measure(front, [2.0, 2.0], target)
    assert found["hypervolume_by_seed"] == {0: 2.0, 1: 2.0}
    assert (found["igd_plus"], found["target_points"]) == (1.0, 1)
    assert found["response"]["slope"] == [None, None]
    assert sorted(found["attainment"][0]) == front.objectives.tolist()


def test_a_front_is_measured_with_its_reference() -> None:
    problem = bp.problems.get("quadratic", dim=2)
    method, weights = (
        bp.MOMEHA(alpha_x=0.1, alpha_y=0.1, alpha_theta=0.1),
        bp.preferences.grid(2, 5),
    )
    front = bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences=weights,
        seeds=[0, 1],
        method=method,
        steps=200,
        compile=False,
    )
    solved = front.resolve_lower()
    found = measures.measure(solved, problem.reference, problem.front())
    assert found["reference"] == problem.reference.tolist()
    assert found["lower_level"] == "solved"
    assert found["hypervolume"] == pytest.approx(solved.hypervolume(problem.reference))
    assert all(slope < 0 for slope in found["response"]["slope"])
    assert found["attainment"].keys() == {0, 50, 100}
    assert measures.measure(front, problem.reference)["lower_level"] == "as returned"


class TestOptimality:
    def test_masks_are_those_of_the_definitions(self) -> None:
        for seed in range(5):
            points = torch.randint(0, 4, (12, 3), generator=torch.Generator().manual_seed(seed))
            strong, weak = bp.pareto_optimal(points), bp.weakly_pareto_optimal(points)
            for i, row in enumerate(points):
                dominated = any(bool((p <= row).all() and (p < row).any()) for p in points)
                beaten = any(bool((p < row).all()) for p in points)
                assert bool(strong[i]) is not dominated
                assert bool(weak[i]) is not beaten
            assert bool((weak | ~strong).all())

    def test_they_may_be_asked_among_other_points(self) -> None:
        assert bp.weakly_pareto_optimal([[1.0, 1.0]], among=[[0.0, 1.0]]).tolist() == [True]
        assert bp.pareto_optimal([[1.0, 1.0]], among=[[0.0, 1.0]]).tolist() == [False]
        assert bp.weakly_pareto_optimal([[1.0, 1.0]], among=[[0.0, 0.5]]).tolist() == [False]
        with pytest.raises(InvalidInput, match="among has 3 objectives"):
            bp.pareto_optimal([[1.0, 1.0]], among=[[0.0, 0.5, 1.0]])

    def test_what_is_not_finite_neither_is_optimal_nor_dominates(self) -> None:
        rows = [[math.nan, 0.0], [-math.inf, -1.0], [1.0, 1.0]]
        assert bp.pareto_optimal(rows).tolist() == [False, False, True]
        assert bp.weakly_pareto_optimal(rows).tolist() == [False, False, True]


def test_runs_with_half_a_preference_tell_no_response() -> None:
    w = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.8, 0.2], [0.3, float("nan")]])
    f = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.2, 0.8], [9.0, 9.0]])
    assert measures.response(f, w).slope == pytest.approx([-1.0, -1.0])


@pytest.mark.parametrize("m", [2, 3, 4])
def test_all_measures_of_a_front_are_those_of_its_objectives(m: int) -> None:
    w = bp.preferences.random(m, 8, seed=1)
    f, seed = 1 - w**2, torch.tensor([0, 1] * 4)
    front: Any = SimpleNamespace(objectives=f, preference=w, seed=seed, lower_residual=None)
    found = measures.measure(front, [2.0] * m)
    wanted = measures.response(f, w, seed)
    assert found["response"]["slope"] == pytest.approx(wanted.slope)
    assert found["response"]["standard_error"] == pytest.approx(wanted.standard_error)
    assert ("attainment" in found) is (m < 4)
    assert found["hypervolume"] == pytest.approx(measures.hypervolume(f, [2.0] * m))
    one = measures.hypervolume(f[seed == 1], [2.0] * m)
    assert found["hypervolume_by_seed"][1] == pytest.approx(one)
