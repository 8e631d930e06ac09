"""Found cells as networks of their own, trained alike from scratch beside random cells of the same
cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bipareto.errors import InvalidInput
from bipareto.fronts.drawing import save, styles
from bipareto.problem.sampler import generator
from bipareto_experiments.data import ImageSet
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.objectives import cost
from bipareto_experiments.nas.standalone import Recipe, sized
from bipareto_experiments.nas.standalone_training import (
    faster_layout,
    seconds_of_epoch,
    train_network,
)
from bipareto_experiments.nas.supernet import Supernet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Entrant", "entrants", "picture", "random_like", "trained_alike"]

#: A random cell costs as much as a found one if their FLOPs differ by no more than this share; so
#: many are drawn before it is given up.
ALIKE, DRAWS = 0.05, 20_000
#: What a network takes beside its passes, in seconds and in shares of them: recording, tests of
#: every epoch, steps of the optimizer.
APART, BESIDE = 6.0, 0.25


class Entrant(NamedTuple):
    """A network to be trained: who found its cells, under which preference."""

    method: str
    preference: tuple[float, ...] | None
    genotype: Genotype


def entrants(results: Sequence[dict[str, Any]], seed: int) -> list[Entrant]:
    """The cells that comparisons found with a seed; of a method that several have, the first's."""
    found: dict[tuple[str, tuple[float, ...] | None], Entrant] = {}
    for result in results:
        for record in result["records"]:
            weights = tuple(record["preference"]) if record["preference"] else None
            if record["seed"] == seed:
                genotype = Genotype.from_json(json.dumps(record["genotype"]))
                found.setdefault(
                    (record["method"], weights), Entrant(record["method"], weights, genotype)
                )
    if not found:
        seeds = sorted({r["seed"] for result in results for r in result["records"]})
        raise InvalidInput(
            f"none of the searches has the seed {seed}; choose one of {', '.join(map(str, seeds))}"
        )
    return list(found.values())


def random_like(like: Genotype, network: Supernet, stream: torch.Generator) -> Genotype:
    """A random cell whose network has as many FLOPs, to a twentieth."""
    wanted = cost(network, like).flops
    for _ in range(DRAWS):
        cell = Genotype.random(like.space, stream)
        if abs(cost(network, cell).flops - wanted) <= ALIKE * wanted:
            return cell
    raise InvalidInput(
        f"none of {DRAWS} random cells has {wanted / 1e6:.1f} MFLOPs to {ALIKE:.0%}; compare with "
        "fewer (--random 0)"
    )


def trained_alike(
    found: Sequence[Entrant],
    images: ImageSet,
    recipe: Recipe,
    device: torch.device,
    *,
    channels: int | None = None,
    cells: int | None = None,
    random: int = 0,
    seconds: float | None = None,
    folder: Path | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """A record for each network: whose, accuracies (in %) and losses by epoch, params, flops.

    Args:
        recipe: the same for all.
        channels, cells: of the networks, see `sized`.
        random: so many random cells for each preference, as dear as the first entrant's.
        seconds: for all trainings together; the epochs that fit are the recipe's then.
        folder: keeps every network in a folder of its own, from which the same call goes on.
    """
    space = found[0].genotype
    network = sized(space, images, channels=channels, cells=cells)
    stream, every = generator("random cells", 0, recipe.seed), list(found)
    for weights in dict.fromkeys(entrant.preference for entrant in found):
        like = next(entrant for entrant in found if entrant.preference == weights)
        every += [
            Entrant("random cell", weights, random_like(like.genotype, network, stream))
            for _ in range(random)
        ]
    layout = faster_layout(every[0].genotype, network, images, recipe, device)
    if seconds is not None:
        each = sum(
            seconds_of_epoch(entrant.genotype, network, images, recipe, device, layout)
            for entrant in every
        )
        left = seconds - APART * len(every)
        recipe = replace(recipe, epochs=max(1, int(left / (each * (1 + BESIDE)))))
    if say is not None:
        say(f"{len(every)} networks, {recipe.epochs} epochs each")
    records = []
    for i, entrant in enumerate(every):
        part = None if folder is None else folder / f"network-{i}"
        if part is not None:
            part.mkdir(parents=True, exist_ok=True)
        trained = train_network(
            entrant.genotype, network, images, recipe, device,
            layout=layout, folder=part, progress=progress,
        )  # fmt: skip
        records.append(
            {
                "method": entrant.method,
                "preference": entrant.preference,
                "genotype": json.loads(entrant.genotype.to_json()),
                **trained,
            }
        )
        if say is not None:
            say(
                f"{entrant.method} {entrant.preference}: {trained['accuracy'][-1]:.2f} %, "
                f"{trained['flops'] / 1e6:.1f} MFLOPs"
            )
    return records


def picture(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy over FLOPs, a marker for each network, as a PNG."""
    from matplotlib.figure import Figure

    figure: Figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axis = figure.subplots()
    methods = list(dict.fromkeys(record["method"] for record in records))
    for name, style in zip(methods, styles(methods), strict=True):
        own = [r for r in records if r["method"] == name]
        axis.scatter(
            [r["flops"] / 1e6 for r in own],
            [r["accuracy"][-1] for r in own],
            s=42,
            edgecolors="black",
            linewidths=0.4,
            label=name,
            **style,
        )
    epochs = len(records[0]["epoch"])
    axis.set(
        xlabel="MFLOPs",
        ylabel="test accuracy in %",
        title=f"Found cells trained from scratch, {epochs} epochs each",
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    save(figure, path)
