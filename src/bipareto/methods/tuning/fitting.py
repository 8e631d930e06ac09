"""Coordinates for a run, from second-order pictures of where it is and of what it has passed by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.methods.tuning import local
from bipareto.methods.tuning.local import Local

#: the penalty's curvature in y over that of the scalarized objectives
STRONGER = 5.0


class Fit(NamedTuple):
    """Coordinates of R runs, P_x, P_y and W, and the penalty (R,) they are made for."""

    x: Tensor
    y: Tensor
    follow: Tensor
    penalty: Tensor


def fit(
    own: Local,
    others: Sequence[Local],
    *,
    extent: Tensor,
    mu: float,
    gamma: float,
    largest: float,
    penalty: Tensor,
    pace: float,
    metric: Tensor | None = None,
) -> Fit:
    """Coordinates for runs at `own` that pass by `others`.

    - P_y makes g_yy at `own` the identity, and is shrunk where a curvature met at `others` exceeds
      `largest`.
    - The penalty c is at least so strong that F/c curves g's valley by no more than a fifth.
    - P_x = (pace K sum E'E + M/c)^-1.  M is the curvature of F along the lower solutions; E = g_yx
      + g_yy W is what is left of the coupling when y goes along with x, zero at `own`; and K =
      gamma/(1 + gamma L) is what the envelope makes of it.  A step of length `pace` then goes that
      share of x's way, and less where y could not follow.  M is a mean over the places, and P_x is
      shrunk where the curvature at one of them exceeds it.

    Args:
        extent: of the objectives, (m,).
        mu, gamma: smoothing, and the envelope's gamma in these coordinates.
        largest: L, the curvature in these coordinates that the steps of y allow for.
        penalty: c (R,) at which the coordinates are used.
        metric: P_y (R, n_y, n_y) that is not to be made anew.
    """
    places, unit = [own, *others], extent[:, None]
    root = _root(own, others, largest, penalty) if metric is None else torch.linalg.cholesky(metric)
    penalty = _strong(root, own, others, extent, mu, penalty)
    left = torch.stack([root.mT @ (at.g_yx + at.g_yy @ own.follow) for at in places])
    stiff = pace * gamma / (1 + gamma * largest) * (left.mT @ left).sum(0)
    bends = torch.stack(
        [
            (local.absolute(at.bend) / unit[..., None]).mean(1)
            + _sharp((at.f_x + at.f_y @ own.follow) / unit, mu)
            for at in places
        ]
    )
    c = penalty[:, None, None]
    metric_x, root_x = local.inverse(stiff + bends.mean(0) / c, 1e-9)
    top = torch.stack([local.spectrum(root_x, stiff + M / c).amax(-1) for M in bends]).amax(0)
    top = torch.where(top > 0, top, torch.ones_like(top))
    return Fit(metric_x / top[:, None, None], root @ root.mT, own.follow, penalty)


def strong(own: Local, *, extent: Tensor, mu: float, largest: float, penalty: Tensor) -> Tensor:
    """The penalty of `fit` alone, for runs that pass by no other place."""
    return _strong(_root(own, [], largest, penalty), own, [], extent, mu, penalty)


def _root(own: Local, others: Sequence[Local], largest: float, penalty: Tensor) -> Tensor:
    """A root of P_y (R, n_y, n_y); `penalty` (R,) for its shape and dtype."""
    # At `own` every curvature is one.
    met = [local.spectrum(own.root, at.g_yy).abs().amax(-1) for at in others]
    most = torch.stack([torch.ones_like(penalty), *met]).amax(0)
    return own.root / (most / largest).clamp_min(1.0).sqrt()[:, None, None]


def _strong(
    root: Tensor, own: Local, others: Sequence[Local], extent: Tensor, mu: float, penalty: Tensor
) -> Tensor:
    """The penalty (R,), at least so strong that F/c curves g's valley by no more than a fifth."""
    unit = extent[:, None]

    def bent(at: Local) -> Tensor:
        """The largest curvature of an f_i in y, in the coordinates of `root`."""
        return local.spectrum(root[:, None], at.f_yy / unit[..., None]).abs().amax((-1, -2))

    here = bent(own)
    tilts = [
        # Of quadratics it is the same everywhere.
        (here if torch.equal(at.f_yy, own.f_yy) else bent(at))
        + _sharp((at.f_y / unit) @ root, mu).diagonal(dim1=-2, dim2=-1).sum(-1)
        for at in [own, *others]
    ]
    return torch.maximum(penalty, STRONGER * torch.stack(tilts).amax(0))


def _sharp(slopes: Tensor, mu: float) -> Tensor:
    """mu/4 times the outer products of differences of slopes (R, m, n): what the softmax adds to
    F's curvature.
    """
    rest = _differences(slopes)
    return 0.25 * mu / slopes.shape[1] ** 2 * rest.mT @ rest


def _differences(values: Tensor) -> Tensor:
    """values_i - values_j for all i < j of (R, m, n), shape (R, pairs, n); zeros for m = 1."""
    m = values.shape[1]
    i, j = torch.triu_indices(m, m, 1)
    return values[:, i] - values[:, j] if m > 1 else torch.zeros_like(values)
