"""Numbers for MOMEHA from a few probes of the problem at its start, and from the step budget.

The rules, each with its reason:

- rho_y and L: extreme curvatures of g in y, by Lanczos on Hessian products at the start, at the
  lower solution near it, and around both.  gamma = 0.9/(2 rho_y) is as large as the theory allows
  (a small gamma makes the penalty weak and lower maxima attractive); for a convex lower level 4/L.
- alpha_theta = alpha_y, below 1/(L + 1/gamma) and below the bound 2 gamma^2 h/(1 - gamma^2 h^2) up
  to which a lower maximum of curvature -h repels, taken at h = rho_y/2.
- alpha_x: with y frozen the penalty's curvature in x is at most gamma ||g_xy||^2/(1 + gamma L), and
  the linearised iteration is stable up to about four times its inverse; we take the inverse where
  y's coordinates are coupled and curvatures change on the way, twice that where g is a sum over
  them, with the curvature of F/c in x alone added.  What F does through y*(x) does not enter: F/c +
  gap is descended in x and y jointly, and y's own step answers for it.
- c_0: F tilts the lower level by grad F/c.  Where the envelope's restoring force, seen along
  -grad_y f_i, peaks (it does when g is nonconvex), a stronger tilt carries y out of its basin for
  good.  Where y's coordinates are coupled, as in a network, c_0 keeps the tilt's length at that
  peak.  Where g is a sum over them each has a basin of its own: there the tilt's largest coordinate
  stays below a quarter of the peak per coordinate.
- p in c_t = c_0 (1 + t)^p: as large as the budget allows while x can still travel, sum_t
  alpha_x/c_t times the curvature of F along the lower solutions, in the directions of its
  objectives' gradients.
- mu: F varies over about 1/mu; mu = 4 m / mean(f - z) ties that to the objectives' own scale.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import curvature, envelope
from bipareto.methods.parts.scalarization import Fixed, Ideal, Tracked
from bipareto.methods.parts.schedule import Constant, Power
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.tree import Tree

#: gradient steps on g before the joint ones
WARMUP = 300
#: budget assumed when none is given
STEPS = 20_000
#: e-foldings that x must be able to travel towards its answer within the budget
TRAVEL = 8.0
#: products of a Hessian from which its extreme eigenvalues are estimated
LANCZOS = 12
#: products of the linear solves, at most
SOLVER_ITERATIONS = 15
#: distances at which the envelope's restoring force is looked at, in units of how far y travels
RADII = torch.logspace(-1.5, 0.5, 12, dtype=torch.float64)


def smoothing(problem: Problem, x0: Any, y0: Any) -> tuple[float, Ideal]:
    """(mu, z): mu = 4 m / mean(f - z) at (x0, y*(x0)), with z = 0 where the objectives are
    positive, else tracked below them.
    """
    x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    return _smoothing(_objectives(problem, x, _settle(problem, x, y)))


def _smoothing(f: Tensor) -> tuple[float, Ideal]:
    m = f.shape[0]
    if bool((f > 0).all()):
        return 4 * m / float(f.mean()), Fixed(0.0)
    margin = float(f.abs().mean()) or 1.0
    return 4 * m / margin, Tracked(margin)


def tune_momeha(
    problem: Problem,
    x0: Any,
    y0: Any,
    *,
    steps: int | None = None,
    seed: int = 0,
    longer: bool = True,
) -> dict[str, Any]:
    """Keyword arguments for `MOMEHA`; the module's text gives the rules.

    Args:
        longer: take the longer alpha_x where g is a sum over the coordinates of y.
    """
    x, y0 = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    problem.check(x, y0)
    y = _settle(problem, x, y0)
    lower = _curvature(problem, x, [y0, y], seed)
    L = max(lower.largest, 1e-12)
    rho = max(-lower.smallest, 0.0)
    gamma, alpha = envelope_steps(L, rho)
    f = _objectives(problem, x, y)
    mu, ideal = _smoothing(f)
    coupling = _coupling(problem, x, y, seed)
    # How far y answers to x, at most; a coordinate's pull through x counts as far as it moves y.
    response = coupling / L
    through_x = response / (response**2 + alpha)
    rows = _gradients(problem, x, y)
    split = tree.ravel(x).numel()
    alone = _separability(problem, x, y, seed)
    c0 = 1e-6
    for row in rows:
        tilt = tilt_size(row[split:], alone) + through_x * tilt_size(row[:split], alone)
        c0 = max(c0, tilt / _restoring_force(problem, x, y, gamma, lower.scale, row[split:], seed))
    stiffness = gamma * coupling**2 / (1 + gamma * L)
    # The scalarization's own curvature, at equal weights and at its steepest: L_F <= L_f/m + (mu/4)
    # ||difference||^2.
    curvature_F = _direct_curvature(problem, x, y, len(rows), seed) + 0.25 * mu * _spread(
        [row[:split] for row in rows]
    )
    alpha_x = (
        (1 + alone * longer) / (stiffness + 2 * curvature_F / c0)
        if stiffness + curvature_F > 0
        else alpha
    )
    # The least preference of a grid of eleven has weight 1/12: what F's curvature is worth there.
    power = _power(alpha_x / c0 * _reduced_curvature(problem, x, y, rows, L) / 12, steps or STEPS)
    return {
        "gamma": gamma,
        "mu": mu,
        "alpha_theta": alpha,
        "alpha_x": alpha_x,
        "alpha_y": alpha,
        "c": Power(c0, power),
        "ideal": ideal,
        "warmup": WARMUP,
    }


def envelope_steps(L: float, rho: float, unit: float | None = None) -> tuple[float, float]:
    """gamma, and alpha_theta = alpha_y, for curvatures of g in y between -rho and L.

    Negative curvature counts from a hundredth of `unit` on, the curvature at the lower solution; of
    L, where that is None.  With a unit, gamma L = 4 says that there is none.
    """
    counts = rho > 0.01 * (L if unit is None else unit)
    gamma = min(0.45 / rho if counts else math.inf, (3.6 if counts and unit else 4) / L)
    alpha = 0.8 / (L + 1 / gamma)
    if counts:
        h = rho / 2
        alpha = min(alpha, 0.8 * 2 * gamma**2 * h / (1 - (gamma * h) ** 2))
    return gamma, alpha


def _power(rate: float, steps: int) -> float:
    """The largest p <= 0.45 with sum_t rate (1 + t)^-p >= TRAVEL, by bisection; at least 0.1, and
    1/4 when the rate is unknown.
    """
    if not rate > 0:
        return 0.25
    low, high = 0.1, 0.45

    def travel(p: float) -> float:
        return rate * steps ** (1 - p) / (1 - p)

    if travel(high) >= TRAVEL:
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if travel(middle) >= TRAVEL else (low, middle)
    return low


def _reduced_curvature(problem: Problem, x: Tree, y: Tree, rows: list[Tensor], L: float) -> float:
    """The smallest curvature of an x -> f_i(x, y*(x)) along the gradient of one of them: the ways
    that x will go first.

    Along v the lower solution moves by w with g_yy w = -g_yx v; the curvature of f_i along (v, w)
    leaves out the bending of y*. g_yy is shifted by 1e-3 L, so that directions in which the lower
    level is flat do not run away.

    Args:
        rows: grad f_i in the flat (x, y).
    """
    both, split = tree.ravel((x, y)), tree.ravel(x).numel()
    lower = curvature.hessian(curvature.lower_in_both(problem, x, y), both)
    still_x, still_y = torch.zeros_like(both[:split]), torch.zeros_like(both[split:])

    def solve(b: Tensor) -> Tensor:
        return _conjugate_gradients(
            lambda p: lower(torch.cat([still_x, p]))[split:] + 1e-3 * L * p, b
        )

    products = [
        curvature.hessian(curvature.objective_in_both(problem, i, x, y), both)
        for i in range(len(rows))
    ]
    found = []
    for row in rows:
        v = row[:split] - lower(torch.cat([still_x, solve(row[split:])]))[:split]
        if float(v.norm()) > 0:
            v = v / v.norm()
            direction = torch.cat([v, -solve(lower(torch.cat([v, still_y]))[split:])])
            found += [float(direction @ product(direction)) for product in products]
    return min(found, default=0.0)


def _conjugate_gradients(product: curvature.Product, b: Tensor) -> Tensor:
    """An approximate solution of product(w) = b, by `SOLVER_ITERATIONS` products at most; stops
    early at negative curvature.
    """
    w, r = torch.zeros_like(b), b
    p, rr = b, float(b @ b)
    for _ in range(min(SOLVER_ITERATIONS, b.numel())):
        hp = product(p)
        curvature = float(p @ hp)
        if rr <= 1e-20 or curvature <= 0:
            break
        w, r = w + (rr / curvature) * p, r - (rr / curvature) * hp
        rr, previous = float(r @ r), rr
        p = r + (rr / previous) * p
    return w


def _objectives(problem: Problem, x: Tree, y: Tree) -> Tensor:
    with torch.no_grad():
        return problem.upper(x, y, problem.batch("upper", "full"))


def _settle(problem: Problem, x: Tree, y: Tree) -> Tree:
    """y moved to the lower solution near it, roughly: probes need a typical point, no exact one."""
    return envelope.solve_one(problem, x, y, tol=1e-6, max_iter=20)


class _LowerCurvature(NamedTuple):
    smallest: float
    largest: float
    scale: float


def _curvature(problem: Problem, x: Tree, points: list[Tree], seed: int) -> _LowerCurvature:
    """Extreme eigenvalues of g's Hessian in y over the given points and random ones around the
    last, and the size of y, which is how far around.
    """
    lower = curvature.lower_in_y(problem, x, points[-1])
    flat = [tree.ravel(point) for point in points]
    spread = float((flat[0] - flat[-1]).abs().mean())
    scale = max(spread, float(flat[-1].pow(2).mean().sqrt())) or 1.0
    generator = torch.Generator().manual_seed(seed)
    found = [
        curvature.extremes(lower, point, generator, LANCZOS)
        for point in around(flat, scale, generator)
    ]
    return _LowerCurvature(min(low for low, _ in found), max(high for _, high in found), scale)


def around(points: list[Tensor], scale: float, generator: torch.Generator) -> list[Tensor]:
    """Flat points, random ones up to three times `scale` around the last, and two on the way there
    from the first.
    """
    first, last = points[0], points[-1]
    # One point of a large problem shows many curvatures, one of a small problem few.
    count = min(max(2000 // last.numel(), 4), 32)
    radii = torch.logspace(-1, 0.5, count, dtype=torch.float64).tolist()
    random = [last + r * scale * curvature.normal(last, generator) for r in radii]
    between = [] if torch.equal(first, last) else [first + s * (last - first) for s in (0.33, 0.67)]
    return [*points, *random, *between]


def _gradients(problem: Problem, x: Tree, y: Tree) -> list[Tensor]:
    """grad f_i in the flat (x, y), for each i."""
    both = tree.ravel((x, y))
    return [
        oracle.grad(curvature.objective_in_both(problem, i, x, y), both)
        for i in range(_objectives(problem, x, y).shape[0])
    ]


def _coupling(problem: Problem, x: Tree, y: Tree, seed: int) -> float:
    """The largest ||g_xy|| at x and half a size of x to either side: x will move, and a step that
    fits the start alone may not fit there.
    """
    flat = tree.ravel(x)
    v = (
        curvature.normal(flat, torch.Generator().manual_seed(seed)).sign()
        * 0.5
        * (float(flat.pow(2).mean().sqrt()) or 1.0)
    )
    return max(
        curvature.coupling(problem, tree.unravel(point, x), y, seed)
        for point in (flat, flat + v, flat - v)
    )


def _spread(rows: list[Tensor]) -> float:
    """The largest ||a - b||^2 between two rows, over their number squared."""
    return max(float((a - b).pow(2).sum()) for a in rows for b in rows) / len(rows) ** 2


def _direct_curvature(problem: Problem, x: Tree, y: Tree, m: int, seed: int) -> float:
    """The largest curvature of an f_i in x, with y held."""
    flat, generator = tree.ravel(x), torch.Generator().manual_seed(seed)
    batch = problem.batch("upper", "full")
    functions = [
        lambda v, i=i: problem.objective(i, tree.unravel(v, x), y, batch) for i in range(m)
    ]
    return max(abs(end) for f_i in functions for end in curvature.extremes(f_i, flat, generator, 8))


def tilt_size(part: Tensor, alone: float) -> float:
    """The size of a tilt per coordinate: the root mean square; with coordinates on their own four
    times the largest, that at most four times the mean.
    """
    mean = float(part.pow(2).mean().sqrt())
    return (1 - alone) * mean + alone * 4 * min(float(part.abs().max()), 4 * mean)


def _separability(problem: Problem, x: Tree, y: Tree, seed: int) -> float:
    """1 where g is a sum over the coordinates of y, 0 where they are coupled.

    Read off the share of g_yy's squared entries that lie on its diagonal, by products with random
    signs; a half or less is 0.
    """
    flat = tree.ravel(y)
    product = curvature.hessian(curvature.lower_in_y(problem, x, y), flat)
    generator = torch.Generator().manual_seed(seed)
    signs = [curvature.normal(flat, generator).sign() for _ in range(4)]
    rows = [product(v) for v in signs]
    total = sum(float(row.pow(2).sum()) for row in rows) / len(rows)
    # v * Hv is the diagonal plus noise of its own for each v: products of two of them average to
    # the squared diagonal.
    seen = [v * row for v, row in zip(signs, rows, strict=True)]
    pairs = [float((a * b).sum()) for i, a in enumerate(seen) for b in seen[:i]]
    return min(max(2 * sum(pairs) / len(pairs) / total - 1, 0.0), 1.0) if total > 0 else 1.0


def _restoring_force(
    problem: Problem, x: Tree, y: Tree, gamma: float, scale: float, gradient: Tensor, seed: int
) -> float:
    """The peak, over the distance from y, of the envelope gap's slope per coordinate along
    -gradient (random signs where that is 0).
    """
    batch = problem.batch("lower", "full")
    flat = tree.ravel(y)
    v = direction_along(gradient, seed)
    forces = []
    for radius in (scale * RADII).tolist():
        at = tree.unravel(flat + radius * v, y)
        one = tree.expand(x, 1), tree.expand(at, 1)
        prox = envelope.proximal_point(problem, *one, gamma, tol=1e-6, max_iter=30, batched=False).y
        steep = tree.ravel(oracle.grad(lambda u: problem.lower(x, u, batch), at))
        pull = (tree.ravel(at) - tree.ravel(prox, batch_dims=1)[0]) / gamma
        forces.append(float(((steep - pull) * v).mean()))
        if forces[-1] < max(forces):
            break
    return peak(forces)


def direction_along(gradient: Tensor, seed: int) -> Tensor:
    """-gradient with root mean square 1, random signs where it is 0."""
    size = gradient.pow(2).mean().sqrt()
    if float(size) > 0:
        return -gradient / size
    return curvature.normal(gradient, torch.Generator().manual_seed(seed)).sign()


def peak(forces: list[float]) -> float:
    """The first peak of forces in the order of their distances: beyond it another basin begins."""
    highest = 0.0
    for force in forces:
        if force < highest:
            break
        highest = force
    return max(highest, 1e-12)


def tune_mbmomeha(
    problem: Problem, x0: Any, y0: Any, *, steps: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """As `tune_momeha`, for noisy gradients: steps that fall, x's fastest, and a penalty that
    hardly grows.

    Noise in y and theta shakes x whatever the penalty, while the pull of F on x falls with c: a
    growing penalty only loses signal.  The powers are the best of 72 tried on PL-SIN2 with noise
    0.1 on every gradient coordinate.
    """
    found = tune_momeha(problem, x0, y0, steps=steps, seed=seed, longer=False)
    return found | {
        "alpha_theta": Power(found["alpha_theta"], -0.25),
        "alpha_y": Power(found["alpha_y"], -0.25),
        "alpha_x": Power(0.5 * found["alpha_x"], -0.4),
        "c": Power(0.5 * found["c"].scale, 1 / 16),
        "beta": Constant(0.9),
    }
