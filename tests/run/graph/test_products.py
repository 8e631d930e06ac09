"""Long and narrow products are taken with their short side first."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from bipareto.run.graph.products import turn

mm = torch.ops.aten.mm.default


def _products(graph: fx.Graph) -> list[tuple[int, ...]]:
    return [tuple(n.meta["val"].shape) for n in graph.nodes if n.target == mm]


def test_narrow_products_are_turned_and_others_are_not() -> None:
    stream = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(n, 30, generator=stream) for n in (400, 5, 300))

    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = a @ b.t()
        return scores.softmax(1).t() @ a, a @ c.t(), scores

    module = make_fx(fn, tracing_mode="fake")(a, b, c)
    assert sorted(_products(module.graph)) == [(5, 30), (400, 5), (400, 300)]
    turn(module.graph)
    module.recompile()
    module.graph.lint()
    assert sorted(_products(module.graph)) == [(5, 30), (5, 400), (400, 300)]
    for mine, theirs in zip(module(a, b, c), fn(a, b, c), strict=True):
        torch.testing.assert_close(mine, theirs)
