"""`front`: a problem solved for many preferences and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bipareto.certificate.remaining import DENSE
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.adaptive import trace
from bipareto.fronts.batch import MOST_RUNS, run_states
from bipareto.fronts.networks import raced_front
from bipareto.fronts.pareto import ParetoFront, front_of
from bipareto.methods import Method, Twin
from bipareto.methods.parts.preferences import as_preference, covering, named
from bipareto.problem import Problem, tree, validation
from bipareto.problem.base import as_problem
from bipareto.problem.tree import Tree
from bipareto.run.arrival import (
    ASK,
    NOT_SEEN,
    ONE_BY_ONE,
    OWN_METHOD,
    TRAINED,
    arrival,
    warn_of_missing,
)
from bipareto.run.loop import LoopOptions, choose_method, method_kind, warn_of_runaways
from bipareto.run.results import Callback, warn_of_failures

__all__ = ["front"]


def front(
    problem: Problem,
    x0: Tree | nn.Module,
    y0: Tree | nn.Module,
    *,
    preferences: Any = None,
    budget: int | None = None,
    seeds: Sequence[int] = (0,),
    method: Method | None = None,
    steps: int = 20_000,
    compile: bool | str | None = None,
    record_every: int | None = None,
    tol: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> ParetoFront:
    """Solve a problem for many preferences and seeds, all side by side.

    Args:
        preferences: (P, m) rows on the simplex, e.g. `preferences.grid(2, 11)`; None is
            `preferences.covering(m)`, 11 for two objectives and at most 36 beyond while m allows
            it; a text is read by `preferences.named` ("random:20", "strong", a file);
            "adaptive" chooses them on the way, see `bipareto.fronts.adaptive.trace`. For methods
            without preferences leave it out: one run per seed.
        budget: with "adaptive" only, the work of so many full runs for each seed.
        seeds: every preference is run once with each seed; preferences of one seed share their
            draws.
        others: as in `solve`.

    A front of the default is looked at when it is there, as one in fitted coordinates is: runs that
    have not converged, a lower level that cannot be solved, preferences that all end at one point
    and ends that are not reached are warned of, and `front.remaining` is what is left to gain.

    Returns:
        a `ParetoFront` of R = P * len(seeds) runs, seed by seed; of as many as the budget allows
        with "adaptive".

    >>> import torch
    >>> problem = Problem(
    ...     upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y + 1)**2]),
    ...     lower=lambda x, y: (y - x)**2,
    ... )
    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> found = front(problem, zero, zero, steps=2000).resolve_lower()
    >>> found.objectives.shape
    torch.Size([11, 2])
    """
    options = LoopOptions(steps, compile, record_every, tol, callbacks, progress)
    as_problem(problem)
    seeds = validation.seeds(seeds, most=MOST_RUNS)
    if (budget is not None) != (isinstance(preferences, str) and preferences == "adaptive"):
        raise InvalidInput(
            f'budget = {budget} with preferences = {preferences!r}; preferences="adaptive" and '
            "budget=N go together"
        )
    raced = method is None and budget is None and method_kind(problem) is Twin
    looked_at = method is None or getattr(method, "coordinates", "plain") == "fitted"
    method = choose_method(method, problem, x0, y0, steps)
    if budget is not None:
        return trace(problem, [(x0, y0)], budget, method, seeds, options)
    start = method.prepare(problem, x0, y0)
    m = start.objectives.shape[0]
    if isinstance(preferences, str):
        preferences = named(preferences, m, seeds[0])
    if method.uses_preference:
        wanted = list(
            as_preference(covering(m) if preferences is None else preferences, m).reshape(-1, m)
        )
    elif preferences is None:
        wanted = [None]
    else:
        raise InvalidInput(
            f"{type(method).__name__} has no preferences; call front without them (one run per "
            "seed), or use MOMEHA"
        )
    if len(wanted) * len(seeds) > MOST_RUNS:
        raise InvalidInput(
            f"{len(wanted):,} preferences and {len(seeds):,} seeds are "
            f"{len(wanted) * len(seeds):,} runs, which can be {MOST_RUNS:,} at most: their states "
            "would not fit into memory; take fewer, or one part after the other"
        )
    if raced:
        rows = torch.stack([w for w in wanted if w is not None])
        found = raced_front(problem, start, rows, seeds, options)
        if found is not None:
            small = tree.ravel((start.x, start.y)).numel() <= DENSE
            return _looked_at(problem, found) if small else replace(found, unseen=TRAINED)
    # Zeros were warned of above, once for all.
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        begun = [method.begin(start, w) for w in wanted]
    states = begun * len(seeds)
    run_seeds = [seed for seed in seeds for _ in begun]
    run, batched = run_states(problem, method, states, run_seeds, m, options)
    warn_of_runaways(start.y, run, batched=True)
    preference = torch.stack(
        [torch.full((m,), torch.nan, dtype=torch.float64) if w is None else w for w in wanted]
    ).repeat(len(seeds), 1)
    warn_of_failures(run.failure)
    found = front_of(problem, method, run, preference, run_seeds, batched)
    return _looked_at(problem, found) if looked_at else replace(found, unseen=OWN_METHOD)


def _looked_at(problem: Problem, found: ParetoFront) -> ParetoFront:
    """The front with what is left to gain, after warnings of what is missing."""
    if found.interrupted:
        return replace(found, unseen="the runs were interrupted")
    if not found.batched:
        warn_of_missing([f"{NOT_SEEN}, because {ONE_BY_ONE}; {ASK}"], stacklevel=4)
        return replace(found, unseen=ONE_BY_ONE)
    # After a race the steps of a run are no measure of the budget that was asked for.
    raced = found.race is not None
    answers = found.x, found.y, found.failure, found.preference, None if raced else found.run
    seen = arrival(problem, found.method, *answers, trained=raced)
    warn_of_missing(seen.said, stacklevel=4)
    return replace(found, remaining=seen.remaining, unseen=seen.unseen)
