"""A guard of speed that no busy machine can shake: operators and graphs of a step, not seconds."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.methods import METHODS
from bipareto.methods.base import State
from bipareto.problem import Problem, tree
from bipareto.run.compiled import CompiledStepper, _shared_work
from bipareto.run.graph import onednn, products

PROBLEM = bp.problems.get("pl-sin2", dim=4)
#: Operators of one eager step on PL-SIN2 at most.  A change that lowers one lowers it here; one
#: that raises it says why.
MOST = {
    "momeha": 189,
    "mb-momeha": 198,
    "meha": 185,
    "moml": 466,
    "gmoba": 214,
    "forum": 435,
    "moco": 764,
    "wc-mhgd": 1262,
    "wc-penalty": 124,
    "twin": 182,
}


class Counting(TorchDispatchMode):
    """Counts what reaches the dispatcher, views and copies included."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def begun(name: str) -> tuple[Problem, Any, State, Any]:
    problem: Problem = PROBLEM
    if name == "meha":
        problem = Problem(lambda x, y: PROBLEM.upper(x, y)[:1], PROBLEM.lower)
    method = METHODS[name]()
    preference = None
    if method.uses_preference:
        preference = torch.tensor([1.0]) if name == "meha" else torch.tensor([0.4, 0.6])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        state = method.init(problem, PROBLEM.x0, PROBLEM.y0, preference)
    return problem, method, state, {}


@pytest.mark.parametrize("name", METHODS)
def test_a_step_has_no_more_operators_than_it_had(name: str) -> None:
    problem, method, state, batches = begun(name)
    method.step(problem, state, batches)
    with Counting() as seen:
        method.step(problem, state, batches)
    assert 0 < seen.count <= MOST[name]


@pytest.mark.parametrize("name", METHODS)
def test_a_batched_step_is_one_graph_without_breaks(name: str) -> None:
    problem, method, state, batches = begun(name)
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module.forward

    step = CompiledStepper(problem, method, True, True, backend)  # type: ignore[arg-type]
    packed = step.pack(tree.stack([state, state]), batches)
    for _ in range(3):
        packed, _ = step.advance(packed, batches)
    assert not step.broken
    assert len(graphs) == 1


def test_a_step_of_a_linear_classifier_has_eight_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the twelve that are written: g and f are evaluated once per point, g at y and at theta by
    one product.
    """
    monkeypatch.setattr(products, "intel", lambda: False)
    monkeypatch.setattr(onednn, "available", lambda: True)
    stream = torch.Generator().manual_seed(0)
    images = [torch.randn(size, 80, generator=stream) for size in (320, 330, 340)]
    labels = [torch.randint(10, (len(part),), generator=stream) for part in images]

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([cross_entropy(images[i] @ y.T, labels[i]) for i in (1, 2)])

    def g(x: Tensor, y: Tensor) -> Tensor:
        each = cross_entropy(images[0] @ y.T, labels[0], reduction="none")
        return (torch.sigmoid(x) * each).mean() + y.square().sum()

    shapes: list[list[tuple[int, ...]]] = []

    def look(module: torch.fx.GraphModule, _: Any) -> Any:
        _shared_work()(module.graph)
        module.recompile()
        targets = (torch.ops.aten.mm.default, torch.ops.bipareto.product.default)
        found = [node for node in module.graph.nodes if node.target in targets]
        shapes.append(sorted(tuple(node.meta["val"].shape) for node in found))
        return module.forward

    problem, method = Problem(f, g), bp.MOMEHA()
    state = method.init(problem, torch.zeros(320), torch.zeros(10, 80), torch.tensor([0.4, 0.6]))
    step = CompiledStepper(problem, method, False, True, aot_autograd(fw_compiler=look))  # type: ignore[arg-type]
    after, _ = step(state, {})
    plain, _ = method.step(problem, state, {})
    assert not step.broken
    assert shapes == [[(10, 80)] * 4 + [(10, 320), (10, 330), (10, 340), (20, 320)]]
    torch.testing.assert_close(after.y, plain.y)
    torch.testing.assert_close(after.x, plain.x)
