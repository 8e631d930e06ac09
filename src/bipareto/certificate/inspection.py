"""A point looked at closely within a budget of gradients: values and products, one growing
subspace, the proximal point.

What `certificate` says of a point rests on these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.parts import curvature, simplex
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

Curvature = Literal["minimum", "saddle", "maximum", "degenerate"]

#: gradients that the proximal point may take at most
PROXIMAL_SHARE = 60
#: the kkt problem is solved where its slack is below this
SETTLED = 1e-7


class Point:
    """The problem at one point, flat and counted: f (m,), J (m, d) its gradients, g's gradient, and
    Hessian products of g.

    Everything derived is float64; the functions are evaluated in the point's own dtype.
    """

    def __init__(self, problem: Problem, x: Tree, y: Tree, budget: int) -> None:
        self.problem, self.x, self.y, self.budget = problem, x, y, budget
        self.spent = 0
        self.flat = tree.ravel((x, y))
        self.split = tree.ravel(x).numel()
        self.eps = torch.finfo(self.flat.dtype).eps
        with torch.no_grad():
            self.f = problem.upper(x, y, problem.batch("upper", "full")).double()
        m = self.f.shape[0]
        if budget < m + 20:
            raise InvalidInput(
                f"budget = {budget} gradient evaluations; {m} objectives need at least {m + 20}"
            )
        rows = [
            torch.func.grad(curvature.objective_in_both(problem, i, x, y))(self.flat)
            for i in range(m)
        ]
        self.spent += m
        self.J = torch.stack(rows).double()
        self._lower = curvature.lower_in_both(problem, x, y)
        self._product = curvature.hessian(
            self._lower, self.flat
        )  # one gradient, kept for all products
        self.spent += 1
        self.g, self.grad_g = self.lower(self.flat)
        if not (
            torch.isfinite(self.f).all()
            and torch.isfinite(self.J).all()
            and torch.isfinite(self.grad_g).all()
        ):
            raise InvalidInput(
                "there is no certificate at a point where a value or gradient is not finite: f = "
                f"{self.f.tolist()}, g = {self.g}, "
                f"||grad f_i|| = {self.J.norm(dim=1).tolist()}, ||grad g|| = "
                f"{float(self.grad_g.norm())}"
            )

    @property
    def g_y(self) -> Tensor:
        """grad_y g, shape (d_y,)."""
        return self.grad_g[self.split :]

    @property
    def y_flat(self) -> Tensor:
        """y, shape (d_y,)."""
        return self.flat[self.split :]

    @property
    def y_size(self) -> float:
        """max(1, ||y||)."""
        return max(1.0, float(self.y_flat.norm()))

    def left(self) -> int:
        """Gradient evaluations that may still be spent."""
        return self.budget - self.spent

    def lower(self, flat: Tensor) -> tuple[float, Tensor]:
        """g and its gradient (d,) at another point."""
        self.spent += 1
        gradient, value = torch.func.grad_and_value(self._lower)(flat.to(self.flat.dtype))
        return float(value), gradient.double()

    def product(self, v: Tensor) -> Tensor:
        """The Hessian of g at the point times v (d,)."""
        self.spent += 2
        found = self._product(v.to(self.flat.dtype)).double()
        if not torch.isfinite(found).all():
            raise InvalidInput(
                "the curvature of g is not finite here (a Hessian product holds "
                f"{int((~torch.isfinite(found)).sum())} NaN or infinite entries of "
                f"{found.numel()}); g must be twice differentiable at the point, e.g. replace "
                "sqrt(v) by sqrt(v + 1e-8)"
            )
        return found

    def lift(self, v: Tensor) -> Tensor:
        """B v = [g_xy; g_yy] v for v (d_y,), shape (d,)."""
        return self.product(torch.cat([v.new_zeros(self.split), v]))

    def drop(self, u: Tensor) -> Tensor:
        """B^T u for u (d,), shape (d_y,)."""
        return self.product(u)[self.split :]


class Subspace:
    """Orthonormal directions V in y with their images B V, grown until the spectrum of g_yy and the
    kkt residual are settled.

    One product B v costs a Hessian product and gives both g_yy v and g_xy v, so one space serves
    two purposes: Ritz values of g_yy, and the least-squares problem min ||sum lambda_i grad f_i + B
    V s||.  New directions are, in turns, the y-part of its residual r (as in MINRES: the rate of
    conjugate gradients on g_yy, not on its square), its gradient B^T r (which cannot stall), and
    the residuals of the two extreme Ritz pairs (as in Lanczos' method).
    """

    def __init__(self, at: Point, seed: int) -> None:
        self.at = at
        d_y = at.y_flat.numel()
        limit = min(d_y, at.left() // 2)
        self.V, self.HV = at.J.new_zeros(limit, d_y), at.J.new_zeros(limit, d_y)
        self.Q = at.J.new_zeros(limit, at.flat.numel())
        self.T = torch.zeros(limit, limit, dtype=torch.float64)
        self.size = self.rank = self._turns = 0
        self.scale = 0.0
        self.slack = 1.0
        self.rest = at.J
        self._solve()
        self._reserve = 0
        self._add(curvature.normal(at.g_y, torch.Generator().manual_seed(seed)))

    def grow(self, reserve: int) -> None:
        """Go on until spectrum and kkt residual are settled, or `reserve` gradients are left."""
        self._reserve = reserve
        sources = [self._for_kkt, self._for_lowest, self._for_kkt, self._for_highest]
        turn = idle = 0
        while idle < len(sources):
            found = any(self._add(direction) for direction in sources[turn % len(sources)]())
            turn, idle = turn + 1, 0 if found else idle + 1

    def _affordable(self) -> bool:
        return self.size < self.V.shape[0] and self.at.left() >= self._reserve + 4

    def _add(self, direction: Tensor) -> bool:
        """Take a direction in, unless it lies in the space already or the share is used up."""
        length = float(direction.norm())
        if length == 0 or not self._affordable():
            return False
        v, k = direction / length, self.size
        for _ in range(2):
            v = v - (self.V[:k] @ v) @ self.V[:k]
        if float(v.norm()) < 1e-8:
            return False
        v = v / v.norm()
        v = v - (self.V[:k] @ v) @ self.V[:k]
        self.V[k] = v / v.norm()
        image = self.at.lift(self.V[k])
        self.HV[k] = image[self.at.split :]
        self.T[k, : k + 1] = self.T[: k + 1, k] = (self.V[: k + 1] @ self.HV[k]).cpu()
        self.size += 1
        self.scale = max(self.scale, float(image.norm()))
        self._extend_range(image)
        return True

    def _extend_range(self, q: Tensor) -> None:
        """Let the multipliers use one more column of B V."""
        for _ in range(2):
            q = q - (self.Q[: self.rank] @ q) @ self.Q[: self.rank]
        # What B maps to rounding is its null space; such an image is noise, and would be blown up
        # by huge multipliers.
        if float(q.norm()) <= 1e3 * self.at.eps * self.scale:
            return
        self.Q[self.rank] = q / q.norm()
        self.rest = self.rest - torch.outer(self.rest @ self.Q[self.rank], self.Q[self.rank])
        self.rank += 1
        self._solve()

    def _solve(self) -> None:
        self.weights, self.qp_slack = simplex_minimum(self.rest)
        self.residual = self.weights @ self.rest

    @property
    def solved(self) -> bool:
        """Whether the kkt residual is rounding."""
        return float(self.residual.norm()) <= 100 * self.at.eps * float(self.at.J.norm(dim=1).max())

    def _for_kkt(self) -> Iterator[Tensor]:
        if self.solved or self.slack <= SETTLED:
            return
        self._turns += 1
        if self._turns % 4:
            yield self.residual[self.at.split :]
        if self._affordable():
            yield self.judge()

    def judge(self) -> Tensor:
        """B^T r for the residual r, and the slack that it gives."""
        gradient = self.at.drop(self.residual)
        size = self.scale * float(self.residual.norm())
        self.slack = 0.0 if self.solved or size == 0 else float(gradient.norm()) / size
        return gradient

    def kkt_lower(self, kind: Curvature) -> float:
        """A lower bound on the true minimum, given that the space has seen the smallest curvature.

        u = r - P r, P the projection on the range of B, has B^T u = 0, so the minimum is at least
        min_i <u, grad f_i>/||u||; and P r, orthogonal to what the space holds, is no longer than
        ||B^T r||/sigma, sigma = min |eigenvalue of g_yy| where all are of one sign.
        """
        size = float(self.residual.norm())
        if size == 0 or self.slack <= SETTLED or self.size == self.at.y_flat.numel():
            return size
        if kind not in ("minimum", "maximum"):
            return 0.0
        missed = self.slack * self.scale * size / min(map(abs, self.eigenvalues))
        return max((size**2 - missed * float(self.rest.norm(dim=1).max())) / size, 0.0)

    def _for_lowest(self) -> Iterator[Tensor]:
        return self._ritz_residual(0)

    def _for_highest(self) -> Iterator[Tensor]:
        return self._ritz_residual(-1)

    def _ritz_residual(self, end: int) -> Iterator[Tensor]:
        """g_yy u - theta u for the Ritz pair at one end of the spectrum, unless it is settled."""
        values, vectors = self._ritz()
        u = vectors[:, end].to(self.V.device)
        residual = u @ self.HV[: self.size] - float(values[end]) * (u @ self.V[: self.size])
        # A random start sees every eigenvalue: where nothing but rounding is left the space holds
        # them all.
        rounding = 100 * self.at.eps * self.scale
        accuracy = max(
            0.2 * abs(float(values[end])), math.sqrt(self.at.eps) * self.scale
        )  # enough for its sign
        if float(residual.norm()) > (rounding if self.size < 20 else accuracy):
            yield residual

    def _ritz(self) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = torch.linalg.eigh(self.T[: self.size, : self.size])
        return found

    @property
    def eigenvalues(self) -> tuple[float, float]:
        """Smallest and largest Ritz value of g_yy."""
        values = self._ritz()[0]
        return float(values[0]), float(values[-1])

    def kind(self, unit: float) -> Curvature:
        """What the spectrum says; eigenvalues below sqrt(eps) times the curvature's scale, or times
        `unit`, count as zero.
        """
        low, high = self.eigenvalues
        zero = math.sqrt(self.at.eps) * max(self.scale, unit)
        if low < -zero:
            return "saddle" if high > zero else "maximum" if high < -zero else "degenerate"
        return "minimum" if low > zero else "degenerate"


def simplex_minimum(rows: Tensor) -> tuple[Tensor, float]:
    """lambda (m,) in the simplex that makes ||sum_i lambda_i rows_i|| smallest, and its relative
    optimality slack.

    Args:
        rows: (m, d), float64.

    >>> simplex_minimum(torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64))[0]
    tensor([0.2000, 0.8000], dtype=torch.float64)
    """
    weights = simplex.quadratic(rows @ rows.T).weights
    slopes = rows @ (weights @ rows)
    return weights, float((weights @ slopes - slopes.min()) / _squared_scale(rows))


class Conic(NamedTuple):
    """lambda (m,) and p of `conic_minimum`, the smallest norm, and the conditions' slack."""

    weights: Tensor
    multiplier: float
    norm: float
    slack: float


