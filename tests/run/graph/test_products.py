"""Long and narrow products are taken with their short side first."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from bipareto.run.graph import products
from bipareto.run.graph.products import turn

mm = torch.ops.aten.mm.default


def _products(graph: fx.Graph) -> list[tuple[int, ...]]:
    return [tuple(n.meta["val"].shape) for n in graph.nodes if n.target == mm]


@pytest.mark.parametrize("intel", [False, True])
def test_narrow_products_are_turned_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, intel: bool
) -> None:
    monkeypatch.setattr(products, "intel", lambda: intel)
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
    narrow = (400, 5) if intel else (5, 400)
    assert sorted(_products(module.graph)) == [(5, 30), narrow, (400, 300)]
    for mine, theirs in zip(module(a, b, c), fn(a, b, c), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_products_with_a_shared_matrix_are_one() -> None:
    stream = torch.Generator().manual_seed(0)
    a, b, d = (
        torch.randn(*shape, generator=stream) for shape in ((40, 30), (6, 5, 30), (6, 40, 5))
    )

    def fn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shared = a.expand(6, 40, 30)
        forward, backward = torch.bmm(shared, b.mT), torch.bmm(d.mT, shared)
        return forward, backward, torch.bmm(b, backward.mT)

    module = make_fx(fn, tracing_mode="fake")(a, b, d)
    turn(module.graph)
    module.graph.lint()
    module.recompile()
    assert _products(module.graph) == [(30, 40), (30, 30)]
    assert sum(n.target == torch.ops.aten.bmm.default for n in module.graph.nodes) == 1
    for mine, theirs in zip(module(a, b, d), fn(a, b, d), strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs)
