"""A found architecture as an ordinary network, trained from scratch and tested.

Batch norms have scale, shift and running averages here.  SGD with Nesterov momentum, a cosine,
weight decay, shifts, mirror images and cutout: NAS-Bench-201's recipe.  DARTS's own training adds
an auxiliary head and dropped paths over 600 epochs; these are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from bipareto.errors import InvalidInput
from bipareto_experiments.data import ImageSet
from bipareto_experiments.nas.genotype import Chosen, Genotype
from bipareto_experiments.nas.spaces import NAS_BENCH_201, Block, Conv, Operation, Space
from bipareto_experiments.nas.supernet import Darts, NasBench201, Place, Supernet


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Args:
        epochs, batch: passes over the training images, images of a step.
        rate: of SGD at the start; it falls to zero along a cosine.
        momentum, decay: of SGD, with Nesterov's form.
        margin, flip, cutout: see `Augmentation`.
        clip: bound on the gradient's norm.
        half: let the passes work in bfloat16, by torch's autocast.
        seed: start and order of the images.
    """

    epochs: int = 200
    batch: int = 256
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 5e-4
    margin: int = 4
    flip: bool = True
    cutout: int = 0
    clip: float = 5.0
    half: bool = False
    seed: int = 0


class _Halves(nn.Module):
    """A strided 1x1 convolution in two halves, for even and for odd pixels."""

    def __init__(self, conv: Conv) -> None:
        super().__init__()
        self.even, self.odd = (
            nn.Conv2d(conv.inputs, conv.outputs // 2, 1, 2, bias=False) for _ in range(2)
        )

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([self.even(z), self.odd(z[:, :, 1:, 1:])], 1)


def _convolution(conv: Conv) -> nn.Module:
    if conv.halves:
        return _Halves(conv)
    return nn.Conv2d(
        conv.inputs,
        conv.outputs,
        conv.kernel,
        conv.stride,
        conv.padding,
        conv.dilation,
        conv.groups,
        bias=False,
    )


def _block(block: Block) -> nn.Module:
    return nn.Sequential(nn.ReLU(), *map(_convolution, block), nn.BatchNorm2d(block[-1].outputs))


def _operation(operation: Operation, channels: int, stride: int) -> nn.Module:
    if operation.kind == "max":
        return nn.MaxPool2d(3, stride, 1)
    if operation.kind == "average":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    return nn.Sequential(
        *map(_block, operation.blocks(channels, stride))
    )  # of nothing: the identity


class _Cell(nn.Module):
    """The chosen edges of a cell; a node without any is zero."""

    def __init__(self, space: Space, chosen: Sequence[Chosen], place: Place) -> None:
        super().__init__()
        self.space = space
        self.edges = [
            pair
            for pair in chosen
            if space.operations[space.names.index(pair.operation)].kind != "none"
        ]
        self.operations = nn.ModuleList(
            _operation(
                space.operations[space.names.index(name)],
                place.channels,
                space.stride(place.kind, edge),
            )
            for edge, name in self.edges
        )
        self.halves = place.kind == "reduction"

    def forward(self, given: list[Tensor]) -> list[Tensor]:
        states = list(given)
        for node in range(self.space.given, len(self.space.nodes)):
            into = [
                op(states[pair.edge.source])
                for op, pair in zip(self.operations, self.edges, strict=True)
                if pair.edge.target == node
            ]
            # One by one: a stack would be a copy of all of them, in torch's usual layout.
            states.append(sum(into[1:], into[0]) if into else torch.zeros_like(states[0]))
        return states


class Standalone(nn.Module):
    """The stack of `network` with the cells of `genotype`: exactly the parameters and FLOPs that
    `objectives.cost` counts.

    Args:
        genotype: the cells.
        network: a supernet of the same space; only its shape is used.
    """

    def __init__(self, genotype: Genotype, network: Supernet) -> None:
        super().__init__()
        space = network.space
        if genotype.space != space:
            raise InvalidInput(
                f"this genotype is of the space {genotype.space.name}, but the network is of "
                f"{space.name}; use one of its own space"
            )
        self.network = network
        self.convs = nn.ModuleDict(
            {
                name: nn.ModuleList(map(_convolution, part.convs))
                for name, part in network.parts.items()
            }
        )
        self.norms = nn.ModuleDict(
            {
                name: nn.ModuleList(map(nn.BatchNorm2d, part.norms))
                for name, part in network.parts.items()
            }
        )
        self.cells = nn.ModuleList(
            _Cell(space, genotype.cells[place.kind], place) for place in network.places
        )
        self.head = nn.Linear(network.width, network.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        features = self._stages if isinstance(self.network, NasBench201) else self._chain
        return self.head(features(images))

    def _part(self, name: str) -> tuple[list[nn.Module], list[nn.Module]]:
        """Convolutions and batch norms of a part that is not searched."""
        return list(self.convs[name].children()), list(self.norms[name].children())

    def _stem(self, images: Tensor) -> Tensor:
        (conv,), (norm,) = self._part("stem")
        return norm(conv(images))

    def _stages(self, images: Tensor) -> Tensor:
        z, per_stage = self._stem(images), len(self.cells) // 3
        for c, cell in enumerate(self.cells):
            if c and c % per_stage == 0:
                (first, second, shortcut), (before, after) = self._part(
                    f"reduction{c // per_stage}"
                )
                z = after(second(torch.relu(before(first(torch.relu(z)))))) + shortcut(
                    avg_pool2d(z, 2)
                )
            z = cell([z])[-1]
        _, (last,) = self._part("last")
        return torch.relu(last(z)).mean((-2, -1))

    def _chain(self, images: Tensor) -> Tensor:
        older = newer = self._stem(images)
        for c, cell in enumerate(self.cells):
            convs, norms = self._part(f"before{c}")
            given = [
                norm(conv(torch.relu(z)))
                for z, conv, norm in zip((older, newer), convs, norms, strict=True)
            ]
            older, newer = newer, torch.cat(cell(given)[self.network.space.given :], 1)
        return newer.mean((-2, -1))


def sized(
    genotype: Genotype,
    images: ImageSet | None = None,
    channels: int | None = None,
    cells: int | None = None,
) -> Supernet:
    """The published stack: five cells per stage of 16 channels, or DARTS's 20 cells of 36.

    Args:
        images: for which; None for CIFAR-10's 32 x 32 pixels and ten classes.
        channels: others.
        cells: others: per stage for NAS-Bench-201, in all for DARTS (reductions at one and at two
            thirds).
    """
    shape: dict[str, Any] = (
        {}
        if images is None
        else {"size": images.images.shape[-1], "classes": len(images.class_names)}
    )
    if genotype.space == NAS_BENCH_201:
        return NasBench201(channels=channels or 16, cells=cells or 5, **shape)
    count = cells or 20
    if count < 3:
        raise InvalidInput(
            f"cells = {count}; a network of DARTS has at least 3, so that there are reductions at "
            "one and at two thirds"
        )
    stack = "".join("R" if c in (count // 3, 2 * count // 3) else "N" for c in range(count))
    return Darts(channels=channels or 36, stack=stack, **shape)
