"""The block learner's loss in Triton: normalise, rectify, pool, linear head, cross entropy, each
task with learners of its own.

The product W patches that comes before is `torch.bmm`, on patches that stay the same while x does.
What follows is tiny and written plainly would be some forty kernels forward and backward; here it
is two, and a third where the value is asked for. A channel's statistics need that channel alone, so
a program takes a few channels of one task, keeps them in registers, and adds its part of the
logits; the parts are added in a fixed order by whoever reads them.  First derivatives only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.run.graph.triton import LIBRARY, jit, tl, triton
from bipareto_experiments.fewshot.epsilon import EPSILON

__all__ = ["judged", "patches"]

#: Programs that share the channels of a task, and the most pooled cells that one of them holds
#: (four inputs each).
_PARTS, _CELLS = 16, 4096
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


# Plain operators without derivatives of their own, as in `kernels`.
LIBRARY.define("patches(Tensor z) -> Tensor")
LIBRARY.define("patches_backward(Tensor d, int n, int H, int W) -> Tensor")
LIBRARY.define(
    "block_logits(Tensor z, Tensor scale, Tensor shift, Tensor head, int H, int W) -> Tensor"
)
LIBRARY.define("block_loss(Tensor parts, Tensor head_shift) -> Tensor")
LIBRARY.define(
    "block_gradient(Tensor d, Tensor z, Tensor scale, Tensor shift, Tensor head, Tensor "
    "head_shift, Tensor parts, int H, int W)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(LIBRARY, "patches", "CompositeExplicitAutograd")
def _cut(z: Tensor) -> Tensor:
    z = z.permute(0, 1, 3, 4, 2).contiguous()
    tasks, n, H, W, C = z.shape
    out = torch.empty(tasks, C * 9, n * H * W, device=z.device, dtype=z.dtype)
    size = out[0].numel()
    _patches_kernel[(triton.cdiv(size, _BLOCK), tasks)](z, out, n, H, W, size, C, _BLOCK)
    return out


@torch.library.register_fake("bipareto::patches", lib=LIBRARY)
def _(z: Tensor) -> Tensor:
    tasks, n, C, H, W = z.shape
    return z.new_empty(tasks, C * 9, n * H * W)


@torch.library.impl(LIBRARY, "patches_backward", "CompositeExplicitAutograd")
def _joined(d: Tensor, n: int, H: int, W: int) -> Tensor:
    d = d.contiguous()
    tasks, C = d.shape[0], d.shape[1] // 9
    out = torch.empty(tasks, n, H, W, C, device=d.device, dtype=d.dtype)
    size = out[0].numel()
    _patches_backward_kernel[(triton.cdiv(size, _BLOCK), tasks)](d, out, n, H, W, size, C, _BLOCK)
    return out.permute(0, 1, 4, 2, 3)


@torch.library.register_fake("bipareto::patches_backward", lib=LIBRARY)
def _(d: Tensor, n: int, H: int, W: int) -> Tensor:
    return d.new_empty(d.shape[0], n, H, W, d.shape[1] // 9).permute(0, 1, 4, 2, 3)


def _tile(z: Tensor, H: int, W: int) -> dict[str, Any]:
    """How the images (N), cells of an image (Q) and channels of a task lie in one program; N and Q
    rounded up to powers of two.
    """
    C, images = z.shape[1], z.shape[2] // (H * W)
    N, Q = triton.next_power_of_2(images), triton.next_power_of_2(H * W // 4)
    channels = max(1, min(C // _PARTS, _CELLS // (N * Q)))
    return {
        "C": C,
        "CHANNELS": channels,
        "N": N,
        "Q": Q,
        "num_warps": 8 if channels * N * Q >= 2048 else 4,
    }


@torch.library.impl(LIBRARY, "block_logits", "CompositeExplicitAutograd")
def _logits(z: Tensor, scale: Tensor, shift: Tensor, head: Tensor, H: int, W: int) -> Tensor:
    z, scale, shift, head = (value.contiguous() for value in (z, scale, shift, head))
    tile, tasks, rows, ways = _tile(z, H, W), z.shape[0], z.shape[2], head.shape[-1]
    parts = torch.empty(
        tasks,
        tile["C"] // tile["CHANNELS"],
        ways,
        rows // (H * W),
        device=z.device,
        dtype=torch.float32,
    )
    _logits_kernel[parts.shape[:2]](
        z, scale, shift, head, parts, rows // (H * W), H, W, float(rows), EPSILON, WAYS=ways, **tile
    )
    return parts


@torch.library.register_fake("bipareto::block_logits", lib=LIBRARY)
def _(z: Tensor, scale: Tensor, shift: Tensor, head: Tensor, H: int, W: int) -> Tensor:
    tile = _tile(z, H, W)
    return z.new_empty(
        z.shape[0], tile["C"] // tile["CHANNELS"], head.shape[-1], z.shape[2] // (H * W)
    )


@torch.library.impl(LIBRARY, "block_loss", "CompositeExplicitAutograd")
def _loss(parts: Tensor, head_shift: Tensor) -> Tensor:
    tasks, count, ways, n = parts.shape
    loss = torch.empty(tasks, device=parts.device, dtype=torch.float32)
    K, N = triton.next_power_of_2(ways), triton.next_power_of_2(n)
    _loss_kernel[(tasks,)](parts, head_shift.contiguous(), loss, n, ways, count, K, N)
    return loss


@torch.library.register_fake("bipareto::block_loss", lib=LIBRARY)
def _(parts: Tensor, head_shift: Tensor) -> Tensor:
    return parts.new_empty(parts.shape[0])


@torch.library.impl(LIBRARY, "block_gradient", "CompositeExplicitAutograd")
def _gradient(
    d: Tensor,
    z: Tensor,
    scale: Tensor,
    shift: Tensor,
    head: Tensor,
    head_shift: Tensor,
    parts: Tensor,
    H: int,
    W: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = [value.contiguous() for value in (d, z, scale, shift, head, head_shift, parts)]
    found = [torch.empty_like(value) for value in given[1:6]]
    ways, rows = head.shape[-1], z.shape[2]
    shape = (rows // (H * W), H, W, float(rows), EPSILON)
    _gradient_kernel[parts.shape[:2]](
        *given, *found, *shape, WAYS=ways, K=triton.next_power_of_2(ways), **_tile(z, H, W)
    )
    to_z, to_scale, to_shift, to_head, to_head_shift = found
    return to_z, to_scale, to_shift, to_head, to_head_shift


@torch.library.register_fake("bipareto::block_gradient", lib=LIBRARY)
def _(
    d: Tensor,
    z: Tensor,
    scale: Tensor,
    shift: Tensor,
    head: Tensor,
    head_shift: Tensor,
    parts: Tensor,
    H: int,
    W: int,
) -> tuple[Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in (z, scale, shift, head, head_shift))


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return torch.ops.bipareto.patches(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        _, n, _, H, W = ctx.shape
        return _Joined.apply(d, n, H, W)


class _Joined(torch.autograd.Function):
    """The adjoint of `_Patches`, and the other way round: both are linear."""

    @staticmethod
    def forward(d: Tensor, n: int, H: int, W: int) -> Tensor:
        return torch.ops.bipareto.patches_backward(d, n, H, W)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, z: Tensor) -> tuple[Tensor, None, None, None]:
        return _Patches.apply(z), None, None, None


class _Judged(torch.autograd.Function):
    @staticmethod
    def forward(
        z: Tensor, scale: Tensor, shift: Tensor, head: Tensor, head_shift: Tensor, H: int, W: int
    ) -> tuple[Tensor, Tensor]:
        parts = torch.ops.bipareto.block_logits(z, scale, shift, head, H, W)
        return torch.ops.bipareto.block_loss(parts, head_shift), parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.size = inputs[5:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:5], output[1])

    @staticmethod
    def backward(ctx: Any, d: Tensor, _: Tensor) -> tuple[Any, ...]:
        return (*_JudgedGradient.apply(d, *ctx.saved_tensors, *ctx.size), None, None)


class _JudgedGradient(torch.autograd.Function):
    """What `_Judged` goes back by, so that a second derivative is refused instead of being taken
    for zero.
    """

    @staticmethod
    def forward(d: Tensor, *given: Any) -> tuple[Tensor, ...]:
        return torch.ops.bipareto.block_gradient(d, *given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise InvalidInput(
            "the fused block learner has first derivatives only; for a method with Hessians use "
            "Network(twice=True)"
        )


def patches(features: Tensor) -> Tensor:
    """The 3 x 3 neighbourhoods of all pixels, zeros beyond the edge: (tasks, n, C, H, W) to (tasks,
    C * 9, n * H * W).
    """
    return _Patches.apply(features)


def judged(
    z: Tensor, scale: Tensor, shift: Tensor, head: Tensor, head_shift: Tensor, size: tuple[int, int]
) -> Tensor:
    """Cross entropy per task, (tasks,), of head(max-pool(ReLU(scale * normalised z + shift)));
    images stand class by class.

    Args:
        z: (tasks, C, n * H * W) float32, C a power of two.
        scale, shift: (tasks, C).
        head, head_shift: (tasks, C * H/2 * W/2, ways) and (tasks, ways).
        size: H, W, both even.
    """
    return _Judged.apply(z, scale, shift, head, head_shift, *size)[0]
