from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.certificate import certificate
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.parts import envelope
from bipareto.methods.parts.schedule import Constant, Power
from bipareto.methods.theory.constants import Deterministic
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.problem import tree
from bipareto.problems import KnownProblem
from bipareto.run.monitors import Gap, Merit, Monitor, Stationarity, StochasticMerit, Tracking
from helpers import DOUBLE


def watched(
    problem: KnownProblem,
    method: bp.MOMEHA,
    steps: int,
    preference: list[float] | None = None,
    **options: Any,
) -> Merit:
    """The merit at every iteration of a run of `method`, the start included."""
    bounds = method.bounds(
        problem, problem.x0, problem.y0, constants=problem.constants, preference=preference
    )
    assert isinstance(bounds, Deterministic)
    merit = Merit(problem, bounds, tol=1e-12)
    merit.see(method.init(problem, problem.x0, problem.y0, preference))
    run(problem, method, steps, merit, preference=preference, **options)
    return merit


def run(
    problem: KnownProblem,
    method: bp.MOMEHA,
    steps: int,
    *monitors: Monitor,
    record_every: int = 1,
    **options: Any,
) -> bp.Solution:
    options = {"compile": False, "progress": False, **options}
    return bp.solve(
        problem,
        problem.x0,
        problem.y0,
        method=method,
        steps=steps,
        record_every=record_every,
        callbacks=monitors,
        **options,
    )


def admissible(
    problem: KnownProblem, growing: bool, preference: list[float] | None = None
) -> bp.MOMEHA:
    c = Power(1.0, 0.25) if growing else Constant(1.0)
    return bp.MOMEHA.admissible(
        problem, problem.x0, problem.y0, constants=problem.constants, c=c, preference=preference
    )


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("name", ["quadratic", "pl-sin2"])
def test_the_merit_lemma_holds_at_every_iteration(name: str, growing: bool) -> None:
    problem = bp.problems.get(name)
    merit = watched(problem, admissible(problem, growing, [0.3, 0.7]), 200, [0.3, 0.7])
    assert merit.steps == list(range(201))
    assert float(merit.excess.max()) <= 1e-12
    assert float(merit.promised.min()) > 0
    # Of each fall the lemma explains a part: of all but the growing penalty's own effect more than
    # a fifth.
    unexplained = -merit.excess * merit.values[:-1] / (merit.values[:-1] - merit.values[1:])
    assert float(unexplained.max()) < (1 if growing else 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("name", ["quadratic", "pl-sin2"])
def test_the_merit_lemma_holds_at_every_iteration_of_a_long_run(name: str, growing: bool) -> None:
    problem = bp.problems.get(name)
    merit = watched(problem, admissible(problem, growing), 20_000, compile=True)
    assert float(merit.excess.max()) <= 1e-12


def test_the_merit_notices_steps_that_are_too_long() -> None:
    problem = bp.problems.get("pl-sin2", dim=4)
    method = replace(admissible(problem, growing=False), alpha_x=2.0, alpha_y=0.2)
    with pytest.warns(BiparetoWarning, match=r"alpha_[xy] = .* exceeds its admissible bound"):
        excess = watched(problem, method, 40).excess
    assert float(excess.max()) > 0


def test_the_rate_bound_of_theorem_1_holds_with_its_own_constant() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    for growing in (True, False):
        method = admissible(problem, growing)
        bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
        assert isinstance(bounds, Deterministic)
        merit, stationarity = Merit(problem, bounds), Stationarity(problem)
        merit.see(method.init(problem, problem.x0, problem.y0))
        bp.solve(
            problem,
            problem.x0,
            problem.y0,
            method=method,
            steps=200,
            record_every=1,
            callbacks=[merit, stationarity],
            compile=False,
            progress=False,
        )
        steps = method.alpha_x.value, method.alpha_y.value  # type: ignore[union-attr]
        best = stationarity.values.cummin(0).values
        for T in (0, 10, 199):
            promised = bounds.stationarity_bound(
                T,
                float(merit.values[0]),
                *steps,
                power=0.25 if growing else 0.0,
                smallest_weight=0.5,
            )
            assert float(best[T]) <= promised


def test_monitors_agree_with_the_certificate() -> None:
    problem = bp.problems.get("pl-sin2", dim=5)
    method = bp.MOMEHA(
        gamma=0.2, mu=2.0, alpha_theta=0.05, alpha_x=0.05, alpha_y=0.05, c=Power(3.0, 0.25)
    )
    monitors = [Gap(problem), Stationarity(problem), Tracking(problem)]
    answer = run(problem, method, 40, *monitors, record_every=10, preference=[0.4, 0.6])
    assert [m.steps for m in monitors] == [[10, 20, 30, 40]] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        c = 3.0 * 40**0.25  # c of the last step, t = 39
        found = certificate.certify(
            problem, answer.x, answer.y, gamma=0.2, preference=[0.4, 0.6], mu=2.0, c=c
        )
    assert float(monitors[0].values[-1]) == pytest.approx(found.gap, rel=1e-8)
    assert float(monitors[1].values[-1]) == pytest.approx(found.paper_stationarity, rel=1e-8)
    theta = envelope.proximal_point(problem, answer.x[None], answer.y[None], 0.2, tol=1e-12).y[0]
    assert answer.theta is not None
    assert float(monitors[2].values[-1]) == pytest.approx(
        float((answer.theta - theta).norm()), rel=1e-6
    )
    assert monitors[0].pairs[-1][0] == 40


def test_chunks_and_fronts_give_the_same_numbers() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    method = admissible(problem, growing=True)
    bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
    assert isinstance(bounds, Deterministic)
    small, large = Merit(problem, bounds, chunk=7), Merit(problem, bounds, chunk=1000)
    preferences = torch.tensor([[0.5, 0.5], [0.3, 0.7]], dtype=DOUBLE)
    bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences=preferences,
        method=method,
        steps=30,
        record_every=1,
        callbacks=[small, large],
        compile=False,
        progress=False,
    )
    assert small.values.shape == (30, 2)
    assert small.promised.shape == (29, 2)
    torch.testing.assert_close(small.values, large.values)
    torch.testing.assert_close(small.promised, large.promised)
    alone = Merit(problem, bounds)
    bp.solve(
        problem,
        problem.x0,
        problem.y0,
        preference=[0.3, 0.7],
        method=method,
        steps=30,
        record_every=1,
        callbacks=[alone],
        compile=False,
        progress=False,
    )
    torch.testing.assert_close(alone.values, small.values[:, 1])


