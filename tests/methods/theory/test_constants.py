from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.schedule import Complement, Constant, Power
from bipareto.methods.theory.constants import Deterministic, best_gamma
from bipareto.methods.theory.smoothness import (
    Smoothness,
    estimate,
    lower_bound,
    scalarized_smoothness,
)
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.methods.tuning.envelope_methods import tune_momeha
from helpers import DOUBLE

STCH = scalarization.get("stch")
EXAMPLE = Deterministic(L_g=4.0, rho_y=1.0, L_F=2.0, gamma=0.25, c0=2.0, alpha_theta=0.1)


def test_constants_of_theorem_1_by_hand() -> None:
    # rho_h = 4 - 1, L_h = 4 + 4, L_theta = 8/3, u_theta = 2/11, C_V = 16 + 16
    assert (EXAMPLE.rho_h, EXAMPLE.L_h, EXAMPLE.C_V) == (3.0, 8.0, 32.0)
    assert pytest.approx(8 / 3) == EXAMPLE.L_theta
    assert pytest.approx(2 / 11) == EXAMPLE.u_theta
    assert pytest.approx(4 * math.sqrt(1 + 64 / 9) + 4 * (1 + 8 / 3)) == EXAMPLE.L_v
    assert pytest.approx(1 + 4 + EXAMPLE.L_v) == EXAMPLE.L_I
    # The factor is 1 + 2/(alpha_theta rho_h) = 1 + 2/0.3, not the text's 1 + 2/0.1.
    lag = (1 + 2 / 0.3) * 32 * 64 / 9
    assert pytest.approx(EXAMPLE.L_I / 2 + lag) == EXAMPLE.C_2
    assert pytest.approx(EXAMPLE.L_I / 2 + lag + 0.3 * (64 / 9) * 16 / 2) == EXAMPLE.C_1
    assert pytest.approx(min(1 / (4 * EXAMPLE.C_1), 0.3)) == EXAMPLE.u_x
    assert pytest.approx(min(1 / (4 * EXAMPLE.C_2), 0.15)) == EXAMPLE.u_y


def test_admissible_steps_lie_where_maxima_attract() -> None:
    for name in ("quadratic", "pl-sin2", "sin", "bistable"):
        known = bp.problems.get(name).constants
        for gamma in (0.05, 0.2, 0.4 / max(known.rho_y, 1.0)):
            if gamma * 2 * known.rho_y >= 1:
                continue
            found = Deterministic(known.L_g, known.rho_y, 1.0, gamma)
            assert 0.99 * found.u_theta / found.u_y >= 8 / gamma


def test_the_bounds_fall_as_the_problem_gets_harder() -> None:
    for harder in ({"L_g": 5.0}, {"L_F": 30.0}, {"rho_y": 1.5}, {"c0": 0.1}):
        worse = replace(EXAMPLE, **harder)  # type: ignore[arg-type]
        assert worse.u_x < EXAMPLE.u_x
        assert worse.u_y < EXAMPLE.u_y


@pytest.mark.parametrize("theorem", [Deterministic, Stochastic])
def test_gamma_and_steps_outside_are_refused_with_the_numbers(
    theorem: type[Deterministic] | type[Stochastic],
) -> None:
    with pytest.raises(
        InvalidInput, match=r"gamma = 0\.5 is not below 1/\(2 rho_y\) = 0\.5 \(rho_y = 1\)"
    ):
        theorem(L_g=4.0, rho_y=1.0, L_F=2.0, gamma=0.5)
    with pytest.raises(InvalidInput, match="L_g = inf"):
        theorem(L_g=math.inf, rho_y=1.0, L_F=2.0, gamma=0.1)
    with pytest.raises(InvalidInput, match="alpha_theta = 1 is outside"):
        theorem(L_g=4.0, rho_y=1.0, L_F=2.0, gamma=0.25, alpha_theta=1.0)
    found = theorem(L_g=4.0, rho_y=1.0, L_F=2.0, gamma=0.25)
    assert not found.outside(found.u_theta, found.u_x, min(found.u_x, found.u_y))
    assert len(found.outside(1.0, 1.0, 1.0)) == 3
    assert "alpha_y" in found.outside(0.0, 0.0, 1.0)[0]


