"""The merit functions of the theorems, watched along a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.momeha import Knobs, MomehaState, Momentum
from bipareto.methods.parts.scalarization import Scalarization
from bipareto.methods.theory.constants import Deterministic
from bipareto.methods.theory.smoothness import lower_bound
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.run.monitors.base import Monitor, squares


class _MeritMonitor(Monitor):
    """V at every state, and the amount by which the lemma says it falls from each state to the
    next.

    The lemma speaks of consecutive iterates: run with `record_every=1`, and `see` the start first.
    """

    def __init__(self, problem: Problem, **options: Any) -> None:
        super().__init__(problem, **options)
        self._promised: list[Tensor] = []
        self._checked = False

    def _check(self, constants: Deterministic | Stochastic, knobs: Knobs) -> None:
        """Refuse another gamma; once, warn of steps that the lemma does not cover."""
        gamma = float(knobs.gamma[0])
        if not abs(gamma - constants.gamma) <= 1e-6 * gamma:
            raise InvalidInput(
                f"the constants are for gamma = {constants.gamma:g}, but the run has gamma = "
                f"{gamma:g}"
            )
        if not self._checked:
            self._checked = True
            zero = torch.zeros_like(knobs.gamma)
            largest = [
                float(schedule(zero).max())
                for schedule in (knobs.alpha_theta, knobs.alpha_x, knobs.alpha_y)
            ]
            for sentence in constants.outside(*largest):
                warnings.warn(f"{sentence}: the merit need not fall", BiparetoWarning, stacklevel=4)

    @property
    def promised(self) -> Tensor:
        """For every state but the last: how far V must fall, at least, to the next one; NaN where
        the next state seen is not the next iterate.
        """
        self._flush()
        return torch.cat(self._promised) if self._promised else torch.zeros(0, dtype=torch.float64)

    @property
    def excess(self) -> Tensor:
        """(V_{t+1} - V_t + promised)/|V_t|: at most zero, up to rounding, where the lemma holds."""
        V = self.values
        return (V[1:] - V[:-1] + self.promised) / V[:-1].abs()

    def _floor(self, f: Tensor, rows: MomehaState) -> Tensor:
        """F_low per row, after a look at z < f, without which it does not hold."""
        if not bool((rows.ideal < f).all()):
            i = int((rows.ideal >= f).any(-1).nonzero()[0])
            raise InvalidInput(
                f"the ideal point {rows.ideal[i].tolist()} is not below the objectives "
                f"{f[i].tolist()} at step {int(rows.t[i])}"
            )
        unit = lower_bound(self.form, f.shape[-1], 1.0)
        return unit / rows.knobs.mu


class Merit(_MeritMonitor):
    """V_t of Theorem 1 and its descent.

    V_t = (F - F_low)/c_t + (g - v_gamma) + C_V ||theta_t - theta*||^2 and, for steps within the
    bounds of `constants`,

        V_t - V_{t+1} >= alpha_theta^2 rho_h^2 C_V ||theta_t - theta*||^2 + ||x_{t+1} - x_t||^2/(4
        alpha_x) + ||y_{t+1} - y_t||^2/(4 alpha_y).

    Args:
        constants: of Theorem 1; gamma must be the run's.
        others: as in `Monitor`.
    """

    overlap = 1

    def __init__(self, problem: Problem, constants: Deterministic, **options: Any) -> None:
        super().__init__(problem, **options)
        self.constants = constants

    def _evaluate(self, states: MomehaState, skip: int) -> Tensor:
        rows, shape = self._rows(states)
        k = rows.knobs
        self._check(self.constants, k)
        look, C_V = self._look(rows), self.constants.C_V
        merit = (
            (look.scalarized - self._floor(look.objectives, rows)) / k.c(rows.t)
            + look.gap
            + C_V * look.lag.square()
        )
        lag, alpha_theta, alpha_x, alpha_y = (
            v.expand(rows.t.shape).reshape(shape)[:-1]
            for v in (look.lag, *(s(rows.t) for s in (k.alpha_theta, k.alpha_x, k.alpha_y)))
        )
        before, after = _neighbours(states)
        promised = (
            (alpha_theta * self.constants.rho_h * lag).square() * C_V
            + squares(after.x, before.x, lag.shape) / (4 * alpha_x)
            + squares(after.y, before.y, lag.shape) / (4 * alpha_y)
        )
        self._promised.append(torch.where(after.t == before.t + 1, promised, torch.nan))
        return merit.reshape(shape)[skip:]


class _Errors(NamedTuple):
    """Squared norms, per row, of the momentum errors m - d of one step, and of the drift of the
    directions with the penalty.
    """

    theta: Tensor
    x: Tensor
    y: Tensor
    drift_x: Tensor
    drift_y: Tensor


class StochasticMerit(_MeritMonitor):
    """V_hat_t of Theorem 2, run by run; its lemma holds for the mean over seeds, see `mean_excess`.

    V_hat is the merit of `constants.Coefficients`, with e_{-1} = m_0 - d_0 at the start, which the
    paper leaves out.  The amount promised is what the lemma's corrected recursions give, less the
    noise (1 - beta)^2 (Q sigma_theta^2 + N (alpha_x sigma_x^2 + alpha_y sigma_y^2)) and, where the
    penalty grows, the drift 2 N W (1/c_{t-1} - 1/c_t)^2 (alpha_x ||grad_x F||^2 + alpha_y ||grad_y
    F||^2).

    The last state seen has no value yet: V_hat's promise at t needs the states before and after.

    Args:
        constants: of Theorem 2; gamma must be the run's.
        variance: sigma^2 of the stochastic directions of theta, x and y; one number for all or
            three.
        others: as in `Monitor`.
    """

    overlap = 2

    def __init__(
        self,
        problem: Problem,
        constants: Stochastic,
        variance: float | tuple[float, float, float],
        **options: Any,
    ) -> None:
        super().__init__(problem, **options)
        self.constants = constants
        self.variance = (variance,) * 3 if isinstance(variance, (int, float)) else variance

    @property
    def mean_excess(self) -> Tensor:
        """(E V_{t+1} - E V_t + E promised)/|E V_t|, means over a front's runs; (records - 1,)."""
        V, promised = self.values.mean(-1), self.promised.mean(-1)
        return (V[1:] - V[:-1] + promised) / V[:-1].abs()

    def _evaluate(self, states: MomehaState, skip: int) -> Tensor:
        if not bool((states.t[1:] == states.t[:-1] + 1).all()):
            raise InvalidInput("the stochastic merit needs every iterate: run with record_every=1")
        if skip == 0 and not bool((states.t[0] == 0).all()):
            raise InvalidInput(
                "the stochastic merit starts at t = 0: call see(method.init(...)) before the run"
            )
        # With the start standing in for the state before it, m_0 - d_0 and zero moves come out as
        # they should.
        if skip == 0:
            states = tree.map_(lambda leaf: torch.cat([leaf[:1], leaf]), states)
        ahead, here, behind = (
            tree.map_(lambda leaf, cut=cut: leaf[cut], states)
            for cut in (slice(2, None), slice(1, -1), slice(-2))
        )
        rows, shape = self._rows(here)
        k = rows.knobs
        self._check(self.constants, k)
        if not k.beta:
            raise InvalidInput(
                "the stochastic merit is that of MB-MOMEHA; this run has no momentum: use Merit "
                "for MOMEHA"
            )
        schedules = (k.alpha_theta, k.alpha_x, k.alpha_y, k.beta, k.c)
        alpha_theta, alpha_x, alpha_y, beta, c = (
            s(rows.t).expand(rows.t.shape).reshape(shape) for s in schedules
        )
        weights = self.constants.coefficients(alpha_theta, alpha_x, alpha_y, beta)
        look = self._look(rows)
        lag = look.lag.reshape(shape)
        errors = self._errors(behind, here, ahead, shape)
        moved = [
            squares(getattr(here, name), getattr(behind, name), shape)
            for name in ("x", "y", "theta")
        ]
        moving = [squares(getattr(ahead, name), getattr(here, name), shape) for name in ("x", "y")]
        penalised = look.scalarized.reshape(shape) - self._floor(look.objectives, rows).reshape(
            shape
        )
        merit = (
            penalised / c
            + look.gap.reshape(shape)
            + weights.lag * lag.square()
            + weights.e_theta * errors.theta
            + weights.e_x * errors.x
            + weights.e_y * errors.y
            + weights.x * moved[0]
            + weights.y * moved[1]
            + weights.theta * moved[2]
        )
        C = self.constants
        kept = 1 - beta**2
        noise = (1 - beta).square() * (
            weights.noise_theta * self.variance[0]
            + weights.noise * (alpha_x * self.variance[1] + alpha_y * self.variance[2])
        )
        drift = (
            2
            * weights.noise
            * 2
            / (1 - beta)
            * (alpha_x * errors.drift_x + alpha_y * errors.drift_y)
        )
        promised = (
            moving[0] / (4 * alpha_x)
            + moving[1] / (4 * alpha_y)
            + kept * (weights.x * moved[0] + weights.y * moved[1] + weights.theta * moved[2])
            + alpha_theta.square() * C.rho_h * C.C_theta / 8 * lag.square()
            + (1 + beta) / 2 * (alpha_x * errors.x + alpha_y * errors.y)
            + (1 + beta) / 4 * alpha_theta.square() * C.C_theta * C.C_e * errors.theta
            - noise
            - drift
        )
        self._promised.append(promised)
        return merit

    @property
    def promised(self) -> Tensor:
        """For every value but the last: how far V_hat must fall in expectation, at least; negative
        where the noise may lift it.
        """
        self._flush()
        return (
            torch.cat(self._promised)[:-1]
            if self._promised
            else torch.zeros(0, dtype=torch.float64)
        )

    def _errors(
        self, behind: MomehaState, here: MomehaState, ahead: MomehaState, shape: torch.Size
    ) -> _Errors:
        """e = m_t - d_{t-1}; at the start, where `behind` is `here`, m_0 - d_0."""
        first = here.t == behind.t
        # The directions of the step that led here; those of the step ahead at the start.
        end = tree.where_run(first, ahead, here)
        flat = [self._rows(states)[0] for states in (behind, end, here)]
        found = torch.func.vmap(_momentum_errors(self.problem, self.form))(*flat)
        return _Errors(*(value.reshape(shape) for value in found))


