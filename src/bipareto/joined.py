"""A problem whose y is one vector: the arithmetic of a method on hundreds of small tensors becomes that on one.

A step adds, scales and averages trees of the shape of y a dozen times.  Leaf by leaf that is a kernel each; on a network with 500
weights the step then spends more kernels on its own arithmetic than on the network.  The method does not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bipareto import tree
from bipareto.problem import Problem
from bipareto.tree import Tree

__all__ = ["Joined"]


class Joined(Problem):
    """The same problem in one vector for y, and the way between states of the two.

    Args:
        find: returns the problem; a function, so that a stepper which is kept as long as its problem does not keep it.
        y: a tree of the shapes of y, without a run axis.

    Where the problem is `folded`, g at y and at theta are evaluated side by side, by `vmap`.
    """

    def __init__(self, find: Callable[[], Problem], y: Tree) -> None:
        self.find = find
        super().__init__(self._upper_of, self._lower_of, sampler=find().sampler, names=find().names)
        self.like = tree.map_(lambda leaf: torch.empty_like(leaf, device="meta"), y)
        self.structure = pytree.tree_structure(y)
        self.shapes = [leaf.shape for leaf in tree.leaves(y)]

    def split(self, y: Tensor) -> Tree:
        """The tree of a vector."""
        return tree.unravel(y, self.like)

    def _upper_of(self, x: Tree, y: Tensor, *batch: Any) -> Tensor:
        return self.find().upper(x, self.split(y), *batch)

    def _lower_of(self, x: Tree, y: Tensor, *batch: Any) -> Tensor:
        return self.find().lower_joined(x, y, self.split, *batch)

    def objective(self, i: int, x: Tree, y: Tensor, batch: Any = None) -> Tensor:
        return self.find().objective(i, x, self.split(y), batch)

    def lower_pair(self, x: Tree, y: Tensor, theta: Tensor, batch: Any = None) -> tuple[Tensor, Tensor]:
        if not self.find().folded:
            return self.lower(x, y, batch), self.lower(x, theta, batch)
        both = torch.func.vmap(lambda v: self.lower(x, v, batch))(torch.stack([y, theta]))
        return both[0], both[1]

    def join(self, state: Any) -> Any:
        """A state in which every part with the structure of y is a vector, whatever axes (runs, objectives) its leaves have in front."""
        return pytree.tree_map(lambda part: self._vector(part) if self._is_like_y(part) else part, state, is_leaf=self._is_like_y)

    def part(self, joined: Any, state: Any) -> Any:
        """Undo `join`: the structure is that of `state`, whose leaves may be anything."""
        leaves: list[Tensor] = []
        for value, place in zip(pytree.tree_leaves(joined), pytree.tree_leaves(state, is_leaf=self._is_like_y), strict=True):
            if self._is_like_y(place):
                pieces = value.split([shape.numel() for shape in self.shapes], -1)
                leaves += [piece.reshape(piece.shape[:-1] + shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
            else:
                leaves.append(value)
        return pytree.tree_unflatten(leaves, pytree.tree_structure(state))

    def _is_like_y(self, part: Any) -> bool:
        return pytree.tree_structure(part) == self.structure

    def _vector(self, part: Tree) -> Tensor:
        pairs = zip(tree.leaves(part), self.shapes, strict=True)
        return torch.cat([leaf.reshape((*leaf.shape[: leaf.dim() - len(shape)], -1)) for leaf, shape in pairs], -1)
