"""Convolutions of several runs, each with weights of its own, in one launch.  First derivatives only.

Libraries know such convolutions as grouped ones and are slow at them with few channels.  Tensors are laid out as rows (image, y, x)
times channels, with runs in front; a convolution is then a sum over taps of products (rows, inputs) @ (inputs, outputs), which matrix
units do well even with 16 channels.  Weights are (taps, inputs, outputs), 9 taps of a 3x3 kernel or 1.

The launches at the end of this file also serve cells, in which several *edges* convolve one state: edges `offset` to `offset + edges` of
the `total` of each run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.experiments.nas.cell import add_blocks, block_of, fold
from bipareto.experiments.nas.kernels import _place, jit
from bipareto.triton_kernels import LIBRARY, tl

__all__ = ["Edges", "back", "convolve", "convolved", "weight_gradient"]

#: rows that one program of a weight gradient adds up, and how many at a time
_CHUNK, _BLOCK = 1024, 64


@jit
def _lanes(OUT: tl.constexpr, CHANNELS: tl.constexpr):
    """Outputs of a program, OUT of those of all edges one after the other: edge, and channel of it."""
    lane = tl.program_id(2) * OUT + tl.arange(0, OUT)
    return lane // CHANNELS, lane % CHANNELS


@jit
def conv_kernel(
    z, w, out, partial, rows, edges, offset, total, tiles, z_run,
    IN: tl.constexpr, PARTS: tl.constexpr, OUT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr,
    TAPS: tl.constexpr, RELU: tl.constexpr, MOMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT of the edges' outputs, CHANNELS each, from PARTS times IN inputs; with MOMENTS those of the outputs too."""
    S: tl.constexpr = H * STRIDE
    tile, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    e, o = _lanes(OUT, CHANNELS)
    used = (e < edges)[None, :]
    group = run * total + offset + e
    c = tl.arange(0, IN)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    image, y, x = _place(row, H)
    here = z + run * z_run + ((image * S + y * STRIDE) * S + x * STRIDE)[:, None] * (PARTS * IN) + c[None, :]
    weight = w + (group * (TAPS * PARTS * IN) * CHANNELS + o)[None, :] + c[:, None] * CHANNELS
    found = tl.zeros((BLOCK, OUT), tl.float32)
    for step in range(TAPS * PARTS):
        tap, part = step // PARTS, step % PARTS
        i, j = tap // 3 - TAPS // 9, tap % 3 - TAPS // 9
        down, across = y * STRIDE + i, x * STRIDE + j
        mask = inside & (down >= 0) & (down < S) & (across >= 0) & (across < S)
        v = tl.load(here + (i * S + j) * (PARTS * IN) + part * IN, mask=mask[:, None], other=0.0)
        if RELU:
            v = tl.maximum(v, 0.0).to(v.dtype)
        found += tl.dot(v, tl.load(weight + step * IN * CHANNELS, mask=used, other=0.0).to(v.dtype), input_precision=PRECISION)
    found = found.to(out.dtype.element_ty)
    tl.store(out + (group * rows * CHANNELS + o)[None, :] + row[:, None] * CHANNELS, found, mask=inside[:, None] & used)
    if MOMENTS:
        v = tl.where(inside[:, None], found.to(tl.float32), 0.0)
        mean = tl.sum(v, 0) / tl.minimum(rows - tile * BLOCK, BLOCK)
        off = tl.where(inside[:, None], v - mean[None, :], 0.0)
        left = partial + (group * tiles + tile) * 2 * CHANNELS + o
        tl.store(left, mean, mask=e < edges)
        tl.store(left + CHANNELS, tl.sum(off * off, 0), mask=e < edges)


