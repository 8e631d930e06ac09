"""Search spaces as tables: which operations there are, and which edges of a cell choose among them.

A *cell* is a small graph.  Its first nodes are given, every other node is the sum of its incoming
edges, and an edge applies one operation to the node it comes from.  The architecture is the choice
of an operation for every edge; cells of one *kind* share it.

An operation is nothing but a few *blocks*, and a block is: ReLU, some convolutions, batch norm.
Weights, counts and the forward pass are all read off the same blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from bipareto.errors import InvalidInput

Kind = Literal["none", "skip", "max", "average", "plain", "separable", "dilated"]


class Conv(NamedTuple):
    """A square convolution without bias that keeps or, by its stride, divides the side of the
    image.

    halves: a 1x1 convolution of stride 2 whose first half of outputs looks at the even pixels and
    whose second half at the odd
        ones (FactorizedReduce); together the halves have the weights and the work of one
        convolution.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    halves: bool = False

    @property
    def padding(self) -> int:
        """Pixels added on each side."""
        return self.dilation * (self.kernel - 1) // 2

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of its weight."""
        return self.outputs, self.inputs // self.groups, self.kernel, self.kernel

    @property
    def weights(self) -> int:
        """How many there are: also the multiplications per pixel of the output."""
        return self.outputs * (self.inputs // self.groups) * self.kernel**2


#: ReLU, these convolutions one after the other, batch norm
Block = tuple[Conv, ...]


@dataclass(frozen=True)
class Operation:
    """One entry of a space.

    Args:
        name: as the space's authors write it.
        kind: "none" (zeros), "skip" (identity; FactorizedReduce where the side is halved), "max"
            and "average" (3x3 pooling), "plain" (one convolution), "separable" (twice depthwise and
            pointwise), "dilated" (depthwise of dilation 2, pointwise).
        kernel: of the convolution.
    """

    name: str
    kind: Kind
    kernel: int = 3

    @property
    def is_pooling(self) -> bool:
        """Whether it counts for the pooling density."""
        return self.kind in ("max", "average")

    def blocks(self, channels: int, stride: int) -> tuple[Block, ...]:
        """Its blocks from `channels` to `channels`; none for what has no weights."""
        C, k = channels, self.kernel
        if self.kind == "plain":
            return ((Conv(C, C, k, stride),),)
        if self.kind == "separable":
            return (Conv(C, C, k, stride, groups=C), Conv(C, C, 1)), (
                Conv(C, C, k, groups=C),
                Conv(C, C, 1),
            )
        if self.kind == "dilated":
            return ((Conv(C, C, k, stride, groups=C, dilation=2), Conv(C, C, 1)),)
        if self.kind == "skip" and stride == 2:
            return ((Conv(C, C, 1, 2, halves=True),),)
        return ()


class Edge(NamedTuple):
    """From node `source` to node `target`; printed as "target<-source"."""

    target: int
    source: int

    def __str__(self) -> str:
        return f"{self.target}<-{self.source}"


@dataclass(frozen=True)
class Space:
    """A search space.

    Args:
        name: for files and messages.
        operations: what an edge chooses from.
        edges: of a cell, by target and then by source.
        kinds: of cells; each has an architecture of its own.
        nodes: a name for each node; the first `given` are the cell's inputs.
        given: how many.
        kept: incoming edges that a node keeps when an architecture is derived, those with the
            strongest operation other than "none"; None keeps every edge, and "none" is then an
            answer like any other.
        pool_norm: whether pooling is followed by batch norm during the search.
    """

    name: str
    operations: tuple[Operation, ...]
    edges: tuple[Edge, ...]
    kinds: tuple[str, ...]
    nodes: tuple[str, ...]
    given: int
    kept: int | None
    pool_norm: bool

    def __post_init__(self) -> None:
        if all(operation.kind == "none" for operation in self.operations):
            listed = ", ".join(self.names) or "empty"
            raise InvalidInput(
                f"space {self.name}: edge {self.edges[0]} has no operations to choose from "
                f"({listed}); list one besides 'none'"
            )
        if self.kept is not None and self.index("none") is None:
            raise InvalidInput(
                f"space {self.name}: edges are dropped (kept = {self.kept}), so there must be an "
                "operation of kind 'none'"
            )
        for node in range(self.given, len(self.nodes)):
            if not self.into(node):
                raise InvalidInput(
                    f"space {self.name}: no edge leads to node {node}; give it one, or leave the "
                    "node out"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operations."""
        return tuple(operation.name for operation in self.operations)

    def into(self, node: int) -> list[int]:
        """Places in `edges` of those that lead to a node."""
        return [place for place, edge in enumerate(self.edges) if edge.target == node]

    @property
    def numbers(self) -> int:
        """Logits of an architecture, over all kinds of cells."""
        return len(self.kinds) * len(self.edges) * len(self.operations)

    def index(self, kind: Kind) -> int | None:
        """The place in `operations` of the first of a kind; None where there is none."""
        return next(
            (place for place, operation in enumerate(self.operations) if operation.kind == kind),
            None,
        )

    def stride(self, kind: str, edge: Edge) -> int:
        """2 on the edges that leave a reduction cell's inputs, else 1."""
        return 2 if kind == "reduction" and edge.source < self.given else 1

    def check(self, x: Mapping[str, Tensor]) -> None:
        """Refuse logits that are not one tensor (edges, operations) per kind of cell."""
        if not isinstance(x, Mapping) or set(x) != set(self.kinds):
            found = sorted(x) if isinstance(x, Mapping) else type(x).__name__
            raise InvalidInput(
                f"architecture logits are for {found}, but {self.name} has cells of kind "
                f"{', '.join(self.kinds)}: one tensor for each"
            )
        wanted = (len(self.edges), len(self.operations))
        for kind, logits in x.items():
            if tuple(logits.shape) != wanted:
                raise InvalidInput(
                    f"logits of {kind!r} have shape {tuple(logits.shape)}; {self.name} needs "
                    f"(edges, operations) = {wanted}"
                )


