"""The kernels of a DARTS cell in Triton; `nas.cell` says what they make together.

Everything is laid out as rows (image, y, x) times C channels, C a power of two of at least 16.  In
front stand the runs, and behind them edges and layers: an edge has six *layers* q, each a depthwise
convolution and a 1x1 one,

    q     0           1           2       3       4            5
          sep 3x3,    sep 5x5,    dil     dil     sep 3x3,     sep 5x5,
          first half  first half  3x3     5x5     second half  second half

so that layers 0 to 3 look at the state that the edge leaves, layers 4 and 5 at layers 0 and 1.
Edges lie in memory in the space's order, by target and then by source, and are worked on by source:
in a launch they are numbered so.  A program works on a block of rows and one layer of one edge, or
on all that leave a state; sums over rows are left as one partial sum per block, which are added in
a fixed order. One launch serves all layers; programs branch to code made for their kernel size and
dilation.  Sides H and strides are compiled in too, since places of pixels are divisions by them,
and so is the distance ROW of a state's pixels: taps are constant distances apart.
"""

from __future__ import annotations

from bipareto.run.graph.triton import tl, triton
from bipareto_experiments.nas.kernel_layout import (
    _edge,
    _ends,
    _ends_at,
    _layer,
    _moments_of,
    _normal,
    _product,
    _unit,
    _weights,
)
from bipareto_experiments.nas.taps import (
    _joined,
    _layer_taps,
    _nothing,
    _place,
    _rows,
    _strips,
    _within,
    jit,
)

PRESENT = triton is not None


