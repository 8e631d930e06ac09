"""The orders in T that the proofs give, for every pair of exponents that they allow."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from bipareto.errors import InvalidInput
from bipareto.problem import validation


class Order(NamedTuple):
    """T^-power, times sqrt(ln T) where `log`; T is a number or a tensor.

    >>> str(Order(1 / 4)), str(Order(0)), Order(1 / 2)(100.0)
    ('T^-0.25', 'O(1)', 0.1)
    """

    power: float
    log: bool = False

    def __call__(self, T: Any) -> Any:
        logarithm = math.log(T) if isinstance(T, float | int) else T.log()
        return T**-self.power * (logarithm**0.5 if self.log else 1)

    def __str__(self) -> str:
        return (f"T^-{self.power:g}" if self.power else "O(1)") + (" sqrt(ln T)" * self.log)


def momeha_orders(p: float) -> tuple[Order, Order]:
    """Of MOMEHA with c_t = c_0 (1 + t)^p, 0 <= p < 1/2: the gap at T, T^-p, and the smallest H_p up
    to T, T^-(1/2 - p).  Theorem 1 has p = 0 and p = 1/4.

    >>> [str(order) for order in momeha_orders(0.25)]
    ['T^-0.25', 'T^-0.25']
    """
    if not 0 <= validation.number(p, "p") < 0.5:
        raise InvalidInput(f"p = {p}; Theorem 1 needs 0 <= p < 1/2 in c_t = c_0 (1 + t)^p")
    return Order(p), Order(0.5 - p)


def stochastic_orders(q: float, p: float) -> tuple[Order, Order]:
    """Of MB-MOMEHA with alpha_theta,t = alpha_theta (1 + t)^-q and c_t = c_0 (1 + t)^p: the mean
    gap at T and the smallest mean H_p up to T, in the three regimes of Lemma 12.

    - 0 < q < 3/8, 0 <= p < q/3: T^-(q/3 - p); the noise decides;
    - q = 3/8, 0 <= p < 1/8: T^-(1/8 - p) sqrt(ln T), where both are alike;
    - 3/8 < q < 1/2, 0 <= p < 1/2 - q: T^-(1/2 - q - p); the length of the way decides.

    The gap falls as T^-p where F + c_t (g - v_gamma) stays bounded; below q = 3/8 the proof bounds
    neither it nor the merit, so the gap's order is O(1) times c_t^-1 only under that condition.
    Theorem 2 has (3/8, 1/16) and (3/8 + delta, 0).

    >>> [str(order) for order in stochastic_orders(3 / 8, 1 / 16)]
    ['T^-0.0625', 'T^-0.0625 sqrt(ln T)']
    """
    q, p = validation.number(q, "q"), validation.number(p, "p")
    if not 0 < q < 0.5:
        raise InvalidInput(f"q = {q}; Lemma 12 needs 0 < q < 1/2 in alpha_theta (1 + t)^-q")
    most = min(q / 3, 0.5 - q)
    if not 0 <= p < most:
        raise InvalidInput(f"p = {p}; with q = {q:g} Lemma 12 needs 0 <= p < {most:g}")
    return Order(p), Order(most - p, log=q == 3 / 8)
