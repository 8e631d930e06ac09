"""Small quadratic programs over the simplex: min-norm weights and their relatives, exact, batched,
without host sync.

Every multi-gradient method asks the same question of the Gram matrix G of its m gradients: which
weights lam >= 0 with sum lam = 1 minimise lam^T G lam - b^T lam?  With m <= 8 every face of the
simplex is solved (2^m - 1 tiny systems side by side) and the point with the smallest optimality gap
is taken; a larger m goes to an interior-point method with a fixed number of iterations.  Nothing
here branches on a value, so all of it works under `vmap` and `torch.compile`.

Shapes: G is (..., m, m) and vectors are (..., m), with any leading batch axes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

#: the largest m whose 2^m - 1 faces are enumerated
ENUMERATED = 8
#: enough for a gap of 1e-12 from the analytic start, whatever the data; later iterations leave the
#: point alone
INTERIOR_ITERATIONS = 40


class Weights(NamedTuple):
    """Weights lam (..., m) on the simplex, and how far from optimal they are: `slack` (...),
    relative to the problem's scale.

    The slack is max over the simplex of <d, lam - lam'>, d a (sub)gradient at lam: zero exactly
    where the KKT conditions hold, and an upper bound on what the objective could still fall by.
    """

    weights: Tensor
    slack: Tensor


def project(v: Tensor) -> Tensor:
    """The Euclidean projection on the simplex: max(v - tau, 0) with tau = max_k (sum of the k
    largest entries - 1)/k.
    """
    largest = torch.sort(v, dim=-1, descending=True).values
    k = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    tau = ((largest.cumsum(-1) - 1) / k).amax(-1, keepdim=True)
    return (v - tau).clamp_min(0)


def projected_steps(
    gram: Tensor, linear: Tensor, start: Tensor, steps: int, lr: Tensor | float
) -> Weights:
    """`steps` projected gradient steps lam <- P(lam - lr (2 G lam - b)): an approximation whose
    slack says how good it is.

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

    G must be positive semidefinite and may be singular (then one of several minimisers is
    returned).

    Args:
        gram: G, (..., m, m).
        linear: b, (..., m), or None for zero.

    >>> gradients = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> quadratic(gradients @ gradients.T).weights
    tensor([0.2000, 0.8000])
    """
    b = (
        None if linear is None else linear - linear.amax(-1, keepdim=True)
    )  # a shift changes nothing
    if gram.shape[-1] > ENUMERATED:
        q = torch.zeros_like(gram[..., 0]) if b is None else -b
        ones = torch.ones_like(q).unsqueeze(-2)
        points = _interior_point(2 * gram, q, ones, ones[..., 0])[0].unsqueeze(-2)
    else:
        faces = _faces(gram)
        matrix, pull = _on_faces(gram, faces)
        rhs = pull if b is None else pull + 0.5 * faces.inner * _difference(b, faces)
        points = _from_face(_solved(matrix, rhs.unsqueeze(-1)).squeeze(-1), faces)
    gradient = 2 * points @ gram
    return _best(
        points, _gap(gradient if b is None else gradient - b.unsqueeze(-2), points), _scale(gram, b)
    )


def quadratic_slack(gram: Tensor, linear: Tensor, lam: Tensor) -> Tensor:
    """The relative optimality gap (...) of given weights in lam^T G lam - b^T lam."""
    return _gap(_gradient(gram, linear, lam), lam) / _scale(
        gram, linear - linear.amax(-1, keepdim=True)
    )


def kinked(gram: Tensor, along: Tensor, level: Tensor) -> Weights:
    """FORUM's weights: argmin over the simplex of h(lam), quadratic on either side of the
    hyperplane <a, lam> = kappa.

    h(lam) = lam^T G lam / 2                                   where <a, lam> >= kappa,
           = lam^T (G - a a^T) lam / 2 + kappa <a, lam> / 2    where <a, lam> <= kappa.

    The two agree on the hyperplane, where the slope jumps up by kappa/2: h is convex with a kink.
    So the minimiser is that of one side, if it lies on that side, or the minimiser within the
    hyperplane.

    Args:
        gram: G, (..., m, m), with G - a a^T positive semidefinite.
        along: a, (..., m).
        level: kappa >= 0, (...).
    """
    a, kappa = along.unsqueeze(-1), level[..., None, None]
    candidates = _kink_interior if gram.shape[-1] > ENUMERATED else _kink_faces
    above, below, within, multiplier = candidates(gram, along, kappa)
    # A subgradient is G lam - w a, with w = 0 above the hyperplane, <a, lam> - kappa/2 below, and
    # anything in [0, kappa/2] on it.  A point on the wrong side pays for its distance with a slope
    # that bounds what it could hide.
    points = torch.cat([above, below, within], dim=-2)
    over_above, over_below, over_within = ((points @ a) - kappa).chunk(3, dim=-2)
    w = torch.cat(
        [
            torch.zeros_like(over_above),
            over_below + 0.5 * kappa,
            torch.minimum(multiplier.clamp_min(0), 0.5 * kappa),
        ],
        dim=-2,
    )
    wrong = torch.cat(
        [(-over_above).clamp_min(0), over_below.clamp_min(0), over_within.abs()], dim=-2
    ).squeeze(-1)
    steep = along.abs().amax(-1, keepdim=True) + level.unsqueeze(-1)
    return _best(
        points,
        _gap(points @ gram - w * a.mT, points) + wrong * steep,
        _scale(gram, level.unsqueeze(-1) * along),
    )


def _kink_faces(g: Tensor, a: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """On every face: the minimisers above, below and within the hyperplane (..., F, m), and the
    last one's multiplier (..., F, 1).
    """
    faces = _faces(g)
    slope = faces.inner * _difference(a, faces)
    matrix, pull = _on_faces(g, faces)
    # Within the hyperplane mu = R^-1 h + w R^-1 k, w such that <k, mu> = kappa - a_r; R of G serves
    # also where that of G - a a^T is singular across the hyperplane.
    above, toward = _solved(matrix, torch.stack([pull, slope], dim=-1)).unbind(-1)
    missing = kappa - faces.reference @ a.unsqueeze(-1) - (slope * above).sum(-1, keepdim=True)
    multiplier = torch.nan_to_num(missing / (slope * toward).sum(-1, keepdim=True), 0, 0, 0)
    matrix, pull = _on_faces(g - a.unsqueeze(-1) * a.unsqueeze(-2), faces)
    below = _solved(matrix, (pull - 0.5 * kappa * slope).unsqueeze(-1)).squeeze(-1)
    return (
        _from_face(above, faces),
        _from_face(below, faces),
        _from_face(above + multiplier * toward, faces),
        multiplier,
    )


def _kink_interior(g: Tensor, a: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The minimisers over the simplex above, below and within the hyperplane (..., 1, m), and the
    last one's multiplier (..., 1, 1).
    """
    level = kappa.squeeze(-1)
    zero, one, ones = torch.zeros_like(a), torch.ones_like(level), torch.ones_like(a).unsqueeze(-2)
    above, _ = _interior_point(g, zero, ones, one)
    below, _ = _interior_point(g - a.unsqueeze(-1) * a.unsqueeze(-2), 0.5 * level * a, ones, one)
    within, duals = _interior_point(
        g, zero, torch.cat([ones, a.unsqueeze(-2)], dim=-2), torch.cat([one, level], dim=-1)
    )
    return (
        above.unsqueeze(-2),
        below.unsqueeze(-2),
        within.unsqueeze(-2),
        duals[..., 1:].unsqueeze(-2),
    )


