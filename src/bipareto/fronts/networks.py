"""The default for data in batches: a race, a run for every preference, and trainings to judge.

Nothing is asked of the user but the budget `steps`: the gradients that MB-MOMEHA's runs of so many
steps would take.  See `bipareto.run.race` for the race and docs/networks.md for what was measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning
from bipareto.fronts.batch import join_runs, rows_of, run_states
from bipareto.fronts.pareto import ParetoFront, front_of
from bipareto.fronts.refine import Model, best_for, fit, propose
from bipareto.methods.base import Start, State
from bipareto.problem import Problem, tree
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.run.budget import Plan, plan_of
from bipareto.run.loop import LoopOptions
from bipareto.run.race import GAIN, Race, median_lopsided, raced_or_rules
from bipareto.run.results import Run, warn_of_failures
from bipareto.run.training import objectives_of, train
from bipareto.run.units import Units

#: Points that the model proposes at a time, at least.
TOGETHER = 4
#: In the last of so many parts of all rounds it proposes what it expects to be best.
PARTS = 3
#: Many coordinates: the share of the way from x0 to a run's last x where an answer is sought too.
HALFWAY = 0.5
#: The length of a training was chosen at x0.  The answers are trained on for as many rounds of that
#: length as this share of the budget pays for, while that makes F better by `GAIN`.
LONGER = 0.05
#: Answers are one where no objective differs by more than this share of its size.
ALIKE = 0.01
#: By so much one objective is larger than another where that may be why.
LARGER = 5.0


def raced_front(
    problem: Problem, start: Start, preferences: Tensor, seeds: Sequence[int], options: LoopOptions
) -> ParetoFront | None:
    """What `front` and `solve` do without a method where data comes in batches; None, with a
    warning, where the budget allows no race.

    Args:
        start: what a method has prepared.
        preferences: (P, m).
    """
    plan = plan_of(start.x, preferences.shape[1], len(preferences), options.steps)
    raced = raced_or_rules(problem, start.x, start.y, plan, seeds[0], preferences)
    if raced is None:
        return None
    return front_of_race(problem, start.x, start.y, preferences, seeds, raced, plan, options)


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
    returned y is y0 trained on g with the returned x, on for longer where that helps: no step of it
    has seen the upper level's data.

    Args:
        preferences: (P, m).
        raced, plan: what `race` found, and with which plan.
        options: of the loop; its steps follow from the plan.
    """
    count, m = preferences.shape
    left = plan.budget - raced.gradients
    # Candidates between which the race has not decided are all run for one preference.
    runs = count + len(raced.run) - 1
    rounds = int(LONGER * plan.budget / (count * raced.training))
    judged = count * (rounds + (1 if plan.few else 2))
    judged += len(raced.run) if len(raced.run) > 1 else 0
    steps = (left - judged * raced.training) // (runs * (2 + m))
    steps = max(1, min(steps, raced.steps) if plan.few else steps)
    methods = raced.methods(steps)
    # What a start is warned of was said before the race.
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        start = methods[0].prepare(problem, x0, y0)
    options = replace(options, steps=steps)
    options = replace(options, record_every=min(options.block, steps))
    first = median_lopsided(preferences)

    def run(states: list[State], seeds: list[int]) -> tuple[Run, bool]:
        return run_states(problem, methods[0], states, seeds, m, options, raced.batched)

    done, batched = run(
        [raced.begin(f, start, preferences[first]) for f in methods], [seeds[0]] * len(methods)
    )
    best = (
        _trained(problem, done.state.x, y0, raced, seeds[0]).best(preferences[first], raced.units)
        if len(methods) > 1
        else 0
    )
    rest = [(seed, i) for seed in seeds for i in range(count) if (seed, i) != (seeds[0], first)]
    if rest:
        more, batched = run(
            [raced.begin(methods[best], start, preferences[i]) for _, i in rest],
            [seed for seed, _ in rest],
        )
        done = join_runs([done, more])
    place = {pair: len(methods) + k for k, pair in enumerate(rest)} | {(seeds[0], first): best}
    rows = [place[seed, i] for seed in seeds for i in range(count)]
    done = rows_of(done, rows)
    trainings = max(0, left - runs * steps * (2 + m)) // raced.training
    ends = []
    for k, seed in enumerate(seeds):
        x = tree.select(done.state.x, slice(k * count, (k + 1) * count))
        ends.append(_trained(problem, x, y0, raced, seed))
    if plan.few:
        further = trainings - (1 + rounds) * count
        further = 0 if done.interrupted else further
        answers, units, stopped = _refined(problem, ends, y0, preferences, seeds, raced, further)
        if stopped:
            done = replace(done, reason=["interrupted"] * len(rows))
    else:
        answers, units = _halfway(problem, ends, x0, y0, preferences, seeds, raced), raced.units
    x, y = tree.map_(lambda *leaves: torch.cat(leaves), *(tried[:2] for tried in answers))
    wanted = preferences.double().repeat(len(seeds), 1)
    x, y, stayed = no_worse_than_nothing(problem, x, y, wanted, raced, units)
    rounds = 0 if done.interrupted else rounds
    y, longer = _trained_on(problem, x, y, wanted, raced, units, seeds, rounds)
    state: Any = done.state
    done = replace(done, state=state._replace(x=x, y=y))
    run_seeds = [seed for seed in seeds for _ in range(count)]
    found = front_of(problem, methods[best], done, wanted, run_seeds, batched)
    warn_of_failures(done.failure, "their last finite x was trained and judged as all others")
    warn_below_ideal(found.objectives, raced.units.ideal)
    warn_of_one_answer(found.objectives[:count], raced)
    return replace(found, race=replace(raced, longer=longer, stayed=stayed))


