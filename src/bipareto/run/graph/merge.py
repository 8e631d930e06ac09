"""Narrow matrix products with one and the same matrix, taken as one product.

B_1 A and B_2 A read the same A.  Where the B_i are narrow, (B_1; B_2) A takes 1.4 to 1.7 times as
long as one of them, and not twice: it waits for A, and uses few of the processor's registers.
"""

from __future__ import annotations

import heapq
from typing import Any

import torch
from torch import fx

from bipareto.run.graph.products import RATIO, call, on_cpu

_aten = torch.ops.aten
#: Rows of a factor that is narrow; from some more on a product keeps the processor busy by itself.
NARROW = 16
#: Rows of factors that are put together, at most.
TOGETHER = 64


def merge(graph: fx.Graph) -> None:
    """Take, in place, narrow products on a CPU that have the right factor in common, and none of
    which needs what another one yields, as one.

    Nothing may be written in place in the graph, and equal nodes must be one (`cse.share`).
    """
    # What writes or draws has a place in the order of the nodes.
    if any(node.is_impure() for node in graph.nodes if node.op not in ("placeholder", "output")):
        return
    groups = [group for group in _groups(graph) if len(group) > 1]
    for group in groups:
        with graph.inserting_before(group[-1]):
            _put_together(graph, group)
    if groups:
        _sort(graph)


def _groups(graph: fx.Graph) -> list[list[fx.Node]]:
    """Narrow products by their right factor, each group such that the graph has no cycle when every
    group is one node.
    """
    bits: dict[fx.Node, int] = {}  # each product's own
    needs: dict[fx.Node, int] = {}  # for each node the products that it is computed from
    for node in graph.nodes:
        needs[node] = 0
        for source in node.all_input_nodes:
            needs[node] |= needs[source] | bits.get(source, 0)
        if _narrow(node):
            bits[node] = 1 << len(bits)
    groups: dict[Any, list[list[fx.Node]]] = {}
    # In this order no group needs the product that is to join it.
    for node in bits:
        same = groups.setdefault(node.args[1], [])
        for group in same:
            needed = needs[node] & sum(bits[other] for other in group)
            if not needed and sum(map(_rows, group)) + _rows(node) <= TOGETHER:
                group.append(node)
                _unite(needs, bits, group)
                break
        else:
            same.append([node])
    return [group for same in groups.values() for group in same]


def _unite(needs: dict[fx.Node, int], bits: dict[fx.Node, int], group: list[fx.Node]) -> None:
    """Let what needs one of a group need what any of them needs."""
    members, sources = 0, 0
    for node in group:
        members, sources = members | bits[node], sources | needs[node]
    for node in bits:
        if needs[node] & members:
            needs[node] |= sources


def _narrow(node: Any) -> bool:
    if node.target != _aten.mm.default or not on_cpu(node):
        return False
    # A mere vector is read as fast as the matrix is.
    rows, narrowest = _rows(node), min(node.args[1].meta["val"].shape)
    return 2 <= rows <= NARROW and RATIO * rows <= narrowest


def _rows(node: fx.Node) -> int:
    return int(node.meta["val"].shape[0])


def _put_together(graph: fx.Graph, group: list[fx.Node]) -> None:
    tall = call(graph, _aten.cat.default, [node.args[0] for node in group], 0)
    whole = call(graph, _aten.mm.default, tall, group[0].args[1])
    first = 0
    for node in group:
        end = first + _rows(node)
        node.replace_all_uses_with(call(graph, _aten.slice.Tensor, whole, 0, first, end))
        graph.erase_node(node)
        first = end


def _sort(graph: fx.Graph) -> None:
    """Put every node behind what it is computed from, and otherwise leave the order as it is."""
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    missing = [len(node.all_input_nodes) for node in nodes]
    ready = [i for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    before = None
    while ready:
        node = nodes[heapq.heappop(ready)]
        if before is not None:
            before.append(node)
        before = node
        for user in node.users:
            missing[place[user]] -= 1
            if not missing[place[user]]:
                heapq.heappush(ready, place[user])
