"""Matrix products with a short and a long side, the short one first.

On a CPU A b with A (M, K) and b (K, N), N much smaller than M, took up to ten times as long as
(b' A')', whatever the strides of both, and in no case less; turning it needs no copy.  A linear
classifier, and every layer with few outputs, is such a product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
#: a side is short when the other one is so many times longer
RATIO = 4


def turn(graph: fx.Graph) -> None:
    """Take, in place, every product on a CPU whose result is long and narrow as the transpose of
    the transposed factors' product.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != _aten.mm.default or not _narrow(node):
            continue
        with graph.inserting_before(node):
            a, b = (_transposed(graph, factor) for factor in node.args)
            product = _call(graph, _aten.mm.default, b, a)
            node.replace_all_uses_with(_transposed(graph, product))
        graph.erase_node(node)


def _narrow(node: fx.Node) -> bool:
    shown = node.meta.get("val")
    if shown is None or shown.device.type != "cpu" or not shown.dtype.is_floating_point:
        return False
    long, short = shown.shape
    return short > 1 and RATIO * short <= long


def _transposed(graph: fx.Graph, node: Any) -> fx.Node:
    return _call(graph, _aten.permute.default, node, [1, 0])


def _call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """A node and what it looks like, which Inductor asks for."""
    made = graph.call_function(target, args)
    made.meta["val"] = target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args))
    return made
