"""How much all objectives can still fall together from given points: found by going there.

At a Pareto point nothing is left.  Elsewhere the direction that serves the worst-served objective
best, d = -P sum_i lambda_i grad f_i(x, y*(x))/s_i with lambda in the simplex minimising its length
in the metric P, is tried with the lower level solved again at every trial.  What is reported was
reached, so it is a proof that a point is not Pareto optimal; a small number is evidence, no proof,
that it is.  In units of the extent s it knows no units, and P, the inverse curvature along the
lower solutions, makes it look along soft directions as well as along stiff ones.
"""

from __future__ import annotations

from textwrap import shorten

import torch
from torch import Tensor

from bipareto.methods.parts import simplex
from bipareto.methods.parts.hypergradient import CG
from bipareto.methods.tuning import local
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

__all__ = ["DENSE", "remaining", "unseeable", "values"]

#: variables up to which curvature is written down, and up to which points are looked at unasked
DENSE, MOST = 256, 20_000
#: directions that are followed, one after the other, and lengths that are tried along each
ROUNDS, LENGTHS = 4, (1.0, 0.3, 0.1, 0.02)
#: products of a linear solve where curvature is not written down
PRODUCTS = 30


def remaining(problem: Problem, x: Tree, y: Tree, extent: Tensor) -> Tensor:
    """min_i (f_i(start) - f_i(end))/s_i for the best end found from each of R points, shape (R,).

    Args:
        x, y: with a first axis R; y is solved again first.
        extent: s (m,), the size of each objective's range over the front.

    NaN where a point or its objectives are not finite.
    """
    like = tree.select(x, 0), tree.select(y, 0)
    count = tree.ravel(like[0]).numel() + tree.ravel(like[1]).numel()
    y = local.settle(problem, x, y)
    begun = values(problem, x, y)
    begin, best, unit = x, begun, extent.double().to(begun)
    for _ in range(ROUNDS if count <= DENSE else 1):
        if count <= DENSE:
            step, follow = _newton(problem, x, y, unit)
        else:
            step, follow = _gradient(problem, x, y, unit, like)
        moved = torch.zeros(len(begun), dtype=torch.bool, device=begun.device)
        for length in LENGTHS:
            share = torch.where(moved, 0.0, length)[:, None].to(step)
            at_x = _shifted(x, share * step, like[0])
            at_y = local.settle(problem, at_x, _shifted(y, share * follow, like[1]))
            found = values(problem, at_x, at_y)
            good = ~moved & ((best - found) / unit > 0).all(1)
            x, y = tree.where_run(good, at_x, x), tree.where_run(good, at_y, y)
            best, moved = torch.where(good[:, None], found, best), moved | good
        if not bool(moved.any()):
            break
    finite = torch.isfinite(tree.ravel(begin, batch_dims=1)).all(1)
    return torch.where(finite, ((begun - best) / unit).amin(1), torch.nan)


def unseeable(problem: Problem, x: Tree, y: Tree) -> str | None:
    """Why what is left at (x, y), trees with a first axis R, cannot be seen, in words, or None.

    The derivatives that a look takes are tried at the first point: what fails later is no property
    of the losses.
    """
    if problem.mixed:
        return "second derivatives of losses in mixed precision are mostly rounding"
    first = tree.map_(lambda leaf: leaf[:1], (x, y))
    count = tree.ravel(first).numel()
    if count > MOST:
        return f"there are {count:,} variables, more than {MOST:,}"
    try:
        if count <= DENSE:
            local.look(problem, *first)
        else:
            values(problem, *first)
            local.same_valley(problem, *first, first[1])
    except RuntimeError as error:
        return (
            "the losses cannot be batched by vmap or differentiated twice "
            f"({shorten(str(error), 80, placeholder=' ...')})"
        )
    return None


def values(problem: Problem, x: Tree, y: Tree) -> Tensor:
    """f (R, m) in float64 on all data."""
    batch = problem.batch("upper", "full")
    with torch.no_grad():
        return torch.func.vmap(lambda a, b: problem.upper(a, b, batch))(x, y).double()


def _shifted(point: Tree, move: Tensor, like: Tree) -> Tree:
    return local.as_trees(tree.ravel(point, batch_dims=1).double() + move, like)


def _weighed(slopes: Tensor, metric: Tensor | None) -> Tensor:
    """-P sum_i lambda_i slopes_i (R, n) for slopes (R, m, n); P the identity where None."""
    turned = slopes if metric is None else slopes @ metric
    gram = (slopes @ turned.mT).nan_to_num()
    return -torch.einsum("rm,rmn->rn", simplex.quadratic(gram).weights, turned)


def _newton(problem: Problem, x: Tree, y: Tree, unit: Tensor) -> tuple[Tensor, Tensor]:
    at = local.look(problem, x, y)
    slope, bend, follow = (value.nan_to_num() for value in (at.slope, at.bend, at.follow))
    metric = local.inverse((bend / unit[:, None, None]).mean(1), 1e-6)[0]
    step = _weighed(slope / unit[:, None], metric)
    return step, (follow @ step[..., None])[..., 0]


def _gradient(
    problem: Problem, x: Tree, y: Tree, unit: Tensor, like: tuple[Tree, Tree]
) -> tuple[Tensor, Tensor]:
    """Steepest descent with hypergradients by conjugate gradients, of the length that a quadratic
    through two slopes suggests.
    """
    lower, upper = problem.batch("lower", "full"), problem.batch("upper", "full")
    solver = CG(min(tree.ravel(like[1]).numel(), PRODUCTS))

    def slopes(a: Tree, b: Tree) -> Tensor:
        rows = [
            solver(
                lambda p, q: problem.upper(p, q, upper),
                lambda p, q: problem.lower(p, q, lower),
                tree.select(a, r),
                tree.select(b, r),
                solver.numbers,
            ).gradients.double()
            for r in range(tree.flat_axis(a))
        ]
        return torch.stack(rows) / unit[:, None]

    first = slopes(x, y)
    step = _weighed(first, None)
    size = tree.ravel(x, batch_dims=1).double().norm(dim=1, keepdim=True)
    probe = 1e-3 * size.clamp_min(1e-3) * step / step.norm(dim=1, keepdim=True).clamp_min(1e-300)
    at_x = _shifted(x, probe, like[0])
    change = slopes(at_x, local.settle(problem, at_x, y)) - first
    bend = torch.einsum("rmn,rn->rm", change, probe).mean(1) / probe.square().sum(1)
    fall = -torch.einsum("rmn,rn->rm", first, step).amin(1) / step.square().sum(1).clamp_min(1e-300)
    length = fall.clamp_min(0) / bend.abs().clamp_min(1e-300)
    return length[:, None] * step, torch.zeros_like(tree.ravel(y, batch_dims=1)).double()
