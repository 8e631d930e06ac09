"""DS1 of Deb and Sinha with a smooth scalar lower level."""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor

from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.problems.base import Constants, KnownProblem, at_least, normal, uniform
from bipareto.problems.curve import Curve

_R = 0.1


class DS1(KnownProblem):
    """Periodic objectives in x_1 over a lower level that ties y to x; x and y in R^K.

    f_1 = 1 + r - cos(pi x_1) + s(x, y) - r cos(pi y_1/(2 x_1)), f_2 the same with sines, r = 0.1,
    s = sum_{j>=2} (x_j - (j-1)/2)^2 + (y_j - x_j)^2,
    g   = y_1^2 + (y_1 - x_1)^2 + sum_{i>=2} 2 (y_i - x_i)^2 + 10 (1 - cos(pi (y_i - x_i)/K)).

    This g is the sum of DS1's two lower objectives without their |sin| terms: y_1 = x_1/2, y_i =
    x_i.  The front is the arc (c - f_1)^2 + (c - f_2)^2 = 1, c = 1 + r (1 - 1/sqrt 2), for x_1 in
    [2, 5/2] and its periods.  The coordinate is 2 (x_1 - 2), periods identified.  g is convex in y
    for K >= 5, nonconvex below.

    The constants hold for x_1 >= 1 and |y_1| <= K, the problem's box; starts lie in 1.6 <= x_1 <=
    2.9, from where descent does not leave it.

    Args:
        dim: K.
        noise: see `KnownProblem`.
    """

    name = "ds1"
    summary = (
        "DS1 of the evolutionary literature with a smooth scalar lower level; a circular front"
    )

    def __init__(self, dim: int = 10, noise: float = 0.0) -> None:
        at_least("dim", dim, 2)
        self.dim = dim
        self._centre = torch.arange(dim, dtype=torch.float64) / 2
        level = 1 + _R * (1 - 1 / sqrt(2))
        front = Curve(
            lambda t: level - torch.stack([torch.cos(pi / 2 * t), torch.sin(pi / 2 * t)], dim=-1),
            [(0.0, 1.0)],
        )
        x0, y0 = torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)
        x0[0] = 1.6
        ripple = 10 * (pi / dim) ** 2
        # u = pi y_1/(2 x_1) has |grad u|^2 <= (pi/2)^2 (1 + K^2) and ||Hess u|| <= (pi/2) (K +
        # sqrt(K^2 + 1)) in the box.
        wave = _R * ((pi / 2) ** 2 * (1 + dim**2) + (pi / 2) * (dim + sqrt(dim**2 + 1)))
        constants = Constants(
            L_g=max(3 + sqrt(5), 2 * (4 + ripple)),
            L_f=max(3 + sqrt(5), pi**2 + wave),
            rho_y=max(0.0, ripple - 4),
        )
        super().__init__(self._f, self._g, x0, y0, constants, front, noise=noise)

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        shared = (x - self._centre)[1:].square().sum() + (y - x)[1:].square().sum()
        along, ratio = pi * x[0], pi * y[0] / (2 * x[0])
        return (
            1
            + _R
            + shared
            - torch.stack([along.cos() + _R * ratio.cos(), along.sin() + _R * ratio.sin()])
        )

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        off = (y - x)[1:]
        return (
            y[0].square()
            + (y - x)[0].square()
            + (2 * off.square() + 10 * (1 - torch.cos(pi * off / self.dim))).sum()
        )

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """x_1 uniform in [1.6, 2.9], the other variables standard normal."""
        stream = generator("start", 0, seed)
        return torch.cat([uniform(stream, 1.6, 2.9, 1), normal(stream, self.dim - 1)]), normal(
            stream, self.dim
        )

    def lower_solution(self, x: Tree) -> Tensor:
        """y_1 = x_1/2, y_i = x_i."""
        return torch.cat([x[:1] / 2, x[1:]])

    def pareto_point(self, t: Tensor) -> Tensor:
        return torch.cat([2 + t / 2, self._centre[1:]])

    def coordinates(self, x: Tree) -> Tensor:
        """2 (x_1 - 2) with x_1 brought into [1.25, 3.25) by its period 2, shape (R, 1)."""
        return 2 * (torch.remainder(x[..., :1] - 1.25, 2) - 0.75)
