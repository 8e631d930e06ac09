"""What a comparison comes to: hypervolumes of the true accuracy and FLOPs, random draws, and how
well supernets rank cells.

Points are (error in per cent, MFLOPs) of the published network.  Hypervolumes are shares of the
true front's, below two reference points: chance (the error of guessing, the most FLOPs) and median
(the error of the median cell, the most FLOPs), which looks closer.

A third figure, *linked*, is that below the median of other cells, derived from the same logits by
the rule that DARTS has for its space: "none" is not taken.  In a mixture "none" costs nothing,
since batch norm undoes its scaling, so that a search can let it win everywhere and still have a
small loss; the cell it then stands for is not even connected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.fronts.measures import hypervolume
from bipareto.problem.sampler import generator
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.known import KnownCells
from bipareto_experiments.nas.spaces import NAS_BENCH_201, space_of

#: Of the data sets on which accuracies are known.
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet16": 120}
#: How often as many random cells are drawn as a method has found.
DRAWS = 2000


def points_of(
    known: KnownCells, numbers: Sequence[int] | Tensor, dataset: str = "cifar10"
) -> Tensor:
    """(error in %, MFLOPs) of cells, (n, 2) float64."""
    rows = torch.as_tensor(numbers)
    return torch.stack([100 - known.accuracies[dataset][rows], known.flops[rows] / 1e6], 1)


def references(
    known: KnownCells, dataset: str = "cifar10", classes: int = 10
) -> dict[str, list[float]]:
    """The reference points by name."""
    most = float(known.flops.max()) / 1e6
    return {
        "chance": [100 - 100 / classes, most],
        "median": [100 - float(known.accuracies[dataset].median()), most],
    }


def linked(known: KnownCells, logits: Sequence[Sequence[float]]) -> int:
    """The number of the cell that logits (edges, operations) stand for if "none" is not taken."""
    table = torch.tensor(logits, dtype=torch.float64)
    table[:, NAS_BENCH_201.names.index("none")] = -torch.inf
    return known.number(Genotype.of(NAS_BENCH_201, {"cell": table.argmax(-1)}))


def summary(result: dict[str, Any], known: KnownCells, dataset: str = "cifar10") -> dict[str, Any]:
    """Per method the hypervolume of the cells of one seed, averaged over seeds, with its standard
    error; and what to hold it against.

    random: as many cells drawn uniformly, the mean over `DRAWS` draws; front: the whole true front,
    1 by definition; best: the share that the best choice of as many cells would reach is not known,
    the front's is the bound.  by_luck: how often random cells, drawn once for every seed, have in
    the mean as much below the median.
    """
    records = [r for r in result["records"] if "number" in r]
    if not records:
        raise InvalidInput(
            "these results hold no cell of NAS-Bench-201; run a comparison there first"
        )
    corners = references(known, dataset, CLASSES[dataset])
    front = points_of(known, known.front(dataset), dataset)
    whole = {name: hypervolume(front, corner) for name, corner in corners.items()}

    def share(numbers: Sequence[int] | Tensor, key: str) -> float:
        return hypervolume(points_of(known, numbers, dataset), corners[key]) / whole[key]

    methods: dict[str, Any] = {}
    for name in dict.fromkeys(r["method"] for r in records):
        own = [r for r in records if r["method"] == name]
        by_seed = [
            [r for r in own if r["seed"] == seed] for seed in sorted({r["seed"] for r in own})
        ]
        volumes = {
            key: _spread([share([r["number"] for r in found], key) for found in by_seed])
            for key in corners
        }
        volumes["linked"] = _spread(
            [
                share([linked(known, r["logits"]["cell"]) for r in found], "median")
                for found in by_seed
            ]
        )
        methods[name] = {
            "cells": len(by_seed[0]),
            "distinct": len({r["number"] for r in own}),
            "seconds": result["seconds"].get(name),
            "accuracy": [r["accuracy"][dataset] for r in own],
            "hypervolume": volumes,
        }
    count = max(said["cells"] for said in methods.values())
    everything = torch.arange(len(known.choices))
    connected = everything[(known.choices != NAS_BENCH_201.names.index("none")).all(1)]
    shares = {key: _random(everything, count, partial(share, key=key)) for key in corners}
    shares["linked"] = _random(connected, count, partial(share, key="median"))
    drawn: dict[str, Any] = {"cells": count, "draws": DRAWS}
    drawn |= {
        key: {
            "mean": float(of.mean()),
            "low": float(of.quantile(0.05)),
            "high": float(of.quantile(0.95)),
        }
        for key, of in shares.items()
    }
    for said in methods.values():
        own = said["hypervolume"]["median"]
        seeds = len(own["by_seed"])
        means = shares["median"][: DRAWS // seeds * seeds].view(-1, seeds).mean(1)
        said["by_luck"] = float((means >= own["mean"]).double().mean())
    return {
        "dataset": dataset,
        "references": corners,
        "front": whole,
        "random": drawn,
        "methods": methods,
    }


def reference_point(objectives: Sequence[str], classes: int) -> list[float]:
    """The reference point of objectives, which the paper does not give: the loss of a guess, and 1
    for shares of the most expensive.
    """
    return [math.log(classes) if name == "loss" else 1.0 for name in objectives]


def volumes(result: dict[str, Any]) -> dict[str, Any]:
    """The paper's judgement: per method the hypervolume of the objectives themselves, of one seed's
    searches, averaged over seeds.

    mixture: of the supernet as it is searched; discrete: of the derived cells with the supernet's
    weights; both on validation images, which y has partly followed.  test_mixture, test_discrete:
    on images that neither level saw, where records have them.
    """
    corner = reference_point(result["objectives"], result["data"]["classes"])
    found: dict[str, Any] = {}
    for name in dict.fromkeys(r["method"] for r in result["records"]):
        own = [r for r in result["records"] if r["method"] == name]
        seeds = sorted({r["seed"] for r in own})
        looks: dict[str, Callable[[dict[str, Any]], list[float]]] = {
            "mixture": lambda r: r["objectives"],
            "discrete": lambda r: r["discrete"],
        }
        if all("test" in r for r in own):
            looks |= {
                "test_mixture": lambda r: r["test"]["mixture"],
                "test_discrete": lambda r: r["test"]["discrete"],
            }
        found[name] = {
            label: _spread(
                [hypervolume([look(r) for r in own if r["seed"] == seed], corner) for seed in seeds]
            )
            for label, look in looks.items()
        }
    return {"reference": corner, "methods": found}


def best_trials(result: dict[str, Any]) -> dict[str, Any]:
    """Of the trials of each method the one with the most hypervolume on validation images, mean of
    mixture and derived cells.

    Test images and known accuracies take no part in it.
    """
    found: dict[str, Any] = {}
    for label, own in volumes(result)["methods"].items():
        name, _, chosen = label.partition(", ")
        value = (own["mixture"]["mean"] + own["discrete"]["mean"]) / 2
        if name not in found or value > found[name]["value"]:
            found[name] = {
                "chosen": chosen,
                "value": value,
                "mixture": own["mixture"]["mean"],
                "discrete": own["discrete"]["mean"],
            }
    return found


def _random(cells: Tensor, count: int, share: Callable[[Tensor], float]) -> Tensor:
    """What `DRAWS` draws of `count` cells have, (DRAWS,) float64."""
    drawn = torch.randint(len(cells), (DRAWS, count), generator=generator("random cells", 1, 0))
    return torch.tensor([share(cells[numbers]) for numbers in drawn], dtype=torch.float64)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    rows = torch.tensor(values, dtype=torch.float64)
    return {
        "mean": float(rows.mean()),
        "error": float(rows.std() / len(rows) ** 0.5) if len(rows) > 1 else None,
        "by_seed": rows.tolist(),
    }


def correlations(
    result: dict[str, Any], known: KnownCells, dataset: str = "cifar10"
) -> list[dict[str, Any]]:
    """Spearman's and Kendall's rank correlation of minus the supernet's loss with the looked-up
    accuracy, per supernet.
    """
    from scipy.stats import kendalltau, spearmanr

    found = []
    for ranking in result["rankings"]:
        loss = torch.tensor(ranking["loss"], dtype=torch.float64)
        accuracy = known.accuracies[dataset][torch.tensor(ranking["cells"])]
        better = accuracy > accuracy.median()
        found.append(
            {
                "method": ranking["method"],
                "seed": ranking["seed"],
                "preference": ranking["preference"],
                "cells": len(loss),
                "spearman": float(spearmanr(-loss.numpy(), accuracy.numpy()).statistic),
                "kendall": float(kendalltau(-loss.numpy(), accuracy.numpy()).statistic),
                "spearman_better_half": float(
                    spearmanr(-loss[better].numpy(), accuracy[better].numpy()).statistic
                ),
            }
        )
    return found


def favoured(result: dict[str, Any], of: str = "objectives") -> dict[str, Any]:
    """Per method: is the best value of each objective found under the preference for it?

    values: under each preference, mean over seeds; own: whether the best of them is under the
    objective's own preference; seeds: in how many seeds it is, of how many.

    Args:
        of: "objectives" (of the mixture at the end of the search) or "discrete" (of the derived
            cell with the supernet's weights).
    """
    names, found = result["objectives"], {}
    records = [r for r in result["records"] if r["preference"] is not None]
    for method in dict.fromkeys(r["method"] for r in records):
        own = [r for r in records if r["method"] == method]
        preferences = list(dict.fromkeys(tuple(r["preference"]) for r in own))
        seeds = sorted({r["seed"] for r in own})
        at = {(tuple(r["preference"]), r["seed"]): r[of] for r in own}
        values = torch.tensor(
            [[at[w, seed] for w in preferences] for seed in seeds], dtype=torch.float64
        )  # (seeds, preferences, m)
        rows = []
        for i, name in enumerate(names):
            wanted = max(range(len(preferences)), key=lambda k: preferences[k][i])
            means = values[:, :, i].mean(0)
            best = int(means.argmin())
            hits = int((values[:, :, i].argmin(1) == wanted).sum())
            rows.append(
                {
                    "objective": name,
                    "best_under": preferences[best],
                    "own": best == wanted,
                    "seeds": [hits, len(seeds)],
                    "values": means.tolist(),
                }
            )
        found[method] = {"preferences": preferences, "objectives": rows}
    return found


def operations(result: dict[str, Any]) -> list[dict[str, Any]]:
    """How many edges of the derived cells have each operation, by method and preference, mean over
    seeds: do searches collapse to skips?
    """
    names = space_of(result["settings"]["space"]).names
    found: dict[tuple[Any, ...], list[list[int]]] = {}
    for r in result["records"]:
        chosen = [edge["operation"] for cell in r["genotype"]["cells"].values() for edge in cell]
        key = (r["method"], tuple(r["preference"]) if r["preference"] else None)
        found.setdefault(key, []).append([chosen.count(name) for name in names])
    return [
        {
            "method": method,
            "preference": preference,
            "edges": dict(zip(names, torch.tensor(rows).double().mean(0).tolist(), strict=True)),
        }
        for (method, preference), rows in found.items()
    ]
