"""Sequences of steps, penalties and momenta: small named tuples of numbers, called with the
iteration t.

The class of a schedule is structure (it decides the compiled graph); its numbers travel in the
state of a run as 0-d tensors, so two runs with different numbers share one graph and one batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import validation

__all__ = [
    "Complement",
    "Constant",
    "Cosine",
    "Delayed",
    "Power",
    "Schedule",
    "as_schedule",
    "lemma12",
    "theorem1",
    "theorem2",
]


class Constant(NamedTuple):
    """s_t = value."""

    value: Any

    def __call__(self, t: Tensor) -> Tensor:
        return self.value


class Power(NamedTuple):
    """s_t = scale * (1 + t)^power."""

    scale: Any
    power: Any

    def __call__(self, t: Tensor) -> Tensor:
        return self.scale * torch.pow(1 + t, self.power)


class Complement(NamedTuple):
    """s_t = 1 - scale * (1 + t)^power, the momentum beta_t when 1 - beta_t is a power."""

    scale: Any
    power: Any

    def __call__(self, t: Tensor) -> Tensor:
        return 1 - self.scale * torch.pow(1 + t, self.power)


class Cosine(NamedTuple):
    """s_t = floor + (scale - floor) (1 + cos(pi t/T)) / 2 for t <= T, then `floor`: steps that end
    gently after a known number T of them.

    `period` is T; before `first` the step is `floor` too, for a variable that waits until the
    others have settled.  Where a step has come to zero the direction cannot be read off the move:
    `stationarity` and `residual` are NaN then.
    """

    scale: Any
    period: Any
    floor: Any = 0.0
    first: Any = 0.0

    def __call__(self, t: Tensor) -> Tensor:
        share = (t / self.period).clamp(max=1.0)
        above = torch.where(t < self.first, 0.0, 0.5 * (1 + torch.cos(math.pi * share)))
        return self.floor + (self.scale - self.floor) * above


class Delayed(NamedTuple):
    """s_t = before for t < first, then value: a variable that waits for the others to settle."""

    value: Any
    first: Any
    before: Any

    def __call__(self, t: Tensor) -> Tensor:
        return torch.where(t < self.first, self.before, self.value)


Schedule: TypeAlias = Constant | Power | Complement | Cosine | Delayed


def as_schedule(
    value: Schedule | float,
    name: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
) -> Schedule:
    """A schedule whose numbers are finite floats; a number stands for the constant one.

    Args:
        above, least, below: bounds of s_t.  `above` holds for the sequence itself; a value that it
            only waits or ends at, `before` or `floor`, may reach it.
    """
    if not isinstance(value, (Constant, Power, Complement, Cosine, Delayed)):
        if isinstance(value, (str, bytes, tuple, list, dict)) or callable(value):
            raise InvalidInput(
                f"{name} is {validation.shown(value)}; pass a number or a schedule such as "
                "bipareto.schedule.Power(1.0, 0.25)"
            )
        return Constant(validation.number(value, name, above=above, least=least, below=below))
    kind = f"{name} = {type(value).__name__}"
    numbers = {
        field: validation.number(v, f"{kind}: {field}") for field, v in value._asdict().items()
    }
    schedule = type(value)(**numbers)
    first, *others = _extremes(schedule)
    called = "1 - scale" if isinstance(value, Complement) else value._fields[0]
    validation.number(first, f"{kind}: {called}", above=above, least=least, below=below)
    if isinstance(schedule, Cosine):
        validation.number(schedule.period, f"{kind}: period, the steps until it has ended", above=0)
        validation.number(schedule.floor, f"{kind}: floor", least=0)
    for other in others:
        bottom = least if above is None else above
        validation.number(other, f"{kind}: where it waits or ends", least=bottom, below=below)
    return schedule


def _extremes(schedule: Schedule) -> tuple[float, ...]:
    """The values between which a sequence stays or goes, the one that it is named for first."""
    if isinstance(schedule, Complement):
        return (1 - schedule.scale,)
    if isinstance(schedule, Cosine):
        return (schedule.scale, schedule.floor)
    return (schedule.value, schedule.before) if isinstance(schedule, Delayed) else (schedule[0],)


def theorem1(c0: float = 1.0, *, growing: bool = True) -> dict[str, Schedule]:
    """Theorem 1 (MOMEHA): c_t = c_0 (1 + t)^(1/4) for a vanishing gap, or constant c_0; steps are
    constant.

    Use as `MOMEHA(gamma=..., alpha_x=..., **theorem1(c0=2.0))`.
    """
    c0 = validation.number(c0, "c0", above=0)
    return {"c": Power(c0, 0.25) if growing else Constant(c0)}


def lemma12(
    alpha_theta: float,
    alpha_y: float,
    alpha_x: float,
    *,
    q: float,
    p: float,
    c0: float = 1.0,
    k: float = 1.0,
) -> dict[str, Schedule]:
    """Lemma 12 (MB-MOMEHA): all its sequences as keyword arguments of the method, for any pair of
    exponents that it allows; `theory.constants.stochastic_orders(q, p)` says what is proved.

    alpha_theta,t = alpha_theta (1 + t)^-q, alpha_y,t and alpha_x,t fall as alpha_theta,t^2 with
    alpha_x <= alpha_y, 1 - beta_t = k alpha_theta,t^(2/3) and c_t = c_0 (1 + t)^p.

    Args:
        alpha_theta, alpha_y, alpha_x: the values at t = 0.
        q, p: 0 < q < 1/2, and 0 <= p < q/3 up to q = 3/8, p < 1/2 - q beyond.
        c0: the penalty c_0.
        k: the constant in 1 - beta_t = k alpha_theta,t^(2/3), capped so that beta_0 >= 0.
    """
    alpha_theta, alpha_y, alpha_x, c0, k = (
        validation.number(value, name, above=0)
        for name, value in (
            ("alpha_theta", alpha_theta),
            ("alpha_y", alpha_y),
            ("alpha_x", alpha_x),
            ("c0", c0),
            ("k", k),
        )
    )
    if alpha_x > alpha_y:
        raise InvalidInput(
            f"alpha_x = {alpha_x} exceeds alpha_y = {alpha_y}; Theorem 2 needs alpha_x <= alpha_y"
        )
    q, p = validation.number(q, "q", above=0, below=0.5), validation.number(p, "p", least=0)
    most = min(q / 3, 0.5 - q)
    if p >= most:
        raise InvalidInput(f"p = {p:g}; with q = {q:g} Lemma 12 needs 0 <= p < {most:g}")
    return {
        "alpha_theta": Power(alpha_theta, -q),
        "alpha_y": Power(alpha_y, -2 * q),
        "alpha_x": Power(alpha_x, -2 * q),
        "beta": Complement(min(1.0, k * alpha_theta ** (2 / 3)), -2 * q / 3),
        "c": Power(c0, p) if p else Constant(c0),
    }


def theorem2(
    alpha_theta: float,
    alpha_y: float,
    alpha_x: float,
    *,
    c0: float = 1.0,
    k: float = 1.0,
    delta: float | None = None,
) -> dict[str, Schedule]:
    """Theorem 2 (MB-MOMEHA): `lemma12` with the exponents of the theorem.

    Args:
        alpha_theta, alpha_y, alpha_x, c0, k: as there.
        delta: None for the joint rate (q = 3/8, c_t = c_0 (1 + t)^(1/16)); a number in (0, 1/8) for
            the constant penalty with q = 3/8 + delta.
    """
    if delta is not None and not 0 < validation.number(delta, "delta") < 1 / 8:
        raise InvalidInput(f"delta = {delta} is outside (0, 1/8), where Theorem 2 holds")
    q, p = (3 / 8, 1 / 16) if delta is None else (3 / 8 + delta, 0.0)
    return lemma12(alpha_theta, alpha_y, alpha_x, q=q, p=p, c0=c0, k=k)
