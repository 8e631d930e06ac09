"""Cells as records: genotype, exact cost, and the accuracy where it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bipareto_experiments.data import MissingData
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.known import DATASETS, KnownCells, load_known
from bipareto_experiments.nas.objectives import cost
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.standalone import sized


def described(genotype: Genotype, known: KnownCells | None) -> dict[str, Any]:
    """A cell as JSON: its genotype, exact parameters and FLOPs of the published network, and the
    accuracy where it is known.
    """
    exact = cost(sized(genotype), genotype)
    found: dict[str, Any] = {
        "genotype": json.loads(genotype.to_json()),
        "params": exact.params,
        "flops": exact.flops,
    }
    if known is not None and genotype.space == NAS_BENCH_201:
        found |= {
            "number": known.number(genotype),
            "accuracy": {name: known.accuracy(genotype, name) for name in DATASETS},
        }
    return found


def looked_up(space: str, folder: str | Path | None) -> KnownCells | None:
    """The table of accuracies where the space has one and the data folder holds it."""
    if space != NAS_BENCH_201.name:
        return None
    try:
        return load_known(folder)
    except MissingData:
        return None
