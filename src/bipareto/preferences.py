"""Preference vectors: points of the simplex that say how much each objective matters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput

__all__ = ["as_preference", "grid"]


def grid(m: int, n: int, *, boundary: bool = False) -> Tensor:
    """A regular (Das-Dennis) grid on the simplex, `n` points along each edge, shape (count, m), float64.

    For m = 2 these are exactly n preferences.  The theory needs every w_i > 0, so the grid lies inside by default;
    `boundary=True` spans the whole simplex, corners included.

    >>> grid(2, 3)
    tensor([[0.7500, 0.2500],
            [0.5000, 0.5000],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    if m < 1 or n < 1 or (boundary and n < 2):
        raise InvalidInput(f"grid(m={m}, n={n}, boundary={boundary}): m must be at least 1 and n at least {2 if boundary else 1}")
    least = 0 if boundary else 1
    total = n - 1 + least * m
    # Compositions of `total` into m parts >= least, by the stars-and-bars bijection; first objective's weight falling.
    bars = combinations(range(n - 1 + m - 1), m - 1)
    parts = [[b - a - 1 + least for a, b in zip((-1, *cut), (*cut, n + m - 2), strict=True)] for cut in bars]
    return torch.tensor(parts, dtype=torch.float64).flip(0) / total


def as_preference(value: Any, m: int) -> Tensor:
    """Check one preference (m,) or several (R, m): on the simplex, of the right length; warn of zeros.

    Returns float64 on the CPU, normalised to sum exactly as given (no rescaling is done).
    """
    try:
        w = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"preference is {value!r}; pass m numbers that sum to 1, e.g. {_example(m)}") from error
    if w.dim() == 0 or w.shape[-1] != m:
        found = f"{w.shape[-1]} entries" if w.dim() else "no length (it is one number)"
        raise InvalidInput(f"preference {_show(w)} has {found}, but upper returns m = {m} objectives; pass m numbers, e.g. {_example(m)}")
    if not torch.isfinite(w).all() or (w < 0).any():
        raise InvalidInput(f"preference {_show(w)} has a negative or non-finite entry; every w_i must be > 0, e.g. {_example(m)}")
    off = (w.sum(-1) - 1).abs().max().item()
    if off > 1e-6:
        total = w.reshape(-1, m).sum(-1)
        raise InvalidInput(f"preference {_show(w)} sums to {total[(total - 1).abs().argmax()].item():.6g}, not 1; divide it by its sum")
    if (w == 0).any():
        warnings.warn(
            f"preference {_show(w)} has a zero: that objective gets no gradient and the theory (w > 0) does not apply; "
            "use a small positive weight, or preferences.grid(m, n), which stays inside the simplex",
            BiparetoWarning,
            stacklevel=3,
        )
    return w


def _show(w: Tensor) -> str:
    rows = w.reshape(-1, w.shape[-1]) if w.dim() else w
    if w.dim() < 2 or rows.shape[0] == 1:
        return str([round(v, 6) for v in w.flatten().tolist()])
    return f"({rows.shape[0]} vectors, the first {[round(v, 6) for v in rows[0].tolist()]})"


def _example(m: int) -> Sequence[float]:
    return [round(1 / m, 4)] * m
