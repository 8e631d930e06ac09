"""Work that is written twice and done once: common subexpressions of a compiled step.

A step is written literally, so f and g are evaluated at the same x again and again: in the step of theta, for the gradient
in x, and once more in the next joint step.  Inductor does not look for equal subexpressions in a graph that holds its own
gradients.  This pass does, so that a backbone which several terms share is run once per x, whatever the problem.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

__all__ = ["SharedWork"]


class SharedWork(CustomGraphPass):
    """Replace every node that computes what an earlier one has computed.  For graphs without mutation, as Inductor's are here."""

    def __call__(self, graph: fx.Graph) -> None:
        seen: dict[Any, fx.Node] = {}
        for node in list(graph.nodes):
            if node.op != "call_function" or not _repeatable(node):
                continue
            key = (node.target, _key(node.args), _key(node.kwargs))
            first = seen.setdefault(key, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)

    def uuid(self) -> str:
        """Names this version of the pass in the compiler's cache."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _repeatable(node: fx.Node) -> bool:
    """Whether two calls with equal arguments give equal results and nothing else."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "") == "getitem"
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _key(value: Any) -> Any:
    """An argument as something that can be looked up; numbers of different types (1, 1.0, True) stay apart."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    return value if isinstance(value, fx.Node) else (type(value).__name__, repr(value))
