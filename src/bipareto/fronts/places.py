"""Runs of a front by their places: one, or some by a mask, a slice or a list."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import validation

__all__ = ["Places", "place", "places"]

#: Some of the runs: a slice, a boolean mask, or places in any order.
Places: TypeAlias = slice | Sequence[int] | Sequence[bool] | Tensor | np.ndarray[Any, Any]


def place(index: Any, runs: int) -> int:
    """A place on the run axis, counted from its start; a negative index counts from the end."""
    i = validation.count(index, "index", least=-sys.maxsize)
    if not -runs <= i < runs:
        raise IndexError(f"index {i} is out of range for a front of {runs} runs")
    return i % runs


def places(index: Any, runs: int) -> list[int]:
    """The places that a mask, a slice or a list of places stands for.

    >>> places(torch.tensor([False, True, True]), 3)
    [1, 2]
    """
    if isinstance(index, slice):
        return list(range(runs))[index]
    remedy = f"a boolean mask of {runs} entries, whole numbers, or a slice"
    listed = list(index) if isinstance(index, range) else index
    if not isinstance(listed, (Tensor, np.ndarray, list, tuple)):
        raise InvalidInput(f"index is {validation.shown(index)}; pass {remedy}")
    try:
        chosen = torch.as_tensor(listed).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"index is {validation.shown(index)}; pass {remedy}") from error
    if not chosen.numel() and chosen.dim() == 1 and chosen.dtype is not torch.bool:
        return []
    if chosen.dim() != 1 or chosen.is_floating_point() or chosen.is_complex():
        raise InvalidInput(
            f"index has shape {tuple(chosen.shape)} and dtype {chosen.dtype}; pass {remedy}"
        )
    if chosen.dtype is not torch.bool:
        return [place(i, runs) for i in chosen.tolist()]
    if len(chosen) != runs:
        raise InvalidInput(f"the mask has {len(chosen)} entries; pass {remedy}")
    return chosen.nonzero().flatten().tolist()
