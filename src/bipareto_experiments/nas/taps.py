"""Depthwise convolutions in Triton, of rows (image, y, x) times C channels.

A program has a block of strips, TALL pixels one below the other, TALL a divisor of the side.
Everything that it keeps is a tuple of TALL tensors, one of all strips' first pixels, one of all
second ones and so on.  What a tap sees of a line is then loaded, rectified and made float32 once
for all pixels of a strip that see it: of 5x5 taps on strips of eight, twelve lines for forty.
"""

from __future__ import annotations

from typing import Any

from bipareto.run.graph.triton import tl, triton

#: Arguments that take many values, none of which deserves a compilation of its own.
PLAIN = [
    "rows",
    "edges",
    "edge0",
    "source0",
    "node",
    "tiles",
    "width",
    "total",
    "offset",
    "ops",
    "chunk",
    "chunks",
]


def jit(kernel: Any) -> Any:
    """Compile for every C and type, not for every size."""
    if triton is None:
        return kernel
    code = kernel.__code__
    return triton.jit(
        kernel,
        do_not_specialize=[name for name in code.co_varnames[: code.co_argcount] if name in PLAIN],
    )


def _constant(function: Any) -> Any:
    """Something to be found out while a kernel is compiled."""
    return function if triton is None else triton.constexpr_function(function)


