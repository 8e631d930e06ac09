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

from bipareto.run.graph.triton import LIBRARY, tl
from bipareto_experiments.nas.cell import REGISTERS, add_blocks, fold
from bipareto_experiments.nas.taps import _place, _within, jit

__all__ = [
    "Edges",
    "back",
    "chunks_of",
    "convolve",
    "convolved",
    "precision",
    "rows_at_once",
    "together",
    "weight_gradient",
]

#: rows that one program of a weight gradient adds up, and bytes of a channel that it takes at a
#: time
_CHUNK, _BYTES = 1024, 128


@jit
def _lanes(OUT: tl.constexpr, CHANNELS: tl.constexpr):
    """Outputs of a program, OUT of those of all edges one after the other: edge, and channel of
    it.
    """
    lane = tl.program_id(2) * OUT + tl.arange(0, OUT)
    return lane // CHANNELS, lane % CHANNELS


@jit
def _state_at(at, mask, RELU: tl.constexpr):
    """What a convolution sees of a state; by the first cache, since the next taps see most of it
    again.
    """
    v = tl.load(at, mask=mask, other=0.0, cache_modifier=".ca")
    return tl.maximum(v, 0.0).to(v.dtype) if RELU else v


@jit
def _leave(
    found,
    out,
    partial,
    unit,
    row,
    rows,
    used,
    o,
    tiles,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    MOMENTS: tl.constexpr,
):
    """Write a block of the outputs `o` of some units, and its moments."""
    inside = (row < rows)[:, None]
    found = found.to(out.dtype.element_ty)
    tl.store(
        out + (unit * rows * CHANNELS + o)[None, :] + row[:, None] * CHANNELS,
        found,
        mask=inside & used[None, :],
    )
    if MOMENTS:
        tile = tl.program_id(0)
        v = found.to(tl.float32)  # zero beyond the last row
        mean = tl.sum(v, 0) / tl.minimum(rows - tile * BLOCK, BLOCK)
        off = tl.where(inside, v - mean[None, :], 0.0)
        left = partial + (unit * tiles + tile) * 2 * CHANNELS + o
        tl.store(left, mean, mask=used)
        tl.store(left + CHANNELS, tl.sum(off * off, 0), mask=used)


