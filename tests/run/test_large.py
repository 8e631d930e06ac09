"""A run of millions of coordinates is looked at after every step, and holds fewer states for it."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.run import loop

METHOD = bp.MOMEHA(gamma=0.5, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, c=2.0)


def _breaking(limit: float) -> bp.Problem:
    """f_1 is no number once x is beyond the limit."""

    def upper(x: Tensor, y: Tensor) -> Tensor:
        first = (y - 3).square().sum() + torch.where(x.sum() > limit, torch.nan, 0.0)
        return torch.stack([first, (y - 1).square().sum()])

    return bp.Problem(upper, lambda x, y: (y - x).square().sum())


def _both(monkeypatch: pytest.MonkeyPatch, run: Any) -> tuple[Any, Any]:
    small = run()
    monkeypatch.setattr(loop, "LARGE", 1)
    return small, run()


@pytest.mark.parametrize("limit", [0.9, 99.0])
def test_a_large_run_is_the_same_run(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    """The step at which a run went bad, the state before it and the best iterate are those that a
    replayed block finds.
    """
    zero = torch.zeros(2, dtype=torch.float64)
    with pytest.warns(BiparetoWarning) if limit < 1 else nullcontext():
        small, large = _both(
            monkeypatch,
            lambda: bp.solve(_breaking(limit), zero, zero, method=METHOD, steps=60, record_every=7),
        )
    assert (small.failure is not None) == (limit < 1)
    assert (small.failure, small.steps) == (large.failure, large.steps)
    assert torch.equal(torch.cat([small.x, small.y]), torch.cat([large.x, large.y]))
    assert small.best.step == large.best.step
    assert torch.equal(small.best.x, large.best.x)
    assert torch.equal(small.history["objectives"], large.history["objectives"]) or limit < 1


def test_the_other_runs_of_a_large_front_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    w = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    with pytest.warns(BiparetoWarning):
        small, large = _both(
            monkeypatch,
            lambda: bp.front(
                _breaking(4.0), zero, zero, preferences=w, method=METHOD, steps=300, record_every=9
            ),
        )
    assert small.run.reason == large.run.reason == ["nonfinite", "steps"]
    assert small.run.steps == large.run.steps
    assert torch.equal(small.x, large.x)
    assert torch.equal(small.run.best["y"], large.run.best["y"])


def test_a_large_run_holds_no_first_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """y is held by the last two states and as the best one, by others also by the block's first."""
    alive: list[weakref.ref[Tensor]] = []
    most = [0]

    def lower(x: Tensor, y: Tensor) -> Tensor:
        most[0] = max(most[0], sum(ref() is not None for ref in alive))
        return (y - x).square().sum()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(y - 3).square().sum(), (y - 1).square().sum()])

    step = bp.MOMEHA.step

    def counted(self: Any, problem: Any, state: Any, draw: Any = None) -> Any:
        after, info = step(self, problem, state, draw)
        alive.append(weakref.ref(after.y))
        return after, info

    monkeypatch.setattr(bp.MOMEHA, "step", counted)
    problem, zero = bp.Problem(upper, lower), torch.zeros(2)

    def run() -> int:
        alive.clear()
        most[0] = 0
        bp.solve(problem, zero, zero, method=METHOD, steps=30, record_every=10)
        return most[0]

    held = _both(monkeypatch, run)
    assert held == (4, 3)
