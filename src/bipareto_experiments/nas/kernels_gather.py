"""The kernel that gathers the gradient of a cell's states from its edges."""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.kernel_layout import _edge
from bipareto_experiments.nas.taps import (
    _nothing,
    _place,
    _seen_by_any,
    _strips,
    _tap_between,
    _taps,
    _within,
    jit,
)


@jit
def _unpooled(
    totals,
    first,
    best,
    rows,
    y,
    x,
    inside,
    C: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    PY: tl.constexpr,
    PX: tl.constexpr,
):
    """Add what `pool_backward_kernel` left at `first`, of windows of 3x3: maxima, to the pixel that
    was chosen, and averages.
    """
    for j in range((1 + PX) % STRIDE, 3, STRIDE):
        across = (1 - j + PX) // STRIDE
        wide = inside & _within(x + across, H)
        for line in tl.static_range(-1, len(totals) + 1):
            if _seen_by_any(line, len(totals), 1, -1, STRIDE, PY, 3, 1):
                valid = (wide if line >= 0 and line < len(totals) else wide & _within(y + line, H))[
                    :, None
                ]
                near = (line * H + across) * C
                which = tl.load(best + near, mask=valid, other=-1.0).to(tl.float32)
                high = tl.load(first + near, mask=valid, other=0.0).to(tl.float32)
                mean = tl.load(first + rows * C + near, mask=valid, other=0.0).to(tl.float32)
                more = ()
                for k in tl.static_range(len(totals)):
                    if _tap_between(line, k, 1, -1, STRIDE, PY, 3, 1) >= 0:
                        chose = which == 3.0 * _tap_between(line, k, 1, -1, STRIDE, PY, 3, 1) + j
                        more += (totals[k] + mean + tl.where(chose, high, 0.0),)
                    else:
                        more += (totals[k],)
                totals = more
    return totals


@jit
def _gathered(
    gd,
    passed,
    chosen,
    taps,
    z,
    out,
    rows,
    edges,
    within,
    source,
    run,
    tile,
    c,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    TALL: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
    PY: tl.constexpr,
    PX: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """`gather_kernel` for the pixels (STRIDE y + PY, STRIDE x + PX) of z and out, with (y, x) the
    place of a row.
    """
    S: tl.constexpr = H * STRIDE
    top, inside = _strips(tile, rows, BLOCK, H, TALL)
    image, y, x = _place(top, H)
    totals = _nothing(BLOCK, C, TALL)
    for node in range(tl.maximum(source - 1, 0), 4):
        for q in tl.static_range(4):
            group = (run * 14 + _edge(source, node)) * 6 + q
            kernel, behind = (
                taps + group * 25 * C + c,
                gd + group * rows * C + top[:, None] * C + c[None, :],
            )
            totals = _taps(
                totals,
                kernel,
                behind,
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
                STRIDE,
                PY,
                PX,
                3 + q % 2 * 2,
                1 + q // 2,
            )
    at = ((image * S + y * STRIDE + PY) * S + x * STRIDE + PX)[:, None] * ROW + c[None, :]
    mask = inside[:, None]
    rectified = ()
    for k in tl.static_range(TALL):
        positive = tl.load(z + at + k * (STRIDE * S * ROW), mask=mask, other=0.0).to(tl.float32) > 0
        rectified += (tl.where(positive, totals[k], 0.0),)
    totals = rectified
    here = top[:, None] * C + c[None, :]
    first = passed + (run * edges + within) * 3 * rows * C + here
    best = chosen + (run * 5 + source) * rows * C + here
    totals = _unpooled(totals, first, best, rows, y, x, inside, C, H, STRIDE, PY, PX)
    for k in tl.static_range(TALL):
        total = totals[k]
        if STRIDE == 1:
            total += tl.load(first + 2 * rows * C + k * H * C, mask=mask, other=0.0).to(tl.float32)
        left = out + at + k * (STRIDE * S * ROW)
        if not GIVEN:
            total += tl.load(left, mask=mask, other=0.0).to(tl.float32)
        tl.store(left, total.to(out.dtype.element_ty), mask=mask)


@jit
def gather_kernel(
    gd,
    passed,
    chosen,
    taps,
    z,
    out,
    rows,
    edges,
    source0,
    z_run,
    z_source,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    TALL: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """The gradient of a state z from everything that leaves it; added to what `out` holds unless
    GIVEN.

    Rows are the nodes'.  With a stride of 2 a program works on one of the four pixels of z over
    each of them, since which taps meet a result depends on whether y and x are even.
    """
    tile, unit, corner = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    run, within = (unit // edges).to(tl.int64), unit % edges
    source = source0 + within
    c = tl.arange(0, C)
    z += run * z_run + within.to(tl.int64) * z_source
    out += run * z_run + within.to(tl.int64) * z_source
    if STRIDE == 1 or corner == 0:
        _gathered(
            gd,
            passed,
            chosen,
            taps,
            z,
            out,
            rows,
            edges,
            within,
            source,
            run,
            tile,
            c,
            C,
            BLOCK,
            H,
            TALL,
            STRIDE,
            ROW,
            0,
            0,
            GIVEN,
        )
    elif corner == 1:
        _gathered(
            gd,
            passed,
            chosen,
            taps,
            z,
            out,
            rows,
            edges,
            within,
            source,
            run,
            tile,
            c,
            C,
            BLOCK,
            H,
            TALL,
            STRIDE,
            ROW,
            0,
            1,
            GIVEN,
        )
    elif corner == 2:
        _gathered(
            gd,
            passed,
            chosen,
            taps,
            z,
            out,
            rows,
            edges,
            within,
            source,
            run,
            tile,
            c,
            C,
            BLOCK,
            H,
            TALL,
            STRIDE,
            ROW,
            1,
            0,
            GIVEN,
        )
    else:
        _gathered(
            gd,
            passed,
            chosen,
            taps,
            z,
            out,
            rows,
            edges,
            within,
            source,
            run,
            tile,
            c,
            C,
            BLOCK,
            H,
            TALL,
            STRIDE,
            ROW,
            1,
            1,
            GIVEN,
        )
