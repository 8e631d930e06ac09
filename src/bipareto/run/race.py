"""A race in place of hyperparameters: candidates run side by side on the problem itself.

For networks, probes of the start say little.  So a quarter of the budget goes into short runs of
`Twin` with different horizons 1/rho and different distances that x may travel, all in one batch;
each candidate's x is judged by the objectives after y was trained on g alone from its start.  Doing
nothing, x0, is judged with them.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, NotBatchable
from bipareto.methods import Twin
from bipareto.methods.base import Draw, Start, State
from bipareto.methods.parts.schedule import Cosine
from bipareto.problem import Problem, tree
from bipareto.problem.sampler import Minibatches
from bipareto.problem.tree import Tree
from bipareto.run.budget import CANDIDATES, LEAST_STEPS, MODERATE, RATES, Plan
from bipareto.run.heldout import HeldOut
from bipareto.run.steppers import stepper
from bipareto.run.stepping import Stepper, draw, over_runs
from bipareto.run.training import objectives_of, train
from bipareto.run.units import Units

__all__ = ["Candidate", "Race", "comes_in_batches", "median_lopsided", "race", "raced_or_rules"]

#: The smallest rate whose F is within this share of the best is taken: what is tuned at the edge of
#: what trains at all does not survive another training.
TIE = 0.05
#: A rate that takes g less than this share of the way to its lowest has not trained y, however good
#: F is there: a penalty, a size or a gap between groups is smallest where nothing was learned.
LEARNED = 0.5
#: g is compared on so many draws.
DRAWS = 8
#: Trainings are doubled, up to the steps of a run, while that lowers F at x0 by this share.
GAIN = 0.03
#: The share of the budget that one look at a longer training may cost.
LOOK = 0.05
#: Where x has many coordinates and no candidate is better than x0 by this share, the race was too
#: short to tell, and the moderate one is run as well.
DECISIVE = 0.1
#: A joint run is longer than a training, and noisy steps of y drown the twin: half of the rate.
JOINT_RATE = 0.5


class Candidate(NamedTuple):
    """What ran, (rho, travel, shared), and F after y was trained; x0 has the travel 0."""

    rho: float
    travel: float
    shared: float
    value: float


@dataclass(frozen=True)
class Race:
    """What was tried before the runs began, and what won.

    candidates: all of them with x0 last, best values smallest; winner: the best of those that
    move x; run: the winner, or, where none is clearly better than x0, another one beside it, and
    what is better after a whole run is run for the other preferences; rate: Adam's rate for
    trainings of y; rates: (rate, steps, F) of the trainings at x0 that it and `training`, their
    length, were chosen by; steps: of each candidate; gradients: what the race has cost, `share` of
    the budget.
    """

    candidates: tuple[Candidate, ...]
    winner: Candidate
    run: tuple[Candidate, ...]
    rate: float
    rates: tuple[tuple[float, int, float], ...]
    steps: int
    training: int
    gradients: int
    share: float
    #: what F measures objectives by, where candidates are judged and in runs
    units: Units
    #: the candidates' x, their trained y (stacks, x0 last) and objectives (C, m), for those who go
    #: on from there
    x: Tree = field(repr=False)
    y: Tree = field(repr=False)
    objectives: Tensor = field(repr=False)
    #: whether candidates ran side by side; False where vmap cannot batch the losses
    batched: bool = True
    #: rounds of `training` steps that the front's answers were trained on for
    longer: int = 0
    #: runs of the front, by their number, for which x0 is returned
    stayed: tuple[int, ...] = ()

    def method(self, steps: int) -> Twin:
        """The winner for a run of `steps`: x travels as the root of the steps, as noise does."""
        return self.methods(steps)[0]

    def methods(self, steps: int) -> tuple[Twin, ...]:
        """What is run, for runs of `steps`; the winner first."""
        return tuple(_candidate(c, self.rate, steps, self.steps) for c in self.run)

    def summary(self) -> dict[str, Any]:
        """What was tried and what won, as JSON."""
        return {
            "candidates": [c._asdict() for c in self.candidates],
            "winner": self.winner._asdict(),
            "run": [c._asdict() for c in self.run],
            "rates": [list(pair) for pair in self.rates],
            "extent": self.units.extent.tolist(),
            "stayed": list(self.stayed),
            **{
                name: getattr(self, name)
                for name in ("rate", "steps", "training", "longer", "gradients", "share")
            },
        }

    def __str__(self) -> str:
        rows = [
            f"{c.rho:8g} {c.travel:8g} {c.shared:8g} {c.value:10.4f}"
            f"{'  <' if c in self.run else ''}"
            for c in self.candidates[:-1]
        ]
        head = f"{'rho':>8} {'travel':>8} {'shared':>8} {'F trained':>10}"
        nothing = f"{'x0':>8} {'':>8} {'':>8} {self.candidates[-1].value:10.4f}"
        cost = (
            f"y trained for {self.training} steps at rate {self.rate:g}; {self.gradients} "
            f"gradients, {self.share:.0%} of the budget"
        )
        sizes = ", ".join(f"{value:.3g}" for value in self.units.extent.tolist())
        apart = bool((self.units.extent != 1).any())
        measured = [f"objectives differ in size and are measured by {sizes}"] if apart else []
        stayed = [f"x0 is returned for runs {list(self.stayed)}"] if self.stayed else []
        return "\n".join([head, *rows, nothing, cost, *measured, *stayed])

    def begin(self, method: Twin, start: Start, preference: Tensor) -> State:
        """The state of a run for a preference, with objectives measured as the race has found."""
        return self.units.asked(method.begin(start, preference))


def comes_in_batches(problem: Problem) -> bool:
    """Whether g is a training on data in batches, for which races are made."""
    return problem.draws is not None or isinstance(problem.sampler, Minibatches)


def race(
    problem: Problem,
    x0: Tree,
    y0: Tree,
    plan: Plan,
    seed: int = 0,
    preferences: Any = None,
    batched: bool = True,
) -> Race:
    """Run the candidates side by side and judge them; see the module's text.

    Args:
        plan: see `plan_of`.
        preferences: those that will be run, (P, m); the race is run for one of them.  None is equal
            weights.
        batched: False runs one after the other, for losses that vmap cannot batch.

    Raises:
        NotBatchable: a loss cannot be batched by vmap.
    """
    draws, judged_on = problem, problem.batch("upper", "full")
    if not plan.few:
        held = HeldOut.of(problem, seed)
        if held is not None:
            draws, judged_on = held, held.held_out
    m, centre = plan.m, torch.full((1, plan.m), 1 / plan.m)
    rate, training, tried, spent, ideal = _trainings(problem, x0, y0, plan, seed, centre, batched)

    wanted = [Candidate(*numbers, math.nan) for numbers in CANDIDATES[plan.few]]
    steps = plan.race(training, spent)
    methods = [_candidate(c, rate, steps, steps) for c in wanted]
    # What a start is warned of was said before the race.
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        begun = methods[0].prepare(draws, x0, y0)
    aim = centre if preferences is None else preferences[median_lopsided(preferences)][None]
    known = Units.plain(m)._replace(ideal=ideal)
    states = [known.asked(method.begin(begun, aim[0])) for method in methods]
    # On a GPU all candidates are one graph; elsewhere too few steps are taken to record them.
    replays = batched and tree.first_leaf(y0).is_cuda
    step = stepper(
        draws, methods[0], batched=batched, compile="replay" if replays else False, folded=True
    )
    drawn = functools.partial(draw, draws, methods[0].roles(m), seeds=[seed])
    if batched:
        ends = _ran(step, tree.stack(states), drawn, steps).x
    else:
        ends = tree.stack([_ran(step, state, drawn, steps).x for state in states])
    points = tree.map_(lambda a, b: torch.cat([a, b[None]]), ends, x0)
    count = len(wanted) + 1
    y = train(
        problem,
        points,
        tree.expand(y0, count),
        rate=rate,
        steps=training,
        seed=seed,
        batched=batched,
    )
    objectives = objectives_of(problem, points, y, judged_on, batched)
    # At x0 an objective may be near zero that has to grow, so all of the race tells sizes, but for
    # what is worse than x0 in everything.
    tell = objectives[~(objectives > objectives[-1]).all(1)]
    units = Units.of_sizes(tell, objectives[-1], plan.few)
    *judged, nothing = units.value(objectives, aim).tolist()
    raced = tuple(c._replace(value=v) for c, v in zip(wanted, judged, strict=True))
    winner = min(raced, key=lambda c: c.value)
    run = [winner]
    if not plan.few and winner.value > (1 - DECISIVE) * nothing:
        run = list(dict.fromkeys([winner, *(c for c in raced if c[:3] == MODERATE)]))
    gradients = spent + count * training + len(wanted) * steps * (2 + m)
    return Race(
        candidates=(*raced, Candidate(1.0, 0.0, 0.0, nothing)),
        winner=winner,
        run=tuple(run),
        rate=rate,
        rates=tried,
        steps=steps,
        training=training,
        gradients=gradients,
        share=gradients / plan.budget,
        units=units,
        x=points,
        y=y,
        objectives=objectives,
        batched=batched,
    )


def _ran(step: Stepper, state: State, drawn: Callable[[int], Draw], steps: int) -> State:
    """The state, or the stack of them, after so many steps."""
    packed = step.pack(state, drawn(0))
    for t in range(steps):
        packed, _ = step.advance(packed, drawn(t))
    return step.unpack(packed)


def _trainings(
    problem: Problem, x0: Tree, y0: Tree, plan: Plan, seed: int, centre: Tensor, batched: bool
) -> tuple[float, int, tuple[tuple[float, int, float], ...], int, Tensor]:
    """How y is trained: (rate, steps, what was tried, its gradients), and the ideal point (m,) that
    lies below the objectives of these trainings.

    The length of a training is doubled while that helps at x0, up to that of a run.
    """
    full = problem.batch("upper", "full")
    draws = [problem.batch("lower", "train", t, seed) for t in range(DRAWS)]
    tried: list[tuple[float, int, float]] = []
    units = Units.plain(plan.m)

    def losses(y: Tree, runs: int) -> Tensor:
        x = tree.expand(x0, runs)
        with torch.no_grad():
            loss = over_runs(problem.lower, (0, 0, None), batched)
            return torch.stack([loss(x, y, d) for d in draws]).mean(0)

    def best(rates: Sequence[float], steps: int) -> tuple[float, float]:
        nonlocal units
        start, alpha = tree.expand(x0, len(rates)), torch.tensor(rates).to(tree.first_leaf(y0))
        y = train(
            problem,
            start,
            tree.expand(y0, len(rates)),
            rate=alpha,
            steps=steps,
            seed=seed,
            batched=batched,
        )
        objectives = objectives_of(problem, start, y, full, batched)
        g, untrained = losses(y, len(rates)), losses(tree.expand(y0, 1), 1)
        least = g.nan_to_num(math.inf).min()
        # Where no rate lowers g, y0 was a solution already, and all are compared.
        trained = (g <= least + (1 - LEARNED) * (untrained - least)) | (least >= untrained)
        if not tried:  # which rate is good does not depend on units
            at = objectives[g.nan_to_num(math.inf).argmin()]
            units = Units.of_sizes(objectives[trained], at, plan.few)
        values = units.value(objectives, centre)
        tried.extend(
            (rate, steps, value) for rate, value in zip(rates, values.tolist(), strict=True)
        )
        compared = torch.where(trained, values, math.inf).tolist()
        good = min(compared) + TIE * abs(min(compared))
        return next(pair for pair in zip(rates, compared, strict=True) if not pair[1] > good)

    rate, value = best(RATES, plan.training)
    training, spent = plan.training, len(RATES) * plan.training
    while training < plan.steps:
        longer, at = min(2 * training, plan.steps), RATES.index(rate)
        rates = RATES[max(0, at - 1) : at + 1]
        cost = len(rates) * longer
        # Many coordinates have nothing but the race: it must not become much shorter than that.
        least = LEAST_STEPS if plan.few else max(LEAST_STEPS, longer // 2)
        if cost > LOOK * plan.budget or plan.race(longer, spent + cost) < least:
            break
        spent += cost
        slower, new = best(rates, longer)
        if not new < (1 - GAIN) * value:
            break
        rate, value, training = slower, new, longer
    return rate, training, tuple(tried), spent, units.ideal


def raced_or_rules(
    problem: Problem, x0: Tree, y0: Tree, plan: Plan, seed: int = 0, preferences: Any = None
) -> Race | None:
    """A race, or None with a warning where the budget does not allow one."""
    if not plan.enough:
        warnings.warn(
            f"the budget of {plan.budget} gradients is too small for a race of "
            f"{len(CANDIDATES[plan.few])} candidates (it would leave {plan.least_race} steps to "
            f"each, {LEAST_STEPS} are the least); going on with Twin.tuned, whose hyperparameters "
            "are the same for every problem: give more steps, or a method",
            BiparetoWarning,
            stacklevel=3,
        )
        return None
    try:
        return race(problem, x0, y0, plan, seed, preferences)
    except NotBatchable as error:
        warnings.warn(
            f"{error}. Candidates, runs and trainings go one after the other, which takes longer "
            "and gives the same answers",
            BiparetoWarning,
            stacklevel=3,
        )
    return race(problem, x0, y0, plan, seed, preferences, batched=False)


def median_lopsided(preferences: Tensor) -> int:
    """The place of the preference (P, m) whose distance from equal weights is the median of all.

    At equal weights x0 is often nearly best already, and a race would compare noise.
    """
    distance = (preferences - 1 / preferences.shape[1]).norm(dim=1)
    return int(distance.argsort()[len(preferences) // 2])


def _candidate(candidate: Candidate, rate: float, steps: int, raced: int) -> Twin:
    travel = candidate.travel * math.sqrt(steps / raced)
    return Twin(
        rho=candidate.rho,
        shared=candidate.shared,
        # The mean of a cosine that falls to zero is a half.
        alpha_x=Cosine(2 * travel / steps, float(steps)),
        alpha_y=Cosine(JOINT_RATE * rate, float(steps)),
    )
