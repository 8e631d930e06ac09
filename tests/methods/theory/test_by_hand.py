"""Every constant of both theorems, written out once more from the formulas."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.methods.parts import envelope, scalarization
from bipareto.methods.parts.schedule import Constant, Power
from bipareto.methods.theory.constants import Deterministic, best_gamma
from bipareto.methods.theory.smoothness import (
    Smoothness,
    estimate,
    lower_bound,
    scalarized_smoothness,
    start_merit,
)
from bipareto.methods.theory.stochastic import Stochastic
from helpers import DOUBLE, nonconvex

L_G, RHO_Y, L_F, GAMMA, C0 = 5.0, 2.0, 3.0, 0.1, 2.0
L_H, RHO_H = 15.0, 8.0
L_THETA = L_H / RHO_H
L_V = L_G * math.sqrt(1 + L_THETA**2) + (1 + L_THETA) / GAMMA
L_I = L_F / C0 + L_G + L_V


@pytest.mark.parametrize("T", [10, 1000])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.4])
def test_the_rate_s_constant_of_theorem_1(T: int, p: float) -> None:
    k = Deterministic(L_G, RHO_Y, L_F, GAMMA, C0, alpha_theta=0.05)
    a_x, a_y, V = 0.003, 0.002, 7.0
    C_V = L_G**2 + 100
    C_D = 4 * max(
        L_H**2 / (0.05**2 * RHO_H**2 * C_V),
        4 * a_x * ((1 / a_x + L_THETA / GAMMA) ** 2 + L_I**2),
        4 * a_y * ((L_I + 1 / a_y) ** 2 + L_I**2),
    )
    assert k.C_D(a_x, a_y) == pytest.approx(C_D)
    # each of the three terms decides somewhere
    assert k.C_D(1.0, 1.0) == pytest.approx(
        16 * max((1 + L_THETA / GAMMA) ** 2, (L_I + 1) ** 2) + 16 * L_I**2
    )
    slow = Deterministic(L_G, RHO_Y, L_F, GAMMA, C0, alpha_theta=1e-6)
    assert slow.C_D(a_x, a_y) == pytest.approx(4 * L_H**2 / (1e-12 * RHO_H**2 * C_V))
    # sum over t <= T of (1 + t)^(-2p), from below by its integral from 1 to T + 2
    travelled = ((T + 2) ** (1 - 2 * p) - 1) / (1 - 2 * p)
    assert travelled <= sum((1 + t) ** (-2 * p) for t in range(T + 1))
    bound = k.stationarity_bound(T, V, a_x, a_y, power=p, smallest_weight=0.25)
    assert bound == pytest.approx(C0 * math.sqrt(C_D * V / travelled) / 0.25)


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("average", [1.0, 0.5])
def test_the_constants_of_theorem_2(growing: bool, average: float) -> None:
    free = Stochastic(L_G, RHO_Y, L_F, GAMMA, C0, first_average=average, growing=growing)
    assert free.alpha_theta == pytest.approx(0.99 * free.u_theta)
    alpha = 0.5 * free.u_theta
    k = Stochastic(
        L_G, RHO_Y, L_F, GAMMA, C0, first_average=average, growing=growing, alpha_theta=alpha
    )
    beta = 1 - average
    S, W = 2 * (1 + beta) / (1 - beta), 2 / (1 - beta)
    N = S + 1
    L2 = L_I**2 * (2 if growing else 1)
    L_d2 = L_H**2 + 100
    C_theta, C_e = L_G**2 + 200, 0.5 + 2 / RHO_H

    def at(alpha: float, a_x: float, a_y: float) -> tuple[float, float, float, float]:
        both = (a_x + a_y) * W * L2
        Q = alpha**2 * N * (C_theta * C_e + 2 * both) / (1 - 2 * alpha**2 * W * L_d2)
        own = W * Q * L_d2
        return Q, own, N * W * a_x * L2 + own, N * both + own

    def holds(alpha: float) -> bool:
        step = alpha**2 * RHO_H / 8
        K = N * W * 2 * step * L2 + at(alpha, step, step)[1]
        return (
            alpha <= min(RHO_H / (4 * L_H**2), 1)
            and 4 * alpha**2 * L_d2 <= average / 2
            and min(RHO_H * C_theta / (16 * L_H**2), C_theta * C_e / 4) >= K
        )

    assert holds(k.u_theta * (1 - 1e-9))
    assert not holds(k.u_theta * (1 + 1e-9))
    step = alpha**2 * RHO_H / 8
    _, _, C_x, C_y = at(alpha, step, step)
    move = L_I / 2 + C_theta * L_THETA**2 * (alpha + 8 / RHO_H)
    C_1 = move + 2 * step * L_THETA**2 / GAMMA**2 + N * W * step * L2 + C_x
    assert pytest.approx(C_1) == k.C_1
    assert pytest.approx(move + C_y) == k.C_2
    u_x, u_y = min(step, 1 / (4 * k.C_1)), min(step, 1 / (4 * k.C_2))
    assert (k.u_x, k.u_y) == pytest.approx((u_x, u_y))
    Q = at(alpha, u_x, u_y)[0]
    assert pytest.approx(4 / N * (Q + N * (u_x + u_y)) / alpha**2) == k.C_sigma
    found = k.coefficients(0.01, 0.002, 0.003, beta)
    Q, own, C_x, C_y = at(0.01, 0.002, 0.003)
    expected = (0.01 * C_theta, S * 1e-4 * C_theta * C_e, S * 0.002, S * 0.003, C_x, C_y, own, Q, N)
    assert tuple(found) == pytest.approx(expected)


def test_steps_outside_theorem_2_are_named_one_by_one() -> None:
    k = Stochastic(L_G, RHO_Y, L_F, GAMMA, C0)
    inside = k.u_theta, k.u_x * 0.5, k.u_x * 0.5
    assert k.outside(*inside) == []
    for i, name in enumerate(("alpha_theta,0", "alpha_x,0", "alpha_y,0")):
        steps = [*inside]
        steps[i] = 10 * (k.u_theta, k.u_x, k.u_y)[i]
        wrong = k.outside(*steps)
        assert any(sentence.startswith(f"{name} = ") for sentence in wrong)
    (larger,) = k.outside(k.u_theta, 0.5 * k.u_x, 0.4 * k.u_x)
    assert "exceeds alpha_y,0" in larger
    for alpha in (0.0, 1.01 * k.u_theta):
        with pytest.raises(bp.errors.InvalidInput, match="Theorem 2's merit"):
            Stochastic(L_G, RHO_Y, L_F, GAMMA, C0, alpha_theta=alpha)
    for average in (0.0, 1.1):
        with pytest.raises(bp.errors.InvalidInput, match="first_average"):
            Stochastic(L_G, RHO_Y, L_F, GAMMA, C0, first_average=average)


def test_what_v_0_has_besides_f() -> None:
    problem, x, y = nonconvex(d=2, seed=1)
    star = envelope.proximal_point(problem, x[None], y[None], 0.2, tol=1e-12).y[0]
    distance = float((star - y).square().sum())
    gap = float(problem.lower(x, y) - problem.lower(x, star)) - distance / 0.4
    assert start_merit(problem, x, y, 3.0, 0.2) == pytest.approx(gap + 34 * distance, rel=1e-6)


def test_constants_of_a_quadratic_are_probed_exactly() -> None:
    """With constant Hessians L_g, L_f and rho_y are extreme eigenvalues, and a quarter more."""
    stream = torch.Generator().manual_seed(0)
    H, P, Q = (a + a.T for a in torch.randn(3, 4, 4, generator=stream, dtype=DOUBLE))

    def half(M: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        v = torch.cat([x, y])
        return v @ M @ v / 2

    problem = bp.Problem(
        lambda x, y: torch.stack([half(P, x, y), half(Q, x, y)]) + 100, lambda x, y: half(H, x, y)
    )
    zero = torch.zeros(2, dtype=DOUBLE)
    found = estimate(problem, zero, zero, count=2)
    size = lambda M: float(torch.linalg.eigvalsh(M).abs().max())  # noqa: E731
    assert found == pytest.approx(
        Smoothness(
            1.25 * size(H),
            1.25 * max(size(P), size(Q)),
            1.25 * max(0.0, -float(torch.linalg.eigvalsh(H[2:, 2:])[0])),
        ),
        rel=1e-6,
    )


def test_the_smoothness_of_stch_is_the_printed_one() -> None:
    """max w L_f + (mu/4) (sqrt(2 L_f l) (sqrt(w_i) + sqrt(w_j)))^2 for the two largest weights."""
    stch = scalarization.get("stch")
    w, mu, level, L_f = [0.2, 0.5, 0.3], 1.7, 2.5, 3.0
    spread = math.sqrt(2 * L_f * level) * (math.sqrt(0.5) + math.sqrt(0.3))
    expected = 0.5 * L_f + mu / 4 * spread**2
    assert scalarized_smoothness(stch, L_f, w, mu, level) == pytest.approx(expected)
    assert scalarized_smoothness(stch, L_f, w, mu, level, spread=0.1) == pytest.approx(
        0.5 * L_f + mu / 4 * 0.01
    )
    assert lower_bound(stch, 3, mu) == pytest.approx(math.log(3) / mu)


@pytest.mark.parametrize("fraction", [0.5, 0.99])
def test_admissible_steps_of_theorem_2_are_at_their_fraction(fraction: float) -> None:
    problem = bp.problems.get("quadratic", dim=3)
    method = bp.MBMOMEHA.admissible(
        problem, problem.x0, problem.y0, constants=problem.constants, fraction=fraction, c0=3.0
    )
    bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
    assert isinstance(bounds, Stochastic)
    assert bounds.c0 == 3.0
    scales = [getattr(method, f"alpha_{name}").scale for name in ("theta", "x", "y")]
    y = fraction * bounds.u_y
    expected = [fraction * bounds.u_theta, min(fraction * bounds.u_x, y), y]
    assert scales == pytest.approx(expected, rel=1e-6)
    assert bounds.outside(*scales) == []


@pytest.mark.parametrize("radius", [None, 0.5])
def test_where_smoothness_is_looked_for(radius: float | None) -> None:
    """At the start, at the lower solution and around both, up to their distance or a radius."""
    problem = bp.Problem(
        lambda x, y: torch.stack([(x**4).sum() + (y**2).sum(), (x**2 + y**4).sum()]),
        lambda x, y: (
            ((y - 5) ** 4 / 12 + torch.cos(3 * (y - 5)) / 9 + (y - 5) ** 2).sum()
            + (x * x * y).sum()
        ),
    )
    x, y = torch.zeros(1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE)
    found = estimate(problem, x, y, radius=radius, count=6, seed=3)
    settled = envelope.solve_lower(problem, x[None], y[None], tol=1e-9).y[0]
    points = [torch.cat([x, y]), torch.cat([x, settled])]
    reach = float((settled - y).abs()) if radius is None else radius
    assert reach > 1 or radius is not None
    stream = torch.Generator().manual_seed(3)
    for i, share in enumerate(torch.linspace(0.1, 1, 6, dtype=DOUBLE).tolist()):
        points.append(points[i % 2] + share * reach * torch.randn(2, generator=stream).double())

    def largest(fn: object) -> float:
        values = [torch.linalg.eigvalsh(torch.func.hessian(fn)(p)) for p in points]  # type: ignore[arg-type]
        return float(torch.stack(values).abs().max())

    g = lambda p: problem.lower(p[:1], p[1:])  # noqa: E731
    in_y = [float(torch.func.hessian(g)(p)[1, 1]) for p in points]
    L_f = max(largest(lambda p, i=i: problem.upper(p[:1], p[1:])[i]) for i in range(2))
    wanted = Smoothness(1.25 * largest(g), 1.25 * L_f, 1.25 * max(0.0, -min(in_y)))
    assert found == pytest.approx(wanted, rel=1e-3)


def test_the_bound_of_theorem_2_where_curvature_is_small() -> None:
    """K <= min{rho_h C_theta/(16 L_h^2), C_theta C_e/4}, and the first is always the smaller."""
    for L_g, gamma in ((0.025, 40.0), (5.0, 0.1), (1e-3, 1e3)):
        k = Stochastic(L_g, 0.0, 1e-3, gamma, 100.0)
        first, second = k.rho_h * k.C_theta / (16 * k.L_h**2), k.C_theta * k.C_e / 4
        assert first < second

        def total(alpha: float, k: Stochastic = k) -> float:
            step = alpha**2 * k.rho_h / 8
            found = k.coefficients(alpha, step, step, 0.0)
            return 2 * step * float(found.noise) * 2 * k.L_I**2 + float(found.theta)

        at, beyond = total(k.u_theta), total(k.u_theta * (1 + 1e-6))
        assert at <= first * (1 + 1e-9)
        other = k.rho_h / (4 * k.L_h**2), 1.0, math.sqrt(1 / 8) / k.L_d
        assert beyond > first or k.u_theta == pytest.approx(min(other))


def test_a_large_c_1_or_c_2_bounds_the_steps_of_theorem_2() -> None:
    """u_x = min{alpha_theta^2 rho_h/8, 1/(4 C_1)}; for real constants the first is the smaller."""

    class Stiff(Stochastic):
        C_1 = 1e9  # type: ignore[assignment]
        C_2 = 2e9  # type: ignore[assignment]

    k = Stiff(L_G, RHO_Y, L_F, GAMMA, C0)
    assert (k.u_x, k.u_y) == pytest.approx((1 / 4e9, 1 / 8e9))


def test_the_bounds_of_theorem_1_where_either_term_decides() -> None:
    class Soft(Deterministic):
        C_1 = 1e-9  # type: ignore[assignment]
        C_2 = 1e-9  # type: ignore[assignment]

    k = Soft(L_G, RHO_Y, L_F, GAMMA, C0, alpha_theta=0.05)
    assert (k.u_x, k.u_y) == pytest.approx((0.05 * RHO_H, 0.05 * RHO_H / 2))
    real = Deterministic(L_G, RHO_Y, L_F, GAMMA)
    assert real.c0 == 1.0
    assert real.alpha_theta == pytest.approx(0.99 * 2 / (L_H + RHO_H))
    assert (real.u_x, real.u_y) == pytest.approx((0.25 / real.C_1, 0.25 / real.C_2))
    plain = real.stationarity_bound(50, 3.0, 0.01, 0.02)
    assert plain == real.stationarity_bound(50, 3.0, 0.01, 0.02, power=0.0, smallest_weight=1.0)
    for power in (-0.1, 0.5):
        with pytest.raises(bp.errors.InvalidInput, match="0 <= power < 1/2"):
            real.stationarity_bound(50, 3.0, 0.01, 0.02, power=power)
    good = {"L_g": 1.0, "rho_y": 0.0, "L_F": 0.0, "gamma": 0.1, "c0": 1.0}
    assert pytest.approx(1.0 + Deterministic(**good).L_v) == Deterministic(**good).L_I
    for name, wrong in (("L_g", 0.0), ("gamma", 0.0), ("c0", 0.0), ("rho_y", -1.0), ("L_F", -1.0)):
        for value in (wrong, math.nan):
            with pytest.raises(bp.errors.InvalidInput, match=f"{name} = "):
                Deterministic(**good | {name: value})


@pytest.mark.parametrize("rho_y", [2.0, 0.0])
def test_the_best_gamma_is_that_of_three_decades(rho_y: float) -> None:
    largest = 0.499 / rho_y if rho_y else 100 / 7.0
    grid = [largest * 10 ** (-3 * i / 100) for i in range(101)]
    steps = [Deterministic(7.0, rho_y, 1.5, gamma, 4.0).u_y for gamma in grid]
    assert best_gamma(7.0, rho_y, 1.5, 4.0) == pytest.approx(grid[steps.index(max(steps))])
    assert best_gamma(7.0, rho_y, 1.5) == best_gamma(7.0, rho_y, 1.5, 1.0)


def test_smoothness_is_asked_for_where_the_merit_keeps_the_run() -> None:
    """L_F on the set F <= F_0 + c_0 (V_0 less F's part), for the run's own w, mu, z and gamma."""
    problem, x, y = nonconvex(d=2, seed=1)
    known, w, mu, gamma = Smoothness(6.0, 2.5, 1.0), [0.3, 0.7], 1.3, 0.2
    method = bp.MOMEHA(gamma=gamma, mu=mu, c=Power(3.0, 0.2), ideal=-2.0, alpha_theta=1e-3)
    found = method.bounds(problem, x, y, constants=known, preference=w)
    stch = scalarization.get("stch")
    weights = torch.tensor(w, dtype=DOUBLE)
    low = torch.full((2,), -2.0, dtype=DOUBLE)
    F = float(stch.value(problem.upper(x, y), weights, low, torch.tensor(mu, dtype=DOUBLE)))
    level = F + 3.0 * start_merit(problem, x, y, 6.0, gamma)
    assert pytest.approx(scalarized_smoothness(stch, 2.5, w, mu, level)) == found.L_F
    assert (found.L_g, found.rho_y, found.gamma, found.c0) == (6.0, 1.0, gamma, 3.0)
    assert found.alpha_theta == pytest.approx(1e-3)
    # A step that is not admissible has no say.
    other = dataclasses.replace(method, alpha_theta=9.0).bounds(problem, x, y, constants=known)
    assert other.alpha_theta == pytest.approx(0.99 * other.u_theta)
    noisy = bp.MBMOMEHA(gamma=gamma, mu=mu, c=3.0, ideal=-2.0, alpha_theta=1e-9, beta=0.6)
    stochastic = noisy.bounds(problem, x, y, constants=known, preference=w)
    assert isinstance(stochastic, Stochastic)
    assert stochastic.first_average == pytest.approx(0.4)
    assert not stochastic.growing
    assert stochastic.alpha_theta == pytest.approx(1e-9)
    with pytest.raises(bp.errors.InvalidInput, match="fraction"):
        bp.MBMOMEHA.admissible(problem, x, y, constants=known, fraction=0.0)
    whole = bp.MOMEHA.admissible(problem, x, y, constants=known, fraction=1.0, c=Power(2.0, 0.0))
    assert whole.c == Constant(2.0)
    with pytest.raises(bp.errors.InvalidInput, match="0 <= p < 1/2"):
        bp.MOMEHA.admissible(problem, x, y, constants=known, c=Power(2.0, 0.5))


def test_each_step_can_decide_the_constant_of_theorem_1() -> None:
    k = Deterministic(L_G, RHO_Y, L_F, GAMMA, C0, alpha_theta=0.05)
    for short in (1e-6, 1e-4):
        in_x = 4 * short * ((1 / short + L_THETA / GAMMA) ** 2 + L_I**2)
        in_y = 4 * short * ((L_I + 1 / short) ** 2 + L_I**2)
        assert k.C_D(short, 1.0) == pytest.approx(4 * in_x)
        assert k.C_D(1.0, short) == pytest.approx(4 * in_y)


def test_a_slow_average_bounds_the_step_of_theta() -> None:
    """4 alpha^2 L_d^2 <= a/2 fails for a small a, where all else holds."""
    k = Stochastic(0.1, 0.0, 0.1, 0.01, 1.0, first_average=0.01, growing=False)
    assert min(k.rho_h / (4 * k.L_h**2), 1.0) >= 1e-3
    step, found, history = k._largest(1e-3)
    total = 2 * step * history + found.theta
    assert total <= min(k.rho_h * k.C_theta / (16 * k.L_h**2), k.C_theta * k.C_e / 4)
    assert 4e-6 * k.L_d**2 > 0.5 * 0.01
    assert not k._holds(1e-3)


def test_the_constant_c_1_and_what_theta_s_step_must_keep_term_by_term() -> None:
    """With numbers that make every term count."""
    found = SimpleNamespace(x=7.0, theta=0.5)
    case: Any = SimpleNamespace(
        _largest=lambda alpha: (0.3, found, 11.0), _alpha=0.1, _move=5.0, L_theta=3.0, gamma=0.2,
        rho_h=2.0, L_h=0.5, L_d=4.0, first_average=1.0, C_theta=6.0, C_e=8.0,
    )  # fmt: skip
    C_1 = 5.0 + 2 * 0.3 * 9 / 0.04 + 0.3 * 11.0 + 7.0
    assert Stochastic.C_1.fget(case) == pytest.approx(C_1)  # type: ignore[attr-defined]
    # alpha <= min(rho_h/(4 L_h^2), 1) = 1; 4 alpha^2 16 <= a/2; 2 * 0.3 * 11 + 0.5 = 7.1 must be at
    # most min(2 * 6/(16/4), 6 * 8/4) = min(3, 12), then min(30, 12) and min(30, 5).
    holds = Stochastic._holds
    assert not holds(case, 0.05)
    case.rho_h = 20.0
    assert holds(case, 0.05)
    for average, kept in ((0.33, True), (0.31, False)):
        case.first_average = average
        assert holds(case, 0.05) is kept
    case.first_average, case.C_e = 1.0, 8.0 * 5 / 12
    assert not holds(case, 0.05)
    case.C_e = 8.0
    found.theta = -6.6 + 12.1
    assert not holds(case, 0.05)
    found.theta = -6.6 + 11.9
    assert holds(case, 0.05)
    case.L_d = 1e-9
    for alpha, kept in ((0.99, True), (1.01, False)):
        assert holds(case, alpha) is kept
