"""Methods side by side on a problem with a known front, under an equal budget of gradients or of
seconds.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bipareto.certificate.certificate import certify
from bipareto.errors import BiparetoError, BiparetoWarning, InvalidInput
from bipareto.fronts.front import front
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import METHODS, Method
from bipareto.methods.parts import envelope
from bipareto.methods.parts.preferences import grid
from bipareto.problem import tree
from bipareto.problems.base import KnownProblem

__all__ = ["Budget", "Contender", "applicable", "compare", "gradient_cost"]

Budget = Literal["oracles", "seconds"]

#: why a method is not compared after Ctrl-C
INTERRUPTED = "interrupted before its runs had ended"

#: steps taken to see how fast a method is, when the budget is in seconds
CALIBRATION = 40


@dataclass(frozen=True)
class Contender:
    """One method's result: its resolved front, the front as it was returned, and what was measured
    of them, or why there is none.

    distance, kkt, gap: the worst over its runs; distance to the exact front relative to its extent,
        the certificate's residual at
    the resolved points, and g - v_gamma at the points as they were returned.
    gradients, hessian_products: spent per run.
    notes: what the method warned of.
    """

    name: str
    method: Method | None
    front: ParetoFront | None
    returned: ParetoFront | None
    steps: int
    distance: float
    kkt: float
    gap: float
    hypervolume: float
    gradients: int
    hessian_products: int
    seconds: float
    notes: tuple[str, ...]

    def figures(self) -> dict[str, Any]:
        """What was measured, as plain values."""
        return {
            "method": self.name,
            "runs": 0 if self.front is None else len(self.front),
            "steps": self.steps,
            "distance_to_front": self.distance,
            "kkt": self.kkt,
            "hypervolume": self.hypervolume,
            "gap": self.gap,
            "gradients": self.gradients,
            "hessian_products": self.hessian_products,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def applicable(problem: KnownProblem) -> list[str]:
    """The methods that can be asked this question: MEHA has one objective, MB-MOMEHA is for noisy
    gradients.
    """
    skip = ({"meha"} if problem.m > 1 else set()) | (set() if problem.noise else {"mb-momeha"})
    return [name for name in METHODS if name not in skip]


def gradient_cost(method: Method, m: int) -> int:
    """What a step costs in gradient evaluations, a Hessian or Jacobian product counted as two."""
    counts = method.oracles(m)
    return counts["lower_gradients"] + counts["upper_gradients"] + 2 * counts["hessian_products"]


def compare(
    problem: KnownProblem,
    methods: Sequence[str],
    *,
    preferences: int = 11,
    budget: Budget = "oracles",
    amount: float | None = None,
    seeds: Sequence[int] = (0,),
    start: int = 0,
    compile: bool | str | None = None,
    progress: bool | None = None,
) -> list[Contender]:
    """Run each method, tuned for its share, and rank by worst distance to the front, then by worst
    kkt residual.

    Args:
        methods: names of `METHODS`.
        preferences: how many along each edge of the simplex; methods without preferences run once
            per seed.
        budget: "oracles" gives every run `amount` gradient evaluations (a Hessian product counted
            as two), "seconds" every method `amount` seconds for all its runs, uncompiled, as
            measured on its first steps.
        amount: 80,000 gradients or 20 seconds when None.
        start: 0 for the problem's own start, n for its n-th random one; all methods begin there and
            are tuned there.

    A method that refuses the problem, or whose runs all fail, is listed last with the reason.  So
    are, after Ctrl-C, the method at work then and those after it: what a run has reached by then is
    not its share of the budget.
    """
    if budget not in ("oracles", "seconds"):
        raise InvalidInput(f"budget is {budget!r}; choose oracles or seconds")
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise InvalidInput(
            f"method {unknown[0]!r} is not known; choose among {', '.join(METHODS)}, or all"
        )
    if start < 0:
        raise InvalidInput(
            f"start = {start}; 0 is the problem's own start, 1, 2, ... are random ones"
        )
    share = amount if amount is not None else (80_000 if budget == "oracles" else 20.0)
    if not share > 0:
        raise InvalidInput(f"the budget is {share}; it must be > 0")
    found: list[Contender] = []
    for name in methods:
        try:
            found.append(
                _run(problem, name, preferences, budget, share, seeds, start, compile, progress)
            )
        except KeyboardInterrupt:
            found += [_absent(left, 0.0, INTERRUPTED) for left in methods[len(found) :]]
            break
    return sorted(found, key=lambda c: (c.distance, c.kkt))


def _absent(name: str, seconds: float, reason: str) -> Contender:
    return Contender(
        name, None, None, None, 0, math.inf, math.inf, math.inf, 0.0, 0, 0, seconds, (reason,)
    )


def _run(
    problem: KnownProblem,
    name: str,
    preferences: int,
    budget: Budget,
    share: float,
    seeds: Sequence[int],
    start: int,
    compile: bool | str | None,
    progress: bool | None,
) -> Contender:
    notes: list[str] = []
    x0, y0 = problem.start(start) if start else (problem.x0, problem.y0)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        try:
            method = METHODS[name].tuned(problem, x0, y0)
            wanted = grid(problem.m, preferences) if method.uses_preference else None
            if budget == "oracles":
                before = sum(method.preparation(problem.m).values())
                steps = max(1, int((share - before) // gradient_cost(method, problem.m)))
            else:
                clock = front(
                    problem,
                    x0,
                    y0,
                    preferences=wanted,
                    seeds=seeds,
                    method=method,
                    steps=CALIBRATION,
                    compile=False,
                    progress=False,
                )
                steps, compile = max(1, int(share * CALIBRATION / clock.seconds)), False
            method = METHODS[name].tuned(problem, x0, y0, steps=steps)
            raw = front(
                problem,
                x0,
                y0,
                preferences=wanted,
                seeds=seeds,
                method=method,
                steps=steps,
                compile=compile,
                progress=progress,
            )
            if raw.interrupted:
                raise KeyboardInterrupt
            resolved = raw.resolve_lower()
        except BiparetoError as error:
            return _absent(name, time.perf_counter() - began, str(error))
        notes += [str(warning.message) for warning in caught]
        notes += [
            f"{sum(f is not None for f in raw.failure)} runs left the finite numbers: {failure}"
            for failure in raw.failure
            if failure
        ][:1]
        kkt = max(_kkt(problem, resolved, i) for i in range(len(resolved)))
    counts = method.cost(problem.m, steps)
    distance = problem.distance_to_front(resolved.objectives)
    return Contender(
        name=name,
        method=method,
        front=resolved,
        returned=raw,
        steps=steps,
        distance=_worst(distance),
        kkt=kkt,
        gap=_worst(
            envelope.gap(problem, raw.x, raw.y, min(0.9 * problem.constants.gamma_max, 1.0))
        ),
        hypervolume=_hypervolume(problem, resolved),
        gradients=counts["lower_gradients"] + counts["upper_gradients"],
        hessian_products=counts["hessian_products"],
        seconds=time.perf_counter() - began,
        notes=tuple(dict.fromkeys(notes)),
    )


def _kkt(problem: KnownProblem, found: ParetoFront, i: int) -> float:
    x, y = tree.select(found.x, i), tree.select(found.y, i)
    if not all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves((x, y))):
        return math.inf
    return certify(problem, x, y).kkt


def _hypervolume(problem: KnownProblem, found: ParetoFront) -> float:
    """NaN where moocore is not installed: all else can be measured without it."""
    try:
        return found.hypervolume(problem.reference)
    except ModuleNotFoundError:
        return math.nan


def _worst(values: Tensor) -> float:
    return float(values.nan_to_num(nan=math.inf).max())
