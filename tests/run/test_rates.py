"""The measures of benchmarks/rates.py can fail: a run that does not improve fails every line that
promises improvement.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import bipareto as bp
from bipareto.methods.parts.schedule import Constant, Power
from bipareto.methods.theory.constants import Order, momeha_orders, stochastic_orders
from bipareto.problem import tree
from helpers import DOUBLE

T = torch.logspace(0, 5, 201, dtype=DOUBLE)
ORDERS = [
    momeha_orders(0.0)[1],
    *momeha_orders(0.25),
    *stochastic_orders(3 / 8, 1 / 16),
    stochastic_orders(3 / 8 + 0.05, 0.0)[1],
]


@pytest.fixture(scope="module")
def rates() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        return importlib.import_module("rates")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_frozen_run_fails_and_one_of_the_order_s_power_passes(
    rates: ModuleType, order: Order
) -> None:
    frozen = rates.judge(T, torch.full((len(T), 2), 0.7, dtype=DOUBLE), order)
    assert not frozen["holds"]
    assert not frozen["falls"]
    exact = rates.judge(T, 3 * T[:, None] ** -(order.power + 1e-6), order)
    assert exact["holds"]
    # the order with its logarithm keeps the bound, but is no evidence that the power is reached
    assert rates.judge(T, order(T.clamp_min(2))[:, None], order)["bound"]


def test_a_bound_is_exceeded_by_what_rises_after_the_first_decade(rates: ModuleType) -> None:
    values = torch.where(T > 1000, 2.0, 1.0)[:, None]
    assert not rates.judge(T, values, Order(0.0))["holds"]
    assert rates.judge(T, torch.ones(len(T), 1, dtype=DOUBLE), Order(0.0))["holds"]


@pytest.mark.parametrize("growing", [True, False])
def test_theorem_1_s_lemma_holds_of_a_run_and_not_of_one_that_stands_still(
    rates: ModuleType, growing: bool
) -> None:
    problem = bp.problems.get("quadratic", dim=3)
    method = bp.MOMEHA.admissible(
        problem,
        problem.x0,
        problem.y0,
        constants=problem.constants,
        c=Power(1.0, 0.25) if growing else Constant(1.0),
    )
    states = rates.iterates(problem, method, 40)
    assert rates.descent(problem, method, states)["holds"]
    first = tree.select(states, 0)
    still = tree.stack([first._replace(t=t) for t in states.t])
    assert not rates.descent(problem, method, still)["holds"]


def test_theorem_2_s_lemma_fails_for_runs_that_stand_still(rates: ModuleType) -> None:
    problem = bp.problems.get("quadratic", dim=3, noise=rates.SMALL_NOISE)
    method = bp.MBMOMEHA.admissible(
        problem, problem.x0, problem.y0, constants=problem.constants, delta=None
    )
    first = tree.stack([method.init(problem, problem.x0, problem.y0)] * 4)
    still = [first._replace(t=first.t + t) for t in range(40)]
    assert not rates.noisy_merit(problem, method, still)["holds"]


def test_values_of_batches_bias_the_direction_and_exact_weights_do_not(rates: ModuleType) -> None:
    """Assumption 4: weights from drawn values have a bias that falls as 1/batch, exact ones no."""
    *rows, _ = rates.bias(draws=1000)
    drawn = {row["batch"]: row for row in rows if not row["exact weights"]}
    exact = [row for row in rows if row["exact weights"]]
    assert drawn[1]["bias"] > 3 * drawn[1]["standard error"]
    assert drawn[64]["bias"] < 0.3 * drawn[1]["bias"]
    assert all(row["bias"] < 4 * row["standard error"] for row in exact)
