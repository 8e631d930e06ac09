"""What launches of kernels share: which tensors they take, sums over blocks, sizes, runs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas import kernels as forward

EPSILON = 1e-5


#: (first source, sources, first edge by source, edges) of what can be computed at once
LEVELS = ((0, 2, 0, 8), (2, 1, 8, 3), (3, 1, 11, 2), (4, 1, 13, 1))


#: pixels of a strip, whose taps are taken together: twice as many would leave too few registers
_TALL = 8


#: partial sums that one program of `finish_kernel` or `add_kernel` loads at a time: there are few
#: of these, so each asks for much at once
_ADDENDS = 4096


#: registers of a thread that let sixteen warps fit a multiprocessor
REGISTERS = 128


def fits(channels: int) -> bool:
    """Whether the kernels are made for this many channels: a power of two, at least 16."""
    return channels >= 16 and channels & (channels - 1) == 0


def available(z: Tensor, channels: int) -> bool:
    """Whether they can be used on tensors like z: in float32 or bfloat16, on a GPU, with Triton."""
    return (
        fits(channels)
        and z.is_cuda
        and z.dtype in (torch.float32, torch.bfloat16)
        and forward.PRESENT
    )


def block_of(C: int) -> int:
    """Rows of a program that goes number by number, 2,048 of them in its registers; one that
    multiplies matrices takes `conv.rows_at_once`.
    """
    return max(16, 2048 // C)


def tiles_of(rows: int, C: int) -> int:
    """Programs that go through so many rows."""
    return -(-rows // block_of(C))


def add_blocks(
    partial: Tensor,
    sums: Tensor,
    edges: tuple[int, int] | None = None,
    stretch: tuple[int, int] | None = None,
) -> None:
    """sums (R, total, numbers) of partial (R, total, tiles, numbers); for those of some edges, or a
    stretch of each run, (first, how many).
    """
    runs, total, numbers = sums.shape
    tiles = partial.shape[-2]
    many = _at_once(tiles, 16)
    W = min(numbers & -numbers, _ADDENDS // many)
    offset, width = stretch or (0, total)
    if edges:
        offset, width = 16 * edges[0], edges[1] * total // 14
    forward.add_kernel[(runs * width, numbers // W)](
        partial, sums, tiles, width, total, offset, total // 14, numbers, W, many, edges is not None
    )


def _at_once(tiles: int, numbers: int) -> int:
    """Partial sums, of some numbers each, that a program loads at a time."""
    return min(max(1, _ADDENDS // numbers), 1 << (tiles - 1).bit_length())


def finish(
    partial: Tensor,
    stats: Tensor,
    rows: int,
    C: int,
    width: int,
    offset: int = 0,
    ops: int = 0,
    block: int | None = None,
) -> None:
    """stats (R, total, 2, channels) from the moments of blocks, C channels at a time; with `ops`,
    of edges (see `kernels._unit`).
    """
    runs, total, _, channels = stats.shape
    block = block or block_of(C)
    tiles = -(-rows // block)
    forward.finish_kernel[(runs * width, channels // C)](
        partial,
        stats,
        rows,
        tiles,
        width,
        total,
        offset,
        ops,
        channels,
        EPSILON,
        C,
        block,
        _at_once(tiles, C),
        ops > 0,
    )


class Shape:
    """Sizes of a cell from its inputs (R, 2, n S S, C)."""

    def __init__(self, given: Tensor, side: int, strided: bool) -> None:
        self.given, self.strided = given, strided
        self.R, _, self.rows_in, self.C = given.shape
        self.stride = 2 if strided else 1
        self.rows = self.rows_in // self.stride**2
        self.block, self.tiles = block_of(self.C), tiles_of(self.rows, self.C)
        # Kernels with taps, in which a thread has a strip, and those with a 1x1 product take twice
        # as much: what they do once is then less of it.
        self.tall, self.strips = math.gcd(side, _TALL), 2 * self.block
        self.strip_tiles = -(-self.rows // self.strips)
        self.weights = 14 * (102 * self.C + 6 * self.C**2) + (8 * self.C**2 if strided else 0)

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for every run, float32 unless said otherwise."""
        return self.given.new_empty((self.R, *shape), dtype=dtype or torch.float32)

    def source(self, first: int, out: Tensor) -> tuple[Tensor, int, int, int, int]:
        """Where a level's states lie (memory, steps from run to run, source to source, row to row),
        and the stride.
        """
        if first == 0:
            return self.given, 2 * self.rows_in * self.C, self.rows_in * self.C, self.C, self.stride
        return out[..., (first - 2) * self.C :], 4 * self.rows * self.C, self.C, 4 * self.C, 1

    def taps(self, flat: Tensor) -> Tensor:
        """The depthwise weights with channels last."""
        taps = self.new(84, 25, self.C)
        forward.taps_kernel[(self.R * 84,)](flat, taps, self.weights, self.C, self.strided)
        return taps


def take_moments(z: Tensor, stats: Tensor, C: int) -> None:
    """stats (1, units, 2, channels) of z (units, rows, channels)."""
    units, rows, channels = z.shape
    tiles = tiles_of(rows, C)
    partial = stats.new_empty(units, tiles, 2, channels)
    forward.moments_kernel[(tiles, units, channels // C)](
        z, partial, rows, tiles, channels, C, block_of(C)
    )
    finish(partial, stats, rows, C, units)


def fold(name: str) -> None:
    """Teach `vmap` an operator: its axis goes into the first one of every tensor, which counts
    runs.
    """
    operator = getattr(torch.ops.bipareto, name)

    def rule(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> Any:
        size = info.batch_size
        found = operator(
            *(
                _folded(value, axis, size) if isinstance(value, Tensor) else value
                for value, axis in zip(values, in_dims, strict=True)
            )
        )
        several = isinstance(found, tuple)
        parts = tuple(value.unflatten(0, (size, -1)) for value in (found if several else (found,)))
        return (parts, (0,) * len(parts)) if several else (parts[0], 0)

    torch.library.register_vmap(f"bipareto::{name}", rule, lib=LIBRARY)


def _folded(value: Tensor, axis: int | None, size: int) -> Tensor:
    """All runs of a tensor, laid out as kernels want them: a copy that is made here is seen, and
    made once for all kernels that use it.
    """
    runs = (
        value.expand(size, *value.shape)
        if axis is None
        else value.movedim(axis, 0)
        if axis
        else value
    )
    return runs.flatten(0, 1).contiguous()
