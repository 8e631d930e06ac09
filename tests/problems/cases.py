"""The problems that the shared assertions run over, and small helpers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bipareto import problems
from bipareto.problem import tree
from bipareto.problems import KnownProblem

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "quadratic": ("quadratic", {}),
    "quadratic-dim1": ("quadratic", {"dim": 1, "seed": 2}),
    "quadratic-m3": ("quadratic", {"m": 3, "dim": 2, "seed": 1}),
    "quadratic-m4": ("quadratic", {"m": 4, "seed": 3}),
    "pl-sin2": ("pl-sin2", {}),
    "pl-sin2-spurious": ("pl-sin2", {"dim": 4, "kappa": 4.0, "m": 3, "seed": 5}),
    "sin": ("sin", {}),
    "sin-1": ("sin", {"n": 1}),
    "sin-trap": ("sin-trap", {}),
    "mo-sin": ("mo-sin", {}),
    "mo-sin-8": ("mo-sin", {"n": 8, "a": (1.0, 4.0)}),
    "mo-sin2": ("mo-sin2", {}),
    "merely-convex": ("merely-convex", {}),
    "merely-convex-m3": ("merely-convex", {"dim": 3, "m": 3}),
    "tp2-s": ("tp2-s", {}),
    "ds1": ("ds1", {}),
    "ds1-nonconvex": ("ds1", {"dim": 3}),
    "ridge": ("ridge", {}),
    "bistable": ("bistable", {}),
}

MULTI = [case for case, (name, _) in CASES.items() if name not in ("sin", "sin-trap")]


@cache
def problem(case: str) -> KnownProblem:
    name, options = CASES[case]
    return problems.get(name, **options)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(stream: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


def on_front(known: KnownProblem, stream: torch.Generator, count: int) -> Tensor:
    """Random coordinates t of the Pareto set, shape (count, k)."""
    if known.m == 1:
        return torch.zeros(count, 1, dtype=torch.float64)
    if known.m == 2:
        low, high = torch.tensor(known.geometry.intervals, dtype=torch.float64).unbind(1)
        which = torch.randint(len(low), (count,), generator=stream)
        return (
            low[which]
            + (high - low)[which] * torch.rand(count, generator=stream, dtype=torch.float64)
        )[:, None]
    raw = -torch.rand(count, known.m, generator=stream, dtype=torch.float64).log()
    raw[: count // 3, 0] = 0  # a face
    return (raw / raw.sum(-1, keepdim=True))[:, 1:]


def points_of(known: KnownProblem, t: Tensor) -> tuple[Tensor, Tensor]:
    """x (count, ...) and the objectives (count, m) at coordinates t."""
    x = [known.pareto_point(row) for row in t]
    return torch.stack(x), torch.stack([known.objectives(point) for point in x])


def preference(stream: torch.Generator, m: int) -> Tensor:
    raw = 0.05 + torch.rand(m, generator=stream, dtype=torch.float64)
    return raw / raw.sum()


def start(known: KnownProblem, seed: int) -> tuple[Tensor, Tensor]:
    x, y = known.start(seed)
    assert tree.structure(x) == tree.structure(known.x0)
    return x, y
