"""Hypergradients: d f_i(x, y*(x)) / dx for every objective, by unrolling the lower level or by an
implicit linear solve.

    grad Phi_i = grad_x f_i - g_xy v_i   with   g_yy v_i = grad_y f_i.

Each way is a small value that takes two functions and a point; its counts are structure, its
numbers travel in the state of a run (`numbers`).  Counts are fixed, so a step can be batched and
compiled; what the solver left undone is returned beside the gradients and never hidden.

Counting.  `hessian_products` are products with g_yy and with g_xy, each counted as one; products at
one point share one evaluation of g, which is counted as one lower gradient.

Shapes: n_x and n_y are the numbers of coordinates of x and y; gradients of m objectives are rows,
(m, n_x) or (m, n_y).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning
from bipareto.methods.parts import curvature
from bipareto.methods.parts.differentiation import (
    Level,
    Pair,
    difference,
    difference_pair,
    functional,
    gradient_in_y,
    jacobian,
    lower_pullback,
    pullback_of,
    unit_rows,
)
from bipareto.problem import Problem, oracle, tree, validation
from bipareto.problem.tree import Tree

#: rows (m, n_y) -> H rows, (m, n_y)
Products: TypeAlias = Callable[[Tensor], Tensor]


#: The most repetitions of an inner loop; a step of so many would not end, and its graph would not
#: fit.
MOST_REPEATS = 10_000


class Hypergradients(NamedTuple):
    """What an estimate returns.

    objectives: f (m,) at (x, y). gradients: rows (m, n_x). y: where they hold; unrolling moves it,
    the others leave it. solver_residual: max_i ||g_yy v_i - grad_y f_i|| / ||grad_y f_i||, the true
    one; None for unrolling, which solves nothing. curvature: the smallest <p, g_yy p>/||p||^2 that
    the solver met; at or below zero the lower level is not strongly convex
        and the gradients mean nothing.  None for unrolling.
    """

    objectives: Tensor
    gradients: Tensor
    y: Tree
    solver_residual: Tensor | None
    curvature: Tensor | None


@dataclass(frozen=True)
class Hypergradient(ABC):
    """A way to estimate hypergradients; call it with `numbers` of its own, as plain floats or as
    the tensors of a state.
    """

    @property
    @abstractmethod
    def numbers(self) -> tuple[Any, ...]:
        """The numbers that travel in the state of a run."""

    @abstractmethod
    def __call__(
        self, upper: Level, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]
    ) -> Hypergradients:
        """The hypergradients at (x, y)."""

    @abstractmethod
    def oracles(self, m: int) -> dict[str, int]:
        """What one estimate costs."""


@dataclass(frozen=True)
class Unrolled(Hypergradient):
    """Differentiate f_i(x, y^K(x)) through y^(j+1) = y^j - eta grad_y g(x, y^j), reverse mode, y^0
    held constant.

    The error shrinks like (1 - eta h)^K, h the smallest curvature of g in y.  Memory grows with K.

    Args:
        steps: K >= 1.
        eta: step size on g.
    """

    steps: int
    eta: float

    def __post_init__(self) -> None:
        _check(self, "steps", "eta")

    @property
    def numbers(self) -> tuple[Any, ...]:
        return (self.eta,)

    def __call__(
        self, upper: Level, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]
    ) -> Hypergradients:
        (eta,) = numbers

        def through(x_: Tree) -> tuple[Tensor, Tree]:
            point = (
                y if functional(x_) else tree.map_(lambda leaf: leaf.detach().requires_grad_(), y)
            )
            for _ in range(self.steps):
                point = tree.add_scaled(point, -eta, gradient_in_y(lower, x_, point))
            return upper(x_, point), point

        f, moved, pull = pullback_of(through, x)
        return Hypergradients(f, torch.stack([pull(e)[0] for e in unit_rows(f)]), moved, None, None)

    def oracles(self, m: int) -> dict[str, int]:
        # The last pull-back, to y^0, is not needed.
        return {
            "lower_gradients": self.steps,
            "upper_gradients": m,
            "hessian_products": m * (2 * self.steps - 1),
        }


@dataclass(frozen=True)
class _Implicit(Hypergradient):
    """grad_x f_i - g_xy v_i with v_i from a linear solve, whose true residual comes with the
    product that g_xy v_i needs.
    """

    def __call__(
        self, upper: Level, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]
    ) -> Hypergradients:
        f, f_x, f_y = jacobian(upper, x, y)
        v, seen = self._solve(lambda: self._products(lower, x, y, numbers), f_y, numbers)
        in_x, in_y = self._pair(lower, x, y, numbers)(v)
        tiny = torch.finfo(f.dtype).tiny
        residual = ((in_y - f_y).norm(dim=1) / f_y.norm(dim=1).clamp_min(tiny)).amax()
        quotient = ((v * in_y).sum(1) / v.square().sum(1).clamp_min(tiny)).amin()
        return Hypergradients(
            f, f_x - in_x, y, residual, quotient if seen is None else torch.minimum(quotient, seen)
        )

    @abstractmethod
    def _solve(
        self, products: Callable[[], Products], rhs: Tensor, numbers: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """v (m, n_y) with g_yy v = rhs, approximately, and the smallest curvature met, if seen."""

    def _products(self, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]) -> Products:
        _, _, pull = pullback_of(lambda y_: (tree.ravel(gradient_in_y(lower, x, y_)), ()), y)
        return lambda rows: torch.stack([pull(v)[0] for v in rows.unbind()])

    def _pair(self, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]) -> Pair:
        _, pull = lower_pullback(lower, x, y)
        return pull


@dataclass(frozen=True)
class Neumann(_Implicit):
    """v_i = eta sum_{q < N} (I - eta g_yy)^q grad_y f_i; converges for 0 < eta < 2/L, like (1 - eta
    h)^N.

    Args:
        terms: N >= 1; one term is v_i = eta grad_y f_i, the one-step form of architecture search.
        eta: below 2/L, L the largest curvature of g in y.
    """

    terms: int
    eta: float

    def __post_init__(self) -> None:
        _check(self, "terms", "eta")

    @property
    def numbers(self) -> tuple[Any, ...]:
        return (self.eta,)

    def _solve(
        self, products: Callable[[], Products], rhs: Tensor, numbers: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor | None]:
        eta = numbers[0]
        v = eta * rhs
        if self.terms > 1:
            product = products()
            for _ in range(self.terms - 1):
                v = v + eta * (rhs - product(v))
        return v, None

    def oracles(self, m: int) -> dict[str, int]:
        return {
            "lower_gradients": 1 + (self.terms > 1),
            "upper_gradients": m,
            "hessian_products": m * (self.terms + 1),
        }


@dataclass(frozen=True)
class FiniteDifference(Neumann):
    """Neumann's series with every product taken from two gradients of g, as the MOMEHA paper runs
    WC-MHGD; no Hessian product.

    g_yy v = [grad_y g(x, y + e v) - grad_y g(x, y - e v)] / (2 e), g_xy v likewise from grad_x g.
    The shifted points are values of their own: y itself is never touched.

    Args:
        terms, eta: as in `Neumann`.
        eps: the shift.
        relative: e = eps/||v|| (as architecture search does), so that the shift has length eps;
            else e = eps.
    """

    eps: float = 0.01
    relative: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "terms", "eps")
        validation.flag(self.relative, "relative")

    @property
    def numbers(self) -> tuple[Any, ...]:
        return (self.eta, self.eps)

    def _products(self, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]) -> Products:
        def gradient(point: Tensor) -> Tensor:
            return tree.ravel(oracle.grad(lambda y_: lower(x, y_), tree.unravel(point, y)))

        return lambda rows: torch.stack(
            [difference(gradient, y, v, numbers[1], self.relative) for v in rows.unbind()]
        )

    def _pair(self, lower: Level, x: Tree, y: Tree, numbers: tuple[Any, ...]) -> Pair:
        return difference_pair(lower, x, y, numbers[1], self.relative)

    def oracles(self, m: int) -> dict[str, int]:
        return {"lower_gradients": 2 * m * self.terms, "upper_gradients": m, "hessian_products": 0}


@dataclass(frozen=True)
class CG(_Implicit):
    """v_i by conjugate gradients, all m systems side by side, from zero.

    A system that has met the tolerance stays where it is.  So does one that meets a direction
    without positive curvature: it cannot go on, and `solver_residual` and `curvature` say so.

    Args:
        iterations: products at most, which a fixed graph always makes.
        tol: stop at ||g_yy v - grad_y f_i|| <= tol ||grad_y f_i||.
    """

    iterations: int
    tol: float = 1e-10

    def __post_init__(self) -> None:
        _check(self, "iterations")
        object.__setattr__(self, "tol", validation.number(self.tol, "tol", least=0))

    @property
    def numbers(self) -> tuple[Any, ...]:
        return (self.tol,)

    def _solve(
        self, products: Callable[[], Products], rhs: Tensor, numbers: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor | None]:
        product, eps, tiny = products(), torch.finfo(rhs.dtype).eps, torch.finfo(rhs.dtype).tiny
        v, r, p = torch.zeros_like(rhs), rhs, rhs
        rr = r.square().sum(1, keepdim=True)
        target = numbers[0] ** 2 * rr
        steepest, flattest = torch.zeros_like(rr), torch.full_like(rr, torch.inf)
        for _ in range(self.iterations):
            hp = product(p)
            curvature = (p * hp).sum(1, keepdim=True) / p.square().sum(1, keepdim=True).clamp_min(
                tiny
            )
            open_ = rr > target
            steepest = torch.maximum(steepest, curvature.abs())
            flattest = torch.where(open_, torch.minimum(flattest, curvature), flattest)
            active = open_ & (curvature > eps * steepest)
            step = torch.where(
                active, rr / torch.where(active, (p * hp).sum(1, keepdim=True), 1), 0
            )
            v, r = v + step * p, r - step * hp
            rr_next = r.square().sum(1, keepdim=True)
            p = torch.where(active, r + rr_next / rr.clamp_min(tiny) * p, p)
            rr = torch.where(active, rr_next, rr)
        return v, flattest.amin()

    def oracles(self, m: int) -> dict[str, int]:
        return {
            "lower_gradients": 2,
            "upper_gradients": m,
            "hessian_products": m * (self.iterations + 2),
        }


def hypergradients_of(problem: Problem, y: Tree, most: int) -> Level:
    """(x, y) -> the hypergradients (m, n_x) on all data, by CG of n_y products, `most` at most.

    Args:
        y: gives the shapes.
    """
    upper, lower = problem.batch("upper", "full"), problem.batch("lower", "full")
    solver = CG(min(tree.ravel(y).numel(), most))

    def gradients(x: Tree, y: Tree) -> Tensor:
        levels = (
            lambda x_, y_: problem.upper(x_, y_, upper),
            lambda x_, y_: problem.lower(x_, y_, lower),
        )
        return solver(*levels, x, y, solver.numbers).gradients

    return gradients


def warn_if_singular(name: str, problem: Problem, x: Tree, y: Tree) -> None:
    """Warn, once, before a run, where g_yy at the start is not positive definite, as it must be."""
    flat, stream = tree.ravel(y), torch.Generator().manual_seed(0)
    low, high = curvature.extremes(curvature.lower_in_y(problem, x, y), flat, stream, 20)
    size = max(abs(low), abs(high))
    if low <= 100 * torch.finfo(flat.dtype).eps * size:
        kind = "negative" if low < -1e-6 * size else "zero to rounding"
        warnings.warn(
            f"{name} needs a strongly convex lower level, but g_yy has an eigenvalue that is "
            f"{kind} at the start ({low:.3g}; the largest is "
            f"{high:.3g}): hypergradients need not mean anything there; MOMEHA and WCPenalty do "
            "without them",
            BiparetoWarning,
            stacklevel=4,
        )


def _check(way: Hypergradient, repeats: str, *positive: str) -> None:
    """Bring a way's hyperparameters into form: how often it repeats something, and numbers > 0."""
    object.__setattr__(
        way, repeats, validation.count(getattr(way, repeats), repeats, least=1, most=MOST_REPEATS)
    )
    for name in positive:
        object.__setattr__(way, name, validation.number(getattr(way, name), name, above=0))
