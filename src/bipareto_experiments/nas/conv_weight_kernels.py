"""The kernel of a convolution's derivative in the weights; layout as in `nas.conv`."""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.conv_kernels import _lanes, _state_at
from bipareto_experiments.nas.taps import _place, _within, jit


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