class _Trained(NamedTuple):
    """Points x, their y trained on g (stacks of R) and the objectives (R, m) there."""

    x: Tree
    y: Tree
    objectives: Tensor

    def joined(self, other: _Trained) -> _Trained:
        return tree.map_(lambda a, b: torch.cat([a, b]), self, other)

    def at(self, rows: Any) -> _Trained:
        """Those points."""
        index = torch.as_tensor(rows)
        return tree.map_(lambda leaf: leaf[index.to(leaf.device)], self)

    def with_y_on(self, device: torch.device | str) -> _Trained:
        return self._replace(y=tree.map_(lambda leaf: leaf.to(device), self.y))

    def best(self, preference: Tensor, units: Units) -> int:
        """The point with the smallest F."""
        return int(units.value(self.objectives, preference).argmin())


def _trained(problem: Problem, x: Tree, y0: Tree, raced: Race, seed: int) -> _Trained:
    start = tree.expand(y0, tree.flat_axis(x))
    y = _train(problem, x, start, raced, seed)
    return _Trained(x, y, _objectives(problem, x, y, raced))


def _train(problem: Problem, x: Tree, y: Tree, raced: Race, seed: int) -> Tree:
    """y after a training like those of the race."""
    return train(
        problem, x, y, rate=raced.rate, steps=raced.training, seed=seed, batched=raced.batched
    )


def _objectives(problem: Problem, x: Tree, y: Tree, raced: Race) -> Tensor:
    """(R, m) on all of the upper level's data."""
    return objectives_of(problem, x, y, problem.batch("upper", "full"), raced.batched)


def _halfway(
    problem: Problem,
    ends: Sequence[_Trained],
    x0: Tree,
    y0: Tree,
    preferences: Tensor,
    seeds: Sequence[int],
    raced: Race,
) -> list[_Trained]:
    """The better of where runs ended and of half of the way: a run may have gone too far, because x
    was led by a y that had learned already.
    """
    answers = []
    for seed, end in zip(seeds, ends, strict=True):
        x = tree.map_(
            lambda a, b: torch.lerp(a, b, HALFWAY), tree.expand(x0, len(preferences)), end.x
        )
        half = _trained(problem, x, y0, raced, seed)
        now, then = (raced.units.value(t.objectives, preferences) for t in (half, end))
        answers.append(tree.where_run(now < then, half, end))
    return answers


