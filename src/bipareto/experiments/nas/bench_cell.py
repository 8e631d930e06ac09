"""A NAS-Bench-201 cell as one operator with derivatives, several runs in one launch.  First derivatives only.

With c1 and c3 the two convolutions of a rectified state s on an edge, and w the edge's weights in the mixture, the edge carries

    w_1 s + w_2 normal(c1) + w_3 normal(c3) + w_4 average(s),

and a node is the sum of what its edges carry.  Written plainly each sign is a pass over memory.  Here a source is convolved on all edges
that leave it (`conv`), a node is one kernel, and so is each of the steps back: the sums that batch norms and the mixture need, through the
batch norms, and what reaches a state without convolution.  Averages are taken from the state where they are needed.

Edges are numbered by source: 0 to 2 leave the input, 3 and 4 the first node, 5 the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.experiments.nas.cell import add_blocks, block_of, finish, fold
from bipareto.experiments.nas.conv import Edges, back, chunks_of, convolve, weight_gradient
from bipareto.experiments.nas.kernels import _normal, _place, jit
from bipareto.triton_kernels import LIBRARY, tl

__all__ = ["bench_cell"]

#: By source: its edges among the six of a run.
_LEVELS = (Edges(0, 3, 6), Edges(3, 2, 6), Edges(5, 1, 6))


@jit
def _seen(y, x, H: tl.constexpr):
    """Pixels of the image in the 3x3 window around one."""
    return (tl.minimum(y + 1, H - 1) - tl.maximum(y - 1, 0) + 1) * (tl.minimum(x + 1, H - 1) - tl.maximum(x - 1, 0) + 1)


@jit
def _average(at, row, inside, c, C: tl.constexpr, H: tl.constexpr):
    """The mean over the 3x3 window of a state."""
    _, y, x = _place(row, H)
    here = at + row[:, None] * C + c[None, :]
    found = tl.zeros((row.shape[0], C), tl.float32)
    for tap in range(9):
        i, j = tap // 3 - 1, tap % 3 - 1
        mask = inside & (y + i >= 0) & (y + i < H) & (x + j >= 0) & (x + j < H)
        found += tl.load(here + (i * H + j) * C, mask=mask[:, None], other=0.0).to(tl.float32)
    return found / _seen(y, x, H).to(tl.float32)[:, None]


@jit
def _carried(at, c1, c3, stats1, stats3, mixture, edge, row, rows, c, C: tl.constexpr, H: tl.constexpr):
    """What an edge carries, from its state at `at`."""
    inside = row < rows
    mask = inside[:, None]
    out = row[:, None] * C + c[None, :]
    weight = mixture + edge * 5
    found = tl.load(weight + 1) * tl.load(at + out, mask=mask, other=0.0).to(tl.float32)
    found += tl.load(weight + 2) * _normal(c1 + edge * rows * C, stats1 + edge * 2 * C, out, mask, c, C)
    found += tl.load(weight + 3) * _normal(c3 + edge * rows * C, stats3 + edge * 2 * C, out, mask, c, C)
    return found + tl.load(weight + 4) * _average(at, row, inside, c, C, H)


@jit
def node_kernel(
    given, nodes, c1, c3, stats1, stats3, mixture, out, rows, node, given_run, out_run, C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr
):
    """The node after `node` others; `nodes` holds the first two."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = _carried(given + run * given_run, c1, c3, stats1, stats3, mixture, run * 6 + node, row, rows, c, C, H)
    for source in range(1, node + 1):
        edge = run * 6 + source * (7 - source) // 2 + node - source
        found += _carried(nodes + (run * 2 + source - 1) * rows * C, c1, c3, stats1, stats3, mixture, edge, row, rows, c, C, H)
    at = out + run * out_run + row[:, None] * C + c[None, :]
    tl.store(at, found.to(out.dtype.element_ty), mask=(row < rows)[:, None])


