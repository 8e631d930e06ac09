"""Narrow products with one matrix are one product: same values, no cycle, nothing out of order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from bipareto.run.graph.merge import NARROW, TOGETHER, merge

mm = torch.ops.aten.mm.default


def merged(fn: Callable[..., Any], *given: Tensor) -> fx.GraphModule:
    """What is left of a function, which must return what it returned; nodes stand in order."""
    module = make_fx(fn, tracing_mode="fake")(*given)
    merge(module.graph)
    module.graph.lint()
    module.recompile()
    for mine, theirs in zip(module(*given), fn(*given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    return module


def rows(module: fx.GraphModule) -> list[int]:
    """Of each product."""
    return [n.args[0].meta["val"].shape[0] for n in module.graph.nodes if n.target == mm]  # type: ignore[union-attr]


def matrix(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=stream, dtype=torch.float64) / shape[-1] ** 0.5


def test_products_apart_are_one_and_products_in_a_chain_are_not() -> None:
    a, b, c = matrix(40, 40), matrix(3, 40, seed=1), matrix(5, 40, seed=2)

    def chain(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        first = b @ a
        return first, first.tanh() @ a

    assert rows(merged(lambda a, b, c: (b @ a, c @ a), a, b, c)) == [8]
    assert rows(merged(chain, a, b)) == [3, 3]


def test_groups_that_would_need_each_other_are_not_both_made() -> None:
    """p = b A, then p D; q = b D, then q A: (p, q A) and (q, p D) are a cycle."""
    a, d, b = matrix(40, 40), matrix(40, 40, seed=1), matrix(3, 40, seed=2)

    def crossed(a: Tensor, d: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        p, q = b @ a, b @ d
        return p.sin() @ d, q.cos() @ a

    assert sorted(rows(merged(crossed, a, d, b))) == [3, 3, 6]


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_keep_their_values(seed: int) -> None:
    choice = random.Random(seed)
    matrices = [matrix(60, 60, seed=i) for i in range(3)]
    start = [matrix(choice.choice([2, 3, 7]), 60, seed=10 + i) for i in range(3)]
    plan = [[choice.randrange(1 << 20) for _ in range(4)] for _ in range(25)]

    def fn(*given: Tensor) -> list[Tensor]:
        shared, values = given[:3], list(given[3:])
        for kind, one, other, which in plan:
            # What is latest is used most, so that long chains arise.
            u = values[-1 - one % min(len(values), 6)]
            v = values[-1 - other % min(len(values), 6)]
            if kind % 3:
                values.append((u @ shared[which % 3]).tanh())
            else:
                values.append(torch.cat([u, v])[: min(len(u) + len(v), NARROW)] / 2)
        return values[3:]

    before = sum(1 for kind, *_ in plan if kind % 3)
    assert len(rows(merged(fn, *matrices, *start))) < before


def test_wide_factors_vectors_and_small_matrices_stay() -> None:
    a = matrix(100, 100)

    def left(count: int, a: Tensor, pieces: int = 2) -> list[int]:
        given = [matrix(count, a.shape[0], seed=1 + i) for i in range(pieces)]
        return rows(merged(lambda a, *given: [b @ a for b in given], a, *given))

    assert left(NARROW, a) == [2 * NARROW]
    assert left(NARROW + 1, a) == [NARROW + 1] * 2
    assert left(1, a) == [1, 1]
    assert left(5, matrix(12, 100)) == [5, 5]
    assert left(NARROW, a, pieces=6) == [TOGETHER, 2 * NARROW]


def test_graphs_that_write_or_draw_stay() -> None:
    a, b, c = matrix(40, 40), matrix(3, 40, seed=1), matrix(3, 40, seed=2)

    def writing(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        first = b.clone() @ a
        second = c @ a
        return first.add_(1), second

    assert rows(merged(writing, a, b, c)) == [3, 3]