def _momentum_errors(
    problem: Problem, form: Scalarization
) -> Callable[[MomehaState, MomehaState, MomehaState], _Errors]:
    upper, lower = problem.batch("upper", "full"), problem.batch("lower", "full")

    def errors(start: MomehaState, end: MomehaState, here: MomehaState) -> _Errors:
        """The directions of the step start -> end against the momenta of `here`."""
        x, y, theta, knobs, m = start.x, start.y, start.theta, start.knobs, here.momentum
        assert isinstance(m, Momentum)
        c, gamma = knobs.c(start.t), knobs.gamma

        def F(x_: Tree, y_: Tree) -> Tensor:
            return form.value(problem.upper(x_, y_, upper), start.importance, start.ideal, knobs.mu)

        d_theta = torch.func.grad(lambda v: problem.lower(x, v, lower))(theta)
        e_theta = tree.map_(lambda a, d, u, v: a - d - (u - v) / gamma, m.theta, d_theta, theta, y)
        F_x = torch.func.grad(F, argnums=0)(x, y)
        d_x = torch.func.grad(
            lambda v: problem.lower(v, y, lower) - problem.lower(v, end.theta, lower)
        )(x)
        e_x = tree.map_(lambda a, f, d: a - f / c - d, m.x, F_x, d_x)
        F_y = torch.func.grad(F, argnums=1)(end.x, y)
        d_y = torch.func.grad(lambda v: problem.lower(end.x, v, lower))(y)
        e_y = tree.map_(
            lambda a, f, d, u, v: a - f / c - d - (u - v) / gamma, m.y, F_y, d_y, end.theta, y
        )
        change = (1 / c - 1 / knobs.c(here.t)).square()
        own_theta, own_x, own_y, tilt_x, tilt_y = map(
            tree.squared_norm, (e_theta, e_x, e_y, F_x, F_y)
        )
        return _Errors(own_theta, own_x, own_y, change * tilt_x, change * tilt_y)

    return errors


def _neighbours(states: MomehaState) -> tuple[MomehaState, MomehaState]:
    return tree.map_(lambda leaf: leaf[:-1], states), tree.map_(lambda leaf: leaf[1:], states)
