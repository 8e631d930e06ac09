"""A front that one parameter traces, and bisection on it: distances and scalarized minima to
rounding.

Minima are located as roots of a slope, not by comparing values, because values at a minimum agree
to eps long before their arguments do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from bipareto.methods.parts.scalarization import Scalarization

Interval: TypeAlias = tuple[float, float]

#: local minima on the sampling grid that are refined; two branches of a front give two of almost
#: equal value
_CANDIDATES = 3
#: grid points per interval, from which minimisations start, and between which ends are looked for
_GRID, _FINE = 513, 2001


def bisect(rises: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The place in [low, high] where the predicate `rises` turns from false to true, elementwise,
    to rounding.

    Where it is true (false) throughout, this is low (high).
    """
    for _ in range(54):  # one more than the bits of a float
        middle = 0.5 * (low + high)
        right = rises(middle)
        low, high = torch.where(right, low, middle), torch.where(right, middle, high)
    return 0.5 * (low + high)


class Curve:
    """The front {F(t) : t in a union of closed intervals} of two objectives.

    Args:
        values: F, elementwise in t: shape (...) -> (..., 2); differentiable.
        intervals: pairs (low, high) in increasing order.
    """

    def __init__(self, values: Callable[[Tensor], Tensor], intervals: Sequence[Interval]) -> None:
        self.values, self.intervals = values, tuple(intervals)
        grids = [
            torch.linspace(low, high, _GRID, dtype=torch.float64) for low, high in self.intervals
        ]
        self._low = torch.cat([torch.cat([grid[:1], grid[:-1]]) for grid in grids])
        self._high = torch.cat([torch.cat([grid[1:], grid[-1:]]) for grid in grids])
        self._samples = values(torch.cat(grids))

    def points(self, n: int) -> Tensor:
        """At least n points of the front (count, 2), ends of all intervals included, f_1 rising."""
        each = max(2, -(-n // len(self.intervals)))
        points = self.values(
            torch.cat(
                [
                    torch.linspace(low, high, each, dtype=torch.float64)
                    for low, high in self.intervals
                ]
            )
        )
        return points[
            (points[:, 0] - points[:, 1]).argsort()
        ]  # rises along the front, also where f_1 is the same on two arcs

    def distance(self, objectives: Tensor) -> Tensor:
        """Euclidean distance of each row (R, 2) to the curve, shape (R,)."""
        targets = objectives[:, None]
        t = self._local_minima((self._samples - targets).square().sum(-1), lambda f: f - targets)
        return (self.values(t) - targets).norm(dim=-1).amin(-1)

    def minimise(self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """The t of all intervals that minimises form(F(t); w, z, mu), shape (1,)."""
        t = self._local_minima(
            form.value(self._samples, w, z, mu)[None], lambda f: form.weights(f, w, z, mu)
        )[0]
        return t[form.value(self.values(t), w, z, mu).argmin()][None]

    def _local_minima(self, sampled: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        """Local minima t (R, candidates) of R functions of F, given by their values on the grid (R,
        N) and their gradient in F.
        """
        rows = sampled.reshape(sampled.shape[0], -1, _GRID)
        padded = torch.nn.functional.pad(rows, (1, 1), value=torch.inf)
        lowest = (rows <= padded[..., :-2]) & (rows <= padded[..., 2:])
        ranked = torch.where(lowest, rows, torch.inf).flatten(1)
        starts = ranked.topk(_CANDIDATES, largest=False).indices
        # Where there are fewer local minima than candidates the best one stands in for the missing.
        starts = torch.where(ranked.gather(1, starts).isfinite(), starts, starts[:, :1])
        return bisect(
            lambda t: slope(self.values, t, gradient) > 0, self._low[starts], self._high[starts]
        )


class Sweep:
    """A Pareto set traced by a real variable s, and its front; its coordinate t runs from 0 to 1
    along s.

    Args:
        values: the objectives at s, elementwise as in `Curve`.
        intervals: those s that are Pareto-optimal, in increasing order.
    """

    def __init__(self, values: Callable[[Tensor], Tensor], intervals: Sequence[Interval]) -> None:
        self.intervals = tuple(intervals)
        self._low, self._width = intervals[0][0], intervals[-1][1] - intervals[0][0]
        scaled = [
            ((low - self._low) / self._width, (high - self._low) / self._width)
            for low, high in intervals
        ]
        self.front = Curve(lambda t: values(self.point(t)), scaled)

    def point(self, t: Tensor) -> Tensor:
        """s at t."""
        return self._low + self._width * t

    def coordinate(self, s: Tensor) -> Tensor:
        """t at s."""
        return (s - self._low) / self._width


def slope(
    values: Callable[[Tensor], Tensor], t: Tensor, gradient: Callable[[Tensor], Tensor]
) -> Tensor:
    """<gradient(F(t)), F'(t)> for every entry of t: the slope along the curve of a function with
    that gradient in F.
    """
    with torch.enable_grad():
        t = t.detach().requires_grad_()
        f = values(t)
        (along,) = torch.autograd.grad(f, t, gradient(f.detach()).expand_as(f))
    return along


def opposed(values: Callable[[Tensor], Tensor], low: float, high: float) -> list[Interval]:
    """The parts of [low, high] on which one objective falls while the other rises: the locally
    Pareto-optimal arcs.

    Their ends, where one slope vanishes, are bisected to rounding; parts narrower than the sampling
    distance are not seen.
    """

    def conflict(t: Tensor) -> Tensor:
        first, second = torch.eye(2, dtype=t.dtype)
        return slope(values, t, lambda f: first) * slope(values, t, lambda f: second) < 0

    return _where(conflict, low, high)


def nondominated(values: Callable[[Tensor], Tensor], arcs: Sequence[Interval]) -> list[Interval]:
    """The parts of locally Pareto-optimal arcs (see `opposed`) that no other arc dominates, ends
    bisected to rounding.
    """
    kept: list[Interval] = []
    corners = [values(torch.tensor(arc, dtype=torch.float64)) for arc in arcs]
    # An arc whose best values together are beaten by an end of another arc goes as a whole.
    alive = [
        not any(bool((end < corner.amin(0)).all()) for other in corners for end in other)
        for corner in corners
    ]
    arcs = [arc for arc, keep in zip(arcs, alive, strict=True) if keep]
    for own, (low, high) in enumerate(arcs):
        others = [arc for index, arc in enumerate(arcs) if index != own]

        def free(t: Tensor, others: Sequence[Interval] = others) -> Tensor:
            f = values(t)
            return ~torch.stack(
                [
                    torch.zeros_like(t, dtype=torch.bool),
                    *(_dominates(values, arc, f) for arc in others),
                ]
            ).any(0)

        kept += _where(free, low, high)
    return kept


def _dominates(values: Callable[[Tensor], Tensor], arc: Interval, f: Tensor) -> Tensor:
    """Whether some point of the arc has f_1 no larger and f_2 smaller than rows f (..., 2)."""
    low, high = (torch.full_like(f[..., 0], end) for end in arc)
    first, last = values(low)[..., 0], values(high)[..., 0]
    rising = first < last
    # Along the arc f_2 is smallest where f_1 is as large as allowed.
    there = bisect(lambda t: (values(t)[..., 0] > f[..., 0]) == rising, low, high)
    return (torch.minimum(first, last) <= f[..., 0]) & (values(there)[..., 1] < f[..., 1])


def _where(holds: Callable[[Tensor], Tensor], low: float, high: float) -> list[Interval]:
    """The intervals in [low, high] on which a predicate holds."""
    t = torch.linspace(low, high, _FINE, dtype=torch.float64)
    inside = holds(t)
    # Each round puts as many samples between the two where the predicate turns: far fewer
    # evaluations than halving.
    edges = [
        _turn(holds, t[i : i + 2]) for i in (inside[1:] != inside[:-1]).nonzero()[:, 0].tolist()
    ]
    ends = [*([low] if inside[0] else []), *edges, *([high] if inside[-1] else [])]
    return list(zip(ends[::2], ends[1::2], strict=True))


def _turn(holds: Callable[[Tensor], Tensor], bracket: Tensor) -> float:
    """Where the predicate changes inside the bracket (2,), to rounding."""
    while bool(bracket[1] - bracket[0] > 4 * torch.finfo(bracket.dtype).eps * bracket.abs().amax()):
        t = torch.linspace(float(bracket[0]), float(bracket[1]), _FINE, dtype=bracket.dtype)
        inside = holds(t)
        turned = (inside != inside[0]).nonzero()
        # The last bits of the predicate may depend on its neighbours in the vector.
        if not len(turned):
            break
        bracket = t[int(turned[0]) - 1 : int(turned[0]) + 1]
    return float(bracket.mean())
