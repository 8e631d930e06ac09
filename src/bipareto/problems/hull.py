"""The front of objectives that share one Hessian: the image of the simplex spanned by their minima.

F_i(x) = F_i* + (x - x_i)^T M (x - x_i) / 2 for i = 1..m, whose Pareto set is the convex hull of the
x_i.  In coordinates c = L^T x, M = L L^T, turned so that c_1 = 0 and the others span R^(m-1), this
reads F_i(c) = F_i* + ||c - c_i||^2 / 2. A point of the hull is named by t = (lambda_2, ...,
lambda_m), its barycentric coordinates but the first.
"""

from __future__ import annotations

from itertools import product
from math import comb

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.parts import simplex
from bipareto.methods.parts.preferences import grid
from bipareto.methods.parts.scalarization import SCALARIZATIONS, Scalarization
from bipareto.problems.curve import Curve

_EPS = torch.finfo(torch.float64).eps


def check_size(m: int, dim: int) -> None:
    """Refuse sizes for which no front of this kind is at hand."""
    if m not in (2, 3, 4):
        raise InvalidInput(f"m = {m}; choose 2, 3 or 4 objectives")
    if not dim >= m - 1:
        raise InvalidInput(
            f"dim = {dim}; the minima of m = {m} objectives span a simplex only if dim is at least "
            f"{m - 1}"
        )


class SharedHessian:
    """The map between x and the hull, and the front it has: a `Curve` for m = 2, a `Hull` for more.

    Args:
        minima: x_i, shape (m, d), affinely independent.
        hessian: M, shape (d, d).
        floor: F_i*, shape (m,).
    """

    def __init__(self, minima: Tensor, hessian: Tensor, floor: Tensor) -> None:
        self.minima = minima
        edges = (minima[1:] - minima[0]) @ torch.linalg.cholesky(hessian)
        corners = torch.linalg.qr(edges.T).R.T  # the same simplex in R^(m-1)
        # t = (x - x_1) M (edges)^T (edges M edges^T)^-1, the projection in the norm of M
        self._to_hull = torch.linalg.solve(
            corners @ corners.T, (minima[1:] - minima[0]) @ hessian
        ).T
        self.front = _curve(corners, floor) if minima.shape[0] == 2 else Hull(corners, floor)

    def coordinates(self, x: Tensor) -> Tensor:
        """t of the projection of x (..., d) on the affine hull in M's norm, shape (..., m-1)."""
        return (x - self.minima[0]) @ self._to_hull

    def point(self, t: Tensor) -> Tensor:
        """x at t (m-1,), shape (d,)."""
        return self.minima[0] + t @ (self.minima[1:] - self.minima[0])


def _curve(corners: Tensor, floor: Tensor) -> Curve:
    squared = corners.square().sum()
    return Curve(
        lambda t: floor + 0.5 * squared * torch.stack([t, 1 - t], dim=-1).square(), [(0.0, 1.0)]
    )


