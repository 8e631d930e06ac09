"""Genotypes: the discrete architecture that a search ends with, derived from logits by the space's
own rule, and as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bipareto.errors import InvalidInput
from bipareto_experiments.nas.spaces import Edge, Space, space_of


class Chosen(NamedTuple):
    """An edge of the architecture and the name of its operation."""

    edge: Edge
    operation: str


@dataclass(frozen=True)
class Genotype:
    """A discrete architecture.

    Args:
        space: whose.
        cells: for each kind of cell the edges that are kept, in the space's order, each with its
            operation.

    >>> from bipareto_experiments.nas.spaces import NAS_BENCH_201
    >>> cell = Genotype.of(NAS_BENCH_201, {"cell": torch.tensor([3, 0, 3, 1, 0, 3])})
    >>> print(cell)  # doctest: +NORMALIZE_WHITESPACE
    nas-bench-201 cell: 1<-0 nor_conv_3x3, 2<-0 none, 2<-1 nor_conv_3x3, 3<-0 skip_connect,
    3<-1 none, 3<-2 nor_conv_3x3
    >>> Genotype.from_json(cell.to_json()) == cell
    True
    """

    space: Space
    cells: Mapping[str, tuple[Chosen, ...]]

    def __post_init__(self) -> None:
        space = self.space
        if set(self.cells) != set(space.kinds):
            raise InvalidInput(
                f"the genotype has cells {sorted(self.cells)}; {space.name} needs "
                f"{', '.join(space.kinds)}"
            )
        for kind, chosen in self.cells.items():
            _check_cell(space, kind, chosen)

    def __str__(self) -> str:
        cells = (
            f"{kind}: " + ", ".join(f"{edge} {operation}" for edge, operation in chosen)
            for kind, chosen in self.cells.items()
        )
        return f"{self.space.name} " + "; ".join(cells)

    @classmethod
    def of(cls, space: Space, choices: Mapping[str, Tensor]) -> Genotype:
        """From the index of an operation for every edge, {kind: (edges,)}; where the space drops
        edges, those of "none" are dropped.
        """
        cells = {}
        for kind, indices in choices.items():
            pairs = [
                Chosen(edge, space.names[o])
                for edge, o in zip(space.edges, indices.tolist(), strict=True)
            ]
            cells[kind] = tuple(
                pair
                for pair in pairs
                if space.kept is None
                or space.operations[space.names.index(pair.operation)].kind != "none"
            )
        return cls(space, cells)

    @classmethod
    def random(cls, space: Space, stream: torch.Generator) -> Genotype:
        """An architecture that logits drawn alike stand for: all are equally likely where no
        edge is dropped.
        """
        return derive(
            space,
            {
                kind: torch.rand(len(space.edges), len(space.operations), generator=stream)
                for kind in space.kinds
            },
        )

    def choices(self) -> dict[str, Tensor]:
        """The index of an operation for every edge, {kind: (edges,)}; an edge that is not kept has
        "none".
        """
        found = {}
        for kind, chosen in self.cells.items():
            indices = torch.full((len(self.space.edges),), self.space.index("none") or 0)
            for edge, operation in chosen:
                indices[self.space.edges.index(edge)] = self.space.names.index(operation)
            found[kind] = indices
        return found

    def logits(
        self, strength: float = 1e3, dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        """Logits whose softmax is this architecture: `strength` at the chosen operation, else 0;
        the default is one-hot to the last bit.
        """
        return {
            kind: strength * one_hot(indices, len(self.space.operations)).to(dtype)
            for kind, indices in self.choices().items()
        }

    def to_json(self) -> str:
        """As text that a person can read and `from_json` takes back."""
        cells = {
            kind: [
                {"to": edge.target, "from": edge.source, "operation": operation}
                for edge, operation in chosen
            ]
            for kind, chosen in self.cells.items()
        }
        return json.dumps({"space": self.space.name, "cells": cells}, indent=1)

    @classmethod
    def from_json(cls, text: str, space: Space | None = None) -> Genotype:
        """Read back; with `space` given, a genotype of another one is refused."""
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidInput(
                f"this is no JSON ({error}); a genotype is a file that `Genotype.to_json` wrote"
            ) from None
        if (
            not isinstance(found, dict)
            or not isinstance(found.get("space"), str)
            or not isinstance(found.get("cells"), dict)
        ):
            raise InvalidInput(
                'a genotype is {"space": name, "cells": {kind: [{"to": node, "from": node, '
                '"operation": name}, ...]}}'
            )
        own = space_of(found["space"])
        if space is not None and own != space:
            raise InvalidInput(
                f"this genotype is of the space {own.name}, but {space.name} was asked for; use a "
                f"network of {own.name}"
            )
        return cls(
            own,
            {
                kind: tuple(_chosen(kind, entry) for entry in _listed(kind, entries))
                for kind, entries in found["cells"].items()
            },
        )


def _listed(kind: str, entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise InvalidInput(
            f"cell {kind!r} is a {type(entries).__name__}; write the list of its edges"
        )
    return entries


def _chosen(kind: str, entry: Any) -> Chosen:
    if not isinstance(entry, dict) or set(entry) != {"to", "from", "operation"}:
        raise InvalidInput(
            f'cell {kind!r} has an edge {entry!r}; write {{"to": node, "from": node, "operation": '
            "name}"
        )
    return Chosen(Edge(entry["to"], entry["from"]), entry["operation"])


def _check_cell(space: Space, kind: str, chosen: tuple[Chosen, ...]) -> None:
    edges = [edge for edge, _ in chosen]
    for edge, operation in chosen:
        if edge not in space.edges:
            raise InvalidInput(
                f"{kind}: {space.name} has no edge {edge}; its edges are "
                f"{', '.join(map(str, space.edges))}"
            )
        if edges.count(edge) > 1:
            raise InvalidInput(
                f"{kind}: edge {edge} is given {edges.count(edge)} times; an edge has one operation"
            )
        if operation not in space.names:
            raise InvalidInput(
                f"{kind}: edge {edge} has operation {operation!r}; {space.name} knows "
                f"{', '.join(space.names)}"
            )
        if space.kept is not None and space.operations[space.names.index(operation)].kind == "none":
            raise InvalidInput(
                f"{kind}: edge {edge} has operation {operation!r}; in {space.name} such an edge is "
                "left out"
            )
    if edges != [edge for edge in space.edges if edge in edges]:
        raise InvalidInput(
            f"{kind}: edges stand as {', '.join(map(str, edges))}; write them in the order "
            f"{', '.join(map(str, space.edges))}"
        )
    for node in range(space.given, len(space.nodes)):
        found, wanted = (
            sum(edge.target == node for edge in edges),
            space.kept or len(space.into(node)),
        )
        if found != wanted:
            raise InvalidInput(
                f"{kind}: node {node} has {found} incoming edges with an operation; {space.name} "
                f"needs {wanted}"
            )


def derive(space: Space, x: Mapping[str, Tensor]) -> Genotype:
    """The architecture that logits x stand for, by the space's rule (see `Space.kept`).

    NAS-Bench-201: every edge takes its largest logit, "none" included.  DARTS: every edge takes its
    largest logit apart from "none", and every node keeps the two incoming edges on which the
    softmax weight of that operation is largest.
    """
    space.check(x)
    if space.kept is None:
        return Genotype.of(space, {kind: logits.argmax(-1) for kind, logits in x.items()})
    none = space.index("none")
    cells = {}
    for kind, logits in x.items():
        weights = logits.detach().softmax(-1).clone()
        if none is not None:
            weights[:, none] = -1.0
        strength, best = weights.max(-1)
        kept: list[int] = []
        for node in range(space.given, len(space.nodes)):
            # Python's sort is stable: of equal edges the earlier is kept, on every machine.
            kept += sorted(
                sorted(space.into(node), key=lambda e: -float(strength[e]))[: space.kept]
            )
        cells[kind] = tuple(Chosen(space.edges[e], space.names[int(best[e])]) for e in kept)
    return Genotype(space, cells)
