"""Problems whose functions cannot be used, or are not pure."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp
from misuse.harness import Case
from misuse.setting import DOUBLE, front, lower, method, same_twice, solve, start, upper


def of(f: Any = upper, g: Any = lower, **others: Any) -> Any:
    return solve(bp.Problem(f, g, **others))


def _counted() -> Callable[..., Tensor]:
    calls = 0

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return lower(x, y) * (1 + 0.1 * calls)

    return loss


def _leaky() -> Callable[..., Tensor]:
    seen: list[Tensor] = []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append(y.detach())
        return lower(x, y) + 0.01 * len(seen)

    return loss


def problem_cases() -> Iterator[Case]:
    functions = {
        "None": None,
        "number": 3,
        "text": "f",
        "empty list": [],
        "list with number": [lower, 3],
        "tensor": torch.zeros(2),
        "dict": {0: lower},
        "class": dict,
        "builtin": max,
        "no arguments": lambda: torch.zeros(2),
        "one argument": lambda x: x,
        "four arguments": lambda x, y, z, w: x,
        "generator": (f for f in (lower, lower)),
    }
    for label, value in functions.items():
        yield Case(f"Problem: upper = {label}", lambda v=value: of(f=v))
        if label not in ("empty list", "list with number", "generator"):
            yield Case(f"Problem: lower = {label}", lambda v=value: of(g=v))
    names = {
        "one": ["a"],
        "three": ["a", "b", "c"],
        "number": 3,
        "numbers": [1, 2],
        "text": "ab",
        "same": ["a", "a"],
        "None inside": ["a", None],
    }
    for label, value in names.items():
        yield Case(f"Problem: names = {label}", lambda v=value: of(names=v))
    samplers = {
        "number": 3,
        "text": "a",
        "list": [1],
        "class": dict,
        "one argument": lambda level: None,
        "no arguments": lambda: 0,
        "loader": DataLoader(TensorDataset(torch.zeros(4))),
    }
    for label, value in samplers.items():
        yield Case(
            f"Problem: sampler = {label}",
            lambda v=value: of(
                f=lambda x, y, b: upper(x, y), g=lambda x, y, b: lower(x, y), sampler=v
            ),
        )
    returns: dict[str, Callable[[Tensor], Any]] = {
        "None": lambda f: None,
        "a float": lambda f: 1.0,
        "a list": lambda f: [1.0, 2.0],
        "an array": lambda f: f.detach().numpy(),
        "a dict": lambda f: {"a": f},
        "a tuple": lambda f: (f, f),
        "whole numbers": lambda f: f.detach().long(),
        "complex": lambda f: f.to(torch.complex128),
        "booleans": lambda f: f > 0,
        "detached": lambda f: f.detach(),
        "nan": lambda f: f * math.nan,
        "inf": lambda f: f + math.inf,
        "sparse": lambda f: f.reshape(-1).to_sparse(),
        "meta": lambda f: f.to("meta"),
        "a matrix": lambda f: f.reshape(-1, 1).expand(-1, 2),
        "empty": lambda f: f.reshape(-1)[:0],
        "a string": lambda f: "loss",
        "float32": lambda f: f.float(),
        "half": lambda f: f.half(),
        "item": lambda f: f.sum().item(),
        "a constant": lambda f: torch.ones_like(f),
        "a module": lambda f: nn.Linear(1, 1),
        "a set": lambda f: {1.0},
    }
    for label, change in returns.items():
        yield Case(
            f"Problem: upper returns {label}", lambda c=change: of(f=lambda x, y: c(upper(x, y)))
        )
        yield Case(
            f"Problem: lower returns {label}", lambda c=change: of(g=lambda x, y: c(lower(x, y)))
        )
    yield Case(
        "Problem: upper in numpy",
        lambda: of(f=lambda x, y: torch.from_numpy(upper(x.detach(), y.detach()).numpy())),
    )
    yield Case("Problem: lower under no_grad", lambda: of(g=torch.no_grad()(lower)))
    yield Case("Problem: upper under no_grad", lambda: of(f=torch.no_grad()(upper)))
    yield Case("Problem: upper under inference_mode", lambda: of(f=torch.inference_mode()(upper)))
    yield Case(
        "Problem: lower without x and upper without x",
        lambda: of(
            f=lambda x, y: torch.stack([y.sum(), y.square().sum()]), g=lambda x, y: y.square().sum()
        ),
    )
    yield Case("Problem: lower without y", lambda: of(g=lambda x, y: x.square().sum()))
    yield Case("Problem: not a problem", lambda: solve("quadratic"))
    yield Case("Problem: a function for a problem", lambda: solve(upper))
    yield Case("Problem: the class", lambda: solve(bp.Problem))
    yield Case("Problem: a tuple for a problem", lambda: solve((upper, lower)))
    # A lower level that has no minimum: what is returned is no answer.
    nowhere = {
        "linear": lambda x, y: (y - x).sum(),
        "concave": lambda x, y: -(y - x).square().sum(),
        "cubic": lambda x, y: (y - x).pow(3).sum(),
        "concave in one direction": lambda x, y: (y - x).square()[:2].sum() - (y - x)[2].square(),
    }
    for label, g in nowhere.items():
        for steps in (50, 400):
            yield Case(
                f"Problem: lower without a minimum, {label}, {steps} steps",
                lambda g=g, s=steps: bp.solve(
                    bp.Problem(upper, g), *start(), method=method(), steps=s, progress=False
                ),
                may_warn=True,
            )
        yield Case(
            f"Problem: lower without a minimum, {label}, defaults",
            lambda g=g: bp.solve(bp.Problem(upper, g), *start(), steps=300, progress=False),
            may_warn=True,
        )
        yield Case(
            f"resolve_lower: without a minimum, {label}",
            lambda g=g: front(bp.Problem(upper, g)).resolve_lower(),
            may_warn=True,
        )


def _mask(x: Tensor, y: Tensor) -> Tensor:
    return (y - x)[(y - x) > -10].square().sum()


def _dropped(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.dropout(y - x, 0.5).square().sum()


def _layer(x: Tensor, y: Tensor) -> Tensor:
    return nn.Dropout(0.5)(y - x).square().sum()


def _saved(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        y.clamp_(-0.1, 0.1)
    return lower(x, y)


def _added(x: Tensor, y: Tensor) -> Tensor:
    x.data.add_(0.1)
    return lower(x, y)


def _set(x: Tensor, y: Tensor) -> Tensor:
    y.data[0] = 0.0
    return lower(x, y)


def _copied(x: Tensor, y: Tensor) -> Tensor:
    y.detach().copy_(x.detach())
    return lower(x, y)


def _reseeding(x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    return lower(x, y) + 0.01 * (torch.randn(3, dtype=DOUBLE) * y).sum()


def impure_cases() -> Iterator[Case]:
    """Losses that depend on more than their arguments, or change them."""
    noise: dict[str, Callable[[], float | Tensor]] = {
        "torch.rand": lambda: torch.rand((), dtype=DOUBLE),
        "torch.randn": lambda: torch.randn((), dtype=DOUBLE),
        "torch.randint": lambda: torch.randint(10, ()).double(),
        "torch.randperm": lambda: torch.randperm(5)[0].double(),
        "torch.bernoulli": lambda: torch.bernoulli(torch.tensor(0.5, dtype=DOUBLE)),
        "np.random": lambda: float(np.random.rand()),  # noqa: NPY002
        "np.random generator": lambda r=np.random.default_rng(0): float(r.random()),
        "random.random": random.random,
        "time": lambda: time.perf_counter(),
        "a torch generator": lambda g=torch.Generator(): torch.rand((), generator=g, dtype=DOUBLE),
    }
    for label, draw in noise.items():
        yield Case(
            f"lower: {label}",
            lambda d=draw: same_twice(lambda: of(g=lambda x, y: lower(x, y) + d() * (y * x).sum())),
            right=bool,
        )
        yield Case(
            f"upper: {label}",
            lambda d=draw: same_twice(lambda: of(f=lambda x, y: upper(x, y) * (1 + d()))),
            right=bool,
        )
        yield Case(
            f"front, lower: {label}",
            lambda d=draw: same_twice(
                lambda: front(bp.Problem(upper, lambda x, y: lower(x, y) + d() * (y * x).sum()))
            ),
            right=bool,
        )
        yield Case(
            f"optimizer, lower: {label}",
            lambda d=draw: same_twice(
                lambda: _stepped(bp.Problem(upper, lambda x, y: lower(x, y) + d() * (y * x).sum()))
            ),
            right=bool,
        )
        yield Case(
            f"certify, lower: {label}",
            lambda d=draw: bp.certify(
                bp.Problem(upper, lambda x, y: lower(x, y) + d() * (y * x).sum()), *start()
            ),
        )
    for label, g in {"F.dropout": _dropped, "nn.Dropout": _layer}.items():
        yield Case(f"lower: {label}", lambda g=g: same_twice(lambda: of(g=g)), right=bool)
        yield Case(
            f"front, lower: {label}",
            lambda g=g: same_twice(lambda: front(bp.Problem(upper, g))),
            right=bool,
        )
    for label, g in {
        "clamp_": _saved,
        "x.data.add_": _added,
        "y.data[0] = 0": _set,
        "copy_": _copied,
    }.items():
        yield Case(f"lower: {label}", lambda g=g: of(g=g))
        yield Case(f"upper: {label}", lambda g=g: of(f=lambda x, y: upper(x, y) + 0 * g(x, y)))
        yield Case(f"front, lower: {label}", lambda g=g: front(bp.Problem(upper, g)))
        yield Case(
            f"certify, lower: {label}", lambda g=g: bp.certify(bp.Problem(upper, g), *start())
        )
    yield Case("lower: counts its calls", lambda: of(g=_counted()))
    yield Case("lower: grows a list", lambda: of(g=_leaky()))
    yield Case(
        "upper: counts its calls", lambda: of(f=lambda x, y, g=_counted(): upper(x, y) * g(x, y))
    )
    yield Case("lower: seeds torch", lambda: of(g=_reseeding))
    yield Case("lower: seeds numpy", lambda: of(g=lambda x, y: (np.random.seed(0), lower(x, y))[1]))  # noqa: NPY002
    yield Case("lower: changes the default dtype", _with_default_dtype)
    yield Case(
        "lower: boolean mask in a front", lambda: front(bp.Problem(upper, _mask)), may_warn=True
    )
    yield Case(
        "lower: item in a front",
        lambda: front(bp.Problem(upper, lambda x, y: lower(x, y) * float(y.detach().sum()) ** 0)),
        may_warn=True,
    )
    yield Case("upper: raises", lambda: of(f=lambda x, y: 1 / 0), raises=(ZeroDivisionError,))


def _with_default_dtype() -> Any:
    before = torch.get_default_dtype()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float32 if torch.get_default_dtype() is DOUBLE else DOUBLE)
        return lower(x, y)

    try:
        return of(g=loss)
    finally:
        torch.set_default_dtype(before)


def _stepped(of: bp.Problem, **others: Any) -> Any:
    optimizer = bp.Optimizer(of, *start(), method(), **others)
    optimizer.step()
    optimizer.step()
    return optimizer