@jit
def sums_kernel(
    g, z, c1, c3, stats1, stats3, partial, rows, edges, offset, source0, tiles, z_run, C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr
):
    """Sums of an edge's gradient times each of its operations; in the place of "none" that of the gradient."""
    tile, unit = tl.program_id(0), tl.program_id(1)
    run, e = (unit // edges).to(tl.int64), unit % edges
    edge = run * 6 + offset + e
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    mask = inside[:, None]
    out = row[:, None] * C + c[None, :]
    G = tl.load(g + (run * 3 + source0 + e) * rows * C + out, mask=mask, other=0.0).to(tl.float32)
    left = partial + (edge * tiles + tile) * 5 * C + c
    tl.store(left, tl.sum(G, 0))
    tl.store(left + C, tl.sum(G * tl.load(z + run * z_run + out, mask=mask, other=0.0).to(tl.float32), 0))
    tl.store(left + 2 * C, tl.sum(G * _normal(c1 + edge * rows * C, stats1 + edge * 2 * C, out, mask, c, C), 0))
    tl.store(left + 3 * C, tl.sum(G * _normal(c3 + edge * rows * C, stats3 + edge * 2 * C, out, mask, c, C), 0))
    tl.store(left + 4 * C, tl.sum(G * _average(z + run * z_run, row, inside, c, C, H), 0))


@jit
def behind_kernel(g, c1, c3, stats1, stats3, mixture, sums, to_c1, to_c3, rows, edges, offset, source0, C: tl.constexpr, BLOCK: tl.constexpr):
    """The gradients of an edge's convolutions, back through their batch norms."""
    unit = tl.program_id(1)
    run, e = (unit // edges).to(tl.int64), unit % edges
    edge = run * 6 + offset + e
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    out = row[:, None] * C + c[None, :]
    total = sums + edge * 5 * C + c
    G = tl.load(g + (run * 3 + source0 + e) * rows * C + out, mask=mask, other=0.0).to(tl.float32) - tl.load(total)[None, :] / rows
    kind = to_c1.dtype.element_ty
    scale1 = tl.load(mixture + edge * 5 + 2) * tl.load(stats1 + edge * 2 * C + C + c)
    scale3 = tl.load(mixture + edge * 5 + 3) * tl.load(stats3 + edge * 2 * C + C + c)
    normal1 = _normal(c1 + edge * rows * C, stats1 + edge * 2 * C, out, mask, c, C)
    normal3 = _normal(c3 + edge * rows * C, stats3 + edge * 2 * C, out, mask, c, C)
    tl.store(to_c1 + edge * rows * C + out, (scale1[None, :] * (G - normal1 * tl.load(total + 2 * C)[None, :] / rows)).to(kind), mask=mask)
    tl.store(to_c3 + edge * rows * C + out, (scale3[None, :] * (G - normal3 * tl.load(total + 3 * C)[None, :] / rows)).to(kind), mask=mask)


@jit
def passed_kernel(g, mixture, out, rows, edges, offset, source0, out_run, C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr):
    """The gradient of a state by its skips and averages."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    _, y, x = _place(row, H)
    at = row[:, None] * C + c[None, :]
    found = tl.zeros((BLOCK, C), tl.float32)
    for e in range(edges):
        here = g + (run * 3 + source0 + e) * rows * C + at
        weight = mixture + (run * 6 + offset + e) * 5
        found += tl.load(weight + 1) * tl.load(here, mask=inside[:, None], other=0.0).to(tl.float32)
        mean = tl.load(weight + 4)
        for tap in range(9):
            i, j = tap // 3 - 1, tap % 3 - 1
            mask = inside & (y + i >= 0) & (y + i < H) & (x + j >= 0) & (x + j < H)
            share = mean / tl.maximum(_seen(y + i, x + j, H), 1).to(tl.float32)
            found += tl.load(here + (i * H + j) * C, mask=mask[:, None], other=0.0).to(tl.float32) * share[:, None]
    tl.store(out + run * out_run + at, found.to(out.dtype.element_ty), mask=inside[:, None])


LIBRARY.define("bench_cell(Tensor given, Tensor flat, Tensor mixture, int side) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(
    "bench_cell_backward(Tensor g, Tensor given, Tensor flat, Tensor mixture, Tensor nodes, Tensor c1, Tensor c3, Tensor stats1, Tensor stats3,"
    " int side) -> (Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.define("bench_cell_weights(Tensor to_c1, Tensor to_c3, Tensor given, Tensor nodes, int side) -> Tensor")


def _reordered(values: Tensor) -> Tensor:
    """(R, 6, ...) from the space's order of edges, by target, to that by source, or back: the third and the fourth change places."""
    return torch.cat([values[:, :2], values[:, 3:4], values[:, 2:3], values[:, 4:]], 1)


def _parted(flat: Tensor, C: int) -> tuple[Tensor, Tensor]:
    """The weights (R, 6, taps, inputs, outputs) of the 1x1 and the 3x3 convolutions, edges by source."""
    edges = _reordered(flat.view(-1, 6, 10 * C * C))
    one, three = edges[..., : C * C], edges[..., C * C :]
    return one.unflatten(-1, (1, C, C)).transpose(-1, -2).contiguous(), three.unflatten(-1, (C, C, 9)).permute(0, 1, 4, 3, 2).contiguous()


def _states(given: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three sources, (R, rows, C) each."""
    return given, nodes[:, 0], nodes[:, 1]


@torch.library.impl(LIBRARY, "bench_cell", "CompositeExplicitAutograd")
def _forward(given: Tensor, flat: Tensor, mixture: Tensor, side: int) -> tuple[Tensor, ...]:
    given, flat, mixture = given.contiguous(), flat.contiguous(), mixture.contiguous()
    R, rows, C = given.shape
    block, tiles = block_of(C), -(-rows // block_of(C))
    w1, w3 = _parted(flat, C)
    mixture = _reordered(mixture)
    nodes, last = given.new_empty(R, 2, rows, C), torch.empty_like(given)
    c1, c3 = given.new_empty(R, 6, rows, C), given.new_empty(R, 6, rows, C)
    stats1, stats3 = (given.new_empty(R, 6, 2, C, dtype=torch.float32) for _ in range(2))
    partial = given.new_empty(R, 6, tiles, 2, C, dtype=torch.float32)
    for source, (z, edges) in enumerate(zip(_states(given, nodes), _LEVELS, strict=True)):
        for w, c, stats in ((w1, c1, stats1), (w3, c3, stats3)):
            convolve(z, w, c, side, True, edges, partial)
            finish(partial, stats, rows, C, edges.number, edges.offset)
        out = last if source == 2 else nodes[:, source]
        node_kernel[(tiles, R)](
            given, nodes, c1, c3, stats1, stats3, mixture, out, rows, source, given.stride(0), out.stride(0), C, block, side
        )  # fmt: skip
    return last, nodes, c1, c3, stats1, stats3


@torch.library.impl(LIBRARY, "bench_cell_backward", "CompositeExplicitAutograd")
def _backward(
    g: Tensor, given: Tensor, flat: Tensor, mixture: Tensor, nodes: Tensor, c1: Tensor, c3: Tensor, stats1: Tensor, stats3: Tensor, side: int
) -> tuple[Tensor, ...]:
    given, flat, mixture = given.contiguous(), flat.contiguous(), mixture.contiguous()
    R, rows, C = given.shape
    block, tiles = block_of(C), -(-rows // block_of(C))
    w1, w3 = _parted(flat, C)
    mixture = _reordered(mixture)
    # The gradients of all nodes, the last one's first.
    grown, to_given = given.new_empty(R, 3, rows, C), torch.empty_like(given)
    grown[:, 2] = g
    to_c1, to_c3 = torch.empty_like(c1), torch.empty_like(c3)
    partial, sums = stats1.new_empty(R, 6, tiles, 5 * C), stats1.new_empty(R, 6, 5 * C)
    for source, (z, edges) in reversed(list(enumerate(zip(_states(given, nodes), _LEVELS, strict=True)))):
        out = grown[:, source - 1] if source else to_given
        where = (rows, edges.number, edges.offset, source)
        sums_kernel[(tiles, R * edges.number)](grown, z, c1, c3, stats1, stats3, partial, *where, tiles, z.stride(0), C, block, side)
        add_blocks(partial, sums, stretch=(edges.offset, edges.number))
        behind_kernel[(tiles, R * edges.number)](grown, c1, c3, stats1, stats3, mixture, sums, to_c1, to_c3, *where, C, block)
        passed_kernel[(tiles, R)](grown, mixture, out, *where, out.stride(0), C, block, side)
        back(to_c3, w3, z, out, side, True, edges, add=True)
        back(to_c1, w1, z, out, side, True, edges, add=True)
    return to_given, to_c1, to_c3, _reordered(sums)


@torch.library.impl(LIBRARY, "bench_cell_weights", "CompositeExplicitAutograd")
def _weights(to_c1: Tensor, to_c3: Tensor, given: Tensor, nodes: Tensor, side: int) -> Tensor:
    R, _, rows, C = to_c1.shape
    found = []
    for g, taps in ((to_c1, 1), (to_c3, 9)):
        partial, sums = (g.new_empty(R, 6 * taps, *more, C * C, dtype=torch.float32) for more in ((chunks_of(rows),), ()))
        for z, edges in zip(_states(given.contiguous(), nodes), _LEVELS, strict=True):
            weight_gradient(g, z, taps, side, True, partial, edges)
        add_blocks(partial, sums)
        found.append(sums.view(R, 6, taps, C, C).permute(0, 1, 4, 3, 2).flatten(2))
    return _reordered(torch.cat(found, -1)).flatten(1)


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
        to_given, to_c1, to_c3, sums = torch.ops.bipareto.bench_cell_backward(g, *ctx.saved_tensors, ctx.side)
        to_flat = torch.ops.bipareto.bench_cell_weights(to_c1, to_c3, given, nodes, ctx.side)
        to_mixture = sums.unflatten(-1, (5, -1)).sum(-1)
        # "none" adds nothing; in its place stands the sum of the gradient itself.
        to_mixture = torch.cat([torch.zeros_like(to_mixture[..., :1]), to_mixture[..., 1:]], -1)
        return to_given, to_flat, to_mixture, None


def bench_cell(given: Tensor, flat: Tensor, mixture: Tensor, side: int) -> Tensor:
    """The last node of a cell, (R, n side^2, C).

    Args:
        given: its input, (R, n side^2, C) float32 or bfloat16; C a power of two of at least 16.
        flat: (R, 60 C^2) float32: of the six edges in the space's order the weights of the 1x1, then those of the 3x3 convolution.
        mixture: (R, 6, 5) float32.
        side: of the images.
    """
    return _BenchCell.apply(given, flat, mixture, side)[0]
