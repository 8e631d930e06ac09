"""The constants of the convergence proofs, in corrected form, and the steps they admit.

From the joint Lipschitz constant L_g of grad g, the weak convexity rho_y of g in y, the Lipschitz
constant L_F of the scalarized objective's gradient and gamma < 1/(2 rho_y), `Deterministic` gives
what Theorem 1 (MOMEHA) needs and `Stochastic` what Theorem 2 (MB-MOMEHA) needs.  Where the paper's
text and its own proof disagree the proof is followed; each departure is explained where it happens:

- 1 + 2/(alpha_theta rho_h), not 1 + 2/alpha_theta, in C_1 and C_2;
- L_F does not follow from L_f alone: see `smoothness.scalarized_smoothness`;
- the direction d_theta has a Lipschitz constant of its own, larger than L_h;
- Theorem 2's C_x, C_y, C'_theta are re-derived: the printed ones lack factors, and freeze
  alpha_theta where it must fall;
- m_0 = 0 is not d_0, and a growing penalty moves the directions d_x, d_y by itself: both enter the
  stochastic merit.

The orders in T that the proofs give are `momeha_orders` and `stochastic_orders`, for every pair of
exponents that they allow.

The bounds grow with products of squares of Lipschitz constants: they are what can be *proved*,
often thousands of times smaller than what works.  See `MOMEHA.admissible` and `MOMEHA.tuned`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bipareto.errors import InvalidInput
from bipareto.problem import validation


@dataclass(frozen=True)
class Envelope:
    """What both theorems share.

    Args:
        L_g: joint Lipschitz constant of grad g.
        rho_y: weak convexity of g in y, 0 for a convex lower level.
        L_F: Lipschitz constant of grad F, joint in (x, y), where the run goes.
        gamma: regularity of the Moreau envelope, in (0, 1/(2 rho_y)).
        c0: the first, smallest penalty.
    """

    L_g: float
    rho_y: float
    L_F: float
    gamma: float
    c0: float = 1.0

    def __post_init__(self) -> None:
        for name in ("L_g", "gamma", "c0"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise InvalidInput(f"{name} = {value}; it must be a finite number > 0")
        for name in ("rho_y", "L_F"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise InvalidInput(f"{name} = {value}; it must be a finite number >= 0")
        if self.gamma * 2 * self.rho_y >= 1:
            raise InvalidInput(
                f"gamma = {self.gamma:g} is not below 1/(2 rho_y) = {1 / (2 * self.rho_y):g} "
                f"(rho_y = {self.rho_y:g}); "
                f"choose gamma < {1 / (2 * self.rho_y):g}, e.g. {0.45 / self.rho_y:g}"
            )

    @property
    def rho_h(self) -> float:
        """1/gamma - rho_y: strong convexity of h(theta) = g(x, theta) + ||theta - y||^2/(2
        gamma).
        """
        return 1 / self.gamma - self.rho_y

    @property
    def L_h(self) -> float:
        """L_g + 1/gamma: smoothness of h in theta."""
        return self.L_g + 1 / self.gamma

    @property
    def L_theta(self) -> float:
        """(1/gamma + L_g)/rho_h: Lipschitz constant of theta*(x, y)."""
        return self.L_h / self.rho_h

    @property
    def L_v(self) -> float:
        """L_g sqrt(1 + L_theta^2) + (1 + L_theta)/gamma: Lipschitz constant of grad v_gamma."""
        return self.L_g * math.hypot(1, self.L_theta) + (1 + self.L_theta) / self.gamma

    @property
    def L_I(self) -> float:
        """L_F/c_0 + L_g + L_v: Lipschitz constant of grad (F/c_t + g - v_gamma), whatever t."""
        return self.L_F / self.c0 + self.L_g + self.L_v


@dataclass(frozen=True)
class Deterministic(Envelope):
    """Theorem 1 (MOMEHA): constants, admissible steps and the rate's own constant.

    With alpha_theta <= u_theta, alpha_x <= u_x, alpha_y <= u_y and c_t non-decreasing the merit
    V_t = (F - F_low)/c_t + (g - v_gamma) + C_V ||theta_t - theta*||^2 falls at every iteration by

        alpha_theta^2 rho_h^2 C_V ||theta_t - theta*||^2 + ||x_{t+1} - x_t||^2/(4 alpha_x) +
        ||y_{t+1} - y_t||^2/(4 alpha_y).

    Args:
        alpha_theta: the smallest step of theta; None is 0.99 u_theta, which makes u_x and u_y
            largest.
        others: L_g, rho_y, L_F, gamma, c0, see `Envelope`.

    >>> Deterministic(L_g=4.0, rho_y=1.0, L_F=2.0, gamma=0.25).u_theta
    0.18181818181818182
    """

    alpha_theta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_theta is None:
            object.__setattr__(self, "alpha_theta", 0.99 * self.u_theta)
        if not 0 < self._alpha <= self.u_theta:
            raise InvalidInput(
                f"alpha_theta = {self._alpha:g} is outside (0, u_theta = {self.u_theta:g}]: "
                "theta's step would not contract"
            )

    @property
    def _alpha(self) -> float:
        assert self.alpha_theta is not None
        return self.alpha_theta

    @property
    def u_theta(self) -> float:
        """2/(L_h + rho_h): up to it theta contracts by 1 - alpha_theta rho_h."""
        return 2 / (self.L_h + self.rho_h)

    @property
    def C_V(self) -> float:
        """L_g^2 + 1/gamma^2, the weight of theta's lag in V."""
        return self.L_g**2 + self.gamma**-2

    @property
    def _lag(self) -> float:
        # Young's inequality with delta = alpha_theta rho_h/2 gives 1 + 1/delta; the text drops
        # rho_h.
        return (1 + 2 / (self._alpha * self.rho_h)) * self.C_V * self.L_theta**2

    @property
    def C_1(self) -> float:
        """L_I/2 + alpha_theta rho_h L_theta^2/(2 gamma^2) + (1 + 2/(alpha_theta rho_h)) C_V
        L_theta^2.
        """
        return (
            self.L_I / 2
            + self._alpha * self.rho_h * self.L_theta**2 / (2 * self.gamma**2)
            + self._lag
        )

    @property
    def C_2(self) -> float:
        """L_I/2 + (1 + 2/(alpha_theta rho_h)) C_V L_theta^2."""
        return self.L_I / 2 + self._lag

    @property
    def u_x(self) -> float:
        """min{1/(4 C_1), alpha_theta rho_h}."""
        return min(1 / (4 * self.C_1), self._alpha * self.rho_h)

    @property
    def u_y(self) -> float:
        """min{1/(4 C_2), alpha_theta rho_h/2}."""
        return min(1 / (4 * self.C_2), self._alpha * self.rho_h / 2)

    def C_D(self, alpha_x: float, alpha_y: float) -> float:
        """The constant in ||grad (F/c_t + g - v_gamma)||^2 <= C_D (V_t - V_{t+1}) at (x_{t+1},
        y_{t+1}), for constant steps.
        """
        return 4 * max(
            self.L_h**2 / (self._alpha**2 * self.rho_h**2 * self.C_V),
            4 * alpha_x * ((1 / alpha_x + self.L_theta / self.gamma) ** 2 + self.L_I**2),
            4 * alpha_y * ((self.L_I + 1 / alpha_y) ** 2 + self.L_I**2),
        )

    def stationarity_bound(
        self,
        T: int,
        merit: float,
        alpha_x: float,
        alpha_y: float,
        *,
        power: float = 0.0,
        smallest_weight: float = 1.0,
    ) -> float:
        """What Theorem 1 promises for min_{t <= T} H_p, with its constant: O(T^(power - 1/2)) for
        c_t = c_0 (1 + t)^power.

        Args:
            merit: V_0.
            alpha_x, alpha_y: the constant steps taken.
            smallest_weight: the smallest entry of the preference.
        """
        if not 0 <= power < 0.5:
            raise InvalidInput(
                f"power = {power}; Theorem 1 needs 0 <= power < 1/2 in c_t = c_0 (1 + t)^power"
            )
        travelled = ((T + 2) ** (1 - 2 * power) - 1) / (1 - 2 * power)
        return self.c0 * math.sqrt(self.C_D(alpha_x, alpha_y) * merit / travelled) / smallest_weight

    def outside(self, alpha_theta: float, alpha_x: float, alpha_y: float) -> list[str]:
        """Which steps exceed their bound, in words with the numbers; empty when none does."""
        bounds = [
            ("alpha_theta", alpha_theta, self.u_theta),
            ("alpha_x", alpha_x, self.u_x),
            ("alpha_y", alpha_y, self.u_y),
        ]
        return exceeding(bounds)


