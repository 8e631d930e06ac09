"""Random data of generated problems, float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

__all__ = ["normal", "orthogonal", "scattered", "uniform"]


def normal(stream: Generator, *shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


def uniform(stream: Generator, low: float, high: float, *shape: int) -> Tensor:
    """Numbers uniform in [low, high]."""
    return low + (high - low) * torch.rand(*shape, generator=stream, dtype=torch.float64)


def orthogonal(stream: Generator, dim: int) -> Tensor:
    """An orthogonal matrix (dim, dim)."""
    return torch.linalg.qr(normal(stream, dim, dim)).Q


def scattered(stream: Generator, m: int, hessian: Tensor) -> Tensor:
    """m points of R^d, normal, scaled so that the mean of ||p_i - p_j||_M^2, M the Hessian, is 2d;
    shape (m, d).
    """
    dim = hessian.shape[0]
    points = normal(stream, m, dim)
    spread = torch.pdist(points @ torch.linalg.cholesky(hessian)).square().mean()
    return points * (2 * dim / spread).sqrt()
