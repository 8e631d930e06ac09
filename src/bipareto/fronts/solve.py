"""`solve`: a problem solved for one preference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from bipareto.fronts.networks import raced_front
from bipareto.methods import Method, Twin
from bipareto.problem import Problem, validation
from bipareto.problem.base import as_problem
from bipareto.problem.tree import Tree
from bipareto.run.arrival import OWN_METHOD, TRAINED, looked_over
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

__all__ = ["solve"]


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
            for a front, from 3,000).
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
    return looked_over(problem, answer, run) if looked_at else replace(answer, unseen=OWN_METHOD)
