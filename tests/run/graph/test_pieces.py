"""Gradients of stretches of a vector: one row of pieces instead of sums of padded ones, and the
same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from bipareto.run.graph.replay import traced


def counted(loss: Callable[[Tensor], Tensor], *shape: int) -> Counter[str]:
    """The operations in the traced gradient of a loss; it must be the gradient, at another point
    too.
    """
    points = [
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in (0, 1)
    ]
    module = traced(lambda leaves, _: [torch.func.grad(loss)(leaves[0])], points[:1], [])
    for point in points:
        (found,) = module([point], [])
        torch.testing.assert_close(found, torch.func.grad(loss)(point), rtol=1e-14, atol=1e-14)
    return Counter(
        str(node.target).split(".")[1]
        for node in module.graph.nodes
        if node.op == "call_function" and "aten" in str(node.target)
    )


def test_stretches_that_cover_a_vector_are_laid_side_by_side() -> None:
    found = counted(lambda v: v[:3].exp().sum() + v[5:].sin().sum() + v[3:5].cos().sum(), 9)
    assert found["cat"] == 1
    assert not {"slice_backward", "zeros", "add"} & set(found)


def test_gaps_are_zero_and_what_touches_the_whole_is_added() -> None:
    found = counted(lambda v: v[1:3].exp().sum() + v[-2:].sin().sum() + v.square().sum(), 9)
    assert found["cat"] == found["add"] == 1
    assert not {"slice_backward", "zeros"} & set(found)


def test_stretches_that_overlap_are_added() -> None:
    found = counted(lambda v: v[:5].exp().sum() + v[3:].sin().sum() + v[5:7].cos().sum(), 9)
    assert found["cat"] == 2
    assert found["add"] == 1


def test_a_slice_of_everything_is_nothing_and_an_empty_one_adds_nothing() -> None:
    found = counted(lambda v: v[0:].exp().sum() + v[4:4].sum() + v[:, 1:1].sin().sum(), 4, 3)
    assert not {"slice", "slice_backward", "cat", "zeros", "add"} & set(found)
    assert not {"slice_backward", "cat", "add"} & set(
        counted(lambda v: v[1:1].exp().sum() + v[2:2].sin().sum(), 3)
    )


def test_axes_and_steps_stay_apart() -> None:
    found = counted(
        lambda v: (
            v[:2].exp().sum() + v[2:].sin().sum() + v[:, :1].cos().sum() + v[:, 1:].cosh().sum()
        ),
        3,
        4,
    )
    assert found["cat"] == 2
    assert counted(lambda v: v[::2].exp().sum() + v[1::2].sin().sum(), 6)["slice_backward"] == 2


def test_runs_side_by_side_keep_their_pieces() -> None:
    batch = torch.func.vmap(lambda v: v[:3].exp().sum() + v[5:].sin().sum())
    assert counted(lambda v: batch(v).square().sum(), 2, 9)["cat"] == 1


def test_a_row_of_many_axes_is_one_of_two() -> None:
    points = [
        torch.randn(2, 1, 3, 2, 2, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    ]
    cases = [
        (lambda a, b: torch.cat([a.exp(), b, a], 2), 1),
        (lambda a, b: torch.stack([a, b.exp()], -2), 1),
        (
            lambda a, b: torch.cat([a.mT, b], 4),
            4,
        ),  # parts that do not lie in one piece stay as they are
    ]
    for step, axis in cases:
        module = traced(lambda leaves, _, step=step: [step(*leaves)], points, [])
        assert torch.equal(module(points[::-1], [])[0], step(*points[::-1]))
        assert [node.args[1] for node in module.graph.nodes if "cat" in str(node.target)] == [axis]