def test_gaps_between_records_are_not_taken_for_steps() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    method = admissible(problem, growing=True)
    bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
    assert isinstance(bounds, Deterministic)
    merit = Merit(problem, bounds)
    run(problem, method, 20, merit, record_every=5)
    assert bool(merit.promised.isnan().all())
    assert bool((merit.values.diff() < 0).all())


def stochastic(
    name: str, delta: float | None, runs: int, steps: int, noise: float = 0.05
) -> StochasticMerit:
    dim = 3
    problem = bp.problems.get(name, dim=dim, noise=noise)
    method = bp.MBMOMEHA.admissible(
        problem, problem.x0, problem.y0, constants=problem.constants, delta=delta
    )
    bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
    assert isinstance(bounds, Stochastic)
    # Noise N(0, noise^2) on every coordinate of grad_y g, on every grad f_i (weights at most 1/2
    # each, over c >= 1), none left of g in x.
    variance = noise**2 * dim
    merit = StochasticMerit(problem, bounds, (variance, 0.5 * variance, 1.5 * variance), tol=1e-12)
    merit.see(tree.stack([method.init(problem, problem.x0, problem.y0)] * runs))
    bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences=[[0.5, 0.5]],
        seeds=range(runs),
        method=method,
        steps=steps,
        record_every=1,
        callbacks=[merit],
        compile=False,
        progress=False,
    )
    return merit


@pytest.mark.parametrize(("name", "delta"), [("quadratic", None), ("pl-sin2", 0.05)])
def test_the_stochastic_merit_falls_in_expectation(name: str, delta: float | None) -> None:
    merit = stochastic(name, delta, runs=20, steps=30)
    assert merit.steps == list(range(30))
    assert merit.values.shape == (30, 20)
    assert float(merit.mean_excess.max()) <= 0


@pytest.mark.parametrize(("name", "delta"), [("quadratic", None), ("pl-sin2", 0.05)])
def test_noise_lifts_the_stochastic_merit_as_far_as_it_may_and_no_further(
    name: str, delta: float | None
) -> None:
    """So much noise that there is little else: the first draws put their errors into V, more than
    half of what the proof allows.
    """
    merit = stochastic(name, delta, runs=20, steps=30, noise=5e3)
    V, allowed = merit.values.mean(-1), -merit.promised.mean(-1)
    assert float(merit.mean_excess.max()) <= 0
    assert float(V[1] - V[0]) > 0.5 * float(allowed[0]) > 1000 * float(V[0])


@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, 0.05])
@pytest.mark.parametrize("name", ["quadratic", "pl-sin2"])
def test_the_stochastic_merit_falls_in_expectation_for_long(name: str, delta: float | None) -> None:
    assert float(stochastic(name, delta, runs=20, steps=2000).mean_excess.max()) <= 0


def test_bad_use_is_named() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    method = admissible(problem, growing=True)
    bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
    assert isinstance(bounds, Deterministic)
    state = method.init(problem, problem.x0, problem.y0)
    with pytest.raises(InvalidInput, match="MomehaState"):
        Gap(problem).see(state.x)
    other = Merit(problem, replace(bounds, gamma=0.1, alpha_theta=None))
    other.see(state)
    other.see(state)
    with pytest.raises(InvalidInput, match=r"constants are for gamma = 0\.1"):
        _ = other.values
    high = Merit(problem, bounds)
    for _ in range(2):
        high.see(state._replace(ideal=torch.full((2,), 1e6, dtype=DOUBLE)))
    with pytest.raises(InvalidInput, match="is not below the objectives"):
        _ = high.values
    mixed = Gap(problem)
    mixed.see(
        tree.stack(
            [
                state,
                state._replace(knobs=state.knobs._replace(gamma=torch.tensor(0.1, dtype=DOUBLE))),
            ]
        )
    )
    with pytest.raises(InvalidInput, match="different gamma"):
        _ = mixed.values
    skipping = StochasticMerit(
        problem, Stochastic(bounds.L_g, bounds.rho_y, bounds.L_F, bounds.gamma), 0.0
    )
    for t in (0.0, 1.0, 3.0):
        skipping.see(state._replace(t=torch.tensor(t, dtype=DOUBLE)))
    with pytest.raises(InvalidInput, match="record_every=1"):
        _ = skipping.values