@jit
def conv_back_kernel(
    g, w, z, out, rows, edges, offset, total, z_run, out_run, channels,
    IN: tl.constexpr, PARTS: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
    RELU: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of z, OUT of its `channels`, from all edges and their PARTS times IN outputs; ADD to what is there.

    Rows are z's, `rows` counts those of g.
    """
    S: tl.constexpr = H * STRIDE
    run = tl.program_id(1).to(tl.int64)
    c, o = tl.arange(0, IN), tl.program_id(2) * OUT + tl.arange(0, OUT)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows * STRIDE * STRIDE
    image, y, x = _place(row, S)
    found = tl.zeros((BLOCK, OUT), tl.float32)
    for step in range(edges * TAPS * PARTS):
        group, tap, part = run * total + offset + step // (TAPS * PARTS), step // PARTS % TAPS, step % PARTS
        down, across = y - tap // 3 + TAPS // 9, x - tap % 3 + TAPS // 9
        mask = inside & (down >= 0) & (down < S) & (across >= 0) & (across < S) & (down % STRIDE == 0) & (across % STRIDE == 0)
        near = (image * H + down // STRIDE) * H + across // STRIDE
        G = tl.load(g + (group * rows + near)[:, None] * (PARTS * IN) + part * IN + c[None, :], mask=mask[:, None], other=0.0)
        weight = w + ((group * TAPS + tap) * channels + o[None, :]) * (PARTS * IN) + part * IN + c[:, None]
        found += tl.dot(G, tl.load(weight).to(G.dtype), input_precision=PRECISION)
    mask = inside[:, None]
    if RELU:
        state = tl.load(z + run * z_run + row[:, None] * channels + o[None, :], mask=mask, other=0.0)
        found = tl.where(state > 0, found, 0.0)
    at = out + run * out_run + row[:, None] * channels + o[None, :]
    if ADD:
        found += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, found.to(out.dtype.element_ty), mask=mask)


@jit
def conv_weights_kernel(
    z, g, partial, rows, edges, offset, total, z_run, inputs, chunk, chunks,
    IN: tl.constexpr, OUT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
    RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial sums over `chunk` rows of the gradient of one tap's weights: IN inputs, OUT of the edges' outputs, CHANNELS each."""
    S: tl.constexpr = H * STRIDE
    part, unit = tl.program_id(0), tl.program_id(1)
    run, tap = (unit // (TAPS * (inputs // IN))).to(tl.int64), unit % TAPS
    e, o = _lanes(OUT, CHANNELS)
    used = (e < edges)[None, :]
    group = run * total + offset + e
    i, j = tap // 3 - TAPS // 9, tap % 3 - TAPS // 9
    c = unit // TAPS % (inputs // IN) * IN + tl.arange(0, IN)
    last = tl.minimum((part + 1) * chunk, rows)
    behind = g + (group * rows * CHANNELS + o)[None, :]
    found = tl.zeros((IN, OUT), tl.float32)
    for first in range(part * chunk, last, BLOCK):
        row = first + tl.arange(0, BLOCK)
        image, y, x = _place(row, H)
        down, across = y * STRIDE + i, x * STRIDE + j
        mask = (row < last) & (down >= 0) & (down < S) & (across >= 0) & (across < S)
        near = (image * S + down) * S + across
        v = tl.load(z + run * z_run + near[:, None] * inputs + c[None, :], mask=mask[:, None], other=0.0)
        if RELU:
            v = tl.maximum(v, 0.0).to(v.dtype)
        G = tl.load(behind + row[:, None] * CHANNELS, mask=mask[:, None] & used, other=0.0)
        found += tl.dot(tl.trans(v), G, input_precision=PRECISION)
    left = partial + (((group * TAPS + tap) * chunks + part) * inputs * CHANNELS + o)[None, :] + c[:, None] * CHANNELS
    tl.store(left, found, mask=used)


class Edges(NamedTuple):
    """Those of a launch: the first, how many, and how many a run has in all."""

    offset: int = 0
    number: int = 1
    total: int = 1


_ALONE = Edges()


def _precision() -> str:
    """As the library's own convolutions: by TF32 where that is allowed, else by three products, which lose next to nothing."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def _together(channels: int) -> int:
    """Channels of one product: the largest power of two that divides them all, at most 64."""
    return min(64, channels & -channels)


def _wide(lanes: int) -> int:
    """Outputs of one program: all edges' together share what is read, at most 128."""
    return min(128, 1 << (lanes - 1).bit_length())


def convolve(z: Tensor, w: Tensor, out: Tensor, side: int, relu: bool, edges: Edges = _ALONE, partial: Tensor | None = None) -> None:
    """Write the convolutions of z (R, n S^2, inputs) into `out` (R, edges, n side^2, outputs), and moments of blocks into `partial`.

    Args:
        z: its first axis may have any stride.
        w: (R, edges, taps, inputs, outputs).
        relu: convolve max(z, 0).
        partial: (R, edges, tiles, 2, outputs), tiles of `block_of(outputs)` rows.
    """
    (R, _, rows, outputs), inputs = out.shape, z.shape[-1]
    IN, OUT = _together(inputs), _wide(edges.number * outputs)
    block = block_of(_together(outputs) if partial is None else outputs)
    tiles = -(-rows // block)
    conv_kernel[(tiles, R, -(-edges.number * outputs // OUT))](
        z, w, out, out if partial is None else partial, rows, edges.number, edges.offset, edges.total, tiles, z.stride(0),
        IN, inputs // IN, OUT, outputs, block, _side(w, side), _stride(z, rows), w.shape[2], relu, partial is not None, _precision(),
    )  # fmt: skip


def back(g: Tensor, w: Tensor, z: Tensor, out: Tensor, side: int, relu: bool, edges: Edges = _ALONE, add: bool = False) -> None:
    """The gradient of z into `out`, both (R, n S^2, inputs), from g (R, edges, n side^2, outputs); or added to it."""
    R, rows, inputs = z.shape
    outputs = g.shape[-1]
    IN, OUT = _together(outputs), _together(inputs)
    conv_back_kernel[(-(-rows // block_of(OUT)), R, inputs // OUT)](
        g, w, z, out, g.shape[2], edges.number, edges.offset, edges.total, z.stride(0), out.stride(0), inputs,
        IN, outputs // IN, OUT, block_of(OUT), _side(w, side), _stride(z, g.shape[2]), w.shape[2], relu, add, _precision(),
    )  # fmt: skip


def weight_gradient(g: Tensor, z: Tensor, taps: int, side: int, relu: bool, partial: Tensor, edges: Edges = _ALONE) -> None:
    """Partial sums (R, edges * taps, chunks, inputs * outputs) of the weights' gradient; `chunks_of` says how many."""
    (R, _, rows, outputs), inputs = g.shape, z.shape[-1]
    IN, OUT = _together(inputs), _wide(edges.number * outputs)
    conv_weights_kernel[(chunks_of(rows), R * inputs // IN * taps, -(-edges.number * outputs // OUT))](
        z, g, partial, rows, edges.number, edges.offset, edges.total, z.stride(0), inputs, _CHUNK, chunks_of(rows),
        IN, OUT, outputs, _BLOCK, side if taps > 1 else 1, _stride(z, rows), taps, relu, _precision(),
    )  # fmt: skip


def chunks_of(rows: int) -> int:
    """Partial sums of a weight's gradient."""
    return -(-rows // _CHUNK)


def _side(w: Tensor, side: int) -> int:
    """To a 1x1 convolution every pixel is an image: one kernel for all sides."""
    return side if w.shape[2] > 1 else 1


def _stride(z: Tensor, rows: int) -> int:
    return math.isqrt(z.shape[1] // rows)


LIBRARY.define("conv(Tensor z, Tensor w, int side, int stride, bool relu) -> Tensor")
LIBRARY.define("conv_back(Tensor g, Tensor w, Tensor z, int side, bool relu) -> Tensor")
LIBRARY.define("conv_weights(Tensor g, Tensor z, int taps, int side, bool relu) -> Tensor")


@torch.library.impl(LIBRARY, "conv", "CompositeExplicitAutograd")
def _conv(z: Tensor, w: Tensor, side: int, stride: int, relu: bool) -> Tensor:
    z, w = z.contiguous(), w.contiguous()
    out = z.new_empty(z.shape[0], 1, z.shape[1] // stride**2, w.shape[-1])
    convolve(z, w[:, None], out, side, relu)
    return out[:, 0]


@torch.library.impl(LIBRARY, "conv_back", "CompositeExplicitAutograd")
def _conv_back(g: Tensor, w: Tensor, z: Tensor, side: int, relu: bool) -> Tensor:
    g, w, z = g.contiguous(), w.contiguous(), z.contiguous()
    out = torch.empty_like(z)
    back(g[:, None], w[:, None], z, out, side, relu)
    return out


@torch.library.impl(LIBRARY, "conv_weights", "CompositeExplicitAutograd")
def _conv_weights(g: Tensor, z: Tensor, taps: int, side: int, relu: bool) -> Tensor:
    g, z = g.contiguous(), z.contiguous()
    (R, rows, outputs), inputs = g.shape, z.shape[-1]
    partial = z.new_empty(R, taps, chunks_of(rows), inputs * outputs, dtype=torch.float32)
    sums = z.new_empty(R, taps, inputs * outputs, dtype=torch.float32)
    weight_gradient(g[:, None], z, taps, side, relu, partial)
    add_blocks(partial, sums)
    return sums.view(R, taps, inputs, outputs)


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
        return to_z, torch.ops.bipareto.conv_weights(g, z, w.shape[1], ctx.side, ctx.relu), None, None, None


def convolved(z: Tensor, weight: Tensor, side: int, stride: int = 1, relu: bool = False) -> Tensor:
    """A 3x3 or 1x1 convolution, (1, n side^2, outputs), of max(z, 0) where `relu`; by `vmap` of as many runs as there are.

    Args:
        z: (1, n (side stride)^2, inputs) float32 or bfloat16; inputs and outputs multiples of 16.
        weight: (outputs, inputs, k, k) or (outputs, inputs) float32, k = 1 or 3; the padding is k // 2.
        side: of the result.
    """
    outputs, inputs = weight.shape[:2]
    taps = weight.reshape(outputs, inputs, -1).permute(2, 1, 0)
    return _Conv.apply(z, taps[None], side, stride, relu)
