"""What a state of a NAS-Bench-201 cell sends along its edges, as one operator: batch norms, mixture and sum.  First derivatives only.

With c1 and c3 the two convolutions of the state s on all E edges, a its average, and w_eo the weights of the mixture, edge e carries

    w_e1 s + w_e2 normal(c1_e) + w_e3 normal(c3_e) + w_e4 a,

and that is added to what earlier states have sent to the same node.  Written plainly this is a pass over memory for each sign in the
formula.  Here it is one for the statistics of each convolution and one for the rest; the way back is two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.experiments.nas.cell import add_blocks, block_of, fold, take_moments
from bipareto.experiments.nas.kernels import _normal, jit
from bipareto.triton_kernels import LIBRARY, tl

__all__ = ["blend"]


@jit
def blend_kernel(c1, c3, s, a, sent, mixture, stats1, stats3, out, rows, edges, C: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr):
    """One edge; FIRST where no earlier state has sent anything."""
    unit = tl.program_id(1)
    run, e = (unit // edges).to(tl.int64), unit % edges
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    row = run * rows + row
    own, shared = row[:, None] * edges * C + e * C + c[None, :], row[:, None] * C + c[None, :]
    weight, stats = mixture + (run * edges + e) * 5, run * 2 * edges * C + e * C
    total = tl.load(weight + 1) * tl.load(s + shared, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(weight + 4) * tl.load(a + shared, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(weight + 2) * _normal(c1, stats1 + stats, own, mask, c, edges * C)
    total += tl.load(weight + 3) * _normal(c3, stats3 + stats, own, mask, c, edges * C)
    if not FIRST:
        before = row[:, None] * (edges + 1) * C + (e + 1) * C + c[None, :]
        total += tl.load(sent + before, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + own, total.to(out.dtype.element_ty), mask=mask)


@jit
def blend_sums_kernel(g, c1, c3, s, a, stats1, stats3, partial, rows, edges, tiles, C: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of an edge's gradient times each of its operations; in the place of "none" that of the gradient."""
    tile, unit = tl.program_id(0), tl.program_id(1)
    run, e = (unit // edges).to(tl.int64), unit % edges
    c = tl.arange(0, C)
    row = tile * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    row = run * rows + row
    own, shared = row[:, None] * edges * C + e * C + c[None, :], row[:, None] * C + c[None, :]
    stats = run * 2 * edges * C + e * C
    G = tl.load(g + own, mask=mask, other=0.0).to(tl.float32)
    left = partial + (unit.to(tl.int64) * tiles + tile) * 5 * C + c
    tl.store(left, tl.sum(G, 0))
    tl.store(left + C, tl.sum(G * tl.load(s + shared, mask=mask, other=0.0).to(tl.float32), 0))
    tl.store(left + 2 * C, tl.sum(G * _normal(c1, stats1 + stats, own, mask, c, edges * C), 0))
    tl.store(left + 3 * C, tl.sum(G * _normal(c3, stats3 + stats, own, mask, c, edges * C), 0))
    tl.store(left + 4 * C, tl.sum(G * tl.load(a + shared, mask=mask, other=0.0).to(tl.float32), 0))


@jit
def blend_backward_kernel(g, c1, c3, mixture, stats1, stats3, sums, to_c1, to_c3, to_s, to_a, rows, edges, C: tl.constexpr, BLOCK: tl.constexpr):
    """The gradients of both convolutions on every edge, and of s and a from all edges."""
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None]
    row = run * rows + row
    shared = row[:, None] * C + c[None, :]
    s = tl.zeros((BLOCK, C), tl.float32)
    a = tl.zeros((BLOCK, C), tl.float32)
    kind = to_s.dtype.element_ty
    for e in range(edges):
        own = row[:, None] * edges * C + e * C + c[None, :]
        weight, stats = mixture + (run * edges + e) * 5, run * 2 * edges * C + e * C
        total = sums + (run * edges + e) * 5 * C + c
        G = tl.load(g + own, mask=mask, other=0.0).to(tl.float32)
        s += tl.load(weight + 1) * G
        a += tl.load(weight + 4) * G
        G -= tl.load(total)[None, :] / rows
        scale1 = tl.load(weight + 2) * tl.load(stats1 + stats + edges * C + c)
        scale3 = tl.load(weight + 3) * tl.load(stats3 + stats + edges * C + c)
        normal1 = _normal(c1, stats1 + stats, own, mask, c, edges * C)
        normal3 = _normal(c3, stats3 + stats, own, mask, c, edges * C)
        tl.store(to_c1 + own, (scale1[None, :] * (G - normal1 * tl.load(total + 2 * C)[None, :] / rows)).to(kind), mask=mask)
        tl.store(to_c3 + own, (scale3[None, :] * (G - normal3 * tl.load(total + 3 * C)[None, :] / rows)).to(kind), mask=mask)
    tl.store(to_s + shared, s.to(kind), mask=mask)
    tl.store(to_a + shared, a.to(kind), mask=mask)


