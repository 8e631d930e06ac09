"""By how much all objectives can still fall together, as a share of their own ranges.

*By the second-order picture at one point* (`left_to_gain`).  Along the lower solutions, y = y*(x),
each objective is modelled by q_i(d) = h_i'd + d'H_i d/2 with its hypergradient h_i and |curvature|
H_i.  The steps to the models' own minimisers give a payoff table, and in it the range s_i of each
objective.  What is left to gain is

    max_d min_i -q_i(d)/s_i  =  min_{lambda in the simplex} max_d -sum_i lambda_i q_i(d)/s_i.

It is 0 exactly where a convex combination of the h_i vanishes and about 1 far away, and it does not
change with f_i -> a f_i + b, g -> s g, x -> D x or y -> E y.

*By going there* (`remaining`), from many points at once. At a Pareto point nothing is left.
Elsewhere the direction that serves the worst-served objective best, d = -P sum_i lambda_i grad
f_i(x, y*(x))/s_i with lambda in the simplex minimising its length in the metric P, is tried with
the lower level solved again at every trial. What is reported was reached, so it is a proof that a
point is not Pareto optimal; a small number is evidence, no proof, that it is. In units of the
extent s it knows no units, and P, the inverse curvature along the lower solutions, makes it look
along soft directions as well as along stiff ones.
"""

from __future__ import annotations

from textwrap import shorten
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.certificate.inspection import Point, Subspace
from bipareto.methods.parts import curvature, simplex
from bipareto.methods.parts.hypergradient import hypergradients_of
from bipareto.methods.tuning import local
from bipareto.methods.tuning.functions import known
from bipareto.methods.tuning.local import DENSE
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: variables up to which points are looked at unasked
MOST = 20_000
#: how far y is moved, beside its size, where g_yy vanishes and says nothing of y*
BESIDE = 1e-3
#: the length of a convex combination of straight objectives' unit slopes that counts as zero
STRAIGHT = 1e-6
#: alternations between multipliers and metric
ALTERNATIONS = 30
#: directions that are followed, one after the other, and lengths that are tried along each
ROUNDS, LENGTHS = 4, (1.0, 0.3, 0.1, 0.02)
#: products of a linear solve where curvature is not written down
PRODUCTS = 30
#: points whose linear systems are solved at once
TOGETHER = 32


class Gain(NamedTuple):
    """Bounds on the model's gain: a step reaches `reached`, no step exceeds `bound`."""

    reached: float
    bound: float


def left_to_gain(h: Tensor, H: Tensor, x: Tensor | None = None) -> Gain:
    """Bounds on max_d min_i -q_i(d)/s_i.

    Args:
        h: slopes (m, n).
        H: curvatures (m, n, n); their absolute values are taken.
        x: the point (n,), whose size stands for the range of x where the ends of the front agree,
            as they do for one objective.

    >>> h = torch.tensor([[2.0, 0.0], [0.0, 1e6]], dtype=torch.float64)
    >>> H = torch.diag_embed(torch.tensor([[2.0, 2.0], [1e6, 1e6]], dtype=torch.float64))
    >>> gain = left_to_gain(h, H)
    >>> round(gain.reached, 3), round(gain.bound, 3)
    (0.25, 0.25)
    """
    lengths = h.norm(dim=1)
    if not bool((lengths > 0).all()):  # one of them cannot fall
        return Gain(0.0, 0.0)
    H = local.absolute(H.nan_to_num())
    s = _ranges(h, H, x)
    # Straight lines have no range, whatever the size of x: they fall for ever, or not at all.
    if not bool(H.any()) or not bool((s > 0).all()):
        unit = h / lengths[:, None]
        angle = float((simplex.quadratic(unit @ unit.T).weights @ unit).norm())
        return Gain(1.0, 1.0) if angle > STRAIGHT else Gain(0.0, 0.0)
    h, H = h / s[:, None], H / s[:, None, None]
    m = len(h)
    weights = h.new_full((m,), 1 / m)
    best = Gain(0.0, float("inf"))
    for turn in range(ALTERNATIONS):
        inverse = local.inverse(torch.einsum("i,ijk->jk", weights, H), 1e-9)[0]
        step = -inverse @ (weights @ h)
        change = h @ step + 0.5 * torch.einsum("j,ijk,k->i", step, H, step)
        best = Gain(
            max(best.reached, float(-change.max())), min(best.bound, float(-(weights @ change)))
        )
        if best.bound - best.reached <= 1e-3 * best.bound:
            break
        new = simplex.quadratic(h @ inverse @ h.T).weights
        weights = new if turn == 0 else 0.5 * (weights + new)
    return Gain(min(best.reached, 1.0), min(best.bound, 1.0))  # beyond its range nothing is known


