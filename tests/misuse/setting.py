"""A small problem, and calls of the library on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bipareto as bp

DOUBLE = torch.float64


def upper(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack(
        [
            (x - 1).square().sum() + y.square().sum() + 1,
            x.square().sum() + (y - 2).square().sum() + 1,
        ]
    )


def lower(x: Tensor, y: Tensor) -> Tensor:
    return (y - x).square().sum() / 2


def problem() -> bp.Problem:
    return bp.Problem(upper, lower)


def start() -> tuple[Tensor, Tensor]:
    return torch.full((3,), 0.3, dtype=DOUBLE), torch.full((3,), -0.5, dtype=DOUBLE)


def method(**others: Any) -> bp.MOMEHA:
    return bp.MOMEHA(**{"gamma": 0.5, "alpha_theta": 0.2, "alpha_x": 0.2, "alpha_y": 0.2} | others)


def solve(of: bp.Problem | None = None, **others: Any) -> Any:
    x0, y0 = start()
    given = {"x0": x0, "y0": y0, "method": method(), "steps": 3, "progress": False} | others
    return bp.solve(of or problem(), **given)


def front(of: bp.Problem | None = None, **others: Any) -> Any:
    x0, y0 = start()
    given = {
        "x0": x0,
        "y0": y0,
        "method": method(),
        "steps": 3,
        "preferences": bp.preferences.grid(2, 3),
        "progress": False,
    } | others
    return bp.front(of or problem(), **given)


def same_twice(build: Callable[[], Any]) -> bool:
    """Whether the same call gives the same answer when the global random state is another one."""
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)  # noqa: NPY002
        answer = build()
        found.append(answer.x)
    return bool(torch.equal(*found))


def no_state_changed(build: Callable[[], Any]) -> bool:
    torch.manual_seed(5), np.random.seed(5), random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    default = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    build()
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    return (
        torch.equal(before[0], after[0])
        and before[1:] == after[1:]
        and default == (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    )


def same_x(build: Callable[[], Any]) -> bool:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)  # noqa: NPY002
        build_x = build().x
        found.append(torch.cat([v.flatten() for v in build_x.values()]))
    return bool(torch.equal(*found))