LIBRARY.define("blend(Tensor c1, Tensor c3, Tensor s, Tensor a, Tensor sent, Tensor mixture) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    "blend_backward(Tensor g, Tensor c1, Tensor c3, Tensor s, Tensor a, Tensor mixture, Tensor stats1, Tensor stats3)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(LIBRARY, "blend", "CompositeExplicitAutograd")
def _forward(c1: Tensor, c3: Tensor, s: Tensor, a: Tensor, sent: Tensor, mixture: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    c1, c3, s, a, sent, mixture = (value.contiguous() for value in (c1, c3, s, a, sent, mixture))
    (R, rows, C), E = s.shape, mixture.shape[1]
    stats1, stats3 = (s.new_empty(R, 2, E * C, dtype=torch.float32) for _ in range(2))
    take_moments(c1, stats1[None], C)
    take_moments(c3, stats3[None], C)
    out = torch.empty_like(c1)
    grid = (-(-rows // block_of(C)), R * E)
    blend_kernel[grid](c1, c3, s, a, sent, mixture, stats1, stats3, out, rows, E, C, block_of(C), sent.shape[-1] == 0)
    return out, stats1, stats3


@torch.library.impl(LIBRARY, "blend_backward", "CompositeExplicitAutograd")
def _backward(
    g: Tensor, c1: Tensor, c3: Tensor, s: Tensor, a: Tensor, mixture: Tensor, stats1: Tensor, stats3: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    g, c1, c3, s, a, mixture = (value.contiguous() for value in (g, c1, c3, s, a, mixture))
    (R, rows, C), E = s.shape, mixture.shape[1]
    tiles = -(-rows // block_of(C))
    partial, sums = stats1.new_empty(R, E, tiles, 5 * C), stats1.new_empty(R, E, 5 * C)
    blend_sums_kernel[(tiles, R * E)](g, c1, c3, s, a, stats1, stats3, partial, rows, E, tiles, C, block_of(C))
    add_blocks(partial, sums)
    to_c1, to_c3, to_s, to_a = (torch.empty_like(value) for value in (c1, c3, s, a))
    blend_backward_kernel[(tiles, R)](g, c1, c3, mixture, stats1, stats3, sums, to_c1, to_c3, to_s, to_a, rows, E, C, block_of(C))
    return to_c1, to_c3, to_s, to_a, sums


fold("blend")
fold("blend_backward")


class _Blend(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(c1: Tensor, c3: Tensor, s: Tensor, a: Tensor, sent: Tensor, mixture: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.ops.bipareto.blend(c1, c3, s, a, sent, mixture))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        c1, c3, s, a, sent, mixture = inputs
        ctx.earlier = sent.shape[-1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros as large as what is kept would be written
        ctx.save_for_backward(c1, c3, s, a, mixture, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor, ...]:
        *found, sums = torch.ops.bipareto.blend_backward(g, *ctx.saved_tensors)
        to_mixture = sums.unflatten(-1, (5, -1)).sum(-1)
        to_mixture = torch.cat([torch.zeros_like(to_mixture[..., :1]), to_mixture[..., 1:]], -1)
        # The first node of what was sent before has been read by others alone.
        to_sent = torch.nn.functional.pad(g, (ctx.earlier - g.shape[-1], 0)) if ctx.earlier else g[..., :0]
        return *found, to_sent, to_mixture


def blend(c1: Tensor, c3: Tensor, s: Tensor, a: Tensor, sent: Tensor, mixture: Tensor) -> Tensor:
    """What the nodes after a state have been sent once it has sent its share, (R, rows, E C).

    Args:
        c1, c3: convolutions before their batch norms, (R, rows, E C).
        s, a: the state and its average, (R, rows, C); C a power of two of at least 16.
        sent: by earlier states, to the state itself and to those after it, (R, rows, (1 + E) C); (R, rows, 0) by none.
        mixture: (R, E, 5) float32.
    """
    return _Blend.apply(c1, c3, s, a, sent, mixture)[0]
