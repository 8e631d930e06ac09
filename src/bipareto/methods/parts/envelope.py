"""The lower level solved to a tolerance: y*(x) near a given y, and the proximal point of the Moreau
envelope.

Both minimise h(v) = g(x, v) + ||v - y||^2 / (2 gamma), with 1/gamma = 0 for the lower level itself,
by a trust-region Newton method whose steps come from conjugate gradients on Hessian products.  It
descends from the given y and its steps grow only as they succeed, so it stays in the basin it
starts in.  Runs are rows of one matrix, solved side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

__all__ = ["LowerSolution", "gap", "proximal_point", "solve_lower"]


class LowerSolution(NamedTuple):
    """y stacked over runs, ||grad h|| per run (R,), which runs met the tolerance (R,), and Newton
    steps taken.
    """

    y: Tree
    residual: Tensor
    converged: Tensor
    iterations: int


def solve_lower(
    problem: Problem,
    x: Tree,
    y: Tree,
    *,
    tol: float = 1e-8,
    max_iter: int = 200,
    batched: bool = True,
) -> LowerSolution:
    """Re-solve grad_y g(x, y) = 0 from y for a stack of runs (every leaf has a first axis R).

    Args:
        tol: stop a run when ||grad_y g|| <= tol.
        max_iter: Newton steps at most.
        batched: False takes the runs one by one, for losses that `vmap` cannot batch.
    """
    return _minimise(problem, x, y, 0.0, tol, max_iter, batched)


def proximal_point(
    problem: Problem,
    x: Tree,
    y: Tree,
    gamma: float,
    *,
    tol: float = 1e-8,
    max_iter: int = 200,
    batched: bool = True,
) -> LowerSolution:
    """theta*_gamma(x, y) = argmin_theta g(x, theta) + ||theta - y||^2 / (2 gamma) for a stack of
    runs.
    """
    return _minimise(problem, x, y, 1 / gamma, tol, max_iter, batched)


def gap(
    problem: Problem, x: Tree, y: Tree, gamma: float, *, tol: float = 1e-8, batched: bool = True
) -> Tensor:
    """g(x, y) - v_gamma(x, y) >= 0 per run, shape (R,): zero exactly where grad_y g = 0."""
    theta = proximal_point(problem, x, y, gamma, tol=tol, batched=batched).y
    batch = problem.batch("lower", "full")

    def one(x_: Tree, y_: Tree, theta_: Tree) -> Tensor:
        at_y, at_theta = problem.lower_pair(x_, y_, theta_, batch)
        return at_y - at_theta - tree.squared_norm(tree.sub(theta_, y_)) / (2 * gamma)

    return _rows(one, batched)(x, y, theta)


def _rows(fn: Callable[..., Tensor], batched: bool) -> Callable[..., Tensor]:
    """`fn` over the first axis of its arguments: by vmap, or one by one."""
    if batched:
        return torch.func.vmap(fn)
    return lambda *args: torch.stack(
        [fn(*(tree.select(a, i) for a in args)) for i in range(tree.flat_axis(args[0]))]
    )


def _minimise(
    problem: Problem,
    x: Tree,
    y: Tree,
    inverse_gamma: float,
    tol: float,
    max_iter: int,
    batched: bool,
) -> LowerSolution:
    batch = problem.batch("lower", "full")
    like = tree.select(y, 0)
    anchor = tree.ravel(y, batch_dims=1)

    def value_row(x_: Tree, a: Tensor, v: Tensor) -> Tensor:
        g = problem.lower(x_, tree.unravel(v, like), batch)
        return g + 0.5 * inverse_gamma * ((v - a) ** 2).sum() if inverse_gamma else g

    def product_row(x_: Tree, a: Tensor, v: Tensor, p: Tensor) -> Tensor:
        pull: Callable[..., Any] = torch.func.vjp(
            lambda u: torch.func.grad(value_row, argnums=2)(x_, a, u), v
        )[1]
        return pull(p)[0]

    values = _rows(value_row, batched)
    gradients = _rows(torch.func.grad(value_row, argnums=2), batched)
    products = _rows(product_row, batched)

    with torch.no_grad():
        return _trust_region(
            like,
            lambda v: values(x, anchor, v),
            lambda v: gradients(x, anchor, v),
            lambda v, p: products(x, anchor, v, p),
            anchor,
            tol,
            max_iter,
        )


def _trust_region(
    like: Tree,
    value: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    product: Callable[[Tensor, Tensor], Tensor],
    v: Tensor,
    tol: float,
    max_iter: int,
) -> LowerSolution:
    h, r = value(v), gradient(v)
    residual = r.norm(dim=1)
    # The first radius is the length of an exact step along the gradient: the scale on which g is
    # known to be quadratic.
    curvature = (r * product(v, r)).sum(1).abs() / residual.pow(2).clamp_min(
        torch.finfo(v.dtype).tiny
    )
    radius = 2 * residual / curvature.clamp_min(torch.finfo(v.dtype).eps)
    iterations = 0
    while iterations < max_iter and bool(
        ((residual > tol) & (radius > torch.finfo(v.dtype).eps)).any()
    ):
        iterations += 1
        step, predicted = _steihaug(partial(product, v), r, radius, tol)
        trial = v + step
        h_trial, r_trial = value(trial), gradient(trial)
        residual_trial = r_trial.norm(dim=1)
        actual = h - h_trial
        ratio = actual / predicted.clamp_min(torch.finfo(v.dtype).tiny)
        # Below rounding of h the ratio is noise, and a smaller gradient is the better witness.
        rounding = 10 * torch.finfo(v.dtype).eps * h.abs().clamp_min(1)
        tiny = predicted < rounding
        good = (
            torch.where(tiny, residual_trial < residual, ratio > 0.1)
            & torch.isfinite(h_trial)
            & (residual > tol)
        )
        length = step.norm(dim=1)
        grow = good & (tiny | (ratio > 0.7)) & (length > 0.8 * radius)
        radius = torch.where(
            good,
            torch.where(grow, 2 * radius, radius),
            torch.where(residual > tol, 0.25 * length, radius),
        )
        v = torch.where(good[:, None], trial, v)
        r = torch.where(good[:, None], r_trial, r)
        h, residual = torch.where(good, h_trial, h), torch.where(good, residual_trial, residual)
    stacked = torch.func.vmap(lambda row: tree.unravel(row, like))(v)
    return LowerSolution(stacked, residual, residual <= tol, iterations)


def _steihaug(
    product: Callable[[Tensor], Tensor], r: Tensor, radius: Tensor, tol: float
) -> tuple[Tensor, Tensor]:
    """Approximately minimise <r, s> + <s, H s>/2 over ||s|| <= radius, row by row; returns s and
    the decrease it predicts.
    """
    s, hs = torch.zeros_like(r), torch.zeros_like(r)
    residual, p = r, -r
    rr = (r * r).sum(1)
    target = torch.minimum(0.1 * rr.sqrt(), rr).clamp_min(0.1 * tol)  # superlinear convergence
    active = rr.sqrt() > tol
    for _ in range(min(r.shape[1], 100)):
        hp = product(p)
        php, pp, sp, ss = (p * hp).sum(1), (p * p).sum(1), (s * p).sum(1), (s * s).sum(1)
        alpha = rr / torch.where(php > 0, php, torch.ones_like(php))
        to_boundary = (
            -sp + (sp * sp + pp * (radius * radius - ss).clamp_min(0)).sqrt()
        ) / pp.clamp_min(torch.finfo(r.dtype).tiny)
        leaves = (php <= 0) | (alpha >= to_boundary)
        length = torch.where(
            active, torch.where(leaves, to_boundary, alpha), torch.zeros_like(alpha)
        )[:, None]
        s, hs, residual = s + length * p, hs + length * hp, residual + length * hp
        rr_new = (residual * residual).sum(1)
        active = active & ~leaves & (rr_new.sqrt() > target)
        if not bool(active.any()):
            break
        p = torch.where(
            active[:, None],
            -residual + (rr_new / rr.clamp_min(torch.finfo(r.dtype).tiny))[:, None] * p,
            p,
        )
        rr = torch.where(active, rr_new, rr)
    return s, -(r * s).sum(1) - 0.5 * (s * hs).sum(1)