def test_the_scalarized_objective_has_the_promised_smoothness() -> None:
    """||Hessian of F|| <= L_F at random points of the level set, and close to it somewhere on
    it.
    """
    problem = bp.problems.get("quadratic", m=3)
    stream = torch.Generator().manual_seed(0)
    closest = 0.0
    for trial in range(80):
        w = torch.softmax(torch.randn(3, generator=stream, dtype=DOUBLE), 0)
        mu = 10 ** float(2 * torch.rand(1, generator=stream, dtype=DOUBLE) - 1)
        z = torch.zeros(3, dtype=DOUBLE)
        both = 2 * torch.randn(10, generator=stream, dtype=DOUBLE)

        def F(
            v: torch.Tensor, w: torch.Tensor = w, z: torch.Tensor = z, mu: float = mu
        ) -> torch.Tensor:
            return STCH.value(problem.upper(v[:5], v[5:]), w, z, torch.tensor(mu, dtype=DOUBLE))

        curvature = float(torch.linalg.matrix_norm(torch.func.hessian(F)(both), 2))
        bound = scalarized_smoothness(STCH, 1.0, w.tolist(), mu, float(F(both)))
        assert curvature <= bound, trial
        rows = w[:, None] * torch.func.jacrev(lambda v: problem.upper(v[:5], v[5:]))(both)
        spread = max(float((rows[i] - rows[j]).norm()) for i, j in combinations(range(3), 2))
        tight = scalarized_smoothness(STCH, 1.0, w.tolist(), mu, float(F(both)), spread)
        assert curvature <= tight <= bound
        closest = max(closest, curvature / tight)
    assert closest > 0.5
    assert scalarized_smoothness(scalarization.get("linear"), 3.0, [0.2, 0.8], 1.0, 1.0) == 3.0
    assert scalarized_smoothness(STCH, 3.0, [1.0], 5.0, 1.0) == 3.0
    with pytest.raises(InvalidInput, match=r"'tchebycheff' has no 'smoothness'.*stch, linear"):
        scalarized_smoothness(scalarization.get("tchebycheff"), 1.0, [0.5, 0.5], 1.0, 1.0)


def test_the_lower_bound_of_the_scalarized_objective() -> None:
    w, z, mu = (
        torch.tensor([0.3, 0.7], dtype=DOUBLE),
        torch.zeros(2, dtype=DOUBLE),
        torch.tensor(3.0, dtype=DOUBLE),
    )
    floor = lower_bound(STCH, 2, 3.0)
    assert float(STCH.value(z, w, z, mu)) == pytest.approx(floor)
    assert float(STCH.value(torch.rand(2, dtype=DOUBLE), w, z, mu)) > floor
    assert lower_bound(scalarization.get("linear"), 2, 3.0) == 0


def test_best_gamma_admits_the_largest_step_and_stays_below_its_bound() -> None:
    gamma = best_gamma(7.0, 2.0, 1.0)
    assert gamma < 0.25
    best = Deterministic(7.0, 2.0, 1.0, gamma).u_y
    assert best >= max(Deterministic(7.0, 2.0, 1.0, g).u_y for g in (0.01, 0.05, 0.1, 0.2, 0.24))
    assert best_gamma(7.0, 0.0, 1.0) > 0


# --- Theorem 2


SCHEDULED = Stochastic(L_g=4.0, rho_y=1.0, L_F=2.0, gamma=0.25)


def test_constants_of_theorem_2_by_hand() -> None:
    assert pytest.approx(math.hypot(8, 4)) == SCHEDULED.L_d
    assert SCHEDULED.C_theta == 16 + 32
    assert pytest.approx(0.5 + 2 / 3) == SCHEDULED.C_e
    assert SCHEDULED.u_theta <= 3 / (4 * 64)
    alpha = SCHEDULED.alpha_theta
    assert alpha is not None
    assert SCHEDULED.u_x <= alpha**2 * 3 / 8
    assert SCHEDULED.u_y <= alpha**2 * 3 / 8


