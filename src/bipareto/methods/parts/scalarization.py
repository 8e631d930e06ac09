"""Scalarizations: m objectives and a preference become one number.

Each gives a value and the weights it puts on the gradients of the objectives (its own gradient in
f), as functions of the objectives f (m,), the preference w (m,) in the simplex, the ideal point z
(m,) and the smoothing mu.  To add one, write such a pair and enter it in `SCALARIZATIONS`; what
else depends on a scalarization it carries too, and what asks for a part that it lacks refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bipareto.errors import InvalidInput
from bipareto.problem import validation
from bipareto.problem.plugins import Registry

__all__ = ["SCALARIZATIONS", "Fixed", "Ideal", "Scalarization", "Tracked", "aim", "as_ideal", "get"]

Form: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Scalarization(NamedTuple):
    """A name, a value `(f, w, z, mu) -> ()` and its gradient in f, `(f, w, z, mu) -> (m,)`.

    aim: `(f, normal, z, mu) -> w`, see the function `aim`; adaptive preferences ask for it.
    lower_bound: `(m, mu) -> F_low`, the largest number with F >= F_low whenever z <= f; the merit
        functions of the theorems ask for it.
    smoothness: `(L_f, w, mu, level, spread) -> L_F`, see `theory.smoothness`; admissible steps ask
        for it.
    """

    name: str
    value: Form
    weights: Form
    aim: Callable[[Tensor, Tensor, Tensor, float], Tensor] | None = None
    lower_bound: Callable[[int, float], float] | None = None
    smoothness: Callable[[float, Sequence[float], float, float, float], float] | None = None

    def part(self, name: str) -> Any:
        """A part that not every scalarization has; one that lacks it is refused by name."""
        found = getattr(self, name)
        if found is None:
            have = [form.name for form in SCALARIZATIONS.values() if getattr(form, name)]
            raise InvalidInput(
                f"the scalarization {self.name!r} has no {name!r}, which is asked for here; give "
                f"Scalarization(..., {name}=...), or use one of {', '.join(have)}"
            )
        return found


def _stch(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
    return torch.logsumexp(mu * w * (f - z), dim=-1) / mu


def _stch_weights(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
    return w * torch.softmax(mu * w * (f - z), dim=-1)


def _tchebycheff(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
    return (w * (f - z)).amax(dim=-1)


def _tchebycheff_weights(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
    # The first of tied objectives carries the whole weight: a subgradient, not the average that
    # autograd would give.
    return w * one_hot((w * (f - z)).argmax(dim=-1), f.shape[-1]).to(w.dtype)


def _linear(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
    return (w * (f - z)).sum(dim=-1)


def _linear_weights(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
    return w


def _stch_aim(f: Tensor, normal: Tensor, z: Tensor, mu: float) -> Tensor:
    """w_i exp(mu w_i (f_i - z_i)) = k lambda_i, with k such that w sums to one."""
    from scipy.optimize import brentq
    from scipy.special import wrightomega  # omega(u) solves omega + log omega = u

    scale = (mu * _height(f, z)).numpy()
    offset = (normal / normal.sum()).clamp_min(1e-12).log().numpy() + np.log(scale)

    def weights(k: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return wrightomega(offset + k) / scale

    # At the right k no weight exceeds 1, and the largest is at least 1/m.
    high = float((scale + np.log(scale) - offset).max())
    low = float((scale / len(scale) + np.log(scale / len(scale)) - offset).min())
    # A little beyond both, because equal weights meet the bounds up to rounding.
    k = brentq(lambda k: weights(k).sum() - 1, low - 1, high + 1, xtol=1e-12)
    found = torch.from_numpy(weights(k))
    return found / found.sum()


def _tchebycheff_aim(f: Tensor, normal: Tensor, z: Tensor, mu: float) -> Tensor:
    """w_i = k/(f_i - z_i), whatever the normal."""
    inverse = _height(f, z).reciprocal()
    return inverse / inverse.sum()


def _height(f: Tensor, z: Tensor) -> Tensor:
    return (f - z).clamp_min(torch.finfo(torch.float64).tiny ** 0.5)


def _stch_smoothness(
    L_f: float, w: Sequence[float], mu: float, level: float, spread: float
) -> float:
    """max_i w_i L_f + (mu/4) max_ij ||w_i grad f_i - w_j grad f_j||^2: the Hessian is
    sum_i tau_i w_i H_i + mu Cov_tau(w_i grad f_i).

    Where F <= level every w_i (f_i - z_i) <= level, and a smooth function bounded below by z_i has
    ||grad f_i||^2 <= 2 L_f (f_i - z_i); so the spread ||w_i grad f_i - w_j grad f_j|| is at most
    sqrt(2 L_f level) (sqrt w_i + sqrt w_j).
    """
    if len(w) == 1:
        return w[0] * L_f
    roots = sorted((math.sqrt(w_i) for w_i in w), reverse=True)
    widest = math.sqrt(2 * L_f * level) * (roots[0] + roots[1])
    return max(w) * L_f + mu / 4 * min(widest, spread) ** 2


SCALARIZATIONS: Registry[Scalarization] = Registry(
    "scalarizations",
    {
        # Smooth Tchebycheff, (1/mu) log sum_i exp(mu w_i (f_i - z_i)).  mu is the MOMEHA paper's,
        # 1/mu of Lin et al. (2024): large mu approaches the maximum from above, within log(m)/mu.
        # Weights w_i tau_i, tau = softmax(mu w (f - z)).
        "stch": Scalarization(
            "stch",
            _stch,
            _stch_weights,
            aim=_stch_aim,
            lower_bound=lambda m, mu: math.log(m) / mu,
            smoothness=_stch_smoothness,
        ),
        # Weighted Tchebycheff, max_i w_i (f_i - z_i); mu is not used.  Kinks: no smoothness.
        "tchebycheff": Scalarization(
            "tchebycheff",
            _tchebycheff,
            _tchebycheff_weights,
            aim=_tchebycheff_aim,
            lower_bound=lambda m, mu: 0.0,
        ),
        # Weighted sum, sum_i w_i (f_i - z_i); mu is not used.  Reaches convex parts only.
        "linear": Scalarization(
            "linear",
            _linear,
            _linear_weights,
            aim=lambda f, normal, z, mu: normal / normal.sum(),
            lower_bound=lambda m, mu: 0.0,
            smoothness=lambda L_f, w, mu, level, spread: L_f * sum(w),
        ),
    },
)


def get(name: str) -> Scalarization:
    """The scalarization of that name."""
    return SCALARIZATIONS[validation.choice(name, "scalarization", SCALARIZATIONS)]


def aim(name: str, f: Tensor, normal: Tensor, z: Tensor, mu: float) -> Tensor:
    """The preference w (m,) whose point is f, where the front's normal there is known: weights(f,
    w, z, mu) is parallel to the normal.

    Args:
        name: which scalarization.
        f: a point of the front (m,), above z.
        normal: lambda (m,), >= 0 and not all zero: the multipliers with which sum_i lambda_i grad
            f_i vanishes along the front.
        z, mu: ideal point (m,) and smoothing.

    A scalarization without an `aim` of its own is refused.

    >>> f, w = torch.tensor([1.0, 3.0]).double(), torch.tensor([0.7, 0.3]).double()
    >>> z = torch.zeros(2).double()
    >>> aim("stch", f, get("stch").weights(f, w, z, torch.tensor(2.0)), z, 2.0)
    tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    f, normal, z = (value.detach().to("cpu", torch.float64) for value in (f, normal, z))
    return get(name).part("aim")(f, normal, z, mu)


