"""Where the kernels of a DARTS cell find edges, layers and weights, and what several compute."""

from __future__ import annotations

from bipareto.run.graph.triton import tl
from bipareto_experiments.nas.taps import jit


@jit
def _layer(q, C: tl.constexpr):
    """Kernel size of a layer, and where its weights begin among those of its edge: operation by
    operation.
    """
    three, five = 9 * C + C * C, 25 * C + C * C
    odd = q % 2
    dilated = (q // 2) % 2
    separable = odd * 2 * three + (q // 4) * tl.where(odd == 1, five, three)
    return 3 + 2 * odd, tl.where(dilated == 1, 2 * (three + five) + odd * three, separable)


@jit
def _weights(source, node, STRIDED: tl.constexpr, C: tl.constexpr):
    """Where an edge's layers begin among the weights of a cell; in a reduction cell the weights of
    a strided skip stand before them.
    """
    begin = (node * (node + 3) // 2 + source) * (102 * C + 6 * C * C)
    if STRIDED:
        begin += (2 * node + tl.minimum(source + 1, 2)) * C * C
    return begin


@jit
def _ends(k):
    """Source and target of the k-th edge by source; the sources 2 to 4 are the nodes 0 to 2."""
    source = tl.where(k < 8, k // 4, tl.where(k < 11, 2, tl.where(k < 13, 3, 4)))
    node = tl.where(k < 8, k % 4, tl.where(k < 11, k - 7, tl.where(k < 13, k - 9, 3)))
    return source, node


@jit
def _ends_at(edge):
    """Source and target of the edge that lies at a place."""
    node = (edge >= 2).to(tl.int32) + (edge >= 5).to(tl.int32) + (edge >= 9).to(tl.int32)
    return edge - node * (node + 3) // 2, node


@jit
def _edge(source, node):
    """Where the edge from a source to a node lies."""
    return node * (node + 3) // 2 + source


@jit
def _moments_of(v, mask, count, at, c, C):
    """Leave mean and squared deviations of a block at `at`."""
    mean = tl.sum(tl.where(mask, v, 0.0), 0) / count
    off = tl.where(mask, v - mean[None, :], 0.0)
    tl.store(at + c, mean)
    tl.store(at + C + c, tl.sum(off * off, 0))


@jit
def _product(a, b, C: tl.constexpr):
    """a times b (C, C); of float32 as three products in TF32, which keep its digits, once exact
    ones are more work than the rest.
    """
    return tl.dot(a, b, input_precision="ieee" if C < 32 else "tf32x3")


@jit
def _unit(k, width, total, offset, ops, EDGES: tl.constexpr):
    """Of each run's `total` units, the k-th of those that a launch asks for.

    Args:
        width: how many it asks for in each run: a stretch, or `ops` of each of some edges.
        offset: the first of the stretch; 16 times the first edge (by source), plus the first one
            asked for of its units.
    """
    run, within = k // width, k % width
    if EDGES:
        source, node = _ends(offset // 16 + within // ops)
        found = run * total + _edge(source, node) * (total // 14) + offset % 16 + within % ops
    else:
        found = run * total + offset + within
    return found.to(tl.int64)


@jit
def _normal(at, stats, out, mask, c, C):
    """A block of what lies at `at`, normalised."""
    mean, rstd = tl.load(stats + c)[None, :], tl.load(stats + C + c)[None, :]
    return (tl.load(at + out, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
