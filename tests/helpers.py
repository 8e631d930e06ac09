"""Small problems that several test files use."""

from __future__ import annotations

import torch
from torch import Tensor

import bipareto as bp

__all__ = ["DICT_PROBLEM", "DOUBLE", "dict_start", "nonconvex"]

DOUBLE = torch.float64


def nonconvex(d: int = 3, m: int = 2, seed: int = 0, device: str = "cpu") -> tuple[bp.Problem, Tensor, Tensor]:
    """m quadratic objectives over g(x, y) = sum phi(y - Ax), phi(u) = u^2/2 + 1.5 sin^2 u, and a random start."""
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=DOUBLE).to(device)

    A, p, q = 0.5 * normal(d, d), normal(m, d), normal(m, d)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - p).square().sum(1) + (y - q).square().sum(1)) + 1

    def lower(x: Tensor, y: Tensor) -> Tensor:
        u = y - A @ x
        return (0.5 * u.square() + 1.5 * u.sin().square()).sum()

    return bp.Problem(upper, lower), normal(d), normal(d)


def dict_start() -> tuple[dict[str, Tensor], list[Tensor]]:
    return {"a": torch.ones(2, dtype=DOUBLE), "b": torch.zeros(1, dtype=DOUBLE)}, [torch.zeros(2, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)]


def _dict_upper(x: dict[str, Tensor], y: list[Tensor]) -> Tensor:
    return torch.stack([x["a"].square().sum() + (y[0] - 1).square().sum(), (x["b"] - 2).square().sum() + y[1].square().sum()])


def _dict_lower(x: dict[str, Tensor], y: list[Tensor]) -> Tensor:
    return (y[0] - x["a"]).square().sum() + (y[1] - x["b"]).square().sum()


#: x a dict, y a list: the same arithmetic as on one flat vector
DICT_PROBLEM = bp.Problem(_dict_upper, _dict_lower)
