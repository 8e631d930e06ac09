"""The problems of the suite `alternatives`, each with a judge that treats every x alike.

A case has flat x and y, f and g on batches (empty ones where a problem has no data), what a user
would hand to `bipareto.front`, and a judge: y is solved or trained on g from scratch for the given
x, and the objectives are those that matter (exact ones, or on unseen data).
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem import Problem
from bipareto_experiments.bench.cleaning import cleaning

Batch = Any
#: step sizes of x that rivals try, all of them
LADDER = (1.0, 30.0, 1000.0)


@dataclass
class Case:
    """One problem of one seed.

    f(x, y, batch) (m,), g(x, y, batch) (): the losses.
    draw: batches of both levels from a stream.
    judge: (R, d) -> (R, m), what counts.
    searched: (R, d) -> (R, m), what a search sees after a training of each; its cost in gradients
        is `training`.
    box: where searches look, None where x has more than 20 coordinates.
    alpha_x, alpha_y: the ladder of step sizes of x, and the one of y, for rivals.
    steps: what ours is called with, from short to long.
    """

    name: str
    problem: Problem
    x0: Tensor
    y0: Tensor
    f: Callable[[Tensor, Tensor, Batch], Tensor]
    g: Callable[[Tensor, Tensor, Batch], Tensor]
    draw: Callable[[torch.Generator], tuple[Batch, Batch]]
    judge: Callable[[Tensor], Tensor]
    searched: Callable[[Tensor], Tensor]
    training: int
    preferences: Tensor
    reference: list[float]
    alpha_x: tuple[float, ...]
    alpha_y: float
    steps: tuple[int, ...]
    box: tuple[Tensor, Tensor] | None = None

    @property
    def m(self) -> int:
        """How many objectives."""
        return self.preferences.shape[1]


def curvature(g: Callable[[Tensor], Tensor], y: Tensor, steps: int = 30) -> float:
    """The largest eigenvalue in size of the Hessian of g at y, by power iteration."""
    stream = torch.Generator().manual_seed(0)
    v = torch.randn(y.shape, generator=stream, dtype=y.dtype)
    size = 1.0
    for _ in range(steps):
        v = v / v.norm()
        v = torch.func.jvp(grad(g), (y,), (v,))[1]
        size = float(v.norm())
    return max(size, 1e-12)


def descend(
    g: Callable[[Tensor, Tensor, Batch], Tensor], x: Tensor, y0: Tensor, rate: float, steps: int
) -> Tensor:
    """Nesterov's method on g(x, .) for every row of x at once, (R, ...)."""
    slope = vmap(grad(g, 1), in_dims=(0, 0, None))
    y = y0.expand(len(x), *y0.shape).clone()
    before = y
    for t in range(steps):
        ahead = y + (t / (t + 3)) * (y - before)
        before, y = y, ahead - rate * slope(x, ahead, ())
    return y


