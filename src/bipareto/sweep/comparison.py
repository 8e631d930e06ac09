"""Methods side by side on one problem, under an equal budget of gradients or of seconds.

A problem with a known front ranks them by the distance to it; one's own by hypervolume, over seeds,
up to a point that all methods share.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bipareto.certificate.certificate import certify
from bipareto.errors import BiparetoError, BiparetoWarning, InvalidInput
from bipareto.fronts.front import front
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import MBMOMEHA, METHODS, Method, Twin
from bipareto.methods.parts import envelope
from bipareto.methods.parts.preferences import grid
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problems.base import KnownProblem
from bipareto.run.race import comes_in_batches
from bipareto.run.training import train_on
from bipareto.sweep.config import MethodConfig, SweepConfig, to_dict
from bipareto.sweep.contenders import Contender, reference_point, with_hypervolumes
from bipareto.sweep.durable import Interrupted
from bipareto.sweep.plan import Setup, method_of
from bipareto.sweep.reading import plan_of, returned
from bipareto.sweep.store import RunFolder
from bipareto.sweep.sweep import resume, sweep

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
    kept: Kept | None = None,
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
    known = problem if isinstance(problem, KnownProblem) else None
    begin = _begin(problem, begin, start)
    default = AMOUNTS[known is not None] if budget == "oracles" else 20.0
    share = default if amount is None else amount
    if not share > 0:
        raise InvalidInput(f"the budget is {share}; it must be > 0")
    m = known.m if known else problem.check(*begin)
    begun = {} if kept is None else {name: kept.begun(name) for name in methods}

    def traced(name: str, method: Method, steps: int) -> tuple[ParetoFront, ParetoFront | None]:
        # Without a method `front` races, and says by itself what won.
        given = None if _raced(problem, name) else method
        if kept is not None:
            return kept.front(name, given, steps, progress)
        wanted = grid(m, preferences) if method.uses_preference else None
        raw = front(
            problem,
            *begin,
            preferences=wanted,
            seeds=seeds,
            method=given,
            steps=steps,
            compile=False if budget == "seconds" else compile,
            progress=progress,
        )
        if raw.interrupted:
            raise KeyboardInterrupt
        return raw, None

    def tuned(name: str) -> tuple[Method, int]:
        return begun.get(name) or _share(problem, name, preferences, budget, share, seeds, begin, m)

    found: list[Contender] = []
    for name in methods:
        try:
            found.append(_run(problem, name, begin, m, tuned, traced))
        except KeyboardInterrupt:
            found += [_absent(left, 0.0, INTERRUPTED) for left in methods[len(found) :]]
            break
    reference = reference_point(problem, found)
    found = [with_hypervolumes(c, reference) for c in found]
    if known is None:
        return sorted(found, key=lambda c: -math.inf if c.front is None else c.mean, reverse=True)
    return sorted(found, key=lambda c: (c.distance, c.kkt))


def _begin(problem: Problem, begin: tuple[Tree, Tree] | None, start: int) -> tuple[Tree, Tree]:
    """Where all methods begin."""
    if start < 0:
        raise InvalidInput(
            f"start = {start}; 0 is the problem's own start, 1, 2, ... are random ones"
        )
    if isinstance(problem, KnownProblem):
        return problem.start(start) if start else (problem.x0, problem.y0)
    if begin is None or start:
        raise InvalidInput(
            "a problem without a known front has the start that its function returns: pass "
            "begin=(x0, y0), and start = 0"
        )
    return begin


def _raced(problem: Problem, name: str) -> bool:
    return METHODS[name] is Twin and comes_in_batches(problem)


def _absent(name: str, seconds: float, reason: str) -> Contender:
    return Contender(
        name, None, None, 0, math.inf, math.inf, math.inf, 0.0, 0, 0, seconds, (reason,)
    )


def _share(
    problem: Problem,
    name: str,
    preferences: int,
    budget: Budget,
    share: float,
    seeds: Sequence[int],
    begin: tuple[Tree, Tree],
    m: int,
) -> tuple[Method, int]:
    """A method tuned for its share of the budget, and how many steps that is."""
    method = METHODS[name].tuned(problem, *begin)
    if budget == "oracles":
        before = sum(method.preparation(m).values())
        # A race counts its budget in steps of MB-MOMEHA.
        cost = gradient_cost(MBMOMEHA() if _raced(problem, name) else method, m)
        steps = max(1, int((share - before) // cost))
    else:
        clock = front(
            problem,
            *begin,
            preferences=grid(m, preferences) if method.uses_preference else None,
            seeds=seeds,
            method=method,
            steps=CALIBRATION,
            compile=False,
            progress=False,
        )
        steps = max(1, int(share * CALIBRATION / clock.seconds))
    return method_of(MethodConfig(name), Setup(problem, [begin]), steps), steps


def _run(
    problem: Problem,
    name: str,
    begin: tuple[Tree, Tree],
    m: int,
    tuned: Callable[[str], tuple[Method, int]],
    traced: Callable[[str, Method, int], tuple[ParetoFront, ParetoFront | None]],
) -> Contender:
    notes: list[str] = []
    known = problem if isinstance(problem, KnownProblem) else None
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        try:
            method, steps = tuned(name)
            raw, solved = traced(name, method, steps)
            resolved = _resolved(problem, raw, solved, steps, _raced(problem, name))
            method = raw.method or method
        except Interrupted as error:
            raise KeyboardInterrupt from error
        except BiparetoError as error:
            return _absent(name, time.perf_counter() - began, str(error))
        notes += [str(warning.message) for warning in caught]
        failures = [failure for failure in raw.failure if failure is not None]
        if failures:
            notes.append(f"{len(failures)} runs left the finite numbers: {failures[0]}")
        small = tree.numel(begin) <= CERTIFIED_SIZE
        certified = range(len(resolved)) if known or small else ()
        kkt = max((_kkt(problem, resolved, i) for i in certified), default=math.nan)
    counts = (MBMOMEHA() if _raced(problem, name) else method).cost(m, steps)
    return Contender(
        name=name,
        method=method,
        front=resolved,
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


def _resolved(
    problem: Problem, raw: ParetoFront, solved: ParetoFront | None, steps: int, raced: bool
) -> ParetoFront:
    """The lower level solved again, as it is already in `solved` where that is given; of networks,
    y trained on by Adam until g stops falling.
    """
    if raced:  # its y was trained on g alone already
        return raw if solved is None else solved
    if not comes_in_batches(problem):
        return raw.resolve_lower() if solved is None else solved
    y = train_on(problem, raw.x, raw.y, rate=RATE, steps=max(20, steps // 3), batched=raw.batched)
    return raw.with_y(y, None, problem)


def _kkt(problem: Problem, found: ParetoFront, i: int) -> float:
    x, y = tree.select(found.x, i), tree.select(found.y, i)
    if not all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves((x, y))):
        return math.inf
    return certify(problem, x, y).kkt


def _worst(values: Tensor) -> float:
    return float(values.nan_to_num(nan=math.inf).max())


@dataclass(frozen=True)
class Kept:
    """Where the runs of a comparison are, and how they are made.

    Args:
        path: the folder of the comparison; that of a method is methods/NAME.
        config: of the runs, all but the method and its steps.
        setup: their problem, where it has been built already.
    """

    path: Path
    config: SweepConfig
    setup: Setup | None = None

    def begun(self, name: str) -> tuple[Method, int] | None:
        """The method as it was begun earlier, and its steps; None where it was not.  Runs of
        another question are refused.
        """
        path = self.path / "methods" / name
        if not RunFolder(path).exists():
            return None
        plan = plan_of(path, trusted=True)
        held, asked = to_dict(plan.config), to_dict(self.config)
        for key in ("problem", "preferences", "seeds", "compile"):
            if held[key] != asked[key]:
                raise InvalidInput(
                    f"{path} holds runs of another comparison ({key}: {held[key]}, not "
                    f"{asked[key]}); choose another folder, or the same settings to go on"
                )
        return plan.method, plan.config.steps

    def front(
        self, name: str, method: Method | None, steps: int, progress: bool | None
    ) -> tuple[ParetoFront, ParetoFront]:
        """The front of a method, begun or gone on with: as it was returned, and with the lower
        level solved again.

        Args:
            method: None tunes the one of that name, by a race where data comes in batches.
        """
        path = self.path / "methods" / name
        if RunFolder(path).exists():
            found = resume(path, progress=progress)
        else:
            asked = MethodConfig(name)
            if method is not None:
                own = {f.name: getattr(method, f.name) for f in fields(method)}
                asked = MethodConfig(name, "plain", own)
            config = replace(self.config, method=asked, steps=steps)
            found = sweep(config, path, setup=self.setup, progress=progress)
        y, _ = returned(path)
        return replace(found, y=y, lower_residual=None), found
