"""Lipschitz constants of a problem's gradients, known or probed, and what follows from them for the
scalarized objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bipareto.methods.parts import curvature, envelope
from bipareto.methods.parts.scalarization import Scalarization
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: factor on probed constants: a maximum over sampled points lies below the true one
SAFETY = 1.25


class Known(Protocol):
    """L_g and L_f, joint in (x, y), and rho_y; `bipareto.problems.Constants` is one."""

    @property
    def L_g(self) -> float: ...

    @property
    def L_f(self) -> float: ...

    @property
    def rho_y(self) -> float: ...


class Smoothness(NamedTuple):
    """L_g and L_f, joint Lipschitz constants of grad g and of every grad f_i in (x, y), and rho_y,
    the weak convexity of g in y.
    """

    L_g: float
    L_f: float
    rho_y: float


def estimate(
    problem: Problem,
    x0: Any,
    y0: Any,
    *,
    radius: float | None = None,
    count: int = 16,
    seed: int = 0,
) -> Smoothness:
    """L_g, L_f and rho_y from Lanczos on Hessian products at the start, at the lower solution near
    it, and at points around.

    A sample sees less than the supremum; the answer is enlarged by a quarter, and still only an
    estimate.

    Args:
        radius: how far around the two points to look, per coordinate; None is the larger of 1 and
            their distance.
        count: random points.
    """
    x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    m = problem.check(x, y)
    settled = envelope.solve_one(problem, x, y, tol=1e-6, max_iter=20)
    points = [tree.ravel((x, y)), tree.ravel((x, settled))]
    reach = max(1.0, float((points[0] - points[1]).abs().max())) if radius is None else radius
    stream = torch.Generator().manual_seed(seed)
    shifts = torch.linspace(0.1, 1, count, dtype=torch.float64).tolist()
    points += [
        points[i % 2] + s * reach * curvature.normal(points[0], stream)
        for i, s in enumerate(shifts)
    ]

    lower = curvature.lower_in_both(problem, x, y)
    uppers = [curvature.objective_in_both(problem, i, x, y) for i in range(m)]
    split = tree.ravel(x).numel()

    def extremes(product: curvature.Product, like: Tensor) -> tuple[float, float]:
        return curvature.lanczos(product, curvature.normal(like, stream), 16)

    def in_y(product: curvature.Product, zero: Tensor) -> curvature.Product:
        return lambda v: product(torch.cat([zero, v]))[split:]

    L_g = L_f = rho_y = 0.0
    for point in points:
        product = curvature.hessian(lower, point)
        L_g = max(L_g, *map(abs, extremes(product, point)))
        zero = point[:split] * 0
        low, _ = extremes(in_y(product, zero), point[split:])
        rho_y = max(rho_y, -low)
        L_f = max(
            [
                L_f,
                *(
                    abs(value)
                    for f_i in uppers
                    for value in extremes(curvature.hessian(f_i, point), point)
                ),
            ]
        )
    return Smoothness(SAFETY * L_g, SAFETY * L_f, SAFETY * rho_y if rho_y > 1e-9 * L_g else 0.0)


def lower_bound(scalarization: Scalarization, m: int, mu: float) -> float:
    """The largest number F_low that F >= F_low holds for whenever z <= f: log(m)/mu for the smooth
    Tchebycheff form, else 0.
    """
    return scalarization.part("lower_bound")(m, mu)


def scalarized_smoothness(
    scalarization: Scalarization,
    L_f: float,
    w: Sequence[float],
    mu: float,
    level: float,
    spread: float | None = None,
) -> float:
    """L_F, a Lipschitz constant of grad F on the set F <= level, for m objectives with Lipschitz
    constants L_f and z <= inf f.

    Args:
        w: the preference.
        mu: smoothing.
        level: F at most there; the merit's descent keeps a run inside F - F_low <= c_t V_0.
        spread: max_ij ||w_i grad f_i - w_j grad f_j|| where it is known to be smaller.
    """
    widest = math.inf if spread is None else spread
    return scalarization.part("smoothness")(L_f, w, mu, level, widest)


def start_merit(problem: Problem, x0: Tree, y0: Tree, L_g: float, gamma: float) -> float:
    """The part of V_0 that c does not scale: g - v_gamma + (L_g^2 + 1/gamma^2) ||theta_0 -
    theta*||^2 at (x_0, y_0), theta_0 = y_0.
    """
    x, y = tree.expand(x0, 1), tree.expand(y0, 1)
    theta = envelope.proximal_point(problem, x, y, gamma, tol=1e-9, batched=False).y
    gap = float(envelope.gap(problem, x, y, gamma, tol=1e-9, batched=False)[0])
    return gap + (L_g**2 + gamma**-2) * float(tree.squared_norm(tree.sub(theta, y)))
