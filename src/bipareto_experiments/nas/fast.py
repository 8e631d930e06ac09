"""The supernets with the work of a state done once, and that of its edges side by side.

The numbers are those of `bipareto_experiments.nas.supernet`, on the same x and y.  What differs is
the shape of the work:

* ReLU, pooling and skip of a state are the same tensor for every edge that leaves it, and so are
  their batch norms, which have no parameters during the search: they are computed once and enter
  each edge with its own weight;
* convolutions of one operation on all edges that leave a state are one call with many channels;
* the mixture's weight is the scale of the last batch norm, so that weighting costs no pass and its
  derivative none either;
* a node receives its edges as one sum over a wide tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, max_pool2d, pad

from bipareto.problem.tree import Tree
from bipareto_experiments.nas.bench_cell import bench_cell
from bipareto_experiments.nas.cell import cell
from bipareto_experiments.nas.conv import convolved
from bipareto_experiments.nas.launches import available, fits
from bipareto_experiments.nas.normalised import normalised
from bipareto_experiments.nas.sections import Section
from bipareto_experiments.nas.spaces import DARTS, Block, Conv, Operation, Space
from bipareto_experiments.nas.supernet import Darts, NasBench201, Place


@dataclass(frozen=True)
class FastNasBench201(NasBench201):
    """`NasBench201`, edges side by side.

    Args:
        half: convolutions and activations in bfloat16; statistics of batch norm, weights and head
            stay in float32.
    """

    half: bool = False

    @property
    def folded(self) -> bool:
        """The kernels of `bench_cell` and `conv` take any number of runs."""
        return fits(self.channels)

    def features(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        if available(images, self.channels):
            return self._fused(weights, y, images)
        z = _channels_last(images.to(torch.bfloat16) if self.half else images)
        z = _normalised(_wide(z, [y["stem"][0]], self.parts["stem"].convs[0]))
        for c, place in enumerate(self.places):
            if c and c % self.cells == 0:
                z = self._reduced(z, y, f"reduction{c // self.cells}")
            z = _nodes(self.space, place, weights[place.kind], y[f"cell{c}"], [z])[-1]
        return torch.relu(_normalised(z)).mean((-2, -1), dtype=y["head"]["bias"].dtype)

    def _reduced(self, z: Tensor, y: Tree, name: str) -> Tensor:
        first, second, shortcut = self.parts[name].convs
        through = _normalised(_wide(torch.relu(z), y[name][:1], first))
        through = _normalised(_wide(torch.relu(through), y[name][1:2], second))
        return through + _wide(avg_pool2d(z, 2), y[name][2:], shortcut)

    def _fused(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        """The same by kernels.  Tensors are (1, n * side^2, channels): one run, to which `vmap`
        adds others.
        """
        n, kind = images.shape[0], torch.bfloat16 if self.half else images.dtype
        z = normalised(convolved(_columns(images.to(kind)), _stem(y), self.size))
        for c, place in enumerate(self.places):
            if c and c % self.cells == 0:
                first, second, shortcut = y[f"reduction{c // self.cells}"]
                through = normalised(convolved(z, first, place.side, stride=2, relu=True))
                through = normalised(convolved(through, second, place.side, relu=True))
                average = (
                    z.unflatten(1, (n, place.side, 2, place.side, 2)).mean((3, 5)).flatten(1, 3)
                )
                z = through + convolved(average, shortcut, place.side)
            z = bench_cell(
                z, _flat(self.space, y[f"cell{c}"])[None], weights[place.kind][None], place.side
            )
        return (
            torch.relu(normalised(z))
            .unflatten(1, (n, -1))
            .mean((0, 2), dtype=y["head"]["bias"].dtype)
        )


@dataclass(frozen=True)
class FastDarts(Darts):
    """`Darts`, edges side by side.

    Args:
        half: convolutions and activations in bfloat16; statistics of batch norm, weights and head
            stay in float32.
    """

    half: bool = False

    @property
    def folded(self) -> bool:
        """The kernels of `cell` take any number of runs."""
        return fits(self.channels)

    def features(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        if available(images, self.channels):
            return self._fused(weights, y, images)
        z = _channels_last(images.to(torch.bfloat16) if self.half else images)
        older = newer = _normalised(_wide(z, [y["stem"][0]], self.parts["stem"].convs[0]))
        for c, place in enumerate(self.places):
            convs = self.parts[f"before{c}"].convs
            given = [
                _normalised(_wide(torch.relu(z), [w], conv))
                for z, w, conv in zip((older, newer), y[f"before{c}"], convs, strict=True)
            ]
            states = _nodes(self.space, place, weights[place.kind], y[f"cell{c}"], given)
            older, newer = newer, torch.cat(states[self.space.given :], 1)
        return newer.mean((-2, -1), dtype=y["head"]["bias"].dtype)

    def _fused(self, weights: Mapping[str, Tensor], y: Tree, images: Tensor) -> Tensor:
        """The same by the kernels of `cell`.  Tensors are (1, n * side^2, channels): one run, to
        which `vmap` adds others.
        """
        n, kind = images.shape[0], torch.bfloat16 if self.half else images.dtype
        older = newer = normalised(convolved(_columns(images.to(kind)), _stem(y), self.size))
        for c, place in enumerate(self.places):
            inputs = [
                _halved(z, w, n)
                if conv.halves
                else convolved(z, w, math.isqrt(z.shape[1] // n), relu=True)
                for z, w, conv in zip(
                    (older, newer), y[f"before{c}"], self.parts[f"before{c}"].convs, strict=True
                )
            ]
            given = normalised(torch.stack(inputs, 1).flatten(0, 1)).unflatten(0, (1, 2))
            strided = place.side < math.isqrt(given.shape[2] // n)
            older, newer = (
                newer,
                _fused_cell(given, weights[place.kind], y[f"cell{c}"], n, place.side, strided),
            )
        return newer.unflatten(1, (n, -1)).mean((0, 2), dtype=y["head"]["bias"].dtype)


def _flat(space: Space, y: Tree) -> Tensor:
    """All weights of a cell in one vector, edge by edge and operation by operation; no copy where
    they lie like that already.
    """
    edges, names = [str(edge) for edge in space.edges], space.names
    if (
        isinstance(y, Section)
        and list(y) == edges
        and all(list(y[edge]) == [name for name in names if name in y[edge]] for edge in edges)
    ):
        return y.vector
    return torch.cat(
        [weight.flatten() for edge in edges for name in names for weight in y[edge].get(name, ())]
    )


def _fused_cell(
    given: Tensor, mixture: Tensor, y: Tree, n: int, side: int, strided: bool
) -> Tensor:
    """A cell by the kernels, (1, n side^2, 4 C), from its two inputs (1, 2, n S^2, C)."""
    skips = given.new_empty(1, 0, n * side**2, given.shape[-1])
    if strided:
        leaving = [
            [y[str(edge)]["skip_connect"][0] for edge in DARTS.edges if edge.source == s]
            for s in (0, 1)
        ]
        skips = torch.cat(
            [_skips(given[:, s : s + 1].flatten(0, 1), leaving[s], n, side) for s in (0, 1)], 1
        )
    return cell(given, _flat(DARTS, y)[None], mixture[None], skips, side, strided)


def _stem(y: Tree) -> Tensor:
    """The stem's weights as those of a pixel of `_columns`: (outputs, 32)."""
    return pad(y["stem"][0].permute(0, 2, 3, 1).flatten(1), (0, 5))


