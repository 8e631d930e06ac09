"""A tree laid out in one vector: a method moves hundreds of small tensors in one operation, a
network finds them by their names.

A step adds, scales and averages trees of the shape of y a dozen times.  Leaf by leaf that is a
kernel each; on a network with 500 weights the step then spends more kernels on its own arithmetic
than on the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.problem.tree import Tree


class Layout(NamedTuple):
    """Where the parts of a tree lie in its vector: numbers in all, the shape of a leaf, or {key:
    (first, layout)} of a dict or list.
    """

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

    def split(self, vector: Tensor) -> Tree:
        """The tree of a vector: a dict or list of leaves, lists and `Section`s."""
        # Cut once: each stretch taken by itself would be a gradient as long as the whole.
        pieces = vector.split([part.size for _, part in self.parts.values()])
        found = {
            key: _over(piece, 0, part)
            for piece, (key, (_, part)) in zip(pieces, self.parts.items(), strict=True)
        }
        return list(found.values()) if self.listed else found


class Section(Mapping[str, Any]):
    """A dict over a stretch of a vector: indexed like the dict it stands for; leaves are views,
    made when they are asked for.

    A network with hundreds of weights that takes whole stretches (`vector`) is traced in a fraction
    of the time.

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
