"""The kernels of a convolution and of its derivative in the input; layout as in `nas.conv`."""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.taps import _place, _within, jit


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
