"""A lower level with infinitely many minimisers, g(x, y) = sum_i sin(x + y_i - c_i), x in R, y in
R^n, c = 2e.

Its minima are x + y_i - c_i = C_k = -pi/2 + 2 k pi, its maxima lie half-way between.  Both solve
the relaxed problem grad_y g = 0; the answers here are those of the bilevel problem, on lower
*minima* and the best of all branches k.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.problems.base import Constants, Front, KnownProblem, Single, at_least, normal
from bipareto.problems.curve import Interval, Sweep, nondominated

_C = 2.0


def _nearest_minimum(value: Tensor) -> Tensor:
    """The C_k nearest to a number."""
    return -pi / 2 + 2 * pi * torch.round((value + pi / 2) / (2 * pi))


class _Sine(KnownProblem):
    """f_i = (x - a_i)^2 + ||y - a_i e - c||^2 over g, for m = len(a) objectives.

    On branch k f_i(x, y*(x)) = n (C_k - 2 a_i)^2/(n + 1) + (n + 1) (x - x_i)^2 with x_i = ((1 - n)
    a_i + n C_k)/(n + 1). The default start, x + y_i - c_i = 2 mean(a), lies in the basin of the
    branch that is best there.

    Args:
        n: dimension of y.
        a: a_i.
        geometry: the front.
        noise: see `KnownProblem`.
    """

    def __init__(self, n: int, a: tuple[float, ...], geometry: Front, noise: float) -> None:
        self.n, self.a = n, torch.tensor(a, dtype=torch.float64)
        centre = self.a.mean()
        # grad g is the sum of n terms along e_x + e_{y_i}, whose Gram matrix has the largest
        # eigenvalue n + 1.
        constants = Constants(L_g=n + 1.0, L_f=2.0, rho_y=1.0)
        super().__init__(
            self._f,
            self._g,
            (centre + 1).reshape(1),
            (centre - 1 + _C).repeat(n),
            constants,
            geometry,
            noise=noise,
        )

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        return (x - self.a).square() + (y - self.a[:, None] - _C).square().sum(-1)

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x + y - _C).sum()

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """Normal around the default start; the y_i move together, so that they begin on one branch,
        which may be any.
        """
        stream = generator("start", 0, seed)
        return self.x0 + 2 * normal(stream, 1), self.y0 + 3 * normal(stream, 1) + 0.1 * normal(
            stream, self.n
        )

    def lower_solution(self, x: Tree) -> Tensor:
        """y_i = C_k + c_i - x with the C_k that makes f smallest at equal preference."""
        return (_nearest_minimum(x + self.a.mean()) + _C - x).repeat(self.n)

    def is_lower_minimum(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether g curves upwards in every y_i, as it does near its minima and not near its
        maxima; x (..., 1), y (..., n).
        """
        return (torch.sin(x + y - _C) < 0).all(-1)


class Sin(_Sine):
    """One objective: x* = ((1 - n) a + n C)/(n + 1), F* = n (C - 2a)^2/(n + 1), C the C_k nearest
    to 2a.

    The coordinate is x - x*.

    Args:
        n: dimension of y.
        a: the target.
        noise: see `KnownProblem`.
    """

    name = "sin"
    summary = "one objective over a lower level with infinitely many minima and maxima"

    def __init__(self, n: int = 5, a: float = 2.0, noise: float = 0.0) -> None:
        at_least("n", n, 1)
        best = float(_nearest_minimum(torch.tensor(2 * a, dtype=torch.float64)))
        self.x_star = ((1 - n) * a + n * best) / (n + 1)
        super().__init__(n, (a,), Single(n * (best - 2 * a) ** 2 / (n + 1)), noise)

    def pareto_point(self, t: Tensor) -> Tensor:
        return self.x_star + t

    def coordinates(self, x: Tree) -> Tensor:
        """x - x*, shape (R, 1)."""
        return x - self.x_star


class SinTrap(Sin):
    """`Sin` with n = 1 and a = 1: the relaxed problem is solved best at a lower maximum, x = pi/4
    with F = 0.0921 < F* = 3.6785.

    The default start lies near that maximum; a method that ends at x = pi/4 was caught.
    """

    name = "sin-trap"
    summary = (
        "one objective whose relaxed optimum is a lower-level maximum: catches methods that take it"
    )

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__(1, 1.0, noise)


class MoSin(_Sine):
    """Two objectives; on each branch the Pareto set is the interval between x_1 and x_2, and the
    front is what is left of all.

    The coordinate runs along x from 0 to 1 over all branches.  `exact` is the best point of all
    branches; a local method may rightly end on another.

    Args:
        n: dimension of y, at least 2 (a single y_i makes each branch a point).
        a: (a_1, a_2) with |a_1 - a_2| <= pi, which makes points with the y_i on different branches
            dominated.
        noise: see `KnownProblem`.
    """

    name = "mo-sin"
    summary = (
        "two objectives over infinitely many lower minima and maxima; the front lies on one branch"
    )

    def __init__(self, n: int = 4, a: tuple[float, float] = (1.8, 2.6), noise: float = 0.0) -> None:
        at_least("n", n, 2)
        if len(a) != 2 or not 0 < abs(a[0] - a[1]) <= pi:
            raise InvalidInput(f"a = {a}; pass two different numbers at most pi apart")
        middle = sum(a) / 2
        targets = torch.tensor(a, dtype=torch.float64)

        def along(x: Tensor) -> Tensor:
            """f(x, y*(x)) for every entry of x: shape (...) -> (..., 2)."""
            x = x[..., None]
            return (x - targets).square() + n * (
                _nearest_minimum(x + middle) - x - targets
            ).square()

        nearest = float(_nearest_minimum(2 * targets.mean()))
        arcs: list[Interval] = []
        # Objective i alone prefers a C_k within pi of 2 a_i, so one of these.
        for best in (nearest - 2 * pi, nearest, nearest + 2 * pi):
            ends = sorted(((1 - n) * target + n * best) / (n + 1) for target in a)
            low, high = max(ends[0], best - middle - pi), min(ends[1], best - middle + pi)
            arcs += [(low, high)] if low < high else []
        self._sweep = Sweep(along, nondominated(along, arcs))
        super().__init__(n, a, self._sweep.front, noise)

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The Pareto-optimal x, one interval per branch."""
        return self._sweep.intervals

    def pareto_point(self, t: Tensor) -> Tensor:
        return self._sweep.point(t)

    def coordinates(self, x: Tree) -> Tensor:
        return self._sweep.coordinate(x)


class MoSin2(MoSin):
    """`MoSin` with targets so far apart that the front has a part on each of two branches."""

    name = "mo-sin2"
    summary = "as mo-sin, with a disconnected Pareto set on two branches"

    def __init__(self, n: int = 4, a: tuple[float, float] = (0.5, 3.0), noise: float = 0.0) -> None:
        super().__init__(n, a, noise)
