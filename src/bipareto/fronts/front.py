"""`solve` and `front`: a problem solved for one preference, and for many preferences and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.adaptive import trace
from bipareto.fronts.batch import MOST_RUNS, run_states
from bipareto.fronts.networks import raced_front
from bipareto.fronts.pareto import ParetoFront, front_of
from bipareto.methods import Method, Twin
from bipareto.methods.parts.preferences import as_preference, covering, named
from bipareto.methods.tuning.local import DENSE
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
    looked_over,
    standstill,
    warn_of_missing,
)
from bipareto.run.loop import (
    Begun,
    LoopOptions,
    choose_method,
    drive,
    method_kind,
    solution_of,
    warn_of_runaways,
)
from bipareto.run.results import Callback, Solution, warn_of_failures


def solve(
    problem: Problem,
    x0: Tree | nn.Module,
    y0: Tree | nn.Module,
    *,
    preference: Any = None,
    method: Method | None = None,
    steps: int = 20_000,
    seed: int = 0,
    compile: bool | str | None = None,
    record_every: int | None = None,
    tol: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Solution:
    """Solve one problem for one preference.

    Args:
        problem: f and g.
        x0, y0: where to start: a tensor, a tree of tensors, or a module.
        preference: w, m numbers > 0 that sum to 1; None is equal weights.
        method: None is `MOMEHA.tuned(problem, x0, y0, steps=steps)`; `MBMOMEHA.tuned` for a problem
            with a sampler; and where that draws batches of data, `Twin` with the hyperparameters
            that win a race, y trained on g alone at the end, and x0 where nothing better was found
            (docs/networks.md).
        steps: iterations.
        seed: which draws a problem with a sampler makes.
        compile: True, False or a backend's name; None compiles when it pays (from 20,000 steps on;
            for a front, from 3,000; sooner where x and y have millions of numbers).
        record_every: record, look for trouble and call back every so many steps; None gives about
            200 records.
        tol: stop when the method's residual falls to it.
        callbacks: functions of a `Record`; one that returns True ends the run.
        progress: show a bar; None shows it when stderr is a terminal.

    >>> import torch
    >>> problem = Problem(
    ...     upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]),
    ...     lower=lambda x, y: (y - x)**2,
    ... )
    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> answer = solve(problem, zero, zero, steps=2000)
    >>> round(float(answer.x), 2)
    0.5
    """
    options = LoopOptions(steps, compile, record_every, tol, callbacks, progress)
    seed = validation.seed(seed)
    raced = method is None and method_kind(as_problem(problem)) is Twin
    looked_at = method is None or getattr(method, "coordinates", "plain") == "fitted"
    method = choose_method(method, problem, x0, y0, steps)
    start = method.prepare(problem, x0, y0)
    state = method.begin(start, preference)
    if raced:
        found = raced_front(problem, start, state.preference[None].cpu().double(), [seed], options)
        if found is not None:
            return replace(found[0], unseen=TRAINED)
    m = start.objectives.shape[0]
    run = drive(problem, method, Begun(state, [seed], m, batched=False), options)
    warn_of_failures(run.failure)
    warn_of_runaways(start.y, run, batched=False)
    answer = solution_of(problem, method, run, None, seed)
    if run.interrupted:
        return replace(answer, unseen="the run was interrupted")
    if not looked_at:
        return replace(answer, unseen=OWN_METHOD)
    return looked_over(problem, answer, run, start.x)


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
            return _looked_at(problem, found, start.x) if small else replace(found, unseen=TRAINED)
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
    if not looked_at:
        return replace(found, unseen=OWN_METHOD)
    return _looked_at(problem, found, start.x)


def _looked_at(problem: Problem, found: ParetoFront, x0: Tree) -> ParetoFront:
    """The front of runs from x0 with what is left to gain, after warnings of what is missing."""
    if found.interrupted:
        return replace(found, unseen="the runs were interrupted")
    if not found.batched:
        warn_of_missing([f"{NOT_SEEN}, because {ONE_BY_ONE}; {ASK}"], stacklevel=4)
        return replace(found, unseen=ONE_BY_ONE)
    # After a race the steps of a run are no measure of the budget that was asked for.
    raced = found.race is not None
    answers = found.x, found.y, found.failure, found.preference, None if raced else found.run
    seen = arrival(problem, found.method, *answers, trained=raced)
    # What won a race was compared with x0.
    still = [] if raced else standstill(x0, found.x, found.failure)
    warn_of_missing(seen.said or still, stacklevel=4)
    return replace(found, remaining=seen.remaining, unseen=seen.unseen)
