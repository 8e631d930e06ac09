"""A double well at the lower level: the lower solution jumps, and the front has a gap."""

from __future__ import annotations

import torch
from torch import Tensor

from bipareto.problem.tree import Tree
from bipareto.problems.base import Constants, KnownProblem
from bipareto.problems.curve import Sweep, nondominated, opposed


def _right_well(x: Tensor) -> Tensor:
    """The largest root of y^3 - y = x for x >= 0, elementwise.

    Newton's method from the right of the root falls to it monotonically, because the cubic is
    convex and rising there; both 1 + x/2 and 1 + x^(1/3) lie to the right.  The last step alone
    carries the derivative 1/(3 y^2 - 1).
    """
    with torch.no_grad():
        y = 1 + torch.minimum(x / 2, x.abs() ** (1 / 3))
        for _ in range(8):
            y = y - (y**3 - y - x) / (3 * y.square() - 1)
    return y - (y**3 - y - x) / (3 * y.square() - 1)


class Bistable(KnownProblem):
    """g = (y^2 - 1)^2/4 - x y, f_1 = (x - 1/2)^2 + (y - 1)^2, f_2 = (x + 1/2)^2 + (y + 1)^2; x and
    y in R.

    y^3 - y = x has three solutions for |x| < 2/(3 sqrt 3): two minima of g and a maximum.  The
    global minimum has the sign of x and jumps from -1 to 1 at x = 0, where both are kept; so the
    front has two parts, one for each sign, both ending at x = 0. There is no closed form, but the
    parts are traced by x and their ends found to rounding.

    The coordinate runs from 0 to 1 along x, with a step between the signs.  The constants hold for
    |y| <= 2.

    Args:
        noise: see `KnownProblem`.
    """

    name = "bistable"
    summary = "double-well lower level whose solution jumps; a front with a gap"

    def __init__(self, noise: float = 0.0) -> None:
        # x = s - sign(s) leaves s a step of 2 between the signs, so that x = 0 can stand on either.
        arcs = [arc for ends in ((-3.0, -1.0), (1.0, 3.0)) for arc in opposed(self._along, *ends)]
        self._sweep = Sweep(self._along, nondominated(self._along, arcs))
        x0, y0 = torch.tensor([0.2], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
        # The largest eigenvalue of [[0, -1], [-1, 3y^2 - 1]] at |y| = 2.
        constants = Constants(L_g=(11 + 125**0.5) / 2, L_f=2.0, rho_y=1.0)
        super().__init__(self._f, self._g, x0, y0, constants, self._sweep.front, noise=noise)

    @staticmethod
    def _pair(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [(x - 0.5).square() + (y - 1).square(), (x + 0.5).square() + (y + 1).square()], dim=-1
        )

    def _along(self, s: Tensor) -> Tensor:
        """f(x, y*(x)) for every entry of s, x = s - sign(s): shape (...) -> (..., 2)."""
        sign = s.sign()
        return self._pair(s - sign, sign * _right_well(s.abs() - 1))

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        return self._pair(x[0], y[0])

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        return (0.25 * (y.square() - 1).square() - x * y).sum()

    def lower_solution(self, x: Tree) -> Tensor:
        """The global minimiser of g(x, .); the sign bit of x = 0 decides between the two there."""
        return torch.copysign(_right_well(x.abs()), x)

    def pareto_point(self, t: Tensor) -> Tensor:
        s = self._sweep.point(t)
        return torch.copysign((s.abs() - 1).clamp_min(0), s)

    def coordinates(self, x: Tree) -> Tensor:
        return self._sweep.coordinate(x + torch.copysign(torch.ones_like(x), x))
