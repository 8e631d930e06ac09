"""How the budget of a front of networks is spent: on a race, on trainings of y, and on runs."""

from __future__ import annotations

from typing import NamedTuple

from bipareto.problem import tree
from bipareto.problem.tree import Tree

__all__ = ["CANDIDATES", "FEW", "LEAST_STEPS", "MODERATE", "RATES", "Plan", "plan_of"]

#: Adam's rates that are tried on y with x at x0.
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
#: One step ahead, and not far; (rho, travel, shared) as below.
MODERATE = (1.0, 3.0, 0.0)
#: (rho, travel, shared): what v forgets at a step, how far a coordinate of x may go in a race,
#: about, and whether all coordinates have one scale.  One step ahead suits x that acts at once (a
#: weight per sample) and may go far; a hundred steps suit what acts slowly.  With few coordinates
#: trainings refine what a race has begun.
CANDIDATES: dict[bool, tuple[tuple[float, float, float], ...]] = {
    True: ((1.0, 3.0, 0.0), (1.0, 10.0, 0.0), (0.01, 1.0, 0.0), (0.01, 3.0, 0.0)),
    False: (
        (1.0, 1.0, 0.0), (1.0, 10.0, 0.0), (1.0, 60.0, 0.0), (0.01, 0.3, 0.0), (0.01, 2.0, 0.0),
        MODERATE, (1.0, 30.0, 1.0),
    ),
}  # fmt: skip
#: The share of the budget that a race may cost.
SHARE = 0.25
#: The share of it that trainings in the race may cost.
TRAININGS = 0.1
#: Up to so many coordinates x can hardly fit the upper level's data by heart, and a model of the
#: objectives over x can be learned from trainings; beyond it a third of that data is held out.
FEW = 20
#: With few coordinates runs only give the model its first points: steps as a share of a training.
SHORT = 0.25
#: Races with shorter runs decide by noise.
LEAST_STEPS = 20


class Plan(NamedTuple):
    """How a budget of gradients is spent.

    budget: what P runs of MB-MOMEHA with as many `steps` would cost; training: steps of a training
    of y, before it is known whether longer ones are better; few: whether x has few coordinates.
    """

    budget: int
    steps: int
    training: int
    m: int
    few: bool

    @property
    def enough(self) -> bool:
        """Whether the budget allows a race."""
        return min(self.training, self.least_race) >= LEAST_STEPS

    @property
    def least_race(self) -> int:
        """The steps of a candidate if trainings are as short as planned."""
        return self.race(self.training, len(RATES) * self.training)

    def race(self, training: int, spent: int) -> int:
        """The steps of a candidate, where a training has so many and so much is spent already."""
        candidates = len(CANDIDATES[self.few])
        left = SHARE * self.budget - spent - (candidates + 1) * training
        left = max(0, int(left / (candidates * (2 + self.m))))
        return min(left, max(LEAST_STEPS, int(SHORT * training)) if self.few else 2 * training)


def plan_of(x0: Tree, m: int, runs: int, steps: int) -> Plan:
    """The spending of the budget that `runs` runs of MB-MOMEHA with `steps` would have."""
    few = tree.numel(x0) <= FEW
    budget, count = runs * steps * (4 + 2 * m), len(RATES) + len(CANDIDATES[few]) + 1
    # A third of a run suits most networks; a single run's budget affords less.
    training = max(1, min(steps // 3, int(TRAININGS * budget / count)))
    return Plan(budget, steps, training, m, few)
