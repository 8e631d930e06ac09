"""The kernels of a DARTS cell's derivatives; layout and names are those of `bipareto.experiments.nas.kernels`.

With G the gradient of a node, a batch norm that enters it with weight w has, over N rows,

    gradient of its input = w / deviation * (G - mean(G) - normal * mean(G * normal)),    gradient of w = sum(G * normal),

`normal` being its output.  So every operation needs one sum besides that of G, and these sums are also the gradients of the mixture.
Each edge has eight of them, in the order of the operations; the first, where "none" stands, is the sum of G.
"""

from __future__ import annotations

from bipareto.experiments.nas.kernels import _edge, _ends, _ends_at, _layer, _layer_taps, _normal, _place, _product, _taps, _weights, _within, jit
from bipareto.triton_kernels import tl

__all__ = [
    "collect_kernel", "depthwise_weights_kernel", "edge_sums_kernel", "gather_kernel", "halves_kernel", "normal_backward_kernel",
    "normal_sums_kernel", "pointwise_kernel", "pointwise_weights_kernel", "pool_backward_kernel", "skip_backward_kernel",
]  # fmt: skip


@jit
def edge_sums_kernel(
    g, given, out, p, pools, skips, stats, pool_stats, skip_stats, partial, rows, edges, edge0, tiles,
    C: tl.constexpr, BLOCK: tl.constexpr, STRIDED: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
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
    left = partial + (unit * tiles + tile) * 8 * C + c
    tl.store(left, tl.sum(G, 0))
    for kind in range(2):
        pool = (run * 5 + source) * 2 + kind
        tl.store(left + (1 + kind) * C, tl.sum(G * _normal(pools + pool * rows * C, pool_stats + pool * 2 * C, at, mask, c, C), 0))
    if GIVEN:
        if STRIDED:
            skip = run * 8 + 4 * source + node
            passed = _normal(skips + skip * rows * C, skip_stats + skip * 2 * C, at, mask, c, C)
        else:
            passed = tl.load(given + (run * 2 + source) * rows * C + at, mask=mask, other=0.0).to(tl.float32)
    else:
        passed = tl.load(out + wide + (source - 2) * C, mask=mask, other=0.0).to(tl.float32)
    tl.store(left + 3 * C, tl.sum(G * passed, 0))
    for q in range(2, 6):
        op = tl.where(q < 4, q + 4, q)
        tl.store(left + op * C, tl.sum(G * _normal(p + (unit * 6 + q) * rows * C, stats + (unit * 6 + q) * 2 * C, at, mask, c, C), 0))


@jit
def _behind(g, halves, p, mixture, stats, sums, half_sums, run, edge, node, q, row, rows, c, C: tl.constexpr):
    """A block of the gradient of layer q's 1x1 convolution: back through its batch norm, from the node or, for q < 2, from the second half."""
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
        G = tl.load(g + (run * rows + row)[:, None] * 4 * C + node * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        level = tl.load(sums + unit * 8 * C + c)
        slope = tl.load(sums + (unit * 8 + op) * C + c)
        scale = rstd * tl.load(mixture + unit * 8 + op)
    return tl.where(mask, scale[None, :] * (G - level[None, :] / rows - normal * (slope / rows)[None, :]), 0.0)


@jit
def pointwise_kernel(
    g, halves, p, flat, mixture, stats, sums, half_sums, gd, rows, edges, edge0, weights,
    C: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, STRIDED: tl.constexpr,
):  # fmt: skip
    """The gradient of the depthwise outputs: of layers 2 to 5, or where FIRST of 0 and 1."""
    OPS: tl.constexpr = 2 if FIRST else 4
    unit = tl.program_id(1)
    run, q = (unit // (edges * OPS)).to(tl.int64), unit % OPS + (0 if FIRST else 2)
    source, node = _ends(edge0 + unit % (edges * OPS) // OPS)
    edge = _edge(source, node)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kind = gd.dtype.element_ty
    gp = _behind(g, halves, p, mixture, stats, sums, half_sums, run, edge, node, q, row, rows, c, C).to(kind)
    K, _, begin = _layer(q, C)
    w = flat + run * weights + _weights(source, node, STRIDED, C) + begin + K * K * C
    point = tl.load(w + c[:, None] * C + c[None, :]).to(kind)  # (outputs, inputs)
    at = ((run * 14 + edge) * 6 + q) * rows * C + row[:, None] * C + c[None, :]
    tl.store(gd + at, _product(gp, point, C).to(kind), mask=(row < rows)[:, None])


@jit
def halves_kernel(
    gd, p, taps, stats, halves, partial, rows, edges, edge0, tiles, C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr
):  # fmt: skip
    """The gradient of the normalised layers 0 and 1, behind ReLU and the depthwise convolution of layers 4 and 5, and its two sums."""
    tile, unit = tl.program_id(0), tl.program_id(1)
    run, q = (unit // (edges * 2)).to(tl.int64), unit % 2
    source, node = _ends(edge0 + unit % (edges * 2) // 2)
    unit = run * 14 + _edge(source, node)
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    _, y, x = _place(row, H)
    at = row[:, None] * C + c[None, :]
    group = unit * 6 + q + 4
    kernel = taps + group * 25 * C + c
    total = tl.zeros((BLOCK, C), tl.float32)
    (total,) = _layer_taps(q, (total,), (kernel,), gd + group * rows * C + at, y, x, inside, 0.0, H, C, C, "it", -1, False)
    normal = _normal(p + (unit * 6 + q) * rows * C, stats + (unit * 6 + q) * 2 * C, at, inside[:, None], c, C)
    v = tl.where(inside[:, None] & (normal > 0), total, 0.0).to(halves.dtype.element_ty)
    tl.store(halves + (unit * 2 + q) * rows * C + at, v, mask=inside[:, None])
    v = v.to(tl.float32)
    left = partial + ((unit * 2 + q) * tiles + tile) * 2 * C + c
    tl.store(left, tl.sum(v, 0))
    tl.store(left + C, tl.sum(v * normal, 0))


@jit
def pool_backward_kernel(g, pools, mixture, pool_stats, sums, passed, rows, edges, source0, C: tl.constexpr, BLOCK: tl.constexpr):
    """The gradients of a state's maximum, average and skip, in `passed`, from all nodes they are sent to; `edges` counts sources."""
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
        G = tl.load(g + (run * rows + row)[:, None] * 4 * C + node * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        weight, total = mixture + edge * 8, sums + edge * 8 * C + c
        to_skip += tl.load(weight + 3) * G
        G -= tl.load(total)[None, :] / rows
        to_high += tl.load(weight + 1) * (G - high * (tl.load(total + C) / rows)[None, :])
        to_mean += tl.load(weight + 2) * (G - mean * (tl.load(total + 2 * C) / rows)[None, :])
    to_high *= tl.load(pool_stats + unit * 2 * C + C + c)[None, :]
    to_mean *= tl.load(pool_stats + (unit + 1) * 2 * C + C + c)[None, :]
    kind = passed.dtype.element_ty
    first = passed + (run * edges + within) * 3 * rows * C + at
    tl.store(first, to_high.to(kind), mask=mask)
    tl.store(first + rows * C, to_mean.to(kind), mask=mask)
    tl.store(first + 2 * rows * C, to_skip.to(kind), mask=mask)


@jit
def skip_backward_kernel(g, skips, mixture, skip_stats, sums, out, rows, C: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of the strided skips, which are convolutions with a batch norm of their own."""
    unit = tl.program_id(1).to(tl.int64)
    run, node = unit // 8, unit % 4
    edge = run * 14 + _edge(unit % 8 // 4, node)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = unit * rows * C + row[:, None] * C + c[None, :]
    normal = _normal(skips, skip_stats + unit * 2 * C, at, mask, c, C)
    G = tl.load(g + (run * rows + row)[:, None] * 4 * C + node * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
    total = sums + edge * 8 * C + c
    scale = tl.load(mixture + edge * 8 + 3) * tl.load(skip_stats + unit * 2 * C + C + c)
    v = scale[None, :] * (G - tl.load(total)[None, :] / rows - normal * (tl.load(total + 3 * C) / rows)[None, :])
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)


@jit
def _gathered(
    gd, passed, chosen, taps, z, out, rows, edges, within, source, run, at, row, inside, y, x, c,
    C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """`gather_kernel` for the pixels (STRIDE y + PY, STRIDE x + PX), which lie at `at` of z and out; (y, x) is the place of `row`."""
    mask = inside[:, None]
    here = row[:, None] * C + c[None, :]
    total = tl.zeros((BLOCK, C), tl.float32)
    for node in range(tl.maximum(source - 1, 0), 4):
        for q in tl.static_range(4):
            group = (run * 14 + _edge(source, node)) * 6 + q
            kernel, behind = taps + group * 25 * C + c, gd + group * rows * C + here
            (total,) = _taps((total,), (kernel,), behind, y, x, inside, 0.0, H, C, C, "it", -1, STRIDE, PY, PX, 3 + q % 2 * 2, 1 + q // 2)
    total = tl.where(tl.load(z + at, mask=mask, other=0.0).to(tl.float32) > 0, total, 0.0)
    first = passed + (run * edges + within) * 3 * rows * C + here
    best = chosen + (run * 5 + source) * rows * C + here
    S: tl.constexpr = H * STRIDE
    for i in range((1 + PY) % STRIDE, 3, STRIDE):
        down = (1 - i + PY) // STRIDE
        # Pixels of z in the window of an output: 9, less at the border.
        to_y = (y + down) * STRIDE
        high = tl.minimum(to_y + 1, S - 1) - tl.maximum(to_y - 1, 0) + 1
        for j in tl.static_range((1 + PX) % STRIDE, 3, STRIDE):
            across = (1 - j + PX) // STRIDE
            to_x = (x + across) * STRIDE
            wide = tl.minimum(to_x + 1, S - 1) - tl.maximum(to_x - 1, 0) + 1
            share = 1 / tl.maximum(high * wide, 1).to(tl.float32)
            valid = (inside & _within(y + down, H) & _within(x + across, H))[:, None]
            near = (down * H + across) * C
            which = tl.load(best + near, mask=valid, other=-1.0).to(tl.int32)
            total += tl.where(which == i * 3 + j, tl.load(first + near, mask=valid, other=0.0).to(tl.float32), 0.0)
            total += tl.load(first + rows * C + near, mask=valid, other=0.0).to(tl.float32) * share[:, None]
    if STRIDE == 1:
        total += tl.load(first + 2 * rows * C, mask=mask, other=0.0).to(tl.float32)
    if not GIVEN:
        total += tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@jit
def gather_kernel(
    gd, passed, chosen, taps, z, out, rows, edges, source0, z_run, z_source,
    C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, ROW: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """The gradient of a state z from everything that leaves it; added to what `out` holds unless GIVEN.

    Rows are the nodes'.  With a stride of 2 a program works on one of the four pixels of z over each of them, since which taps meet a
    result depends on whether y and x are even.
    """
    unit, corner = tl.program_id(1), tl.program_id(2)
    run, within = (unit // edges).to(tl.int64), unit % edges
    source = source0 + within
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    image, y, x = _place(row, H)
    pixel = ((image * H + y) * STRIDE + corner // 2) * H * STRIDE + x * STRIDE + corner % 2
    at = run * z_run + within.to(tl.int64) * z_source + pixel[:, None] * ROW + c[None, :]
    if STRIDE == 1 or corner == 0:
        _gathered(gd, passed, chosen, taps, z, out, rows, edges, within, source, run, at, row, inside, y, x, c, C, BLOCK, H, STRIDE, 0, 0, GIVEN)
    elif corner == 1:
        _gathered(gd, passed, chosen, taps, z, out, rows, edges, within, source, run, at, row, inside, y, x, c, C, BLOCK, H, STRIDE, 0, 1, GIVEN)
    elif corner == 2:
        _gathered(gd, passed, chosen, taps, z, out, rows, edges, within, source, run, at, row, inside, y, x, c, C, BLOCK, H, STRIDE, 1, 0, GIVEN)
    else:
        _gathered(gd, passed, chosen, taps, z, out, rows, edges, within, source, run, at, row, inside, y, x, c, C, BLOCK, H, STRIDE, 1, 1, GIVEN)


@jit
def pointwise_weights_kernel(g, halves, p, d, mixture, stats, sums, half_sums, partial, rows, chunk, chunks, C: tl.constexpr, BLOCK: tl.constexpr):
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
        gp = _behind(g, halves, p, mixture, stats, sums, half_sums, run, edge, node, q, row, rows, c, C).to(kind)
        deep = tl.load(d + (unit.to(tl.int64) * rows + row)[:, None] * C + c[None, :], mask=(row < last)[:, None], other=0.0)
        total += tl.dot(tl.trans(gp), deep, input_precision="ieee")
    left = partial + (unit.to(tl.int64) * chunks + part) * (25 + C) * C + 25 * C
    tl.store(left + c[:, None] * C + c[None, :], total)


@jit
def _lines(
    here, x, inside, SECOND: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, ROW: tl.constexpr, K: tl.constexpr, DILATION: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    """What the K taps of a line of a kernel see of each of LINES lines of the state; outside, what ReLU makes zero of."""
    found = ()
    for k in tl.static_range(LINES * K):
        across = (k % K - K // 2) * DILATION
        mask = (inside & _within(x * STRIDE + across, S))[:, None]
        found += (tl.load(here + (k // K * S + across) * ROW, mask=mask, other=float("-inf") if SECOND else 0.0),)  # type: ignore[assignment]
    return found


@jit
def _tap_sums(
    at, behind, mean, rstd, left, start, last, c,
    C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, ROW: tl.constexpr, SECOND: tl.constexpr,
    K: tl.constexpr, DILATION: tl.constexpr,
):  # fmt: skip
    """For every tap, the sum of the gradient times what the tap sees, over the columns (image, x) from `start` to `last`.

    A program goes down BLOCK columns at a time.  It loads a line of the state once for every distance across, K times and not K^2, and
    multiplies it into all lines of the gradient that taps connect it to: a window of these moves along.
    """
    S: tl.constexpr = H * STRIDE
    HALF: tl.constexpr = K // 2
    LINES: tl.constexpr = STRIDE if DILATION == 1 else 1  # of the state, for one of the gradient
    TURNS: tl.constexpr = 2 if DILATION > STRIDE else 1  # where even lines meet no odd ones, one kind after the other
    BEFORE: tl.constexpr = HALF // LINES
    AHEAD: tl.constexpr = (HALF + LINES - 1) // LINES
    totals = ()
    for _ in tl.static_range(K * K):
        totals += (tl.zeros((BLOCK, C), tl.float32),)  # type: ignore[assignment]
    for turn in range(tl.cdiv(last - start, BLOCK) * TURNS):
        column = start + turn // TURNS * BLOCK + tl.arange(0, BLOCK)
        inside = column < last
        image, x, odd = (column.to(tl.uint32) // H).to(tl.int32), (column.to(tl.uint32) % H).to(tl.int32), turn % TURNS
        G = behind + ((image * H + odd) * H + x)[:, None] * C + c[None, :]
        here = at + ((image * S + odd) * S + x * STRIDE)[:, None] * ROW + c[None, :]
        count = (H - odd + TURNS - 1) // TURNS
        until = tl.where(inside, count, 0)
        window = ()
        for k in tl.static_range(BEFORE + AHEAD + 1):
            if k < BEFORE:
                window += (tl.zeros((BLOCK, C), tl.float32),)  # type: ignore[assignment]
            else:
                mask = (until > k - BEFORE)[:, None]
                window += (tl.load(G + (k - BEFORE) * (TURNS * H * C), mask=mask, other=0.0).to(tl.float32),)  # type: ignore[assignment]
        found = _lines(here, x, inside, SECOND, S, STRIDE, ROW, K, DILATION, LINES)
        for t in range(count):
            seen = ()
            for k in tl.static_range(LINES * K):
                v = found[k].to(tl.float32)
                seen += (tl.maximum(v - mean if SECOND else v, 0.0),)  # type: ignore[assignment]
            # Asked for here, the next line is there when its turn comes; after the last the last once more.
            found = _lines(here + tl.minimum(t + 1, count - 1) * (TURNS * STRIDE * S * ROW), x, inside, SECOND, S, STRIDE, ROW, K, DILATION, LINES)
            more = ()
            for i in tl.static_range(K):
                for j in tl.static_range(K):
                    more += (totals[i * K + j] + seen[(i - HALF) % LINES * K + j] * window[BEFORE - (i - HALF) // LINES],)  # type: ignore[assignment]
            totals = more
            moved = ()
            for k in tl.static_range(BEFORE + AHEAD):
                moved += (window[k + 1],)  # type: ignore[assignment]
            mask = (until > t + 1 + AHEAD)[:, None]
            moved += (tl.load(G + (t + 1 + AHEAD) * (TURNS * H * C), mask=mask, other=0.0).to(tl.float32),)  # type: ignore[assignment]
            window = moved
    for tap in tl.static_range(K * K):
        total = tl.sum(totals[tap], 0)
        tl.store(left + tap * C, total * rstd if SECOND else total)


@jit
def depthwise_weights_kernel(
    z, gd, p, stats, partial, rows, edges, edge0, source0, z_run, z_source, chunk, chunks,
    C: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, ROW: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Partial sums, over as many columns as have `chunk` rows, of the gradient of a layer's depthwise weights."""
    OPS: tl.constexpr = 2 if SECOND else 4
    part, unit = tl.program_id(0), tl.program_id(1)
    run, q = (unit // (edges * OPS)).to(tl.int64), unit % OPS + (4 if SECOND else 0)
    source, node = _ends(edge0 + unit % (edges * OPS) // OPS)
    group = (run * 14 + _edge(source, node)) * 6 + q
    c = tl.arange(0, C)
    if SECOND:
        at = p + (group - 4) * rows * C
        mean, rstd = tl.load(stats + (group - 4) * 2 * C + c)[None, :], tl.load(stats + (group - 4) * 2 * C + C + c)
    else:
        at, mean, rstd = z + run * z_run + (source - source0).to(tl.int64) * z_source, 0.0, 1.0
    left = partial + (group * chunks + part) * (25 + C) * C + c
    start, last = part * chunk // H, tl.minimum((part + 1) * chunk, rows) // H
    behind = gd + group * rows * C
    if q % 4 == 0:
        _tap_sums(at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 3, 1)
    elif q % 4 == 1:
        _tap_sums(at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 5, 1)
    elif q % 4 == 2:
        _tap_sums(at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 3, 2)
    else:
        _tap_sums(at, behind, mean, rstd, left, start, last, c, C, BLOCK, H, STRIDE, ROW, SECOND, 5, 2)


@jit
def collect_kernel(partial, out, weights, chunks, C: tl.constexpr, MANY: tl.constexpr, STRIDED: tl.constexpr):
    """Add the chunks of one tap, or of one row of the 1x1 weights, and put it where the weight lies."""
    unit, slot = tl.program_id(0), tl.program_id(1)
    K, _, begin = _layer(unit % 6, C)
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


@jit
def normal_sums_kernel(g, z, stats, partial, rows, tiles, channels, C: tl.constexpr, BLOCK: tl.constexpr):
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
def normal_backward_kernel(g, z, scale, stats, sums, out, rows, channels, C: tl.constexpr, BLOCK: tl.constexpr):
    """Back through a batch norm of (units, rows, channels)."""
    unit = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * C + tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    at = (unit * rows + row)[:, None] * channels + c[None, :]
    normal = _normal(z, stats + unit * 2 * channels, at, mask, c, channels)
    G = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    level, slope = tl.load(sums + unit * 2 * channels + c), tl.load(sums + unit * 2 * channels + channels + c)
    factor = tl.load(scale + unit * channels + c) * tl.load(stats + unit * 2 * channels + channels + c)
    v = factor[None, :] * (G - level[None, :] / rows - normal * (slope / rows)[None, :])
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