@jit
def taps_kernel(flat, taps, weights, C: tl.constexpr, STRIDED: tl.constexpr):
    """Depthwise weights with the channels last, 25 places for every layer: taps[run, edge, q, tap,
    channel].
    """
    unit = tl.program_id(0)
    K, begin = _layer(unit % 6, C)
    source, node = _ends_at(unit % 84 // 6)
    tap, c = tl.arange(0, 32)[:, None], tl.arange(0, C)[None, :]
    at = flat + unit // 84 * weights + _weights(source, node, STRIDED, C) + begin
    v = tl.load(at + c * K * K + tap, mask=(tap < K * K) & (c < C), other=0.0)
    tl.store(taps + unit * 25 * C + tap * C + c, v, mask=(tap < 25) & (c < C))


@jit
def forward_kernel(
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
    weights,
    tiles,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
    SECOND: tl.constexpr,
    STRIDED: tl.constexpr,
    TALL: tl.constexpr,
):
    """ReLU (of the normalised layer q - 4 where SECOND), depthwise d, 1x1 p, and the moments of
    p.
    """
    OPS: tl.constexpr = 2 if SECOND else 4
    tile, unit = tl.program_id(0), tl.program_id(1)
    run, q = unit // (edges * OPS), unit % OPS + (4 if SECOND else 0)
    source, node = _ends(edge0 + unit % (edges * OPS) // OPS)
    group = ((run * 14 + _edge(source, node)) * 6 + q).to(tl.int64)
    c = tl.arange(0, C)
    top, inside = _strips(tile, rows, BLOCK, H, TALL)
    image, y, x = _place(top, H)
    if SECOND:
        at = p + (group - 4) * rows * C
        mean, rstd = (
            tl.load(stats + (group - 4) * 2 * C + c)[None, :],
            tl.load(stats + (group - 4) * 2 * C + C + c)[None, :],
        )
    else:
        at, mean, rstd = (
            z + run.to(tl.int64) * z_run + (source - source0).to(tl.int64) * z_source,
            0.0,
            1.0,
        )
    here = at + (((image * H + y) * H * STRIDE + x) * STRIDE)[:, None] * ROW + c[None, :]
    totals = _layer_taps(
        q,
        _nothing(BLOCK, C, TALL),
        taps + group * 25 * C + c,
        here,
        y * STRIDE,
        x * STRIDE,
        inside,
        mean,
        H * STRIDE,
        ROW,
        C,
        "off" if SECOND else "relu",
        1,
        STRIDE,
        not SECOND,
    )
    kind = d.dtype.element_ty
    deep = ()
    for k in tl.static_range(TALL):
        deep += ((totals[k] * rstd).to(kind),)
        tl.store(
            d + group * rows * C + (top + k * H)[:, None] * C + c[None, :],
            deep[k],
            mask=inside[:, None],
        )
    K, begin = _layer(q, C)
    w = flat + run * weights + _weights(source, node, STRIDED, C) + begin + K * K * C
    point = tl.load(w + c[:, None] + c[None, :] * C).to(kind)  # (inputs, outputs)
    v = _product(_joined(deep, BLOCK, C), point, C)
    row = _rows(tile, BLOCK, H, TALL)
    mask = (row < rows)[:, None]
    tl.store(p + group * rows * C + row[:, None] * C + c[None, :], v.to(kind), mask=mask)
    _moments_of(
        v,
        mask,
        tl.minimum(rows - tile * BLOCK, BLOCK),
        partial + (group * tiles + tile) * 2 * C,
        c,
        C,
    )


@jit
def pool_kernel(
    z,
    pools,
    chosen,
    partial,
    rows,
    edges,
    source0,
    z_run,
    z_source,
    tiles,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
):
    """Maximum, the tap that it came from, average, and the moments of both; `edges` is the number
    of sources.
    """
    S: tl.constexpr = H * STRIDE
    tile, unit = tl.program_id(0), tl.program_id(1)
    run, source = unit // edges, unit % edges
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    image, y, x = _place(row, H)
    at = z + run.to(tl.int64) * z_run + source.to(tl.int64) * z_source
    here = at + ((image * S + y * STRIDE) * S + x * STRIDE)[:, None] * ROW + c[None, :]
    best = tl.full((BLOCK, C), float("-inf"), tl.float32)
    which = tl.zeros((BLOCK, C), tl.int32)
    total = tl.zeros((BLOCK, C), tl.float32)
    seen = tl.zeros((BLOCK,), tl.float32)
    for i in range(3):
        high = inside & _within(y * STRIDE + i - 1, S)
        for j in tl.static_range(3):
            valid = high & _within(x * STRIDE + j - 1, S)
            mask = valid[:, None]
            v = tl.load(here + ((i - 1) * S + j - 1) * ROW, mask=mask, other=0.0).to(tl.float32)
            higher = mask & (v > best)
            which = tl.where(higher, i * 3 + j, which)
            best = tl.where(higher, v, best)
            total += v
            seen += valid.to(tl.float32)
    unit = (run * 5 + source0 + source).to(tl.int64)
    out = row[:, None] * C + c[None, :]
    kind = pools.dtype.element_ty
    best = tl.where(inside[:, None], best, 0.0).to(kind)
    mean = (total / tl.maximum(seen, 1.0)[:, None]).to(kind)
    tl.store(chosen + unit * rows * C + out, which.to(kind), mask=inside[:, None])
    tl.store(pools + unit * 2 * rows * C + out, best, mask=inside[:, None])
    tl.store(pools + (unit * 2 + 1) * rows * C + out, mean, mask=inside[:, None])
    count = tl.minimum(rows - tile * BLOCK, BLOCK)
    _moments_of(
        best.to(tl.float32),
        inside[:, None],
        count,
        partial + (unit * 2 * tiles + tile) * 2 * C,
        c,
        C,
    )
    _moments_of(
        mean.to(tl.float32),
        inside[:, None],
        count,
        partial + ((unit * 2 + 1) * tiles + tile) * 2 * C,
        c,
        C,
    )


@jit
def moments_kernel(z, partial, rows, tiles, channels, C: tl.constexpr, BLOCK: tl.constexpr):
    """Moments of z (units, rows, channels), C channels at a time."""
    tile, unit = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * C + tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    v = tl.load(z + (unit * rows + row)[:, None] * channels + c[None, :], mask=mask, other=0.0).to(
        tl.float32
    )
    _moments_of(
        v,
        mask,
        tl.minimum(rows - tile * BLOCK, BLOCK),
        partial + (unit * tiles + tile) * 2 * channels,
        c,
        channels,
    )


@jit
def finish_kernel(
    partial,
    stats,
    rows,
    tiles,
    width,
    total,
    offset,
    ops,
    channels,
    eps,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    MANY: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Mean and 1/deviation from the moments of blocks (Chan, Golub and LeVeque)."""
    unit = _unit(tl.program_id(0), width, total, offset, ops, EDGES)
    c = tl.program_id(1) * C + tl.arange(0, C)
    at = partial + unit * tiles * 2 * channels + c[None, :]
    sums = tl.zeros((MANY, C), tl.float32)
    for first in range(0, tiles, MANY):
        tile = first + tl.arange(0, MANY)
        count = tl.minimum(rows - tile * BLOCK, BLOCK).to(tl.float32)
        sums += (
            tl.load(at + tile[:, None] * 2 * channels, mask=(tile < tiles)[:, None], other=0.0)
            * count[:, None]
        )
    mean = tl.sum(sums, 0) / rows
    squares = tl.zeros((MANY, C), tl.float32)
    for first in range(0, tiles, MANY):
        tile = first + tl.arange(0, MANY)
        mask = (tile < tiles)[:, None]
        count = tl.minimum(rows - tile * BLOCK, BLOCK).to(tl.float32)
        off = tl.load(at + tile[:, None] * 2 * channels, mask=mask, other=0.0) - mean[None, :]
        inner = tl.load(at + tile[:, None] * 2 * channels + channels, mask=mask, other=0.0)
        squares += tl.where(mask, inner + off * off * count[:, None], 0.0)
    out = stats + unit * 2 * channels + c
    tl.store(out, mean)
    tl.store(out + channels, 1 / tl.sqrt(tl.sum(squares, 0) / rows + eps))


@jit
def add_kernel(
    partial,
    sums,
    tiles,
    width,
    total,
    offset,
    ops,
    numbers,
    W: tl.constexpr,
    MANY: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Add the partial sums of blocks, `numbers` of them, W at a time."""
    unit = _unit(tl.program_id(0), width, total, offset, ops, EDGES)
    k = tl.program_id(1) * W + tl.arange(0, W)
    found = tl.zeros((MANY, W), tl.float32)
    for first in range(0, tiles, MANY):
        tile = first + tl.arange(0, MANY)
        found += tl.load(
            partial + (unit * tiles + tile)[:, None] * numbers + k[None, :],
            mask=(tile < tiles)[:, None],
            other=0.0,
        )
    tl.store(sums + unit * numbers + k, tl.sum(found, 0))


@jit
def combine_kernel(
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
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDED: tl.constexpr,
):
    """A node: all operations of all edges that lead to it, each with its weight."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = row[:, None] * C + c[None, :]
    total = tl.zeros((BLOCK, C), tl.float32)
    for source in range(node + 2):
        edge = run * 14 + _edge(source, node)
        weight = mixture + edge * 8
        for q in range(2, 6):
            op = tl.where(q < 4, q + 4, q)
            total += tl.load(weight + op) * _normal(
                p + (edge * 6 + q) * rows * C, stats + (edge * 6 + q) * 2 * C, at, mask, c, C
            )
        for kind in range(2):
            unit = (run * 5 + source) * 2 + kind
            total += tl.load(weight + 1 + kind) * _normal(
                pools + unit * rows * C, pool_stats + unit * 2 * C, at, mask, c, C
            )
    for source in range(2):
        weight = tl.load(mixture + (run * 14 + _edge(source, node)) * 8 + 3)
        if STRIDED:
            unit = run * 8 + 4 * source + node
            total += weight * _normal(
                skips + unit * rows * C, skip_stats + unit * 2 * C, at, mask, c, C
            )
        else:
            total += weight * tl.load(
                given + (run * 2 + source) * rows * C + at, mask=mask, other=0.0
            ).to(tl.float32)
    wide = (run * rows + row)[:, None] * 4 * C + c[None, :]
    for source in range(2, node + 2):
        weight = tl.load(mixture + (run * 14 + _edge(source, node)) * 8 + 3)
        total += weight * tl.load(out + wide + (source - 2) * C, mask=mask, other=0.0).to(
            tl.float32
        )
    tl.store(out + wide + node * C, total.to(out.dtype.element_ty), mask=mask)


@jit
def normalise_kernel(z, scale, stats, out, rows, channels, C: tl.constexpr, BLOCK: tl.constexpr):
    """scale (z - mean) / deviation of z (units, rows, channels)."""
    unit = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * C + tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = (unit * rows + row)[:, None] * channels + c[None, :]
    mean = tl.load(stats + unit * 2 * channels + c)[None, :]
    rstd = tl.load(stats + unit * 2 * channels + channels + c)[None, :]
    v = (tl.load(z + at, mask=mask, other=0.0).to(tl.float32) - mean) * (
        rstd * tl.load(scale + unit * channels + c)[None, :]
    )
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
