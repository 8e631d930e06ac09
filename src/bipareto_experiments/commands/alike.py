"""`bipareto experiment nas train-alike`: found cells as networks of their own."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli import values
from bipareto.cli.output import Output, ensure_folder, finite
from bipareto.cli.values import Json, Out, Quiet, taking
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.cells import Channels, Dataset, searches_in, teller
from bipareto_experiments.commands.data import Folder
from bipareto_experiments.commands.options import Device, Tiny


def train_alike(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished comparisons.")
    ],
    methods: Annotated[list[str] | None, taking("NAME,..", "Whose cells; all if none.")] = None,
    search_seed: Annotated[int, taking("N", "Of the searches whose cells are trained.")] = 1,
    random: Annotated[int, taking("N", "Random cells beside them for each preference.", min=0)] = 1,
    epochs: Annotated[int, taking("N", "Passes over the training images.", min=1)] = 20,
    seconds: Annotated[
        float | None, taking("S", "For all trainings together, in place of --epochs.", min=1.0)
    ] = None,
    cells: Annotated[
        int | None, taking("N", "Per stage (NAS-Bench-201) or in all (DARTS).", min=1)
    ] = None,
    channels: Channels = None,
    batch: Annotated[int, taking("N", "Images of a step.", min=2)] = 256,
    half: Annotated[bool, typer.Option("--half", help="Let the passes work in bfloat16.")] = False,
    seed: Annotated[int, taking("N", "Start and order of the images, and random cells.")] = 0,
    dataset: Dataset = "cifar10",
    device: Device = None,
    folder: Folder = None,
    tiny: Tiny = False,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train what methods found, all alike, beside random cells of the same cost.

    One network per method and preference; the same --out goes on.

    \b
    Examples:
      bipareto experiment nas train-alike runs/darts --cells 8 --channels 16 --out runs/nets
      bipareto experiment nas train-alike runs/darts --seconds 300 --half --random 2
    """
    import torch

    from bipareto_experiments.data import load
    from bipareto_experiments.devices import device_of, machine_of
    from bipareto_experiments.nas.alike import entrants, picture, trained_alike
    from bipareto_experiments.nas.settings import PRESETS
    from bipareto_experiments.nas.standalone import Recipe
    from bipareto_experiments.nas.task import generated

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    found = entrants([searches_in(run) for run in runs], search_seed)
    if methods:
        wanted, there = values.names(methods), {entrant.method for entrant in found}
        missing = [name for name in wanted if name not in there]
        if missing:
            raise InvalidInput(
                f"no search by {missing[0]!r} is in these folders; choose from "
                f"{', '.join(sorted(there))}"
            )
        found = [entrant for entrant in found if entrant.method in wanted]
    where = device_of(device or ("cpu" if tiny else None))
    images = generated(PRESETS["tiny"]).images if tiny else load(dataset, folder)
    side = images.images.shape[-1]
    recipe = Recipe(
        epochs=epochs,
        batch=16 if tiny else batch,
        margin=side // 8,
        cutout=0 if tiny else side // 2,
        half=half,
        seed=seed,
    )
    with out.listening():
        records = trained_alike(
            found,
            images,
            recipe,
            where,
            channels=channels or (4 if tiny else None),
            cells=cells,
            random=random,
            seconds=seconds,
            folder=out_dir,
            progress=out.progress,
            say=teller(out),
        )
    rows = [
        [
            r["method"],
            ", ".join(f"{w:.2f}" for w in r["preference"]) if r["preference"] else "-",
            f"{r['accuracy'][-1]:.2f}",
            f"{r['flops'] / 1e6:.1f}",
            f"{r['params'] / 1e6:.3f}",
        ]
        for r in records
    ]
    out.table(
        f"Trained from scratch for {len(records[0]['epoch'])} epochs",
        ["method", "preference", "test accuracy in %", "MFLOPs", "M params"],
        rows,
        left=2,
    )
    result = {
        "machine": machine_of(where),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "recipe": asdict(recipe) | {"epochs": len(records[0]["epoch"])},
        "networks": records,
    }
    if out_dir is not None:
        (out_dir / "networks.json").write_text(json.dumps(finite(result)) + "\n", "utf-8")
        picture(records, out_dir / "networks.png")
        out.say(f"networks.json and networks.png are in {out_dir}")
    out.result(result)
