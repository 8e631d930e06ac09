"""Convolutions of several runs, each with weights of its own, in one launch.  First derivatives
only.

Libraries know such convolutions as grouped ones and are slow at them with few channels.  Tensors
are laid out as rows (image, y, x) times channels, with runs in front; a convolution is then a sum
over taps of products (rows, inputs) @ (inputs, outputs), which matrix units do well even with 16
channels.  Weights are (taps, outputs, inputs), 9 taps of a 3x3 kernel, or 1, or 10 where a 1x1
convolution of the same state goes with a 3x3 one: the last of them is then its own, and its results
stand before those of the other.

The launches at the end of this file also serve cells, in which several *edges* convolve one state:
edges `offset` to `offset + edges` of the `total` of each run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.run.graph.triton import LIBRARY
from bipareto_experiments.nas.conv_kernels import conv_back_kernel, conv_kernel
from bipareto_experiments.nas.conv_weight_kernels import conv_weights_kernel
from bipareto_experiments.nas.launches import REGISTERS, add_blocks, fold

#: rows that one program of a weight gradient adds up, and bytes of a channel that it takes at a
#: time
_CHUNK, _BYTES = 1024, 128


class Edges(NamedTuple):
    """Those of a launch: the first, how many, and how many a run has in all."""

    offset: int = 0
    number: int = 1
    total: int = 1


_ALONE = Edges()


def precision(z: Tensor) -> str:
    """Of float32, as the library's own convolutions: by TF32 where that is allowed, else by three
    products, which lose next to nothing.
    """
    return "tf32" if torch.backends.cudnn.allow_tf32 or z.dtype != torch.float32 else "tf32x3"


def rows_at_once(channels: int) -> int:
    """Rows of a program that multiplies matrices: at least the 64 that matrix units of an H100 take
    together, more where weights are few.

    Programs without products are not bound by those units and take rows by `cell.block_of`.
    """
    return 128 if channels % 64 else 64


def together(channels: int, most: int = 32) -> int:
    """Channels of one product: the largest power of two that divides them all, at most 32, which
    leaves memory for several programs.
    """
    return min(most, channels & -channels)


def _wide(lanes: int, most: int) -> int:
    """Outputs of one program: all edges' together share what is read."""
    return min(most, 1 << (lanes - 1).bit_length())


