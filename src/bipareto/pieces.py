"""Gradients of parts put together: many vectors of zeros, each with one part filled in, become one row of the parts.

The weights of a network are stretches of one vector.  The gradient of each stretch comes back as a vector as long as the whole, zero
elsewhere, and all of these are added up: three kernels over the whole vector for every stretch.  `put_together` finds such sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from bipareto.recording import Kind, kind

__all__ = ["put_together"]

_aten = torch.ops.aten


class _Piece(NamedTuple):
    """Positions `first` to `end` of axis `dim` of a term; the rest of it is zero."""

    value: fx.Node
    dim: int
    first: int
    end: int


def put_together(graph: fx.Graph) -> None:
    """Replace, in place, sums of stretches that are padded with zeros; also slices of everything, which are what they are given."""
    for node in list(graph.nodes):
        if node.target in (_aten.slice.Tensor, _aten.slice_backward.default) and _same_shape(kind(node.args[0]), kind(node)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    done: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if _is_sum(node) and node not in done:
            terms = _terms(node, done)
            if any(_piece(term) for term in terms):
                _rewrite(graph, node, terms)
    graph.eliminate_dead_code()


def _rewrite(graph: fx.Graph, total: fx.Node, terms: list[fx.Node]) -> None:
    """A sum, with pieces that do not overlap put side by side."""
    pieces = [piece for piece in map(_piece, terms) if piece is not None and piece.first < piece.end]
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
        found = [term for term in terms if _piece(term) is None] + [_in_a_row(graph, row, like) for row in rows]
        result = found[0] if found else _zeros(graph, like, 0, like.shape[0])
        for term in found[1:]:
            result = graph.call_function(_aten.add.Tensor, (result, term))
            result.meta["kind"] = like
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
    joined = graph.call_function(_aten.cat.default, (parts, dim))
    joined.meta["kind"] = like
    return joined


def _zeros(graph: fx.Graph, like: Kind, dim: int, length: int) -> fx.Node:
    shape = [length if axis == dim else size for axis, size in enumerate(like.shape)]
    node = graph.call_function(_aten.zeros.default, (shape,), {"dtype": like.dtype, "device": like.device})
    node.meta["kind"] = like._replace(shape=torch.Size(shape), stride=torch.empty(shape, device="meta").stride(), contiguous=True)
    return node


def _terms(node: Any, done: set[fx.Node]) -> list[fx.Node]:
    """What a sum is the sum of, from left to right: inner sums that nobody else uses are taken apart."""
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
    return one is not None and other is not None and (one.shape, one.dtype) == (other.shape, other.dtype)


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
