"""Choosing a ridge parameter for two validation sets that want different amounts of shrinkage."""

from __future__ import annotations

from math import exp

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.problems.base import Constants, KnownProblem, at_least, normal
from bipareto.problems.curve import Sweep, nondominated, opposed

_TRAINING, _VALIDATION = 40, 200


class Ridge(KnownProblem):
    """g = ||Z y - t||^2/(2N) + e^x ||y||^2/2 and f_i = ||Z_i y - t_i||^2/N_i: x the log of the
    ridge parameter, y the weights.

    Data are linear with unit noise: 40 training rows from weights v, and two validation sets of 200
    rows from 0.8 v and 0.4 v, which want some and more shrinkage.  With the eigenvectors U and
    eigenvalues s of Z^T Z/N, y*(x) = U diag(1/(s + e^x)) U^T Z^T t/N, and the front is swept by x,
    its ends found to rounding.

    The coordinate runs from 0 to 1 along x.  The constants hold for x <= 2 + the largest x on the
    front and ||y|| <= twice the length of the unregularised weights.

    Args:
        dim: number of features, less than 40.
        seed: of the data.
        noise: see `KnownProblem`.
    """

    name = "ridge"
    summary = "ridge parameter for two validation sets: one upper variable, generated data"

    def __init__(self, dim: int = 10, seed: int = 0, noise: float = 0.0) -> None:
        at_least("dim", dim, 1)
        if dim >= _TRAINING:
            raise InvalidInput(
                f"dim = {dim}; choose fewer features than the {_TRAINING} training rows"
            )
        stream = generator("ridge", 0, seed)
        weights = normal(stream, dim)

        def data(rows: int, truth: Tensor) -> tuple[Tensor, Tensor]:
            features = normal(stream, rows, dim)
            return features, features @ truth + normal(stream, rows)

        self.training = data(_TRAINING, weights)
        self.validation = (data(_VALIDATION, 0.8 * weights), data(_VALIDATION, 0.4 * weights))
        features, targets = self.training
        self._eigenvalues, self._vectors = torch.linalg.eigh(features.T @ features / _TRAINING)
        self._moments = self._vectors.T @ (features.T @ targets) / _TRAINING
        # f_i as a quadratic form in the eigenbasis
        turned = [(features @ self._vectors, targets) for features, targets in self.validation]
        grams = torch.stack([features.T @ features for features, _ in turned]) / _VALIDATION
        linear = torch.stack([features.T @ targets for features, targets in turned]) / _VALIDATION
        constant = torch.stack([targets.square().mean() for _, targets in turned])

        def along(x: Tensor) -> Tensor:
            """f(x, y*(x)) for every entry of x: shape (...) -> (..., 2)."""
            w = self._shrunk(x)[..., None, :]
            return ((w[..., None, :] @ grams)[..., 0, :] * w - 2 * linear * w).sum(-1) + constant

        # Beyond these ends every weight is within 1e-4 of the unregularised one or of zero.
        ends = (
            float((1e-4 * self._eigenvalues[0]).log()),
            float((1e4 * self._eigenvalues[-1]).log()),
        )
        self._sweep = Sweep(along, nondominated(along, opposed(along, *ends)))

        length = 2 * float((self._moments / self._eigenvalues).norm())
        ridge = exp(self._sweep.intervals[-1][1] + 2)
        L_g = float(self._eigenvalues[-1]) + ridge * (1 + length + 0.5 * length**2)
        L_f = 2 * float(torch.linalg.matrix_norm(grams, 2).max())
        x0, y0 = torch.zeros(1, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)
        super().__init__(
            self._f, self._g, x0, y0, Constants(L_g, L_f, 0.0), self._sweep.front, noise=noise
        )

    def _shrunk(self, x: Tensor) -> Tensor:
        """y*(x) in the eigenbasis, shape (...) -> (..., d)."""
        return self._moments / (self._eigenvalues + x.exp()[..., None])

    def _f(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [(features @ y - targets).square().mean() for features, targets in self.validation]
        )

    def _g(self, x: Tensor, y: Tensor) -> Tensor:
        features, targets = self.training
        return 0.5 * (features @ y - targets).square().mean() + 0.5 * x.exp()[0] * y.square().sum()

    def lower_solution(self, x: Tree) -> Tensor:
        """The ridge weights at e^x."""
        return self._vectors @ self._shrunk(x[0])

    def pareto_point(self, t: Tensor) -> Tensor:
        return self._sweep.point(t)

    def coordinates(self, x: Tree) -> Tensor:
        return self._sweep.coordinate(x)
