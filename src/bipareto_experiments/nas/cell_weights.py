"""The gradient of a DARTS cell's weights, an operator of its own: a step that differentiates in x
alone does not pay for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas import kernels_weights as of_weights
from bipareto_experiments.nas.launches import Shape, fold

#: numbers of each layer that one program of a weight gradient adds up
_CHUNK = 8192
#: numbers of a line that it takes at a time: four to a thread of one warp, since each is multiplied
#: into as many sums as there are taps
_TAP_BLOCK = 128

LIBRARY.define(
    "darts_cell_weights(Tensor nodes, Tensor gd, Tensor halves, Tensor sums, Tensor half_sums, "
    "Tensor given, Tensor mixture, Tensor out, Tensor d,"
    " Tensor p, Tensor stats, int side, bool strided) -> Tensor"
)


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
    s = Shape(given, side, strided)
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


fold("darts_cell_weights")


def weights_gradient(*given: Any) -> Tensor:
    """The operator: (R, weights) of what the cell's derivative returned and kept."""
    return torch.ops.bipareto.darts_cell_weights(*given)