def _columns(images: Tensor) -> Tensor:
    """The 3x3 neighbourhoods of all pixels and 5 zeros, since rows of 32 numbers are what matrix
    units like: (1, n S^2, 32).
    """
    n, channels, side, _ = images.shape
    framed = pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    near = (
        framed.unfold(1, 3, 1)
        .unfold(2, 3, 1)
        .permute(0, 1, 2, 4, 5, 3)
        .reshape(1, n * side**2, 9 * channels)
    )
    return torch.cat([near, near.new_zeros(1, n * side**2, 5)], -1)


def _parities(z: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The even and the odd pixels of (1, n S^2, C), each (1, n S^2 / 4, C)."""
    C = z.shape[-1]
    side = math.isqrt(z.shape[1] // n)
    # In two cuts of two lines and of two pixels: the gradients can then be laid side by side.
    lines = z.reshape(1, n * side // 2, 2 * side * C)
    even, odd = (
        part.unflatten(-1, (side // 2, 2 * C))
        for part in (lines[..., : side * C], lines[..., side * C :])
    )
    return even[..., :C].flatten(1, 2), odd[..., C:].flatten(1, 2)


def _halved(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """FactorizedReduce's convolution of the rectified state: half of the outputs from the even
    pixels, half from the odd ones.
    """
    side = math.isqrt(z.shape[1] // n) // 2
    parts = zip(_parities(z, n), weight.chunk(2), strict=True)
    return torch.cat([convolved(pixels, half, side, relu=True) for pixels, half in parts], -1)


def _skips(z: Tensor, weights: Sequence[Tensor], n: int, side: int) -> Tensor:
    """The strided skips of all edges that leave a state: (1, E, rows, C)."""
    E, C = len(weights), z.shape[-1]
    halves = (
        half.flatten(0, 1)
        for half in torch.stack([weight.flatten(1) for weight in weights]).chunk(2, 1)
    )
    parts = [
        convolved(pixels, half, side, relu=True).unflatten(-1, (E, C // 2))
        for pixels, half in zip(_parities(z, n), halves, strict=True)
    ]
    return torch.cat(parts, -1).transpose(1, 2)


def _channels_last(z: Tensor) -> Tensor:
    """The same images in that layout; by permutations, which `vmap` knows."""
    return z.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def _normalised(z: Tensor, scale: Tensor | None = None) -> Tensor:
    """Batch norm of (n, channels, H, W), times a scale per channel."""
    return batch_norm(z, None, None, scale, None, training=True)


def _wide(z: Tensor, weights: Sequence[Tensor], conv: Conv) -> Tensor:
    """One convolution of many edges at once, their outputs one after the other: (n, E * outputs, H,
    W).

    Without groups z has the `inputs` channels that all edges see, with groups each edge's own.
    """
    if conv.halves:
        half = conv.outputs // 2
        even = _wide(z, [weight[:half] for weight in weights], conv._replace(halves=False))
        odd = _wide(
            z[:, :, 1:, 1:], [weight[half:] for weight in weights], conv._replace(halves=False)
        )
        return torch.cat(
            [part.unflatten(1, (len(weights), half)) for part in (even, odd)], 2
        ).flatten(1, 2)
    weight = torch.cat(list(weights)).to(z.dtype)
    stride = conv.stride
    if weight.shape[-1] == 1 and stride > 1:
        # The pixels that a strided 1x1 convolution sees, taken first: oneDNN's gradient of the
        # strided one writes beyond its buffers on processors without AVX-512 when channels lie last
        # and are no multiple of eight.
        z, stride = z[:, :, ::stride, ::stride], 1
    return conv2d(
        z, weight, None, stride, conv.padding, conv.dilation, z.shape[1] // weight.shape[1]
    )


def _nodes(
    space: Space, place: Place, mixture: Tensor, y: Tree, given: Sequence[Tensor]
) -> list[Tensor]:
    """All nodes of a cell, from those that are given.

    Args:
        mixture: (edges, operations).
    """
    states = list(given)
    leaving, mixtures = _by_source(space, mixture)
    # What the states so far send to the nodes that are still to come: (n, nodes, C, H, W).
    sent: Tensor | None = None
    for source, edges in enumerate(leaving):
        stride = space.stride(place.kind, space.edges[edges[0]])
        contribution = _sent(
            space,
            place.channels,
            stride,
            mixtures[source],
            [y[str(space.edges[e])] for e in edges],
            states[source],
        )
        sent = contribution if sent is None else sent + contribution
        if source + 1 >= space.given:
            states.append(sent[:, 0])
            sent = sent[:, 1:]
    return states


def _by_source(space: Space, mixture: Tensor) -> tuple[list[list[int]], tuple[Tensor, ...]]:
    """The edges that leave each state, and their rows of the mixture."""
    leaving = [
        [e for e, edge in enumerate(space.edges) if edge.source == source]
        for source in range(len(space.nodes) - 1)
    ]
    # Taken apart and put together as a whole, and not row by row: each row alone would be a
    # gradient of its own.
    rows = mixture.unbind(0)
    return leaving, torch.stack([rows[e] for edges in leaving for e in edges]).split(
        [len(edges) for edges in leaving]
    )


def _sent(
    space: Space, C: int, stride: int, mixture: Tensor, y: Sequence[Tree], z: Tensor
) -> Tensor:
    """What a state z (n, C, h, w) sends along the E edges that leave it: (n, E, C, H, W).

    Args:
        mixture: (E, operations).
        y: the weights of each edge.
    """
    rectified = torch.relu(z)
    own, shared = [], []
    for operation, weight in zip(space.operations, mixture.unbind(1), strict=True):
        blocks = operation.blocks(C, stride)
        if blocks:
            convolved = _convolved(
                rectified, [edge[operation.name] for edge in y], blocks, weight.repeat_interleave(C)
            )
            own.append(convolved.unflatten(1, (len(y), C)))
        elif operation.kind != "none":
            passed = _passed(operation, z, stride)
            passed = _normalised(passed) if operation.is_pooling and space.pool_norm else passed
            shared.append((passed, weight))
    total = reduce(torch.add, own)
    for passed, weight in shared:
        total = torch.addcmul(total, passed[:, None], weight.to(z.dtype)[:, None, None, None])
    return total


def _passed(operation: Operation, z: Tensor, stride: int) -> Tensor:
    """An operation without weights."""
    if operation.kind == "skip":
        return z
    return (
        max_pool2d(z, 3, stride, 1)
        if operation.kind == "max"
        else avg_pool2d(z, 3, stride, 1, count_include_pad=False)
    )


def _convolved(
    z: Tensor, weights: Sequence[Sequence[Tensor]], blocks: Sequence[Block], scale: Tensor
) -> Tensor:
    """An operation with weights on all edges, (n, E * C, H, W), its last batch norm scaled.

    Args:
        z: the rectified state.
        weights: of the operation, edge by edge.
    """
    used = 0
    for b, block in enumerate(blocks):
        z = torch.relu(z) if b else z
        for conv in block:
            if conv.groups > 1 and z.shape[1] == conv.inputs:
                z = z.repeat(1, len(weights), 1, 1)
            z = _wide(z, [edge[used] for edge in weights], conv)
            used += 1
        z = _normalised(z, scale if b == len(blocks) - 1 else None)
    return z
