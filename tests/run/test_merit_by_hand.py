"""Both merits and what their lemmas promise, term by term as the formulas are printed."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods.momeha import MomehaState
from bipareto.methods.parts import envelope
from bipareto.methods.parts.schedule import Complement, Constant, Power
from bipareto.methods.theory.constants import Deterministic
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.problem import tree
from bipareto.run.monitors import Gap, Merit, Stationarity, StochasticMerit, Tracking
from helpers import nonconvex

GAMMA, MU, STEPS = 0.1, 1.3, 5
grad = torch.func.grad


def walk(method: bp.MOMEHA, preference: list[float]) -> tuple[bp.Problem, list[MomehaState]]:
    problem, x, y = nonconvex(d=2, seed=3)
    states = [method.init(problem, x, y, preference)]
    for _ in range(STEPS):
        states.append(method.step(problem, states[-1])[0])
    return problem, states


class At:
    """Everything at one state, from the definitions."""

    def __init__(self, problem: bp.Problem, state: MomehaState) -> None:
        self.problem, self.state = problem, state
        x, y = state.x, state.y
        star = envelope.proximal_point(problem, x[None], y[None], GAMMA, tol=1e-13).y[0]
        self.lag = float((state.theta - star).norm())
        self.gap = float(
            problem.lower(x, y) - problem.lower(x, star) - (star - y).square().sum() / (2 * GAMMA)
        )
        w, z = state.preference, state.ideal

        def F(x: Tensor, y: Tensor) -> Tensor:
            return torch.logsumexp(MU * w * (problem.upper(x, y) - z), 0) / MU

        self.F = F
        self.above = float(F(x, y)) - math.log(2) / MU
        tau = torch.softmax(MU * w * (problem.upper(x, y) - z), 0)
        self.s = float((w * tau).sum())
        g_x = grad(problem.lower)(x, y) - grad(problem.lower)(x, star)
        g_y = grad(problem.lower, argnums=1)(x, y) - (y - star) / GAMMA
        self.normal = torch.cat([g_x, g_y])
        self.slope = torch.cat([grad(F)(x, y), grad(F, argnums=1)(x, y)])


PREFERENCE = [0.3, 0.7]
SCHEDULES: dict[str, Any] = {
    "gamma": GAMMA,
    "mu": MU,
    "alpha_theta": Power(0.004, -0.3),
    "alpha_x": Power(0.002, -0.2),
    "alpha_y": Power(0.003, -0.1),
}


@pytest.mark.filterwarnings("ignore::bipareto.errors.BiparetoWarning")
@pytest.mark.parametrize("c", [Constant(2.0), Power(2.0, 0.4)])
def test_the_merit_of_theorem_1(c: Constant | Power) -> None:
    problem, states = walk(bp.MOMEHA(**SCHEDULES, c=c), PREFERENCE)
    bounds = Deterministic(L_g=5.0, rho_y=2.0, L_F=3.0, gamma=GAMMA, c0=2.0)
    merit = Merit(problem, bounds, tol=1e-13)
    gap, lag, stationarity = (kind(problem, tol=1e-13) for kind in (Gap, Tracking, Stationarity))
    for state in states:
        for monitor in (merit, gap, lag, stationarity):
            monitor.see(state)
    C_V = 25 + 100
    rho_h = 10 - 2
    for t, state in enumerate(states):
        at, time = At(problem, state), torch.tensor(float(t)).double()
        V = at.above / float(c(time)) + at.gap + C_V * at.lag**2
        assert float(merit.values[t]) == pytest.approx(V, rel=1e-9)
        assert float(gap.values[t]) == pytest.approx(at.gap, rel=1e-6, abs=1e-12)
        assert float(lag.values[t]) == pytest.approx(at.lag, rel=1e-6, abs=1e-9)
        before = float(c((time - 1).clamp_min(0)))
        H = float((at.slope + before * at.normal).norm()) / at.s
        assert float(stationarity.values[t]) == pytest.approx(H, rel=1e-9)
        if t < STEPS:
            after = states[t + 1]
            a_theta, a_x, a_y = (
                float(SCHEDULES[name](time)) for name in ("alpha_theta", "alpha_x", "alpha_y")
            )
            promised = (
                (a_theta * rho_h * at.lag) ** 2 * C_V
                + float((after.x - state.x).square().sum()) / (4 * a_x)
                + float((after.y - state.y).square().sum()) / (4 * a_y)
            )
            assert float(merit.promised[t]) == pytest.approx(promised, rel=1e-7)
            excess = (merit.values[t + 1] - merit.values[t] + promised) / merit.values[t].abs()
            assert float(merit.excess[t]) == pytest.approx(float(excess), abs=1e-12)


@pytest.mark.filterwarnings("ignore::bipareto.errors.BiparetoWarning")
@pytest.mark.parametrize("growing", [True, False])
def test_the_merit_of_theorem_2(growing: bool) -> None:
    c = Power(2.0, 0.4) if growing else Constant(2.0)
    beta = Complement(0.6, -0.2)
    problem, states = walk(bp.MBMOMEHA(**SCHEDULES, c=c, beta=beta), PREFERENCE)
    k = Stochastic(
        L_g=5.0, rho_y=2.0, L_F=3.0, gamma=GAMMA, c0=2.0, first_average=0.6, growing=growing
    )
    sigma = (0.3, 0.5, 0.7)
    merit = StochasticMerit(problem, k, sigma, tol=1e-13)
    late = StochasticMerit(problem, k, sigma, tol=1e-13)
    for state in states[1:]:
        late.see(tree.stack([state]))
    with pytest.raises(InvalidInput, match="starts at t = 0"):
        _ = late.values
    for state in states:
        merit.see(tree.stack([state]))
    L_h, rho_h = 15.0, 8.0
    L_theta = L_h / rho_h
    L_I = 3.0 / 2 + 5 + 5 * math.hypot(1, L_theta) + (1 + L_theta) * 10
    L2 = L_I**2 * (2 if growing else 1)
    L_d, C_theta, C_e = math.hypot(15, 10), 25 + 200, 0.5 + 2 / rho_h
    for t in range(STEPS):
        here, behind, ahead = states[t], states[max(t - 1, 0)], states[t + 1]
        end = ahead if t == 0 else here
        at, from_ = At(problem, here), At(problem, behind)
        time = torch.tensor(float(t)).double()
        a_theta, a_x, a_y, b, c_t = (
            float(s(time))
            for s in (*(SCHEDULES[f"alpha_{n}"] for n in ("theta", "x", "y")), beta, c)
        )
        c_b = float(c((time - 1).clamp_min(0)))
        x, y, theta, m = behind.x, behind.y, behind.theta, here.momentum
        g_x, g_y = grad(problem.lower), grad(problem.lower, argnums=1)
        F_x, F_y = grad(from_.F)(x, y), grad(from_.F, argnums=1)(end.x, y)
        e_theta = m.theta - g_y(x, theta) - (theta - y) / GAMMA
        e_x = m.x - F_x / c_b - g_x(x, y) + g_x(x, end.theta)
        e_y = m.y - F_y / c_b - g_y(end.x, y) + (y - end.theta) / GAMMA
        E_theta, E_x, E_y = (float(e.square().sum()) for e in (e_theta, e_x, e_y))
        drift = (1 / c_b - 1 / c_t) ** 2
        S, W = 2 * (1 + b) / (1 - b), 2 / (1 - b)
        N = S + 1
        both = (a_x + a_y) * W * L2
        Q = a_theta**2 * N * (C_theta * C_e + 2 * both) / (1 - 2 * a_theta**2 * W * L_d**2)
        own = W * Q * L_d**2
        C_x, C_y = N * W * a_x * L2 + own, N * both + own
        moved = [
            float((u - v).square().sum())
            for u, v in ((here.x, x), (here.y, y), (here.theta, theta))
        ]
        V = (
            at.above / c_t
            + at.gap
            + a_theta * C_theta * at.lag**2
            + S * a_theta**2 * C_theta * C_e * E_theta
            + S * a_x * E_x
            + S * a_y * E_y
            + C_x * moved[0]
            + C_y * moved[1]
            + own * moved[2]
        )
        assert float(merit.values[t, 0]) == pytest.approx(V, rel=1e-9)
        if t == STEPS - 1:
            break
        noise = (1 - b) ** 2 * (Q * sigma[0] + N * (a_x * sigma[1] + a_y * sigma[2]))
        tilt = a_x * float(F_x.square().sum()) + a_y * float(F_y.square().sum())
        promised = (
            float((ahead.x - here.x).square().sum()) / (4 * a_x)
            + float((ahead.y - here.y).square().sum()) / (4 * a_y)
            + (1 - b**2) * (C_x * moved[0] + C_y * moved[1] + own * moved[2])
            + a_theta**2 * rho_h * C_theta / 8 * at.lag**2
            + (1 + b) / 2 * (a_x * E_x + a_y * E_y)
            + (1 + b) / 4 * a_theta**2 * C_theta * C_e * E_theta
            - noise
            - 2 * N * W * drift * tilt
        )
        assert float(merit.promised[t, 0]) == pytest.approx(promised, rel=1e-7)
    # The lemma speaks of means over runs; two equal ones have the mean of one.
    both = StochasticMerit(problem, k, sigma, tol=1e-13)
    for state in states:
        both.see(tree.stack([state, state]))
    V, fall = merit.values[:, 0], merit.promised[:, 0]
    wanted = (V[1:] - V[:-1] + fall) / V[:-1].abs()
    torch.testing.assert_close(both.mean_excess, wanted)
    torch.testing.assert_close(merit.excess[:, 0], wanted)


def test_steps_outside_the_lemma_are_named_once() -> None:
    seen: list[tuple[float, ...]] = []
    constants: Any = SimpleNamespace(
        gamma=0.1, outside=lambda *steps: seen.append(steps) or ["far"]
    )
    monitor = Merit(nonconvex()[0], constants)
    knobs: Any = SimpleNamespace(
        gamma=torch.tensor([0.1]), alpha_theta=_fixed(0.1), alpha_x=_fixed(0.2),
        alpha_y=_fixed(0.3),
    )  # fmt: skip

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            monitor._check(constants, knobs)
    assert [str(w.message) for w in caught] == ["far: the merit need not fall"]
    assert seen == [pytest.approx((0.1, 0.2, 0.3))]
    constants.gamma = 0.11
    with pytest.raises(InvalidInput, match="gamma"):
        monitor._check(constants, knobs)


def _fixed(value: float) -> Any:
    return Constant(torch.tensor(value))
