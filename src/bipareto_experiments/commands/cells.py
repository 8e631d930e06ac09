"""`bipareto experiment nas derive`, `train` and `figures`: what becomes of searched cells."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.output import Output, ensure_folder, finite
from bipareto.cli.values import Json, Out, Quiet, taking
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.architectures import judged, show_cells
from bipareto_experiments.commands.data import Folder
from bipareto_experiments.commands.kept import prefixes, results_of
from bipareto_experiments.commands.options import Device, Tiny

if TYPE_CHECKING:
    from bipareto_experiments.nas.genotype import Genotype


Dataset = Annotated[str, taking("NAME", "cifar10, cifar100 or another image set.", "--dataset")]
Channels = Annotated[
    int | None, taking("C", "Of the first cell; the preset's if none.", "--channels", min=1)
]


def derive(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The folder of a search or comparison, or a genotype's JSON file."
        ),
    ],
    folder: Folder = None,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Architectures as JSON and SVG, with exact parameters, FLOPs and accuracy.

    \b
    Examples:
      bipareto experiment nas derive runs/search --out cells
      bipareto experiment nas derive cells/genotype-0.json --json
    """
    from bipareto_experiments.nas.genotype import Genotype
    from bipareto_experiments.nas.lookups import described, looked_up

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    if run.is_dir():
        kept = searches_in(run)["records"]
        genotypes = [Genotype.from_json(json.dumps(r["genotype"])) for r in kept]
        labels = [
            {"method": r["method"], "preference": r["preference"], "seed": r["seed"]} for r in kept
        ]
    elif not run.exists():
        raise InvalidInput(
            f"{run} does not exist; give the folder of a search or comparison, or a genotype's "
            "JSON file"
        )
    else:
        genotypes, labels = [read_genotype(run)], [{}]
    known = looked_up(genotypes[0].space.name, folder)
    records = [
        label | described(genotype, known)
        for label, genotype in zip(labels, genotypes, strict=True)
    ]
    if out_dir is not None:
        write_cells(out_dir, records)
        out.say(f"wrote genotype-0 to genotype-{len(records) - 1}, .json and .svg, to {out_dir}")
    show_cells(out, records, genotypes)
    out.result({"cells": records})


def train(
    genotype: Annotated[
        Path,
        typer.Argument(metavar="GENOTYPE", help="A genotype's JSON file, of `derive` or `search`."),
    ],
    dataset: Dataset = "cifar10",
    epochs: Annotated[int, taking("N", "Passes over the training images.", min=1)] = 200,
    channels: Channels = None,
    cells: Annotated[
        int | None, taking("N", "Per stage (NAS-Bench-201) or in all (DARTS).", min=1)
    ] = None,
    batch: Annotated[int, taking("N", "Images of a step.", min=2)] = 256,
    rate: Annotated[float, taking("LR", "Of SGD; falls to zero along a cosine.")] = 0.1,
    half: Annotated[bool, typer.Option("--half", help="Let the passes work in bfloat16.")] = False,
    seed: Annotated[int, taking("N", "Start and order of the images.")] = 0,
    device: Device = None,
    folder: Folder = None,
    tiny: Tiny = False,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a found network from scratch and test it; the same --out goes on.

    \b
    Examples:
      bipareto experiment nas train cells/genotype-0.json --out runs/net
      bipareto experiment nas train cells/genotype-0.json --tiny --epochs 2
    """
    from bipareto_experiments.data import load
    from bipareto_experiments.devices import device_of
    from bipareto_experiments.nas.settings import PRESETS
    from bipareto_experiments.nas.standalone import Recipe, sized
    from bipareto_experiments.nas.standalone_training import faster_layout, train_network
    from bipareto_experiments.nas.task import generated

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    cell = read_genotype(genotype)
    where = device_of(device or ("cpu" if tiny else None))
    images = generated(PRESETS["tiny"]).images if tiny else load(dataset, folder)
    network = sized(
        cell,
        images,
        channels=channels or (4 if tiny else None),
        cells=cells or (1 if tiny and cell.space.given == 1 else None),
    )
    side = images.images.shape[-1]
    recipe = Recipe(
        epochs=epochs,
        batch=16 if tiny else batch,
        rate=rate,
        margin=side // 8,
        cutout=0 if tiny else side // 2,
        half=half,
        seed=seed,
    )
    with out.listening():
        found = train_network(
            cell,
            network,
            images,
            recipe,
            where,
            layout=faster_layout(cell, network, images, recipe, where),
            folder=out_dir,
            progress=out.progress,
            say=teller(out),
        )
    rows = [
        [str(e), f"{found['loss'][i]:.4f}", f"{found['accuracy'][i]:.2f}"]
        for i, e in enumerate(found["epoch"])
    ]
    out.table(
        f"{found['params']:,} parameters, {found['flops']:,} FLOPs",
        ["epoch", "training loss", "test accuracy in %"],
        rows[-10:],
    )
    out.result(found)


def figures(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished comparisons.")
    ],
    folder: Folder = None,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw what comparisons found, and write their tables.

    \b
    Examples:
      bipareto experiment nas figures runs/nas runs/four --out docs/images
    """
    from bipareto_experiments.nas.figures import draw
    from bipareto_experiments.nas.lookups import looked_up

    out = Output(as_json, quiet)
    results, names = [searches_in(run) for run in runs], prefixes(runs)
    target = out_dir or runs[0]
    ensure_folder(target)
    written: list[str] = []
    tables: dict[str, Any] = {}
    for run, name, result in zip(runs, names, results, strict=True):
        if len(runs) > 1:
            out.say(f"{run}\n")
        known = looked_up(result["settings"]["space"], folder)
        written += draw(result, known, target, name)
        tables[name] = judged(out, result, known)
        (target / f"{name}-tables.json").write_text(
            json.dumps(finite(tables[name]), indent=1) + "\n", "utf-8"
        )
        written.append(f"{name}-tables.json")
    out.say(f"wrote {', '.join(written)} to {target}")
    out.result({"files": written, "tables": tables})


def searches_in(run: Path) -> dict[str, Any]:
    """The results of a search or comparison."""
    found = results_of(run, "nas", "bipareto experiment nas search --out FOLDER")
    if "settings" not in found or any("genotype" not in record for record in found["records"]):
        raise InvalidInput(
            f"{run / 'results.json'} holds no architecture searches; give the folder of `bipareto "
            "experiment nas search` or `compare`"
        )
    return found


def read_genotype(path: Path) -> Genotype:
    """A genotype's JSON file."""
    from bipareto_experiments.nas.genotype import Genotype

    try:
        return Genotype.from_json(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}); give a genotype's JSON file, as `derive "
            "--out` writes it"
        ) from error
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def write_cells(folder: Path, records: list[dict[str, Any]]) -> None:
    """One genotype-N.json and .svg for each record."""
    from bipareto_experiments.nas.genotype import Genotype
    from bipareto_experiments.nas.picture import svg

    for i, record in enumerate(records):
        genotype = Genotype.from_json(json.dumps(record["genotype"]))
        preference = record.get("preference")
        title = f"preference {', '.join(f'{w:g}' for w in preference)}" if preference else ""
        (folder / f"genotype-{i}.json").write_text(genotype.to_json() + "\n", "utf-8")
        (folder / f"genotype-{i}.svg").write_text(svg(genotype, title), "utf-8")


def teller(out: Output) -> Any:
    """Where a search stands, as lines with the time, where no progress bar is shown."""
    if out.quiet or out.console.is_terminal:
        return None
    return lambda text: out.say(f"{time.strftime('%H:%M:%S')} {text}")
