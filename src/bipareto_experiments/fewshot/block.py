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
from bipareto.run.graph.triton import LIBRARY, triton
from bipareto_experiments.fewshot.block_kernels import (
    _BLOCK,
    _gradient_kernel,
    _logits_kernel,
    _loss_kernel,
    _patches_backward_kernel,
    _patches_kernel,
)
from bipareto_experiments.fewshot.epsilon import EPSILON

#: Programs that share the channels of a task, and the most pooled cells that one of them holds
#: (four inputs each).
_PARTS, _CELLS = 16, 4096


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
