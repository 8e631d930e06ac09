"""The kernels of the gradients of a DARTS cell's weights; layout and names are those of
`bipareto_experiments.nas.kernels`.
"""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.kernel_layout import _edge, _ends, _ends_at, _layer, _weights
from bipareto_experiments.nas.kernels_backward import _behind
from bipareto_experiments.nas.taps import _within, jit


@jit
def pointwise_weights_kernel(
    g,
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
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Partial sums over `chunk` rows of the gradient of a layer's 1x1 weights (outputs, inputs)."""
    part, unit = tl.program_id(0), tl.program_id(1)
    run, edge, q = (unit // 84).to(tl.int64), unit % 84 // 6, unit % 6
    _, node = _ends_at(edge)
    c = tl.arange(0, C)
    total = tl.zeros((C, C), tl.float32)
    last = tl.minimum((part + 1) * chunk, rows)
    for first in range(part * chunk, last, BLOCK):
        row = first + tl.arange(0, BLOCK)
        kind = d.dtype.element_ty
        gp = _behind(
            g, halves, p, mixture, stats, sums, half_sums, run, edge, node, q, row, rows, c, C
        ).to(kind)
        deep = tl.load(
            d + (unit.to(tl.int64) * rows + row)[:, None] * C + c[None, :],
            mask=(row < last)[:, None],
            other=0.0,
        )
        total += tl.dot(tl.trans(gp), deep, input_precision="ieee")
    left = partial + (unit.to(tl.int64) * chunks + part) * (25 + C) * C + 25 * C
    tl.store(left + c[:, None] * C + c[None, :], total)


@jit
def _lines(
    here,
    x,
    inside,
    SECOND: tl.constexpr,
    S: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    LINES: tl.constexpr,
):
    """What the K taps of a line of a kernel see of each of LINES lines of the state; outside, what
    ReLU makes zero of.
    """
    found = ()
    for k in tl.static_range(LINES * K):
        across = (k % K - K // 2) * DILATION
        mask = (inside & _within(x * STRIDE + across, S))[:, None]
        found += (
            tl.load(
                here + (k // K * S + across) * ROW,
                mask=mask,
                other=float("-inf") if SECOND else 0.0,
            ),
        )
    return found


@jit
def _tap_sums(
    at,
    behind,
    mean,
    rstd,
    left,
    start,
    last,
    c,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
    SECOND: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
):
    """For every tap, the sum of the gradient times what the tap sees, over the columns (image, x)
    from `start` to `last`.

    A program goes down BLOCK columns at a time.  It loads a line of the state once for every
    distance across, K times and not K^2, and multiplies it into all lines of the gradient that taps
    connect it to: a window of these moves along.
    """
    S: tl.constexpr = H * STRIDE
    HALF: tl.constexpr = K // 2
    LINES: tl.constexpr = STRIDE if DILATION == 1 else 1  # of the state, for one of the gradient
    TURNS: tl.constexpr = (
        2 if DILATION > STRIDE else 1
    )  # where even lines meet no odd ones, one kind after the other
    BEFORE: tl.constexpr = HALF // LINES
    AHEAD: tl.constexpr = (HALF + LINES - 1) // LINES
    totals = ()
    for _ in tl.static_range(K * K):
        totals += (tl.zeros((BLOCK, C), tl.float32),)
    for turn in range(tl.cdiv(last - start, BLOCK) * TURNS):
        column = start + turn // TURNS * BLOCK + tl.arange(0, BLOCK)
        inside = column < last
        image, x, odd = (
            (column.to(tl.uint32) // H).to(tl.int32),
            (column.to(tl.uint32) % H).to(tl.int32),
            turn % TURNS,
        )
        G = behind + ((image * H + odd) * H + x)[:, None] * C + c[None, :]
        here = at + ((image * S + odd) * S + x * STRIDE)[:, None] * ROW + c[None, :]
        count = (H - odd + TURNS - 1) // TURNS
        until = tl.where(inside, count, 0)
        window = ()
        for k in tl.static_range(BEFORE + AHEAD + 1):
            if k < BEFORE:
                window += (tl.zeros((BLOCK, C), tl.float32),)
            else:
                mask = (until > k - BEFORE)[:, None]
                window += (
                    tl.load(G + (k - BEFORE) * (TURNS * H * C), mask=mask, other=0.0).to(
                        tl.float32
                    ),
                )
        found = _lines(here, x, inside, SECOND, S, STRIDE, ROW, K, DILATION, LINES)
        for t in range(count):
            seen = ()
            for k in tl.static_range(LINES * K):
                v = found[k].to(tl.float32)
                seen += (tl.maximum(v - mean if SECOND else v, 0.0),)
            # Asked for here, the next line is there when its turn comes; after the last the last
            # once more.
            found = _lines(
                here + tl.minimum(t + 1, count - 1) * (TURNS * STRIDE * S * ROW),
                x,
                inside,
                SECOND,
                S,
                STRIDE,
                ROW,
                K,
                DILATION,
                LINES,
            )
            more = ()
            for i in tl.static_range(K):
                for j in tl.static_range(K):
                    more += (
                        totals[i * K + j]
                        + seen[(i - HALF) % LINES * K + j] * window[BEFORE - (i - HALF) // LINES],
                    )
            totals = more
            moved = ()
            for k in tl.static_range(BEFORE + AHEAD):
                moved += (window[k + 1],)
            mask = (until > t + 1 + AHEAD)[:, None]
            moved += (
                tl.load(G + (t + 1 + AHEAD) * (TURNS * H * C), mask=mask, other=0.0).to(tl.float32),
            )
            window = moved
    for tap in tl.static_range(K * K):
        total = tl.sum(totals[tap], 0)
        tl.store(left + tap * C, total * rstd if SECOND else total)


@jit
def depthwise_weights_kernel(
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
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Partial sums, over as many columns as have `chunk` rows, of the gradient of a layer's
    depthwise weights.
    """
    OPS: tl.constexpr = 2 if SECOND else 4
    part, unit = tl.program_id(0), tl.program_id(1)
    run, q = (unit // (edges * OPS)).to(tl.int64), unit % OPS + (4 if SECOND else 0)
    source, node = _ends(edge0 + unit % (edges * OPS) // OPS)
    group = (run * 14 + _edge(source, node)) * 6 + q
    c = tl.arange(0, C)
    if SECOND:
        at = p + (group - 4) * rows * C
        mean, rstd = (
            tl.load(stats + (group - 4) * 2 * C + c)[None, :],
            tl.load(stats + (group - 4) * 2 * C + C + c),
        )
    else:
        at, mean, rstd = z + run * z_run + (source - source0).to(tl.int64) * z_source, 0.0, 1.0
    left = partial + (group * chunks + part) * (25 + C) * C + c
    start, last = part * chunk // H, tl.minimum((part + 1) * chunk, rows) // H
    behind = gd + group * rows * C
    if q % 4 == 0:
        _tap_sums(
            at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 3, 1
        )
    elif q % 4 == 1:
        _tap_sums(
            at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 5, 1
        )
    elif q % 4 == 2:
        _tap_sums(
            at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 3, 2
        )
    else:
        _tap_sums(
            at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 5, 2
        )


@jit
def collect_kernel(
    partial, out, weights, chunks, C: tl.constexpr, MANY: tl.constexpr, STRIDED: tl.constexpr
):
    """Add the chunks of one tap, or of one row of the 1x1 weights, and put it where the weight
    lies.
    """
    unit, slot = tl.program_id(0), tl.program_id(1)
    K, begin = _layer(unit % 6, C)
    c = tl.arange(0, C)
    used = (slot < K * K) | (slot >= 25)  # a 3x3 kernel leaves the last taps empty
    total = tl.zeros((MANY, C), tl.float32)
    for first in range(0, chunks, MANY):
        k = first + tl.arange(0, MANY)
        at = (unit.to(tl.int64) * chunks + k)[:, None] * (25 + C) * C + slot * C + c[None, :]
        total += tl.load(partial + at, mask=(k < tl.where(used, chunks, 0))[:, None], other=0.0)
    place = tl.where(slot < 25, c * K * K + slot, K * K * C + (slot - 25) * C + c)
    source, node = _ends_at(unit % 84 // 6)
    left = out + unit // 84 * weights + _weights(source, node, STRIDED, C) + begin + place
    tl.store(left, tl.sum(total, 0), mask=c < tl.where(used, C, 0))
