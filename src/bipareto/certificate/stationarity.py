"""Pareto stationarity of a set of gradients, as defined: without constraints and with them."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.certificate.inspection import simplex_minimum
from bipareto.errors import InvalidInput
from bipareto.problem import validation

#: active inequality constraints whose 2^k subsets are tried
MOST_INEQUALITIES = 12


class Stationarity(NamedTuple):
    """The smallest norm and the multipliers that reach it.

    epsilon: the norm; a point is eps-Pareto stationary for every eps >= epsilon.
    weights: lambda (m,) in the simplex.
    inequality: mu (k,) >= 0.
    equality: nu (l,).
    """

    epsilon: float
    weights: Tensor
    inequality: Tensor
    equality: Tensor


def pareto_stationarity(
    gradients: Any, *, inequality: Any = None, equality: Any = None
) -> Stationarity:
    """min || sum_i lambda_i grad F_i + sum_h mu_h grad h + sum_g nu_g grad g || over lambda in the
    simplex, mu >= 0 and nu: the smallest eps for which a point is eps-Pareto stationary.

    Args:
        gradients: grad F_i (m, d), one row per objective; for a bilevel problem those of
            x -> f_i(x, y*(x)), or, with `equality` the rows of [g_yx, g_yy], those of f_i(x, y).
        inequality: gradients (k, d) of the *active* constraints h <= 0, k <= 12.
        equality: gradients (l, d) of the constraints g = 0.

    >>> pareto_stationarity([[2.0, 0.0], [0.0, 1.0]]).weights
    tensor([0.2000, 0.8000], dtype=torch.float64)
    >>> pareto_stationarity([[1.0, 0.0]], inequality=[[-1.0, 0.0]]).epsilon
    0.0
    """
    rows = _rows(gradients, "gradients", None)
    if not len(rows):
        raise InvalidInput("gradients is empty; pass one row for each objective, (m, d)")
    d = rows.shape[1]
    active, fixed = _rows(inequality, "inequality", d), _rows(equality, "equality", d)
    if len(active) > MOST_INEQUALITIES:
        raise InvalidInput(
            f"inequality has {len(active)} rows; at most {MOST_INEQUALITIES} can be active here: "
            "leave out those with h < 0, or pass as equality those that bind"
        )
    best: Stationarity | None = None
    # At the minimum some constraints have mu > 0 and act as equalities; the others have none.
    for count in range(len(active) + 1):
        for chosen in combinations(range(len(active)), count):
            normals = torch.cat([active[list(chosen)], fixed])
            tried = _with_equalities(rows, normals)
            mu = rows.new_zeros(len(active))
            mu[list(chosen)] = tried.equality[:count]
            found = Stationarity(tried.epsilon, tried.weights, mu, tried.equality[count:])
            if bool((mu >= 0).all()) and (best is None or found.epsilon < best.epsilon):
                best = found
    assert best is not None  # the empty choice is always possible
    return best


def _with_equalities(rows: Tensor, normals: Tensor) -> Stationarity:
    """The minimum with free multipliers of all normals: the rows' parts orthogonal to them."""
    pinv = torch.linalg.pinv(normals)
    rest = rows - rows @ pinv @ normals
    scale = rows.norm(dim=1).max().clamp_min(torch.finfo(rows.dtype).tiny)
    rest = torch.where(rest.abs() > 1e-15 * scale, rest, 0.0)
    weights, _ = simplex_minimum(rest)
    return Stationarity(
        float((weights @ rest).norm()), weights, rows.new_zeros(0), -(weights @ rows @ pinv)
    )


def _rows(values: Any, name: str, d: int | None) -> Tensor:
    if values is None:
        return torch.zeros(0, d or 0, dtype=torch.float64)
    rows = validation.array(values, name, "one row per gradient, (rows, d)")
    if rows.dim() != 2 or (d is not None and rows.shape[1] != d):
        width = "d" if d is None else str(d)
        raise InvalidInput(f"{name} has shape {tuple(rows.shape)}; pass rows of {width} numbers")
    if not bool(torch.isfinite(rows).all()):
        raise InvalidInput(f"{name} holds NaN or infinity; a gradient there says nothing")
    return rows