def known(name: str, seed: int, **options: Any) -> Case:
    """A problem with a known front; seed 0 is its own start, others are random."""
    problem = bp.problems.get(name, **options)
    x0, y0 = problem.start(seed) if seed else (problem.x0, problem.y0)

    def f(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return problem.upper(x, y)

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return problem.lower(x, y)

    rate = 0.9 / curvature(lambda y: problem.lower(x0, y), y0)

    def searched(x: Tensor) -> Tensor:
        return vmap(problem.upper)(x, descend(g, x, y0, rate, 50))

    few = x0.numel() <= 20
    return Case(
        f"{name}-{x0.numel()}", problem, x0, y0, f, g, lambda stream: ((), ()),
        lambda x: torch.stack([problem.objectives(row) for row in x]), searched, 50,
        bp.preferences.grid(2, 8), problem.reference.tolist(), (0.03, 0.3, 3.0), rate,
        (8, 16, 50, 200, 800),
        (torch.full_like(x0, -3.0), torch.full_like(x0, 3.0)) if few else None,
    )  # fmt: skip


def hyper_cleaning(seed: int) -> Case:
    """1,000 weights of training images with half of the labels wrong, judged on unseen images."""
    case = cleaning(seed)
    rate = 0.9 / curvature(lambda y: case.g(case.x0 + 10, y), case.y0)

    def f(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return case.f(x, y)

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return case.g(x, y)

    def solved(x: Tensor) -> Tensor:
        return descend(g, x, case.y0, rate, 150)

    return Case(
        "cleaning", case.problem, case.x0, case.y0, f, g, lambda stream: ((), ()),
        lambda x: vmap(case.test)(solved(x)), lambda x: vmap(case.f)(x, solved(x)), 150,
        leaning(2).double(), [math.log(10)] * 2, LADDER, rate, (50, 200, 800),
    )  # fmt: skip


def leaning(m: int) -> Tensor:
    """Preferences (P, m): five, four and five for two, three and four objectives."""
    if m == 2:
        first = torch.tensor([0.2, 0.35, 0.5, 0.65, 0.8])
        return torch.stack([first, 1 - first], 1)
    lean = 0.4 * torch.eye(m) + (0.2 if m == 3 else 0.15)
    return torch.cat([lean, torch.full((1, m), 1 / m)])


def network(name: str, seed: int) -> Case:
    """One of the small networks of benchmarks/network_problems.py, judged on unseen data."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if not (folder / "network_problems.py").exists():
        raise InvalidInput(
            f"{name} needs {folder / 'network_problems.py'}, which is in the repository only; "
            "run the suite from a checkout, or name other problems with --only"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    made = importlib.import_module("network_problems").PROBLEMS[name](seed)
    size = min(made.size, len(made.lower[0]), len(made.upper[0]))

    def drawn(data: Batch, stream: torch.Generator, count: int) -> Batch:
        index = torch.randint(len(data[0]), (count,), generator=stream)
        return tuple(part[index] for part in data)

    slope = vmap(grad(made.g, 1), in_dims=(0, 0, None))

    def train(x: Tensor, rate: float, number: int) -> Tensor:
        """200 steps of Adam on batches of 128."""
        stream = torch.Generator().manual_seed(number)
        y = made.y0.expand(len(x), -1).clone()
        mean, square = torch.zeros_like(y), torch.zeros_like(y)
        for t in range(200):
            d = slope(x, y, drawn(made.lower, stream, 128))
            mean, square = 0.9 * mean + 0.1 * d, 0.999 * square + 0.001 * d * d
            step = rate * 0.5 * (1 + math.cos(math.pi * t / 200)) / (1 - 0.9 ** (t + 1))
            y = y - step * mean / (torch.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
        return y

    def losses(x: Tensor, y: Tensor, data: Batch) -> Tensor:
        with torch.no_grad():
            return vmap(made.f, in_dims=(0, 0, None))(x, y, data)

    def at_start(rate: float) -> float:
        y = train(made.x0[None], rate, 4242)
        return float(losses(made.x0[None], y, made.upper).mean())

    best = min((1e-3, 3e-3, 1e-2, 3e-2, 1e-1), key=at_start)

    def judge(x: Tensor) -> Tensor:
        x = torch.nan_to_num(x, nan=0.0, posinf=50.0, neginf=-50.0)
        return losses(x, train(x, best, 9000 + seed), made.test)

    sampler = bp.sampler.Minibatches(lower=made.lower, upper=made.upper, size=size)
    return Case(
        name, Problem(made.f, made.g, sampler=sampler), made.x0, made.y0, made.f, made.g,
        lambda stream: (drawn(made.lower, stream, size), drawn(made.upper, stream, size)),
        judge, lambda x: losses(x, train(x, best, seed), made.upper), 200,
        leaning(made.m).double(), [math.log(10)] * made.m, LADDER, 0.1, (60, 200, 600),
        made.box,
    )  # fmt: skip


#: name -> the case of a seed
CASES: dict[str, Callable[[int], Case]] = {
    "quadratic-5": lambda seed: known("quadratic", seed, dim=5),
    "pl-sin2-20": lambda seed: known("pl-sin2", seed, dim=20),
    "pl-sin2-100": lambda seed: known("pl-sin2", seed, dim=100),
    "quadratic-50": lambda seed: known("quadratic", seed, dim=50),
    "cleaning": hyper_cleaning,
    "weigher": lambda seed: network("weigher", seed),
    "initialisation": lambda seed: network("initialisation", seed),
    "augment": lambda seed: network("augment", seed),
    "transformer": lambda seed: network("transformer", seed),
}