def _edges(given: int, nodes: int) -> tuple[Edge, ...]:
    """Every node sees all before it."""
    return tuple(Edge(target, source) for target in range(given, nodes) for source in range(target))


#: Dong and Yang 2020: one kind of cell with four nodes; 5^6 = 15,625 architectures
NAS_BENCH_201 = Space(
    name="nas-bench-201",
    operations=(
        Operation("none", "none"),
        Operation("skip_connect", "skip"),
        Operation("nor_conv_1x1", "plain", 1),
        Operation("nor_conv_3x3", "plain", 3),
        Operation("avg_pool_3x3", "average"),
    ),
    edges=_edges(1, 4),
    kinds=("cell",),
    nodes=("input", "1", "2", "output"),
    given=1,
    kept=None,
    pool_norm=False,
)

#: Liu, Simonyan and Yang 2018: normal and reduction cells, two inputs and four nodes each, whose
#: outputs stand side by side
DARTS = Space(
    name="darts",
    operations=(
        Operation("none", "none"),
        Operation("max_pool_3x3", "max"),
        Operation("avg_pool_3x3", "average"),
        Operation("skip_connect", "skip"),
        Operation("sep_conv_3x3", "separable", 3),
        Operation("sep_conv_5x5", "separable", 5),
        Operation("dil_conv_3x3", "dilated", 3),
        Operation("dil_conv_5x5", "dilated", 5),
    ),
    edges=_edges(2, 6),
    kinds=("normal", "reduction"),
    nodes=("input k-2", "input k-1", "0", "1", "2", "3"),
    given=2,
    kept=2,
    pool_norm=True,
)

SPACES = {space.name: space for space in (NAS_BENCH_201, DARTS)}


def space_of(name: str) -> Space:
    """The space of a name."""
    if name not in SPACES:
        raise InvalidInput(f"there is no search space {name!r}; choose one of {', '.join(SPACES)}")
    return SPACES[name]
