"""Points to certify, and the matrices a certificate speaks of, written out."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import Certificate, certify
from bipareto.errors import BiparetoWarning
from helpers import DOUBLE

__all__ = ["dense", "numbers", "projected", "quietly"]


def quietly(*args: Any, **kwargs: Any) -> Certificate:
    """A certificate of a point that deserves a warning, which is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        return certify(*args, **kwargs)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def dense(problem: bp.Problem, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of f (m, d) and B = [g_xy; g_yy] (d, d_y), written out."""
    rows = torch.cat(torch.func.jacrev(problem.upper, argnums=(0, 1))(x, y), dim=-1)
    (_, xy), (_, yy) = torch.func.hessian(problem.lower, argnums=(0, 1))(x, y)
    return rows, torch.cat([xy, yy])


def projected(problem: bp.Problem, x: Tensor, y: Tensor) -> Tensor:
    """The gradients of f less their part in the range of B, (m, d): what no lower multiplier can
    cancel.
    """
    rows, B = dense(problem, x, y)
    return rows - rows @ B @ torch.linalg.pinv(B)
