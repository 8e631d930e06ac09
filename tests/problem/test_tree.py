from __future__ import annotations

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from helpers import DOUBLE

TREES = st.recursive(
    st.lists(st.integers(1, 3), max_size=2).map(
        lambda shape: torch.arange(torch.tensor(shape).prod().item() or 1, dtype=DOUBLE).reshape(
            shape or ()
        )
    ),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text(min_size=1, max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


@given(TREES)
def test_ravel_and_unravel_are_inverse(value: tree.Tree) -> None:
    back = tree.unravel(tree.ravel(value), value)
    assert tree.structure(back) == tree.structure(value)
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(back), tree.leaves(value), strict=True)
    )


@given(TREES, st.floats(-3, 3))
def test_arithmetic_is_that_of_the_flat_vector(value: tree.Tree, scale: float) -> None:
    other = tree.map_(lambda leaf: leaf + 1, value)
    u, v = tree.ravel(value), tree.ravel(other)
    torch.testing.assert_close(tree.ravel(tree.add_scaled(value, scale, other)), u + scale * v)
    torch.testing.assert_close(tree.ravel(tree.sub(value, other)), u - v)
    torch.testing.assert_close(
        tree.ravel(tree.interpolate(value, other, scale)), (1 - scale) * u + scale * v
    )
    torch.testing.assert_close(tree.dot(value, other), u @ v)
    torch.testing.assert_close(tree.squared_norm(value), u @ u)
    torch.testing.assert_close(tree.norm(value), (u @ u).sqrt())
    torch.testing.assert_close(
        tree.relative_distance(value, other), (u - v).norm() / v.norm(), equal_nan=True
    )


@given(TREES)
def test_a_layout_in_json_leads_back(value: tree.Tree) -> None:
    numbered = {0: value, 2: [value], "1": value}
    back = tree.from_layout(
        json.loads(json.dumps(tree.layout(numbered))), iter(tree.leaves(numbered))
    )
    assert tree.structure(back) == tree.structure(numbered)
    assert all(a is b for a, b in zip(tree.leaves(back), tree.leaves(numbered), strict=True))
    with pytest.raises(InvalidInput, match=r"the key \(0, 1\); only texts"):
        tree.layout({(0, 1): value})


@given(TREES)
def test_stack_and_select_are_inverse(value: tree.Tree) -> None:
    other = tree.map_(lambda leaf: leaf - 2, value)
    both = tree.stack([value, other])
    for i, wanted in enumerate((value, other)):
        assert torch.equal(tree.ravel(tree.select(both, i)), tree.ravel(wanted))
    mixed = tree.where_run(torch.tensor([False, True]), both, tree.stack([other, value]))
    assert torch.equal(tree.ravel(tree.select(mixed, 0)), tree.ravel(other))
    assert torch.equal(tree.ravel(tree.select(mixed, 1)), tree.ravel(other))


def test_a_module_becomes_a_copy_of_its_parameters() -> None:
    module = nn.Linear(2, 1)
    taken = tree.as_tree(module, "y0")
    assert set(taken) == {"weight", "bias"}
    taken["weight"].zero_()
    assert module.weight.abs().sum() > 0
    assert not taken["weight"].requires_grad


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"w": [1.0, 2.0]}, [r"x0\['w'\]\[0\]", "float", "as_tensor"]),
        (torch.tensor([1, 2]), ["int64", "double"]),
        ({}, ["empty"]),
    ],
)
def test_what_is_not_a_tree_of_floats_is_named(value: object, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as error:
        tree.as_tree(value, "x0")
    for word in words:
        assert re.search(word, str(error.value)), (word, str(error.value))


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(InvalidInput, match="sparse"):
        tree.as_tree(torch.eye(2).to_sparse(), "x0")


def test_steps_and_means_of_trees() -> None:
    a = {"u": torch.tensor([1.0, 2.0], dtype=DOUBLE), "v": [torch.tensor(3.0, dtype=DOUBLE)]}
    b = {"u": torch.tensor([10.0, -4.0], dtype=DOUBLE), "v": [torch.tensor(0.5, dtype=DOUBLE)]}
    half = torch.tensor(0.5, dtype=DOUBLE)
    flat = {
        "descend": tree.descend(a, half, b),
        "add_scaled": tree.add_scaled(a, 3.0, b),
        "sub": tree.sub(a, b),
        "interpolate": tree.interpolate(a, b, 0.25),
    }
    assert {name: tree.ravel(found).tolist() for name, found in flat.items()} == {
        "descend": [-4.0, 4.0, 2.75],
        "add_scaled": [31.0, -10.0, 4.5],
        "sub": [-9.0, 6.0, 2.5],
        "interpolate": [3.25, 0.5, 2.375],
    }


def test_a_run_by_itself_lies_in_memory_as_it_did() -> None:
    for leaf in (torch.ones(()), torch.ones(3), torch.ones(3, 4).T):
        assert tree.expand(leaf, 1).stride() == leaf[None].stride()
        assert tree.expand(leaf, 5).stride() == (0, *leaf.stride())