class Hull:
    """The front for m >= 3.

    Args:
        corners: c_2, ..., c_m as rows, shape (m-1, m-1), regular.
        floor: F_i*, shape (m,).
    """

    def __init__(self, corners: Tensor, floor: Tensor) -> None:
        self.m = floor.shape[0]
        self.centres = torch.cat([corners.new_zeros(1, self.m - 1), corners])
        self.floor = floor
        self._corners = corners
        # Start points of distances: steps of 1/30 (m = 3) or 1/15 (m = 4) in every barycentric
        # coordinate.
        self._lattice = grid(self.m, 31 if self.m == 3 else 16, boundary=True)
        self._faces = torch.tensor(
            [face for face in product((False, True), repeat=self.m) if any(face)]
        )

    def values(self, c: Tensor) -> Tensor:
        """F at c (..., m-1), shape (..., m)."""
        return self.floor + 0.5 * (c[..., None, :] - self.centres).square().sum(-1)

    def points(self, n: int) -> Tensor:
        """At least n points of the front, shape (count, m): a regular lattice, corners included."""
        side = 2
        while comb(side + self.m - 2, self.m - 1) < n:
            side += 1
        return self.values(grid(self.m, side, boundary=True) @ self.centres)

    def minimise(self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """t (m-1,) of the minimiser of form(F; w, z, mu)."""
        if form.name == "linear":
            c = w @ self.centres / w.sum()
        elif form.name == "stch":
            c = self._smooth_minimum(form, w, z, mu, self.centres.mean(0))
        else:
            c = self._sharp_minimum(form, w, z, mu)
        return torch.linalg.solve(self._corners.T, c)

    def _smooth_minimum(
        self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor, c: Tensor
    ) -> Tensor:
        """Damped Newton on the strictly convex h(c) = log sum exp(mu w (F(c) - z)) / mu."""
        eye = torch.eye(self.m - 1, dtype=c.dtype)
        for _ in range(100):
            rays = c - self.centres  # gradients of F_i
            pull = form.weights(self.values(c), w, z, mu)
            gradient = pull @ rays
            spread = (pull * w)[:, None] * rays
            hessian = pull.sum() * eye + mu * (rays.T @ spread - gradient[:, None] * gradient)
            step = -torch.linalg.solve(hessian, gradient)
            start, slope, length = form.value(self.values(c), w, z, mu), gradient @ step, 1.0
            # Decreases below rounding cannot be seen; there the full Newton step is right.
            while (
                form.value(self.values(c + length * step), w, z, mu)
                > start + 1e-4 * length * slope + 8 * _EPS * start.abs()
            ):
                length /= 2
            c = c + length * step
            if step.norm() <= 4 * _EPS * (1 + c.norm()):
                break
        return c

    def _sharp_minimum(self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """min_c max_i w_i (F_i(c) - z_i): Newton on the optimality system of every set of active
        objectives.

        The problem has no constraint on c, so the best of the candidates is the minimiser; the
        right active set is among them.
        """
        smooth = SCALARIZATIONS["stch"]
        scale = (w * (self.values(self.centres) - z)).abs().amax()
        c = self.centres.mean(0)
        for sharpness in (1e1, 1e2, 1e3, 1e4, 1e5):
            c = self._smooth_minimum(smooth, w, z, sharpness / scale, c)
        found = [c, *(self._equalise(face, c, w, z, 1e5 / scale) for face in self._faces)]
        return min(found, key=lambda at: float(form.value(self.values(at), w, z, mu)))

    def _equalise(self, active: Tensor, c: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """Solve sum_A l_i w_i (c - c_i) = 0, w_i (F_i(c) - z_i) = tau on A, sum_A l_i = 1."""
        centres, w, z, k = self.centres[active], w[active], z[active], c.shape[0]

        def levels(at: Tensor) -> Tensor:
            return w * (self.values(at)[active] - z)

        share, tau = torch.softmax(mu * levels(c), dim=0), levels(c).mean()
        for _ in range(20):
            rays = w[:, None] * (c - centres)
            system = c.new_zeros(k + len(w) + 1, k + len(w) + 1)
            system[:k, :k] = (share @ w) * torch.eye(k, dtype=c.dtype)
            system[:k, k:-1], system[k:-1, :k] = rays.T, rays
            system[k:-1, -1], system[-1, k:-1] = -1, 1
            residual = torch.cat([share @ rays, levels(c) - tau, share.sum()[None] - 1])
            step = -torch.linalg.lstsq(system, residual[:, None], driver="gelsd").solution[:, 0]
            c, share, tau = c + step[:k], share + step[k:-1], tau + step[-1]
        return c

    def distance(self, objectives: Tensor) -> Tensor:
        """Euclidean distance of each row (R, m) to the front, shape (R,).

        Newton steps over the simplex of barycentric coordinates, from the best lattice point near
        every corner.
        """
        sampled = (self.values(self._lattice @ self.centres) - objectives[:, None]).square().sum(-1)
        near = self._lattice.argmax(-1)
        starts = torch.stack(
            [sampled.masked_fill(near != corner, torch.inf).argmin(-1) for corner in range(self.m)],
            dim=1,
        )
        targets, weights = objectives.repeat_interleave(self.m, 0), self._lattice[starts.flatten()]
        value, damping = self._half_square(weights, targets), torch.zeros_like(targets[:, 0])
        rounding = (_EPS * self.values(self.centres).abs().amax()) ** 2
        running = value.isfinite().nonzero()[:, 0]
        for _ in range(100):
            if not len(running):
                break
            before, damped = value[running], damping[running]
            trial, stiffness = self._newton(weights[running], targets[running], damped)
            after = self._half_square(trial, targets[running])
            better = after < before
            weights[running] = torch.where(better[:, None], trial, weights[running])
            value[running] = torch.where(better, after, before)
            damping[running] = torch.where(
                better, damped / 8, torch.maximum(4 * damped, 1e-3 * stiffness)
            )
            gains = torch.where(
                better, before - after > 4 * _EPS * before, damped < 1e2 * stiffness
            )
            running = running[gains & (value[running] > rounding)]
        return (2 * value).sqrt().reshape(-1, self.m).amin(-1)

    def _half_square(self, weights: Tensor, targets: Tensor) -> Tensor:
        """||F - target||^2 / 2 at barycentric coordinates (R, m), shape (R,)."""
        return 0.5 * (self.values(weights @ self.centres) - targets).square().sum(-1)

    def _newton(self, weights: Tensor, targets: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (R, m) that minimise the damped quadratic model of `_half_square`, and the
        scale (R,) of its Hessian.
        """
        rays = (weights @ self.centres)[:, None] - self.centres
        residual = self.values(weights @ self.centres) - targets
        gradient = (residual[:, None] @ rays)[:, 0]
        # The sum of the residuals is the curvature that all F_i share: negative above the front,
        # where the model is lifted.
        hessian = rays.mT @ rays
        stiffness = hessian.diagonal(dim1=1, dim2=2).sum(-1)
        shift = residual.sum(-1) + damping
        shift = torch.maximum(shift, 1e-12 * stiffness - torch.linalg.eigvalsh(hessian)[:, 0])
        hessian = hessian + torch.diag_embed(shift[:, None].expand(-1, self.m - 1))
        # The model <gradient, d> + <d, hessian d>/2 of the move d = (new - weights) @ centres,
        # written in the new weights.
        curvature = self.centres @ hessian @ self.centres.T
        linear = (curvature @ weights[..., None])[..., 0] - gradient @ self.centres.T
        return simplex.quadratic(0.5 * curvature, linear).weights, stiffness