def test_the_direction_of_theta_has_its_own_lipschitz_constant() -> None:
    """d = grad_y g(x, theta) + (theta - y)/gamma with g's Hessian L_g I in theta: the constant is
    reached, and L_h is too small.
    """
    L_g, gamma = 4.0, 0.25
    matrix = torch.tensor([[L_g + 1 / gamma, -1 / gamma]], dtype=DOUBLE)  # in (theta, y)
    assert float(torch.linalg.matrix_norm(matrix, 2)) == pytest.approx(SCHEDULED.L_d)
    assert SCHEDULED.L_d > SCHEDULED.L_h


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("q", [3 / 8, 0.45])
def test_the_conditions_of_theorem_2_hold_at_every_t(growing: bool, q: float) -> None:
    """The coefficients of every term in the merit's difference are as negative as the lemma says,
    at t = 0 and ever after.
    """
    known = replace(SCHEDULED, growing=growing, alpha_theta=None)
    factor = 2 if growing else 1
    alpha_0, x_0, y_0 = known.alpha_theta, 0.99 * known.u_x, 0.99 * known.u_y
    assert alpha_0 is not None
    before = None
    for t in [0, 1, 2, 5, 10, 100, 1000, 10**5, 10**7]:
        fall = (1 + t) ** -q
        alpha, a_x, a_y, beta = alpha_0 * fall, x_0 * fall**2, y_0 * fall**2, 1 - fall ** (2 / 3)
        c = known.coefficients(alpha, a_x, a_y, beta)
        S, N, W = (
            2 * (1 + beta) / (1 - beta),
            2 * (1 + beta) / (1 - beta) + 1,
            2 * beta**2 / (1 - beta),
        )
        L_I2 = factor * known.L_I**2
        K = N * (a_x + a_y) * W * L_I2 + c.theta
        Q = (
            N * alpha**2 * known.C_theta * known.C_e + 2 * alpha**2 * K
        )  # coefficient of ||e_theta,t||^2
        assert alpha <= min(1, known.rho_h / (4 * known.L_h**2))
        assert 2 * alpha**2 * K * known.L_h**2 <= alpha**2 * known.rho_h * known.C_theta / 8
        assert (
            Q * (1 + beta) / 2 - S * alpha**2 * known.C_theta * known.C_e
            <= -(1 + beta) / 4 * alpha**2 * known.C_theta * known.C_e
        )
        assert Q * W * known.L_d**2 <= beta**2 * c.theta * (1 + 1e-12)
        assert N * a_x * W * L_I2 + Q * W * known.L_d**2 <= beta**2 * c.x * (1 + 1e-12)
        assert N * (a_x + a_y) * W * L_I2 + Q * W * known.L_d**2 <= beta**2 * c.y * (1 + 1e-12)
        moved = known.L_I / 2 + known.C_theta * known.L_theta**2 * (alpha + 8 / known.rho_h)
        in_x = moved + 2 * a_y * known.L_theta**2 / known.gamma**2 + N * a_y * W * L_I2 + c.x
        assert in_x <= 1 / (4 * a_x)
        assert moved + c.y <= 1 / (4 * a_y)
        assert N * a_x + N * a_y + Q <= known.C_sigma * alpha**2 / (1 - beta) * (1 + 1e-12)
        if before is not None:  # every weight of the merit falls with t
            assert all(new <= old for new, old in zip(c[:7], before[:7], strict=True))
        before = c


def test_more_memory_admits_smaller_steps() -> None:
    slower = replace(SCHEDULED, first_average=0.1, alpha_theta=None)
    assert slower.u_theta < SCHEDULED.u_theta
    assert replace(SCHEDULED, growing=True, alpha_theta=None).u_theta < SCHEDULED.u_theta
    with pytest.raises(InvalidInput, match="first_average = 0"):
        replace(SCHEDULED, first_average=0.0)


# --- probes and presets


