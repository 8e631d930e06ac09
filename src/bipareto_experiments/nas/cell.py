"""A DARTS cell and batch norm as operators with derivatives, on the kernels beside this file.
First derivatives only.

Written plainly, a cell is 14 edges of 7 operations each, some 500 calls.  Here it is 29 launches
forward, 33 back, and 5 for the gradient of the weights, which is an operator of its own: a step
that differentiates in x alone does not pay for it.

Every tensor begins with an axis of runs R, so that several networks (preferences, or y beside
theta) go through one launch; `vmap` folds its axis into this one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas import kernels as forward
from bipareto_experiments.nas import kernels_backward as backward
from bipareto_experiments.nas import kernels_weights as of_weights

__all__ = [
    "REGISTERS",
    "add_blocks",
    "available",
    "block_of",
    "cell",
    "finish",
    "fits",
    "fold",
    "normalised",
    "take_moments",
]

EPSILON = 1e-5
#: (first source, sources, first edge by source, edges) of what can be computed at once
_LEVELS = ((0, 2, 0, 8), (2, 1, 8, 3), (3, 1, 11, 2), (4, 1, 13, 1))
#: numbers of each layer that one program of a weight gradient adds up
_CHUNK = 8192
#: numbers of a line that it takes at a time: four to a thread of one warp, since each is multiplied
#: into as many sums as there are taps
_TAP_BLOCK = 128
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


def _tiles(rows: int, C: int) -> int:
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


class _Shape:
    """Sizes of a cell from its inputs (R, 2, n S S, C)."""

    def __init__(self, given: Tensor, side: int, strided: bool) -> None:
        self.given, self.strided = given, strided
        self.R, _, self.rows_in, self.C = given.shape
        self.stride = 2 if strided else 1
        self.rows = self.rows_in // self.stride**2
        self.block, self.tiles = block_of(self.C), _tiles(self.rows, self.C)
        # Kernels with taps, in which a thread has a strip, and those with a 1x1 product take twice
        # as much: what they do once is then less of it.
        self.tall, self.strips = math.gcd(side, _TALL), 2 * self.block
        self.strip_tiles = -(-self.rows // self.strips)
        self.weights = 14 * (102 * self.C + 6 * self.C**2) + (8 * self.C**2 if strided else 0)

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
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


LIBRARY.define(
    "darts_cell(Tensor given, Tensor flat, Tensor mixture, Tensor skips, int side, bool strided)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "darts_cell_backward(Tensor g, Tensor given, Tensor flat, Tensor mixture, Tensor skips, Tensor "
    "out, Tensor p, Tensor stats, Tensor pools,"
    " Tensor chosen, Tensor pool_stats, Tensor skip_stats, int side, bool strided) -> (Tensor, "
    "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "darts_cell_weights(Tensor nodes, Tensor gd, Tensor halves, Tensor sums, Tensor half_sums, "
    "Tensor given, Tensor mixture, Tensor out, Tensor d,"
    " Tensor p, Tensor stats, int side, bool strided) -> Tensor"
)
LIBRARY.define("normalised(Tensor z, Tensor scale) -> (Tensor, Tensor)")
LIBRARY.define(
    "normalised_backward(Tensor g, Tensor z, Tensor scale, Tensor stats) -> (Tensor, Tensor)"
)


@torch.library.impl(LIBRARY, "darts_cell", "CompositeExplicitAutograd")
def _cell_forward(
    given: Tensor, flat: Tensor, mixture: Tensor, skips: Tensor, side: int, strided: bool
) -> tuple[Tensor, ...]:
    given, flat, mixture, skips = (value.contiguous() for value in (given, flat, mixture, skips))
    s = _Shape(given, side, strided)
    C, rows, kind = s.C, s.rows, given.dtype
    out, d, p = (
        s.new(rows, 4 * C, dtype=kind),
        s.new(84, rows, C, dtype=kind),
        s.new(84, rows, C, dtype=kind),
    )
    # Taps of maxima in the type of the rest: Triton would lay out the whole kernel for the smallest
    # type in it.
    pools, chosen = s.new(5, 2, rows, C, dtype=kind), s.new(5, rows, C, dtype=kind)
    stats, pool_stats, skip_stats = s.new(84, 2, C), s.new(10, 2, C), s.new(8, 2, C)
    partial, pool_partial = s.new(84, s.strip_tiles, 2, C), s.new(10, s.tiles, 2, C)
    taps = s.taps(flat)
    if strided:
        take_moments(skips.flatten(0, 1), skip_stats.view(1, -1, 2, C), C)
    for source0, sources, edge0, edges in _LEVELS:
        z, z_run, z_source, z_row, stride = s.source(source0, out)
        pool_grid = (s.tiles, s.R * sources)
        forward.pool_kernel[pool_grid](
            z,
            pools,
            chosen,
            pool_partial,
            rows,
            sources,
            source0,
            z_run,
            z_source,
            s.tiles,
            C,
            s.block,
            side,
            stride,
            z_row,
        )
        finish(pool_partial, pool_stats, rows, C, 2 * sources, 2 * source0)
        for second in (False, True):
            layers = 2 if second else 4
            forward.forward_kernel[(s.strip_tiles, s.R * edges * layers)](
                z,
                flat,
                taps,
                stats,
                d,
                p,
                partial,
                rows,
                edges,
                edge0,
                source0,
                z_run,
                z_source,
                s.weights,
                s.strip_tiles,
                C,
                s.strips,
                side,
                *((1, C) if second else (stride, z_row)),
                second,
                strided,
                s.tall,
            )
            finish(
                partial,
                stats,
                rows,
                C,
                edges * layers,
                16 * edge0 + (4 if second else 0),
                layers,
                s.strips,
            )
        node = max(source0 - 1, 0)
        forward.combine_kernel[(s.tiles, s.R)](
            given,
            out,
            p,
            pools,
            skips,
            mixture,
            stats,
            pool_stats,
            skip_stats,
            rows,
            node,
            C,
            s.block,
            strided,
        )
    return out, d, p, stats, pools, chosen, pool_stats, skip_stats


@torch.library.impl(LIBRARY, "darts_cell_backward", "CompositeExplicitAutograd")
def _cell_backward(
    g: Tensor,
    given: Tensor,
    flat: Tensor,
    mixture: Tensor,
    skips: Tensor,
    out: Tensor,
    p: Tensor,
    stats: Tensor,
    pools: Tensor,
    chosen: Tensor,
    pool_stats: Tensor,
    skip_stats: Tensor,
    side: int,
    strided: bool,
) -> tuple[Tensor, ...]:
    given, flat, mixture, skips = (value.contiguous() for value in (given, flat, mixture, skips))
    s = _Shape(given, side, strided)
    C, rows, kind = s.C, s.rows, given.dtype
    # The gradient of the nodes grows in here, from the last to the first.
    nodes = g.to(kind).clone(memory_format=torch.contiguous_format)
    to_given, to_skips = torch.empty_like(given), torch.empty_like(skips)
    gd, halves = s.new(84, rows, C, dtype=kind), s.new(28, rows, C, dtype=kind)
    sums, half_sums = s.new(14, 8 * C), s.new(28, 2 * C)
    partial, half_partial = s.new(14, s.tiles, 8 * C), s.new(28, s.strip_tiles, 2 * C)
    taps = s.taps(flat)
    for source0, sources, edge0, edges in reversed(_LEVELS):
        z, z_run, z_source, z_row, stride = s.source(source0, out)
        backward.edge_sums_kernel[(s.tiles, s.R * edges)](
            nodes,
            given,
            out,
            p,
            pools,
            skips,
            stats,
            pool_stats,
            skip_stats,
            partial,
            rows,
            edges,
            edge0,
            s.tiles,
            C,
            s.block,
            strided,
            source0 == 0,
        )
        add_blocks(partial, sums, (edge0, edges))
        behind = (
            nodes,
            halves,
            p,
            flat,
            mixture,
            stats,
            sums,
            half_sums,
            gd,
            rows,
            edges,
            edge0,
            s.weights,
            C,
            s.strips,
        )
        backward.pointwise_kernel[(s.strip_tiles, s.R * edges * 4)](*behind, False, strided)
        backward.halves_kernel[(s.strip_tiles, s.R * edges * 2)](
            gd,
            p,
            taps,
            stats,
            halves,
            half_partial,
            rows,
            edges,
            edge0,
            s.strip_tiles,
            C,
            s.strips,
            side,
            s.tall,
        )
        add_blocks(half_partial, half_sums, (edge0, edges))
        backward.pointwise_kernel[(s.strip_tiles, s.R * edges * 2)](*behind, True, strided)
        passed = s.new(sources, 3, rows, C, dtype=kind)
        backward.pool_backward_kernel[(s.tiles, s.R * sources)](
            nodes,
            pools,
            mixture,
            pool_stats,
            sums,
            passed,
            rows,
            sources,
            source0,
            C,
            s.block,
            side,
            stride,
        )
        left = to_given if source0 == 0 else nodes[..., (source0 - 2) * C :]
        backward.gather_kernel[(s.strip_tiles, s.R * sources, stride**2)](
            gd,
            passed,
            chosen,
            taps,
            z,
            left,
            rows,
            sources,
            source0,
            z_run,
            z_source,
            C,
            s.strips,
            side,
            s.tall,
            stride,
            z_row,
            source0 == 0,
            maxnreg=REGISTERS,
        )
    if strided:
        backward.skip_backward_kernel[(s.tiles, s.R * 8)](
            nodes, skips, mixture, skip_stats, sums, to_skips, rows, C, s.block
        )
    return to_given, to_skips, nodes, gd, halves, sums, half_sums


@torch.library.impl(LIBRARY, "darts_cell_weights", "CompositeExplicitAutograd")
def _cell_weights(
    nodes: Tensor,
    gd: Tensor,
    halves: Tensor,
    sums: Tensor,
    half_sums: Tensor,
    given: Tensor,
    mixture: Tensor,
    out: Tensor,
    d: Tensor,
    p: Tensor,
    stats: Tensor,
    side: int,
    strided: bool,
) -> Tensor:
    given, mixture = given.contiguous(), mixture.contiguous()
    s = _Shape(given, side, strided)
    C, rows = s.C, s.rows
    columns = max(1, _TAP_BLOCK // C)
    chunk = columns * side * max(1, _CHUNK // (C * columns * side))
    chunks = -(-rows // chunk)
    # The weights of strided skips are not these kernels' business: their place stays zero.
    partial, found = s.new(84, chunks, 25 + C, C), s.new(s.weights).zero_()
    # One warp, as long as it can hold the sums: it then reads least from its shared memory for each
    # of them.
    warps = min(8, max(1, C * C // 1024))
    of_weights.pointwise_weights_kernel[(chunks, s.R * 84)](
        nodes,
        halves,
        p,
        d,
        mixture,
        stats,
        sums,
        half_sums,
        partial,
        rows,
        chunk,
        chunks,
        C,
        max(16, 512 * warps // C),
        num_warps=warps,
    )
    # Layers that look at the cell's inputs, at its nodes, and at other layers.
    for second, source0, edge0, edges in ((False, 0, 0, 8), (False, 2, 8, 6), (True, 0, 0, 14)):
        z, z_run, z_source, z_row, stride = s.source(source0, out)
        stride, z_row = (1, C) if second else (stride, z_row)
        of_weights.depthwise_weights_kernel[(chunks, s.R * edges * (2 if second else 4))](
            z,
            gd,
            p,
            stats,
            partial,
            rows,
            edges,
            edge0,
            source0,
            z_run,
            z_source,
            chunk,
            chunks,
            C,
            columns,
            side,
            stride,
            z_row,
            second,
            num_warps=1,
        )
    of_weights.collect_kernel[(s.R * 84, 25 + C)](partial, found, s.weights, chunks, C, 16, strided)
    return found


def take_moments(z: Tensor, stats: Tensor, C: int) -> None:
    """stats (1, units, 2, channels) of z (units, rows, channels)."""
    units, rows, channels = z.shape
    tiles = _tiles(rows, C)
    partial = stats.new_empty(units, tiles, 2, channels)
    forward.moments_kernel[(tiles, units, channels // C)](
        z, partial, rows, tiles, channels, C, block_of(C)
    )
    finish(partial, stats, rows, C, units)


def _together(channels: int) -> int:
    """Channels that a program of a batch norm takes: the largest power of two that divides them
    all, at most 64.
    """
    return min(64, channels & -channels)


@torch.library.impl(LIBRARY, "normalised", "CompositeExplicitAutograd")
def _normalised_forward(z: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    z, scale = z.contiguous(), scale.contiguous()
    units, rows, channels = z.shape
    C = _together(channels)
    stats = z.new_empty(units, 2, channels, dtype=torch.float32)
    take_moments(z, stats[None], C)
    out = torch.empty_like(z)
    forward.normalise_kernel[(_tiles(rows, C), units, channels // C)](
        z, scale, stats, out, rows, channels, C, block_of(C)
    )
    return out, stats


@torch.library.impl(LIBRARY, "normalised_backward", "CompositeExplicitAutograd")
def _normalised_backward(
    g: Tensor, z: Tensor, scale: Tensor, stats: Tensor
) -> tuple[Tensor, Tensor]:
    g, z, scale = g.contiguous(), z.contiguous(), scale.contiguous()
    units, rows, channels = z.shape
    C = _together(channels)
    tiles = _tiles(rows, C)
    partial, sums = (
        stats.new_empty(units, tiles, 2 * channels),
        stats.new_empty(1, units, 2 * channels),
    )
    grid = (tiles, units, channels // C)
    backward.normal_sums_kernel[grid](g, z, stats, partial, rows, tiles, channels, C, block_of(C))
    add_blocks(partial, sums)
    out = torch.empty_like(z)
    backward.normal_backward_kernel[grid](
        g, z, scale, stats, sums, out, rows, channels, C, block_of(C)
    )
    return out, sums[0]


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


for _name in (
    "darts_cell",
    "darts_cell_backward",
    "darts_cell_weights",
    "normalised",
    "normalised_backward",
):
    fold(_name)


class _Cell(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        given: Tensor, flat: Tensor, mixture: Tensor, skips: Tensor, side: int, strided: bool
    ) -> tuple[Tensor, ...]:
        return tuple(torch.ops.bipareto.darts_cell(given, flat, mixture, skips, side, strided))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.side, ctx.strided = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros as large as what is kept would be written
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Any, ...]:
        given, flat, mixture, skips, out, d, *kept = ctx.saved_tensors
        found = torch.ops.bipareto.darts_cell_backward(
            g, given, flat, mixture, skips, out, *kept, ctx.side, ctx.strided
        )
        to_given, to_skips, nodes, gd, halves, sums, half_sums = found
        to_flat = torch.ops.bipareto.darts_cell_weights(
            nodes,
            gd,
            halves,
            sums,
            half_sums,
            given,
            mixture,
            out,
            d,
            kept[0],
            kept[1],
            ctx.side,
            ctx.strided,
        )
        to_mixture = sums.unflatten(-1, (8, -1)).sum(-1)
        # "none" adds nothing; in its place stands the sum of the gradient itself.
        to_mixture = torch.cat([torch.zeros_like(to_mixture[..., :1]), to_mixture[..., 1:]], -1)
        return to_given, to_flat, to_mixture, to_skips, None, None


class _Normalised(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        out, stats = torch.ops.bipareto.normalised(z, scale)
        return out, stats

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor, Tensor]:
        z, scale, stats = ctx.saved_tensors
        to_z, sums = torch.ops.bipareto.normalised_backward(g, z, scale, stats)
        return to_z, sums[..., z.shape[-1] :]


def cell(
    given: Tensor, flat: Tensor, mixture: Tensor, skips: Tensor, side: int, strided: bool
) -> Tensor:
    """The four nodes of a cell side by side, (R, n * side^2, 4 C).

    Args:
        given: the two inputs, (R, 2, n * S^2, C), S = side, or 2 side where strided; float32 or
            bfloat16.
        flat: (R, weights) float32, those of the 14 edges in the space's order, and of each edge
            operation by operation.
        mixture: (R, 14, 8) float32.
        skips: (R, 8, n * side^2, C), the convolved but not yet normalised skips of a reduction
            cell, by source; else with no edges, (R, 0, ...).
        side: of the nodes.
        strided: whether the cell halves the side.
    """
    return _Cell.apply(given, flat, mixture, skips, side, strided)[0]  # type: ignore[no-untyped-call]


def normalised(z: Tensor, scale: Tensor | None = None) -> Tensor:
    """Batch norm of z (units, rows, channels) over the rows, times scale (units, channels);
    channels a multiple of 16.
    """
    scale = z.new_ones(z.shape[0], z.shape[2], dtype=torch.float32) if scale is None else scale
    return _Normalised.apply(z, scale)[0]  # type: ignore[no-untyped-call]
