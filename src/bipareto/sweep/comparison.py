"""Methods side by side on one problem, under an equal budget of gradients or of seconds.

A problem with a known front ranks them by the distance to it; one's own by hypervolume, over seeds,
up to a point that all methods share.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bipareto.certificate.certificate import certify
from bipareto.errors import BiparetoError, BiparetoWarning, InvalidInput
from bipareto.fronts.front import front
from bipareto.fronts.measures import hypervolume
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import METHODS, Method
from bipareto.methods.parts import envelope
from bipareto.methods.parts.preferences import grid
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problems.base import KnownProblem
from bipareto.run.race import comes_in_batches
from bipareto.run.training import objectives_of, train_on
from bipareto.sweep.builder import Setup, method_of
from bipareto.sweep.config import MethodConfig

__all__ = [
    "Budget",
    "Contender",
    "applicable",
    "compare",
    "gradient_cost",
    "reference_point",
    "verdicts",
]

Budget = Literal["oracles", "seconds"]

#: why a method is not compared after Ctrl-C
INTERRUPTED = "interrupted before its runs had ended"

#: gradients per run, where the amount is not said: of known problems, of one's own
AMOUNTS = {True: 80_000, False: 10_000}

#: a point of a larger problem is not certified: every one costs up to 200 gradients on all the data
CERTIFIED_SIZE = 2_000

#: Adam's rate, times three, where y is trained on before a method is judged
RATE = 0.01

#: steps taken to see how fast a method is, when the budget is in seconds
CALIBRATION = 40


@dataclass(frozen=True)
class Contender:
    """One method's result: its resolved front, the front as it was returned, and what was measured
    of them, or why there is none.

    distance, kkt, gap: the worst over its runs; distance to the exact front relative to its extent,
        the certificate's residual at the resolved points, and g - v_gamma at the points as they
        were returned; NaN where they are not known.
    hypervolumes: of the runs of each seed, on the problem's `test_data` where it has any.
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
    hypervolumes: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """The mean hypervolume over seeds."""
        return sum(self.hypervolumes) / len(self.hypervolumes) if self.hypervolumes else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN of a single seed."""
        n = len(self.hypervolumes)
        if n < 2:
            return math.nan
        spread = sum((value - self.mean) ** 2 for value in self.hypervolumes)
        return math.sqrt(spread / (n - 1) / n)

    def figures(self) -> dict[str, Any]:
        """What was measured, as plain values."""
        return {
            "method": self.name,
            "runs": 0 if self.front is None else len(self.front),
            "steps": self.steps,
            "distance_to_front": self.distance,
            "kkt": self.kkt,
            "hypervolume": self.hypervolume,
            "hypervolumes": list(self.hypervolumes),
            "hypervolume_mean": self.mean,
            "hypervolume_error": self.error,
            "gap": self.gap,
            "gradients": self.gradients,
            "hessian_products": self.hessian_products,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def applicable(problem: Problem, m: int | None = None) -> list[str]:
    """The methods that can be asked this question: MEHA has one objective, MB-MOMEHA is for noisy
    gradients.

    Args:
        m: how many objectives; a known problem says it itself.
    """
    noisy = problem.noise if isinstance(problem, KnownProblem) else problem.sampler is not None
    count = problem.m if isinstance(problem, KnownProblem) else m
    skip = ({"meha"} if count != 1 else set()) | (set() if noisy else {"mb-momeha"})
    return [name for name in METHODS if name not in skip]


def gradient_cost(method: Method, m: int) -> int:
    """What a step costs in gradient evaluations, a Hessian or Jacobian product counted as two."""
    counts = method.oracles(m)
    return counts["lower_gradients"] + counts["upper_gradients"] + 2 * counts["hessian_products"]


def compare(
    problem: Problem,
    methods: Sequence[str],
    *,
    begin: tuple[Tree, Tree] | None = None,
    preferences: int = 11,
    budget: Budget = "oracles",
    amount: float | None = None,
    seeds: Sequence[int] = (0,),
    start: int = 0,
    compile: bool | str | None = None,
    progress: bool | None = None,
) -> list[Contender]:
    """Run each method, tuned for its share, and rank by worst distance to the front, then by worst
    kkt residual; by the mean hypervolume over seeds where no front is known.

    Args:
        methods: names of `METHODS`.
        begin: (x0, y0) of a problem without a known front.
        preferences: how many along each edge of the simplex; methods without preferences run once
            per seed.
        budget: "oracles" gives every run `amount` gradient evaluations (a Hessian product counted
            as two), "seconds" every method `amount` seconds for all its runs, uncompiled, as
            measured on its first steps.
        amount: 80,000 gradients (10,000 of a problem of one's own) or 20 seconds when None.
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
    known = problem if isinstance(problem, KnownProblem) else None
    if known is not None:
        begin = known.start(start) if start else (known.x0, known.y0)
    if begin is None or (known is None and start):
        raise InvalidInput(
            "a problem without a known front has the start that its function returns: pass "
            "begin=(x0, y0), and start = 0"
        )
    default = AMOUNTS[known is not None] if budget == "oracles" else 20.0
    share = default if amount is None else amount
    if not share > 0:
        raise InvalidInput(f"the budget is {share}; it must be > 0")
    found: list[Contender] = []
    for name in methods:
        try:
            found.append(
                _run(problem, name, preferences, budget, share, seeds, begin, compile, progress)
            )
        except KeyboardInterrupt:
            found += [_absent(left, 0.0, INTERRUPTED) for left in methods[len(found) :]]
            break
    reference = reference_point(problem, found)
    found = [_with_hypervolumes(c, reference) for c in found]
    if known is None:
        return sorted(found, key=lambda c: -math.inf if c.front is None else c.mean, reverse=True)
    return sorted(found, key=lambda c: (c.distance, c.kkt))


def reference_point(problem: Problem, found: Sequence[Contender]) -> Tensor:
    """The point (m,) up to which hypervolumes are taken: the known one, or the worst values of all
    methods plus a tenth of their ranges.
    """
    if isinstance(problem, KnownProblem):
        return problem.reference
    points = [_judged(c.front) for c in found if c.front is not None]
    if not points:
        return torch.empty(0)
    f = torch.cat(points)
    f = f[torch.isfinite(f).all(1)]
    return f.amax(0) + 0.1 * (f.amax(0) - f.amin(0))


def _judged(found: ParetoFront) -> Tensor:
    """The objectives (R, m) by which a front is judged: on data that no step has seen, if any."""
    return (found.objectives if found.test is None else found.test).detach().cpu().double()


def _with_hypervolumes(contender: Contender, reference: Tensor) -> Contender:
    if contender.front is None:
        return contender
    f, seed = _judged(contender.front), contender.front.seed
    values = [_hypervolume(f[seed == s], reference) for s in dict.fromkeys(seed.tolist())]
    return replace(contender, hypervolume=_hypervolume(f, reference), hypervolumes=tuple(values))


def _hypervolume(f: Tensor, reference: Tensor) -> float:
    """Of the finite rows; NaN where moocore is not installed: all else is measured without it."""
    try:
        return hypervolume(f[torch.isfinite(f).all(1)], reference)
    except ModuleNotFoundError:
        return math.nan


def verdicts(found: Sequence[Contender]) -> list[str]:
    """Who is ahead by mean hypervolume, and beyond which error, in words."""
    ranked = sorted(
        (c for c in found if c.hypervolumes and math.isfinite(c.mean)), key=lambda c: -c.mean
    )
    if len(ranked) < 2:
        return []
    best, *others = ranked
    seeds = len(best.hypervolumes)
    if seeds < 2:
        return [
            f"{best.name} has the largest hypervolume, on one seed: whether it is ahead cannot be "
            "said; give several, e.g. --seed 0,1,2"
        ]
    if all(c.error == 0 for c in ranked):
        return [
            f"{best.name} has the largest hypervolume; the {seeds} seeds change nothing here "
            "(nothing is drawn), so the differences are exact, and other starts or data might "
            "turn them"
        ]
    words = []
    for other in others:
        lead, error = best.mean - other.mean, math.hypot(best.error, other.error)
        if lead > 2 * error:
            words.append(
                f"{best.name} is ahead of {other.name} by {lead:.3g} ± {error:.2g}, beyond two "
                f"standard errors of {seeds} seeds"
            )
        else:
            words.append(
                f"{best.name} and {other.name} cannot be told apart: {lead:.3g} ± {error:.2g} "
                f"over {seeds} seeds"
            )
    return words


def _absent(name: str, seconds: float, reason: str) -> Contender:
    return Contender(
        name, None, None, None, 0, math.inf, math.inf, math.inf, 0.0, 0, 0, seconds, (reason,)
    )


def _run(
    problem: Problem,
    name: str,
    preferences: int,
    budget: Budget,
    share: float,
    seeds: Sequence[int],
    begin: tuple[Tree, Tree],
    compile: bool | str | None,
    progress: bool | None,
) -> Contender:
    notes: list[str] = []
    known = problem if isinstance(problem, KnownProblem) else None
    x0, y0 = begin
    m = known.m if known else problem.check(x0, y0)
    setup = Setup(problem, [begin])
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        try:
            method = METHODS[name].tuned(problem, x0, y0)
            wanted = grid(m, preferences) if method.uses_preference else None
            if budget == "oracles":
                before = sum(method.preparation(m).values())
                steps = max(1, int((share - before) // gradient_cost(method, m)))
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
            method = method_of(MethodConfig(name), setup, steps)
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
            resolved = _resolved(problem, raw, steps)
        except BiparetoError as error:
            return _absent(name, time.perf_counter() - began, str(error))
        notes += [str(warning.message) for warning in caught]
        notes += [
            f"{sum(f is not None for f in raw.failure)} runs left the finite numbers: {failure}"
            for failure in raw.failure
            if failure
        ][:1]
        small = sum(leaf.numel() for leaf in tree.leaves(begin)) <= CERTIFIED_SIZE
        certified = range(len(resolved)) if known or small else ()
        kkt = max((_kkt(problem, resolved, i) for i in certified), default=math.nan)
    counts = method.cost(m, steps)
    return Contender(
        name=name,
        method=method,
        front=resolved,
        returned=raw,
        steps=steps,
        distance=_worst(known.distance_to_front(resolved.objectives)) if known else math.nan,
        kkt=kkt,
        gap=_worst(envelope.gap(known, raw.x, raw.y, min(0.9 * known.constants.gamma_max, 1.0)))
        if known
        else math.nan,
        hypervolume=math.nan,
        gradients=counts["lower_gradients"] + counts["upper_gradients"],
        hessian_products=counts["hessian_products"],
        seconds=time.perf_counter() - began,
        notes=tuple(dict.fromkeys(notes)),
    )


def _resolved(problem: Problem, raw: ParetoFront, steps: int) -> ParetoFront:
    """The lower level solved again; of networks, y trained on by Adam until g stops falling."""
    if raw.race is not None or not comes_in_batches(problem):
        return raw.resolve_lower()
    y = train_on(problem, raw.x, raw.y, rate=RATE, steps=max(20, steps // 3))
    test = problem.batch("test", "full") if problem.has_test else None
    return replace(
        raw,
        y=y,
        objectives=objectives_of(problem, raw.x, y, problem.batch("upper", "full")),
        test=None if test is None else objectives_of(problem, raw.x, y, test),
    )


def _kkt(problem: Problem, found: ParetoFront, i: int) -> float:
    x, y = tree.select(found.x, i), tree.select(found.y, i)
    if not all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves((x, y))):
        return math.inf
    return certify(problem, x, y).kkt


def _worst(values: Tensor) -> float:
    return float(values.nan_to_num(nan=math.inf).max())
