"""Second-order pictures of points at lower solutions, and the ends of a front by them.

For problems small enough that Hessians can be written down.  All of it is float64, with points side
by side on a first axis R.  None of it depends on units: a matrix is divided by its diagonal before
its eigenvalues are looked at.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import differentiation, envelope
from bipareto.methods.tuning import hessians
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: variables up to which Hessians are written down
DENSE = 256
#: eigenvalues of an equilibrated matrix below this share of the largest are rounding
FLOOR = {torch.float64: 1e-10, torch.float32: 1e-4}


class Local(NamedTuple):
    """R points with y at a lower solution.

    Attributes:
        x, y: flat, (R, n_x) and (R, n_y).
        f: objectives (R, m).
        f_x, f_y: their gradients (R, m, n_x) and (R, m, n_y).
        g_yy, g_yx: (R, n_y, n_y) and (R, n_y, n_x).
        root: B with B B' = |g_yy|^-1, (R, n_y, n_y); flat directions are not stretched.
        follow: dy*/dx = -g_yy^-1 g_yx, (R, n_y, n_x).
        slope: gradients of f_i(x, y*(x)), (R, m, n_x).
        bend: curvature of f_i along (v, follow v), (R, m, n_x, n_x); the bending of y* is left out.
        f_yy: (R, m, n_y, n_y).
    """

    x: Tensor
    y: Tensor
    f: Tensor
    f_x: Tensor
    f_y: Tensor
    g_yy: Tensor
    g_yx: Tensor
    root: Tensor
    follow: Tensor
    slope: Tensor
    bend: Tensor
    f_yy: Tensor


def settle(problem: Problem, x: Tree, y: Tree) -> Tree:
    """y moved to the lower solution near it; x and y have a first axis R."""
    return envelope.solve_lower(problem, x, y, tol=1e-9, max_iter=50).y


class Kept(NamedTuple):
    """What is known of the Hessians of both levels: all of f's, and g's columns of y."""

    upper: hessians.Known | None = None
    lower: hessians.Known | None = None


NOTHING = Kept()


def look(problem: Problem, x: Tree, y: Tree, kept: Kept = NOTHING) -> Local:
    """The picture at (x, y), trees with a first axis R; y is taken as it is."""
    levels, both, n = _levels(problem, x, y)
    floor, total = FLOOR[both.dtype], both.shape[1]
    f, g = (
        hessians.see(fn, both, columns, known, floor)
        for fn, columns, known in zip(levels, (total, total - n), kept, strict=True)
    )
    return _picture(both, n, f, g)


def try_derivatives(problem: Problem, x: Tree, y: Tree) -> None:
    """Take the derivatives that a picture takes, in two directions: fails where `look` would."""
    levels, both, _ = _levels(problem, x, y)
    for fn in levels:
        hessians.products(fn, both, repeat(torch.ones_like(both[:1]).expand(2, -1)))


def learn(problem: Problem, x: Tree, y: Tree) -> Kept:
    """What is known of Hessians from one point (R = 1), and from where a Newton step with equal
    weights leads, each objective in units of what its own step promises.
    """
    levels, both, n = _levels(problem, x, y)
    floor, total = FLOOR[both.dtype], both.shape[1]
    seen = [
        hessians.see(fn, both, columns, None, floor)
        for fn, columns in zip(levels, (total, total - n), strict=True)
    ]
    at = _picture(both, n, *seen)
    bend = absolute(at.bend[0])
    promise = torch.einsum("mi,mij,mj->m", at.slope[0], inverse(bend, 1e-6)[0], at.slope[0])
    share = torch.where(promise > 0, promise, torch.ones_like(promise)).reciprocal()
    metric, root = inverse(torch.einsum("m,mij->ij", share, bend), 1e-6)
    step = -metric @ (share @ at.slope[0])
    # As far again in a random direction, of x and of y: a straight way may leave coordinates still.
    stream = torch.Generator().manual_seed(0)

    def beside(share: float) -> Tensor:
        way = share * (step + 0.3 * _random_like(step, root, stream))
        move = at.follow[0] @ way
        return torch.cat([way, move + 0.3 * _random_like(move, at.root[0], stream)])

    others = both + torch.stack([beside(1.0), beside(-0.7)]).to(both)
    f, g = seen
    return Kept(
        hessians.compare(levels[0], f, others, floor),
        hessians.compare(levels[1], g, others, floor, at.follow[0]),
    )


def _random_like(step: Tensor, root: Tensor, stream: torch.Generator) -> Tensor:
    """A random step as long as the given one, in the metric (R R')^-1 of a root R."""
    size = torch.linalg.solve(root, step[:, None]).square().mean().sqrt()
    noise = torch.randn(len(step), generator=stream, dtype=torch.float64)
    return size * (root @ noise.to(step))


def _levels(problem: Problem, x: Tree, y: Tree) -> tuple[list[hessians.Values], Tensor, int]:
    """f and g (as one value) as functions of the flat (x, y), the points (R, N), and n_x."""
    like = tree.select(x, 0), tree.select(y, 0)
    flat_x, flat_y = tree.ravel(x, batch_dims=1), tree.ravel(y, batch_dims=1)
    lower_batch, upper_batch = problem.batch("lower", "full"), problem.batch("upper", "full")

    def lower(v: Tensor) -> Tensor:
        a, b = tree.unravel(v, like)
        return problem.lower(a, b, lower_batch)[None]

    def upper(v: Tensor) -> Tensor:
        a, b = tree.unravel(v, like)
        return problem.upper(a, b, upper_batch)

    return [upper, lower], torch.cat([flat_x, flat_y], 1), flat_x.shape[1]


def _picture(both: Tensor, n: int, f: hessians.Seen, g: hessians.Seen) -> Local:
    g_yy, g_yx = g.columns[:, 0, n:], g.columns[:, 0, :n].mT
    inverted, root = inverse(g_yy, FLOOR[both.dtype], flat=True)
    follow = -inverted @ g_yx
    J, H, W = f.slope, f.columns, follow[:, None]
    across = H[..., :n, n:] @ W
    return Local(
        x=both[:, :n].double(),
        y=both[:, n:].double(),
        f=f.value,
        f_x=J[..., :n],
        f_y=J[..., n:],
        g_yy=g_yy,
        g_yx=g_yx,
        root=root,
        follow=follow,
        slope=J[..., :n] + J[..., n:] @ follow,
        bend=H[..., :n, :n] + across + across.mT + W.mT @ (H[..., n:, n:] @ W),
        f_yy=H[..., n:, n:],
    )


def lower_curvature(problem: Problem, x: Tree, y: Tree, kept: Kept) -> Tensor:
    """g_yy (R, n_y, n_y) at (x, y), trees with a first axis R."""
    levels, both, n = _levels(problem, x, y)
    columns = both.shape[1] - n
    return hessians.see(levels[1], both, columns, kept.lower, FLOOR[both.dtype]).columns[:, 0, n:]


def same_valley(problem: Problem, x: Tree, y: Tree, solved: Tree) -> Tensor:
    """Whether g(x, .) bends upwards from y towards the lower solution found from there, at least a
    quarter as much as at that solution: a mask (R,) for trees with a first axis R.
    """
    end = tree.ravel(solved, batch_dims=1)
    along = end - tree.ravel(y, batch_dims=1)
    here, there = ((along * hessian_along(problem, x, at, along)).sum(1) for at in (y, solved))
    return here >= 0.25 * there


def hessian_along(problem: Problem, x: Tree, y: Tree, along: Tensor) -> Tensor:
    """g_yy v at R places, trees with a first axis R, for rows v (R, n_y)."""
    with torch.enable_grad():
        at, slope = lower_slopes(problem, x, y, again=True)
        return differentiation.products(slope, at, along[None])[0]


def lower_slopes(
    problem: Problem, x: Tree, y: Tree, *, again: bool = False
) -> tuple[Tensor, Tensor]:
    """Flat y as a variable and grad_y g there, (R, n_y), for trees with a first axis R."""
    like, batch = tree.select(y, 0), problem.batch("lower", "full")

    def value(x_: Tree, at: Tensor) -> Tensor:
        return problem.lower(x_, tree.unravel(at, like), batch)

    with torch.enable_grad():
        at = tree.ravel(y, batch_dims=1).detach().requires_grad_()
        return at, differentiation.slopes(torch.func.vmap(value)(x, at), at, again=again)


def rows(local: Local, index: int | list[int] | Tensor) -> Local:
    """The pictures of those places."""
    return Local(*(value[index] for value in local))


def inverse(A: Tensor, floor: float, *, flat: bool = False) -> tuple[Tensor, Tensor]:
    """|A|^-1 of symmetric matrices (..., n, n), and R with R R' = |A|^-1.

    A is divided by its diagonal on both sides first, so that units cancel.

    Args:
        floor: eigenvalues below this share of the largest count as that share of it ...
        flat: ... or as the largest itself: directions in which nothing is known are not stretched.
    """
    scale = _equilibrator(A)
    values, vectors = _eigh(scale[..., :, None] * A * scale[..., None, :])
    values = values.abs()
    most = values.amax(-1, keepdim=True)
    values = torch.where(values > floor * most, values, most if flat else floor * most)
    # Of a matrix of zeros nothing is known: it stretches nothing.
    values = torch.where(most > 0, values, torch.ones_like(values))
    values = values.clamp_min(torch.finfo(A.dtype).tiny)
    root = scale[..., :, None] * vectors * values.rsqrt()[..., None, :]
    return root @ root.mT, root


def narrowness(A: Tensor) -> Tensor:
    """The smallest over the largest size of the eigenvalues of symmetric matrices (..., n, n) in
    equilibrated units, shape (...).
    """
    scale = _equilibrator(A)
    values = _eigh(scale[..., :, None] * A * scale[..., None, :])[0].abs()
    return values.amin(-1) / values.amax(-1)


def _equilibrator(A: Tensor) -> Tensor:
    """1/sqrt of the diagonal's size, (..., n); what is zero beside the largest counts as that."""
    size = A.diagonal(dim1=-2, dim2=-1).abs()
    largest = size.amax(-1, keepdim=True)
    size = torch.where(size > 1e-24 * largest, size, largest)
    return torch.where(size > 0, size, torch.ones_like(size)).rsqrt()


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., n) and eigenvectors; NaN for a matrix that is not finite, which LAPACK is
    not to see.
    """
    B = _once(A)
    good = B.isfinite().all(-1).all(-1)
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    values, vectors = torch.linalg.eigh(torch.where(good[..., None, None], B, eye))
    values = torch.where(good[..., None], values, torch.nan)
    return values.expand(A.shape[:-1]), vectors.expand(A.shape)


def _once(A: Tensor) -> Tensor:
    """(1, ..., n, n) where the first axis of (R, ..., n, n) repeats one entry, as where losses are
    quadratic; else A itself.
    """
    return A[:1] if A.dim() > 2 and len(A) > 1 and bool((A[:1] == A).all()) else A


def absolute(A: Tensor) -> Tensor:
    """|A| of symmetric matrices (..., n, n) in equilibrated units; A itself where it is positive
    definite.
    """
    scale = _equilibrator(A)
    B = scale[..., :, None] * A * scale[..., None, :]
    if not bool(torch.linalg.cholesky_ex(B).info.any()) and bool(B.isfinite().all()):
        return A
    values, vectors = _eigh(B)
    vectors = vectors / scale[..., :, None]
    return (vectors * values.abs()[..., None, :]) @ vectors.mT


def minimise(
    problem: Problem,
    weights: Tensor,
    at: Local,
    like: tuple[Tree, Tree],
    kept: Kept = NOTHING,
    iterations: int = 25,
) -> Local:
    """sum_i weights_i f_i(x, y*(x)) descended from R points, weights (R, m), by Newton steps with
    |curvature|.

    A point stops when a step promises less than a thousandth of what it has gained so far: the ends
    of a front are needed to that accuracy, and one that lies at infinity is not to be chased.
    """
    first = (weights * at.f).sum(1)
    for _ in range(iterations):
        value = (weights * at.f).sum(1)
        slope = torch.einsum("rm,rmn->rn", weights, at.slope)
        metric, _ = inverse(torch.einsum("rm,rmij->rij", weights, at.bend), 1e-6)
        step = -(metric @ slope[..., None])[..., 0]
        promise = -0.5 * (slope * step).sum(1)
        active = promise > 1e-3 * (first - value) + 1e-9 * value.abs()
        if not bool(active.any()):
            break
        length, done = torch.ones_like(value), ~active
        x, y = at.x, at.y
        for _ in range(10):
            move = torch.where(done, 0.0, length)[:, None] * step
            trial_x, trial_y = at.x + move, at.y + (at.follow @ move[..., None])[..., 0]
            trees = as_trees(trial_x, like[0]), as_trees(trial_y, like[1])
            lower = envelope.solve_lower(problem, *trees, tol=1e-9, max_iter=20)
            solved = tree.ravel(lower.y, batch_dims=1).double()
            new = (weights * _values(problem, trees[0], lower.y)).sum(1)
            # Where the lower level is not solved the objectives are not those of any answer.
            good = ~done & lower.converged & (new <= value - 2e-4 * length * promise)
            x, y = torch.where(good[:, None], trial_x, x), torch.where(good[:, None], solved, y)
            done = done | good
            if bool(done.all()):
                break
            length = torch.where(done, length, 0.4 * length)
        if not bool((x != at.x).any()):
            break
        at = look(problem, as_trees(x, like[0]), as_trees(y, like[1]), kept)
    return at


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one: `torch.equal` takes single precision for double, and fails
    between devices.
    """
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def as_trees(flat: Tensor, like: Tree) -> Tree:
    """Rows (R, n) as a tree with a first axis R, in the shapes and dtype of `like`."""
    dtype = tree.first_leaf(like).dtype
    return tree.unravel(flat.to(dtype), like)


