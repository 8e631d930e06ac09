"""Products of single precision by oneDNN, where torch's own library holds the processor back.

torch takes products from Intel's MKL, which on AMD's processors leaves their AVX-512 unused.
oneDNN, which is part of torch too, uses it: on an AMD EPYC (Zen 5) it took half as long from a
million multiplications on, be the factors narrow or square.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from bipareto.run.graph.products import call, intel, on_cpu
from bipareto.run.graph.triton import LIBRARY

#: Multiplications from which oneDNN, which takes longer to begin, has caught up.
LEAST = 1_000_000
#: Rows, columns and inner length from which it is the faster one; products with vectors are not.
SIDE = 4

_aten = torch.ops.aten

LIBRARY.define("product(Tensor a, Tensor b) -> Tensor", tags=(torch.Tag.needs_exact_strides,))


@torch.library.impl(LIBRARY, "product", "CPU")
def _product(a: Tensor, b: Tensor) -> Tensor:
    # A matrix with gaps would be taken by oneDNN's reference, hundreds of times slower.
    if not (b.is_contiguous() or b.t().is_contiguous()):
        return torch.mm(a, b)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return found


def _empty(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


torch.library.register_fake("bipareto::product", _empty, lib=LIBRARY)


def hand_over(graph: fx.Graph) -> None:
    """Give, in place, products to oneDNN where it is the faster one."""
    if not available():
        return
    for node in list(graph.nodes):
        plain = node.target == _aten.mm.default
        if not (plain or node.target == _aten.addmm.default) or node.kwargs:
            continue
        a, b = node.args if plain else node.args[1:]
        if not _pays(node, a, b):
            continue
        with graph.inserting_before(node):
            if not a.meta["val"].is_contiguous():
                # No copy: Inductor computes it as it shall lie.
                a = call(graph, _aten.clone.default, a, memory_format=torch.contiguous_format)
            made = call(graph, torch.ops.bipareto.product.default, a, b)
            if not plain:
                made = call(graph, _aten.add.Tensor, made, node.args[0])
        node.replace_all_uses_with(made)
        graph.erase_node(node)


@cache
def available() -> bool:
    """Whether this is a processor with AVX-512 that is not Intel's, and oneDNN is there."""
    return (
        not intel()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()
    )


def _pays(node: fx.Node, a: Any, b: Any) -> bool:
    sides = (*a.meta["val"].shape, b.meta["val"].shape[1])
    enough = min(sides) >= SIDE and sides[0] * sides[1] * sides[2] >= LEAST
    return on_cpu(node) and node.meta["val"].dtype == torch.float32 and enough
