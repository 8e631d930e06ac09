"""What can be said of a point (x, y), whoever computed it: is the lower level solved, and is
anything left to gain above?

Three questions, each answered by numbers that need no knowledge of the truth:

- *Feasible?*  The gap g - v_gamma of the Moreau envelope and ||grad_y g||, both zero exactly at
  lower stationary points; and what kind of stationary point it is, because the envelope's
  constraint holds at lower *maxima* as well.
- *Pareto stationary in the paper's sense?*  min ||sum_i lambda_i grad f_i + p (grad g - grad
  v_gamma)|| over lambda in the simplex and p >= 0.  At a feasible point grad g - grad v_gamma
  vanishes, and the number says nothing.
- *Pareto stationary in the bilevel sense?*  min ||sum_i lambda_i grad f_i + B nu||, B = [g_xy;
  g_yy], with multipliers nu on grad_y g = 0: zero at every Pareto point with a regular lower level,
  whatever method found it.  Where it is not zero its minimiser is, with the opposite sign, a
  direction along the lower solutions in which all objectives fall.

All curvature comes from one subspace that grows by one Hessian product at a time
(`inspection.Subspace`), so that the whole certificate costs at most `budget` gradient evaluations,
a Hessian product counted as two, in any dimension.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bipareto.certificate.inspection import SETTLED, Curvature, Point, Subspace, conic_minimum
from bipareto.certificate.proximal import constraint_gradient, gap_of, proximal_point
from bipareto.certificate.remaining import (
    Gain,
    along_lower,
    on_tangents,
    tangent_products,
    unseeable,
)
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.parts import scalarization as scalarizations
from bipareto.methods.parts.preferences import as_preference
from bipareto.methods.parts.scalarization import as_ideal
from bipareto.methods.tuning.local import DENSE
from bipareto.problem import Problem, tree, validation
from bipareto.problem.base import as_problem
from bipareto.problem.notebook import html_table

__all__ = ["Certificate", "certify"]

#: Hessian products before the proximal point is sought: enough to see the scale of the curvature
FIRST_PRODUCTS = 16
#: ||grad_y g|| above this times (curvature x size of y) is "not near stationary"
NEAR = 0.05


@dataclass(frozen=True)
class Certificate:
    """What `certify` found at one point.  Norms are Euclidean over all of (x, y).

    gap: g - v_gamma, zero exactly where grad_y g = 0.
    lower_residual: ||grad_y g||.
    lower_curvature: "minimum", "maximum", "saddle" or "degenerate" (an eigenvalue of g_yy that is
        zero to rounding).
    lower_eigenvalues: smallest and largest eigenvalue of g_yy, as far as the products show.
    stationarity: min ||sum lambda_i grad f_i + p (grad g - grad v_gamma)||, None where the
        constraint gradient vanishes.
    stationarity_multipliers: (lambda, p) of that minimum, or None.
    paper_stationarity: the same norm at the paper's lambda = w tau/s, p = c/s; None unless
        preference, mu and c were given.
    constraint_gradient: ||grad g - grad v_gamma||; Assumption 3 asks that it is not zero at
        infeasible points.
    kkt: min ||sum lambda_i grad f_i + [g_xy; g_yy] nu|| over lambda in the simplex and nu, as far
        as the products reach.
    kkt_multipliers: lambda of that minimum.
    kkt_lower: a lower bound on the same minimum, equal to kkt where the multipliers nu are settled.
    qp_slack: how far the two small quadratic programs are from their own optimality conditions,
        relative to their scale.
    improvement: by how much all objectives can still fall together along the lower solutions, as a
        share of each one's own range, by the second-order picture at the point: a number without
        units (`certificate.remaining`).  NaN where the budget did not settle the picture.
    common_descent: whether that is more than tol: True, False, or None where it is not settled.
    objectives: f (m,).
    gamma, rho_y: what the envelope was taken with, and the weak convexity that was given or seen
        (at this point only).
    proximal_residual: ||grad h|| at the proximal point found.
    gradients: gradient evaluations spent, a Hessian product counted as two.
    notes: what a reader should know before trusting the numbers, in words.
    """

    gap: float
    lower_residual: float
    lower_curvature: Curvature
    lower_eigenvalues: tuple[float, float]
    stationarity: float | None
    stationarity_multipliers: tuple[tuple[float, ...], float] | None
    paper_stationarity: float | None
    constraint_gradient: float
    kkt: float
    kkt_multipliers: tuple[float, ...]
    kkt_lower: float
    qp_slack: float
    improvement: float
    common_descent: bool | None
    objectives: tuple[float, ...]
    gamma: float
    rho_y: float
    proximal_residual: float
    gradients: int
    notes: tuple[str, ...] = ()

    def _rows(self) -> list[tuple[str, str]]:
        low, high = self.lower_eigenvalues
        lam = ", ".join(f"{v:.3g}" for v in self.kkt_multipliers)
        descent = {True: "a", False: "no", None: "perhaps a"}[self.common_descent]
        if self.stationarity is None:
            paper = "undefined: grad g - grad v_gamma vanishes here"
        else:
            assert self.stationarity_multipliers is not None
            paper = f"{self.stationarity:.3e} at p = {self.stationarity_multipliers[1]:.3g}"
        if self.paper_stationarity is not None:
            paper += f"; {self.paper_stationarity:.3e} with the paper's multipliers"
        return [
            (
                "lower level",
                f"{self.lower_curvature}, ||grad_y g|| = {self.lower_residual:.3e}, "
                f"curvature {low:.3g} to {high:.3g}",
            ),
            (
                "gap",
                f"{self.gap:.3e} (gamma = {self.gamma:.3g}), ||grad g - grad v_gamma|| = "
                f"{self.constraint_gradient:.3e}",
            ),
            ("kkt", f"{self.kkt:.3e} at lambda = ({lam})"),
            (
                "improvement",
                f"{self.improvement:.3e} of the objectives' ranges: {descent} common descent "
                "direction is left",
            ),
            ("stationarity", paper),
            ("cost", f"{self.gradients} gradient evaluations"),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<14}{words}" for name, words in self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), caption="Certificate")


def certify(
    problem: Problem,
    x: Any,
    y: Any,
    gamma: float | None = None,
    *,
    preference: Any = None,
    mu: float | None = None,
    ideal: Any = 0.0,
    c: float | None = None,
    scalarization: str = "stch",
    rho_y: float | None = None,
    tol: float = 1e-3,
    budget: int = 200,
    seed: int = 0,
) -> Certificate:
    """Certify a point.

    Args:
        problem: f and g; a problem with a sampler is taken on all its data (role "full").
        x, y: the point, trees or modules.
        gamma: of the Moreau envelope, below 1/(2 rho_y); None takes 0.45/rho_y, or 1/L where g
            curves upwards, as probed here.
        preference, mu, ideal, c: w, mu, z and the penalty; with the first, second and fourth the
            paper's own multipliers are tried too.
        scalarization: which one w, mu and z belong to.
        rho_y: weak convexity of g in y where it is known; a gamma at or above 1/(2 rho_y) is then
            refused.
        tol: `common_descent` asks whether all objectives can fall together by more than this share
            of their ranges.
        budget: gradient evaluations at most; the second derivatives of a problem of up to 256
            variables, written down once, are not counted.
        seed: of the random directions.

    Warns when the point is not near lower stationarity, when gamma is too large for the curvature
    seen, and when g does not look smooth; the same sentences are in `notes`.  Up to 2 budget
    float64 vectors of the length of (x, y) are held at a time; a smaller budget serves where that
    is too much.

    >>> import torch
    >>> problem = Problem(
    ...     upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]),
    ...     lower=lambda x, y: (y - x)**2,
    ... )
    >>> half = torch.tensor(0.5, dtype=torch.float64)
    >>> certificate = certify(problem, half, half, gamma=1.0)
    >>> certificate.kkt < 1e-12, certificate.lower_curvature, certificate.common_descent
    (True, 'minimum', False)
    """
    as_problem(problem)
    x, y = tree.as_tree(x, "x"), tree.as_tree(y, "y")
    gamma, rho_y, mu, c = _checked(gamma, rho_y, mu, c)
    tol, seed = validation.number(tol, "tol", least=0), validation.seed(seed)
    budget = validation.count(budget, "budget", least=1, most=validation.MOST_STEPS)
    scalarizations.get(scalarization)
    problem.check_pure(x, y)
    at = Point(problem, x, y, budget)
    notes: list[str] = []
    weights = (
        _paper_weights(at.f, preference, mu, ideal, scalarization)
        if preference is not None and mu is not None
        else None
    )

    space = Subspace(at, seed)
    space.grow(max(at.left() - 2 * FIRST_PRODUCTS, 4))
    low, high = space.eigenvalues
    seen = max(-low, 0.0)
    if gamma is None:
        bound = 0.45 / seen if seen > 0 else math.inf
        gamma = min(bound, 1 / space.scale if space.scale > 0 else 1.0)
    proximal = proximal_point(at, gamma, max(high, 0.0))
    space.grow(4 if at.flat.numel() <= DENSE else 4 + tangent_products(at))
    if space.slack > SETTLED:
        space.judge()
    low, high = space.eigenvalues
    kind = space.kind(1 / gamma)
    seen = max(-low, 0.0)
    if gamma * 2 * seen >= 1:
        notes.append(
            f"gamma = {gamma:g} is not below 1/(2 rho_y): g_yy has the eigenvalue {low:.4g} here, "
            f"so rho_y >= {seen:.4g} and gamma must be "
            f"< {1 / (2 * seen):.4g}; the gap and the stationarity may be meaningless"
        )
    notes += _remarks(at, space)

    normal, noise = constraint_gradient(at, space, proximal, gamma)
    size = float(normal.norm())
    cone = conic_minimum(at.J, normal) if size > 100 * noise else None
    paper = None
    if weights is not None and c is not None:
        s = float(weights.sum())
        paper = float((weights @ at.J + c * normal).norm()) / s
    kkt, kkt_lower = float(space.residual.norm()), space.kkt_lower(kind)
    settled = space.solved or kkt_lower > 0.9 * kkt
    improvement, descent, coarse = _improvement(at, space, kind, settled, tol)
    notes += coarse
    if not settled:
        notes.append(
            f"kkt was not settled within {budget} gradient evaluations (it lies between "
            f"{kkt_lower:.3g} and {kkt:.3g}, slack {space.slack:.2g}): "
            "g_yy is too ill-conditioned for more to be said, or budget too small"
        )
    if kind == "degenerate" and descent is False and kkt > tol * float(at.J.norm(dim=1).max()):
        notes.append(
            "g_yy vanishes in a direction, so kkt has no multipliers there; common_descent follows "
            "the lower solutions by the curvature beside the point"
        )
    if not proximal.solved:
        notes.append(
            f"the proximal point was solved only to ||grad h|| = {proximal.residual:.3g}: gap and "
            "stationarity are that inexact"
        )
    for note in notes:
        warnings.warn(note, BiparetoWarning, stacklevel=2)
    return Certificate(
        gap=gap_of(at, proximal, gamma),
        lower_residual=float(at.g_y.norm()),
        lower_curvature=kind,
        lower_eigenvalues=(low, high),
        stationarity=None if cone is None else cone.norm,
        stationarity_multipliers=None
        if cone is None
        else (tuple(cone.weights.tolist()), cone.multiplier),
        paper_stationarity=paper,
        constraint_gradient=size,
        kkt=kkt,
        kkt_multipliers=tuple(space.weights.tolist()),
        kkt_lower=kkt_lower,
        qp_slack=max(space.qp_slack, 0.0 if cone is None else cone.slack),
        improvement=improvement,
        common_descent=descent,
        objectives=tuple(at.f.tolist()),
        gamma=gamma,
        rho_y=seen if rho_y is None else rho_y,
        proximal_residual=proximal.residual,
        gradients=at.spent,
        notes=tuple(notes),
    )


def _improvement(
    at: Point, space: Subspace, kind: Curvature, settled: bool, tol: float
) -> tuple[float, bool | None, list[str]]:
    """`improvement` and `common_descent`, and what was not looked at for them."""
    gain, notes = None, []
    if at.flat.numel() <= DENSE:
        x, y = tree.expand((at.x, at.y), 1)
        if why := unseeable(at.problem, x, y):
            notes.append(
                f"improvement was not looked at beyond the span of the gradients, because {why}"
            )
        else:
            gain = along_lower(at, degenerate=kind == "degenerate")
    if gain is None:
        if not settled:
            return math.nan, None, notes
        gain = Gain(0.0, 0.0) if space.solved else on_tangents(at, space)
    verdict = True if gain.reached > tol else False if gain.bound <= tol else None
    return gain.reached, verdict, notes


def _checked(
    gamma: float | None, rho_y: float | None, mu: float | None, c: float | None
) -> tuple[float | None, ...]:
    """These four, where they are given, as numbers > 0; rho_y may be 0."""
    gamma, mu, c = (
        None if value is None else validation.number(value, name, above=0)
        for name, value in (("gamma", gamma), ("mu", mu), ("c", c))
    )
    rho_y = None if rho_y is None else validation.number(rho_y, "rho_y", least=0)
    if gamma is not None and rho_y is not None and rho_y > 0 and gamma >= 1 / (2 * rho_y):
        raise InvalidInput(
            f"gamma = {gamma:g} is not below 1/(2 rho_y) = {1 / (2 * rho_y):g} (rho_y = "
            f"{rho_y:g}); take e.g. {0.45 / rho_y:g}"
        )
    return gamma, rho_y, mu, c


def _paper_weights(f: Tensor, preference: Any, mu: float, ideal: Any, name: str) -> Tensor:
    """w_i tau_i, the weights that the scalarization puts on the gradients, shape (m,)."""
    z = as_ideal(ideal).start(f)
    wrong = [
        f"z_{i + 1} = {a:g} >= f_{i + 1} = {b:g}"
        for i, (a, b) in enumerate(zip(z.tolist(), f.tolist(), strict=True))
        if a >= b
    ]
    if wrong:
        raise InvalidInput(
            f"the ideal point is not below the objectives here ({', '.join(wrong)}); pass a "
            "smaller ideal"
        )
    w = as_preference(preference, f.shape[0]).to(f)
    return scalarizations.get(name).weights(
        f, w, z, torch.as_tensor(mu, dtype=f.dtype, device=f.device)
    )


def _remarks(at: Point, space: Subspace) -> list[str]:
    """What is wrong with the point itself: far from lower stationarity, or not smooth."""
    found = []
    residual = float(at.g_y.norm())
    distance = residual / space.scale if space.scale > 0 else math.inf if residual > 0 else 0.0
    if distance > NEAR * at.y_size:
        found.append(
            f"the point is not near lower stationarity: ||grad_y g|| = {residual:.3g} "
            f"with curvature up to {space.scale:.3g} puts it "
            f"about {distance:.2g} away (||y|| = {float(at.y_flat.norm()):.3g}); lower_curvature "
            "and kkt speak of stationary points: re-solve y first"
        )
    jump = _jump(at, space)
    if jump is not None:
        found.append(
            f"g does not look twice differentiable here: its gradient jumps by {jump:.3g} over a "
            "step that its Hessian does not explain; "
            "lower_curvature and kkt rest on that Hessian"
        )
    return found


def _jump(at: Point, space: Subspace) -> float | None:
    """By how much grad_y g jumps beside the point along a random direction, None where its Hessian
    explains the change.

    A kink's jump stays when the step shrinks tenfold; the error of a smooth function's linear model
    falls a hundredfold.
    """
    v, image = space.V[0], space.HV[0]
    length = at.eps ** (1 / 3) * at.y_size

    def unexplained(step: float) -> float:
        _, gradient = at.lower(
            torch.cat([at.flat[: at.split].double(), at.y_flat.double() + step * v])
        )
        return float((gradient[at.split :] - at.g_y - step * image).norm())

    first = unexplained(length)
    rounding = 100 * at.eps * (float(at.g_y.norm()) + space.scale * at.y_size)
    if first <= 0.1 * length * space.scale + rounding:
        return None
    second = unexplained(0.1 * length)
    return second if second > 0.3 * first else None
