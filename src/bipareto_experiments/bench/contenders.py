"""What one would do to trace a front: ours, and six alternatives.

A contender is a generator.  It yields (gradients spent so far, what gives the answers X (P, d), one
per preference), as often as it has something new; who drives it stops the clock meanwhile.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.run.units import value_of
from bipareto_experiments.bench.boat import Boat
from bipareto_experiments.bench.cases import Batch, Case
from bipareto_experiments.bench.implicit import hypergradient

Found = Iterator[tuple[int, Callable[[], Tensor]]]
#: smoothing of the scalarization that rivals descend
MU = 4.0
#: inner steps and conjugate-gradient steps of the implicit rival
INNER, PRODUCTS = 10, 10


def ours(case: Case, seed: int, steps: int) -> Found:
    """The library's call without a method; answers on the way where there is no race."""
    w = case.preferences / case.preferences.sum(1, keepdim=True)
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        front = bp.front(
            case.problem, case.x0, case.y0, preferences=w, seeds=[seed], steps=steps,
            progress=False,
        )  # fmt: skip
    if front.race is None:
        assert front.method is not None
        counts = front.method.cost(case.m, steps)
        each = counts["lower_gradients"] + counts["upper_gradients"]
        spent = len(w) * (each + 2 * counts["hessian_products"])
    else:
        spent = len(w) * steps * (4 + 2 * case.m)
    yield spent, lambda: front.x


def _scalarized(case: Case, w: Tensor, batch: Batch) -> Callable[[Tensor, Tensor], Tensor]:
    w = w.to(case.x0.dtype)

    def value(x: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(MU * w * case.f(x, y, batch), 0) / MU

    return value


def boat(case: Case, seed: int, alpha: float, module: Any) -> Found:
    """BOAT's Moreau-envelope operation, a run of its own for each preference."""
    stream = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            Boat(
                module, case.x0, case.y0, alpha_x=alpha, alpha_y=case.alpha_y,
                alpha_theta=case.alpha_y, gamma=2 * case.alpha_y, c0=1.0,
                log=Path(folder) / f"{i}.json",
            )
            for i in range(len(case.preferences))
        ]  # fmt: skip
        spent = 0
        while True:
            lower, upper = case.draw(stream)
            for run, w in zip(runs, case.preferences, strict=True):
                run.step(lambda x, y: case.g(x, y, lower), _scalarized(case, w, upper))  # noqa: B023
            spent += len(runs) * (4 + 2 * case.m)
            yield spent, lambda: torch.stack([run.x.value.detach() for run in runs])


def implicit(case: Case, seed: int, alpha: float, module: Any) -> Found:
    """TorchOpt's implicit gradients: ten steps on g, ten of conjugate gradients, one of x."""
    stream = torch.Generator().manual_seed(seed)
    count = len(case.preferences)
    xs, ys = [case.x0.clone() for _ in range(count)], [case.y0.clone() for _ in range(count)]
    spent = 0
    while True:
        lower, upper = case.draw(stream)
        for i, w in enumerate(case.preferences):
            along = hypergradient(
                module, lambda x, y: case.g(x, y, lower), _scalarized(case, w, upper),  # noqa: B023
                inner=INNER, rate=case.alpha_y, iterations=PRODUCTS,
            )  # fmt: skip
            d, ys[i] = along(xs[i], ys[i])
            xs[i] = xs[i] - alpha * d
        spent += count * (INNER + 2 * PRODUCTS + 2 + 2 * case.m)
        yield spent, lambda: torch.stack(xs)


def alternating(case: Case, seed: int, alpha: float) -> Found:
    """Alternating SGD by hand: x along the gradient through one step of y, then y along g."""
    stream = torch.Generator().manual_seed(seed)
    count = len(case.preferences)
    xs, ys = [case.x0.clone() for _ in range(count)], [case.y0.clone() for _ in range(count)]
    spent = 0
    while True:
        lower, upper = case.draw(stream)
        for i, w in enumerate(case.preferences):
            x, y = xs[i].detach().requires_grad_(), ys[i].detach().requires_grad_()
            (slope,) = torch.autograd.grad(case.g(x, y, lower), y, create_graph=True)
            ahead = y - case.alpha_y * slope
            (d,) = torch.autograd.grad(_scalarized(case, w, upper)(x, ahead), x)
            xs[i], ys[i] = (x - alpha * d).detach(), ahead.detach()
        spent += count * (3 + case.m)
        yield spent, lambda: torch.stack(xs)


def _best(case: Case, x: list[Tensor], f: list[Tensor]) -> Callable[[], Tensor]:
    points, values = torch.cat(x), torch.cat(f)

    def answers() -> Tensor:
        good = torch.nan_to_num(values.double(), nan=50.0)
        return points[[int(value_of(good, w).argmin()) for w in case.preferences]]

    return answers


def random_search(case: Case, seed: int) -> Found:
    """Points of the box at random, x0 first, eight trainings side by side."""
    assert case.box is not None
    low, high = case.box
    stream = torch.Generator().manual_seed(seed)
    x: list[Tensor] = []
    f: list[Tensor] = []
    while True:
        points = low + (high - low) * torch.rand(8, len(low), generator=stream, dtype=low.dtype)
        if not x:
            points[0] = case.x0
        x.append(points)
        f.append(case.searched(points))
        yield case.training * sum(map(len, x)), _best(case, x, f)


def optuna_search(case: Case, seed: int, kind: str, optuna: Any) -> Found:
    """Optuna's TPE or NSGA-II over the box, x0 first, 8 or 16 trainings side by side."""
    assert case.box is not None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    low, high = (side.tolist() for side in case.box)
    if kind == "tpe":
        sampler, count = optuna.samplers.TPESampler(seed=seed, constant_liar=True), 8
    else:
        sampler, count = optuna.samplers.NSGAIISampler(seed=seed, population_size=16), 16
    study = optuna.create_study(directions=["minimize"] * case.m, sampler=sampler)
    study.enqueue_trial({f"x{i}": float(v) for i, v in enumerate(case.x0)})
    x: list[Tensor] = []
    f: list[Tensor] = []
    while True:
        trials = [study.ask() for _ in range(count)]
        rows = [
            [t.suggest_float(f"x{i}", low[i], high[i]) for i in range(len(low))] for t in trials
        ]
        points = torch.tensor(rows, dtype=case.x0.dtype)
        values = case.searched(points)
        for trial, row in zip(trials, values, strict=True):
            study.tell(trial, [float(v) for v in row.nan_to_num(nan=50.0)])
        x.append(points)
        f.append(values)
        yield case.training * sum(map(len, x)), _best(case, x, f)
