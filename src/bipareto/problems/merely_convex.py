"""A convex lower level with a whole space of minimisers, among which the upper level chooses."""

from __future__ import annotations

import torch
from torch import Tensor

from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.problems.base import Constants, KnownProblem, scattered
from bipareto.problems.hull import SharedHessian, check_size


class MerelyConvex(KnownProblem):
    """g = ||y_1||^2/2 - <x, y_1> and f_i = ||x - y_2||^2/2 + ||y_1 - a_i||^2/2 with y = (y_1, y_2),
    shape (2, d).

    Multi-objective version of the "LL merely convex" example of MEHA (Liu et al., 2024).  y_2 does
    not enter g, so the lower Hessian is singular and a hypergradient is not defined; the optimistic
    answer is y_1 = y_2 = x.  There f_i = ||x - a_i||^2/2 and the Pareto set is the convex hull of
    the a_i; coordinates are barycentric.

    Args:
        dim: d >= m - 1.
        m: number of objectives, 2 to 4.
        seed: of the a_i, normal and scaled so that the mean of ||a_i - a_j||^2 is 2d.
        noise: see `KnownProblem`.
    """

    name = "merely-convex"
    summary = "convex lower level with non-unique solutions and a singular Hessian"

    def __init__(self, dim: int = 10, m: int = 2, seed: int = 0, noise: float = 0.0) -> None:
        check_size(m, dim)
        identity = torch.eye(dim, dtype=torch.float64)
        self.a = scattered(generator("known problem", 0, seed), m, identity)
        self._hull = SharedHessian(self.a, identity, torch.zeros(m, dtype=torch.float64))
        x0, y0 = torch.zeros(dim, dtype=torch.float64), torch.zeros(2, dim, dtype=torch.float64)
        # The largest eigenvalues of [[0, -1], [-1, 1]] in (x, y_1) and of [[1, -1], [-1, 1]] in (x,
        # y_2).
        constants = Constants(L_g=(1 + 5**0.5) / 2, L_f=2.0, rho_y=0.0)
        super().__init__(self._f, self._g, x0, y0, constants, self._hull.front, noise=noise)

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - y[1]).square().sum() + (y[0] - self.a).square().sum(-1))

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * y[0].square().sum() - (x * y[0]).sum()

    def lower_solution(self, x: Tree) -> Tensor:
        """y_1 = x by the lower level, y_2 = x by the upper level's choice."""
        return torch.stack([x, x])

    def pareto_point(self, t: Tensor) -> Tensor:
        return self._hull.point(t)

    def coordinates(self, x: Tree) -> Tensor:
        return self._hull.coordinates(x)
