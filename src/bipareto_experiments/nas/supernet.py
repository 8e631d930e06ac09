"""Supernets: every edge of a cell is the mixture of all operations, weighted by the softmax of its
logits.

A supernet is a pure function `logits(x, y, images)`.  x holds the architecture's logits, {kind of
cell: (edges, operations)}; y holds the weights, {part: [weight, ...]} for what is fixed and {cell:
{edge: {operation: [weight, ...]}}} for what is searched.  During the search batch norm uses the
statistics of the batch and has no scale or shift of its own; there are no running averages.

This is the plain form, one call per operation, written to be read and compared with.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, max_pool2d

from bipareto.errors import InvalidInput
from bipareto.problem.tree import Tree
from bipareto_experiments.nas.spaces import DARTS, NAS_BENCH_201, Conv, Operation, Space


class Place(NamedTuple):
    """A cell in the stack: its kind, the channels of its edges, and the side of the images that its
    nodes hold.
    """

    kind: str
    channels: int
    side: int


class Part(NamedTuple):
    """What is not searched: convolutions whose outputs have one side, and the channels of the batch
    norms that go with them.
    """

    convs: tuple[Conv, ...]
    side: int
    norms: tuple[int, ...]


@dataclass(frozen=True)
class Supernet(ABC):
    """What both supernets share.

    Args:
        channels: C of the first cell; it doubles where the side is halved.
        size: height and width of the images.
        classes: to tell apart.
    """

    channels: int = 16
    size: int = 32
    classes: int = 10
    space: ClassVar[Space]

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise InvalidInput(f"channels = {self.channels}; a network needs at least one")
        halvings = (self.places[-1].channels // self.channels).bit_length() - 1
        if self.size < 1 or self.size % 2**halvings:
            raise InvalidInput(
                f"images of {self.size} pixels cannot be halved {halvings} times; use a multiple "
                f"of {2**halvings}"
            )

    @property
    def folded(self) -> bool:
        """Whether its kernels take several runs at once: see `Problem`."""
        return False

    @property
    @abstractmethod
    def places(self) -> tuple[Place, ...]:
        """The cells from first to last."""

    @property
    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """What is fixed, by name."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers per image that the linear head sees."""

    @abstractmethod
    def features(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        """(n, width) from images (n, 3, H, W); `weights` are the softmax of the logits."""

    def logits(self, x: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        """The scores (n, classes) of images (n, 3, H, W)."""
        self.space.check(x)
        if images.shape[-3:] != (3, self.size, self.size):
            raise InvalidInput(
                f"images have shape {tuple(images.shape)}; this network was made for (n, 3, "
                f"{self.size}, {self.size})"
            )
        if images.shape[0] < 2:
            raise InvalidInput(
                f"a batch of {images.shape[0]} is too small: batch norm takes its statistics from "
                "the batch; use at least 2 images"
            )
        z = self.features({kind: table.softmax(-1) for kind, table in x.items()}, y, images)
        return z @ y["head"]["weight"] + y["head"]["bias"]

    def start(self, seed: int) -> tuple[dict[str, Tensor], Tree]:
        """x_0, near the equal mixture (1e-3 times normal), and y_0 by He's initialisation."""
        stream = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=stream)

        def weights(convs: Sequence[Conv]) -> list[Tensor]:
            return [
                normal(*conv.shape) * math.sqrt(2 * conv.outputs / conv.weights) for conv in convs
            ]

        space = self.space
        x = {kind: 1e-3 * normal(len(space.edges), len(space.operations)) for kind in space.kinds}
        y: dict[str, Tree] = {
            name: weights(part.convs) for name, part in self.parts.items() if part.convs
        }
        for c, (kind, channels, _) in enumerate(self.places):
            y[f"cell{c}"] = {}
            for edge in space.edges:
                tables = {
                    op.name: op.blocks(channels, space.stride(kind, edge))
                    for op in space.operations
                }
                y[f"cell{c}"][str(edge)] = {
                    name: weights([conv for block in blocks for conv in block])
                    for name, blocks in tables.items()
                    if blocks
                }
        y["head"] = {
            "weight": normal(self.width, self.classes) / math.sqrt(self.width),
            "bias": torch.zeros(self.classes),
        }
        return x, y

    def _nodes(
        self, place: Place, weights: Mapping[str, Tensor], y: Tree, given: Sequence[Tensor]
    ) -> list[Tensor]:
        """All nodes of a cell, from those that are given."""
        space, states = self.space, list(given)
        for node in range(space.given, len(space.nodes)):
            incoming = [
                _mixed(
                    space,
                    weights[place.kind][e],
                    y[str(space.edges[e])],
                    states[space.edges[e].source],
                    space.stride(place.kind, space.edges[e]),
                )
                for e in space.into(node)
            ]
            states.append(reduce(torch.add, incoming))
        return states


@dataclass(frozen=True)
class NasBench201(Supernet):
    """Stem, then three stages of cells at C, 2C and 4C with a residual reduction between them, then
    the head.

    Args:
        cells: per stage: 1 for a quick search, 5 in the published table.
    """

    cells: int = 1
    space = NAS_BENCH_201

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise InvalidInput(f"cells = {self.cells}; a stage has at least one cell")
        super().__post_init__()

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The cells from first to last."""
        return tuple(
            Place("cell", self.channels * 2**stage, self.size // 2**stage)
            for stage in range(3)
            for _ in range(self.cells)
        )

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The stem, the two residual reductions (two 3x3 convolutions beside one 1x1), and the last
        batch norm.
        """
        C = self.channels
        found = {"stem": Part((Conv(3, C, 3),), self.size, (C,))}
        for stage in (1, 2):
            small, large = C * 2 ** (stage - 1), C * 2**stage
            convs = Conv(small, large, 3, 2), Conv(large, large, 3), Conv(small, large, 1)
            found[f"reduction{stage}"] = Part(convs, self.size // 2**stage, (large, large))
        found["last"] = Part((), self.size // 4, (4 * C,))
        return found

    @property
    def width(self) -> int:
        """The last stage's channels."""
        return 4 * self.channels

    def features(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        """The last cell's output, normalised, rectified and averaged over the image."""
        z = _normalised(_convolved(images, y["stem"][0], self.parts["stem"].convs[0]))
        for c, place in enumerate(self.places):
            if c and c % self.cells == 0:
                z = self._reduced(z, y, f"reduction{c // self.cells}")
            z = self._nodes(place, weights, y[f"cell{c}"], [z])[-1]
        return torch.relu(_normalised(z)).mean((-2, -1))

    def _reduced(self, z: Tensor, y: Tree, name: str) -> Tensor:
        first, second, shortcut = self.parts[name].convs
        through = _block(_block(z, y[name][:1], (first,)), y[name][1:2], (second,))
        return through + _convolved(avg_pool2d(z, 2), y[name][2], shortcut)


@dataclass(frozen=True)
class Darts(Supernet):
    """Stem of 3C channels, then cells that each see the two before them, then the head.

    Args:
        stack: cells from first to last, "N" normal and "R" reduction.  The paper's is "NRN";
            DARTS's own rule (reductions at one and at two thirds) cannot give it.
    """

    stack: str = "NRN"
    space = DARTS

    def __post_init__(self) -> None:
        if set(self.stack) != {"N", "R"}:
            raise InvalidInput(
                f"stack is {self.stack!r}; write cells as letters, N for normal and R for "
                "reduction, at least one of each: NRN"
            )
        if self.channels < 2 or self.channels % 2:
            raise InvalidInput(
                f"channels = {self.channels}; a strided skip makes its channels in two halves: use "
                "an even number"
            )
        super().__post_init__()

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The cells from first to last."""
        halvings = [self.stack[: c + 1].count("R") for c in range(len(self.stack))]
        kinds = {"N": "normal", "R": "reduction"}
        return tuple(
            Place(kinds[letter], self.channels * 2**h, self.size // 2**h)
            for letter, h in zip(self.stack, halvings, strict=True)
        )

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The stem, and before each cell two 1x1 convolutions that bring its inputs to its
        channels, the older one also to its side.
        """
        found = {"stem": Part((Conv(3, 3 * self.channels, 3),), self.size, (3 * self.channels,))}
        outputs = [3 * self.channels] * 2 + [4 * place.channels for place in self.places]
        sides = [self.size] * 2 + [place.side for place in self.places]
        for c, (place, (older, newer)) in enumerate(
            zip(self.places, list(pairwise(outputs))[:-1], strict=True)
        ):
            halved = sides[c] != sides[c + 1]
            C = place.channels
            first = Conv(older, C, 1, 2 if halved else 1, halves=halved)
            found[f"before{c}"] = Part((first, Conv(newer, C, 1)), sides[c + 1], (C, C))
        return found

    @property
    def width(self) -> int:
        """The last cell's four nodes side by side."""
        return 4 * self.places[-1].channels

    def features(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        """The last cell's output averaged over the image."""
        older = newer = _normalised(_convolved(images, y["stem"][0], self.parts["stem"].convs[0]))
        for c, place in enumerate(self.places):
            given = [
                _block(z, [w], (conv,))
                for z, w, conv in zip(
                    (older, newer), y[f"before{c}"], self.parts[f"before{c}"].convs, strict=True
                )
            ]
            states = self._nodes(place, weights, y[f"cell{c}"], given)
            older, newer = newer, torch.cat(states[self.space.given :], 1)
        return newer.mean((-2, -1))


def _normalised(z: Tensor) -> Tensor:
    return batch_norm(z, None, None, training=True)


def _convolved(z: Tensor, weight: Tensor, conv: Conv) -> Tensor:
    if conv.halves:
        half = conv.outputs // 2
        return torch.cat(
            [conv2d(z, weight[:half], stride=2), conv2d(z[:, :, 1:, 1:], weight[half:], stride=2)],
            1,
        )
    return conv2d(z, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)


def _block(z: Tensor, weights: Sequence[Tensor], convs: Sequence[Conv]) -> Tensor:
    """ReLU, convolutions, batch norm."""
    z = torch.relu(z)
    for weight, conv in zip(weights, convs, strict=True):
        z = _convolved(z, weight, conv)
    return _normalised(z)


def _applied(
    space: Space, operation: Operation, weights: Sequence[Tensor], z: Tensor, stride: int
) -> Tensor:
    """One operation (other than "none") of one edge."""
    if operation.is_pooling:
        z = (
            max_pool2d(z, 3, stride, 1)
            if operation.kind == "max"
            else avg_pool2d(z, 3, stride, 1, count_include_pad=False)
        )
        return _normalised(z) if space.pool_norm else z
    used = 0
    for block in operation.blocks(z.shape[1], stride):
        z = _block(z, weights[used : used + len(block)], block)
        used += len(block)
    return z


def _mixed(space: Space, mixture: Tensor, y: Tree, z: Tensor, stride: int) -> Tensor:
    """The sum of an edge's operations by the weights `mixture` (operations,); "none" takes its
    share and adds nothing.
    """
    terms = [
        mixture[o] * _applied(space, operation, y.get(operation.name, ()), z, stride)
        for o, operation in enumerate(space.operations)
        if operation.kind != "none"
    ]
    return reduce(torch.add, terms)