def _values(problem: Problem, x: Tree, y: Tree) -> Tensor:
    batch = problem.batch("upper", "full")
    with torch.no_grad():
        return (
            torch.func.vmap(lambda a, b: problem.upper(a, b, batch))(x, y)
            .double()
            .nan_to_num(nan=torch.inf)
        )


def extremes(
    problem: Problem, at: Local, like: tuple[Tree, Tree], kept: Kept
) -> tuple[Local, Tensor, Tensor]:
    """The ends of the front seen from one point: a minimiser of each f_i (m of them), the ideal
    point and the extent (m,).

    Among minimisers of f_i one that serves the others is taken, by a second pass that counts them a
    little.
    """
    m = at.f.shape[1]
    eye = torch.eye(m, dtype=torch.float64, device=at.f.device)
    ends = minimise(problem, eye, rows(at, [0] * m), like, kept)
    extent = _extent(ends, at)
    ends = minimise(problem, eye / extent + 2e-3 / extent, ends, like, kept)
    return ends, ends.f.amin(0), _extent(ends, at)


def _extent(ends: Local, start: Local) -> Tensor:
    """From the best to the worst value of each objective at the ends, (m,); where these agree, how
    far the start is away, or its size.
    """
    best, worst = ends.f.amin(0), ends.f.amax(0)
    extent, away, size = worst - best, start.f[0] - best, ends.f.abs().amax(0)
    small = 1e-6 * torch.maximum(away.abs(), 1e-3 * size)
    extent = torch.where(extent > small, extent, away.abs())
    extent = torch.where(extent > 1e-9 * size, extent, size)
    return torch.where(extent > 0, extent, torch.ones_like(extent))


def spectrum(root: Tensor, A: Tensor) -> Tensor:
    """Eigenvalues of R' A R, (..., n)."""
    turned = root.mT @ A @ root
    B = _once(turned)
    good = B.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(good[..., None, None], B, 0.0))
    return torch.where(good[..., None], values, torch.nan).expand(turned.shape[:-1])
