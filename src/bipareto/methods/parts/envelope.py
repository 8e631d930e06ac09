"""The lower level solved to a tolerance: y*(x) near a given y, and the proximal point of the Moreau
envelope.

Both minimise h(v) = g(x, v) + ||v - y||^2 / (2 gamma), with 1/gamma = 0 for the lower level itself,
by a trust-region Newton method whose steps come from conjugate gradients on Hessian products.  It
descends from the given y and its steps grow only as they succeed, so it stays in the basin it
starts in.  Runs are rows of one matrix, solved side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bipareto.methods.parts.differentiation import products, slopes
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: p (R, n) -> H p, row by row
Product: TypeAlias = Callable[[Tensor], Tensor]
#: coordinates of y up to which a Hessian is written down: one call instead of one per product
WRITTEN = 16
#: the share of a gradient to which a Hessian foresees the next one, and serves once more
FORESEEN = 1e-3
#: curvatures along the coordinates of y that differ by more than this are a matter of their units
APART = 1e6


class LowerSolution(NamedTuple):
    """y stacked over runs, ||grad h|| (R,), which met the tolerance (R,), Newton steps taken."""

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
        tol: relative: stop a run when what is left of ||grad_y g|| stands for a step of tol times
            the size of y, by the smallest curvature met (never below rounding).  Units of g and of
            y do not matter.
        max_iter: Newton steps at most.
        batched: False takes the runs one by one, for losses that `vmap` cannot batch.
    """
    return _minimise(problem, x, y, 0.0, tol, max_iter, batched)


def solve_one(problem: Problem, x: Tree, y: Tree, *, tol: float, max_iter: int) -> Tree:
    """y of one run moved to the lower solution near it, as `solve_lower` does."""
    one = tree.expand((x, y), 1)
    found = solve_lower(problem, *one, tol=tol, max_iter=max_iter, batched=False)
    return tree.select(found.y, 0)


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
    """theta*_gamma(x, y) = argmin_theta g(x, theta) + ||theta - y||^2 / (2 gamma), stacked."""
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


