"""Products by oneDNN are the products, whatever lies where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from bipareto.run.compiled import _shared_work
from bipareto.run.graph import onednn
from bipareto.run.graph.onednn import LEAST, SIDE, hand_over

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)
product = torch.ops.bipareto.product.default


@pytest.fixture(autouse=True)
def _suited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "available", lambda: True)


def left(fn: object, *given: Tensor) -> int:
    """How many products oneDNN takes, of a function that must return what it returned."""
    module = make_fx(fn, tracing_mode="fake")(*given)
    hand_over(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*given), fn(*given), rtol=1e-5, atol=1e-4)  # type: ignore[operator]
    return sum(node.target == product for node in module.graph.nodes)


def matrix(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("a", [matrix(10, 300), matrix(300, 10).t(), matrix(10, 600)[:, ::2]])
@pytest.mark.parametrize(
    "b",
    [
        matrix(300, 400),
        matrix(400, 300).t(),
        matrix(300, 401)[:, :400],
        matrix(600, 400)[::2],
        matrix(1, 400).expand(300, 400),
    ],
)
def test_it_is_the_product_in_every_layout(a: Tensor, b: Tensor) -> None:
    assert left(lambda a, b: a @ b, a, b) == 1


def test_a_matrix_with_gaps_is_not_left_to_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, taken = torch.mm, []
    monkeypatch.setattr(torch, "mm", lambda a, b: taken.append(b.stride()) or plain(a, b))
    a, wide = matrix(10, 300), matrix(300, 401)
    product(a, wide[:, :400])
    product(a, wide)
    product(a, matrix(401, 300).t())
    assert taken == [(401, 1)]


def test_small_double_and_thin_products_stay() -> None:
    assert left(lambda a, b: a @ b, matrix(10, 100), matrix(100, LEAST // 1000)) == 1
    assert left(lambda a, b: a @ b, matrix(10, 100), matrix(100, LEAST // 1000 - 1)) == 0
    assert left(lambda a, b: a @ b, matrix(SIDE - 1, 1000), matrix(1000, 1000)) == 0
    double = matrix(10, 300).double(), matrix(300, 400).double()
    assert left(lambda a, b: a @ b, *double) == 0


def test_a_bias_is_added_behind_and_factors_stay() -> None:
    c, a, b = matrix(400), matrix(10, 300), matrix(300, 400)
    assert left(torch.addmm, c, a, b) == 1
    assert left(lambda c, a, b: torch.addmm(c, a, b, beta=0.5), c, a, b) == 0


def test_other_processors_keep_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "available", lambda: False)
    assert left(lambda a, b: a @ b, matrix(10, 300), matrix(300, 400)) == 0


def test_inductor_takes_the_graph() -> None:
    """All that is done to products, the code that is made of them, and the values."""
    stream = torch.Generator().manual_seed(0)
    data, bias, x, y = (
        torch.randn(*shape, generator=stream) for shape in ((900, 300), (10,), (10, 300), (10, 300))
    )

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        scores = (data @ x.t()).softmax(1), torch.nn.functional.linear(data, y, bias).softmax(1)
        return tuple(score.t() @ data for score in scores)

    products: list[int] = []

    class Seen(type(_shared_work())):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            super().__call__(graph)
            products.append(sum(node.target == product for node in graph.nodes))

        def uuid(self) -> None:
            return None  # never from a disk

    fast = torch.compile(fn, fullgraph=True, options={"post_grad_custom_pre_pass": Seen()})
    torch.testing.assert_close(fast(x, y), fn(x, y), rtol=1e-4, atol=1e-4)
    assert products == [3]
