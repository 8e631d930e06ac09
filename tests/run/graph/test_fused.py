"""Moves of many leaves as one operation: the same numbers, in the right order, and nothing joined
that differs.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from bipareto.problem import tree
from bipareto.run.graph.replay import traced

SHAPES = ((3, 2), (7,), (), (2, 2, 2))


def leaves(seed: int) -> list[Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=stream, dtype=torch.float64) for shape in SHAPES]


def counted(step: object, *trees: list[Tensor]) -> Counter[str]:
    """How often each operation is left; the traced step must give what the step gives."""
    given, numbers = (
        [leaf for part in trees for leaf in part],
        [torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)],
    )

    def flat(leaves: list[Tensor], numbers: list[Tensor]) -> list[Tensor]:
        parts = [leaves[i : i + len(SHAPES)] for i in range(0, len(leaves), len(SHAPES))]
        return tree.leaves(step(*parts, *numbers))  # type: ignore[operator]

    module = traced(flat, given, numbers)
    for found, wanted in zip(module(given, numbers), flat(given, numbers), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)
    return Counter(
        str(node.target)
        for node in module.graph.nodes
        if node.op == "call_function" and "getitem" not in str(node.target)
    )


def test_a_tree_moves_in_one_operation() -> None:
    assert counted(lambda a, b, s, _: tree.descend(a, s, b), leaves(0), leaves(1)) == {
        "bipareto.moved.default": 1
    }


def test_moves_that_build_on_each_other_keep_their_order() -> None:
    def step(a: list[Tensor], b: list[Tensor], s: Tensor, r: Tensor) -> tree.Tree:
        d = tree.map_(
            lambda u, v: torch.addcmul(u, r, v - u), b, a
        )  # leaf by leaf: sub, addcmul, sub, addcmul
        return tree.descend(a, s, d)

    assert counted(step, leaves(0), leaves(1)) == {"bipareto.moved.default": 3}


def test_moves_of_one_kind_that_build_on_each_other_are_two() -> None:
    found = counted(
        lambda a, b, s, _: tree.descend(tree.descend(a, s, b), s, b), leaves(0), leaves(1)
    )
    assert found == {"bipareto.moved.default": 2}


def test_leaves_of_other_shapes_and_steps_of_another_kind_are_left_alone() -> None:
    def broadcast(a: list[Tensor], b: list[Tensor], s: Tensor, _: Tensor) -> tree.Tree:
        rows = [b[0][0], b[3][0]]
        return [a[0] + rows[0], a[3] + rows[1]]

    def single(a: list[Tensor], b: list[Tensor], s: Tensor, _: Tensor) -> tree.Tree:
        s = s.float()
        return [torch.addcmul(a[0], s, b[0]), torch.addcmul(a[1], s, b[1])]

    for step in (broadcast, single):
        assert "bipareto.moved.default" not in counted(step, leaves(0), leaves(1))


def test_other_steps_signs_and_layouts_stay_apart() -> None:
    def step(a: list[Tensor], b: list[Tensor], s: Tensor, r: Tensor) -> tree.Tree:
        return [
            torch.addcmul(a[0], s, b[0]),
            torch.addcmul(a[1], r, b[1]),
            a[2] + b[2],
            a[3] - b[3],
        ]

    assert "bipareto.moved.default" not in counted(step, leaves(0), leaves(1))

    def turned(a: list[Tensor], b: list[Tensor], s: Tensor, _: Tensor) -> tree.Tree:
        return [
            torch.addcmul(a[0].mT, s, b[0].mT),
            torch.addcmul(a[3].mT, s, b[3].mT),
            torch.addcmul(a[1], s, b[1]),
            torch.addcmul(a[2], s, b[2]),
        ]

    found = counted(turned, leaves(0), leaves(1))
    assert found["bipareto.moved.default"] == 1
    assert found["aten.addcmul.default"] == 2


def test_a_step_that_is_moved_itself_is_found_by_the_moves_that_use_it() -> None:
    def step(a: list[Tensor], b: list[Tensor], s: Tensor, r: Tensor) -> tree.Tree:
        first, second = s + a[2], r + b[2]  # joined, and then the step of two more moves
        return [torch.addcmul(a[1], first, b[1]), torch.addcmul(b[1], first, a[1]), second]

    assert counted(step, leaves(0), leaves(1)) == {"bipareto.moved.default": 2}
