"""Known answers: the accuracy of every NAS-Bench-201 cell after 200 epochs, and the true front of
accuracy and FLOPs.

The table is the file `nats_bench_tss_200ep_test_acc.npz` of the data folder: test accuracy in
percent, mean over the seeds that its authors trained, for all 15,625 cells on three data sets.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto_experiments.data import VARIABLE, DataError, MissingData, data_folder
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.objectives import expected_flops, flops_table
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.supernet import NasBench201

FILE = "nats_bench_tss_200ep_test_acc.npz"
#: The data sets that the cells were trained on.
DATASETS = ("cifar10", "cifar100", "imagenet16")
#: The network in which they were trained, on 32x32 images.
PUBLISHED = NasBench201(channels=16, cells=5)


@dataclass(frozen=True)
class KnownCells:
    """All cells of NAS-Bench-201, in the order of their number (base 5, the first edge highest).

    choices: (15625, 6) index of the operation on every edge.
    accuracies: {data set: (15625,)} test accuracy in percent.
    flops: (15625,) of the published network on one 32x32 image with ten classes.
    """

    choices: Tensor
    accuracies: dict[str, Tensor]
    flops: Tensor

    def _of(self, dataset: str) -> Tensor:
        if dataset not in self.accuracies:
            raise InvalidInput(
                f"no accuracy is known on {dataset!r}; choose one of {', '.join(self.accuracies)}"
            )
        return self.accuracies[dataset]

    def genotype(self, number: int) -> Genotype:
        """The cell of a number."""
        return Genotype.of(NAS_BENCH_201, {"cell": self.choices[number]})

    def number(self, genotype: Genotype) -> int:
        """The number of a cell."""
        if genotype.space != NAS_BENCH_201:
            raise InvalidInput(
                f"accuracies are known for {NAS_BENCH_201.name} only; this genotype is of the "
                f"space {genotype.space.name}"
            )
        return int(_numbers(genotype.choices()["cell"]))

    def accuracy(self, genotype: Genotype, dataset: str = "cifar10") -> float:
        """Its test accuracy in percent."""
        return float(self._of(dataset)[self.number(genotype)])

    def front(self, dataset: str = "cifar10") -> Tensor:
        """Numbers of the cells that no other beats in accuracy and FLOPs at once, by growing FLOPs;
        of equal cells the first.
        """
        import moocore

        points = torch.stack([-self._of(dataset), self.flops], 1).numpy()
        best = torch.from_numpy(np.flatnonzero(moocore.is_nondominated(points)))
        return best[self.flops[best].argsort()]


def _numbers(choices: Tensor) -> Tensor:
    """(..., 6) -> (...), the digits read in base 5."""
    base = len(NAS_BENCH_201.operations)
    return (choices * base ** torch.arange(choices.shape[-1]).flip(0)).sum(-1)


def load_known(folder: str | Path | None = None) -> KnownCells:
    """Read the table from the data folder; None for the one that BIPARETO_DATA names."""
    where = data_folder(folder)
    if where is None or not (where / FILE).is_file():
        looked = (
            f"not in {where}"
            if where is not None
            else f"not found: no data folder is named by {VARIABLE}"
        )
        raise MissingData(
            f"{FILE}, the table of NAS-Bench-201's accuracies, is {looked}; put it into the data "
            "folder, or search without looking up"
        )
    names = tuple(NAS_BENCH_201.names)
    try:
        with np.load(where / FILE, allow_pickle=False) as found:
            order, choices = (
                tuple(found["op_names"].tolist()),
                torch.from_numpy(found["ops"].astype(np.int64)),
            )
            edges = tuple(found["edge_order"].tolist())
            accuracies = {
                dataset: torch.from_numpy(found[f"{dataset}_test"].astype(np.float64))
                for dataset in DATASETS
            }
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{where / FILE} cannot be read as the table of NAS-Bench-201 ({error}); get the file "
            "again"
        ) from None
    numbers = (
        _numbers(choices) if choices.shape[1:] == (len(NAS_BENCH_201.edges),) else torch.empty(0)
    )
    whole = torch.equal(numbers.sort().values, torch.arange(len(names) ** len(NAS_BENCH_201.edges)))
    if order != names or edges != tuple(map(str, NAS_BENCH_201.edges)) or not whole:
        raise DataError(
            f"{where / FILE} lists operations {order} on edges {edges}, {len(choices)} cells; need "
            f"every cell of {names} once"
        )
    by_number = numbers.argsort()
    choices = choices[by_number]
    return KnownCells(
        choices,
        {dataset: values[by_number] for dataset, values in accuracies.items()},
        _all_flops(choices),
    )


def _all_flops(choices: Tensor) -> Tensor:
    """FLOPs of all cells in the published network: a cell without convolutions, and what the edges
    add to it.
    """
    empty = Genotype.of(
        NAS_BENCH_201, {"cell": torch.zeros(len(NAS_BENCH_201.edges), dtype=torch.int64)}
    )
    fixed = expected_flops(PUBLISHED, empty.logits())
    table = torch.stack([flops_table(PUBLISHED, place) for place in PUBLISHED.places]).sum(0)
    return fixed + table[torch.arange(len(table)), choices].sum(-1)
