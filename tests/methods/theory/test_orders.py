"""The regimes of Lemma 12 and Theorem 1, and the schedules that belong to them."""

from __future__ import annotations

import pytest
import torch

from bipareto.errors import InvalidInput
from bipareto.methods.parts.schedule import Constant, Power, lemma12, theorem1, theorem2
from bipareto.methods.theory.constants import Order, momeha_orders, stochastic_orders


@pytest.mark.parametrize(
    ("q", "p", "power", "log"),
    [
        (0.3, 0.0, 0.1, False),
        (0.3, 0.05, 0.05, False),
        (0.375, 0.0, 0.125, True),
        (0.375, 0.1, 0.025, True),
        (0.45, 0.0, 0.05, False),
        (0.4, 0.03, 0.07, False),
    ],
)
def test_the_three_regimes_of_lemma_12(q: float, p: float, power: float, log: bool) -> None:
    gap, stationarity = stochastic_orders(q, p)
    assert gap == Order(p)
    assert stationarity.power == pytest.approx(power)
    assert stationarity.log is log
    schedules = lemma12(0.3, 0.2, 0.1, q=q, p=p, c0=3.0, k=0.5)
    t = torch.tensor([0.0, 9.0, 99.0], dtype=torch.float64)
    theta = 0.3 * (1 + t) ** -q
    torch.testing.assert_close(schedules["alpha_theta"](t), theta)
    torch.testing.assert_close(schedules["alpha_y"](t), 0.2 * (theta / 0.3) ** 2)
    torch.testing.assert_close(schedules["alpha_x"](t), 0.1 * (theta / 0.3) ** 2)
    torch.testing.assert_close(1 - schedules["beta"](t), 0.5 * theta ** (2 / 3))
    c = schedules["c"](t)
    torch.testing.assert_close(c if p else c * torch.ones(3).double(), 3.0 * (1 + t) ** p)


@pytest.mark.parametrize(
    ("q", "p"), [(0.0, 0.0), (0.5, 0.0), (0.3, 0.1), (0.375, 0.125), (0.45, 0.05), (0.4, -0.1)]
)
def test_exponents_outside_are_refused(q: float, p: float) -> None:
    with pytest.raises(InvalidInput, match=r"Lemma 12|q = |p = "):
        stochastic_orders(q, p)
    with pytest.raises(InvalidInput, match=r"Lemma 12|q = |p = "):
        lemma12(0.3, 0.2, 0.1, q=q, p=p)


def test_the_theorems_are_special_cases() -> None:
    assert theorem2(0.3, 0.2, 0.1, c0=2.0) == lemma12(0.3, 0.2, 0.1, q=3 / 8, p=1 / 16, c0=2.0)
    assert theorem2(0.3, 0.2, 0.1, delta=0.05) == lemma12(0.3, 0.2, 0.1, q=0.425, p=0.0)
    assert momeha_orders(0.25) == (Order(0.25), Order(0.25))
    assert momeha_orders(0.0) == (Order(0.0), Order(0.5))
    assert theorem1(2.0) == {"c": Power(2.0, 0.25)}
    assert theorem1(2.0, growing=False) == {"c": Constant(2.0)}
    for p in (-0.1, 0.5):
        with pytest.raises(InvalidInput, match="Theorem 1"):
            momeha_orders(p)


def test_an_order_is_a_function_of_T() -> None:
    T = torch.tensor([10.0, 1000.0], dtype=torch.float64)
    torch.testing.assert_close(Order(0.5, log=True)(T), T.log().sqrt() / T.sqrt())
    assert Order(0.5, log=True)(1000.0) == pytest.approx(float(Order(0.5, log=True)(T)[1]))
    assert Order(0.25)(16.0) == 0.5
    assert str(Order(1 / 16, log=True)) == "T^-0.0625 sqrt(ln T)"