def _refined(
    problem: Problem,
    ends: Sequence[_Trained],
    y0: Tree,
    preferences: Tensor,
    seeds: Sequence[int],
    raced: Race,
    trainings: int,
) -> tuple[list[_Trained], Units, bool]:
    """For each preference the best of the race, the runs (`ends`) and of `trainings` at points that
    a model of all of them proposes; the range that objectives are measured by; and whether Ctrl-C
    ended the trainings.
    """
    rows, device = preferences.cpu().double(), tree.first_leaf(y0).device
    pools, expected, stopped = [], [], False
    for seed, end in zip(seeds, ends, strict=True):
        further = 0 if stopped else trainings
        pool, model, stopped_here = _searched(problem, end, y0, rows, seed, raced, further)
        stopped |= stopped_here
        pools.append(pool)
        expected.append(pool.objectives.cpu().double() if model is None else model.expected())
    units = Units.of_front(torch.cat(expected))
    best = [best_for(f, rows, units) for f in expected]
    answers = [p.at(index).with_y_on(device) for p, index in zip(pools, best, strict=True)]
    return answers, units, stopped


def _searched(
    problem: Problem, end: _Trained, y0: Tree, rows: Tensor, seed: int, raced: Race, trainings: int
) -> tuple[_Trained, Model | None, bool]:
    """All trainings of one seed, and the model of them, None where all have failed; and whether
    Ctrl-C ended them, which keeps those that are there.
    """
    # Trained networks wait in the main memory until one of them is taken.
    pool = _Trained(raced.x, raced.y, raced.objectives).joined(end).with_y_on("cpu")
    if not len(_good(pool)):
        return pool, None, False
    stream, like = generator("refine", 0, seed), tree.select(end.x, 0)
    together = rows.repeat(-(-TOGETHER // len(rows)), 1)
    model, rounds, stopped = None, trainings // len(together), False
    for k in range(rounds):
        try:
            model, late = fit(*_finite(pool), before=model), k >= rounds - max(1, rounds // PARTS)
            flat = propose(model, together, raced.units, stream, greedy=late).to(
                tree.first_leaf(end.x)
            )
            x = tree.stack([tree.unravel(row, like) for row in flat])
            # Each round has draws of its own: what is good by the luck of one is not in the others.
            more = _trained(problem, x, y0, raced, (seed + k + 1) % 2**63)
        except KeyboardInterrupt:
            stopped = True
            break
        pool = pool.joined(more.with_y_on("cpu"))
    return pool.at(_good(pool)), fit(*_finite(pool), before=model), stopped


def _good(pool: _Trained) -> Tensor:
    points = tree.ravel(pool.x, 1)
    good = torch.isfinite(pool.objectives).all(1) & torch.isfinite(points).all(1)
    return good.nonzero().flatten()


def _finite(pool: _Trained) -> tuple[Tensor, Tensor]:
    good = _good(pool)
    return tree.ravel(pool.x, 1)[good], pool.objectives[good]


def _trained_on(
    problem: Problem,
    x: Tree,
    y: Tree,
    preferences: Tensor,
    raced: Race,
    units: Units,
    seeds: Sequence[int],
    rounds: int,
) -> tuple[Tree, int]:
    """(y, how many rounds): the answers trained on at the same rate; each keeps the y that is best
    on the upper level's data.
    """
    count = len(preferences) // len(seeds)

    def values(own: Tree) -> Tensor:
        return units.value(_objectives(problem, x, own, raced), preferences)

    value = values(y)
    for k in range(rounds):
        parts = []
        for i, seed in enumerate(seeds):
            rows = slice(i * count, (i + 1) * count)
            start = tree.select(x, rows), tree.select(y, rows)
            draws = (seed + k + 1) % 2**63
            parts.append(_train(problem, *start, raced, draws))
        further = tree.map_(lambda *leaves: torch.cat(leaves), *parts)
        new, before = values(further), value
        y, value = tree.where_run(new < value, further, y), torch.minimum(new, value)
        if not value.mean() < before.mean() - GAIN * before.mean().abs():
            return y, k + 1
    return y, rounds


def no_worse_than_nothing(
    problem: Problem, x: Tree, y: Tree, preferences: Tensor, raced: Race, units: Units
) -> tuple[Tree, Tree, tuple[int, ...]]:
    """The answers (x, y), where doing nothing is better the best of all answers, of the race and
    x0 in place; and the runs for which x0, with y trained alike, is returned.

    Warns where these are half of all or more.  For one preference of several x0 may simply be
    best, as equal weights of two tasks alike are when both matter alike.
    """
    runs = len(preferences)
    every_x, every_y = (
        tree.map_(lambda a, b: torch.cat([a, b]), *pair) for pair in ((x, raced.x), (y, raced.y))
    )
    values = units.value(_objectives(problem, every_x, every_y, raced)[:, None], preferences)
    index, last = torch.arange(runs, device=values.device), len(values) - 1
    worse = values[index, index] > values[last]
    index = torch.where(worse, values.argmin(0), index)
    x, y = tree.select(every_x, index), tree.select(every_y, index)
    # A run that has not moved, or whose best training is the race's at x0, returns x0 too.
    still = (tree.ravel(x, 1) == tree.ravel(tree.select(raced.x, -1))).all(1)
    rows = tuple(still.nonzero().flatten().tolist())
    if 2 * len(rows) >= runs:
        warnings.warn(
            f"x0, with y trained alike, is better than what was found for {len(rows)} of {runs} "
            f"runs ({list(rows[:8])}), and is returned for them: more steps, or a start from which "
            "x has more to say, may help; front.race shows what was tried",
            BiparetoWarning,
            stacklevel=4,
        )
    return x, y, rows


def warn_below_ideal(objectives: Tensor, ideal: Tensor) -> None:
    """Say which of the objectives (R, m) have fallen below the ideal point (m,) of runs."""
    low = objectives.amin(0).cpu().double()
    fell = [
        f"objective {i} ({float(low[i]):.4g})" for i in (low < ideal).nonzero().flatten().tolist()
    ]
    if fell:
        warnings.warn(
            f"{', '.join(fell)} fell below the ideal point of runs ({_listed(ideal)}), where "
            "preferences work the wrong way round; add a constant that keeps each objective above "
            "zero",
            BiparetoWarning,
            stacklevel=4,
        )


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values.tolist())


def warn_of_one_answer(objectives: Tensor, raced: Race) -> None:
    """Say where the answers (P, m) to different preferences are all alike, and what may be why."""
    size, extent = objectives.abs().amax(0), raced.units.extent
    spread = objectives.amax(0) - objectives.amin(0)
    if len(objectives) < 2 or not bool((spread <= ALIKE * size).all()):
        return
    measured = size.cpu().double() / extent
    high, low = int(measured.argmax()), int(measured.argmin())
    why = (
        f"objective {high} (about {float(size[high]):.2g}) is much larger than objective {low} "
        f"(about {float(size[low]):.2g}) and decides for all of them: divide each by what one unit "
        "of it is worth to you"
        if float(measured[high]) > LARGER * float(measured[low])
        else "more steps, a y0 that has learned already, or an x that has more to say may help"
    )
    warnings.warn(
        f"all {len(objectives)} preferences have answers whose objectives are within {ALIKE:.0%} "
        f"of each other; {why}",
        BiparetoWarning,
        stacklevel=4,
    )