@pytest.mark.parametrize("name", ["quadratic", "pl-sin2", "sin", "merely-convex", "tp2-s"])
def test_probed_constants_are_near_the_true_ones(name: str) -> None:
    problem = bp.problems.get(name)
    known, found = problem.constants, estimate(problem, problem.x0, problem.y0)
    assert 0.7 * known.L_g <= found.L_g <= 1.3 * known.L_g
    assert 0.9 * known.L_f <= found.L_f <= 1.3 * known.L_f
    assert 0.9 * known.rho_y <= found.rho_y <= 1.3 * known.rho_y + 1e-9


def test_an_infinite_curvature_cannot_be_probed() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([(x - y).square().sum()]),
        lambda x, y: (y - x).square().sum() + y.abs().pow(1.5).sum(),
    )
    with pytest.raises(InvalidInput, match="Hessian product is not finite"):
        estimate(problem, torch.zeros(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE))


def test_admissible_presets_are_at_their_fraction_of_the_bounds() -> None:
    problem = bp.problems.get("pl-sin2", dim=4)
    start = problem.x0, problem.y0
    method = bp.MOMEHA.admissible(
        problem, *start, constants=problem.constants, preference=[0.3, 0.7]
    )
    assert method.gamma < 0.25
    assert isinstance(method.c, Power)
    bounds = method.bounds(problem, *start, constants=problem.constants, preference=[0.3, 0.7])
    assert isinstance(bounds, Deterministic)
    steps = [getattr(method, name).value for name in ("alpha_theta", "alpha_x", "alpha_y")]
    assert steps == pytest.approx([0.99 * bounds.u_theta, 0.99 * bounds.u_x, 0.99 * bounds.u_y])
    assert not bounds.outside(*steps)
    with pytest.raises(InvalidInput, match="fitted coordinates"):
        bp.MOMEHA.tuned(problem, *start).bounds(problem, *start, constants=problem.constants)
    tuned = bp.MOMEHA(**tune_momeha(problem, *start))
    assert isinstance(tuned.alpha_theta, Constant)
    wrong = tuned.bounds(problem, *start, constants=problem.constants).outside(
        tuned.alpha_theta.value, 0.5, tuned.alpha_theta.value
    )
    assert any(sentence.startswith("alpha_y = ") for sentence in wrong)


def test_admissible_mbmomeha_follows_theorem_2() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    for delta in (None, 0.05):
        method = bp.MBMOMEHA.admissible(
            problem, problem.x0, problem.y0, constants=problem.constants, delta=delta
        )
        bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
        assert isinstance(bounds, Stochastic)
        assert bounds.growing is (delta is None)
        assert isinstance(method.alpha_x, Power)
        assert isinstance(method.alpha_y, Power)
        assert isinstance(method.beta, Complement)
        assert method.alpha_x.scale <= method.alpha_y.scale <= 0.99 * bounds.u_y * (1 + 1e-12)
        assert method.beta.scale == pytest.approx(1)


def test_presets_without_constants_probe_them() -> None:
    problem = bp.Problem(
        lambda x, y: (
            torch.stack(
                [
                    (x - 1).square().sum() + y.square().sum(),
                    x.square().sum() + (y - 1).square().sum(),
                ]
            )
            + 1
        ),
        lambda x, y: (y - x).square().sum(),
    )
    zero = torch.zeros(2, dtype=DOUBLE)
    method = bp.MOMEHA.admissible(problem, zero, zero, c=1.0)
    assert method.c == Constant(1.0)
    with pytest.raises(InvalidInput, match="fraction = 2"):
        bp.MOMEHA.admissible(problem, zero, zero, fraction=2)
    with pytest.raises(InvalidInput, match=r"z = \[3\.0, 3\.0\] is not below the objectives"):
        bp.MOMEHA.admissible(problem, zero, zero, ideal=3.0)
    with pytest.raises(InvalidInput, match="0 <= p < 1/2"):
        bp.MOMEHA.admissible(problem, zero, zero, c=Power(1.0, 0.6))
    with pytest.raises(InvalidInput, match="fixed ideal point"):
        bp.MOMEHA.admissible(problem, zero, zero, ideal=scalarization.Tracked(1.0))
    assert (
        bp.MOMEHA.admissible(
            problem, zero, zero, constants=Smoothness(4.0, 2.0, 0.0), gamma=0.3
        ).gamma
        == 0.3
    )
