"""Work that is written twice and done once: common subexpressions of a traced step.

A step is written literally, so f and g are evaluated at the same x again and again: in the step of
theta, for the gradient in x, and once more in the next joint step.  In a trace of the step these
are equal nodes; `share` keeps the first of each, so that a backbone which several terms share is
run once per x, whatever the problem and the method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from bipareto.run.graph.trace import Recording, kind

#: A trace has no gradients left to stop, so these return what they were given.
_IDENTITIES = (
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh.default,
)

_aten = torch.ops.aten
#: Operations that need no more than the shape of a tensor.
_OF_SHAPE = {
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
}
#: Numbers of a tensor that is worth keeping; a larger one is quicker made than read.
_SETTLED = 1 << 20


def share(graph: fx.Graph) -> None:
    """Replace, in place, every node that computes what an earlier one has computed, and drop what
    nobody uses.

    Nothing may be written in place in the graph (`without_writes`).
    """
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _IDENTITIES or _needless(node):
            first = node.args[0]
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        else:
            first = seen.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _needless(node: fx.Node) -> bool:
    """Whether a node is a copy like the original.  Where nothing is written, only a result must be
    memory of its own.
    """
    return (
        node.target == _aten.clone.default
        and kind(node) is not None
        and kind(node) == kind(node.args[0])
        and not _returned(node)
    )


def _returned(node: fx.Node) -> bool:
    """Whether a node, or a view of it, is a result of the graph."""
    return any(user.op == "output" or (_shows(user) and _returned(user)) for user in node.users)


def settle(recording: Recording) -> None:
    """Compute now, once, what a step makes out of nothing but numbers: ones, zeros, and what is
    computed from these alone.

    Tensors that the step finds somewhere are no such thing, since they may be changed between
    steps.
    """
    graph = recording.graph
    settled: dict[fx.Node, Tensor] = {}
    for node in list(graph.nodes):
        found = kind(node)
        if (
            node.op != "call_function"
            or found is None
            or not isinstance(node.target, torch._ops.OpOverload)
        ):
            continue
        if node.target not in _OF_SHAPE and any(
            given not in settled for given in node.all_input_nodes
        ):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags or found.shape.numel() > _SETTLED:
            continue
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs),
            lambda given: settled[given] if given in settled else _empty(given),
        )
        settled[node] = node.target(*args, **kwargs)
    for node, value in settled.items():
        if any(user not in settled for user in node.users):
            with graph.inserting_before(node):
                node.replace_all_uses_with(
                    recording.constant(value), delete_user_cb=lambda user: user not in settled
                )
    graph.eliminate_dead_code()


def _empty(node: fx.Node) -> Tensor:
    """A tensor of a node's kind, to be looked at but not into."""
    like = kind(node)
    assert like is not None
    return torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device=like.device)


def without_writes(graph: fx.Graph) -> bool:
    """Turn operations that change an argument in place into ones that do not, and say whether none
    is left.

    Those in torch's own formulas write into what nobody else sees; where somebody may, the
    operation stays.
    """
    left = False
    for node in graph.nodes:
        if not (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable):
            continue
        pure = _pure(node.target)
        if pure is not None and (torch.Tag.inplace_view in node.target.tags or _unseen(node)):
            # Later uses are of this node already, and not of its argument.
            node.target = pure
        else:
            left = True
    return not left


def _pure(operation: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """`masked_fill` for `masked_fill_`: for an operation that changes its first argument only."""
    written = [
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in operation._schema.arguments
    ]
    name = operation._schema.name.split("::")[1]
    if (
        operation.namespace != "aten"
        or not name.endswith("_")
        or written.count(True) != 1
        or not written[0]
    ):
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(packet, operation._overloadname, None)


def _unseen(node: fx.Node) -> bool:
    """Whether what a node writes into was made for it: no view of it, or of more, is in use."""
    changed = node.args[0]
    if not (
        isinstance(changed, fx.Node) and isinstance(changed.target, torch._ops.OpOverload)
    ) or _shows(changed):
        return False
    types = {found.dtype for found in map(kind, node.all_input_nodes) if found is not None}
    # Of several types the result would have the widest, and not that of what is written into.
    return len(types - {torch.bool}) == 1 and not any(
        _shows(user) for user in changed.users if user is not node
    )


def _shows(node: fx.Node) -> bool:
    """Whether a node shares memory with its arguments, or may do so."""
    return not isinstance(node.target, torch._ops.OpOverload) or any(
        found.alias_info is not None for found in node.target._schema.returns
    )


def _key(value: Any) -> Any:
    """An argument as a key; numbers of different types (1, 1.0, True) stay apart."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    return value if isinstance(value, fx.Node) else (type(value).__name__, repr(value))