def _ranges(h: Tensor, H: Tensor, x: Tensor | None) -> Tensor:
    """s (m,): each objective's range over the steps to all minimisers and the point itself."""
    inverse = local.inverse(H, 1e-6)[0]
    ends = -(inverse @ h[..., None])[..., 0]

    def payoff(steps: Tensor) -> Tensor:
        return h @ steps.T + 0.5 * torch.einsum("kj,ijl,kl->ik", steps, H, steps)

    table = payoff(ends)
    # An objective without curvature has no minimiser; it is ranged by the others'.
    bent = 0.5 * torch.einsum("kj,ijl,kl->ik", ends, H, ends).amax(1)
    table = table[:, (bent > 0) & torch.isfinite(table).all(0)]
    table = torch.cat([table, torch.zeros_like(h[:, :1])], 1)
    span = table.amax(1) - table.amin(1)
    between = table[:, :-1].amax(1) - table[:, :-1].amin(1) if table.shape[1] > 2 else 0 * span
    size = payoff(-x[None])[:, 0].abs() if x is not None else 0 * span
    if bool((between <= 1e-6 * torch.maximum(span, size)).all()):
        span = torch.maximum(span, size)
    return span


def along_lower(at: Point, degenerate: bool) -> Gain:
    """The gain along the lower solutions, with second derivatives written down.

    Args:
        degenerate: g_yy vanishes in a direction; dy*/dx is then read off beside the point.
    """
    x, y = tree.expand((at.x, at.y), 1)
    here = local.look(at.problem, x, y)
    h, H = here.slope[0], here.bend[0]
    if degenerate:
        noise = curvature.normal(at.y_flat, torch.Generator().manual_seed(0))
        size = BESIDE * at.y_size / max(float(noise.norm()), 1e-300)
        beside = tree.unravel(at.y_flat + size * noise, at.y)
        follow = local.look(at.problem, x, tree.expand(beside, 1)).follow[0]
        eye = torch.eye(at.split, dtype=h.dtype, device=h.device)
        tangents = torch.cat([eye, follow])
        h, H = at.J @ tangents, _curvatures(at, tangents.T)
    return left_to_gain(h, H, at.flat[: at.split].double())


def on_tangents(at: Point, space: Subspace) -> Gain:
    """The gain within the span of the gradients' parts along the lower solutions: m directions, m
    Hessian products of each objective.
    """
    T = space.rest
    T = T / T.norm(dim=1, keepdim=True).clamp_min(torch.finfo(T.dtype).tiny)
    return left_to_gain(at.J @ T.T, _curvatures(at, T))


def tangent_products(at: Point) -> int:
    """Gradient evaluations that `on_tangents` takes."""
    return 2 * len(at.J) ** 2


def _curvatures(at: Point, T: Tensor) -> Tensor:
    """T hess f_i T' (m, k, k) for rows T (k, d)."""
    products = [
        curvature.hessian(curvature.objective_in_both(at.problem, i, at.x, at.y), at.flat)
        for i in range(len(at.J))
    ]
    rows = [
        torch.stack([product(row.to(at.flat.dtype)).double() for row in T]) for product in products
    ]
    at.spent += 2 * len(products) * len(T)
    return torch.stack([T @ row.T for row in rows])


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
            if bool(moved.all()):
                break
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
            local.try_derivatives(problem, *first)
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
    at = local.look(problem, x, y, known(problem, x, y))
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
    one = hypergradients_of(problem, like[1], PRODUCTS)

    def slopes(a: Tree, b: Tree) -> Tensor:
        return torch.func.vmap(one, chunk_size=TOGETHER)(a, b).double() / unit[:, None]

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
