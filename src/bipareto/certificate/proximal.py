"""The proximal point of g within a budget of gradients, and the gap and gradient that it gives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.certificate.inspection import PROXIMAL_SHARE, Point, Subspace


class Proximal(NamedTuple):
    """theta* - y (d_y,); g and its gradient (d,) and ||grad h|| at theta*; whether that met tol."""

    shift: Tensor
    g: float
    gradient: Tensor
    residual: float
    solved: bool


def proximal_point(at: Point, gamma: float, curvature: float) -> Proximal:
    """argmin_s h(s) = g(x, y + s) + ||s||^2/(2 gamma) by L-BFGS.

    `envelope.proximal_point` solves the same problem with Hessian products, without a bound on
    their number; here every gradient counts, h is strongly convex and well conditioned, and a
    limited memory does with one gradient per iteration.

    Args:
        curvature: a typical curvature of g in y, for the first step.
    """
    x, y = at.flat[: at.split].double(), at.y_flat.double()
    shift, g, gradient = torch.zeros_like(y), at.g, at.grad_g
    h, slope = g, at.g_y
    target = max(1e-9 * float(slope.norm()), 20 * at.eps * (curvature + 1 / gamma) * at.y_size)
    pairs: list[tuple[Tensor, Tensor]] = []
    length, last = 1.0, min(at.spent + PROXIMAL_SHARE, at.budget - 4)
    while float(slope.norm()) > target and at.spent < last:
        direction = _quasi_newton(slope, pairs, 1 / (curvature + 1 / gamma))
        trial = shift + length * direction
        trial_g, trial_gradient = at.lower(torch.cat([x, y + trial]))
        trial_h = trial_g + float(trial @ trial) / (2 * gamma)
        trial_slope = trial_gradient[at.split :] + trial / gamma
        rounding = 10 * at.eps * max(abs(h), 1.0)
        # Below rounding of h its decrease is noise, and a smaller gradient the better witness.
        fell = trial_h <= h + 1e-4 * length * float(slope @ direction)
        if not fell and not (trial_h <= h + rounding and trial_slope.norm() < slope.norm()):
            length *= 0.3
            if length < 1e-6:
                break
            continue
        s, change = trial - shift, trial_slope - slope
        if float(s @ change) > 0:
            pairs = [*pairs[-19:], (s, change)]
        shift, h, slope, g, gradient, length = (
            trial,
            trial_h,
            trial_slope,
            trial_g,
            trial_gradient,
            1.0,
        )
    residual = float(slope.norm())
    return Proximal(
        shift, g, gradient, residual, residual <= max(target, 1e-4 * float(at.g_y.norm()))
    )


def _quasi_newton(slope: Tensor, pairs: list[tuple[Tensor, Tensor]], first: float) -> Tensor:
    """The L-BFGS direction from pairs (step, change of gradient), newest last, else `first`."""
    q = slope
    kept = []
    for s, change in reversed(pairs):
        a = (s @ q) / (s @ change)
        q = q - a * change
        kept.append(a)
    if pairs:
        s, change = pairs[-1]
        q = q * (s @ change) / (change @ change)
    else:
        q = first * q
    for (s, change), a in zip(pairs, reversed(kept), strict=True):
        q = q + (a - (change @ q) / (s @ change)) * s
    return -q


def gap_of(at: Point, proximal: Proximal, gamma: float) -> float:
    """g(x, y) - g(x, theta*) - ||theta* - y||^2/(2 gamma).

    Near a stationary point this difference drowns in the rounding of g; there -<grad_y g, theta* -
    y>/2, which equals it up to third order, does not.
    """
    direct = at.g - proximal.g - float(proximal.shift @ proximal.shift) / (2 * gamma)
    if direct > 1e4 * at.eps * max(abs(at.g), abs(proximal.g)):
        return direct
    return abs(0.5 * float(at.g_y @ proximal.shift))


def constraint_gradient(
    at: Point, space: Subspace, proximal: Proximal, gamma: float
) -> tuple[Tensor, float]:
    """grad g - grad v_gamma (d,), and how large errors of theta* and rounding in it may be."""
    in_x = at.grad_g[: at.split] - proximal.gradient[: at.split]
    in_y = at.g_y + proximal.shift / gamma
    strong = max(1 / gamma + min(space.eigenvalues[0], 0.0), 0.1 / gamma)
    return torch.cat([in_x, in_y]), (space.scale + 1 / gamma) * (
        proximal.residual / strong + at.eps * at.y_size
    )
