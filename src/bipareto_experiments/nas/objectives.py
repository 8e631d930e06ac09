"""What an architecture costs: FLOPs in two readings, exact parameters and FLOPs, and the densities
of skips and pools.

For an edge e with mixture softmax(x_e) the paper's objectives besides the validation loss are means
over all edges of all kinds of cells:

    FLOPs loss       sum_i softmax(x_e)_i * FLOPs(e_i) / max_j FLOPs(e_j)
    skip density     softmax(x_e)_skip
    pooling density  softmax(x_e)_max + softmax(x_e)_average

FLOPs are two per multiplication, H and W those of the output; only convolutions and the linear head
count.  The readings:

- "paper": its formulas literally.  Every convolution costs 2 H W C_in C_out K^2 whatever its
  groups, a skip costs nothing even where it is a FactorizedReduce, pooling costs nothing (its case
  C_in != C_out does not occur in these spaces).
- "real": groups and FactorizedReduce are counted, as a counter on real modules does.

A kind of cell that stands at several places of the stack has one edge of logits but several of
FLOPs: the ratio is averaged over places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.spaces import Conv, Operation, Space
from bipareto_experiments.nas.supernet import Place, Supernet

Reading = Literal["paper", "real"]
READINGS: tuple[Reading, ...] = get_args(Reading)


class Cost(NamedTuple):
    """Of a discrete network trained by itself: trained parameters (batch norms have scale and
    shift) and FLOPs of one image.
    """

    params: int
    flops: int


def _check_reading(reading: str) -> None:
    if reading not in READINGS:
        raise InvalidInput(
            f"there is no reading {reading!r} of FLOPs; choose one of {', '.join(READINGS)}"
        )


def _conv_flops(conv: Conv, side: int, reading: Reading) -> int:
    return 2 * side**2 * conv.weights * (conv.groups if reading == "paper" else 1)


def _operation_flops(
    operation: Operation, channels: int, stride: int, side: int, reading: Reading
) -> int:
    if operation.kind == "skip" and reading == "paper":
        return 0
    return sum(
        _conv_flops(conv, side, reading)
        for block in operation.blocks(channels, stride)
        for conv in block
    )


def flops_table(network: Supernet, place: Place, reading: Reading = "real") -> Tensor:
    """FLOPs of every operation on every edge of one cell, (edges, operations), float64 (whole
    numbers, exact).
    """
    _check_reading(reading)
    space = network.space
    rows = [
        [
            _operation_flops(
                operation, place.channels, space.stride(place.kind, edge), place.side, reading
            )
            for operation in space.operations
        ]
        for edge in space.edges
    ]
    return torch.tensor(rows, dtype=torch.float64)


def flops_ratios(network: Supernet, reading: Reading = "real") -> dict[str, Tensor]:
    """FLOPs over those of the largest operation of the edge, averaged over the places of a kind:
    {kind: (edges, operations)} in [0, 1].
    """
    ratios: dict[str, list[Tensor]] = {kind: [] for kind in network.space.kinds}
    for place in network.places:
        table = flops_table(network, place, reading)
        # Where no operation costs anything the ratio is 0, not 0/0.
        ratios[place.kind].append(table / table.amax(-1, keepdim=True).clamp(min=1))
    return {kind: torch.stack(found).mean(0) for kind, found in ratios.items()}


def skip_table(space: Space) -> dict[str, Tensor]:
    """1 for skips, else 0: {kind: (edges, operations)}."""
    return _marked(space, [operation.kind == "skip" for operation in space.operations])


def pooling_table(space: Space) -> dict[str, Tensor]:
    """1 for max and average pooling, else 0: {kind: (edges, operations)}."""
    return _marked(space, [operation.is_pooling for operation in space.operations])


def _marked(space: Space, marks: list[bool]) -> dict[str, Tensor]:
    row = torch.tensor(marks, dtype=torch.float64)
    return {kind: row.expand(len(space.edges), -1).clone() for kind in space.kinds}


def mean_over_edges(x: Mapping[str, Tensor], tables: Mapping[str, Tensor]) -> Tensor:
    """The mean over all edges of sum_i softmax(x_e)_i table_e,i, shape ().  Tables lie where the
    logits lie.
    """
    values = [(x[kind].softmax(-1) * table).sum(-1) for kind, table in tables.items()]
    return torch.cat(values).mean()


def expected_flops(network: Supernet, x: Mapping[str, Tensor], reading: Reading = "real") -> Tensor:
    """FLOPs of the whole network with every edge at its mixture, shape (): at one-hot logits those
    of the discrete network.
    """
    network.space.check(x)
    cells = [
        (
            x[place.kind].double().softmax(-1)
            * flops_table(network, place, reading).to(x[place.kind].device)
        ).sum()
        for place in network.places
    ]
    return torch.stack(cells).sum() + _fixed_flops(network, reading)


def _fixed_flops(network: Supernet, reading: Reading) -> int:
    convs = sum(
        _conv_flops(conv, part.side, reading)
        for part in network.parts.values()
        for conv in part.convs
    )
    return convs + 2 * network.width * network.classes


def cost(network: Supernet, genotype: Genotype) -> Cost:
    """Exact parameters and FLOPs of the discrete network: the stack of `network` with the cells of
    `genotype`.

    Edges that cannot reach the output are counted too, as in the published tables of NAS-Bench-201.
    For those take `NasBench201(cells=5)`; for DARTS's networks on CIFAR-10 `Darts(channels=36,
    stack=...)` with 20 cells.
    """
    space = network.space
    if genotype.space != space:
        raise InvalidInput(
            f"this genotype is of the space {genotype.space.name}, but the network is of "
            f"{space.name}; use one of its own space"
        )
    # The network is all convolutions of its own and of the chosen operations, each with the side of
    # its output.
    convs = [(conv, part.side) for part in network.parts.values() for conv in part.convs]
    norms = [channels for part in network.parts.values() for channels in part.norms]
    for kind, channels, side in network.places:
        for edge, name in genotype.cells[kind]:
            for block in space.operations[space.names.index(name)].blocks(
                channels, space.stride(kind, edge)
            ):
                convs += [(conv, side) for conv in block]
                norms.append(block[-1].outputs)
    head = network.width * network.classes
    params = sum(conv.weights for conv, _ in convs) + 2 * sum(norms) + head + network.classes
    return Cost(params, sum(_conv_flops(conv, side, "real") for conv, side in convs) + 2 * head)
