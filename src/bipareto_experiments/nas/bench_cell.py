"""A NAS-Bench-201 cell as one operator with derivatives, several runs in one launch.  First
derivatives only.

With c1 and c3 the two convolutions of a rectified state s on an edge, and w the edge's weights in
the mixture, the edge carries

    w_1 s + w_2 normal(c1) + w_3 normal(c3) + w_4 average(s),

and a node is the sum of what its edges carry.  Written plainly each sign is a pass over memory.
Here both convolutions of all edges that leave a source are one kernel (`conv`), a node is one, and
so is each of the steps back: the sums that batch norms and the mixture need, through the batch
norms, and what reaches a state.  Averages are taken from the state where they are needed.

Edges are numbered by source: 0 to 2 leave the input, 3 and 4 the first node, 5 the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY, tl
from bipareto_experiments.nas.cell import REGISTERS, add_blocks, block_of, finish, fold
from bipareto_experiments.nas.conv import (
    Edges,
    _sent_back,
    chunks_of,
    convolve,
    precision,
    rows_at_once,
    together,
    weight_gradient,
)
from bipareto_experiments.nas.kernels import _normal
from bipareto_experiments.nas.taps import _place, _within, jit

__all__ = ["bench_cell"]

#: By source: its edges among the six of a run.
_LEVELS = (Edges(0, 3, 6), Edges(3, 2, 6), Edges(5, 1, 6))


@jit
def _in_space(edge):
    """The number of an edge in the space's order, by target: the third and the fourth change
    places.
    """
    return tl.where(edge == 2, 3, tl.where(edge == 3, 2, edge))


@jit
def _mixture(mixture, run, edge):
    """Where an edge's weights lie."""
    return mixture + (run * 6 + _in_space(edge)) * 5


@jit
def _lines_near(y, H: tl.constexpr):
    """Lines of the image in a window of three around one; at least one."""
    return tl.maximum(tl.minimum(y + 1, H - 1) - tl.maximum(y - 1, 0) + 1, 1).to(tl.float32)


@jit
def _average(at, row, inside, c, C: tl.constexpr, H: tl.constexpr):
    """The mean over the 3x3 window of a state."""
    _, y, x = _place(row, H)
    here = at + row[:, None] * C + c[None, :]
    found = tl.zeros((row.shape[0], C), tl.float32)
    for tap in tl.static_range(9):
        i, j = tap // 3 - 1, tap % 3 - 1
        mask = inside & _within(y + i, H) & _within(x + j, H)
        found += tl.load(here + (i * H + j) * C, mask=mask[:, None], other=0.0).to(tl.float32)
    return found * (1 / (_lines_near(y, H) * _lines_near(x, H)))[:, None]


@jit
def parted_kernel(flat, out, C: tl.constexpr, BACK: tl.constexpr):
    """One tap of an edge's weights, out (runs, edges by source, taps, outputs, inputs), or BACK
    (..., inputs, outputs); the 1x1's the last.
    """
    unit = tl.program_id(0)
    tap, edge, run = unit % 10, unit // 10 % 6, unit // 60
    a, b = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    at = flat + (run * 6 + _in_space(edge)) * (10 * C * C)
    place = b * C + a if BACK else a * C + b
    v = tl.load(at + tl.where(tap == 9, place, C * C + place * 9 + tap))
    tl.store(out + unit * C * C + a * C + b, v.to(out.dtype.element_ty))


@jit
def joined_kernel(partial, out, chunks, C: tl.constexpr, LINES: tl.constexpr, MANY: tl.constexpr):
    """The gradient of one tap's weights, LINES of its inputs, from partial sums (runs, edges, taps,
    chunks, inputs, outputs): into its place.
    """
    unit = tl.program_id(0)
    tap, edge, run = unit % 10, unit // 10 % 6, unit // 60
    k = tl.program_id(1) * (LINES * C) + tl.arange(0, LINES * C)
    found = tl.zeros((MANY, LINES * C), tl.float32)
    for first in range(0, chunks, MANY):
        chunk = first + tl.arange(0, MANY)
        at = partial + (unit.to(tl.int64) * chunks + chunk)[:, None] * (C * C) + k[None, :]
        found += tl.load(at, mask=(chunk < chunks)[:, None], other=0.0)
    place = k % C * C + k // C
    left = out + (run * 6 + _in_space(edge)) * (10 * C * C)
    tl.store(left + tl.where(tap == 9, place, C * C + place * 9 + tap), tl.sum(found, 0))


