"""A guard of speed that no busy machine can shake: operators and graphs of a step, not seconds."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.methods import METHODS
from bipareto.methods.base import State
from bipareto.problem import Problem, tree
from bipareto.run.compiled import CompiledStepper

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
