"""TP2 of Deb and Sinha with a scalar lower level."""

from __future__ import annotations

import torch
from torch import Tensor

from bipareto.problem.tree import Tree
from bipareto.problems.base import Constants, KnownProblem, at_least
from bipareto.problems.hull import SharedHessian


class TP2S(KnownProblem):
    """f_1 = h(y) + x^2, f_2 = h(y) + (x - 1)^2, h(y) = (y_1 - 1)^2 + sum_{i>=2} y_i^2, over g =
    (y_1 - x)^2 + sum_{i>=2} y_i^2.

    y_1 = x, the other y_i = 0; the Pareto set is x in [1/2, 1], the front f_1 = f_2/2 + (1 -
    sqrt(f_2/2))^2, f_2 in [0, 1/2], the same as with TP2's two lower objectives.  The coordinate is
    2x - 1.

    Args:
        dim: number of lower variables.
        noise: see `KnownProblem`.
    """

    name = "tp2-s"
    summary = "TP2 of the evolutionary literature with a scalar lower level; one upper variable"

    def __init__(self, dim: int = 14, noise: float = 0.0) -> None:
        at_least("dim", dim, 1)
        self._target = torch.nn.functional.one_hot(torch.tensor(0), dim).double()
        # On y*(x): f_1 = 1/2 + 2 (x - 1/2)^2 and f_2 = 2 (x - 1)^2.
        minima, hessian, floor = ([[0.5], [1.0]], [[4.0]], [0.5, 0.0])
        self._hull = SharedHessian(
            *(torch.tensor(values, dtype=torch.float64) for values in (minima, hessian, floor))
        )
        x0, y0 = torch.zeros(1, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
        super().__init__(
            self._f,
            self._g,
            x0,
            y0,
            Constants(L_g=4.0, L_f=2.0, rho_y=0.0),
            self._hull.front,
            noise=noise,
        )

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - self._target).square().sum() + torch.cat([x.square(), (x - 1).square()])

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - x * self._target).square().sum()

    def lower_solution(self, x: Tree) -> Tensor:
        """y_1 = x, the others zero."""
        return x * self._target

    def pareto_point(self, t: Tensor) -> Tensor:
        return self._hull.point(t)

    def coordinates(self, x: Tree) -> Tensor:
        return self._hull.coordinates(x)