@jit
def _carried(at, convs, stats, mixture, run, edge, row, rows, c, C: tl.constexpr, H: tl.constexpr):
    """What an edge carries, from its state at `at`."""
    inside = row < rows
    mask = inside[:, None]
    out = row[:, None] * C + c[None, :]
    weight, unit = _mixture(mixture, run, edge), (run * 6 + edge) * 2
    found = tl.load(weight + 1) * tl.load(at + out, mask=mask, other=0.0).to(tl.float32)
    found += tl.load(weight + 2) * _normal(
        convs + unit * rows * C, stats + unit * 2 * C, out, mask, c, C
    )
    found += tl.load(weight + 3) * _normal(
        convs + (unit + 1) * rows * C, stats + (unit + 1) * 2 * C, out, mask, c, C
    )
    return found + tl.load(weight + 4) * _average(at, row, inside, c, C, H)


@jit
def node_kernel(
    given,
    nodes,
    convs,
    stats,
    mixture,
    out,
    rows,
    node,
    given_run,
    out_run,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
):
    """The node after `node` others; `nodes` holds the first two."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = _carried(given + run * given_run, convs, stats, mixture, run, node, row, rows, c, C, H)
    for source in range(1, node + 1):
        edge = source * (7 - source) // 2 + node - source
        found += _carried(
            nodes + (run * 2 + source - 1) * rows * C,
            convs,
            stats,
            mixture,
            run,
            edge,
            row,
            rows,
            c,
            C,
            H,
        )
    at = out + run * out_run + row[:, None] * C + c[None, :]
    tl.store(at, found.to(out.dtype.element_ty), mask=(row < rows)[:, None])


@jit
def sums_kernel(
    g,
    z,
    convs,
    stats,
    partial,
    rows,
    edges,
    offset,
    source0,
    tiles,
    z_run,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
):
    """Sums of each edge's gradient times each of its operations; in the place of "none" that of the
    gradient.
    """
    tile, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    mask = inside[:, None]
    out = row[:, None] * C + c[None, :]
    state = tl.load(z + run * z_run + out, mask=mask, other=0.0).to(tl.float32)
    mean = _average(z + run * z_run, row, inside, c, C, H)
    for e in range(edges):
        edge = run * 6 + offset + e
        G = tl.load(g + (run * 3 + source0 + e) * rows * C + out, mask=mask, other=0.0).to(
            tl.float32
        )
        left = partial + (edge * tiles + tile) * 5 * C + c
        tl.store(left, tl.sum(G, 0))
        tl.store(left + C, tl.sum(G * state, 0))
        for op in tl.static_range(2):
            unit = edge * 2 + op
            tl.store(
                left + (2 + op) * C,
                tl.sum(
                    G * _normal(convs + unit * rows * C, stats + unit * 2 * C, out, mask, c, C), 0
                ),
            )
        tl.store(left + 4 * C, tl.sum(G * mean, 0))


@jit
def behind_kernel(
    g,
    convs,
    stats,
    mixture,
    sums,
    to_convs,
    rows,
    edges,
    offset,
    source0,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of an edge's convolutions, back through their batch norms."""
    unit = tl.program_id(1)
    run, e = (unit // edges).to(tl.int64), unit % edges
    edge = run * 6 + offset + e
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    out = row[:, None] * C + c[None, :]
    total, weight = sums + edge * 5 * C + c, _mixture(mixture, run, offset + e)
    G = (
        tl.load(g + (run * 3 + source0 + e) * rows * C + out, mask=mask, other=0.0).to(tl.float32)
        - (tl.load(total) / rows)[None, :]
    )
    for op in tl.static_range(2):
        unit = edge * 2 + op
        scale = tl.load(weight + 2 + op) * tl.load(stats + unit * 2 * C + C + c)
        slope = tl.load(total + (2 + op) * C) / rows
        normal = _normal(convs + unit * rows * C, stats + unit * 2 * C, out, mask, c, C)
        v = scale[None, :] * (G - normal * slope[None, :])
        tl.store(to_convs + unit * rows * C + out, v.to(to_convs.dtype.element_ty), mask=mask)


@jit
def to_state_kernel(
    g,
    to_convs,
    w,
    z,
    mixture,
    out,
    rows,
    edges,
    offset,
    source0,
    z_run,
    out_run,
    C: tl.constexpr,
    IN: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a state: by the convolutions, the skips and the averages of all its edges."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    at = row[:, None] * C + c[None, :]
    found = _sent_back(
        to_convs,
        w,
        run,
        row,
        rows,
        inside,
        edges,
        offset,
        6,
        c,
        C,
        IN,
        C // IN,
        C,
        BLOCK,
        H,
        1,
        10,
        PRECISION,
    )
    found = tl.where(tl.load(z + run * z_run + at, mask=inside[:, None], other=0.0) > 0, found, 0.0)
    _, y, x = _place(row, H)
    passed = tl.zeros(
        (BLOCK, C), tl.float32
    )  # apart from the products, whose place among threads differs
    for e in range(edges):
        here = g + (run * 3 + source0 + e) * rows * C + at
        weight = _mixture(mixture, run, offset + e)
        passed += tl.load(weight + 1) * tl.load(here, mask=inside[:, None], other=0.0).to(
            tl.float32
        )
        mean = tl.load(weight + 4)
        for i in tl.static_range(3):
            high, share = inside & _within(y + i - 1, H), mean / _lines_near(y + i - 1, H)
            for j in tl.static_range(3):
                v = tl.load(
                    here + ((i - 1) * H + j - 1) * C,
                    mask=(high & _within(x + j - 1, H))[:, None],
                    other=0.0,
                )
                passed += v.to(tl.float32) * (share / _lines_near(x + j - 1, H))[:, None]
    tl.store(
        out + run * out_run + at, (found + passed).to(out.dtype.element_ty), mask=inside[:, None]
    )


LIBRARY.define(
    "bench_cell(Tensor given, Tensor flat, Tensor mixture, int side) -> (Tensor, Tensor, Tensor, "
    "Tensor)"
)
LIBRARY.define(
    "bench_cell_backward(Tensor g, Tensor given, Tensor flat, Tensor mixture, Tensor nodes, Tensor "
    "convs, Tensor stats, int side)"
    " -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "bench_cell_weights(Tensor to_convs, Tensor given, Tensor nodes, int side) -> Tensor"
)


def _parted(flat: Tensor, C: int, kind: torch.dtype, back: bool) -> Tensor:
    """The weights (R, 6, 10, outputs, inputs) of both convolutions in a type; or for the way back
    (R, 6, 10, inputs, outputs).
    """
    out = flat.new_empty(flat.shape[0], 6, 10, C, C, dtype=kind)
    parted_kernel[(flat.shape[0] * 60,)](flat, out, C, back)
    return out


def _states(given: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three sources, (R, rows, C) each."""
    return given, nodes[:, 0], nodes[:, 1]


@torch.library.impl(LIBRARY, "bench_cell", "CompositeExplicitAutograd")
def _forward(given: Tensor, flat: Tensor, mixture: Tensor, side: int) -> tuple[Tensor, ...]:
    given, flat, mixture = given.contiguous(), flat.contiguous(), mixture.contiguous()
    R, rows, C = given.shape
    block = rows_at_once(C)
    w = _parted(flat, C, given.dtype, False)
    nodes, last = given.new_empty(R, 2, rows, C), torch.empty_like(given)
    # The 1x1 convolution of each edge, and its 3x3 one.
    convs = given.new_empty(R, 6, 2, rows, C)
    stats, partial = (
        given.new_empty(R, 12, *more, 2, C, dtype=torch.float32)
        for more in ((), (-(-rows // block),))
    )
    for source, (z, edges) in enumerate(zip(_states(given, nodes), _LEVELS, strict=True)):
        convolve(z, w, convs, side, True, edges, partial)
        finish(partial, stats, rows, C, 2 * edges.number, 2 * edges.offset, block=block)
        out = last if source == 2 else nodes[:, source]
        node_kernel[(-(-rows // block_of(C)), R)](
            given,
            nodes,
            convs,
            stats,
            mixture,
            out,
            rows,
            source,
            given.stride(0),
            out.stride(0),
            C,
            block_of(C),
            side,
        )
    return last, nodes, convs, stats


@torch.library.impl(LIBRARY, "bench_cell_backward", "CompositeExplicitAutograd")
def _backward(
    g: Tensor,
    given: Tensor,
    flat: Tensor,
    mixture: Tensor,
    nodes: Tensor,
    convs: Tensor,
    stats: Tensor,
    side: int,
) -> tuple[Tensor, ...]:
    given, flat, mixture = given.contiguous(), flat.contiguous(), mixture.contiguous()
    R, rows, C = given.shape
    block, tiles = block_of(C), -(-rows // block_of(C))
    w = _parted(flat, C, given.dtype, True)
    # The gradients of all nodes, the last one's first.
    grown, to_given = given.new_empty(R, 3, rows, C), torch.empty_like(given)
    grown[:, 2] = g
    to_convs = torch.empty_like(convs)
    partial, sums = stats.new_empty(R, 6, tiles, 5 * C), stats.new_empty(R, 6, 5 * C)
    for source, (z, edges) in reversed(
        list(enumerate(zip(_states(given, nodes), _LEVELS, strict=True)))
    ):
        out = grown[:, source - 1] if source else to_given
        where = (rows, edges.number, edges.offset, source)
        sums_kernel[(tiles, R)](
            grown, z, convs, stats, partial, *where, tiles, z.stride(0), C, block, side
        )
        add_blocks(partial, sums, stretch=(edges.offset, edges.number))
        behind_kernel[(tiles, R * edges.number)](
            grown, convs, stats, mixture, sums, to_convs, *where, C, block
        )
        to_state_kernel[(-(-rows // rows_at_once(C)), R)](
            grown,
            to_convs,
            w,
            z,
            mixture,
            out,
            *where,
            z.stride(0),
            out.stride(0),
            C,
            together(C),
            rows_at_once(C),
            side,
            precision(z),
            maxnreg=REGISTERS,
        )
    return to_given, to_convs, sums


@torch.library.impl(LIBRARY, "bench_cell_weights", "CompositeExplicitAutograd")
def _weights(to_convs: Tensor, given: Tensor, nodes: Tensor, side: int) -> Tensor:
    R, _, _, rows, C = to_convs.shape
    chunks = chunks_of(rows)
    partial = to_convs.new_empty(R, 60, chunks, C * C, dtype=torch.float32)
    for z, edges in zip(_states(given.contiguous(), nodes), _LEVELS, strict=True):
        weight_gradient(to_convs, z, 10, side, True, partial, edges)
    found = partial.new_empty(R, 60 * C * C)
    lines = max(1, 256 // C)
    joined_kernel[(R * 60, C // lines)](
        partial, found, chunks, C, lines, min(16, 1 << (chunks - 1).bit_length())
    )
    return found


for _name in ("bench_cell", "bench_cell_backward", "bench_cell_weights"):
    fold(_name)


class _BenchCell(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(given: Tensor, flat: Tensor, mixture: Tensor, side: int) -> tuple[Tensor, ...]:
        return tuple(torch.ops.bipareto.bench_cell(given, flat, mixture, side))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.side = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros as large as what is kept would be written
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Any, ...]:
        given, _, _, nodes, *_ = ctx.saved_tensors
        to_given, to_convs, sums = torch.ops.bipareto.bench_cell_backward(
            g, *ctx.saved_tensors, ctx.side
        )
        to_flat = torch.ops.bipareto.bench_cell_weights(to_convs, given, nodes, ctx.side)
        # In the space's order of edges; "none" adds nothing, in its place stands the sum of the
        # gradient itself.
        found = sums.unflatten(-1, (5, -1)).sum(-1)
        found = torch.cat([found[:, :2], found[:, 3:4], found[:, 2:3], found[:, 4:]], 1)
        to_mixture = torch.cat([torch.zeros_like(found[..., :1]), found[..., 1:]], -1)
        return to_given, to_flat, to_mixture, None


def bench_cell(given: Tensor, flat: Tensor, mixture: Tensor, side: int) -> Tensor:
    """The last node of a cell, (R, n side^2, C).

    Args:
        given: its input, (R, n side^2, C) float32 or bfloat16; C a power of two of at least 16.
        flat: (R, 60 C^2) float32: of the six edges in the space's order the weights of the 1x1,
            then those of the 3x3 convolution.
        mixture: (R, 6, 5) float32.
        side: of the images.
    """
    return _BenchCell.apply(given, flat, mixture, side)[0]
