"""Work that is written twice and done once: common subexpressions of a traced step.

A step is written literally, so f and g are evaluated at the same x again and again: in the step of theta, for the gradient
in x, and once more in the next joint step.  In a trace of the step these are equal nodes; `share` keeps the first of each,
so that a backbone which several terms share is run once per x, whatever the problem and the method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from bipareto.recording import kind

__all__ = ["share", "without_writes"]

#: A trace has no gradients left to stop, so these return what they were given.
_IDENTITIES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default)


def share(graph: fx.Graph) -> None:
    """Replace, in place, every node that computes what an earlier one has computed, and drop what nobody uses.

    Nothing may be written in place in the graph (`without_writes`).
    """
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _IDENTITIES:
            first = node.args[0]
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        else:
            first = seen.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def without_writes(graph: fx.Graph) -> bool:
    """Turn operations that change an argument in place into ones that do not, and say whether none is left.

    Those in torch's own formulas write into what nobody else sees; where somebody may, the operation stays.
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
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in operation._schema.arguments]
    name = operation._schema.name.split("::")[1]
    if operation.namespace != "aten" or not name.endswith("_") or written.count(True) != 1 or not written[0]:
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(packet, operation._overloadname, None)


def _unseen(node: fx.Node) -> bool:
    """Whether what a node writes into was made for it: no view of it is in use, nor of something else in it."""
    changed = node.args[0]
    if not (isinstance(changed, fx.Node) and isinstance(changed.target, torch._ops.OpOverload)) or _shows(changed):
        return False
    types = {found.dtype for found in map(kind, node.all_input_nodes) if found is not None}
    # Of several types the result would have the widest, and not that of what is written into.
    return len(types - {torch.bool}) == 1 and not any(_shows(user) for user in changed.users if user is not node)


def _shows(node: fx.Node) -> bool:
    """Whether a node shares memory with its arguments, or may do so."""
    return not isinstance(node.target, torch._ops.OpOverload) or any(found.alias_info is not None for found in node.target._schema.returns)


def _key(value: Any) -> Any:
    """An argument as something that can be looked up; numbers of different types (1, 1.0, True) stay apart."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    return value if isinstance(value, fx.Node) else (type(value).__name__, repr(value))
