"""Losses with operators that torch can neither batch nor differentiate twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput

METHOD = bp.MOMEHA(gamma=0.5, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, c=2.0)
ROWS = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
PREFERENCES = [[0.3, 0.7], [0.7, 0.3]]


class Old(torch.autograd.Function):
    """A function in the older form, which no transform takes."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * (1 - ctx.saved_tensors[0].tanh().square())


def packed(net: Any) -> Tensor:
    series = rnn.pack_padded_sequence(ROWS, torch.tensor([3, 2, 1, 1]), batch_first=True)
    values: Tensor = net(series)[1][0]
    return values


def added(net: Any) -> Tensor:
    values: Tensor = net(ROWS)[0]
    return torch.zeros(4, 2).index_add_(0, torch.arange(3).expand(4, 3)[0], values[0])


def once(net: Any) -> Tensor:
    values: Tensor = Old.apply(net(ROWS)[0])
    return values


def problem_of(values: Any) -> tuple[bp.Problem, Any, Any]:
    return bp.Problem.from_modules(
        x=torch.zeros(2),
        y=nn.GRU(2, 2, batch_first=True),
        lower=lambda x, y: (values(y) - x).square().mean(),
        upper=[
            lambda x, y: (values(y) - 1).square().mean() + x.square().sum(),
            lambda x, y: (values(y) + 1).square().mean() + x.square().sum(),
        ],
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (packed, "torch.func.vmap cannot batch"),
        (added, r"a loss uses index_add_, which writes in place \(take the form without _\)"),
        (once, r"in a loss is something \(In order to use an autograd.Function.*vmap cannot batch"),
    ],
)
def test_what_vmap_cannot_batch_runs_one_after_the_other(values: Any, words: str) -> None:
    torch.manual_seed(0)
    problem, x, y = problem_of(values)
    with pytest.warns(BiparetoWarning, match=words):
        front = bp.front(problem, x, y, preferences=PREFERENCES, method=METHOD, steps=3)
    assert not front.batched
    for i, preference in enumerate(PREFERENCES):
        alone = bp.solve(problem, x, y, preference=preference, method=METHOD, steps=3)
        torch.testing.assert_close(front.x[i], alone.x)
        assert not torch.equal(alone.x, x)


def test_without_second_derivatives_the_default_is_refused_with_the_remedy() -> None:
    problem, x, y = problem_of(once)
    with pytest.raises(InvalidInput, match=r"second derivatives.*pass a method.*DataLoaders"):
        bp.front(problem, x, y, preferences=PREFERENCES, steps=3)
    assert bp.solve(problem, x, y, preference=[0.5, 0.5], method=METHOD, steps=2).steps == 2


def test_what_fails_alone_too_is_the_losss_own_error() -> None:
    calls = []

    def late(net: Any) -> Tensor:
        calls.append(1)
        if len(calls) > 20:
            raise RuntimeError("the disk is full")
        values: Tensor = net(ROWS)[0]
        return values

    problem, x, y = problem_of(late)
    with pytest.raises(RuntimeError, match="the disk is full"):
        bp.front(problem, x, y, preferences=PREFERENCES, method=METHOD, steps=30)
