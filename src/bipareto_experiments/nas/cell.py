"""A DARTS cell and batch norm as operators with derivatives, on the kernels beside this file.
First derivatives only.

Written plainly, a cell is 14 edges of 7 operations each, some 500 calls.  Here it is 29 launches
forward, 33 back, and 5 for the gradient of the weights, which is an operator of its own: a step
that differentiates in x alone does not pay for it.

Every tensor begins with an axis of runs R, so that several networks (preferences, or y beside
theta) go through one launch; `vmap` folds its axis into this one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas import kernels as forward
from bipareto_experiments.nas import kernels_backward as backward
from bipareto_experiments.nas import kernels_gather as gather
from bipareto_experiments.nas.cell_weights import weights_gradient
from bipareto_experiments.nas.launches import (
    LEVELS,
    REGISTERS,
    Shape,
    add_blocks,
    finish,
    fold,
    take_moments,
)

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


@torch.library.impl(LIBRARY, "darts_cell", "CompositeExplicitAutograd")
def _cell_forward(
    given: Tensor, flat: Tensor, mixture: Tensor, skips: Tensor, side: int, strided: bool
) -> tuple[Tensor, ...]:
    given, flat, mixture, skips = (value.contiguous() for value in (given, flat, mixture, skips))
    s = Shape(given, side, strided)
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
    for source0, sources, edge0, edges in LEVELS:
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
    s = Shape(given, side, strided)
    C, rows, kind = s.C, s.rows, given.dtype
    # The gradient of the nodes grows in here, from the last to the first.
    nodes = g.to(kind).clone(memory_format=torch.contiguous_format)
    to_given, to_skips = torch.empty_like(given), torch.empty_like(skips)
    gd, halves = s.new(84, rows, C, dtype=kind), s.new(28, rows, C, dtype=kind)
    sums, half_sums = s.new(14, 8 * C), s.new(28, 2 * C)
    partial, half_partial = s.new(14, s.tiles, 8 * C), s.new(28, s.strip_tiles, 2 * C)
    taps = s.taps(flat)
    for source0, sources, edge0, edges in reversed(LEVELS):
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
        gather.gather_kernel[(s.strip_tiles, s.R * sources, stride**2)](
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


for _name in ("darts_cell", "darts_cell_backward"):
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
        to_flat = weights_gradient(
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