@jit
def _place(row, side: tl.constexpr):
    """Image, y and x of a row; unsigned, so that dividing by a power of two is a shift."""
    place = row.to(tl.uint32)
    pixel = place % (side * side)
    return (
        (place // (side * side)).to(tl.int32),
        (pixel // side).to(tl.int32),
        (pixel % side).to(tl.int32),
    )


@jit
def _within(place, side: tl.constexpr):
    """Whether a coordinate lies in the image; one comparison, since a negative one is large as an
    unsigned number.
    """
    return place.to(tl.uint32) < side


@jit
def _rows(tile, BLOCK: tl.constexpr, H: tl.constexpr, TALL: tl.constexpr):
    """The rows of a block made of strips, TALL pixels one below the other: the first pixel of every
    strip, then the second of every one.
    """
    WIDE: tl.constexpr = BLOCK // TALL
    place = tl.arange(0, BLOCK)
    strip = (tile * WIDE + place % WIDE).to(tl.uint32)
    return (strip // H * (TALL * H) + strip % H).to(tl.int32) + place // WIDE * H


@jit
def _strips(tile, rows, BLOCK: tl.constexpr, H: tl.constexpr, TALL: tl.constexpr):
    """The rows of the first pixels of a block's strips, and whether there are such."""
    WIDE: tl.constexpr = BLOCK // TALL
    strip = (tile * WIDE + tl.arange(0, WIDE)).to(tl.uint32)
    row = (strip // H * (TALL * H) + strip % H).to(tl.int32)
    return row, row < rows


@jit
def _nothing(BLOCK: tl.constexpr, C: tl.constexpr, TALL: tl.constexpr):
    """Totals of a block's strips to begin with."""
    totals = ()
    for _ in tl.static_range(TALL):
        totals += (tl.zeros((BLOCK // TALL, C), tl.float32),)
    return totals


@jit
def _joined(parts, BLOCK: tl.constexpr, C: tl.constexpr):
    """One block of its strips' first, second, ... pixels."""
    if len(parts) == 8:
        even = tl.join(tl.join(parts[0], parts[4]), tl.join(parts[2], parts[6]))
        odd = tl.join(tl.join(parts[1], parts[5]), tl.join(parts[3], parts[7]))
        joined = tl.join(even, odd).permute(2, 3, 4, 0, 1)
    elif len(parts) == 4:
        joined = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3])).permute(
            2, 3, 0, 1
        )
    elif len(parts) == 2:
        joined = tl.join(parts[0], parts[1]).permute(2, 0, 1)
    else:
        joined = parts[0]
    return tl.reshape(joined, (BLOCK, C))


@_constant
def _tap_between(
    line: int, k: int, down: int, sign: int, stride: int, py: int, K: int, dilation: int
) -> int:
    """The line of a kernel by which the k-th total of a strip sees a line of the picture, or -1;
    see `_taps`.
    """
    off = sign * ((line - k * down) * stride - py)
    return off // dilation + K // 2 if off % dilation == 0 and abs(off) <= K // 2 * dilation else -1


@_constant
def _seen_by_any(
    line: int, tall: int, down: int, sign: int, stride: int, py: int, K: int, dilation: int
) -> bool:
    """Whether a strip has a total that sees this line."""
    offs = [sign * ((line - k * down) * stride - py) for k in range(tall)]
    return any(off % dilation == 0 and abs(off) <= K // 2 * dilation for off in offs)


@jit
def _taps(
    totals,
    kernel,
    here,
    y,
    x,
    inside,
    mean,
    SIDE: tl.constexpr,
    ROW: tl.constexpr,
    C: tl.constexpr,
    SEEN: tl.constexpr,
    SIGN: tl.constexpr,
    DOWN: tl.constexpr,
    STRIDE: tl.constexpr,
    PY: tl.constexpr,
    PX: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
):
    """Add a depthwise convolution to the totals of strips.

    Totals of a strip lie DOWN lines of the picture apart, and most lines are seen by several of
    them: each is loaded once for all.

    Args:
        totals: those of the strips' first pixels, second pixels and so on.
        kernel: where the weights lie, C to a tap.
        here: where the pixels (y, x) lie, which the middle taps of the strips' first totals see,
            `SIDE` to a line and `ROW` numbers apart; beyond the border everything is zero.
        SEEN: what is seen of a number v: "it", "relu", or "off", relu(v - mean).
        SIGN: 1 forward; -1 back, from a result to what it was made of.  Then, with a STRIDE of 2,
            the totals are those of the pixels (2 y + PY, 2 x + PX): of the taps every other one, or
            none, meets a result.
    """
    # The taps of a line are a loop, the lines are written out: all of them would be too much code
    # for the instruction cache.
    STEP: tl.constexpr = STRIDE if DILATION == 1 else 1
    TALL: tl.constexpr = len(totals)
    REACH: tl.constexpr = K // 2 * DILATION
    if STEP == 2 or PY + PX == 0:
        for j in range((K // 2 + PX) % STEP, K, STEP):
            across = (SIGN * (j - K // 2) * DILATION + PX) // STRIDE
            wide = inside & _within(x + across, SIDE)
            column = here + across * ROW
            weights = ()
            for i in tl.static_range(K):
                weights += (tl.load(kernel + (i * K + j) * C)[None, :],)
            for line in tl.static_range(-REACH, (TALL - 1) * DOWN + REACH + 1):
                if _seen_by_any(line, TALL, DOWN, SIGN, STRIDE, PY, K, DILATION):
                    # A strip lies in its image, only what is above or below may lie outside.
                    mask = (
                        wide if line >= 0 and line < TALL * DOWN else wide & _within(y + line, SIDE)
                    )[:, None]
                    at = column + line * (SIDE * ROW)
                    if (
                        SEEN == "off"
                    ):  # minus infinity, so that ReLU makes zero of what lies outside
                        v = tl.maximum(
                            tl.load(at, mask=mask, other=float("-inf")).to(tl.float32) - mean, 0.0
                        )
                    else:
                        v = tl.load(at, mask=mask, other=0.0).to(tl.float32)
                        if SEEN == "relu":
                            v = tl.maximum(v, 0.0)
                    more = ()
                    for k in tl.static_range(TALL):
                        if _tap_between(line, k, DOWN, SIGN, STRIDE, PY, K, DILATION) >= 0:
                            more += (
                                totals[k]
                                + v
                                * weights[
                                    _tap_between(line, k, DOWN, SIGN, STRIDE, PY, K, DILATION)
                                ],
                            )
                        else:
                            more += (totals[k],)
                    totals = more
    return totals


@jit
def _layer_taps(
    q,
    totals,
    kernel,
    here,
    y,
    x,
    inside,
    mean,
    SIDE: tl.constexpr,
    ROW: tl.constexpr,
    C: tl.constexpr,
    SEEN: tl.constexpr,
    SIGN: tl.constexpr,
    DOWN: tl.constexpr,
    DILATED: tl.constexpr,
):
    """`_taps` with the kernel size of layer q, and its dilation where layers may have one."""
    if DILATED and q == 3:
        totals = _taps(
            totals, kernel, here, y, x, inside, mean, SIDE, ROW, C, SEEN, SIGN, DOWN, 1, 0, 0, 5, 2
        )
    elif DILATED and q == 2:
        totals = _taps(
            totals, kernel, here, y, x, inside, mean, SIDE, ROW, C, SEEN, SIGN, DOWN, 1, 0, 0, 3, 2
        )
    elif q % 2 == 1:
        totals = _taps(
            totals, kernel, here, y, x, inside, mean, SIDE, ROW, C, SEEN, SIGN, DOWN, 1, 0, 0, 5, 1
        )
    else:
        totals = _taps(
            totals, kernel, here, y, x, inside, mean, SIDE, ROW, C, SEEN, SIGN, DOWN, 1, 0, 0, 3, 1
        )
    return totals
