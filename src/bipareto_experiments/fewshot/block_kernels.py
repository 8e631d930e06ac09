"""The kernels of the block learner."""

from __future__ import annotations

from bipareto.run.graph.triton import jit, tl

_BLOCK = 512


@jit
def _patches_kernel(z, out, n, H, W, size, C: tl.constexpr, BLOCK: tl.constexpr):
    """out[task, (c, s), (image, pixel)] = the neighbour s (0 to 8) of that pixel, 0 beyond the
    edge; z has its channels last.
    """
    task = tl.program_id(1).to(tl.int64)  # many tasks at once have more patches than 32 bits count
    z += task * n * H * W * C
    out += task * size
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, rest = at % (H * W), at // (H * W)
    image, rest = rest % n, rest // n
    s, c = rest % 9, rest // 9
    row, column = pixel // W + s // 3 - 1, pixel % W + s % 3 - 1
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W) & (at < size)
    v = tl.load(z + ((image * H + row) * W + column) * C + c, mask=inside, other=0.0)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=at < size)


@jit
def _patches_backward_kernel(d, out, n, H, W, size, C: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over the nine patches that a pixel is part of, in a fixed order."""
    task = tl.program_id(1).to(tl.int64)
    d += task * size * 9
    out += task * size
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, rest = at % (H * W), at // (H * W)
    image, c = rest % n, rest // n
    total = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(9):
        row, column = pixel // W - (s // 3 - 1), pixel % W - (s % 3 - 1)
        inside = (row >= 0) & (row < H) & (column >= 0) & (column < W) & (at < size)
        total += tl.load(
            d + ((c * 9 + s) * n + image) * H * W + row * W + column, mask=inside, other=0.0
        ).to(tl.float32)
    tl.store(out + (image * H * W + pixel) * C + c, total.to(out.dtype.element_ty), mask=at < size)


@jit
def _corners(c, task, n, H, W, C: tl.constexpr, N: tl.constexpr, Q: tl.constexpr):
    """Where in z (tasks, C, n H W) the upper left inputs of the pooled cells (channel, image, cell
    of it) lie, and which are real.
    """
    i, q = tl.arange(0, N), tl.arange(0, Q)
    inner = 2 * (q // (W // 2)) * W + 2 * (q % (W // 2))
    at = ((task * C + c)[:, None, None] * n + i[None, :, None]) * H * W + inner[None, None, :]
    return at, (i < n)[None, :, None] & (q < (H // 2) * (W // 2))[None, None, :] & (c >= 0)[
        :, None, None
    ]


@jit
def _spread(v, mean, mask):
    return tl.where(mask, (v - mean) * (v - mean), 0.0)


@jit
def _over_cells(v):
    """Summed over images and cells, for every channel."""
    return tl.sum(tl.sum(v, 2), 1)[:, None, None]


@jit
def _normalised(at, mask, W, count, eps):
    """The four inputs of every cell with mean 0 and variance 1 over the task's images and pixels,
    and 1/deviation.
    """
    z0 = tl.load(at, mask=mask, other=0.0)
    z1 = tl.load(at + 1, mask=mask, other=0.0)
    z2 = tl.load(at + W, mask=mask, other=0.0)
    z3 = tl.load(at + W + 1, mask=mask, other=0.0)
    mean = _over_cells(z0 + z1 + z2 + z3) / count
    variance = (
        _over_cells(
            _spread(z0, mean, mask)
            + _spread(z1, mean, mask)
            + _spread(z2, mean, mask)
            + _spread(z3, mean, mask)
        )
        / count
    )
    rstd = 1 / tl.sqrt(variance + eps)
    return (z0 - mean) * rstd, (z1 - mean) * rstd, (z2 - mean) * rstd, (z3 - mean) * rstd, rstd


@jit
def _pooled(u0, u1, u2, u3, a, b, mask):
    """The cells behind ReLU and pooling, which input each took (0 to 3, the first of equal ones, 4
    where ReLU took none), and that input.

    Comparisons are written so that a NaN stays one: in a normalised channel one makes all.
    """
    best, taken = a * u0 + b, u0
    which = tl.zeros_like(best)
    v = a * u1 + b
    which = tl.where(v > best, 1.0, which)
    taken = tl.where(v > best, u1, taken)
    best = tl.where(v > best, v, best)
    v = a * u2 + b
    which = tl.where(v > best, 2.0, which)
    taken = tl.where(v > best, u2, taken)
    best = tl.where(v > best, v, best)
    v = a * u3 + b
    which = tl.where(v > best, 3.0, which)
    taken = tl.where(v > best, u3, taken)
    best = tl.where(v > best, v, best)
    which = tl.where((best > 0) & mask, which, 4.0)
    return tl.where((best <= 0) | (mask == 0), 0.0, best), which, taken


@jit
def _logits_kernel(
    z,
    scale,
    shift,
    head,
    parts,
    n,
    H,
    W,
    count,
    eps,
    C: tl.constexpr,
    WAYS: tl.constexpr,
    CHANNELS: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
):
    """parts[task, part, k, image] = sum over the part's channels and their cells of pooled *
    head[..., k].
    """
    task, part = tl.program_id(0), tl.program_id(1)
    c = part * CHANNELS + tl.arange(0, CHANNELS)
    at, mask = _corners(c, task, n, H, W, C, N, Q)
    u0, u1, u2, u3, _ = _normalised(z + at, mask, W, count, eps)
    a, b = (
        tl.load(scale + task * C + c)[:, None, None],
        tl.load(shift + task * C + c)[:, None, None],
    )
    pooled, _, _ = _pooled(u0, u1, u2, u3, a, b, mask)
    cells = (H // 2) * (W // 2)
    i, q = tl.arange(0, N), tl.arange(0, Q)
    for k in tl.static_range(WAYS):
        place = ((task * C + c)[:, None] * cells + q[None, :]) * WAYS + k
        weight = tl.load(head + place, mask=(q < cells)[None, :] & (c >= 0)[:, None], other=0.0)
        found = tl.sum(tl.sum(pooled * weight[:, None, :], 2), 0)
        tl.store(parts + ((task * (C // CHANNELS) + part) * WAYS + k) * n + i, found, mask=i < n)


@jit
def _softmax(
    parts,
    head_shift,
    task,
    n,
    WAYS: tl.constexpr,
    PARTS: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """Of logits (class, image), images standing class by class: softmax, 1 at the right class, and
    -log softmax there, (image,).
    """
    k, i = tl.arange(0, K), tl.arange(0, N)
    real = (k < WAYS)[:, None] & (i < n)[None, :]
    logits = (
        tl.zeros((K, N), tl.float32)
        + tl.load(head_shift + task * WAYS + k, mask=k < WAYS, other=-float("inf"))[:, None]
    )
    for part in tl.static_range(PARTS):
        logits += tl.load(
            parts + ((task * PARTS + part) * WAYS + k[:, None]) * n + i[None, :],
            mask=real,
            other=0.0,
        )
    logits -= tl.max(logits, 0)[None, :]
    e = tl.exp(logits)
    total = tl.sum(e, 0)
    right = (k[:, None] == i[None, :] // (n // WAYS)) & real
    loss = tl.where(i < n, tl.log(total) - tl.sum(tl.where(right, logits, 0.0), 0), 0.0)
    return tl.where(real, e / total[None, :], 0.0), tl.where(right, 1.0, 0.0), loss


@jit
def _loss_kernel(
    parts,
    head_shift,
    loss,
    n,
    WAYS: tl.constexpr,
    PARTS: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    task = tl.program_id(0)
    _, _, each = _softmax(parts, head_shift, task, n, WAYS, PARTS, K, N)
    tl.store(loss + task, tl.sum(each, 0) / n)


@jit
def _gradient_kernel(
    d,
    z,
    scale,
    shift,
    head,
    head_shift,
    parts,
    dz,
    dscale,
    dshift,
    dhead,
    dhead_shift,
    n,
    H,
    W,
    count,
    eps,
    C: tl.constexpr,
    WAYS: tl.constexpr,
    CHANNELS: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
):
    """All derivatives of the loss times d (tasks,); those of the head's shift by the first part
    alone.
    """
    task, part = tl.program_id(0), tl.program_id(1)
    softmax, right, _ = _softmax(parts, head_shift, task, n, WAYS, C // CHANNELS, K, N)
    dlogits = (softmax - right) * (tl.load(d + task) / n)
    c = part * CHANNELS + tl.arange(0, CHANNELS)
    at, mask = _corners(c, task, n, H, W, C, N, Q)
    u0, u1, u2, u3, rstd = _normalised(z + at, mask, W, count, eps)
    a, b = (
        tl.load(scale + task * C + c)[:, None, None],
        tl.load(shift + task * C + c)[:, None, None],
    )
    pooled, which, taken = _pooled(u0, u1, u2, u3, a, b, mask)
    cells = (H // 2) * (W // 2)
    k_, q = tl.arange(0, K), tl.arange(0, Q)
    inside = (q < cells)[None, :] & (c >= 0)[:, None]
    g = tl.zeros_like(pooled)
    for k in tl.static_range(WAYS):
        own = tl.sum(tl.where(k_[:, None] == k, dlogits, 0.0), 0)[None, :, None]
        place = ((task * C + c)[:, None] * cells + q[None, :]) * WAYS + k
        weight = tl.load(head + place, mask=inside, other=0.0)
        tl.store(dhead + place, tl.sum(pooled * own, 1), mask=inside)
        g += own * weight[:, None, :]
    if part == 0:
        tl.store(dhead_shift + task * WAYS + k_, tl.sum(dlogits, 1), mask=k_ < WAYS)
    g = tl.where(which < 4, g, 0.0)
    level, slope = _over_cells(g), _over_cells(g * taken)
    tl.store(dscale + task * C + c, tl.sum(tl.sum(slope, 2), 1))
    tl.store(dshift + task * C + c, tl.sum(tl.sum(level, 2), 1))
    a, level, slope = a * rstd, level / count, slope / count
    tl.store(dz + at, a * (tl.where(which == 0, g, 0.0) - level - u0 * slope), mask=mask)
    tl.store(dz + at + 1, a * (tl.where(which == 1, g, 0.0) - level - u1 * slope), mask=mask)
    tl.store(dz + at + W, a * (tl.where(which == 2, g, 0.0) - level - u2 * slope), mask=mask)
    tl.store(dz + at + W + 1, a * (tl.where(which == 3, g, 0.0) - level - u3 * slope), mask=mask)
