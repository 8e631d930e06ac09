"""The kernels of a DARTS cell's derivatives; layout and names are those of
`bipareto_experiments.nas.kernels`.

With G the gradient of a node, a batch norm that enters it with weight w has, over N rows,

    gradient of its input = w / deviation * (G - mean(G) - normal * mean(G * normal)),
    gradient of w = sum(G * normal),

`normal` being its output.  So every operation needs one sum besides that of G, and these sums are
also the gradients of the mixture. Each edge has eight of them, in the order of the operations; the
first, where "none" stands, is the sum of G.
"""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.kernel_layout import _edge, _ends, _layer, _normal, _product, _weights
from bipareto_experiments.nas.taps import (
    _joined,
    _layer_taps,
    _nothing,
    _place,
    _rows,
    _strips,
    jit,
)


@jit
def edge_sums_kernel(
    g,
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
    tiles,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDED: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """The eight sums of an edge over a block; GIVEN where the edges leave the cell's inputs."""
    tile, unit = tl.program_id(0), tl.program_id(1)
    run = (unit // edges).to(tl.int64)
    source, node = _ends(edge0 + unit % edges)
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = row[:, None] * C + c[None, :]
    wide = (run * rows + row)[:, None] * 4 * C + c[None, :]
    G = tl.load(g + wide + node * C, mask=mask, other=0.0).to(tl.float32)
    unit = run * 14 + _edge(source, node)
    if GIVEN:
        if STRIDED:
            skip = run * 8 + 4 * source + node
            passed = _normal(skips + skip * rows * C, skip_stats + skip * 2 * C, at, mask, c, C)
        else:
            passed = tl.load(given + (run * 2 + source) * rows * C + at, mask=mask, other=0.0).to(
                tl.float32
            )
    else:
        passed = tl.load(out + wide + (source - 2) * C, mask=mask, other=0.0).to(tl.float32)
    # All sums are taken in one go, so that nothing waits for one of them before it is asked for.
    products = (G,)
    for k in tl.static_range(2):
        pool = (run * 5 + source) * 2 + k
        products += (
            G * _normal(pools + pool * rows * C, pool_stats + pool * 2 * C, at, mask, c, C),
        )
    products += (G * passed,)
    for k in tl.static_range(4):  # layers 4, 5, 2 and 3, as the operations come
        layer = unit * 6 + (k + 4 if k < 2 else k)
        products += (G * _normal(p + layer * rows * C, stats + layer * 2 * C, at, mask, c, C),)
    found = tl.sum(tl.reshape(_joined(products, 8 * BLOCK, C), (8, BLOCK, C)), 1)
    tl.store(
        partial + ((unit * tiles + tile) * 8 + tl.arange(0, 8))[:, None] * C + c[None, :], found
    )


@jit
def _behind(
    g, halves, p, mixture, stats, sums, half_sums, run, edge, node, q, row, rows, c, C: tl.constexpr
):
    """A block of the gradient of layer q's 1x1 convolution: back through its batch norm, from the
    node or, for q < 2, from the second half.
    """
    mask = (row < rows)[:, None]
    at = row[:, None] * C + c[None, :]
    unit = run * 14 + edge
    rstd = tl.load(stats + (unit * 6 + q) * 2 * C + C + c)
    normal = _normal(p + (unit * 6 + q) * rows * C, stats + (unit * 6 + q) * 2 * C, at, mask, c, C)
    if q < 2:
        G = tl.load(halves + (unit * 2 + q) * rows * C + at, mask=mask, other=0.0).to(tl.float32)
        level = tl.load(half_sums + (unit * 2 + q) * 2 * C + c)
        slope = tl.load(half_sums + (unit * 2 + q) * 2 * C + C + c)
        scale = rstd
    else:
        op = tl.where(q < 4, q + 4, q)
        G = tl.load(
            g + (run * rows + row)[:, None] * 4 * C + node * C + c[None, :], mask=mask, other=0.0
        ).to(tl.float32)
        level = tl.load(sums + unit * 8 * C + c)
        slope = tl.load(sums + (unit * 8 + op) * C + c)
        scale = rstd * tl.load(mixture + unit * 8 + op)
    return tl.where(
        mask, scale[None, :] * (G - level[None, :] / rows - normal * (slope / rows)[None, :]), 0.0
    )


@jit
def pointwise_kernel(
    g,
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
    weights,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    FIRST: tl.constexpr,
    STRIDED: tl.constexpr,
):
    """The gradient of the depthwise outputs: of layers 2 to 5, or where FIRST of 0 and 1."""
    OPS: tl.constexpr = 2 if FIRST else 4
    unit = tl.program_id(1)
    run, q = (unit // (edges * OPS)).to(tl.int64), unit % OPS + (0 if FIRST else 2)
    source, node = _ends(edge0 + unit % (edges * OPS) // OPS)
    edge = _edge(source, node)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kind = gd.dtype.element_ty
    gp = _behind(
        g, halves, p, mixture, stats, sums, half_sums, run, edge, node, q, row, rows, c, C
    ).to(kind)
    K, begin = _layer(q, C)
    w = flat + run * weights + _weights(source, node, STRIDED, C) + begin + K * K * C
    point = tl.load(w + c[:, None] * C + c[None, :]).to(kind)  # (outputs, inputs)
    at = ((run * 14 + edge) * 6 + q) * rows * C + row[:, None] * C + c[None, :]
    tl.store(gd + at, _product(gp, point, C).to(kind), mask=(row < rows)[:, None])


@jit
def halves_kernel(
    gd,
    p,
    taps,
    stats,
    halves,
    partial,
    rows,
    edges,
    edge0,
    tiles,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    TALL: tl.constexpr,
):
    """The gradient of the normalised layers 0 and 1, behind ReLU and the depthwise convolution of
    layers 4 and 5, and its two sums.
    """
    tile, unit = tl.program_id(0), tl.program_id(1)
    run, q = (unit // (edges * 2)).to(tl.int64), unit % 2
    source, node = _ends(edge0 + unit % (edges * 2) // 2)
    unit = run * 14 + _edge(source, node)
    c = tl.arange(0, C)
    top, inside = _strips(tile, rows, BLOCK, H, TALL)
    _, y, x = _place(top, H)
    group = unit * 6 + q + 4
    kernel = taps + group * 25 * C + c
    here = gd + group * rows * C + top[:, None] * C + c[None, :]
    total = _joined(
        _layer_taps(
            q,
            _nothing(BLOCK, C, TALL),
            kernel,
            here,
            y,
            x,
            inside,
            0.0,
            H,
            C,
            C,
            "it",
            -1,
            1,
            False,
        ),
        BLOCK,
        C,
    )
    row = _rows(tile, BLOCK, H, TALL)
    at, mask = row[:, None] * C + c[None, :], (row < rows)[:, None]
    normal = _normal(p + (unit * 6 + q) * rows * C, stats + (unit * 6 + q) * 2 * C, at, mask, c, C)
    v = tl.where(mask & (normal > 0), total, 0.0)
    tl.store(halves + (unit * 2 + q) * rows * C + at, v.to(halves.dtype.element_ty), mask=mask)
    left = partial + ((unit * 2 + q) * tiles + tile) * 2 * C + c
    tl.store(left, tl.sum(v, 0))
    tl.store(left + C, tl.sum(v * normal, 0))


@jit
def pool_backward_kernel(
    g,
    pools,
    mixture,
    pool_stats,
    sums,
    passed,
    rows,
    edges,
    source0,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """The gradients of a state's maximum, average and skip, in `passed`, from all nodes they are
    sent to; `edges` counts sources.

    That of the average is left as each pixel in its window gets it.
    """
    unit = tl.program_id(1)
    run, within = (unit // edges).to(tl.int64), unit % edges
    source = source0 + within
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = row[:, None] * C + c[None, :]
    unit = (run * 5 + source) * 2
    high = _normal(pools + unit * rows * C, pool_stats + unit * 2 * C, at, mask, c, C)
    mean = _normal(pools + (unit + 1) * rows * C, pool_stats + (unit + 1) * 2 * C, at, mask, c, C)
    to_high = tl.zeros((BLOCK, C), tl.float32)
    to_mean = tl.zeros((BLOCK, C), tl.float32)
    to_skip = tl.zeros((BLOCK, C), tl.float32)
    for node in range(tl.maximum(source - 1, 0), 4):
        edge = run * 14 + _edge(source, node)
        G = tl.load(
            g + (run * rows + row)[:, None] * 4 * C + node * C + c[None, :], mask=mask, other=0.0
        ).to(tl.float32)
        weight, total = mixture + edge * 8, sums + edge * 8 * C + c
        to_skip += tl.load(weight + 3) * G
        G -= tl.load(total)[None, :] / rows
        to_high += tl.load(weight + 1) * (G - high * (tl.load(total + C) / rows)[None, :])
        to_mean += tl.load(weight + 2) * (G - mean * (tl.load(total + 2 * C) / rows)[None, :])
    to_high *= tl.load(pool_stats + unit * 2 * C + C + c)[None, :]
    to_mean *= tl.load(pool_stats + (unit + 1) * 2 * C + C + c)[None, :]
    # Pixels in a window: 9, less at the border.
    _, y, x = _place(row, H)
    S: tl.constexpr = H * STRIDE
    high = tl.minimum(y * STRIDE + 1, S - 1) - tl.maximum(y * STRIDE - 1, 0) + 1
    wide = tl.minimum(x * STRIDE + 1, S - 1) - tl.maximum(x * STRIDE - 1, 0) + 1
    to_mean /= (high * wide).to(tl.float32)[:, None]
    kind = passed.dtype.element_ty
    first = passed + (run * edges + within) * 3 * rows * C + at
    tl.store(first, to_high.to(kind), mask=mask)
    tl.store(first + rows * C, to_mean.to(kind), mask=mask)
    tl.store(first + 2 * rows * C, to_skip.to(kind), mask=mask)


@jit
def skip_backward_kernel(
    g, skips, mixture, skip_stats, sums, out, rows, C: tl.constexpr, BLOCK: tl.constexpr
):
    """The gradient of the strided skips, which are convolutions with a batch norm of their own."""
    unit = tl.program_id(1).to(tl.int64)
    run, node = unit // 8, unit % 4
    edge = run * 14 + _edge(unit % 8 // 4, node)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = unit * rows * C + row[:, None] * C + c[None, :]
    normal = _normal(skips, skip_stats + unit * 2 * C, at, mask, c, C)
    G = tl.load(
        g + (run * rows + row)[:, None] * 4 * C + node * C + c[None, :], mask=mask, other=0.0
    ).to(tl.float32)
    total = sums + edge * 8 * C + c
    scale = tl.load(mixture + edge * 8 + 3) * tl.load(skip_stats + unit * 2 * C + C + c)
    v = scale[None, :] * (
        G - tl.load(total)[None, :] / rows - normal * (tl.load(total + 3 * C) / rows)[None, :]
    )
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)


@jit
def normal_sums_kernel(
    g, z, stats, partial, rows, tiles, channels, C: tl.constexpr, BLOCK: tl.constexpr
):
    """Sums of g, and of g times the normalised z, over a block of (units, rows, channels)."""
    tile, unit = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * C + tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = (unit * rows + row)[:, None] * channels + c[None, :]
    normal = _normal(z, stats + unit * 2 * channels, at, mask, c, channels)
    G = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    left = partial + (unit * tiles + tile) * 2 * channels + c
    tl.store(left, tl.sum(G, 0))
    tl.store(left + channels, tl.sum(G * normal, 0))


@jit
def normal_backward_kernel(
    g, z, scale, stats, sums, out, rows, channels, C: tl.constexpr, BLOCK: tl.constexpr
):
    """Back through a batch norm of (units, rows, channels)."""
    unit = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * C + tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = (unit * rows + row)[:, None] * channels + c[None, :]
    normal = _normal(z, stats + unit * 2 * channels, at, mask, c, channels)
    G = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    level, slope = (
        tl.load(sums + unit * 2 * channels + c),
        tl.load(sums + unit * 2 * channels + channels + c),
    )
    factor = tl.load(scale + unit * channels + c) * tl.load(
        stats + unit * 2 * channels + channels + c
    )
    v = factor[None, :] * (G - level[None, :] / rows - normal * (slope / rows)[None, :])
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