def convolve(
    z: Tensor,
    w: Tensor,
    out: Tensor,
    side: int,
    relu: bool,
    edges: Edges = _ALONE,
    partial: Tensor | None = None,
) -> None:
    """Write the convolutions of z (R, n S^2, inputs) into `out` (R, edges, n side^2, outputs), and
    moments of blocks into `partial`.

    With ten taps `out` is (R, edges, 2, n side^2, outputs): the 1x1 convolution, then the 3x3 one.

    Args:
        z: its first axis may have any stride.
        w: (R, edges, taps, outputs, inputs), of the type of z.
        relu: convolve max(z, 0).
        partial: (R, edges, tiles, 2, outputs), or (R, edges, 2, tiles, 2, outputs), tiles of
            `rows_at_once(outputs)` rows.
    """
    R, rows, outputs = out.shape[0], *out.shape[-2:]
    inputs, lanes = z.shape[-1], edges.number * outputs
    IN, block = together(inputs), rows_at_once(outputs)
    OUT = _wide(lanes, block)
    tiles = -(-rows // block)
    conv_kernel[(tiles, R, -(-lanes // OUT))](
        z,
        w,
        out,
        out if partial is None else partial,
        rows,
        edges.number,
        edges.offset,
        edges.total,
        tiles,
        z.stride(0),
        IN,
        inputs // IN,
        OUT,
        outputs,
        block,
        _side(w, side),
        _stride(z, rows),
        w.shape[2],
        relu,
        partial is not None,
        precision(z),
        num_warps=8 if block * OUT > 8192 else 4,
        maxnreg=REGISTERS,
    )


def back(g: Tensor, w: Tensor, z: Tensor, out: Tensor, side: int, relu: bool) -> None:
    """The gradient of z into `out`, both (R, n S^2, inputs), from g (R, 1, n side^2, outputs) and w
    (R, 1, taps, inputs, outputs).
    """
    R, rows, inputs = z.shape
    outputs = g.shape[-1]
    IN, OUT = together(outputs), together(inputs, 64)
    block = rows_at_once(inputs)
    conv_back_kernel[(-(-rows // block), R, inputs // OUT)](
        g,
        w,
        z,
        out,
        g.shape[2],
        z.stride(0),
        out.stride(0),
        inputs,
        IN,
        outputs // IN,
        OUT,
        block,
        _side(w, side),
        _stride(z, g.shape[2]),
        w.shape[2],
        relu,
        precision(z),
        maxnreg=REGISTERS,
    )


def weight_gradient(
    g: Tensor, z: Tensor, taps: int, side: int, relu: bool, partial: Tensor, edges: Edges = _ALONE
) -> None:
    """Partial sums (R, edges * taps, chunks, inputs * outputs) of the weights' gradient;
    `chunks_of` says how many.

    g is (R, edges, n side^2, outputs), or with ten taps (R, edges, 2, n side^2, outputs).
    """
    R, rows, outputs = g.shape[0], *g.shape[-2:]
    inputs, lanes = z.shape[-1], edges.number * outputs
    # With 64 inputs Triton would choose other matrix instructions, for which it turns float32
    # around number by number.
    IN, OUT = together(inputs), _wide(lanes, 128)
    lines = taps // 3 + taps % 9
    conv_weights_kernel[(chunks_of(rows), R * inputs // IN * lines, -(-lanes // OUT))](
        z,
        g,
        partial,
        rows,
        edges.number,
        edges.offset,
        edges.total,
        z.stride(0),
        inputs,
        _CHUNK,
        chunks_of(rows),
        IN,
        OUT,
        outputs,
        _BYTES // g.element_size(),
        side if taps > 1 else 1,
        _stride(z, rows),
        taps,
        relu,
        precision(z),
        num_warps=8 if OUT > 64 else 4,
    )


def chunks_of(rows: int) -> int:
    """Partial sums of a weight's gradient."""
    return -(-rows // _CHUNK)


def _side(w: Tensor, side: int) -> int:
    """To a 1x1 convolution every pixel is an image: one kernel for all sides."""
    return side if w.shape[2] > 1 else 1


def _stride(z: Tensor, rows: int) -> int:
    return math.isqrt(z.shape[1] // rows)


def _turned(w: Tensor, kind: torch.dtype, turn: bool) -> Tensor:
    """Weights in a type; for the way back (..., inputs, outputs), so that what is added up lies
    side by side.
    """
    w = w.mT if turn else w
    return torch.empty(w.shape, dtype=kind, device=w.device).copy_(w)


LIBRARY.define("conv(Tensor z, Tensor w, int side, int stride, bool relu) -> Tensor")
LIBRARY.define("conv_back(Tensor g, Tensor w, Tensor z, int side, bool relu) -> Tensor")
LIBRARY.define("conv_weights(Tensor g, Tensor z, int taps, int side, bool relu) -> Tensor")


@torch.library.impl(LIBRARY, "conv", "CompositeExplicitAutograd")
def _conv(z: Tensor, w: Tensor, side: int, stride: int, relu: bool) -> Tensor:
    z = z.contiguous()
    out = z.new_empty(z.shape[0], 1, z.shape[1] // stride**2, w.shape[-2])
    convolve(z, _turned(w, z.dtype, False)[:, None], out, side, relu)
    return out[:, 0]


@torch.library.impl(LIBRARY, "conv_back", "CompositeExplicitAutograd")
def _conv_back(g: Tensor, w: Tensor, z: Tensor, side: int, relu: bool) -> Tensor:
    g, z = g.contiguous(), z.contiguous()
    out = torch.empty_like(z)
    back(g[:, None], _turned(w, g.dtype, True)[:, None], z, out, side, relu)
    return out


@torch.library.impl(LIBRARY, "conv_weights", "CompositeExplicitAutograd")
def _conv_weights(g: Tensor, z: Tensor, taps: int, side: int, relu: bool) -> Tensor:
    g, z = g.contiguous(), z.contiguous()
    (R, rows, outputs), inputs = g.shape, z.shape[-1]
    partial = z.new_empty(R, taps, chunks_of(rows), inputs * outputs, dtype=torch.float32)
    sums = z.new_empty(R, taps, inputs * outputs, dtype=torch.float32)
    weight_gradient(g[:, None], z, taps, side, relu, partial)
    add_blocks(partial, sums)
    return sums.view(R, taps, inputs, outputs).mT


for _name in ("conv", "conv_back", "conv_weights"):
    fold(_name)


class _Conv(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, w: Tensor, side: int, stride: int, relu: bool) -> Tensor:
        return torch.ops.bipareto.conv(z, w, side, stride, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, w, ctx.side, _, ctx.relu = inputs
        ctx.save_for_backward(z, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        z, w = ctx.saved_tensors
        to_z = torch.ops.bipareto.conv_back(g, w, z, ctx.side, ctx.relu)
        return (
            to_z,
            torch.ops.bipareto.conv_weights(g, z, w.shape[1], ctx.side, ctx.relu),
            None,
            None,
            None,
        )


def convolved(z: Tensor, weight: Tensor, side: int, stride: int = 1, relu: bool = False) -> Tensor:
    """A 3x3 or 1x1 convolution, (1, n side^2, outputs), of max(z, 0) where `relu`; by `vmap` of as
    many runs as there are.

    Args:
        z: (1, n (side stride)^2, inputs) float32 or bfloat16; inputs and outputs multiples of 16.
        weight: (outputs, inputs, k, k) or (outputs, inputs) float32, k = 1 or 3; the padding is k
            // 2.
        side: of the result.
    """
    outputs, inputs = weight.shape[:2]
    taps = weight.reshape(outputs, inputs, -1).permute(2, 0, 1)
    return _Conv.apply(z, taps[None], side, stride, relu)
