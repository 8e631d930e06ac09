"""The kernels of a cell of NAS-Bench-201; layout and names as in `nas.bench_cell`."""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.conv_kernels import _sent_back
from bipareto_experiments.nas.kernel_layout import _normal
from bipareto_experiments.nas.taps import _place, _within, jit


@jit
def _in_space(edge):
    """The number of an edge in the space's order, by target: the third and the fourth change
    places.
    """
    return tl.where(edge == 2, 3, tl.where(edge == 3, 2, edge))


@jit
def _mixture(mixture, run, edge):
    """Where an edge's weights lie."""
    return mixture + (run * 6 + _in_space(edge)) * 5


@jit
def _lines_near(y, H: tl.constexpr):
    """Lines of the image in a window of three around one; at least one."""
    return tl.maximum(tl.minimum(y + 1, H - 1) - tl.maximum(y - 1, 0) + 1, 1).to(tl.float32)


@jit
def _average(at, row, inside, c, C: tl.constexpr, H: tl.constexpr):
    """The mean over the 3x3 window of a state."""
    _, y, x = _place(row, H)
    here = at + row[:, None] * C + c[None, :]
    found = tl.zeros((row.shape[0], C), tl.float32)
    for tap in tl.static_range(9):
        i, j = tap // 3 - 1, tap % 3 - 1
        mask = inside & _within(y + i, H) & _within(x + j, H)
        found += tl.load(here + (i * H + j) * C, mask=mask[:, None], other=0.0).to(tl.float32)
    return found * (1 / (_lines_near(y, H) * _lines_near(x, H)))[:, None]


@jit
def parted_kernel(flat, out, C: tl.constexpr, BACK: tl.constexpr):
    """One tap of an edge's weights, out (runs, edges by source, taps, outputs, inputs), or BACK
    (..., inputs, outputs); the 1x1's the last.
    """
    unit = tl.program_id(0)
    tap, edge, run = unit % 10, unit // 10 % 6, unit // 60
    a, b = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    at = flat + (run * 6 + _in_space(edge)) * (10 * C * C)
    place = b * C + a if BACK else a * C + b
    v = tl.load(at + tl.where(tap == 9, place, C * C + place * 9 + tap))
    tl.store(out + unit * C * C + a * C + b, v.to(out.dtype.element_ty))


@jit
def joined_kernel(partial, out, chunks, C: tl.constexpr, LINES: tl.constexpr, MANY: tl.constexpr):
    """The gradient of one tap's weights, LINES of its inputs, from partial sums (runs, edges, taps,
    chunks, inputs, outputs): into its place.
    """
    unit = tl.program_id(0)
    tap, edge, run = unit % 10, unit // 10 % 6, unit // 60
    k = tl.program_id(1) * (LINES * C) + tl.arange(0, LINES * C)
    found = tl.zeros((MANY, LINES * C), tl.float32)
    for first in range(0, chunks, MANY):
        chunk = first + tl.arange(0, MANY)
        at = partial + (unit.to(tl.int64) * chunks + chunk)[:, None] * (C * C) + k[None, :]
        found += tl.load(at, mask=(chunk < chunks)[:, None], other=0.0)
    place = k % C * C + k // C
    left = out + (run * 6 + _in_space(edge)) * (10 * C * C)
    tl.store(left + tl.where(tap == 9, place, C * C + place * 9 + tap), tl.sum(found, 0))


@jit
def _carried(at, convs, stats, mixture, run, edge, row, rows, c, C: tl.constexpr, H: tl.constexpr):
    """What an edge carries, from its state at `at`."""
    inside = row < rows
    mask = inside[:, None]
    out = row[:, None] * C + c[None, :]
    weight, unit = _mixture(mixture, run, edge), (run * 6 + edge) * 2
    found = tl.load(weight + 1) * tl.load(at + out, mask=mask, other=0.0).to(tl.float32)
    found += tl.load(weight + 2) * _normal(
        convs + unit * rows * C, stats + unit * 2 * C, out, mask, c, C
    )
    found += tl.load(weight + 3) * _normal(
        convs + (unit + 1) * rows * C, stats + (unit + 1) * 2 * C, out, mask, c, C
    )
    return found + tl.load(weight + 4) * _average(at, row, inside, c, C, H)


