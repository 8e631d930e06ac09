"""Batch normalisation, ReLU and 2x2 max-pooling as one operation, in Triton, forward and backward.

Written plainly these are a dozen passes over the largest tensors of the network.  Here the forward
pass reads its input twice (statistics, then the rest) and writes a quarter of it; the backward pass
keeps nothing but that input, reads it twice and writes one gradient.  Everything is laid out with
the channels last.  First derivatives only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.run.graph.triton import LIBRARY, jit, tl, triton
from bipareto_experiments.fewshot.epsilon import EPSILON

#: Programs per task that sum in parallel; their partial sums are added in a fixed order.
_CHUNKS = 128
_BLOCK = 32


@jit
def _corner(cell, task, images, H, W):
    """The row (pixel) of the upper left of the four that a pooled cell looks at."""
    w = W // 2
    per_image = (H // 2) * w
    image = cell // per_image
    rest = cell % per_image
    return ((task * images + image) * H + 2 * (rest // w)) * W + 2 * (rest % w)


@jit
def _affine(sums, scale, shift, task, count, eps, c, C: tl.constexpr):
    """mean, 1/deviation, and a, b with a z + b the normalised, scaled and shifted z."""
    mean = tl.load(sums + task * 2 * C + c) / count
    variance = tl.maximum(tl.load(sums + (task * 2 + 1) * C + c) / count - mean * mean, 0.0)
    rstd = 1 / tl.sqrt(variance + eps)
    a = tl.load(scale + c) * rstd
    return mean, rstd, a, tl.load(shift + c) - mean * a


@jit
def _sum_kernel(z, partial, rows, chunk_rows, chunks, C: tl.constexpr, BLOCK: tl.constexpr):
    task, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, C)
    total = tl.zeros((BLOCK, C), tl.float32)
    squares = tl.zeros((BLOCK, C), tl.float32)
    last = tl.minimum((chunk + 1) * chunk_rows, rows)
    for first in range(chunk * chunk_rows, last, BLOCK):
        row = first + tl.arange(0, BLOCK)
        v = tl.load(
            z + (task * rows + row)[:, None] * C + c[None, :], mask=(row < last)[:, None], other=0.0
        ).to(tl.float32)
        total += v
        squares += v * v
    out = partial + (task * chunks + chunk) * 2 * C + c
    tl.store(out, tl.sum(total, 0))
    tl.store(out + C, tl.sum(squares, 0))


@jit
def _pool_kernel(
    z, sums, scale, shift, out, images, H, W, count, eps, C: tl.constexpr, BLOCK: tl.constexpr
):
    task = tl.program_id(0)
    cells = images * (H // 2) * (W // 2)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, C)
    _, _, a, b = _affine(sums, scale, shift, task, count, eps, c, C)
    mask = (cell < cells)[:, None]
    at = z + _corner(cell, task, images, H, W)[:, None] * C + c[None, :]
    best = a[None, :] * tl.load(at, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    best = tl.maximum(
        best, a[None, :] * tl.load(at + C, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    )
    best = tl.maximum(
        best, a[None, :] * tl.load(at + W * C, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    )
    best = tl.maximum(
        best, a[None, :] * tl.load(at + W * C + C, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    )
    best = tl.where(best <= 0, 0.0, best)  # a NaN stays one: in a normalised channel one makes all
    tl.store(
        out + (task * cells + cell)[:, None] * C + c[None, :],
        best.to(out.dtype.element_ty),
        mask=mask,
    )


@jit
def _chosen(at, mask, a, b, W, C: tl.constexpr):
    """The four inputs of a cell, and which of them the pooling took: 0 to 3, the first of equal
    ones, 4 where ReLU took none.
    """
    z0 = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    z1 = tl.load(at + C, mask=mask, other=0.0).to(tl.float32)
    z2 = tl.load(at + W * C, mask=mask, other=0.0).to(tl.float32)
    z3 = tl.load(at + W * C + C, mask=mask, other=0.0).to(tl.float32)
    best = a * z0 + b
    which = tl.zeros_like(best)
    v = a * z1 + b
    which = tl.where(v > best, 1.0, which)
    best = tl.maximum(best, v)
    v = a * z2 + b
    which = tl.where(v > best, 2.0, which)
    best = tl.maximum(best, v)
    v = a * z3 + b
    which = tl.where(v > best, 3.0, which)
    best = tl.maximum(best, v)
    return z0, z1, z2, z3, tl.where(best > 0, which, 4.0)


@jit
def _sum_backward_kernel(
    d,
    z,
    sums,
    scale,
    shift,
    partial,
    images,
    H,
    W,
    count,
    eps,
    chunk_cells,
    chunks,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Partial sums of the gradient behind ReLU and pooling, and of its product with the normalised
    z.
    """
    task, chunk = tl.program_id(0), tl.program_id(1)
    cells = images * (H // 2) * (W // 2)
    c = tl.arange(0, C)
    mean, rstd, a, b = _affine(sums, scale, shift, task, count, eps, c, C)
    total = tl.zeros((BLOCK, C), tl.float32)
    product = tl.zeros((BLOCK, C), tl.float32)
    last = tl.minimum((chunk + 1) * chunk_cells, cells)
    for first in range(chunk * chunk_cells, last, BLOCK):
        cell = first + tl.arange(0, BLOCK)
        mask = (cell < last)[:, None]
        at = z + _corner(cell, task, images, H, W)[:, None] * C + c[None, :]
        z0, z1, z2, z3, which = _chosen(at, mask, a[None, :], b[None, :], W, C)
        g = tl.load(d + (task * cells + cell)[:, None] * C + c[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
        g = tl.where(which < 4, g, 0.0)
        taken = tl.where(which == 0, z0, tl.where(which == 1, z1, tl.where(which == 2, z2, z3)))
        total += g
        product += g * (taken - mean[None, :]) * rstd[None, :]
    out = partial + (task * chunks + chunk) * 2 * C + c
    tl.store(out, tl.sum(total, 0))
    tl.store(out + C, tl.sum(product, 0))


@jit
def _backward_kernel(
    d,
    z,
    sums,
    scale,
    shift,
    totals,
    out,
    images,
    H,
    W,
    count,
    eps,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """a (gradient - its mean - normalised z times the mean of their product), at all four inputs of
    a cell.
    """
    task = tl.program_id(0)
    cells = images * (H // 2) * (W // 2)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, C)
    mean, rstd, a, b = _affine(sums, scale, shift, task, count, eps, c, C)
    level = tl.load(totals + task * 2 * C + c) / count
    slope = tl.load(totals + (task * 2 + 1) * C + c) / count * rstd
    mask = (cell < cells)[:, None]
    corner = _corner(cell, task, images, H, W)[:, None] * C + c[None, :]
    z0, z1, z2, z3, which = _chosen(z + corner, mask, a[None, :], b[None, :], W, C)
    g = tl.load(d + (task * cells + cell)[:, None] * C + c[None, :], mask=mask, other=0.0).to(
        tl.float32
    )
    a, mean, level, slope = a[None, :], mean[None, :], level[None, :], slope[None, :]
    kind = out.dtype.element_ty
    tl.store(
        out + corner,
        (a * (tl.where(which == 0, g, 0.0) - level - (z0 - mean) * slope)).to(kind),
        mask=mask,
    )
    tl.store(
        out + corner + C,
        (a * (tl.where(which == 1, g, 0.0) - level - (z1 - mean) * slope)).to(kind),
        mask=mask,
    )
    tl.store(
        out + corner + W * C,
        (a * (tl.where(which == 2, g, 0.0) - level - (z2 - mean) * slope)).to(kind),
        mask=mask,
    )
    tl.store(
        out + corner + W * C + C,
        (a * (tl.where(which == 3, g, 0.0) - level - (z3 - mean) * slope)).to(kind),
        mask=mask,
    )


def _chunks(rows: int) -> tuple[int, int]:
    """Rows per chunk, a multiple of the block, and how many chunks that makes."""
    size = triton.cdiv(triton.cdiv(rows, _CHUNKS), _BLOCK) * _BLOCK
    return size, triton.cdiv(rows, size)


# Plain operators without derivatives of their own: `_Pooled` below has those, in the form that
# `torch.func` takes.
LIBRARY.define("pooled(Tensor z, Tensor scale, Tensor shift, int tasks) -> (Tensor, Tensor)")
LIBRARY.define(
    "pooled_backward(Tensor d, Tensor z, Tensor sums, Tensor scale, Tensor shift, int tasks) -> "
    "(Tensor, Tensor)"
)


@torch.library.impl(LIBRARY, "pooled", "CompositeExplicitAutograd")
def _forward(z: Tensor, scale: Tensor, shift: Tensor, tasks: int) -> tuple[Tensor, Tensor]:
    z = z.contiguous(memory_format=torch.channels_last)
    N, C, H, W = z.shape
    rows = N // tasks * H * W
    size, chunks = _chunks(rows)
    partial = torch.empty(tasks, chunks, 2, C, device=z.device, dtype=torch.float32)
    _sum_kernel[(tasks, chunks)](z, partial, rows, size, chunks, C, _BLOCK)
    sums = partial.sum(1)
    out = torch.empty(
        N, C, H // 2, W // 2, device=z.device, dtype=z.dtype, memory_format=torch.channels_last
    )
    cells = rows // 4
    grid = (tasks, triton.cdiv(cells, _BLOCK))
    _pool_kernel[grid](
        z, sums, scale, shift, out, N // tasks, H, W, float(rows), EPSILON, C, _BLOCK
    )
    return out, sums


@torch.library.register_fake("bipareto::pooled", lib=LIBRARY)
def _(z: Tensor, scale: Tensor, shift: Tensor, tasks: int) -> tuple[Tensor, Tensor]:
    N, C, H, W = z.shape
    out = torch.empty(
        N, C, H // 2, W // 2, device=z.device, dtype=z.dtype, memory_format=torch.channels_last
    )
    return out, torch.empty(tasks, 2, C, device=z.device, dtype=torch.float32)


@torch.library.impl(LIBRARY, "pooled_backward", "CompositeExplicitAutograd")
def _backward(
    d: Tensor, z: Tensor, sums: Tensor, scale: Tensor, shift: Tensor, tasks: int
) -> tuple[Tensor, Tensor]:
    d, z = (value.contiguous(memory_format=torch.channels_last) for value in (d, z))
    N, C, H, W = z.shape
    rows = N // tasks * H * W
    cells = rows // 4
    size, chunks = _chunks(cells)
    partial = torch.empty(tasks, chunks, 2, C, device=z.device, dtype=torch.float32)
    shape = (N // tasks, H, W, float(rows), EPSILON)
    _sum_backward_kernel[(tasks, chunks)](
        d, z, sums, scale, shift, partial, *shape, size, chunks, C, _BLOCK
    )
    totals = partial.sum(1)
    out = torch.empty_like(z)
    _backward_kernel[(tasks, triton.cdiv(cells, _BLOCK))](
        d, z, sums, scale, shift, totals, out, *shape, C, _BLOCK
    )
    return out, totals


@torch.library.register_fake("bipareto::pooled_backward", lib=LIBRARY)
def _(
    d: Tensor, z: Tensor, sums: Tensor, scale: Tensor, shift: Tensor, tasks: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(z, memory_format=torch.channels_last), torch.empty_like(sums)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(z: Tensor, scale: Tensor, shift: Tensor, tasks: int) -> tuple[Tensor, Tensor]:
        return torch.ops.bipareto.pooled(z, scale, shift, tasks)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z, scale, shift, ctx.tasks = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(z, output[1], scale, shift)

    @staticmethod
    def backward(ctx: Any, d: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        out, total = _PooledGradient.apply(d, *ctx.saved_tensors, ctx.tasks)
        return out, total[1], total[0], None


class _PooledGradient(torch.autograd.Function):
    """What `_Pooled` goes back by, so that a second derivative is refused instead of being taken
    for zero.
    """

    @staticmethod
    def forward(
        d: Tensor, z: Tensor, sums: Tensor, scale: Tensor, shift: Tensor, tasks: int
    ) -> tuple[Tensor, Tensor]:
        out, totals = torch.ops.bipareto.pooled_backward(d, z, sums, scale, shift, tasks)
        return out, totals.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise InvalidInput(
            "the fused backbone has first derivatives in x only; use Network(fused=False)"
        )


def pooled(z: Tensor, scale: Tensor, shift: Tensor, tasks: int) -> Tensor:
    """max-pool(ReLU(scale * normalised z + shift)), normalised over the images and pixels of each
    task.

    Args:
        z: (tasks * n, C, H, W), C a power of two, float32 or bfloat16.
        scale, shift: (C,) float32.
    """
    return _Pooled.apply(z, scale, shift, tasks)[0]
