"""Small quadratic programs over the simplex: min-norm weights and their relatives, exact, batched, without host sync.

Every multi-gradient method asks the same question of the Gram matrix G of its m gradients: which weights lam >= 0 with
sum lam = 1 minimise lam^T G lam - b^T lam?  With m <= 8 every face of the simplex is solved (2^m - 1 tiny systems side by
side) and the point with the smallest optimality gap is taken; a larger m goes to an interior-point method with a fixed
number of iterations.  Nothing here branches on a value, so all of it works under `vmap` and `torch.compile`.

Shapes: G is (..., m, m) and vectors are (..., m), with any leading batch axes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Weights", "kinked", "project", "projected_steps", "quadratic", "quadratic_slack"]

#: the largest m whose 2^m - 1 faces are enumerated
ENUMERATED = 8
#: enough for a gap of 1e-12 from the analytic start, whatever the data; later iterations leave the point alone
INTERIOR_ITERATIONS = 40


class Weights(NamedTuple):
    """Weights lam (..., m) on the simplex, and how far from optimal they are: `slack` (...), relative to the problem's scale.

    The slack is max over the simplex of <d, lam - lam'>, d a (sub)gradient at lam: zero exactly where the KKT conditions hold,
    and an upper bound on what the objective could still fall by.
    """

    weights: Tensor
    slack: Tensor


def project(v: Tensor) -> Tensor:
    """The Euclidean projection on the simplex: max(v - tau, 0) with tau = max_k (sum of the k largest entries - 1)/k."""
    largest = torch.sort(v, dim=-1, descending=True).values
    k = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    tau = ((largest.cumsum(-1) - 1) / k).amax(-1, keepdim=True)
    return (v - tau).clamp_min(0)


def projected_steps(gram: Tensor, linear: Tensor, start: Tensor, steps: int, lr: Tensor | float) -> Weights:
    """`steps` projected gradient steps lam <- P(lam - lr (2 G lam - b)): an approximation whose slack says how good it is.

    Args:
        gram: G, (..., m, m).
        linear: b, (..., m).
        start: the first lam, (..., m).
    """
    lam = start
    for _ in range(steps):
        lam = project(lam - lr * _gradient(gram, linear, lam))
    return Weights(lam, quadratic_slack(gram, linear, lam))


def quadratic(gram: Tensor, linear: Tensor | None = None) -> Weights:
    """argmin over the simplex of lam^T G lam - b^T lam; without b the min-norm weights of MGDA.

    G must be positive semidefinite and may be singular (then one of several minimisers is returned).

    Args:
        gram: G, (..., m, m).
        linear: b, (..., m), or None for zero.

    >>> gradients = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> quadratic(gradients @ gradients.T).weights
    tensor([0.2000, 0.8000])
    """
    b = torch.zeros_like(gram[..., 0]) if linear is None else linear - linear.amax(-1, keepdim=True)  # a shift changes nothing
    if gram.shape[-1] > ENUMERATED:
        ones = torch.ones_like(b).unsqueeze(-2)
        lam, _ = _interior_point(2 * gram, -b, ones, ones[..., 0])
        return Weights(lam, quadratic_slack(gram, b, lam))
    order, back = _by_norm(gram)
    g, b = _permuted(gram, order), torch.gather(b, -1, order)
    faces = _faces(gram)
    matrix, pull = _on_faces(g, faces)
    mu = _solve_positive(matrix, (pull + 0.5 * faces.inner * _difference(b, faces.reference)).unsqueeze(-1)).squeeze(-1)
    lam = _from_face(mu, faces)
    best, smallest = _pick(lam, _gap(2 * lam @ g - b.unsqueeze(-2), lam))
    return Weights(torch.gather(best, -1, back), smallest / _scale(gram, b))


def quadratic_slack(gram: Tensor, linear: Tensor, lam: Tensor) -> Tensor:
    """The relative optimality gap (...) of given weights in lam^T G lam - b^T lam."""
    return _gap(_gradient(gram, linear, lam), lam) / _scale(gram, linear - linear.amax(-1, keepdim=True))


def kinked(gram: Tensor, along: Tensor, level: Tensor) -> Weights:
    """FORUM's weights: argmin over the simplex of h(lam), quadratic on either side of the hyperplane <a, lam> = kappa.

    h(lam) = lam^T G lam / 2                                   where <a, lam> >= kappa,
           = lam^T (G - a a^T) lam / 2 + kappa <a, lam> / 2    where <a, lam> <= kappa.

    The two agree on the hyperplane, where the slope jumps up by kappa/2: h is convex with a kink.  So the minimiser is that
    of one side, if it lies on that side, or the minimiser within the hyperplane.

    Args:
        gram: G, (..., m, m), with G - a a^T positive semidefinite.
        along: a, (..., m).
        level: kappa >= 0, (...).
    """
    order, back = _by_norm(gram)
    g, a, kappa = _permuted(gram, order), torch.gather(along, -1, order), level[..., None, None]
    candidates = _kink_interior if gram.shape[-1] > ENUMERATED else _kink_faces
    above, below, within, multiplier = candidates(g, a, kappa)

    # A subgradient is G lam - w a, with w = 0 above the hyperplane, <a, lam> - kappa/2 below, and anything in [0, kappa/2]
    # on it.  A point on the wrong side pays for its distance with a slope that bounds what it could hide.
    at_below, at_within = below @ a.unsqueeze(-1), within @ a.unsqueeze(-1)
    judged = [
        (above, torch.zeros_like(at_below), (kappa - above @ a.unsqueeze(-1)).clamp_min(0)),
        (below, at_below - 0.5 * kappa, (at_below - kappa).clamp_min(0)),
        (within, torch.minimum(multiplier.clamp_min(0), 0.5 * kappa), (at_within - kappa).abs()),
    ]
    steep = a.abs().amax(-1, keepdim=True) + level.unsqueeze(-1)
    slacks = [_gap(lam @ g - w * a.unsqueeze(-2), lam) + wrong.squeeze(-1) * steep for lam, w, wrong in judged]
    best, smallest = _pick(torch.cat([above, below, within], dim=-2), torch.cat(slacks, dim=-1))
    return Weights(torch.gather(best, -1, back), smallest / _scale(gram, level.unsqueeze(-1) * along))


def _kink_faces(g: Tensor, a: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """On every face: the minimisers above, below and within the hyperplane (..., F, m), and the last one's multiplier (..., F, 1)."""
    faces = _faces(g)
    slope = faces.inner * _difference(a, faces.reference)
    matrix, pull = _on_faces(g, faces)
    # Within the hyperplane mu = R^-1 h + w R^-1 k, w such that <k, mu> = kappa - a_r; R of G serves also where that of
    # G - a a^T is singular across the hyperplane.
    solved = _solve_positive(matrix, torch.stack([pull, slope], dim=-1))
    above, toward = solved[..., 0], solved[..., 1]
    missing = kappa - faces.reference @ a.unsqueeze(-1) - (slope * above).sum(-1, keepdim=True)
    reach = (slope * toward).sum(-1, keepdim=True)
    multiplier = torch.where(reach > 0, missing / torch.where(reach > 0, reach, 1), 0)
    matrix, pull = _on_faces(g - a.unsqueeze(-1) * a.unsqueeze(-2), faces)
    below = _solve_positive(matrix, (pull - 0.5 * kappa * slope).unsqueeze(-1)).squeeze(-1)
    above, below, within = (_from_face(mu, faces) for mu in (above, below, above + multiplier * toward))
    return above, below, within, multiplier


