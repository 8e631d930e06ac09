"""A tree in one vector: found again by name, with the gradients of its leaves."""

from __future__ import annotations

import torch

from bipareto.problem import tree
from bipareto_experiments.nas.sections import Layout, Section

TREE = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": {"c": [torch.tensor(7.0), torch.tensor([8.0, 9.0])], "d": {"e": torch.tensor([10.0])}},
}


def test_a_split_vector_is_the_tree() -> None:
    found = Layout.of(TREE).split(tree.ravel(TREE))
    assert torch.equal(found["a"], TREE["a"])
    assert isinstance(found["b"], Section)
    assert list(found["b"]) == ["c", "d"]
    assert len(found["b"]) == 2
    assert [leaf.tolist() for leaf in found["b"]["c"]] == [7.0, [8.0, 9.0]]
    assert found["b"]["d"]["e"].tolist() == [10.0]
    assert found["b"].vector.tolist() == [7.0, 8.0, 9.0, 10.0]
    assert found["b"]["d"].vector.tolist() == [10.0]  # a section within a section
    assert [leaf.shape for leaf in Layout.of([TREE["a"]]).split(tree.ravel(TREE["a"]))] == [(2, 3)]


def test_gradients_reach_the_places_of_the_leaves() -> None:
    vector = tree.ravel(TREE)
    layout = Layout.of(TREE)

    def value(v: torch.Tensor) -> torch.Tensor:
        found = layout.split(v)
        return found["a"].sum() + 3 * found["b"]["c"][1].sum() + found["b"].vector.square().sum()

    expected = torch.cat([torch.ones(6), 2 * vector[6:] + torch.tensor([0.0, 3.0, 3.0, 0.0])])
    assert torch.equal(torch.func.grad(value)(vector), expected)
    many = torch.stack([vector, 2 * vector])
    assert torch.equal(torch.func.vmap(torch.func.grad(value))(many)[0], expected)
