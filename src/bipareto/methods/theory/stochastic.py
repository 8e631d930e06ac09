"""The constants of Theorem 2, for noisy gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from bipareto.errors import InvalidInput
from bipareto.methods.theory.constants import Envelope, exceeding


class Coefficients(NamedTuple):
    """The weights of the stochastic merit at one t (numbers, or tensors for many t at once).

    V_hat = (F - F_low)/c + (g - v_gamma) + lag ||theta - theta*||^2
            + e_theta ||e_theta||^2 + e_x ||e_x||^2 + e_y ||e_y||^2
            + x ||x - x_-||^2 + y ||y - y_-||^2 + theta ||theta - theta_-||^2,

    with the momentum errors e = m - d of the step before and x_-, y_-, theta_- the point before.
    `noise_theta` and `noise` multiply (1 - beta)^2 sigma^2 for theta and, times alpha_x or alpha_y,
    for x and y.
    """

    lag: Any
    e_theta: Any
    e_x: Any
    e_y: Any
    x: Any
    y: Any
    theta: Any
    noise_theta: Any
    noise: Any


@dataclass(frozen=True)
class Stochastic(Envelope):
    """Theorem 2 (MB-MOMEHA): constants and the steps admissible at t = 0 for its schedules.

    alpha_theta,t = alpha_theta (1 + t)^-q, alpha_x,t and alpha_y,t proportional to its square, and
    1 - beta_t = (1 - beta_0)(alpha_theta,t/alpha_theta)^(2/3): then every condition is hardest at t
    = 0.

    The paper's printed C_x, C_y, C'_theta are replaced by those that its recursions give.  With S =
    2(1 + beta)/(1 - beta), N = S + 1, W = 2/(1 - beta), and twice L_I^2 where the penalty grows
    (see `Merit`):

        Q  = alpha_theta^2 N (C_theta C_e + 2 (alpha_x + alpha_y) W L_I^2) / (1 - 2 alpha_theta^2 W
        L_d^2), C' = W Q L_d^2,   C_x = W N alpha_x L_I^2 + C',   C_y = W N (alpha_x + alpha_y)
        L_I^2 + C'.

    (The printed C' lacks the factor N on C_theta C_e, which is the coefficient of ||e_theta||^2 in
    the merit's difference.)

    Args:
        first_average: 1 - beta_0, the weight of the first draw in the momentum; 1 needs no memory
            of m_0 = 0.
        growing: whether c_t grows.  The directions then drift by (1/c_t - 1/c_{t-1}) grad F beside
            their Lipschitz change.
        alpha_theta: the first step of theta; None is 0.99 u_theta.
        others: L_g, rho_y, L_F, gamma, c0, see `Envelope`.
    """

    first_average: float = 1.0
    growing: bool = False
    alpha_theta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.first_average <= 1:
            raise InvalidInput(
                f"first_average = {self.first_average}; 1 - beta_0 must lie in (0, 1]"
            )
        if self.alpha_theta is None:
            object.__setattr__(self, "alpha_theta", 0.99 * self.u_theta)
        if not 0 < self._alpha <= self.u_theta:
            raise InvalidInput(
                f"alpha_theta = {self._alpha:g} is outside (0, u_theta = {self.u_theta:g}], where "
                "Theorem 2's merit falls"
            )

    @property
    def _alpha(self) -> float:
        assert self.alpha_theta is not None
        return self.alpha_theta

    @property
    def L_d(self) -> float:
        """sqrt((L_g + 1/gamma)^2 + 1/gamma^2): Lipschitz constant of d_theta in (x, y, theta); the
        text takes L_h, which is smaller.
        """
        return math.hypot(self.L_h, 1 / self.gamma)

    @property
    def C_theta(self) -> float:
        """L_g^2 + 2/gamma^2."""
        return self.L_g**2 + 2 * self.gamma**-2

    @property
    def C_e(self) -> float:
        """1/2 + 2/rho_h; the 1/2 holds for alpha_theta <= 1."""
        return 0.5 + 2 / self.rho_h

    @property
    def _L_I_squared(self) -> float:
        return self.L_I**2 * (2 if self.growing else 1)

    def coefficients(self, alpha_theta: Any, alpha_x: Any, alpha_y: Any, beta: Any) -> Coefficients:
        """The merit's weights for the steps and the momentum of one iteration."""
        S = 2 * (1 + beta) / (1 - beta)
        N, W = S + 1, 2 / (1 - beta)
        both = (alpha_x + alpha_y) * W * self._L_I_squared
        Q = (
            alpha_theta**2
            * N
            * (self.C_theta * self.C_e + 2 * both)
            / (1 - 2 * alpha_theta**2 * W * self.L_d**2)
        )
        theta = W * Q * self.L_d**2
        return Coefficients(
            lag=alpha_theta * self.C_theta,
            e_theta=S * alpha_theta**2 * self.C_theta * self.C_e,
            e_x=S * alpha_x,
            e_y=S * alpha_y,
            x=N * W * alpha_x * self._L_I_squared + theta,
            y=N * both + theta,
            theta=theta,
            noise_theta=Q,
            noise=N,
        )

    def _largest(self, alpha_theta: float) -> tuple[float, Coefficients, float]:
        """The bound alpha_theta^2 rho_h/8 of x and y, the coefficients there, N W L_I^2; t = 0."""
        step = alpha_theta**2 * self.rho_h / 8
        beta = 1 - self.first_average
        found = self.coefficients(alpha_theta, step, step, beta)
        return step, found, found.noise * 2 / self.first_average * self._L_I_squared

    def _holds(self, alpha_theta: float) -> bool:
        """Whether the coefficients of ||theta - theta*||^2, ||e_theta||^2 and ||theta - theta_-||^2
        come out negative enough.
        """
        if (
            alpha_theta > min(self.rho_h / (4 * self.L_h**2), 1.0)
            or 4 * alpha_theta**2 * self.L_d**2 > 0.5 * self.first_average
        ):
            return False
        step, found, history = self._largest(alpha_theta)
        total = 2 * step * history + found.theta
        return bool(
            total
            <= min(self.rho_h * self.C_theta / (16 * self.L_h**2), self.C_theta * self.C_e / 4)
        )

    @property
    def u_theta(self) -> float:
        """The largest alpha_theta,0.

        With K = N W (alpha_x + alpha_y) L_I^2 + C': alpha_theta <= min{rho_h/(4 L_h^2), 1}, 4
        alpha_theta^2 L_d^2 <= (1 - beta)/2 and K <= min{rho_h C_theta/(16 L_h^2), C_theta C_e/4},
        at alpha_x = alpha_y = alpha_theta^2 rho_h/8.
        """
        low, high = 0.0, min(self.rho_h / (4 * self.L_h**2), 1.0)
        if self._holds(high):
            return high
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self._holds(middle) else (low, middle)
        return low

    @property
    def C_1(self) -> float:
        """L_I/2 + 2 alpha_y L_theta^2/gamma^2 + C_theta L_theta^2 (alpha_theta + 8/rho_h) + N W
        alpha_y L_I^2 + C_x at t = 0.
        """
        step, found, history = self._largest(self._alpha)
        return (
            self._move
            + 2 * step * self.L_theta**2 / self.gamma**2
            + step * history
            + float(found.x)
        )

    @property
    def C_2(self) -> float:
        """L_I/2 + C_theta L_theta^2 (alpha_theta + 8/rho_h) + C_y at t = 0."""
        return self._move + float(self._largest(self._alpha)[1].y)

    @property
    def _move(self) -> float:
        return self.L_I / 2 + self.C_theta * self.L_theta**2 * (self._alpha + 8 / self.rho_h)

    @property
    def u_x(self) -> float:
        """min{alpha_theta^2 rho_h/8, 1/(4 C_1)}, for alpha_x,0."""
        return min(self._alpha**2 * self.rho_h / 8, 1 / (4 * self.C_1))

    @property
    def u_y(self) -> float:
        """min{alpha_theta^2 rho_h/8, 1/(4 C_2)}, for alpha_y,0."""
        return min(self._alpha**2 * self.rho_h / 8, 1 / (4 * self.C_2))

    @property
    def C_sigma(self) -> float:
        """The constant in the noise term C_sigma alpha_theta,t^2 (1 - beta_t) sigma^2 of every t: N
        (1 - beta) < 4, the rest is largest at t = 0.
        """
        found = self.coefficients(self._alpha, self.u_x, self.u_y, 1 - self.first_average)
        return (
            4
            / float(found.noise)
            * float(found.noise_theta + found.noise * (self.u_x + self.u_y))
            / self._alpha**2
        )

    def outside(self, alpha_theta: float, alpha_x: float, alpha_y: float) -> list[str]:
        """Which first steps exceed their bound, in words with the numbers; empty when none does."""
        bounds = [
            ("alpha_theta,0", alpha_theta, self.u_theta),
            ("alpha_x,0", alpha_x, self.u_x),
            ("alpha_y,0", alpha_y, self.u_y),
        ]
        wrong = exceeding(bounds)
        if alpha_x > alpha_y:
            wrong.append(
                f"alpha_x,0 = {alpha_x:g} exceeds alpha_y,0 = {alpha_y:g}, which Theorem 2's rate "
                "needs to be the larger"
            )
        return wrong
