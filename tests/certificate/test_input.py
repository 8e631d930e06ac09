"""Forms of input, and what is refused or warned of."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import certify
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from certificate.points import numbers, quietly
from helpers import DICT_PROBLEM, DOUBLE, dict_start

# --- forms of input


def test_trees_modules_and_single_precision() -> None:
    x, y = dict_start()
    found = quietly(DICT_PROBLEM, x, y)
    flat = quietly(
        DICT_PROBLEM,
        tree.map_(lambda leaf: leaf.float(), x),
        tree.map_(lambda leaf: leaf.float(), y),
    )
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
    found = certify(
        problem,
        x,
        problem.lower_solution(x) + 1e-3,
        gamma=0.5,
        preference=[0.5, 0.5],
        mu=1.0,
        c=2.0,
    )
    text = str(found)
    for word in (
        "lower level",
        "minimum",
        "gap",
        "kkt",
        "lambda",
        "stationarity",
        "paper's",
        "gradient evaluations",
    ):
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
    with pytest.warns(
        BiparetoWarning,
        match=r"gamma = 0\.6 is not below 1/\(2 rho_y\): .* eigenvalue -1 .* < 0\.5",
    ):
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
        certify(
            problem, x, problem.lower_solution(x), preference=[0.5, 0.5], mu=1.0, ideal=1e6, c=1.0
        )


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
    kinked = bp.Problem(
        lambda x, y: torch.stack([(x - y).square().sum()]),
        lambda x, y: y.abs().sum() + 0.5 * (y - x).square().sum(),
    )
    with pytest.warns(BiparetoWarning, match="does not look twice differentiable"):
        certify(kinked, torch.zeros(3, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE))


def test_a_budget_too_small_for_anything_is_refused() -> None:
    problem = bp.problems.get("quadratic")
    with pytest.raises(InvalidInput, match="budget = 10"):
        certify(problem, problem.x0, problem.y0, budget=10)
