"""Matrix products in the order in which a CPU takes them fastest.

- Under `vmap` the data that all runs share is expanded to a batch, one narrow product for each run.
  All of them together are one product with a long side, which took a quarter of the time.
- A b with A (M, K) and b (K, N), N much smaller than M, took up to ten times as long on an AMD EPYC
  as (b' A')', whatever the strides of both, and in no case less; turning it needs no copy.  On an
  Intel Xeon, whose own library takes these products, it was the other way round: 0.4 and 0.6 ms.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
#: a side is short when the other one is so many times longer
RATIO = 4


def turn(graph: fx.Graph) -> None:
    """Take, in place, products of a batch with a matrix that it shares as one, and, but for Intel's
    CPUs, long and narrow ones as the transpose of the transposed factors' product.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (_aten.mm.default, _aten.bmm.default):
            continue
        with graph.inserting_before(node):
            made = (_turned if node.target == _aten.mm.default else _together)(graph, node)
        if made is not None:
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _turned(graph: fx.Graph, node: Any) -> fx.Node | None:
    long, short = node.meta["val"].shape
    if not on_cpu(node) or short < 2 or RATIO * short > long or intel():
        return None
    a, b = (call(graph, _aten.permute.default, factor, [1, 0]) for factor in node.args)
    return call(graph, _aten.permute.default, call(graph, _aten.mm.default, b, a), [1, 0])


def _together(graph: fx.Graph, node: Any) -> fx.Node | None:
    """a_i B of all i, or A b_i as (b_i' A')'."""
    left, right = node.args
    batch, rows, columns = node.meta["val"].shape
    if not on_cpu(node) or batch < 2 or _shared(left) == _shared(right):
        return None
    whole = call(graph, _aten.select.int, left if _shared(left) else right, 0, 0)
    own = right if _shared(left) else left
    if _shared(left):
        rows, columns = columns, rows
        own = call(graph, _aten.permute.default, own, [0, 2, 1])
        whole = call(graph, _aten.permute.default, whole, [1, 0])
    flat = call(graph, _aten.reshape.default, own, [batch * rows, own.meta["val"].shape[2]])
    product = call(graph, _aten.mm.default, flat, whole)
    made = call(graph, _aten.reshape.default, product, [batch, rows, columns])
    return call(graph, _aten.permute.default, made, [0, 2, 1]) if _shared(left) else made


@cache
def intel() -> bool:
    """Whether the processor is Intel's, or may be."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return True  # nothing is known: products stay as they are written


def on_cpu(node: fx.Node) -> bool:
    """Whether a node is a tensor of real numbers on a CPU."""
    shown = node.meta["val"]
    return bool(shown.device.type == "cpu" and shown.dtype.is_floating_point)


def _shared(factor: Any) -> bool:
    """Whether all matrices of a batch are the same memory."""
    return bool(factor.meta["val"].stride(0) == 0)


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A node and what it looks like, which Inductor asks for."""
    made = graph.call_function(target, args, kwargs)
    made.meta["val"] = target(*fx.node.map_arg(args, lambda node: node.meta["val"]), **kwargs)
    return made