def _kink_interior(g: Tensor, a: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The minimisers over the simplex above, below and within the hyperplane (..., 1, m), and the last one's multiplier (..., 1, 1)."""
    level = kappa.squeeze(-1)
    zero, one, ones = torch.zeros_like(a), torch.ones_like(level), torch.ones_like(a).unsqueeze(-2)
    above, _ = _interior_point(g, zero, ones, one)
    below, _ = _interior_point(g - a.unsqueeze(-1) * a.unsqueeze(-2), 0.5 * level * a, ones, one)
    within, duals = _interior_point(g, zero, torch.cat([ones, a.unsqueeze(-2)], dim=-2), torch.cat([one, level], dim=-1))
    return above.unsqueeze(-2), below.unsqueeze(-2), within.unsqueeze(-2), duals[..., 1:].unsqueeze(-2)


class _Faces(NamedTuple):
    """The F = 2^m - 1 faces: their members but for the reference, without index 0 (F, m - 1), and the reference one-hot (F, m).

    The reference is the first member; with objectives sorted by norm it is the shortest gradient, so that small weights of
    long gradients are computed as such and not as one minus the rest.  Index 0 is a reference wherever it is a member.
    """

    inner: Tensor
    reference: Tensor


def _faces(like: Tensor) -> _Faces:
    m = like.shape[-1]
    number = torch.arange(1, 2**m, device=like.device).unsqueeze(-1)
    bit = torch.arange(m, device=like.device)
    reference = ((number & -number) >> bit) & 1
    return _Faces((((number >> bit) & 1) - reference)[:, 1:].to(like.dtype), reference.to(like.dtype))


def _difference(v: Tensor, reference: Tensor) -> Tensor:
    """v_i - v_r for i >= 1 on every face, (..., F, m - 1)."""
    return v[..., None, 1:] - reference @ v.unsqueeze(-1)


def _on_faces(g: Tensor, faces: _Faces) -> tuple[Tensor, Tensor]:
    """lam = e_r + sum mu_i (e_i - e_r) turns lam^T G lam / 2 into mu^T R mu / 2 - h^T mu: R (..., F, m-1, m-1) and h (..., F, m-1).

    R_ij = <g_i - g_r, g_j - g_r>, the identity outside the face; h_i = <g_r - g_i, g_r>, zero outside.
    """
    inner, reference = faces
    across = reference @ g
    corner = (across * reference).sum(-1, keepdim=True)
    row = across[..., 1:]
    matrix = g[..., None, 1:, 1:] - row.unsqueeze(-1) - row.unsqueeze(-2) + corner.unsqueeze(-1)
    member = inner.unsqueeze(-1) * inner.unsqueeze(-2)
    outside = torch.diag_embed(1 - inner)
    return member * matrix + outside, inner * (corner - row)


def _from_face(mu: Tensor, faces: _Faces) -> Tensor:
    """lam from mu, brought onto the simplex: negative entries are cut and the rest rescaled (their sum is then at least 1)."""
    tail = torch.nn.functional.pad(mu, (1, 0))
    lam = (tail + faces.reference * (1 - mu.sum(-1, keepdim=True))).clamp_min(0)
    return lam / lam.sum(-1, keepdim=True)


def _solve_positive(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Solve many small positive semidefinite systems by elimination: matrix (..., k, k), rhs (..., k, r).

    Such matrices need no pivoting.  An index whose pivot is rounding of its diagonal entry depends on the earlier ones;
    its unknown is set to zero, which is the solution of a smaller face.
    """
    k = matrix.shape[-1]
    rounding = 8 * torch.finfo(matrix.dtype).eps
    table = torch.cat([matrix, rhs], dim=-1)
    pivots = []
    for i in range(k):
        pivot = table[..., i, i]
        pivots.append(torch.where(pivot > rounding * matrix[..., i, i], pivot, torch.inf))
        column = torch.cat([table[..., :i, i], torch.zeros_like(table[..., :1, i]), table[..., i + 1 :, i]], dim=-1)
        table = table - (column / pivots[-1].unsqueeze(-1)).unsqueeze(-1) * table[..., i : i + 1, :]
    return table[..., k:] / torch.stack(pivots, dim=-1).unsqueeze(-1) if k else rhs


def _interior_point(hessian: Tensor, linear: Tensor, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """min z^T Q z / 2 + q^T z over z >= 0 with E z = e: z (..., n), scaled to sum 1, and the multipliers of the rows (..., k).

    Newton steps towards z s = target with the target a tenth of the present mean (no predictor: it stalls at times where a
    fixed rate does not), a fixed number of them; a run that has converged stays where it is.
    """
    tiny, eps = torch.finfo(hessian.dtype).tiny, torch.finfo(hessian.dtype).eps
    scale = torch.maximum(hessian.abs().amax((-2, -1)), linear.abs().amax(-1)).clamp_min(tiny).unsqueeze(-1)
    hessian, linear = hessian / scale.unsqueeze(-1), linear / scale
    ridge = 4 * linear.shape[-1] * eps  # the rounding of a singular Q; it slows the last steps and does not move their target
    z = torch.full_like(linear, 1 / linear.shape[-1])
    s = torch.ones_like(z)
    dual = torch.zeros_like(values)
    for _ in range(INTERIOR_ITERATIONS):
        off_dual = (hessian @ z.unsqueeze(-1)).squeeze(-1) + linear - s - (dual.unsqueeze(-2) @ rows).squeeze(-2)
        off_rows = values - (rows @ z.unsqueeze(-1)).squeeze(-1)
        mean = (z * s).mean(-1, keepdim=True)
        factor = torch.linalg.cholesky_ex(hessian + torch.diag_embed(s / z + ridge)).L
        free = torch.cholesky_solve((0.1 * mean / z - s - off_dual).unsqueeze(-1), factor)
        from_rows = torch.cholesky_solve(rows.mT, factor)
        d_dual = torch.linalg.solve_ex(rows @ from_rows, off_rows.unsqueeze(-1) - rows @ free)[0]
        d_z = (free + from_rows @ d_dual).squeeze(-1)
        d_s = (0.1 * mean - s * d_z) / z - s
        step = torch.minimum(_to_boundary(z, d_z), _to_boundary(s, d_s))
        running = (mean > 16 * eps) & torch.isfinite(d_z + d_s).all(-1, keepdim=True)
        z = torch.where(running, z + step * d_z, z)
        s = torch.where(running, s + step * d_s, s)
        dual = torch.where(running, dual + step * d_dual.squeeze(-1), dual)
    return z / z.sum(-1, keepdim=True), dual * scale


def _to_boundary(v: Tensor, direction: Tensor) -> Tensor:
    """The longest step up to 1 that stays clear of v + step * direction = 0."""
    return (0.95 * torch.where(direction < 0, -v / direction, torch.inf).amin(-1, keepdim=True)).clamp_max(1)


def _by_norm(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The order of growing norm, and the order that undoes it."""
    order = torch.argsort(gram.diagonal(dim1=-2, dim2=-1), dim=-1, stable=True)
    return order, torch.argsort(order, dim=-1)


def _permuted(gram: Tensor, order: Tensor) -> Tensor:
    rows = torch.gather(gram, -2, order.unsqueeze(-1).expand(gram.shape))
    return torch.gather(rows, -1, order.unsqueeze(-2).expand(gram.shape))


def _gradient(gram: Tensor, linear: Tensor, lam: Tensor) -> Tensor:
    return 2 * (gram @ lam.unsqueeze(-1)).squeeze(-1) - linear


def _gap(gradient: Tensor, lam: Tensor) -> Tensor:
    return (lam * gradient).sum(-1) - gradient.amin(-1)


def _pick(points: Tensor, slacks: Tensor) -> tuple[Tensor, Tensor]:
    """Of candidates (..., F, m) the one with the smallest slack (..., F)."""
    smallest, index = slacks.min(-1)
    return torch.gather(points, -2, index[..., None, None].expand(*index.shape, 1, points.shape[-1])).squeeze(-2), smallest


def _scale(gram: Tensor, linear: Tensor) -> Tensor:
    largest = torch.maximum(gram.abs().amax((-2, -1)), linear.abs().amax(-1))
    return largest.clamp_min(torch.finfo(gram.dtype).tiny)
