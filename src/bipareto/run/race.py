"""A race in place of hyperparameters: candidates run side by side on the problem itself.

For networks, probes of the start say little.  So a quarter of the budget goes into short runs of
`Twin` with different horizons 1/rho and different distances that x may travel, all in one batch;
each candidate's x is judged by the objectives after y was trained on g alone from its start.  Doing
nothing, x0, is judged with them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, NotBatchable
from bipareto.methods import Twin
from bipareto.methods.base import State
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.schedule import Cosine
from bipareto.problem import Problem, tree
from bipareto.problem.draws import draw
from bipareto.problem.sampler import Minibatches, Role, generator
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped
from bipareto.run.steppers import stepper
from bipareto.run.training import objectives_of, train

__all__ = [
    "FEW",
    "Candidate",
    "Plan",
    "Race",
    "comes_in_batches",
    "plan_of",
    "race",
    "raced_or_rules",
    "value_of",
]

#: Adam's rates that are tried on y with x at x0; a training's rate is the one with the smallest F.
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
#: (rho, travel): what v forgets at a step, and how far a coordinate of x may go in a race, about.
#: One step ahead suits x that acts at once (a weight per sample) and may go far; a hundred steps
#: suit what acts slowly.  With few coordinates trainings refine what a race has begun.
CANDIDATES = {
    True: ((1.0, 3.0), (1.0, 10.0), (0.01, 1.0), (0.01, 3.0)),
    False: ((1.0, 1.0), (1.0, 10.0), (1.0, 60.0), (0.01, 0.3), (0.01, 2.0)),
}
#: Where x has many coordinates and no candidate is better than x0 by this share, the race was too
#: short to tell, and the second candidate, one step ahead and ten units far, is run.
DECISIVE, UNDECIDED = 0.03, 1
#: A joint run is longer than a training, and noisy steps of y drown the twin: half of the rate.
JOINT_RATE = 0.5
#: The share of the budget that a race may cost.
SHARE = 0.25
#: The share of it that trainings in the race may cost.
TRAININGS = 0.1
#: Up to so many coordinates x can hardly fit the upper level's data by heart, and a model of the
#: objectives over x can be learned from trainings; beyond it a third of that data is held out.
FEW = 20
#: Races with shorter runs decide by noise.
LEAST_STEPS = 20


class Candidate(NamedTuple):
    """What ran, (rho, travel), and F after y was trained; x0 has the travel 0."""

    rho: float
    travel: float
    value: float


class Plan(NamedTuple):
    """How a budget of gradients is spent.

    budget: what P runs of MB-MOMEHA with as many steps would cost; training: steps of a training of
    y; race: steps of a candidate; few: whether x has few coordinates.
    """

    budget: int
    training: int
    race: int
    few: bool

    @property
    def enough(self) -> bool:
        """Whether the budget allows a race."""
        return self.race >= LEAST_STEPS and self.training >= LEAST_STEPS


@dataclass(frozen=True)
class Race:
    """What was tried before the runs began, and what won.

    candidates: all of them with x0 last, best values smallest; winner: the best of those that
    move x, or what is run where none is clearly better than x0; rate:
    Adam's rate for trainings of y, `rates` the values it was chosen by; steps: of each candidate;
    gradients: what the race has cost, `share` of the budget.
    """

    candidates: tuple[Candidate, ...]
    winner: Candidate
    rate: float
    rates: tuple[tuple[float, float], ...]
    steps: int
    training: int
    gradients: int
    share: float
    #: the candidates' x (a stack, x0 last) and objectives (C, m), for those who go on from there
    x: Tree = field(repr=False)
    objectives: Tensor = field(repr=False)

    def method(self, steps: int) -> Twin:
        """The winner for a run of `steps`: x travels as the root of the steps, as noise does."""
        return _candidate(self.winner, self.rate, steps, self.steps)

    def __str__(self) -> str:
        rows = [
            f"{c.rho:8g} {c.travel:8g} {c.value:10.4f}{'  <' if c is self.winner else ''}"
            for c in self.candidates[:-1]
        ]
        head = f"{'rho':>8} {'travel':>8} {'F trained':>10}"
        nothing = f"{'x0':>8} {'':>8} {self.candidates[-1].value:10.4f}"
        cost = (
            f"rate of y {self.rate:g}; {self.gradients} gradients, {self.share:.0%} of the budget"
        )
        return "\n".join([head, *rows, nothing, cost])


def comes_in_batches(problem: Problem) -> bool:
    """Whether g is a training on data in batches, for which races are made."""
    return problem.draws is not None or isinstance(problem.sampler, Minibatches)


def plan_of(x0: Tree, m: int, runs: int, steps: int) -> Plan:
    """The spending of the budget that `runs` runs of MB-MOMEHA with `steps` would have."""
    few = sum(leaf.numel() for leaf in tree.leaves(x0)) <= FEW
    budget, count = runs * steps * (4 + 2 * m), len(RATES) + len(CANDIDATES[few]) + 1
    # A third of a run suits most networks; a single run's budget affords less.
    training = max(1, min(steps // 3, int(TRAININGS * budget / count)))
    trainings = count * training
    race_steps = int((SHARE * budget - trainings) / (len(CANDIDATES[few]) * (2 + m)))
    # What refines takes the rest: with few coordinates a race is no longer than a training.
    return Plan(budget, training, min(race_steps, training if few else 2 * training), few)


def race(
    problem: Problem, x0: Tree, y0: Tree, plan: Plan, seed: int = 0, preferences: Any = None
) -> Race:
    """Run the candidates side by side and judge them; see the module's text.

    Args:
        plan: see `plan_of`.
        preferences: those that will be run, (P, m); the race is run for one of them.  None is equal
            weights.

    Raises:
        NotBatchable: a loss cannot be batched by vmap.
    """
    draws, judged_on = problem, problem.batch("upper", "full")
    if not plan.few:
        held = HeldOut.of(problem, seed)
        if held is not None:
            draws, judged_on = held, held.held_out
    count = len(RATES)
    start = tree.expand(x0, count)
    y = train(problem, start, tree.expand(y0, count), rate=torch.tensor(RATES).to(
        tree.first_leaf(y0)), steps=plan.training, seed=seed)  # fmt: skip
    m = int(objectives_of(problem, start, y, problem.batch("upper", "full")).shape[1])
    centre = torch.full((1, m), 1 / m)
    values = value_of(objectives_of(problem, start, y, problem.batch("upper", "full")), centre)
    rates = tuple(zip(RATES, values.tolist(), strict=True))
    rate = RATES[int(values.argmin())]

    wanted = [Candidate(rho, travel, math.nan) for rho, travel in CANDIDATES[plan.few]]
    methods = [_candidate(c, rate, plan.race, plan.race) for c in wanted]
    begun = methods[0].prepare(draws, x0, y0)
    aim = centre if preferences is None else _lopsided(preferences)
    state: State = tree.stack([method.begin(begun, aim[0]) for method in methods])
    step = stepper(draws, methods[0], batched=True)
    for t in range(plan.race):
        state, _ = step(state, draw(draws, methods[0].roles(m), t, [seed]))
    points = tree.map_(lambda a, b: torch.cat([a, b[None]]), state.x, x0)
    count = len(wanted) + 1
    y = train(problem, points, tree.expand(y0, count), rate=rate, steps=plan.training, seed=seed)
    objectives = objectives_of(problem, points, y, judged_on)
    *judged, nothing = value_of(objectives, aim).tolist()
    raced = tuple(c._replace(value=v) for c, v in zip(wanted, judged, strict=True))
    winner = min(raced, key=lambda c: c.value)
    if not plan.few and winner.value > (1 - DECISIVE) * nothing:
        winner = raced[UNDECIDED]
    gradients = (len(RATES) + count) * plan.training + len(wanted) * plan.race * (2 + m)
    return Race(
        candidates=(*raced, Candidate(1.0, 0.0, nothing)),
        winner=winner,
        rate=rate,
        rates=rates,
        steps=plan.race,
        training=plan.training,
        gradients=gradients,
        share=gradients / plan.budget,
        x=points,
        objectives=objectives,
    )


def raced_or_rules(
    problem: Problem, x0: Tree, y0: Tree, plan: Plan, seed: int = 0, preferences: Any = None
) -> Race | None:
    """A race, or None with a warning where the budget or the losses do not allow one."""
    if not plan.enough:
        warnings.warn(
            f"the budget of {plan.budget} gradients is too small for a race of "
            f"{len(CANDIDATES[plan.few])} candidates (it would leave {max(plan.race, 0)} steps to "
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
            f"{error}: candidates cannot be raced side by side; going on with Twin.tuned, whose "
            "hyperparameters are the same for every problem",
            BiparetoWarning,
            stacklevel=3,
        )
        return None


def value_of(objectives: Tensor, preference: Tensor, mu: float = 4.0) -> Tensor:
    """F (...,) of objectives (..., m), the smooth Tchebycheff scalarization with z = 0 that `Twin`
    descends; infinite where an objective is not finite.
    """
    f = objectives.double()
    w, zero = preference.to(f), torch.zeros((), dtype=f.dtype, device=f.device)
    value = scalarization.get("stch").value(f, w, zero, torch.as_tensor(mu).to(f))
    return torch.where(torch.isfinite(f).all(-1), value, math.inf)


def _lopsided(preferences: Tensor) -> Tensor:
    """The preference (1, m) whose distance from equal weights is the median of all.

    At equal weights x0 is often nearly best already, and a race would compare noise.
    """
    w = torch.as_tensor(preferences).reshape(-1, preferences.shape[-1])
    distance = (w - 1 / w.shape[1]).norm(dim=1)
    return w[distance.argsort()[len(w) // 2]][None]


def _candidate(candidate: Candidate, rate: float, steps: int, raced: int) -> Twin:
    travel = candidate.travel * math.sqrt(steps / raced)
    return Twin(
        rho=candidate.rho,
        # The mean of a cosine that falls to zero is a half.
        alpha_x=Cosine(2 * travel / steps, float(steps)),
        alpha_y=Cosine(JOINT_RATE * rate, float(steps)),
    )


class HeldOut(Wrapped):
    """A problem whose draws of the upper level come from two thirds of its data; the last third,
    `held_out`, judges.

    With thousands of coordinates x learns the upper level's data by heart, and the step of x that
    does it fastest would win.
    """

    def __init__(self, problem: Problem, seed: int, whole: Any, sizes: Sequence[int]) -> None:
        super().__init__(problem, sampler=self._draw)
        self._sizes, self._several = sizes, problem.per_objective
        parts = list(whole.values()) if self._several else [whole]
        orders = [
            torch.randperm(tree.flat_axis(part), generator=generator(f"held-{i}", 0, seed))
            for i, part in enumerate(parts)
        ]
        thirds = [len(order) // 3 for order in orders]
        take = tree.select
        self._kept = [
            take(p, o[k:].to(tree.first_leaf(p).device))
            for p, o, k in zip(parts, orders, thirds, strict=True)
        ]
        held = [
            take(p, o[:k].to(tree.first_leaf(p).device))
            for p, o, k in zip(parts, orders, thirds, strict=True)
        ]
        #: a draw of the role "full" on the rows that no step has seen
        self.held_out = problem.with_key(Role("upper", "full"), 0, 0, self._together(held))

    @classmethod
    def of(cls, problem: Problem, seed: int) -> HeldOut | None:
        """The problem with a third of its upper data held out; None where rows cannot be told."""
        whole, one = (_data(problem.batch("upper", name, 0, seed)) for name in ("full", ""))
        every = [whole, one] if not problem.per_objective else [*whole.values(), *one.values()]
        for part in every:
            leaves = tree.leaves(part)
            if any(leaf.dim() == 0 or len(leaf) != len(leaves[0]) for leaf in leaves):
                return None
        parts = list(one.values()) if problem.per_objective else [one]
        wholes = list(whole.values()) if problem.per_objective else [whole]
        if min(tree.flat_axis(part) for part in wholes) < 3:
            return None
        return cls(problem, seed, whole, [tree.flat_axis(part) for part in parts])

    def _together(self, parts: list[Any]) -> Any:
        return dict(enumerate(parts)) if self._several else parts[0]

    def _draw(self, role: Role, t: int, seed: int) -> Any:
        if role.level != "upper":
            return self.inner.sampler(role, t, seed)  # type: ignore[misc]  # it has data
        rows = []
        for i, (part, size) in enumerate(zip(self._kept, self._sizes, strict=True)):
            order = torch.randperm(
                tree.flat_axis(part), generator=generator(f"{role}-{i}", t, seed)
            )
            index = order if role.full else order[:size]
            rows.append(tree.select(part, index.to(tree.first_leaf(part).device)))
        return self.inner.with_key(role, t, seed, self._together(rows))


def _data(batch: Any) -> Any:
    """The rows of a draw, without the dropout key that may lie beside them."""
    keyed = isinstance(batch, dict) and set(batch) == {"key", "batch"}
    return batch["batch"] if keyed else batch
