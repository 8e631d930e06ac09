"""Supernets and counts against ordinary modules, derivatives, batching, and what is refused."""

from __future__ import annotations

import pytest
import torch

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto_experiments.nas.genotype import Chosen, Genotype
from bipareto_experiments.nas.objectives import cost, expected_flops, flops_ratios, flops_table
from bipareto_experiments.nas.spaces import DARTS, NAS_BENCH_201, Edge, Operation, Space
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet
from experiments.nas.reference import counted, discrete, fill, random_genotype
from experiments.nas.supernets import images, start

TINY = [
    NasBench201(channels=4, size=8, classes=3, cells=2),
    Darts(channels=4, size=8, classes=3),
    Darts(channels=2, size=8, classes=3, stack="RNRN"),
]
networks = pytest.mark.parametrize("network", TINY, ids=["201", "NRN", "RNRN"])


def test_spaces_have_the_published_tables() -> None:
    assert [len(space.operations) for space in (NAS_BENCH_201, DARTS)] == [5, 8]
    assert [len(space.edges) * len(space.kinds) for space in (NAS_BENCH_201, DARTS)] == [6, 28]
    assert [str(edge) for edge in NAS_BENCH_201.edges] == [
        "1<-0",
        "2<-0",
        "2<-1",
        "3<-0",
        "3<-1",
        "3<-2",
    ]


@networks
@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_a_counter_on_modules(network: Supernet, seed: int) -> None:
    genotype = random_genotype(network.space, seed)
    assert cost(network, genotype) == counted(discrete(network, genotype), network.size)
    # The mixture at one-hot logits is the discrete network.
    assert expected_flops(network, genotype.logits()).item() == cost(network, genotype).flops


@networks
def test_every_operation_counts_as_its_module(network: Supernet) -> None:
    """Networks of one operation alone, with and without stride."""
    space = network.space
    for o, operation in enumerate(space.operations):
        if operation.kind == "none":
            continue
        kept = torch.tensor(
            [e for node in range(space.given, len(space.nodes)) for e in space.into(node)[-2:]]
        )
        choices = {
            kind: torch.zeros(len(space.edges), dtype=torch.int64).index_fill(0, kept, o)
            for kind in space.kinds
        }
        genotype = Genotype.of(space, choices)
        assert (
            expected_flops(network, genotype.logits()).item()
            == counted(discrete(network, genotype), network.size)[1]
        ), operation.name


def test_counts_of_published_networks() -> None:
    """1.531546 M parameters and 220.12 M multiplications for the largest cell of NAS-Bench-201,
    3.349342 M for DARTS's second order network.
    """
    largest = Genotype.of(NAS_BENCH_201, {"cell": torch.full((6,), 3)})
    found = cost(NasBench201(cells=5), largest)
    assert found.params == 1_531_546
    assert found.flops / 2e6 == pytest.approx(220.12, abs=0.005)
    sep, skip, pool = "sep_conv_3x3", "skip_connect", "max_pool_3x3"
    normal = [
        (2, 0, sep),
        (2, 1, sep),
        (3, 0, sep),
        (3, 1, sep),
        (4, 0, skip),
        (4, 1, sep),
        (5, 0, skip),
        (5, 2, "dil_conv_3x3"),
    ]
    reduction = [
        (2, 0, pool),
        (2, 1, pool),
        (3, 1, pool),
        (3, 2, skip),
        (4, 0, pool),
        (4, 2, skip),
        (5, 1, pool),
        (5, 2, skip),
    ]
    cells = {
        kind: tuple(Chosen(Edge(t, s), name) for t, s, name in table)
        for kind, table in (("normal", normal), ("reduction", reduction))
    }
    assert (
        cost(
            Darts(channels=36, stack="N" * 6 + "R" + "N" * 6 + "R" + "N" * 6),
            Genotype(DARTS, cells),
        ).params
        == 3_349_342
    )


def test_readings_of_flops() -> None:
    network = Darts(channels=16)
    normal, reduction, _ = network.places
    at = {name: o for o, name in enumerate(DARTS.names)}
    paper, real = (flops_table(network, normal, reading)[0] for reading in ("paper", "real"))
    # 2 H W C_in C_out K^2 for each of the four convolutions, and with groups C for the two
    # depthwise ones
    assert paper[at["sep_conv_5x5"]].item() == 2 * 32**2 * 2 * (16 * 16 * 25 + 16 * 16)
    assert real[at["sep_conv_5x5"]].item() == 2 * 32**2 * 2 * (16 * 25 + 16 * 16)
    assert real[[at["none"], at["max_pool_3x3"], at["skip_connect"]]].eq(0).all()
    paper, real = (flops_table(network, reduction, reading) for reading in ("paper", "real"))
    assert (paper[:, at["skip_connect"]] == 0).all()
    strided = torch.tensor([edge.source < 2 for edge in DARTS.edges])
    assert torch.equal(
        real[:, at["skip_connect"]], torch.where(strided, 2.0 * 16**2 * 32 * 32, 0.0).double()
    )
    ratios = flops_ratios(network, "real")
    assert all(table.amax(-1).eq(1).all() for table in ratios.values())
    # Normal cells stand at C = 16 and at C = 32: the ratio is the mean of the two.
    dilated = [(9 * C + C * C) / (2 * (25 * C + C * C)) for C in (16, 32)]
    assert ratios["normal"][3, at["dil_conv_3x3"]].item() == pytest.approx(
        sum(dilated) / 2, rel=1e-12
    )
    assert torch.equal(
        flops_ratios(NasBench201())["cell"][0],
        torch.tensor([0, 0, 1 / 9, 1, 0], dtype=torch.float64),
    )