def conic_minimum(rows: Tensor, normal: Tensor) -> Conic:
    """min ||sum_i lambda_i rows_i + p normal|| over lambda in the simplex and p >= 0, exactly.

    With p free the rows are projected off the normal; as a function of p the minimum over lambda is
    convex, so where the free p comes out negative the constrained one is zero.

    Args:
        rows: (m, d), float64.
        normal: (d,), not zero.
    """
    length = normal.norm()
    unit = normal / length
    along = rows @ unit
    rest = rows - torch.outer(along, unit)
    weights, _ = simplex_minimum(rest - torch.outer(rest @ unit, unit))
    p = -float(weights @ along) / float(length)
    if p < 0:
        p, (weights, _) = 0.0, simplex_minimum(rows)
    residual = weights @ rows + p * normal
    slopes = rows @ residual
    scale = math.sqrt(_squared_scale(rows))
    outward = float(unit @ residual) / scale
    complementary = abs(outward) if p > 0 else max(-outward, 0.0)
    slack = max(float(weights @ slopes - slopes.min()) / scale**2, complementary)
    return Conic(weights, p, float(residual.norm()), slack)


def _squared_scale(rows: Tensor) -> float:
    return max(float(rows.square().sum(1).max()), torch.finfo(rows.dtype).tiny)
