"""Work that is written twice and done once: common subexpressions of a traced step.

A step is written literally, so f and g are evaluated at the same x again and again: in the step of theta, for the gradient
in x, and once more in the next joint step.  In a trace of the step these are equal nodes; `share` keeps the first of each,
so that a backbone which several terms share is run once per x, whatever the problem and the method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["share", "writes_in_place"]

#: A trace has no gradients left to stop, so these return what they were given.
_IDENTITIES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default)


def share(graph: fx.Graph) -> None:
    """Replace, in place, every node that computes what an earlier one has computed, and drop what nobody uses.

    A graph in which something is written in place is left as it is.
    """
    _without_changed_views(graph)
    if writes_in_place(graph):
        return
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            # A trace gives a constant a new name whenever it meets it.
            constant = getattr(graph.owning_module, node.target)
            first = seen.setdefault(id(constant), node)
        elif node.op != "call_function":
            continue
        elif node.target in _IDENTITIES:
            first = node.args[0]
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        else:
            first = seen.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def writes_in_place(graph: fx.Graph) -> bool:
    """Whether some operation of the graph changes one of its arguments."""
    return any(isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable for node in graph.nodes)


def _without_changed_views(graph: fx.Graph) -> None:
    """Turn operations that change the shape of a tensor in place (`squeeze_`, inside torch's own formulas) into ones that do not."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if torch.Tag.inplace_view not in getattr(node.target, "tags", ()):
            continue
        packet, overload = node.target._schema.name.split("::")[1].removesuffix("_"), node.target._overloadname
        changed = node.args[0]
        node.target = getattr(getattr(torch.ops.aten, packet), overload)
        for user in list(changed.users):
            if place[user] > place[node]:
                user.replace_input_with(changed, node)


def _key(value: Any) -> Any:
    """An argument as something that can be looked up; numbers of different types (1, 1.0, True) stay apart."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    return value if isinstance(value, fx.Node) else (type(value).__name__, repr(value))
