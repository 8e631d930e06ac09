"""Quadratic upper objectives over a lower level whose one minimiser is y*(x) = Ax + b: closed-form
fronts in any dimension.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.problems.base import (
    Constants,
    KnownProblem,
    at_least,
    normal,
    orthogonal,
    scattered,
    uniform,
)
from bipareto.problems.hull import SharedHessian, check_size


class _AffineResponse(KnownProblem):
    """f_i = ||x - p_i||^2/2 + ||y - q_i||^2/2 + s_i over y*(x) = Ax + b, x and y in R^d, start at
    zero.

    f_i(x, Ax + b) has the Hessian M = I + A^T A for every i, the minimiser x_i = M^-1 (p_i + A^T
    (q_i - b)), and the Pareto set is the convex hull of the x_i; coordinates are barycentric, for m
    = 2 the t of x = x_1 + t (x_2 - x_1).

    A has singular values in [0.3, 0.9], b is standard normal, and q_i = A p_i + b + e, so that f
    pulls y off y*(x) by about e, ||e||^2 = d/2, all along the front.  Then x_i = p_i + M^-1 A^T e;
    normal p_i are scaled so that the mean of
    ||x_i - x_j||_M^2 is 2d, and s_i in [0.5, 1.5] keeps f_i > 0.

    A subclass gives g(x, y) = h(y - Ax - b).

    Args:
        dim: d >= m - 1.
        m: number of objectives, 2 to 4.
        seed: of the data.
        noise: see `KnownProblem`.
    """

    def __init__(self, dim: int, m: int, seed: int, noise: float) -> None:
        check_size(m, dim)
        stream = generator("known problem", 0, seed)
        self.A = orthogonal(stream, dim) * uniform(stream, 0.3, 0.9, dim) @ orthogonal(stream, dim)
        self.b, self.s = normal(stream, dim), uniform(stream, 0.5, 1.5, m)
        hessian = torch.eye(dim, dtype=torch.float64) + self.A.T @ self.A
        self.p = scattered(stream, m, hessian)
        miss = normal(stream, dim)
        miss = miss * (0.5 * dim) ** 0.5 / miss.norm()
        self.q = self.p @ self.A.T + self.b + miss
        self.minima = self.p + torch.linalg.solve(hessian, self.A.T @ miss)
        floor = torch.stack(
            [self._f(x, self.lower_solution(x))[i] for i, x in enumerate(self.minima)]
        )
        self._hull = SharedHessian(self.minima, hessian, floor)

        smoothness, weak_convexity = self._draw(stream, dim)
        joint = 1 + float(torch.linalg.matrix_norm(self.A, 2)) ** 2  # ||[-A I]||^2
        zero = torch.zeros(dim, dtype=torch.float64)
        super().__init__(
            self._f,
            self._g,
            zero,
            zero,
            Constants(smoothness * joint, 1.0, weak_convexity),
            self._hull.front,
            noise=noise,
        )

    @abstractmethod
    def _draw(self, stream: torch.Generator, dim: int) -> tuple[float, float]:
        """Draw the data of h; returns the Lipschitz constant of grad h and h's weak convexity."""

    @abstractmethod
    def _h(self, r: Tensor) -> Tensor:
        """h(r), shape ()."""

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - self.p).square().sum(-1) + (y - self.q).square().sum(-1)) + self.s

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        return self._h(y - self.A @ x - self.b)

    def lower_solution(self, x: Tree) -> Tensor:
        """y*(x) = Ax + b, the global minimiser whatever kappa is."""
        return self.A @ x + self.b

    def pareto_point(self, t: Tensor) -> Tensor:
        return self._hull.point(t)

    def coordinates(self, x: Tree) -> Tensor:
        return self._hull.coordinates(x)


class Quadratic(_AffineResponse):
    """g(x, y) = r^T H r / 2, r = y - Ax - b, with the eigenvalues of H in [0.5, 2]; f as in
    `_AffineResponse`.

    The gap of the Moreau envelope is r^T H (I + gamma H)^-1 gamma H r / 2.
    """

    name = "quadratic"
    summary = (
        "strongly convex lower level, shared-Hessian quadratics above; any dimension, m = 2, 3, 4"
    )

    def __init__(self, dim: int = 5, m: int = 2, seed: int = 0, noise: float = 0.0) -> None:
        super().__init__(dim, m, seed, noise)

    def _draw(self, stream: torch.Generator, dim: int) -> tuple[float, float]:
        turn, eigenvalues = orthogonal(stream, dim), uniform(stream, 0.5, 2.0, dim)
        self.H = turn * eigenvalues @ turn.T
        return float(eigenvalues.max()), 0.0

    def _h(self, r: Tensor) -> Tensor:
        return 0.5 * (r * (self.H @ r)).sum()


class PLSin2(_AffineResponse):
    """g(x, y) = sum_j phi([R (y - Ax - b)]_j), phi(u) = u^2/2 + kappa sin^2 u, R orthogonal; f and
    front of `Quadratic`.

    phi'' = 1 + 2 kappa cos 2u lies in [1 - 2 kappa, 1 + 2 kappa].  For 1/2 < kappa < 2.3016 the
    lower level is nonconvex with y*(x) its only stationary point; beyond, it has spurious minima,
    and the front stays the same.
    """

    name = "pl-sin2"
    summary = (
        "nonconvex lower level with one stationary point (Polyak-Lojasiewicz), "
        "the front of `quadratic`"
    )

    def __init__(
        self, dim: int = 20, kappa: float = 1.5, m: int = 2, seed: int = 0, noise: float = 0.0
    ) -> None:
        at_least("kappa", kappa, 0)
        self.kappa = kappa
        super().__init__(dim, m, seed, noise)

    def _draw(self, stream: torch.Generator, dim: int) -> tuple[float, float]:
        self.R = orthogonal(stream, dim)
        return 1 + 2 * self.kappa, max(0.0, 2 * self.kappa - 1)

    def _h(self, r: Tensor) -> Tensor:
        u = self.R @ r
        return (0.5 * u.square() + self.kappa * u.sin().square()).sum()