class _Faces(NamedTuple):
    """The F = 2^m - 1 faces: members but for the first, the reference, (F, m - 1), and the
    reference one-hot (F, m).

    Index 0 is a reference wherever it is a member, so the others are counted from index 1.
    `member` marks the pairs of inner ones and `outside` is the identity on the rest, both (F, m -
    1, m - 1).
    """

    inner: Tensor
    reference: Tensor
    member: Tensor
    outside: Tensor


def _faces(like: Tensor) -> _Faces:
    # Constants of a few microseconds are worth keeping in a plain run; a graph under construction
    # keeps its own.
    build = _build_faces.__wrapped__ if torch.compiler.is_compiling() else _build_faces
    return build(like.shape[-1], like.dtype, like.device)


@lru_cache(maxsize=64)
def _build_faces(m: int, dtype: torch.dtype, device: torch.device) -> _Faces:
    number = torch.arange(1, 2**m, device=device).unsqueeze(-1)
    bit = torch.arange(m, device=device)
    reference = ((number & -number) >> bit) & 1
    inner = (((number >> bit) & 1) - reference)[:, 1:].to(dtype)
    outside = torch.eye(m - 1, dtype=dtype, device=device) * (1 - inner).unsqueeze(-1)
    return _Faces(inner, reference.to(dtype), inner.unsqueeze(-1) * inner.unsqueeze(-2), outside)