def _rows(fn: Callable[..., Any], batched: bool) -> Callable[..., Any]:
    """`fn` over the first axis of its arguments: by vmap, or one by one."""
    if batched:
        return torch.func.vmap(fn)
    return lambda *args: tree.stack(
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

    values = _rows(value_row, batched)

    def sloped(v: Tensor, again: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """v as a variable, the values there (R,), and their gradients (R, n)."""
        with torch.enable_grad():
            v = v.detach().requires_grad_()
            h = values(x, anchor, v)
            return v, h.detach(), slopes(h, v, again=again)

    def hessians(v: Tensor) -> Tensor:
        v, _, r = sloped(v, again=True)
        eye = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
        return products(r, v, eye[:, None].expand(-1, *v.shape)).movedim(0, 1)

    with torch.no_grad():
        written = anchor.shape[1] <= WRITTEN
        first = hessians(anchor) if written else None
        unit = torch.ones_like(anchor) if first is None else _units(first)

        def evaluate(w: Tensor) -> tuple[Tensor, Tensor]:
            _, value, slope = sloped(unit * w)
            return value, unit * slope

        def curve(w: Tensor) -> Product:
            """p -> H p in these units, row by row."""
            if not written:
                v, _, r = sloped(unit * w, again=True)
                return lambda p: products(r, v, p[None])[0]
            nonlocal first
            H = hessians(unit * w) if first is None else first
            H, first = unit[..., None] * H * unit[:, None], None
            return lambda p: (H @ p[..., None])[..., 0]

        found = _trust_region(evaluate, curve, anchor / unit, tol, max_iter, written)
        stacked = tree.unravel(unit * found.point, like)
        residual = (found.slope / unit).norm(dim=1)
        return LowerSolution(stacked, residual, found.converged, found.iterations)


def _units(H: Tensor) -> Tensor:
    """Units (R, n) of y in which H (R, n, n) has ones on its diagonal, where they differ so much
    that rounding in one coordinate hides the others; else ones.
    """
    size = H.diagonal(dim1=-2, dim2=-1).abs()
    least, most = size.amin(1, keepdim=True), size.amax(1, keepdim=True)
    apart = (most > APART * least) & (least > 0) & most.isfinite()
    return torch.where(apart, size.rsqrt(), torch.ones_like(size))


class _Found(NamedTuple):
    """Points (R, n), the slopes there, whether each is a solution, and the iterations of all."""

    point: Tensor
    slope: Tensor
    converged: Tensor
    iterations: int


def _trust_region(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    curve: Callable[[Tensor], Product],
    v: Tensor,
    tol: float,
    max_iter: int,
    written: bool,
) -> _Found:
    """Minimise row by row from v (R, n).

    Args:
        evaluate: v -> values (R,) and gradients (R, n).
        curve: v -> products with the Hessians there.
        written: a new `curve` costs as much as n products, and is asked for only where the last one
            has not foreseen the gradients.
    """
    eps, tiny_number = torch.finfo(v.dtype).eps, torch.finfo(v.dtype).tiny
    first, product, (h, r) = v, curve(v), evaluate(v)
    residual = begun = r.norm(dim=1)
    # The first radius is the length of an exact step along the gradient: the scale on which g is
    # known to be quadratic.
    way = r / residual.clamp_min(tiny_number)[:, None]
    curvature = (way * product(way)).sum(1).abs()
    radius = 2 * residual / torch.maximum(curvature, eps * residual).clamp_min(tiny_number)
    largest, smallest = curvature, curvature

    def limit() -> Tensor:
        """The residual that stands for a step of `tol` times the size of y, and rounding's."""
        size = torch.maximum(v.norm(dim=1), (v - first).norm(dim=1))
        size = torch.where(size > 0, size, radius)
        return torch.maximum(tol * smallest, 10 * eps * largest) * size

    goal = limit()
    iterations, old = 0, False
    while iterations < max_iter and bool(
        ((residual > goal) & (radius > eps * v.norm(dim=1))).any()
    ):
        iterations += 1
        if old:
            product = curve(v)
        share = residual / begun.clamp_min(tiny_number)
        step, predicted, along = _steihaug(product, r, radius, goal, share)
        trial = v + step
        h_trial, r_trial = evaluate(trial)
        residual_trial = r_trial.norm(dim=1)
        actual = h - h_trial
        ratio = actual / predicted.clamp_min(tiny_number)
        # Below rounding of h the ratio is noise, and a smaller gradient is the better witness.
        tiny = predicted < 10 * eps * h.abs()
        good = (
            torch.where(tiny, residual_trial < residual, ratio > 0.1)
            & torch.isfinite(h_trial)
            & (residual > goal)
        )
        length = step.norm(dim=1)
        grow = good & (tiny | (ratio > 0.7)) & (length > 0.8 * radius)
        radius = torch.where(
            good,
            torch.where(grow, 2 * radius, radius),
            torch.where(residual > goal, 0.25 * length, radius),
        )
        if written:
            missed = (r_trial - r - product(step)).norm(dim=1) > FORESEEN * residual
            old = bool((good & missed).any())
        else:
            old = bool(good.any())
        v = torch.where(good[:, None], trial, v)
        r = torch.where(good[:, None], r_trial, r)
        h, residual = torch.where(good, h_trial, h), torch.where(good, residual_trial, residual)
        met = torch.where(length > 0, along.abs() / length.square().clamp_min(tiny_number), largest)
        largest, smallest = torch.maximum(largest, met), torch.minimum(smallest, met)
        goal = limit()
    return _Found(v, r, (residual <= goal) & goal.isfinite(), iterations)


def _steihaug(
    product: Product, r: Tensor, radius: Tensor, goal: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Approximately minimise <r, s> + <s, H s>/2 over ||s|| <= radius, row by row; returns s, the
    decrease it predicts, and <s, H s>.

    Args:
        goal: residuals (R,) that are small enough.
        share: ||r|| over that of the first iterate, (R,).
    """
    s, hs = torch.zeros_like(r), torch.zeros_like(r)
    residual, p = r, -r
    rr = (r * r).sum(1)
    target = torch.maximum(share.clamp(max=0.1) * rr.sqrt(), 0.1 * goal)  # superlinear convergence
    active = rr.sqrt() > goal
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
    bend = (s * hs).sum(1)
    return s, -(r * s).sum(1) - 0.5 * bend, bend
