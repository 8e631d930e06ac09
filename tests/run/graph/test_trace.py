"""A recorded step is the step: on other inputs, through `vmap` and `grad`, with nothing written in
place, nothing done twice, nothing kept.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.run.graph.replay import traced
from bipareto.run.graph.trace import kind, record


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def operations(module: torch.fx.GraphModule) -> Counter[str]:
    return Counter(
        str(node.target)
        for node in module.graph.nodes
        if node.op == "call_function" and "getitem" not in str(node.target)
    )


def agreed(step: Any, *shapes: tuple[int, ...]) -> Counter[str]:
    """The operations of the traced step, which must give what the step gives on inputs it has not
    seen.
    """
    given = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    module = traced(lambda leaves, _: step(*leaves), given, [])
    others = [random(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    kept = [other.clone() for other in others]
    torch.testing.assert_close(module(others, []), step(*others), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(others, kept, strict=True))
    return operations(module)


def test_a_batch_of_gradients() -> None:
    def loss(w: Tensor, z: Tensor) -> Tensor:
        return (
            torch.nn.functional.cross_entropy(torch.relu(z @ w), torch.tensor([0, 1, 1])) + w.norm()
        )

    def step(w: Tensor, z: Tensor) -> dict[str, Any]:
        gradient, value = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(0, None))(w, z)
        return {"gradient": gradient, "several": [value, gradient.max(-1)[0]]}

    counted = agreed(step, (4, 5, 2), (3, 5))
    assert not [name for name in counted if name.split(".")[1].endswith("_")]


def test_equal_work_is_done_once_and_draws_of_noise_are_not_equal_work() -> None:
    assert (
        agreed(lambda a, b: (a @ b).sum() + (a @ b).exp().sum(), (3, 2), (2, 3))["aten.mm.default"]
        == 1
    )
    module = traced(
        lambda leaves, _: [leaves[0] + torch.randn(3), leaves[0] + torch.randn(3)],
        [torch.zeros(3)],
        [],
    )
    assert operations(module)["aten.randn.default"] == 2


def test_what_is_written_in_place_where_nobody_looks_is_written_elsewhere() -> None:
    counted = agreed(
        lambda a, b: (a + b).masked_fill_(a > 0, 0.0).mul_(b).unsqueeze_(0), (3,), (3,)
    )
    assert counted == {
        "aten.add.Tensor": 1,
        "aten.gt.Scalar": 1,
        "aten.masked_fill.Scalar": 1,
        "aten.mul.Tensor": 1,
        "aten.unsqueeze.default": 1,
    }


def test_what_is_written_in_place_where_somebody_looks_is_seen_there() -> None:
    def through_a_view(a: Tensor, b: Tensor) -> list[Tensor]:
        c = a + b
        row = c[0]
        c.mul_(2)
        return [row, c, c.exp()]

    def into_a_view(a: Tensor, b: Tensor) -> list[Tensor]:
        c = a * b
        c[0] = b[1]
        c[1].add_(a[0])
        return [c]

    def into_zeros(a: Tensor, b: Tensor) -> list[Tensor]:
        c = torch.zeros(3, 2, dtype=a.dtype)
        c[:2] = a
        return [c, c.sum() * b]

    for step in (through_a_view, into_a_view, into_zeros):
        assert not [
            name for name in agreed(step, (2, 2), (2, 2)) if name.split(".")[1].endswith("_")
        ]


def test_constants_are_kept_once_each() -> None:
    table, other = random(3, seed=5), random(3, seed=6)
    recording = record(lambda leaves: [leaves[0] * table + table, leaves[0] * other], [random(3)])
    assert [value.data_ptr() for value in recording.constants.values()] == [
        table.data_ptr(),
        other.data_ptr(),
    ]
    given = random(3, seed=1)
    torch.testing.assert_close(recording.module()([given]), [given * table + table, given * other])


def test_ones_and_zeros_are_made_once_and_what_only_lends_its_shape_is_not_computed() -> None:
    def step(a: Tensor) -> Tensor:
        weights = torch.arange(3, dtype=a.dtype).exp() + torch.ones_like(a.sin())
        return a * weights + a.new_zeros(2, 3).sum(0)

    assert agreed(step, (3,)) == {"aten.mul.Tensor": 1, "aten.add.Tensor": 1}
    assert agreed(lambda a: a + torch.zeros(2048, 1024, dtype=a.dtype), (1,)) == {
        "aten.zeros.default": 1,
        "aten.add.Tensor": 1,
    }


def test_only_results_are_copies() -> None:
    assert agreed(lambda a: a.clone().exp() + (a * 2).clone(), (3,)) == {
        "aten.exp.default": 1,
        "aten.mul.Tensor": 1,
        "aten.add.Tensor": 1,
    }
    kept = traced(lambda leaves, _: [leaves[0] + 1, leaves[0].clone().view(1, 3)], [random(3)], [])
    given = random(3, seed=1)
    moved, before = kept([given], [])
    given.copy_(moved)
    assert not torch.equal(given, before[0])
    assert (
        agreed(lambda a: a.T.clone(memory_format=torch.contiguous_format).view(6).exp(), (2, 3))[
            "aten.clone.default"
        ]
        == 1
    )


def test_a_tensor_that_is_changed_between_steps_is_seen_with_what_is_computed_from_it() -> None:
    table, given = torch.ones(3), torch.ones(3)
    module = traced(lambda leaves, _: [leaves[0] * table.exp()], [given], [])
    table.fill_(2)
    torch.testing.assert_close(module([given], []), [torch.full((3,), 2.0).exp()])


def test_a_look_at_a_number_is_refused_unless_it_never_changes() -> None:
    with pytest.raises(InvalidInput, match=r"cannot read a number.*item.*torch.where"):
        record(lambda leaves: leaves[0] * (leaves[0].sum().item() > 0), [random(3)])
    scale = torch.tensor(2.0)
    graph = record(lambda leaves: leaves[0] * scale.item(), [random(3)]).graph
    assert [
        node.args[1]
        for node in graph.nodes
        if node.op == "call_function" and "mul" in str(node.target)
    ] == [2.0]


def test_what_the_step_has_done_with_is_freed_and_its_kind_is_known() -> None:
    gone = []

    def step(leaves: list[Tensor]) -> Tensor:
        wide = leaves[0].T.clone()
        seen = weakref.ref(wide)
        total = wide.sum()
        del wide
        gone.append(seen() is None)
        return total

    graph = record(step, [random(4, 3)]).graph
    assert gone == [True]
    (made,) = (kind(node) for node in graph.nodes if "clone" in str(node.target))
    assert made is not None
    assert (made.shape, made.dtype, made.contiguous) == ((3, 4), torch.float64, False)