def _difference(v: Tensor, faces: _Faces) -> Tensor:
    """v_i - v_r for i >= 1 on every face, (..., F, m - 1)."""
    return v[..., None, 1:] - faces.reference @ v.unsqueeze(-1)


def _on_faces(g: Tensor, faces: _Faces) -> tuple[Tensor, Tensor]:
    """lam = e_r + sum mu_i (e_i - e_r) turns lam^T G lam / 2 into mu^T R mu / 2 - h^T mu: R (...,
    F, m-1, m-1) and h (..., F, m-1).

    R_ij = <g_i - g_r, g_j - g_r>, the identity outside the face; h_i = <g_r - g_i, g_r>, zero
    outside.
    """
    across = faces.reference @ g
    corner = (across * faces.reference).sum(-1, keepdim=True)
    row = across[..., 1:]
    pull = corner - row
    matrix = g[..., None, 1:, 1:] - row.unsqueeze(-1) + pull.unsqueeze(-2)
    return faces.member * matrix + faces.outside, faces.inner * pull


def _solved(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Many small systems side by side.  A singular one gives anything: its face holds nothing that
    a smaller face does not.
    """
    return torch.nan_to_num(torch.linalg.solve_ex(matrix, rhs)[0], 0, 0, 0)


def _from_face(mu: Tensor, faces: _Faces) -> Tensor:
    """lam from mu, brought onto the simplex: negative entries are cut and the rest rescaled (their
    sum is then at least 1).
    """
    tail = torch.nn.functional.pad(mu, (1, 0))
    lam = (tail + faces.reference * (1 - mu.sum(-1, keepdim=True))).clamp_min(0)
    return lam / lam.sum(-1, keepdim=True)


def _interior_point(
    hessian: Tensor, linear: Tensor, rows: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """min z^T Q z / 2 + q^T z over z >= 0 with E z = e: z (..., n), scaled to sum 1, and the
    multipliers of the rows (..., k).

    Newton steps towards z s = target with the target a tenth of the present mean (no predictor: it
    stalls at times where a fixed rate does not), a fixed number of them; a run that has converged
    stays where it is.
    """
    tiny, eps = torch.finfo(hessian.dtype).tiny, torch.finfo(hessian.dtype).eps
    scale = (
        torch.maximum(hessian.abs().amax((-2, -1)), linear.abs().amax(-1))
        .clamp_min(tiny)
        .unsqueeze(-1)
    )
    hessian, linear = hessian / scale.unsqueeze(-1), linear / scale
    ridge = (
        4 * linear.shape[-1] * eps
    )  # the rounding of a singular Q; it slows the last steps and does not move their target
    z = torch.full_like(linear, 1 / linear.shape[-1])
    s, identity = torch.ones_like(z), torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    dual = torch.zeros_like(values)
    for _ in range(INTERIOR_ITERATIONS):
        off_dual = (
            (hessian @ z.unsqueeze(-1)).squeeze(-1)
            + linear
            - s
            - (dual.unsqueeze(-2) @ rows).squeeze(-2)
        )
        off_rows = values - (rows @ z.unsqueeze(-1)).squeeze(-1)
        mean = (z * s).mean(-1, keepdim=True)
        factor = torch.linalg.cholesky_ex(hessian + identity * (s / z + ridge).unsqueeze(-1)).L
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
    return (
        0.95 * torch.where(direction < 0, -v / direction, torch.inf).amin(-1, keepdim=True)
    ).clamp_max(1)


def _gradient(gram: Tensor, linear: Tensor, lam: Tensor) -> Tensor:
    return 2 * (gram @ lam.unsqueeze(-1)).squeeze(-1) - linear


def _gap(gradient: Tensor, lam: Tensor) -> Tensor:
    return (lam * gradient).sum(-1) - gradient.amin(-1)


def _best(points: Tensor, slacks: Tensor, scale: Tensor) -> Weights:
    """Of candidates (..., F, m) the one with the smallest slack (..., F)."""
    smallest, index = torch.nan_to_num(slacks, torch.inf).min(-1)
    chosen = torch.gather(
        points, -2, index[..., None, None].expand(*index.shape, 1, points.shape[-1])
    )
    return Weights(chosen.squeeze(-2), smallest / scale)


def _scale(gram: Tensor, linear: Tensor | None) -> Tensor:
    """The size of the problem: of the longest gradient, squared, or of the linear term."""
    largest = gram.abs().amax((-2, -1))
    if linear is not None:
        largest = torch.maximum(largest, linear.abs().amax(-1))
    return largest.clamp_min(torch.finfo(gram.dtype).tiny)
