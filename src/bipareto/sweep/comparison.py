"""Methods side by side on a problem with a known front, under an equal budget of gradients or of
seconds.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
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
from bipareto.problem.tree import Tree
from bipareto.problems.base import KnownProblem
from bipareto.sweep.config import MethodConfig, SweepConfig, to_dict
from bipareto.sweep.durable import Interrupted
from bipareto.sweep.reading import plan_of, returned
from bipareto.sweep.store import RunFolder
from bipareto.sweep.sweep import resume, sweep

__all__ = ["Budget", "Contender", "Kept", "applicable", "compare", "gradient_cost"]

Budget = Literal["oracles", "seconds"]

#: why a method is not compared after Ctrl-C
INTERRUPTED = "interrupted before its runs had ended"

#: steps taken to see how fast a method is, when the budget is in seconds
CALIBRATION = 40


@dataclass(frozen=True)
class Kept:
    """The run folders of a comparison, one for each method.

    Args:
        path: the folder of the comparison.
        config: of the runs, all but the method and its steps.
    """

    path: Path
    config: SweepConfig

    def begun(self, name: str) -> tuple[Method, int] | None:
        """The method as it was begun earlier, and its steps; None where it was not.  Runs of
        another question are refused.
        """
        path = self.path / "methods" / name
        if not RunFolder(path).exists():
            return None
        plan = plan_of(path)
        held, asked = to_dict(plan.config), to_dict(self.config)
        for key in ("problem", "preferences", "seeds", "compile"):
            if held[key] != asked[key]:
                raise InvalidInput(
                    f"{path} holds runs of another comparison ({key}: {held[key]}, not "
                    f"{asked[key]}); choose another folder, or the same settings to go on"
                )
        return plan.method, plan.config.steps

    def front(
        self, name: str, method: Method, steps: int, progress: bool | None
    ) -> tuple[ParetoFront, Tree]:
        """The front of a method, begun or gone on with, and y as its runs left it."""
        path = self.path / "methods" / name
        if RunFolder(path).exists():
            found = resume(path, progress=progress)
        else:
            own = {f.name: getattr(method, f.name) for f in fields(method)}
            config = replace(self.config, method=MethodConfig(name, "plain", own), steps=steps)
            found = sweep(config, path, progress=progress)
        return found, returned(path)[0]


@dataclass(frozen=True)
class Contender:
    """One method's result: its resolved front and what was measured of it, or why there is none.

    distance, kkt, gap: the worst over its runs; distance to the exact front relative to its extent,
        the certificate's residual at
    the resolved points, and g - v_gamma at the points as they were returned.
    gradients, hessian_products: spent per run.
    notes: what the method warned of.
    """

    name: str
    method: Method | None
    front: ParetoFront | None
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
    kept: Kept | None = None,
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
        kept: the run folders of the methods; None keeps nothing.  Folders that are there go on, so
            that a comparison that was stopped is finished by the same call.

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
    x0, y0 = problem.start(start) if start else (problem.x0, problem.y0)
    begun = {} if kept is None else {name: kept.begun(name) for name in methods}

    def share_of(name: str) -> tuple[Method, int]:
        return begun.get(name) or _share(problem, name, preferences, budget, share, seeds, (x0, y0))

    def trace(name: str, method: Method, steps: int) -> tuple[ParetoFront, Tree]:
        if kept is not None:
            return kept.front(name, method, steps, progress)
        raw = front(
            problem,
            x0,
            y0,
            preferences=grid(problem.m, preferences) if method.uses_preference else None,
            seeds=seeds,
            method=method,
            steps=steps,
            compile=False if budget == "seconds" else compile,
            progress=progress,
        )
        if raw.interrupted:
            raise KeyboardInterrupt
        return raw.resolve_lower(), raw.y

    found: list[Contender] = []
    for name in methods:
        try:
            found.append(_run(problem, name, share_of, trace))
        except KeyboardInterrupt:
            found += [_absent(left, 0.0, INTERRUPTED) for left in methods[len(found) :]]
            break
    return sorted(found, key=lambda c: (c.distance, c.kkt))


def _absent(name: str, seconds: float, reason: str) -> Contender:
    return Contender(
        name, None, None, 0, math.inf, math.inf, math.inf, 0.0, 0, 0, seconds, (reason,)
    )


def _run(
    problem: KnownProblem,
    name: str,
    share_of: Callable[[str], tuple[Method, int]],
    trace: Callable[[str, Method, int], tuple[ParetoFront, Tree]],
) -> Contender:
    notes: list[str] = []
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        try:
            method, steps = share_of(name)
            resolved, y = trace(name, method, steps)
        except Interrupted as error:
            raise KeyboardInterrupt from error
        except BiparetoError as error:
            return _absent(name, time.perf_counter() - began, str(error))
        notes += [str(warning.message) for warning in caught]
        failures = [failure for failure in resolved.failure if failure is not None]
        if failures:
            notes.append(f"{len(failures)} runs left the finite numbers: {failures[0]}")
        kkt = max(_kkt(problem, resolved, i) for i in range(len(resolved)))
    counts = method.cost(problem.m, steps)
    distance = problem.distance_to_front(resolved.objectives)
    return Contender(
        name=name,
        method=method,
        front=resolved,
        steps=steps,
        distance=_worst(distance),
        kkt=kkt,
        gap=_worst(
            envelope.gap(problem, resolved.x, y, min(0.9 * problem.constants.gamma_max, 1.0))
        ),
        hypervolume=_hypervolume(problem, resolved),
        gradients=counts["lower_gradients"] + counts["upper_gradients"],
        hessian_products=counts["hessian_products"],
        seconds=time.perf_counter() - began,
        notes=tuple(dict.fromkeys(notes)),
    )


def _share(
    problem: KnownProblem,
    name: str,
    preferences: int,
    budget: Budget,
    share: float,
    seeds: Sequence[int],
    begin: tuple[Tree, Tree],
) -> tuple[Method, int]:
    """A method tuned for its share of the budget, and how many steps that is."""
    method = METHODS[name].tuned(problem, *begin)
    if budget == "oracles":
        before = sum(method.preparation(problem.m).values())
        steps = max(1, int((share - before) // gradient_cost(method, problem.m)))
    else:
        clock = front(
            problem,
            *begin,
            preferences=grid(problem.m, preferences) if method.uses_preference else None,
            seeds=seeds,
            method=method,
            steps=CALIBRATION,
            compile=False,
            progress=False,
        )
        steps = max(1, int(share * CALIBRATION / clock.seconds))
    return METHODS[name].tuned(problem, *begin, steps=steps), steps


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