@jit
def conv_kernel(
    z,
    w,
    out,
    partial,
    rows,
    edges,
    offset,
    total,
    tiles,
    z_run,
    IN: tl.constexpr,
    PARTS: tl.constexpr,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    RELU: tl.constexpr,
    MOMENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """OUT of the edges' outputs, CHANNELS each, from PARTS times IN inputs; with MOMENTS those of
    the outputs too.
    """
    S: tl.constexpr = H * STRIDE
    WIDTH: tl.constexpr = PARTS * IN
    LAST: tl.constexpr = TAPS % 9  # 1 where a 1x1 convolution is the last tap
    run = tl.program_id(1).to(tl.int64)
    e, o = _lanes(OUT, CHANNELS)
    used = e < edges
    group = run * total + offset + e
    c = tl.arange(0, IN)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    image, y, x = _place(row, H)
    pixel = row if STRIDE == 1 else (image * S + y * STRIDE) * S + x * STRIDE
    y = tl.where(inside, y * STRIDE, 2 * S)  # beyond the last row everything lies outside
    here = z + run * z_run + pixel[:, None] * WIDTH + c[None, :]
    weight = w + (group * (TAPS * CHANNELS) + o)[None, :] * WIDTH + c[:, None]
    if TAPS >= 9:
        found = tl.zeros((BLOCK, OUT), tl.float32)
        for step in range(9 * PARTS):
            tap, part = step // PARTS, step % PARTS
            i, j = tap // 3 - 1, tap % 3 - 1
            mask = _within(y + i, S) & _within(x * STRIDE + j, S)
            v = _state_at(here + ((i * S + j) * WIDTH + part * IN), mask[:, None], RELU)
            found = tl.dot(
                v,
                tl.load(
                    weight + (tap * (CHANNELS * WIDTH) + part * IN), mask=used[None, :], other=0.0
                ),
                found,
                input_precision=PRECISION,
            )
        _leave(
            found,
            out,
            partial,
            group * (1 + LAST) + LAST,
            row,
            rows,
            used,
            o,
            tiles,
            CHANNELS,
            BLOCK,
            MOMENTS,
        )
    if LAST == 1:
        found = tl.zeros((BLOCK, OUT), tl.float32)
        for part in range(PARTS):
            v = _state_at(here + part * IN, inside[:, None], RELU)
            w1 = tl.load(
                weight + ((TAPS - 1) * CHANNELS * WIDTH + part * IN), mask=used[None, :], other=0.0
            )
            found = tl.dot(v, w1, found, input_precision=PRECISION)
        _leave(
            found,
            out,
            partial,
            group * (1 + TAPS // 9),
            row,
            rows,
            used,
            o,
            tiles,
            CHANNELS,
            BLOCK,
            MOMENTS,
        )


@jit
def _sent_back(
    g,
    w,
    run,
    row,
    rows,
    inside,
    edges,
    offset,
    total,
    o,
    channels,
    IN: tl.constexpr,
    PARTS: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What reaches a block of rows of the convolved state, its channels `o`, from all edges and
    their PARTS times IN outputs.
    """
    S: tl.constexpr = H * STRIDE
    WIDTH: tl.constexpr = PARTS * IN
    c = tl.arange(0, IN)
    image, y, x = _place(row, S)
    y = tl.where(inside, y, 2 * S + 2)
    here = g + row[:, None] * WIDTH + c[None, :]
    weight = w + o[None, :] * WIDTH + c[:, None]
    found = tl.zeros((BLOCK, OUT), tl.float32)
    for step in range(edges * TAPS * PARTS):
        group, tap, part = (
            run * total + offset + step // (TAPS * PARTS),
            step // PARTS % TAPS,
            step % PARTS,
        )
        # The 1x1 convolution, where there is one too, is the last tap and looks at the middle.
        unit = group * 2 + tl.where(tap == 9, 0, 1) if TAPS == 10 else group
        place = tl.where(tap == 9, 4, tap) if TAPS == 10 else tap
        down, across = y - (place // 3 - TAPS // 9), x - (place % 3 - TAPS // 9)
        mask = _within(down, S) & _within(across, S)
        if STRIDE == 1:
            at = (
                here
                + (unit * rows - ((place // 3 - TAPS // 9) * S + place % 3 - TAPS // 9)) * WIDTH
            )
        else:
            mask = mask & (down % STRIDE == 0) & (across % STRIDE == 0)
            near = (image * H + down // STRIDE) * H + across // STRIDE
            at = g + (unit * rows + near)[:, None] * WIDTH + c[None, :]
        G = tl.load(at + part * IN, mask=mask[:, None], other=0.0, cache_modifier=".ca")
        found = tl.dot(
            G,
            tl.load(weight + ((group * TAPS + tap) * channels * WIDTH + part * IN)),
            found,
            input_precision=PRECISION,
        )
    return found


@jit
def conv_back_kernel(
    g,
    w,
    z,
    out,
    rows,
    z_run,
    out_run,
    channels,
    IN: tl.constexpr,
    PARTS: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of z, OUT of its `channels`.  Rows are z's, `rows` counts those of g."""
    run = tl.program_id(1).to(tl.int64)
    o = tl.program_id(2) * OUT + tl.arange(0, OUT)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows * STRIDE * STRIDE
    found = _sent_back(
        g,
        w,
        run,
        row,
        rows,
        inside,
        1,
        0,
        1,
        o,
        channels,
        IN,
        PARTS,
        OUT,
        BLOCK,
        H,
        STRIDE,
        TAPS,
        PRECISION,
    )
    at = row[:, None] * channels + o[None, :]
    if RELU:
        found = tl.where(
            tl.load(z + run * z_run + at, mask=inside[:, None], other=0.0) > 0, found, 0.0
        )
    tl.store(out + run * out_run + at, found.to(out.dtype.element_ty), mask=inside[:, None])


@jit
def _line_sums(
    z,
    g,
    left,
    step,
    line,
    start,
    last,
    inputs,
    used,
    c,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Sums over rows, from `start` to `last`, of v g^T for the TAPS taps (1 or 3) of one line of a
    kernel, `line` lines from its middle.
    """
    S: tl.constexpr = H * STRIDE
    totals = ()
    for _ in tl.static_range(TAPS):
        totals += (tl.zeros((IN, OUT), tl.float32),)
    for first in range(start, last, BLOCK):
        row = first + tl.arange(0, BLOCK)
        inside = row < last
        G = tl.load(g + row[:, None] * CHANNELS, mask=inside[:, None] & used[None, :], other=0.0)
        image, y, x = _place(row, H)
        pixel = row if STRIDE == 1 else (image * S + y * STRIDE) * S + x * STRIDE
        here = z + (pixel + line * S)[:, None] * inputs + c[None, :]
        high = inside & _within(y * STRIDE + line, S)
        more = ()
        for j in tl.static_range(TAPS):
            mask = high & _within(x * STRIDE + (j - TAPS // 2), S)
            v = _state_at(here + (j - TAPS // 2) * inputs, mask[:, None], RELU)
            more += (tl.dot(tl.trans(v), G, totals[j], input_precision=PRECISION),)
        totals = more
    for j in tl.static_range(TAPS):
        tl.store(left + j * step, totals[j], mask=used[None, :])


@jit
def conv_weights_kernel(
    z,
    g,
    partial,
    rows,
    edges,
    offset,
    total,
    z_run,
    inputs,
    chunk,
    chunks,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Partial sums over `chunk` rows of the gradient of the weights of one line's taps: IN inputs,
    OUT of the edges' outputs, CHANNELS each.
    """
    LINES: tl.constexpr = (
        TAPS // 3 + TAPS % 9
    )  # one, three, or four where a 1x1 convolution stands beside the 3x3 one
    BOTH: tl.constexpr = 1 + TAPS // 10
    part, unit = tl.program_id(0), tl.program_id(1)
    line = unit % LINES
    run = (unit // (LINES * (inputs // IN))).to(tl.int64)
    c = unit // LINES % (inputs // IN) * IN + tl.arange(0, IN)
    e, o = _lanes(OUT, CHANNELS)
    used = e < edges
    group = run * total + offset + e
    start, last = part * chunk, tl.minimum((part + 1) * chunk, rows)
    left = (
        partial
        + ((group * TAPS * chunks + part) * inputs * CHANNELS + o)[None, :]
        + c[:, None] * CHANNELS
    )
    step = chunks * inputs * CHANNELS
    state = z + run * z_run
    if TAPS == 1 or (TAPS == 10 and line == 3):
        behind = g + (group * BOTH * rows * CHANNELS + o)[None, :]
        to = left + (TAPS - 1) * step
        _line_sums(
            state,
            behind,
            to,
            step,
            0,
            start,
            last,
            inputs,
            used,
            c,
            IN,
            OUT,
            CHANNELS,
            BLOCK,
            H,
            STRIDE,
            RELU,
            PRECISION,
            1,
        )
    else:
        behind = g + ((group * BOTH + BOTH - 1) * rows * CHANNELS + o)[None, :]
        to = left + line * 3 * step
        _line_sums(
            state,
            behind,
            to,
            step,
            line - 1,
            start,
            last,
            inputs,
            used,
            c,
            IN,
            OUT,
            CHANNELS,
            BLOCK,
            H,
            STRIDE,
            RELU,
            PRECISION,
            3,
        )


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
