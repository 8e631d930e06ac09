"""Trainings and races: Adam as torch's, shares of the budget, rows that no step has seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.problem import tree
from bipareto.problem.oracle import Counting
from bipareto.run.budget import FEW, plan_of
from bipareto.run.heldout import HeldOut
from bipareto.run.race import comes_in_batches, race, raced_or_rules
from bipareto.run.training import train
from bipareto.run.units import Units

ROWS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
GOOD = ROWS @ torch.tensor([1.0, -2.0, 0.5, 0.0])
#: the second half of the lower level's targets is wrong
BAD = torch.cat([GOOD[:30], -GOOD[30:]])


def lower(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    rows, target, half = batch
    return ((rows @ y - target).square() * x.sigmoid()[half]).mean()


def upper(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    rows, target = batch
    error = (rows @ y - target).square().mean()
    return torch.stack([error, 0.1 * y.square().sum() + 0.01 * x.square().sum()])


def weighing(size: int = 20) -> tuple[bp.Problem, Tensor, Tensor]:
    """x weighs the right and the wrong half of the data; y is a linear model."""
    half = (torch.arange(60) >= 30).long()
    sampler = bp.sampler.Minibatches(lower=(ROWS, BAD, half), upper=(ROWS, GOOD), size=size)
    return bp.Problem(upper, lower, sampler=sampler), torch.zeros(2), torch.zeros(4)


def test_training_is_adam_with_a_cosine() -> None:
    problem, x0, y0 = weighing()
    rates, steps = (0.03, 0.1), 12
    stack = torch.stack([x0, x0 + 1])
    found = train(problem, stack, tree.expand(y0, 2), rate=torch.tensor(rates), steps=steps, seed=3)
    for i, rate in enumerate(rates):
        y = torch.nn.Parameter(y0.clone())
        optimizer = torch.optim.Adam([y], lr=rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: 0.5 * (1 + math.cos(math.pi * t / steps))
        )
        for t in range(steps):
            optimizer.zero_grad()
            problem.lower(stack[i], y, problem.batch("lower", "train", t, 3)).backward()
            optimizer.step()
            schedule.step()
        torch.testing.assert_close(found[i], y.detach(), rtol=1e-4, atol=1e-5)


def test_a_race_keeps_to_its_share_and_finds_what_helps() -> None:
    problem, x0, y0 = weighing()
    plan = plan_of(x0, m=2, runs=5, steps=240)
    counted = Counting(problem)
    found = race(counted, x0, y0, plan)
    assert found.share <= 0.25
    assert found.candidates[-1].travel == 0
    assert found.winner.value < found.candidates[-1].value
    assert found.winner.value == min(c.value for c in found.candidates[:-1])
    assert float(found.method(100).alpha_x[0]) > 0
    assert "x0" in str(found)


def test_one_run_can_race_too() -> None:
    plan = plan_of(torch.zeros(2), m=2, runs=1, steps=2000)
    assert plan.enough
    answer = bp.solve(*weighing(), steps=600, progress=False)
    assert isinstance(answer.method, bp.Twin)
    assert answer.race is not None
    assert answer.x[0] > answer.x[1]  # right data weighs more


def test_too_small_a_budget_is_said_and_rules_are_used() -> None:
    problem, x0, y0 = weighing()
    with pytest.warns(BiparetoWarning, match=r"too small for a race.*Twin\.tuned"):
        answer = bp.solve(problem, x0, y0, steps=30, progress=False)
    assert answer.method == bp.Twin.tuned(problem, x0, y0, steps=30)


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_losses_that_cannot_be_batched_have_the_same_race(level: str) -> None:
    """Said, and one after the other: the same as side by side."""
    problem, x0, y0 = weighing()

    def stubborn(loss: Any) -> Any:
        return lambda x, y, b: loss(x, y, b) if bool(y.detach().sum() < 1e9) else y.sum()

    f, g = (stubborn(upper), lower) if level == "upper" else (upper, stubborn(lower))
    plan = plan_of(x0, m=2, runs=5, steps=240)
    alike = race(problem, x0, y0, plan)
    with pytest.warns(BiparetoWarning, match="one after the other"):
        raced = raced_or_rules(bp.Problem(f, g, sampler=problem.sampler), x0, y0, plan)
    assert raced is not None
    assert not raced.batched
    assert (raced.rate, raced.training, raced.winner[:3]) == (
        alike.rate, alike.training, alike.winner[:3]
    )  # fmt: skip
    torch.testing.assert_close(raced.objectives, alike.objectives, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_held_out_rows_are_never_drawn(several: bool) -> None:
    number = torch.arange(60.0)
    data = {0: (number,), 1: (number + 100,)} if several else (number,)
    sampler = bp.sampler.Minibatches(lower=(number,), upper=data, size=7)
    fs = [lambda x, y, b: y.sum(), lambda x, y, b: x.sum()]
    problem = bp.Problem(fs, lambda x, y, b: (y - x).sum() ** 2, sampler=sampler)
    held = HeldOut.of(problem, seed=1)
    assert held is not None
    parts = held.held_out.values() if several else [held.held_out]
    kept_back = {float(v) for (values,) in parts for v in values}
    assert len(kept_back) == (40 if several else 20)
    seen: set[float] = set()
    for t in range(60):
        drawn = held.batch("upper", "upper", t, 1)
        for (values,) in drawn.values() if several else [drawn]:
            assert len(values) == 7
            seen |= {float(v) for v in values}
    assert not seen & kept_back
    assert len(seen) == (80 if several else 40)


def test_what_comes_in_batches() -> None:
    problem, x0, _ = weighing()
    assert comes_in_batches(problem)
    assert not comes_in_batches(bp.problems.get("quadratic"))
    assert plan_of(x0, 2, 1, 100).few
    assert not plan_of(torch.zeros(FEW + 1), 2, 1, 100).few


def test_a_rate_that_does_not_train_is_not_chosen() -> None:
    """Where the objectives are best at the untrained y the smallest rate would be."""
    problem, x0, _ = weighing()
    idle = bp.Problem(
        lambda x, y, b: torch.stack([y.square().sum(), y.abs().sum()]) + 0.1,
        problem.lower,
        sampler=problem.sampler,
    )
    y0 = torch.full((4,), 0.01)
    found = race(idle, x0, y0, plan_of(x0, m=2, runs=5, steps=240))

    def loss(rate: float) -> float:
        start = tree.expand(x0, 1), tree.expand(y0, 1)
        y = train(problem, *start, rate=rate, steps=found.training)
        return float(problem.lower(x0, y[0], problem.batch("lower", "full")))

    begun, least = float(problem.lower(x0, y0, problem.batch("lower", "full"))), loss(0.1)
    assert found.rate > 0.001
    assert loss(found.rate) < least + 0.6 * (begun - least) < loss(0.001)


def test_sizes_that_differ_much_do_not_decide() -> None:
    """After a race a run on (1000 f_1, f_2) is one on objectives of the same size."""
    problem, x0, y0 = weighing()
    raced = race(problem, x0, y0, plan_of(x0, m=2, runs=5, steps=240))
    assert "differ in size" not in str(raced)
    scale = torch.tensor([1e3, 1.0])
    units = Units.of_sizes(raced.objectives * scale, raced.objectives[-1] * scale, few=True)
    assert "differ in size" in str(replace(raced, units=units))

    def end(scale: Tensor, units: Units) -> Tensor:
        scaled = bp.Problem(lambda *at: scale * upper(*at), lower, sampler=problem.sampler)
        method = raced.method(30)
        start, w = method.prepare(scaled, x0, y0), torch.tensor([0.2, 0.8])
        state = replace(raced, units=units).begin(method, start, w)
        for t in range(30):
            roles = {role: problem.sampler(role, t, 0) for role in method.roles(2)}
            state, _ = method.step(scaled, state, roles)
        return state.x

    x = end(scale, units)
    same = end(scale / units.extent.float(), Units.plain(2))
    torch.testing.assert_close(x, same, rtol=1e-4, atol=1e-4)
    assert bool((x - end(scale, Units.plain(2))).abs().max() > 0.1)


def test_what_does_not_fit_side_by_side_is_no_fault_of_the_losses() -> None:
    problem, x0, y0 = weighing()

    def large(x: Any, y: Any, batch: Any) -> Any:
        if torch._C._functorch.is_batchedtensor(y):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return lower(x, y, batch)

    other = bp.Problem(upper, large, sampler=problem.sampler)
    with pytest.warns(BiparetoWarning, match="need more memory than there is .*one after the"):
        raced = raced_or_rules(other, x0, y0, plan_of(x0, m=2, runs=5, steps=120))
    assert raced is not None
    assert not raced.batched
