"""First-order DARTS (Liu, Simonyan and Yang 2019): the baseline with one objective, against which
several are measured.

    x <- x - Adam( grad_x f_1(x, y) ),   y <- y - alpha_y m,   m <- beta m + grad_y g(x, y)

x follows the validation loss alone as if y did not depend on x; y follows the training loss by SGD
with momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Limits, Method, Start, Traits
from bipareto.methods.parts.schedule import Schedule
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree


class FirstOrderKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    alpha_x: Schedule
    alpha_y: Schedule
    beta: Any
    decay_x: Any


class FirstOrderState(NamedTuple):
    """x_t, y_t, Adam's two averages of x's gradient, y's momentum, the iteration and the run's
    numbers.
    """

    x: Tree
    y: Tree
    mean: Tree
    square: Tree
    momentum: Tree
    t: Tensor
    knobs: FirstOrderKnobs


@dataclass(frozen=True)
class FirstOrder(Method):
    """Alternating, one objective (the first), no preferences.  The other objectives are looked at
    and not followed.

    Args:
        alpha_x: Adam's step; it moves every logit by about that much at every step.
        alpha_y: SGD's step.
        beta: momentum of y.
        decay_x: pulls the logits to zero, added to their gradient.
    """

    uses_preference = False
    traits = Traits("stochastic", "one minimiser", nested=False, certainty=100)
    limits: ClassVar[Limits] = {"beta": {"least": 0, "below": 1}, "decay_x": {"least": 0}}

    alpha_x: Schedule | float = 3e-4
    alpha_y: Schedule | float = 0.025
    beta: float = 0.9
    decay_x: float = 1e-3

    def roles(self, m: int) -> tuple[Role, ...]:
        return common.roles(m)

    def oracles(self, m: int) -> dict[str, int]:
        return {"lower_gradients": 1, "upper_gradients": 1, "hessian_products": 0}

    def begin(self, start: Start, preference: Any = None) -> FirstOrderState:
        f = start.objectives
        self.checked_preference(preference, f)
        knobs = common.knobs(FirstOrderKnobs, self, start)
        zeros = tree.zeros_like(start.x)
        return FirstOrderState(
            start.x, start.y, zeros, zeros, tree.zeros_like(start.y), common.zero(start), knobs
        )

    def step(
        self, problem: Problem, state: FirstOrderState, draw: Draw | None = None
    ) -> tuple[FirstOrderState, Info]:
        x, y, mean, square, momentum, t, knobs = state
        upper = common.upper_of(problem, draw, sum(role.level == "upper" for role in draw or {}))
        lower = common.lower_of(problem, draw)

        def first(v: Tree) -> tuple[Tensor, tuple[Tensor, ...]]:
            f = upper(v, y)
            return f[0], (f,)

        d_x, (f,) = oracle.grad_and_aux(first, x)
        d_x = tree.map_(lambda d, v: d + knobs.decay_x * v, d_x, x)
        mean = tree.map_(lambda a, d: 0.5 * a + 0.5 * d, mean, d_x)
        square = tree.map_(lambda a, d: 0.999 * a + 0.001 * d * d, square, d_x)
        left, right = (
            1 - torch.pow(0.5 * torch.ones_like(t), t + 1),
            1 - torch.pow(0.999 * torch.ones_like(t), t + 1),
        )
        alpha = knobs.alpha_x(t)
        x = tree.map_(
            lambda v, a, b: v - alpha * (a / left) / ((b / right).sqrt() + 1e-8), x, mean, square
        )
        d_y = oracle.grad(lambda v: lower(x, v), y)
        momentum = tree.map_(lambda a, d: knobs.beta * a + d, momentum, d_y)
        y = tree.descend(y, knobs.alpha_y(t), momentum)
        return FirstOrderState(x, y, mean, square, momentum, t + 1, knobs), {"objectives": f}

    def report(
        self,
        problem: Problem,
        before: FirstOrderState,
        after: FirstOrderState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """Adds g and, as `residual`, the norm of y's averaged gradient."""
        residual = common.moved(before.y, after.y, before.knobs.alpha_y(before.t))
        return info | {
            "lower": common.lower_of(problem, draw)(before.x, before.y),
            "residual": residual,
        }


@dataclass(frozen=True)
class WeightsAlone(FirstOrder):
    """The same without the step of x: weights of a supernet at its first logits, for a random
    search among its cells.
    """

    def step(
        self, problem: Problem, state: FirstOrderState, draw: Draw | None = None
    ) -> tuple[FirstOrderState, Info]:
        x, y, mean, square, momentum, t, knobs = state
        lower = common.lower_of(problem, draw)
        d_y = oracle.grad(lambda v: lower(x, v), y)
        momentum = tree.map_(lambda a, d: knobs.beta * a + d, momentum, d_y)
        f = common.upper_of(problem, draw, sum(role.level == "upper" for role in draw or {}))(x, y)
        new = FirstOrderState(
            x, tree.descend(y, knobs.alpha_y(t), momentum), mean, square, momentum, t + 1, knobs
        )
        return new, {"objectives": f}
