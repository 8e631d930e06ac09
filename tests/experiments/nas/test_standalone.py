"""Found architectures as ordinary networks: counted, trained, stopped and gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bipareto.errors import InvalidInput
from bipareto.sweep.durable import read_tensors
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.objectives import cost
from bipareto_experiments.nas.settings import preset
from bipareto_experiments.nas.spaces import DARTS, NAS_BENCH_201
from bipareto_experiments.nas.standalone import Recipe, Standalone, sized
from bipareto_experiments.nas.standalone_training import train_network
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet
from bipareto_experiments.nas.task import generated
from experiments.nas.reference import random_genotype

IMAGES = generated(preset("tiny")).images
CPU = torch.device("cpu")
CELL = Genotype.of(NAS_BENCH_201, {"cell": torch.tensor([3, 1, 2, 4, 0, 3])})
SMALL = NasBench201(channels=4, size=8, classes=4)
RECIPE = Recipe(epochs=3, batch=16, margin=1, cutout=2)


@pytest.mark.parametrize(
    "network",
    [SMALL, NasBench201(channels=2, size=8, cells=2), Darts(channels=2, size=8, stack="NRNRN")],
)
def test_its_parameters_and_flops_are_those_counted(network: Supernet) -> None:
    for seed in range(3):
        genotype = random_genotype(network.space, seed)
        model = Standalone(genotype, network).eval()
        exact = cost(network, genotype)
        assert sum(p.numel() for p in model.parameters()) == exact.params
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, 8, 8))
        assert counter.get_total_flops() == exact.flops


def test_training_stopped_after_every_epoch_ends_bit_identical(tmp_path: Path) -> None:
    whole = train_network(CELL, SMALL, IMAGES, RECIPE, CPU, folder=tmp_path)
    assert whole["accuracy"][-1] > 50 > 100 / 4  # four classes
    saved, _ = read_tensors(tmp_path / "network.safetensors")

    class _Stop(RuntimeError):
        pass

    def stop(_: str) -> None:
        raise _Stop

    part = tmp_path / "part"
    part.mkdir()
    for _ in range(3):
        with pytest.raises(_Stop):
            train_network(CELL, SMALL, IMAGES, RECIPE, CPU, folder=part, say=stop)
    assert train_network(CELL, SMALL, IMAGES, RECIPE, CPU, folder=part, say=stop) == whole
    again, _ = read_tensors(part / "network.safetensors")
    assert all(torch.equal(again[name], value) for name, value in saved.items())
    with pytest.raises(
        InvalidInput, match=r"the training of another recipe \(rate = 0.1, not 0.2\)"
    ):
        train_network(CELL, SMALL, IMAGES, replace(RECIPE, rate=0.2), CPU, folder=part)
    with pytest.raises(InvalidInput, match="the training of another genotype"):
        train_network(random_genotype(NAS_BENCH_201, 0), SMALL, IMAGES, RECIPE, CPU, folder=part)


def test_stacks_of_the_publications() -> None:
    darts = sized(random_genotype(DARTS, 0), IMAGES)
    assert isinstance(darts, Darts)
    assert (darts.channels, darts.stack) == (36, "NNNNNNRNNNNNNRNNNNNN")
    assert sized(CELL, IMAGES, channels=8) == NasBench201(channels=8, cells=5, size=8, classes=4)


def test_bad_input_is_named() -> None:
    with pytest.raises(
        InvalidInput, match="genotype is of the space darts, but the network is of nas-bench-201"
    ):
        Standalone(random_genotype(DARTS, 0), SMALL)
    with pytest.raises(InvalidInput, match="cells = 2; a network of DARTS has at least 3"):
        sized(random_genotype(DARTS, 0), IMAGES, cells=2)
    with pytest.raises(InvalidInput, match="batch = 1; it must be from 2"):
        train_network(CELL, SMALL, IMAGES, replace(RECIPE, batch=1), CPU)
