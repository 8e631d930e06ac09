"""Gradients of parts put together: many vectors of zeros, each with one part filled in, become one
row of the parts.

The weights of a network are stretches of one vector.  The gradient of each stretch comes back as a
vector as long as the whole, zero elsewhere, and all of these are added up: three kernels over the
whole vector for every stretch.  `put_together` finds such sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from bipareto.run.graph.trace import Kind, kind

_aten = torch.ops.aten


class _Piece(NamedTuple):
    """Positions `first` to `end` of axis `dim` of a term; the rest of it is zero."""

    value: fx.Node
    dim: int
    first: int
    end: int


def put_together(graph: fx.Graph) -> None:
    """Replace, in place, sums of stretches that are padded with zeros, and slices of everything,
    which are what they are given.

    Rows of parts, these and others, are made in two axes where that is a matter of views.
    """
    for node in list(graph.nodes):
        if node.target in (_aten.slice.Tensor, _aten.slice_backward.default) and _same_shape(
            kind(node.args[0]), kind(node)
        ):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    done: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if _is_sum(node) and node not in done:
            terms = _terms(node, done)
            if any(_piece(term) for term in terms):
                _rewrite(graph, node, terms)
    for node in list(graph.nodes):
        if node.target in (_aten.cat.default, _aten.stack.default):
            _flatten(graph, node)
    graph.eliminate_dead_code()


def _rewrite(graph: fx.Graph, total: fx.Node, terms: list[fx.Node]) -> None:
    """A sum, with pieces that do not overlap put side by side."""
    pieces = [
        piece for piece in map(_piece, terms) if piece is not None and piece.first < piece.end
    ]
    # Rows of pieces along one axis, each beginning where the one before it has ended, or later.
    rows: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.dim, piece.first)):
        fitting = (row for row in rows if row[-1].dim == piece.dim and row[-1].end <= piece.first)
        row = next(fitting, None)
        if row is None:
            rows.append([piece])
        else:
            row.append(piece)
    like = kind(total)
    assert like is not None
    with graph.inserting_before(total):
        found = [term for term in terms if _piece(term) is None] + [
            _in_a_row(graph, row, like) for row in rows
        ]
        result = found[0] if found else _zeros(graph, like, 0, like.shape[0])
        for term in found[1:]:
            result = _added(graph, like, _aten.add.Tensor, result, term)
    total.replace_all_uses_with(result)


def _in_a_row(graph: fx.Graph, row: list[_Piece], like: Kind) -> fx.Node:
    """Pieces one after the other, and zeros between them."""
    dim, at = row[0].dim, 0
    parts = []
    for piece in row:
        if at < piece.first:
            parts.append(_zeros(graph, like, dim, piece.first - at))
        parts.append(piece.value)
        at = piece.end
    if at < like.shape[dim]:
        parts.append(_zeros(graph, like, dim, like.shape[dim] - at))
    return _added(graph, _contiguous(like), _aten.cat.default, parts, dim)


def _flatten(graph: fx.Graph, node: fx.Node) -> None:
    """`cat` and `stack` of parts without gaps in memory as that of rows of a matrix.

    Of more than four axes they would be a copy for each part, and not one kernel.
    """
    arguments: Any = node.args
    parts, dim = (*arguments, 0)[:2]
    kinds, like = [kind(part) for part in parts], kind(node)
    if (
        like is None
        or len(like.shape) < 5
        or not like.shape.numel()
        or not all(part is not None and part.contiguous for part in kinds)
    ):
        return
    rows = like.shape[: dim % len(like.shape)].numel()
    with graph.inserting_before(node):
        widths = [of.shape.numel() // rows for of in (*kinds, like) if of]
        *flat, whole = (
            _contiguous(like._replace(shape=torch.Size([rows, width]))) for width in widths
        )
        views = [
            _added(graph, of, _aten.view.default, part, list(of.shape))
            for part, of in zip(parts, flat, strict=True)
        ]
        joined = _added(graph, whole, _aten.cat.default, views, 1)
        shaped = _added(graph, _contiguous(like), _aten.view.default, joined, list(like.shape))
    node.replace_all_uses_with(shaped)


def _zeros(graph: fx.Graph, like: Kind, dim: int, length: int) -> fx.Node:
    shape = [length if axis == dim else size for axis, size in enumerate(like.shape)]
    made = _contiguous(like._replace(shape=torch.Size(shape)))
    return _added(graph, made, _aten.zeros.default, shape, dtype=like.dtype, device=like.device)


def _added(graph: fx.Graph, like: Kind, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node for a tensor of some kind."""
    node = graph.call_function(target, args, kwargs)
    node.meta["kind"] = like
    return node


def _contiguous(like: Kind) -> Kind:
    return like._replace(stride=torch.empty(like.shape, device="meta").stride(), contiguous=True)


def _terms(node: Any, done: set[fx.Node]) -> list[fx.Node]:
    """What a sum is the sum of, left to right: inner sums of one use are taken apart."""
    done.add(node)
    found: list[fx.Node] = []
    for term in node.args:
        found += _terms(term, done) if _is_sum(term) and len(term.users) == 1 else [term]
    return found


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors of its own kind."""
    if not isinstance(node, fx.Node) or node.target != _aten.add.Tensor or node.kwargs:
        return False
    like = kind(node)
    return all(_same_shape(kind(term), like) for term in node.args)


def _same_shape(one: Kind | None, other: Kind | None) -> bool:
    return (
        one is not None
        and other is not None
        and (one.shape, one.dtype) == (other.shape, other.dtype)
    )


def _piece(node: fx.Node) -> _Piece | None:
    """A term of a sum as a piece, None where it is none."""
    if node.target != _aten.slice_backward.default or len(node.users) > 1:
        return None
    arguments: Any = node.args
    value, sizes, dim, first, _, step = arguments
    shown = kind(value)
    if step != 1 or shown is None:
        return None
    first = max(0, first + sizes[dim] if first < 0 else first)
    return _Piece(value, dim % len(sizes), first, first + shown.shape[dim])
