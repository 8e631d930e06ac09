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

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas.bench_kernels import (
    behind_kernel,
    joined_kernel,
    node_kernel,
    parted_kernel,
    sums_kernel,
    to_state_kernel,
)
from bipareto_experiments.nas.conv import (
    Edges,
    chunks_of,
    convolve,
    precision,
    rows_at_once,
    together,
    weight_gradient,
)
from bipareto_experiments.nas.launches import REGISTERS, add_blocks, block_of, finish, fold

#: By source: its edges among the six of a run.
_LEVELS = (Edges(0, 3, 6), Edges(3, 2, 6), Edges(5, 1, 6))


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
