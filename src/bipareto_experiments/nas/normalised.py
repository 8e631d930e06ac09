"""Batch norm as an operator with a derivative, on the kernels beside this file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas import kernels as forward
from bipareto_experiments.nas import kernels_backward as backward
from bipareto_experiments.nas.launches import add_blocks, block_of, fold, take_moments, tiles_of

LIBRARY.define("normalised(Tensor z, Tensor scale) -> (Tensor, Tensor)")
LIBRARY.define(
    "normalised_backward(Tensor g, Tensor z, Tensor scale, Tensor stats) -> (Tensor, Tensor)"
)


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
    forward.normalise_kernel[(tiles_of(rows, C), units, channels // C)](
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
    tiles = tiles_of(rows, C)
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


for _name in ("normalised", "normalised_backward"):
    fold(_name)


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


def normalised(z: Tensor, scale: Tensor | None = None) -> Tensor:
    """Batch norm of z (units, rows, channels) over the rows, times scale (units, channels);
    channels a multiple of 16.
    """
    scale = z.new_ones(z.shape[0], z.shape[2], dtype=torch.float32) if scale is None else scale
    return _Normalised.apply(z, scale)[0]  # type: ignore[no-untyped-call]
