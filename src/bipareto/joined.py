"""A problem whose y is one vector: the arithmetic of a method on hundreds of small tensors becomes that on one.

A step adds, scales and averages trees of the shape of y a dozen times.  Leaf by leaf that is a kernel each; on a network with 500
weights the step then spends more kernels on its own arithmetic than on the network.  The method does not notice; the problem, which
must ask for it, is given y as nested `Section`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bipareto import tree
from bipareto.problem import Problem
from bipareto.tree import Tree

__all__ = ["Joined", "Section"]


class Layout(NamedTuple):
    """Where the parts of a tree lie in its vector: numbers in all, the shape of a leaf, or {key: (first, layout)} of a dict or list."""

    size: int
    shape: torch.Size | None
    parts: dict[Any, tuple[int, Layout]]
    listed: bool

    @classmethod
    def of(cls, part: Tree) -> Layout:
        """The layout of a tree."""
        if isinstance(part, Tensor):
            return cls(part.numel(), part.shape, {}, listed=False)
        parts, size = {}, 0
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            inner = cls.of(value)
            parts[key] = (size, inner)
            size += inner.size
        return cls(size, None, parts, listed=not isinstance(part, dict))


class Section(Mapping[str, Any]):
    """A dict over a stretch of a vector: indexed like the dict it stands for; leaves are views, made when they are asked for.

    A network with hundreds of weights that takes whole stretches (`vector`) is traced in a fraction of the time.

    Args:
        base: the vector, or a stretch of it.
        first: where in it the section begins.
        layout: of the section.
    """

    def __init__(self, base: Tensor, first: int, layout: Layout) -> None:
        self.base, self.first, self.layout = base, first, layout

    @property
    def vector(self) -> Tensor:
        """All of it."""
        return self.base.narrow(-1, self.first, self.layout.size)

    def parted(self) -> dict[str, Any]:
        """The dict itself, for those who use every leaf: cut at once, its gradient is put together at once."""
        return _built(self.layout, iter(self.vector.split(list(_sizes(self.layout)), -1)))

    def __getitem__(self, key: str) -> Any:
        first, layout = self.layout.parts[key]
        return _over(self.base, self.first + first, layout)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.parts)

    def __len__(self) -> int:
        return len(self.layout.parts)


def _over(base: Tensor, first: int, layout: Layout) -> Any:
    """A leaf, a list or a section."""
    if layout.shape is not None:
        return base.narrow(-1, first, layout.size).view(layout.shape)
    if layout.listed:
        return [_over(base, first + begin, part) for begin, part in layout.parts.values()]
    return Section(base, first, layout)


def _sizes(layout: Layout) -> Iterator[int]:
    """Of the leaves, in their order."""
    if layout.shape is not None:
        yield layout.size
    for _, part in layout.parts.values():
        yield from _sizes(part)


def _built(layout: Layout, pieces: Iterator[Tensor]) -> Any:
    """The tree of a layout from its leaves as stretches."""
    if layout.shape is not None:
        return next(pieces).view(layout.shape)
    found = {key: _built(part, pieces) for key, (_, part) in layout.parts.items()}
    return list(found.values()) if layout.listed else found


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
        self.layout = Layout.of(y)
        self.structure = pytree.tree_structure(y)
        self.shapes = [leaf.shape for leaf in tree.leaves(y)]

    def split(self, y: Tensor) -> Tree:
        """The tree of a vector: a dict or list of leaves, lists and `Section`s."""
        # Cut once: each stretch taken by itself would be a gradient as long as the whole.
        pieces = y.split([part.size for _, part in self.layout.parts.values()])
        found = {key: _over(piece, 0, part) for piece, (key, (_, part)) in zip(pieces, self.layout.parts.items(), strict=True)}
        return list(found.values()) if self.layout.listed else found

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
