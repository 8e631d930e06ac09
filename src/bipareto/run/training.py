"""y trained on g alone for a stack of x, side by side: how networks are judged and resolved."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bipareto.problem import Problem, oracle, tree
from bipareto.problem.tree import Tree
from bipareto.run.stepping import over_runs

#: Adam's rate and the steps of a round where no race has found better ones
TRAINING = (0.01, 100)


def train(
    problem: Problem,
    x: Tree,
    y: Tree,
    *,
    rate: Any,
    steps: int,
    seed: int = 0,
    batched: bool = True,
) -> Tree:
    """y after `steps` of Adam on g(x, .) with x held, the rate falling to zero as a cosine.

    Args:
        x: a stack of R points, every leaf with a first axis R.
        y: where they start, a stack too (`tree.expand(y0, R)` for one start).
        rate: Adam's step, a number or R of them.
        steps, seed: draws of the role "train" at t = 0, 1, ...; all R see the same ones.
        batched: False takes the R one after the other, for losses that vmap cannot batch.

    Returns:
        the trained y, a stack of R; of a problem without data the gradients are those of all of g.
    """
    runs, first = tree.flat_axis(x), tree.first_leaf(y)
    alpha = torch.as_tensor(rate, dtype=first.dtype, device=first.device).expand(runs)

    def gradient(point: Tree, own: Tree, batch: Any) -> Tree:
        return oracle.grad(lambda v: problem.lower(point, v, batch), own)

    gradients = over_runs(gradient, (0, 0, None), batched)
    mean, square = tree.zeros_like(y), tree.zeros_like(y)
    for t in range(steps):
        batch = problem.batch("lower", "train", t, seed)
        g = gradients(x, y, batch)
        # In place and fused: on a GPU a training is mostly launches.
        tree.map_(lambda m, d: m.lerp_(d, 0.1), mean, g)
        tree.map_(lambda s, d: s.mul_(0.999).addcmul_(d, d, value=0.001), square, g)
        fall = 0.5 * (1 + math.cos(math.pi * t / steps)) / (1 - 0.9 ** (t + 1))
        step, root = alpha * fall, (1 - 0.999 ** (t + 1)) ** 0.5

        def moved(
            v: Tensor, m: Tensor, s: Tensor, step: Tensor = step, root: float = root
        ) -> Tensor:
            own = step.reshape(-1, *[1] * (v.dim() - 1))
            return v.addcdiv(own * m, s.sqrt().div_(root).add_(1e-8), value=-1)

        y = tree.map_(moved, y, mean, square)
    return y


def train_on(
    problem: Problem,
    x: Tree,
    y: Tree,
    *,
    rate: float,
    steps: int,
    rounds: int = 5,
    gain: float = 0.01,
    batched: bool = True,
) -> Tree:
    """y trained on from where it is, at a third of the rate, until g stops falling.

    Args:
        x, y: stacks of R points.
        rate, steps: those of a training; every round has as many steps.
        rounds, gain: at most so many; a run that has won less than this share of g in one keeps the
            y from before it.
        batched: as in `train`.
    """
    batch = problem.batch("lower", "full")

    def loss(point: Tree, own: Tree) -> Tensor:
        return problem.lower(point, own, batch)

    losses = over_runs(loss, (0, 0), batched)
    value = losses(x, y).detach()
    for k in range(rounds):
        further = train(problem, x, y, rate=rate / 3, steps=steps, seed=k + 1, batched=batched)
        new = losses(x, further).detach()
        fell = new < value - gain * value.abs()
        y, value = tree.where_run(fell, further, y), torch.where(fell, new, value)
        if not fell.any():
            break
    return y


def objectives_of(problem: Problem, x: Tree, y: Tree, batch: Any, batched: bool = True) -> Tensor:
    """f (R, m) of a stack of R points on one batch; one after the other where vmap cannot batch."""
    with torch.no_grad():
        return over_runs(lambda a, b: problem.upper(a, b, batch), (0, 0), batched)(x, y)


def judged(problem: Problem, x: Tree, y: Tree, batched: bool) -> tuple[Tensor, Tensor | None]:
    """f (R, m) of a stack of R points on all data, and on `test_data` where there is any."""
    f = objectives_of(problem, x, y, problem.batch("upper", "full"), batched)
    if not problem.has_test:
        return f, None
    return f, objectives_of(problem, x, y, problem.batch("test", "full"), batched)
