"""Numbers for MOMEHA and MB-MOMEHA for which the theorems' merit provably falls:
`bipareto.methods.theory.constants` made into a method.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization as scalarizations
from bipareto.methods.parts import schedule
from bipareto.methods.parts.preferences import as_preference
from bipareto.methods.parts.scalarization import Fixed, as_ideal
from bipareto.methods.parts.schedule import Constant, Power, Schedule, as_schedule
from bipareto.methods.theory.constants import Deterministic, best_gamma
from bipareto.methods.theory.smoothness import Known, estimate, scalarized_smoothness, start_merit
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.methods.tuning.envelope_methods import smoothing
from bipareto.problem import Problem, tree


class Asked(NamedTuple):
    """What is asked for, as in `MOMEHA.admissible`; None is probed, or taken as `tuned` does."""

    problem: Problem
    x0: Any
    y0: Any
    constants: Known | None
    gamma: float | None
    mu: float | None
    ideal: Any
    preference: Any
    scalarization: str


class _Question(NamedTuple):
    """What both theorems start from: the problem's constants, mu, z, gamma, L_F on the way."""

    known: Known
    mu: float
    ideal: Fixed
    gamma: float
    L_F: float


def _question(asked: Asked, c0: float) -> _Question:
    problem, x0, y0, known, gamma, mu, ideal, preference, name = asked
    x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    m = problem.check(x, y)
    known = estimate(problem, x, y) if known is None else known
    default_mu, default_ideal = smoothing(problem, x, y)
    mu = default_mu if mu is None else mu
    rule = default_ideal if ideal is None else as_ideal(ideal)
    if not isinstance(rule, Fixed):
        raise InvalidInput(
            f"ideal = {rule}: the proofs hold for a fixed ideal point z below every objective; "
            "pass m numbers"
        )
    w = [1 / m] * m if preference is None else as_preference(preference, m).tolist()
    form = scalarizations.get(name)
    with torch.no_grad():
        f = problem.upper(x, y, problem.batch("upper", "full")).to("cpu", torch.float64)
        z = rule.start(f)
        start = float(
            form.value(f, torch.tensor(w, dtype=f.dtype), z, torch.tensor(mu, dtype=f.dtype))
        )
    if not bool((z < f).all()):
        raise InvalidInput(
            f"the ideal point z = {z.tolist()} is not below the objectives {f.tolist()} at the "
            "start; choose a smaller z"
        )

    def smoothness(level: float) -> float:
        return scalarized_smoothness(form, known.L_f, w, mu, level)

    if gamma is None:
        gamma = best_gamma(known.L_g, known.rho_y, smoothness(start), c0)
    # V never rises, so F - F_low <= c_t V_0 at every t, and L_F/c_t on that set is largest at t =
    # 0, where F <= F_0 + c_0 (V_0 less F's part).
    level = start + c0 * start_merit(problem, x, y, known.L_g, gamma)
    return _Question(known, mu, rule, gamma, smoothness(level))


def _penalty(c: Schedule | float) -> tuple[float, float]:
    """(c_0, p) of c_t = c_0 (1 + t)^p."""
    schedule = Constant(float(c)) if isinstance(c, (int, float)) else c
    power = schedule.power if isinstance(schedule, Power) else 0.0
    if not isinstance(schedule, (Constant, Power)) or not 0 <= power < 0.5:
        raise InvalidInput(f"c = {c}; Theorem 1 needs c_t = c_0 (1 + t)^p with 0 <= p < 1/2")
    return float(schedule[0]), float(power)


def bounds(
    asked: Asked,
    alpha_theta: Schedule | float,
    c: Schedule | float,
    beta: Schedule | float | None = None,
) -> Deterministic | Stochastic:
    """The constants and admissible steps for given hyperparameters, beta None without momentum."""
    t = torch.zeros((), dtype=torch.float64)
    first_step, c0 = (
        float(as_schedule(value, name)(t))
        for name, value in (("alpha_theta", alpha_theta), ("c", c))
    )
    known, _, _, gamma, L_F = _question(asked, c0)
    found: Deterministic | Stochastic
    if beta is None:
        found = Deterministic(known.L_g, known.rho_y, L_F, gamma, c0)
    else:
        average = 1 - float(as_schedule(beta, "beta")(t))
        found = Stochastic(
            known.L_g,
            known.rho_y,
            L_F,
            gamma,
            c0,
            first_average=average,
            growing=not isinstance(c, Constant),
        )
    return replace(found, alpha_theta=first_step) if first_step <= found.u_theta else found


def theorem1(asked: Asked, c: Schedule | float, fraction: float) -> dict[str, Any]:
    """Keyword arguments for `MOMEHA` with steps at `fraction` of Theorem 1's bounds."""
    _check_fraction(fraction)
    c0, power = _penalty(c)
    known, mu, rule, gamma, L_F = _question(asked, c0)
    first = Deterministic(known.L_g, known.rho_y, L_F, gamma, c0)
    bounds = replace(first, alpha_theta=fraction * first.u_theta)
    return {
        "gamma": gamma,
        "mu": mu,
        "alpha_theta": fraction * first.u_theta,
        "alpha_x": fraction * bounds.u_x,
        "alpha_y": fraction * bounds.u_y,
        "c": Power(c0, power) if power else Constant(c0),
        "ideal": rule,
        "scalarization": asked.scalarization,
    }


def theorem2(asked: Asked, c0: float, delta: float | None, fraction: float) -> dict[str, Any]:
    """Keyword arguments for `MBMOMEHA` with first steps at `fraction` of Theorem 2's bounds."""
    _check_fraction(fraction)
    known, mu, rule, gamma, L_F = _question(asked, c0)
    first = Stochastic(known.L_g, known.rho_y, L_F, gamma, c0, growing=delta is None)
    alpha_theta = fraction * first.u_theta
    bounds = replace(first, alpha_theta=alpha_theta)
    alpha_y = fraction * bounds.u_y
    # 1 - beta_0 = 1: the first average is the first draw, and m_0 = 0 is forgotten at once.
    schedules = schedule.theorem2(
        alpha_theta,
        alpha_y,
        min(fraction * bounds.u_x, alpha_y),
        c0=c0,
        k=alpha_theta ** (-2 / 3),
        delta=delta,
    )
    return {
        "gamma": gamma,
        "mu": mu,
        "ideal": rule,
        "scalarization": asked.scalarization,
        **schedules,
    }


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise InvalidInput(
            f"fraction = {fraction}; the steps are this fraction of their bounds, a number in (0, "
            "1]"
        )