def exceeding(bounds: list[tuple[str, float, float]]) -> list[str]:
    """The steps (name, value, bound) that exceed their bound, in words."""
    return [
        f"{name} = {value:g} exceeds its admissible bound {bound:g}"
        for name, value, bound in bounds
        if value > bound
    ]


def best_gamma(L_g: float, rho_y: float, L_F: float, c0: float = 1.0) -> float:
    """The gamma in (0, 1/(2 rho_y)) with the largest step of y in Theorem 1, on a log grid."""
    largest = 0.499 / rho_y if rho_y > 0 else 100 / L_g
    grid = [largest * 10 ** (-3 * i / 100) for i in range(101)]
    first = Deterministic(L_g, rho_y, L_F, largest, c0)
    return max(grid, key=lambda gamma: replace(first, gamma=gamma, alpha_theta=None).u_y)


class Order(NamedTuple):
    """T^-power, times sqrt(ln T) where `log`; T is a number or a tensor.

    >>> str(Order(1 / 4)), str(Order(0)), Order(1 / 2)(100.0)
    ('T^-0.25', 'O(1)', 0.1)
    """

    power: float
    log: bool = False

    def __call__(self, T: Any) -> Any:
        logarithm = math.log(T) if isinstance(T, float | int) else T.log()
        return T**-self.power * (logarithm**0.5 if self.log else 1)

    def __str__(self) -> str:
        return (f"T^-{self.power:g}" if self.power else "O(1)") + (" sqrt(ln T)" * self.log)


