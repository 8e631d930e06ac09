"""What preferences measure objectives by: F is taken of (f_i - z_i)/s_i.

Runs take objectives as they are, and so do proposals of points to train, unless their sizes differ
by more than a factor of ten, of thirty where x has few coordinates: then s is the size above z.
There z is zero, and below zero for an objective that is negative, as a log density may be.  Where
many trainings have told the front, z lies a little below its best values and s is its range,
as in `MOMEHA.tuned`: preferences then ask for shares of what can be had of each objective, whatever
its level.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import scalarization

#: The ideal point's distance below the best values of a front, as a share of the extent.
MARGIN = 0.25
#: An extent is at least this share of the objective's size: where objectives do not conflict, the
#: front's own is noise.
LEAST_EXTENT = 1e-3
#: Objectives whose sizes differ by a larger factor are measured by them: else the largest alone
#: decides.  With few coordinates (True) that costs more than it gives where errors of one kind
#: differ, because one task is easy: answers are chosen by ranges there anyway.
COMPARABLE = {True: 30.0, False: 10.0}


class Units(NamedTuple):
    """The ideal point z (m,) and the extent s (m,), in double precision, and the smoothing mu."""

    ideal: Tensor
    extent: Tensor
    mu: float

    @classmethod
    def plain(cls, m: int) -> Units:
        """Objectives as they are, and mu as `Twin` has it."""
        zero = torch.zeros(m, dtype=torch.float64)
        return cls(zero, zero + 1, 4.0)

    @classmethod
    def of_sizes(cls, objectives: Tensor, start: Tensor, few: bool) -> Units:
        """z by `scalarization.ideal_below`, and s the largest distance from z of objectives (n, m)
        in some trainings, where the largest and the smallest of these are not comparable, nor were
        they at the start (m,), for one training that went astray tells no sizes; else s = 1.

        Args:
            few: whether x has few coordinates.
        """
        f, at = objectives.detach().double().cpu(), start.detach().double().cpu()
        plain, f = cls.plain(f.shape[1]), f[torch.isfinite(f).all(1)]
        if not len(f):
            return plain
        best = f.amin(0)
        known = torch.stack([best, torch.where(torch.isfinite(at), at, best)])
        plain = plain._replace(ideal=scalarization.ideal_below(known))
        size, at = (f - plain.ideal).amax(0), at - plain.ideal
        high, low = int(size.argmax()), int(size.argmin())
        factor = COMPARABLE[few]
        apart = size[low] > 0 and all(v[high] > factor * v[low] for v in (size, at))
        return plain._replace(extent=size) if apart else plain

    def asked(self, state: Any) -> Any:
        """The state of a run that is asked for the same in these units: its w divided by s, and z.

        F of (f - z)/s under w is F of f - z under w/s.
        """
        w = state.preference
        return state._replace(preference=w / self.extent.to(w), ideal=self.ideal.to(w))

    @classmethod
    def of_front(cls, objectives: Tensor) -> Units:
        """Those of objectives (n, m), freed from noise, over the rows that no other dominates; mu
        as in `MOMEHA.tuned`.
        """
        f = objectives.detach().double()
        f = f[torch.isfinite(f).all(1)]
        m = f.shape[1]
        if not len(f):
            return cls.plain(m)
        better = (f[:, None] <= f[None]).all(2) & (f[:, None] < f[None]).any(2)
        front = f[~better.any(0)]
        low, high = front.amin(0), front.amax(0)
        size = torch.maximum(low.abs(), high.abs())
        extent = torch.maximum(high - low, LEAST_EXTENT * size)
        extent = torch.where(extent > 0, extent, 1.0)
        return cls(low - MARGIN * extent, extent, 4.0 * m)

    def value(self, objectives: Tensor, preference: Tensor) -> Tensor:
        """F (...,) of objectives (..., m), the smooth Tchebycheff scalarization in these units."""
        f = objectives.double()
        return value_of((f - self.ideal.to(f)) / self.extent.to(f), preference, self.mu)


def value_of(objectives: Tensor, preference: Tensor, mu: float = 4.0) -> Tensor:
    """F (...,) of objectives (..., m) as they are, z = 0 and s = 1; infinite where an objective is
    not finite.
    """
    f = objectives.double()
    w, zero = preference.to(f), torch.zeros((), dtype=f.dtype, device=f.device)
    value = scalarization.get("stch").value(f, w, zero, torch.as_tensor(mu).to(f))
    return torch.where(torch.isfinite(f).all(-1), value, math.inf)
