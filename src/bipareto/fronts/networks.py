"""The default for data in batches: a race, a run for every preference, and trainings to judge.

Nothing is asked of the user but the budget `steps`: the gradients that MB-MOMEHA's runs of so many
steps would take.  See `bipareto.run.race` for the race and docs/networks.md for what was measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning
from bipareto.fronts.batch import run_states
from bipareto.fronts.pareto import ParetoFront, front_of
from bipareto.fronts.refine import fit, propose
from bipareto.problem import Problem, tree
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.run.loop import LoopOptions
from bipareto.run.race import Plan, Race, value_of
from bipareto.run.training import objectives_of, train

__all__ = ["front_of_race", "no_worse_than_nothing"]

#: Of the budget, what the runs get where x has few coordinates; trainings get the rest.
RUNS_OF_FEW = 0.3


def front_of_race(
    problem: Problem,
    x0: Tree,
    y0: Tree,
    preferences: Tensor,
    seeds: Sequence[int],
    raced: Race,
    plan: Plan,
    options: LoopOptions,
) -> ParetoFront:
    """The winner of a race run for every preference, and the answers trained and judged.

    With few coordinates the rest of the budget goes into trainings at points that a model of all
    trainings so far proposes, and every preference takes the best of them all, x0 included.  The
    returned y is y0 trained on g with the returned x: it has never seen the upper level's data.

    Args:
        preferences: (P, m).
        raced, plan: what `race` found, and with which plan.
        options: of the loop; its steps follow from the plan.
    """
    runs, m = preferences.shape
    share = RUNS_OF_FEW if plan.few else 1 - raced.share
    trainings = 0 if plan.few else runs * plan.training
    steps = max(1, int((share * plan.budget - trainings) / (runs * (2 + m))))
    method = raced.method(steps)
    begun = method.prepare(problem, x0, y0)
    states = [method.begin(begun, w) for w in preferences] * len(seeds)
    run_seeds = [seed for seed in seeds for _ in range(runs)]
    options = replace(options, steps=steps)
    options = replace(options, record_every=min(options.block, steps))
    run, batched = run_states(problem, method, states, run_seeds, m, options)
    answers = []
    for k, seed in enumerate(seeds):
        x = tree.select(run.state.x, slice(k * runs, (k + 1) * runs))
        if plan.few:
            spent = raced.gradients + runs * steps * (2 + m)
            rounds = max(0, (plan.budget - spent) // (runs * plan.training) - 2)
            x = _refined(problem, x, y0, preferences, seed, raced, rounds)
        answers.append(x)
    x = tree.map_(lambda *leaves: torch.cat(leaves), *answers)
    y = train(
        problem, x, tree.expand(y0, len(run_seeds)), rate=raced.rate, steps=plan.training,
        seed=seeds[0],
    )  # fmt: skip
    wanted = preferences.double().repeat(len(seeds), 1)
    x, y = no_worse_than_nothing(problem, x0, y0, x, y, wanted, raced, seeds[0])
    state: Any = run.state
    run = replace(run, state=state._replace(x=x, y=y))
    return replace(front_of(problem, method, run, wanted, run_seeds, batched), race=raced)


def _refined(
    problem: Problem, x: Tree, y0: Tree, preferences: Tensor, seed: int, raced: Race, rounds: int
) -> Tree:
    """For each preference the best x of the race, the runs and `rounds` of proposed trainings."""
    full, stream = problem.batch("upper", "full"), generator("refine", 0, seed)
    like = tree.select(x, 0)

    def trained(points: Tree) -> Tensor:
        start = tree.expand(y0, tree.flat_axis(points))
        y = train(problem, points, start, rate=raced.rate, steps=raced.training, seed=seed)
        return objectives_of(problem, points, y, full)

    points = [tree.ravel(raced.x, 1), tree.ravel(x, 1)]
    values = [raced.objectives, trained(x)]

    def pool() -> tuple[Tensor, Tensor]:
        every, f = torch.cat(points), torch.cat(values)
        good = torch.isfinite(f).all(1) & torch.isfinite(every).all(1)
        return every[good], f[good]

    for _ in range(rounds):
        flat = propose(fit(*pool()), preferences.cpu().double(), stream).to(points[0])
        stack = tree.stack([tree.unravel(row, like) for row in flat])
        points.append(flat)
        values.append(trained(stack))
    every, f = pool()
    expected = fit(every, f).expected()
    best = [int(value_of(expected, w).argmin()) for w in preferences.cpu().double()]
    return tree.stack([tree.unravel(every[i], like) for i in best])


def no_worse_than_nothing(
    problem: Problem,
    x0: Tree,
    y0: Tree,
    x: Tree,
    y: Tree,
    preferences: Tensor,
    raced: Race,
    seed: int,
) -> tuple[Tree, Tree]:
    """The answers (x, y); where doing nothing is better, the best of all answers and x0 in place.

    Says so of the runs for which x0, with y trained alike, is returned.
    """
    runs, full = len(preferences), problem.batch("upper", "full")
    start = tree.expand(x0, 1)
    own = train(
        problem, start, tree.expand(y0, 1), rate=raced.rate, steps=raced.training, seed=seed
    )
    every_x, every_y = (
        tree.map_(lambda a, b: torch.cat([a, b]), *pair) for pair in ((x, start), (y, own))
    )
    values = value_of(objectives_of(problem, every_x, every_y, full)[:, None], preferences)
    index = torch.arange(runs, device=values.device)
    worse = values[index, index] > values[runs]
    index = torch.where(worse, values.argmin(0), index)
    rows = (index == runs).nonzero().flatten().tolist()
    if rows:
        warnings.warn(
            f"x0, with y trained alike, is better than what was found for {len(rows)} of {runs} "
            f"runs ({rows[:8]}), and is returned for them: more steps, or a start from which x "
            "has more to say, may help; front.race shows what was tried",
            BiparetoWarning,
            stacklevel=4,
        )
    return tree.select(every_x, index), tree.select(every_y, index)
