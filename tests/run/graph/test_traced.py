"""A recorded step does what the plain one does, to the last bit, and says so when it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.methods import METHODS
from bipareto.problem import Problem, tree
from bipareto.run.graph.traced import EVERY, TracedStepper
from bipareto.run.stepping import Stepper

PROBLEM = bp.problems.get("quadratic", dim=4)


def begun(method: bp.MOMEHA, problem: Problem) -> Any:
    start = method.prepare(problem, PROBLEM.x0, PROBLEM.y0)
    return tree.stack([method.begin(start, w) for w in bp.preferences.grid(2, 3)])


@pytest.mark.parametrize("name", ["momeha", "forum", "moco", "wc-mhgd", "wc-penalty", "twin"])
def test_every_front_is_the_same_to_the_last_bit(name: str) -> None:
    method = METHODS[name]()
    options: dict[str, Any] = {"method": method, "steps": 120, "progress": False}
    if method.uses_preference:
        options["preferences"] = bp.preferences.grid(2, 3)
    fast = bp.front(PROBLEM, PROBLEM.x0, PROBLEM.y0, **options)
    plain = bp.front(PROBLEM, PROBLEM.x0, PROBLEM.y0, compile=False, **options)
    assert torch.equal(fast.x, plain.x)
    assert torch.equal(fast.y, plain.y)
    assert fast.run is not None
    assert not fast.run.compiled


def test_minibatches_are_seen_anew_at_every_step() -> None:
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def lower(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (batch @ y - x.sum()).square().mean() + y.square().sum()

    def upper(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return torch.stack([(batch @ y - 1).square().mean(), (x - y).square().sum()])

    problem = Problem(upper, lower, sampler=bp.sampler.Minibatches(rows, rows, size=5))
    zero = torch.zeros(3, dtype=torch.float64)
    options: dict[str, Any] = {
        "preferences": bp.preferences.grid(2, 3), "method": bp.MBMOMEHA(), "steps": 100,
    }  # fmt: skip
    fast = bp.front(problem, zero, zero, seeds=[0, 1], **options)
    plain = bp.front(problem, zero, zero, seeds=[0, 1], compile=False, **options)
    assert torch.equal(fast.x, plain.x)
    assert not torch.equal(fast.x[0], fast.x[3])


def test_a_loss_that_is_changed_is_recorded_anew_at_the_next_block() -> None:
    scale = [1.0]
    problem = Problem(PROBLEM.upper, lambda x, y: scale[0] * PROBLEM.lower(x, y))
    method = bp.MOMEHA()
    fast, plain = (kind(problem, method, True, True) for kind in (TracedStepper, Stepper))
    state = begun(method, problem)
    packed = fast.pack(state, {})
    for _ in range(EVERY):
        packed, _ = fast.advance(packed, {})
    scale[0] = 2.0
    state = fast.unpack(packed)
    packed, _ = fast.advance(fast.pack(state, {}), {})
    after, _ = plain.advance(state, {})
    assert torch.equal(fast.unpack(packed).y, after.y)


def test_two_leaves_in_one_tensor_are_two_inputs() -> None:
    method = bp.MOMEHA(alpha_theta=0.02)
    state = begun(method, PROBLEM)
    state = state._replace(theta=state.y)
    fast, plain = (kind(PROBLEM, method, True, True) for kind in (TracedStepper, Stepper))
    packed = fast.pack(state, {})
    for _ in range(3):
        packed, _ = fast.advance(packed, {})
        state, _ = plain.advance(state, {})
    assert torch.equal(fast.unpack(packed).theta, state.theta)
    assert not torch.equal(state.theta, state.y)


def test_what_cannot_be_recorded_is_done_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("bipareto.run.graph.traced.traced", refuse)
    method = bp.MOMEHA()
    state = begun(method, PROBLEM)
    fast, plain = (kind(PROBLEM, method, True, True) for kind in (TracedStepper, Stepper))
    packed, _ = fast.advance(fast.pack(state, {}), {})
    assert torch.equal(fast.unpack(packed).x, plain.advance(state, {})[0].x)


def test_draws_of_another_shape_are_taken_plainly() -> None:
    rows = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)

    def lower(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (batch @ y - x.sum()).square().mean()

    def upper(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return torch.stack([(batch @ y).square().mean(), (x - y).square().sum()])

    problem = Problem(upper, lower, sampler=bp.sampler.Minibatches(rows, rows, size=2))
    method = bp.MOMEHA(alpha_theta=1e-3, alpha_x=1e-3, alpha_y=1e-3)
    zero = torch.ones(3, dtype=torch.float64)
    start = method.prepare(problem, zero, zero)
    state = tree.stack([method.begin(start, w) for w in bp.preferences.grid(2, 3)])
    fast, plain = (kind(problem, method, True, True) for kind in (TracedStepper, Stepper))
    packed = fast.pack(state, {})
    for count in (2, 2, 3, 2, 4):
        batches = dict.fromkeys(method.roles(2), rows[:count])
        packed, _ = fast.advance(packed, batches)
        state, _ = plain.advance(state, batches)
    assert torch.equal(fast.unpack(packed).y, state.y)