class Fixed(NamedTuple):
    """The ideal point z stays where it was put: one number for all objectives, or m numbers."""

    value: float | tuple[float, ...]

    def start(self, f: Tensor) -> Tensor:
        """z_0, shape (m,)."""
        if isinstance(self.value, tuple) and len(self.value) != f.shape[-1]:
            raise InvalidInput(
                f"ideal has {len(self.value)} entries {self.value}, but upper returns m = "
                f"{f.shape[-1]} objectives"
            )
        return torch.as_tensor(self.value, dtype=f.dtype, device=f.device).expand(f.shape).clone()

    def update(self, z: Tensor, f: Tensor) -> Tensor:
        """z_{t+1} = z_t."""
        return z


class Tracked(NamedTuple):
    """z follows the smallest objectives seen, a margin below: z <- min(z, f - margin), so z < f
    always holds.

    Args:
        margin: a number > 0 in the units of the objectives.
    """

    margin: Any

    def start(self, f: Tensor) -> Tensor:
        """z_0 = f(x_0, y_0) - margin, shape (m,)."""
        return f - self.margin

    def update(self, z: Tensor, f: Tensor) -> Tensor:
        """z_{t+1} = min(z_t, f - margin)."""
        return torch.minimum(z, f - self.margin)


Ideal: TypeAlias = Fixed | Tracked


def ideal_below(f: Tensor) -> Tensor:
    """The ideal point z (m,) for objectives of which the rows (n, m) are known: zero, and for one
    that falls below zero as far below its lowest value as it is large, since above f preferences
    work the wrong way round.

    >>> ideal_below(torch.tensor([[1.0, -2.0], [3.0, 0.5]]))
    tensor([ 0., -4.])
    """
    low = f.amin(0)
    return torch.where(low < 0, low - f.abs().amax(0), 0.0)


def as_ideal(value: Ideal | float | Sequence[float] | Tensor) -> Ideal:
    """A number or a vector stands for a fixed ideal point."""
    if isinstance(value, Tracked):
        return Tracked(
            validation.number(
                value.margin, "the margin of a tracked ideal point, which keeps z < f", above=0
            )
        )
    z = validation.array(
        value.value if isinstance(value, Fixed) else value,
        "ideal",
        "a number, m numbers, or scalarization.Tracked(margin=...)",
    )
    if z.dim() > 1 or not z.numel() or not torch.isfinite(z).all():
        raise InvalidInput(
            f"ideal is {validation.shown(value)}; pass a finite number, m finite numbers, or "
            "scalarization.Tracked(margin=...)"
        )
    number = z.tolist()
    return Fixed(tuple(number) if isinstance(number, list) else number)
