"""Preferences chosen on the way: where the front is still thin, and started from what is already
solved.

A few preferences, one near each corner of the simplex and its centre, are solved from the start.
Then, round by round, the gaps between neighbouring points of the front are ranked by the
hypervolume that a point inside might add, and the best ones are solved.  Such a run does not begin
at (x_0, y_0) but between its two neighbours, so a fraction of the steps is enough.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.batch import MOST_RUNS, join_runs, run_states
from bipareto.fronts.measures import Array
from bipareto.fronts.pareto import ParetoFront, front_of
from bipareto.fronts.proposals import Neighbours, Proposal, aimed, between, corners, propose
from bipareto.methods import Method
from bipareto.methods.base import PreferredState
from bipareto.methods.parts import scalarization
from bipareto.problem import Problem, tree, validation
from bipareto.problem.tree import Tree
from bipareto.run.loop import LoopOptions
from bipareto.run.results import Run

#: Steps of a warm run as a share of those of a cold one, measured in benchmarks/adaptive.py.
WARM = 0.25


def trace(
    problem: Problem,
    starts: Sequence[tuple[Tree | nn.Module, Tree | nn.Module]],
    budget: int,
    method: Method,
    seeds: Sequence[int] = (0,),
    options: LoopOptions = LoopOptions(),  # noqa: B008 (it is frozen)
    *,
    warm: float = WARM,
    reference: Any = None,
) -> ParetoFront:
    """A front whose preferences are chosen on the way; `front(..., preferences="adaptive",
    budget=N)` is this with one start.

    Args:
        problem: f and g.
        starts: pairs (x_0, y_0); where the lower level has several solutions, give several.  From
            each, the m + 1 preferences of `corners` are solved; the branches that are dominated
            then get no more runs.
        budget: for each seed, the work of so many cold runs.  Warm runs are shorter, so more points
            come back.
        method: must take preferences.
        seeds: as in `front`.
        options: of the loop; `options.steps` is the length of a cold run.
        warm: steps of a warm run as a share of that; it begins at iteration steps - warm * steps of
            the method's schedules, so that every run ends with the same penalty, and with it the
            same bias.  1 makes all runs equally long.
        reference: as in `propose`.
    """
    if not method.uses_preference:
        raise InvalidInput(
            f"{type(method).__name__} has no preferences to adapt; use a method that has, such as "
            "MOMEHA"
        )
    warm = validation.number(warm, "warm", above=0, most=1)
    budget = validation.count(budget, "budget", least=1, most=MOST_RUNS)
    pairs = starts if isinstance(starts, Sequence) else ()
    if not pairs or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InvalidInput(
            f"starts is {validation.shown(starts)}; pass pairs of a start, e.g. [(x0, y0)]"
        )
    if (name := getattr(method, "scalarization", None)) is not None:
        scalarization.get(name).part("aim")
    begun = [method.prepare(problem, x, y) for x, y in pairs]
    m = begun[0].objectives.shape[0]
    if m < 2:
        raise InvalidInput(
            "there is one objective, so there is one preference and nothing to adapt; call front "
            "without preferences, or solve"
        )
    cold = [(start, w) for start in begun for w in corners(m)]
    if budget < len(cold):
        raise InvalidInput(
            f"budget = {budget}, but {len(cold)} runs come first (near each of the {m} corners and "
            "at the centre, from each start); allow more"
        )
    steps = options.steps
    short = max(1, math.ceil(warm * steps))
    options = replace(options, record_every=options.block)
    shorter = replace(options, steps=short)
    parts: list[_Found] = []
    for seed in seeds:
        if parts and parts[-1].run.interrupted:
            break
        done = _Found.solve(
            problem,
            method,
            [method.begin(start, w) for start, w in cold],
            [seed] * len(cold),
            m,
            options,
        )
        left, middles, tried = (
            (budget - len(cold)) * steps,
            _Middles(problem, method),
            set[Neighbours](),
        )
        while left >= short and not done.stopped:
            predict = partial(middles.expected, done)
            chosen = propose(
                done.objectives,
                done.preference,
                min(len(cold), left // short),
                predict=predict,
                reference=reference,
                tried=tried,
            )
            if not chosen:
                break
            tried |= {proposal.parents for proposal in chosen}
            states = [
                _warm_state(problem, method, done.run, middles, proposal, steps - short)
                for proposal in chosen
            ]
            done = done.joined(
                _Found.solve(problem, method, states, [seed] * len(states), m, shorter)
            )
            left -= len(states) * short
        parts.append(done)
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined(part)
    return front_of(problem, method, whole.run, whole.preference, whole.seeds, whole.batched)


class _Found(NamedTuple):
    """What is solved so far: the runs, their preferences (R, m), objectives (R, m) and seeds."""

    run: Run
    preference: Tensor
    objectives: Tensor
    seeds: list[int]
    batched: bool

    @classmethod
    def solve(
        cls,
        problem: Problem,
        method: Method,
        states: Sequence[PreferredState],
        seeds: list[int],
        m: int,
        options: LoopOptions,
    ) -> _Found:
        run, batched = run_states(problem, method, states, seeds, m, options)
        preference = torch.stack([state.preference for state in states]).to("cpu", torch.float64)
        found = front_of(problem, method, run, preference, seeds, batched)
        return cls(run, preference, found.objectives, seeds, batched)

    @property
    def stopped(self) -> bool:
        return any(reason in ("interrupted", "callback") for reason in self.run.reason)

    def joined(self, other: _Found) -> _Found:
        return _Found(
            join_runs([self.run, other.run]),
            torch.cat([self.preference, other.preference]),
            torch.cat([self.objectives, other.objectives]),
            self.seeds + other.seeds,
            self.batched and other.batched,
        )


class _Middles:
    """The means of neighbours, computed once: what starts there, and what to expect there."""

    def __init__(self, problem: Problem, method: Method) -> None:
        self.problem, self.method = problem, method
        self.known: dict[Neighbours, tuple[tuple[Tree, Tree], Tensor] | None] = {}

    def __call__(self, run: Run, group: Neighbours) -> tuple[tuple[Tree, Tree], Tensor] | None:
        """((x, y), objectives (m,)) between the runs; None where the lower level forbids it."""
        if group not in self.known:
            middle = between(
                self.problem,
                [(tree.select(run.state.x, i), tree.select(run.state.y, i)) for i in group],
            )
            with torch.no_grad():
                self.known[group] = (
                    None
                    if middle is None
                    else (middle, self.problem.upper(*middle, self.problem.batch("upper", "full")))
                )
        return self.known[group]

    def expected(self, done: _Found, group: Neighbours) -> tuple[Array, Array] | None:
        """Objectives there, and the preference that aims at them."""
        found = self(done.run, group)
        if found is None:
            return None
        f, rows = found[1].cpu().to(torch.float64), list(group)
        ideal = getattr(done.run.state, "ideal", None)
        w = aimed(
            self.method,
            f,
            done.preference[rows],
            done.objectives[rows],
            None if ideal is None else ideal[rows],
        )
        return f.numpy(), w.numpy()


def _warm_state(
    problem: Problem, method: Method, run: Run, middles: _Middles, proposal: Proposal, begin: int
) -> PreferredState:
    """The state of a proposal, between its parents, or at the one that serves its preference best;
    its schedules are at iteration `begin`.
    """
    middle = middles(run, proposal.parents)
    ends = [(tree.select(run.state.x, i), tree.select(run.state.y, i)) for i in proposal.parents]
    # The lower level is solved there already, to the accuracy of the method.
    settled = replace(method, warmup=0) if getattr(method, "warmup", 0) else method  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", BiparetoWarning
        )  # the problem was checked, and warned of, at the start
        starts = [settled.prepare(problem, x, y) for x, y in ([middle[0]] if middle else ends)]
    start = min(starts, key=lambda one: float((proposal.preference * one.objectives.cpu()).max()))
    state = settled.begin(start, proposal.preference)
    return state._replace(t=state.t + begin)