@networks
@pytest.mark.parametrize("seed", range(3))
def test_supernet_at_one_hot_logits_is_the_discrete_network(network: Supernet, seed: int) -> None:
    genotype, (_, y), batch = random_genotype(network.space, seed), start(network), images(network)
    model = fill(discrete(network, genotype, searching=True).double(), y)
    torch.testing.assert_close(
        network.logits(genotype.logits(dtype=torch.float64), y, batch),
        model.train()(batch),
        rtol=1e-9,
        atol=1e-9,
    )


@networks
def test_gradients_by_finite_differences(network: Supernet) -> None:
    batch = images(network)
    point = start(network)

    def value(pair: tuple) -> torch.Tensor:
        return network.logits(*pair, batch).square().mean()

    slope = torch.func.grad(value)(point)
    for which in (0, 1):  # along x alone, then along y alone
        direction = [tree.zeros_like(part) for part in point]
        direction[which] = tree.map_(torch.randn_like, point[which])
        h = 1e-8  # small enough to stay between the kinks of ReLU and max pooling
        ahead, behind = (
            value(tuple(tree.add_scaled(p, s, d) for p, d in zip(point, direction, strict=True)))
            for s in (h, -h)
        )
        exact = sum(tree.dot(g, d) for g, d in zip(slope, direction, strict=True))
        torch.testing.assert_close((ahead - behind) / (2 * h), exact, rtol=1e-5, atol=1e-7)


@networks
def test_runs_side_by_side_equal_runs_alone(network: Supernet) -> None:
    """vmap over architectures and weights, value and gradient."""
    batch = images(network, n=3)

    def value(x: dict, y: dict) -> torch.Tensor:
        return network.logits(x, y, batch).square().mean()

    both = torch.func.grad(value, argnums=(0, 1))
    points = [start(network, seed=seed) for seed in (0, 1)]
    together = torch.func.vmap(both)(
        *(tree.stack(list(parts)) for parts in zip(*points, strict=True))
    )
    for r, (x, y) in enumerate(points):
        alone = both(x, y)
        for a, b in zip(tree.leaves(alone), tree.leaves(together), strict=True):
            torch.testing.assert_close(a, b[r], rtol=1e-8, atol=1e-10)


def test_start_is_a_function_of_the_seed_and_near_the_equal_mixture() -> None:
    x, y = TINY[1].start(3)
    again = TINY[1].start(3)
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves((x, y)), tree.leaves(again), strict=True)
    )
    assert not torch.equal(tree.leaves(x)[0], tree.leaves(TINY[1].start(4)[0])[0])
    assert all(leaf.abs().max() < 0.01 for leaf in tree.leaves(x))


def test_bad_networks_are_refused() -> None:
    for make, message in [
        (lambda: Darts(stack="NN"), "at least one of each"),
        (lambda: Darts(stack="NXR"), "'NXR'"),
        (lambda: Darts(channels=3), "even"),
        (lambda: NasBench201(size=6), "halved 2 times; use a multiple of 4"),
        (lambda: NasBench201(cells=0), "cells = 0"),
        (lambda: NasBench201(channels=0), "channels = 0"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            make()


def test_bad_spaces_are_refused() -> None:
    def space(operations: tuple, edges: tuple = (Edge(1, 0),), kept: int | None = None) -> Space:
        return Space("own", operations, edges, ("cell",), ("in", "out"), 1, kept, pool_norm=False)

    none, skip = Operation("none", "none"), Operation("skip", "skip")
    for operations in ((), (none,)):
        with pytest.raises(InvalidInput, match="edge 1<-0 has no operations"):
            space(operations)
    with pytest.raises(InvalidInput, match="no edge leads to node 1"):
        space((skip,), edges=())
    with pytest.raises(InvalidInput, match="kind 'none'"):
        space((skip,), kept=1)


def test_bad_input_of_a_network_is_refused() -> None:
    network = TINY[0]
    x, y = start(network)
    with pytest.raises(InvalidInput, match="batch of 1 is too small: batch norm"):
        network.logits(x, y, images(network, n=1))
    with pytest.raises(InvalidInput, match="made for"):
        network.logits(x, y, torch.zeros(2, 3, 4, 4))
    with pytest.raises(InvalidInput, match=r"cells of kind cell"):
        network.logits(DARTS_LOGITS, y, images(network))
    with pytest.raises(InvalidInput, match=r"shape \(6, 0\).*\(6, 5\)"):
        network.logits({"cell": torch.zeros(6, 0)}, y, images(network))
    with pytest.raises(InvalidInput, match="reading 'mine'"):
        flops_table(network, network.places[0], "mine")
    with pytest.raises(
        InvalidInput, match="of the space darts, but the network is of nas-bench-201"
    ):
        cost(network, random_genotype(DARTS, 0))


DARTS_LOGITS = {"normal": torch.zeros(14, 8), "reduction": torch.zeros(14, 8)}
