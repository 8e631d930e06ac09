"""Small operations side by side: what a traced step does to each leaf of a tree becomes one kernel
for all of them.

A step moves every leaf of x, y and theta by itself: `a - step * b`, a dozen kernels of a
microsecond each and no work to speak of.  They stand in a row in the trace, so `gather` finds them
there and needs no word from whoever wrote the step.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from bipareto.run.graph.trace import kind
from bipareto.run.graph.triton import LIBRARY, jit, tl, triton

_BLOCK = 1024


@jit
def _kernel(us, vs, outs, sizes, s, SIGN: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    """One block of one leaf: program (block, leaf)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for leaf in tl.static_range(len(us)):
        if tl.program_id(1) == leaf:
            mask = at < sizes[leaf]
            u = tl.load(us[leaf] + at, mask=mask, other=0.0)
            v = tl.load(vs[leaf] + at, mask=mask, other=0.0)
            if SCALED:
                v = tl.load(s) * v
            tl.store(outs[leaf] + at, u + SIGN * v, mask=mask)


LIBRARY.define("moved(Tensor[] us, Tensor? s, Tensor[] vs, float sign) -> Tensor[]")


@torch.library.impl(LIBRARY, "moved", "CompositeExplicitAutograd")
def _moved(us: list[Tensor], s: Tensor | None, vs: list[Tensor], sign: float) -> list[Tensor]:
    """u + sign * s * v for each pair of contiguous leaves; no s stands for 1."""
    if triton is None or not us[0].is_cuda:
        return [
            torch.add(u, v if s is None else s * v, alpha=sign) for u, v in zip(us, vs, strict=True)
        ]
    us, vs = [u.contiguous() for u in us], [v.contiguous() for v in vs]
    outs = [torch.empty_like(u) for u in us]
    sizes = tuple(u.numel() for u in us)
    grid = (triton.cdiv(max(sizes), _BLOCK), len(us))
    _kernel[grid](
        tuple(us),
        tuple(vs),
        tuple(outs),
        sizes,
        us[0] if s is None else s,
        sign,
        s is not None,
        _BLOCK,
    )
    return outs


@torch.library.register_fake("bipareto::moved", lib=LIBRARY)
def _(us: list[Tensor], s: Tensor | None, vs: list[Tensor], sign: float) -> list[Tensor]:
    return [torch.empty_like(u) for u in us]


class _Move(NamedTuple):
    """u + sign * s * v of one leaf."""

    u: Any
    s: Any
    v: Any
    sign: float


def gather(graph: fx.Graph) -> None:
    """Replace moves of leaves that stand in a row by one operation for each kind of move."""
    row: list[fx.Node] = []
    for node in list(graph.nodes):
        if _move(node) is not None:
            row.append(node)
            continue
        if len(row) > 1:
            _join(graph, row)
        row = []


def _join(graph: fx.Graph, row: list[fx.Node]) -> None:
    """Moves that build on each other stay in order; others that share s and sign are joined."""
    depth: dict[fx.Node, int] = {}
    for node in row:
        depth[node] = 1 + max(
            (depth[given] for given in node.all_input_nodes if given in depth), default=-1
        )
    kinds: dict[Any, list[fx.Node]] = {}
    for node in sorted(row, key=depth.__getitem__):
        move, moved = _move(node), kind(node)
        assert move is not None
        assert moved is not None
        kinds.setdefault((depth[node], move.s, move.sign, moved.dtype), []).append(node)
    after = row[-1].next
    with graph.inserting_before(after):
        for nodes in kinds.values():
            if len(nodes) == 1:
                after.prepend(nodes[0])
                continue
            # Read again, not from the key: s may itself have been joined by now.
            moves = [move for move in map(_move, nodes) if move is not None]
            given = ([m.u for m in moves], moves[0].s, [m.v for m in moves], moves[0].sign)
            joined = graph.call_function(torch.ops.bipareto.moved.default, given)
            for i, node in enumerate(nodes):
                part = graph.call_function(operator.getitem, (joined, i))
                part.meta = dict(node.meta)
                node.replace_all_uses_with(part)
                graph.erase_node(node)


def _move(node: fx.Node) -> _Move | None:
    """The node as a move of a contiguous leaf, None where it is none."""
    aten = torch.ops.aten
    arguments: Any = node.args
    options: Any = node.kwargs
    if node.target == aten.addcmul.default:
        u, s, v = arguments
        found = _Move(u, s, v, options.get("value", 1))
    elif node.target in (aten.add.Tensor, aten.sub.Tensor) and not options:
        u, v = arguments
        found = _Move(u, None, v, 1 if node.target == aten.add.Tensor else -1)
    else:
        return None
    moved, step, by = (kind(value) for value in (found.u, found.s, found.v))
    if moved is None or moved != by:
        return None
    if found.s is not None and (step is None or step.shape or step.dtype != moved.dtype):
        return None
    return found if moved.dtype.is_floating_point and moved.contiguous else None
