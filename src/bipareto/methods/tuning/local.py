"""Second-order pictures of points at lower solutions, and what follows from them: the ends of a
front, and coordinates for a run.

For problems small enough that Hessians can be written down.  All of it is float64, with points side
by side on a first axis R.  None of it depends on units: a matrix is divided by its diagonal before
its eigenvalues are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import envelope
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: eigenvalues of an equilibrated matrix below this share of the largest are rounding
FLOOR = {torch.float64: 1e-10, torch.float32: 1e-4}
#: the penalty's curvature in y over that of the scalarized objectives
STRONGER = 5.0


class Local(NamedTuple):
    """R points with y at a lower solution.

    Attributes:
        x, y: flat, (R, n_x) and (R, n_y).
        f: objectives (R, m).
        f_x, f_y: their gradients (R, m, n_x) and (R, m, n_y).
        g_yy, g_yx: (R, n_y, n_y) and (R, n_y, n_x).
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
    follow: Tensor
    slope: Tensor
    bend: Tensor
    f_yy: Tensor


def settle(problem: Problem, x: Tree, y: Tree, tol: float = 1e-9, max_iter: int = 50) -> Tree:
    """y moved to the lower solution near it; x and y have a first axis R."""
    return envelope.solve_lower(problem, x, y, tol=tol, max_iter=max_iter).y


def look(problem: Problem, x: Tree, y: Tree) -> Local:
    """The picture at (x, y), trees with a first axis R; y is taken as it is."""
    like = tree.select(x, 0), tree.select(y, 0)
    flat_x, flat_y = tree.ravel(x, batch_dims=1), tree.ravel(y, batch_dims=1)
    n = flat_x.shape[1]
    lower_batch, upper_batch = problem.batch("lower", "full"), problem.batch("upper", "full")

    def lower(v: Tensor) -> Tensor:
        a, b = tree.unravel(v, like)
        return problem.lower(a, b, lower_batch)

    def upper(v: Tensor) -> Tensor:
        a, b = tree.unravel(v, like)
        return problem.upper(a, b, upper_batch)

    jacrev, vmap = torch.func.jacrev, torch.func.vmap
    both = torch.cat([flat_x, flat_y], 1)
    with torch.no_grad():
        f = vmap(upper)(both).double()
        J = vmap(jacrev(upper))(both).double()
        curvature = vmap(jacrev(jacrev(upper)))(both).double()
        g = vmap(jacrev(torch.func.grad(lower)))(both).double()
    g_yy, g_yx = g[:, n:, n:], g[:, n:, :n]
    follow = -inverse(g_yy, FLOOR[flat_x.dtype], flat=True)[0] @ g_yx
    eye = torch.eye(n, dtype=torch.float64, device=both.device).expand(len(both), n, n)
    along = torch.cat([eye, follow], 1)[:, None]
    return Local(
        x=flat_x.double(),
        y=flat_y.double(),
        f=f,
        f_x=J[..., :n],
        f_y=J[..., n:],
        g_yy=g_yy,
        g_yx=g_yx,
        follow=follow,
        slope=J[..., :n] + J[..., n:] @ follow,
        bend=along.mT @ curvature @ along,
        f_yy=curvature[..., n:, n:],
    )


def same_valley(problem: Problem, x: Tree, y: Tree, solved: Tree) -> Tensor:
    """Whether g(x, .) bends upwards from y towards the lower solution found from there, at least a
    quarter as much as at that solution: a mask (R,) for trees with a first axis R.
    """
    like = tree.select(y, 0)
    batch = problem.batch("lower", "full")

    def bend(x_: Tree, at: Tensor, along: Tensor) -> Tensor:
        slope = torch.func.grad(lambda v: problem.lower(x_, tree.unravel(v, like), batch))
        return along @ torch.func.vjp(slope, at)[1](along)[0]

    flat, end = tree.ravel(y, batch_dims=1), tree.ravel(solved, batch_dims=1)
    with torch.no_grad():
        here = torch.func.vmap(bend)(x, flat, end - flat)
        there = torch.func.vmap(bend)(x, end, end - flat)
    return here >= 0.25 * there


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
    good = A.isfinite().all(-1).all(-1)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    values, vectors = torch.linalg.eigh(torch.where(good[..., None, None], A, eye))
    return torch.where(good[..., None], values, torch.nan), vectors


def absolute(A: Tensor) -> Tensor:
    """|A| of symmetric matrices (..., n, n) in equilibrated units."""
    scale = _equilibrator(A)
    values, vectors = _eigh(scale[..., :, None] * A * scale[..., None, :])
    vectors = vectors / scale[..., :, None]
    return (vectors * values.abs()[..., None, :]) @ vectors.mT


