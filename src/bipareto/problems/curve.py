"""A front that one parameter traces, and bisection on it: distances and scalarized minima to rounding.

Minima are located as roots of a slope, not by comparing values, because values at a minimum agree to eps long before
their arguments do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bipareto.scalarization import Scalarization

__all__ = ["Curve", "bisect", "nondominated"]

#: local minima on the sampling grid that are refined; two branches of a front give two of almost equal value
_CANDIDATES = 3


def bisect(rises: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The place in [low, high] where the predicate `rises` turns from false to true, elementwise, to rounding.

    Where it is true (false) throughout, this is low (high).
    """
    for _ in range(64):
        middle = 0.5 * (low + high)
        right = rises(middle)
        low, high = torch.where(right, low, middle), torch.where(right, middle, high)
    return 0.5 * (low + high)


class Curve:
    """The front {F(t) : t in a union of closed intervals} of two objectives.

    Args:
        values: F, elementwise in t: shape (...) -> (..., 2); differentiable by `torch.func.jvp`.
        intervals: pairs (low, high) in increasing order.
        samples: grid points per interval, from which every minimisation starts.
    """

    def __init__(self, values: Callable[[Tensor], Tensor], intervals: Sequence[tuple[float, float]], samples: int = 513) -> None:
        self.values, self.intervals = values, tuple(intervals)
        grids = [torch.linspace(low, high, samples, dtype=torch.float64) for low, high in self.intervals]
        self._low = torch.cat([torch.cat([grid[:1], grid[:-1]]) for grid in grids])
        self._high = torch.cat([torch.cat([grid[1:], grid[-1:]]) for grid in grids])
        self._samples = values(torch.cat(grids))
        self._per_interval = samples

    def points(self, n: int) -> Tensor:
        """At least n points of the front, shape (count, 2), ends of every interval included, in order of t."""
        each = max(2, -(-n // len(self.intervals)))
        return self.values(torch.cat([torch.linspace(low, high, each, dtype=torch.float64) for low, high in self.intervals]))

    def distance(self, objectives: Tensor) -> Tensor:
        """Euclidean distance of each row (R, 2) to the curve, shape (R,)."""
        targets = objectives[:, None]
        t = self._local_minima(
            (self._samples - targets).square().sum(-1), lambda f, tangent: ((f - targets) * tangent).sum(-1)
        )
        return (self.values(t) - targets).norm(dim=-1).amin(-1)

    def minimise(self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """The t in the intervals that minimises form(F(t); w, z, mu), shape (1,); the best of all intervals."""
        t = self._local_minima(
            form.value(self._samples, w, z, mu)[None], lambda f, tangent: (form.weights(f, w, z, mu) * tangent).sum(-1)
        )[0]
        return t[form.value(self.values(t), w, z, mu).argmin()][None]

    def _local_minima(self, sampled: Tensor, slope: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Local minima t (R, candidates) of functions of F given on the grid (R, N) and by their slope(F, F')."""
        rows = sampled.reshape(sampled.shape[0], -1, self._per_interval)
        padded = torch.nn.functional.pad(rows, (1, 1), value=torch.inf)
        lowest = (rows <= padded[..., :-2]) & (rows <= padded[..., 2:])
        ranked = torch.where(lowest, rows, torch.inf).flatten(1)
        starts = ranked.topk(_CANDIDATES, largest=False).indices
        # Where there are fewer local minima than candidates the best one stands in for the missing.
        starts = torch.where(ranked.gather(1, starts).isfinite(), starts, starts[:, :1])

        def rises(t: Tensor) -> Tensor:
            return slope(*torch.func.jvp(self.values, (t,), (torch.ones_like(t),))) > 0

        return bisect(rises, self._low[starts], self._high[starts])


def nondominated(values: Callable[[Tensor], Tensor], intervals: Sequence[tuple[float, float]], samples: int = 2001) -> list[tuple[float, float]]:
    """The parts of the intervals whose F(t) no point of the union dominates.

    On each interval F must fall in one objective while it rises in the other, as it does on a locally Pareto-optimal arc.
    Ends are bisected to rounding; parts narrower than the sampling distance are not seen.

    Args:
        values: as in `Curve`.
        intervals: pairs (low, high).
        samples: grid points per interval.
    """
    arcs = [(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)) for low, high in intervals]

    def dominated(t: Tensor, own: int) -> Tensor:
        f = values(t)
        found = torch.zeros_like(t, dtype=torch.bool)
        for index, (low, high) in enumerate(arcs):
            if index == own:
                continue
            falls = bool(values(low)[0] > values(high)[0])
            # The point of that arc with the smallest f_2 among those with f_1 no larger than here.
            there = bisect(lambda s, falls=falls: (values(s)[..., 0] > f[..., 0]) != falls, low.expand_as(t), high.expand_as(t))
            reached = torch.minimum(values(low)[0], values(high)[0]) <= f[..., 0]
            found |= reached & (values(there)[..., 1] < f[..., 1])
        return found

    kept: list[tuple[float, float]] = []
    for own, (low, high) in enumerate(arcs):
        t = torch.linspace(float(low), float(high), samples, dtype=torch.float64)
        bad = dominated(t, own)
        turns = (bad[1:] != bad[:-1]).nonzero().flatten()
        edges = [bisect(lambda s, first=bad[i]: dominated(s, own) != first, t[i], t[i + 1]) for i in turns]
        ends = ([] if bad[0] else [low]) + edges + ([] if bad[-1] else [high])
        kept += [(float(a), float(b)) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    return kept