@jit
def node_kernel(
    given,
    nodes,
    convs,
    stats,
    mixture,
    out,
    rows,
    node,
    given_run,
    out_run,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
):
    """The node after `node` others; `nodes` holds the first two."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = _carried(given + run * given_run, convs, stats, mixture, run, node, row, rows, c, C, H)
    for source in range(1, node + 1):
        edge = source * (7 - source) // 2 + node - source
        found += _carried(
            nodes + (run * 2 + source - 1) * rows * C,
            convs,
            stats,
            mixture,
            run,
            edge,
            row,
            rows,
            c,
            C,
            H,
        )
    at = out + run * out_run + row[:, None] * C + c[None, :]
    tl.store(at, found.to(out.dtype.element_ty), mask=(row < rows)[:, None])


@jit
def sums_kernel(
    g,
    z,
    convs,
    stats,
    partial,
    rows,
    edges,
    offset,
    source0,
    tiles,
    z_run,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
):
    """Sums of each edge's gradient times each of its operations; in the place of "none" that of the
    gradient.
    """
    tile, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    mask = inside[:, None]
    out = row[:, None] * C + c[None, :]
    state = tl.load(z + run * z_run + out, mask=mask, other=0.0).to(tl.float32)
    mean = _average(z + run * z_run, row, inside, c, C, H)
    for e in range(edges):
        edge = run * 6 + offset + e
        G = tl.load(g + (run * 3 + source0 + e) * rows * C + out, mask=mask, other=0.0).to(
            tl.float32
        )
        left = partial + (edge * tiles + tile) * 5 * C + c
        tl.store(left, tl.sum(G, 0))
        tl.store(left + C, tl.sum(G * state, 0))
        for op in tl.static_range(2):
            unit = edge * 2 + op
            tl.store(
                left + (2 + op) * C,
                tl.sum(
                    G * _normal(convs + unit * rows * C, stats + unit * 2 * C, out, mask, c, C), 0
                ),
            )
        tl.store(left + 4 * C, tl.sum(G * mean, 0))


@jit
def behind_kernel(
    g,
    convs,
    stats,
    mixture,
    sums,
    to_convs,
    rows,
    edges,
    offset,
    source0,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of an edge's convolutions, back through their batch norms."""
    unit = tl.program_id(1)
    run, e = (unit // edges).to(tl.int64), unit % edges
    edge = run * 6 + offset + e
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    out = row[:, None] * C + c[None, :]
    total, weight = sums + edge * 5 * C + c, _mixture(mixture, run, offset + e)
    G = (
        tl.load(g + (run * 3 + source0 + e) * rows * C + out, mask=mask, other=0.0).to(tl.float32)
        - (tl.load(total) / rows)[None, :]
    )
    for op in tl.static_range(2):
        unit = edge * 2 + op
        scale = tl.load(weight + 2 + op) * tl.load(stats + unit * 2 * C + C + c)
        slope = tl.load(total + (2 + op) * C) / rows
        normal = _normal(convs + unit * rows * C, stats + unit * 2 * C, out, mask, c, C)
        v = scale[None, :] * (G - normal * slope[None, :])
        tl.store(to_convs + unit * rows * C + out, v.to(to_convs.dtype.element_ty), mask=mask)


@jit
def to_state_kernel(
    g,
    to_convs,
    w,
    z,
    mixture,
    out,
    rows,
    edges,
    offset,
    source0,
    z_run,
    out_run,
    C: tl.constexpr,
    IN: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a state: by the convolutions, the skips and the averages of all its edges."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    at = row[:, None] * C + c[None, :]
    found = _sent_back(
        to_convs,
        w,
        run,
        row,
        rows,
        inside,
        edges,
        offset,
        6,
        c,
        C,
        IN,
        C // IN,
        C,
        BLOCK,
        H,
        1,
        10,
        PRECISION,
    )
    found = tl.where(tl.load(z + run * z_run + at, mask=inside[:, None], other=0.0) > 0, found, 0.0)
    _, y, x = _place(row, H)
    passed = tl.zeros(
        (BLOCK, C), tl.float32
    )  # apart from the products, whose place among threads differs
    for e in range(edges):
        here = g + (run * 3 + source0 + e) * rows * C + at
        weight = _mixture(mixture, run, offset + e)
        passed += tl.load(weight + 1) * tl.load(here, mask=inside[:, None], other=0.0).to(
            tl.float32
        )
        mean = tl.load(weight + 4)
        for i in tl.static_range(3):
            high, share = inside & _within(y + i - 1, H), mean / _lines_near(y + i - 1, H)
            for j in tl.static_range(3):
                v = tl.load(
                    here + ((i - 1) * H + j - 1) * C,
                    mask=(high & _within(x + j - 1, H))[:, None],
                    other=0.0,
                )
                passed += v.to(tl.float32) * (share / _lines_near(x + j - 1, H))[:, None]
    tl.store(
        out + run * out_run + at, (found + passed).to(out.dtype.element_ty), mask=inside[:, None]
    )