def minimise(
    problem: Problem, weights: Tensor, at: Local, like: tuple[Tree, Tree], iterations: int = 25
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
        at = look(problem, as_trees(x, like[0]), as_trees(y, like[1]))
    return at


def as_trees(flat: Tensor, like: Tree) -> Tree:
    """Rows (R, n) as a tree with a first axis R, in the shapes and dtype of `like`."""
    dtype = tree.first_leaf(like).dtype
    return torch.func.vmap(lambda row: tree.unravel(row, like))(flat.to(dtype))


def _values(problem: Problem, x: Tree, y: Tree) -> Tensor:
    batch = problem.batch("upper", "full")
    with torch.no_grad():
        return (
            torch.func.vmap(lambda a, b: problem.upper(a, b, batch))(x, y)
            .double()
            .nan_to_num(nan=torch.inf)
        )


def extremes(problem: Problem, at: Local, like: tuple[Tree, Tree]) -> tuple[Local, Tensor, Tensor]:
    """The ends of the front seen from one point: a minimiser of each f_i (m of them), the ideal
    point and the extent (m,).

    Among minimisers of f_i one that serves the others is taken, by a second pass that counts them a
    little.
    """
    m = at.f.shape[1]
    eye = torch.eye(m, dtype=torch.float64, device=at.f.device)
    ends = minimise(problem, eye, rows(at, [0] * m), like)
    extent = _extent(ends, at)
    ends = minimise(problem, eye / extent + 2e-3 / extent, ends, like)
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


class Fit(NamedTuple):
    """Coordinates of R runs, P_x, P_y and W, and the penalty (R,) they are made for."""

    x: Tensor
    y: Tensor
    follow: Tensor
    penalty: Tensor


def fit(
    own: Local,
    others: Sequence[Local],
    *,
    extent: Tensor,
    mu: float,
    gamma: float,
    largest: float,
    penalty: Tensor,
    pace: float,
    floor: float,
    kept: Tensor | None = None,
) -> Fit:
    """Coordinates for runs at `own` that pass by `others`.

    - P_y makes g_yy at `own` the identity, and is shrunk where a curvature met at `others` exceeds
      `largest`.
    - The penalty c is at least so strong that F/c curves g's valley by no more than a fifth.
    - P_x = (pace K sum E'E + M/c)^-1.  M is the curvature of F along the lower solutions; E = g_yx
      + g_yy W is what is left of the coupling when y goes along with x, zero at `own`; and K =
      gamma/(1 + gamma L) is what the envelope makes of it.  A step of length `pace` then goes that
      share of x's way, and less where y could not follow.

    Args:
        extent: of the objectives, (m,).
        mu, gamma: smoothing, and the envelope's gamma in these coordinates.
        largest: L, the curvature in these coordinates that the steps of y allow for.
        penalty: c (R,) at which the coordinates are used.
        floor: eigenvalues of g_yy below this share of the largest are rounding.
        kept: P_y (R, n_y, n_y) that is not to be made anew.
    """
    places = [own, *others]
    m, unit = own.f.shape[1], extent[:, None]
    if kept is None:
        root = inverse(own.g_yy, floor, flat=True)[1]
        met = torch.stack([_spectrum(root, at.g_yy).abs().amax(-1) for at in places]).amax(0)
        root = root / (met / largest).clamp_min(1.0).sqrt()[:, None, None]
    else:
        root = torch.linalg.cholesky(kept)

    def sharp(slopes: Tensor) -> Tensor:
        """mu/4 times the outer products of differences: what the softmax adds to F's curvature."""
        rest = _differences(slopes)
        return 0.25 * mu / m**2 * rest.mT @ rest

    tilts = [
        _spectrum(root[:, None], at.f_yy / unit[..., None]).abs().amax((-1, -2))
        + sharp((at.f_y / unit) @ root).diagonal(dim1=-2, dim2=-1).sum(-1)
        for at in places
    ]
    penalty = torch.maximum(penalty, STRONGER * torch.stack(tilts).amax(0))
    left = torch.stack([root.mT @ (at.g_yx + at.g_yy @ own.follow) for at in places])
    stiff = pace * gamma / (1 + gamma * largest) * (left.mT @ left).sum(0)
    bends = torch.stack(
        [
            (absolute(at.bend) / unit[..., None]).mean(1)
            + sharp((at.f_x + at.f_y @ own.follow) / unit)
            for at in places
        ]
    )
    c = penalty[:, None, None]
    metric, root_x = inverse(stiff + bends.mean(0) / c, 1e-9)
    top = torch.stack([_spectrum(root_x, stiff + M / c).amax(-1) for M in bends]).amax(0)
    top = torch.where(top > 0, top, torch.ones_like(top))
    return Fit(metric / top[:, None, None], root @ root.mT, own.follow, penalty)


def _spectrum(root: Tensor, A: Tensor) -> Tensor:
    """Eigenvalues of R' A R, (..., n)."""
    B = root.mT @ A @ root
    good = B.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(good[..., None, None], B, 0.0))
    return torch.where(good[..., None], values, torch.nan)


def _differences(values: Tensor) -> Tensor:
    """values_i - values_j for all i < j of (R, m, n), shape (R, pairs, n); zeros for m = 1."""
    m = values.shape[1]
    i, j = torch.triu_indices(m, m, 1)
    return values[:, i] - values[:, j] if m > 1 else torch.zeros_like(values)