def momeha_orders(p: float) -> tuple[Order, Order]:
    """Of MOMEHA with c_t = c_0 (1 + t)^p, 0 <= p < 1/2: the gap at T, T^-p, and the smallest H_p up
    to T, T^-(1/2 - p).  Theorem 1 has p = 0 and p = 1/4.

    >>> [str(order) for order in momeha_orders(0.25)]
    ['T^-0.25', 'T^-0.25']
    """
    if not 0 <= validation.number(p, "p") < 0.5:
        raise InvalidInput(f"p = {p}; Theorem 1 needs 0 <= p < 1/2 in c_t = c_0 (1 + t)^p")
    return Order(p), Order(0.5 - p)


def stochastic_orders(q: float, p: float) -> tuple[Order, Order]:
    """Of MB-MOMEHA with alpha_theta,t = alpha_theta (1 + t)^-q and c_t = c_0 (1 + t)^p: the mean
    gap at T and the smallest mean H_p up to T, in the three regimes of Lemma 12.

    - 0 < q < 3/8, 0 <= p < q/3: T^-(q/3 - p); the noise decides;
    - q = 3/8, 0 <= p < 1/8: T^-(1/8 - p) sqrt(ln T), where both are alike;
    - 3/8 < q < 1/2, 0 <= p < 1/2 - q: T^-(1/2 - q - p); the length of the way decides.

    The gap falls as T^-p where F + c_t (g - v_gamma) stays bounded; below q = 3/8 the proof bounds
    neither it nor the merit, so the gap's order is O(1) times c_t^-1 only under that condition.
    Theorem 2 has (3/8, 1/16) and (3/8 + delta, 0).

    >>> [str(order) for order in stochastic_orders(3 / 8, 1 / 16)]
    ['T^-0.0625', 'T^-0.0625 sqrt(ln T)']
    """
    q, p = validation.number(q, "q"), validation.number(p, "p")
    if not 0 < q < 0.5:
        raise InvalidInput(f"q = {q}; Lemma 12 needs 0 < q < 1/2 in alpha_theta (1 + t)^-q")
    most = min(q / 3, 0.5 - q)
    if not 0 <= p < most:
        raise InvalidInput(f"p = {p}; with q = {q:g} Lemma 12 needs 0 <= p < {most:g}")
    return Order(p), Order(most - p, log=q == 3 / 8)
