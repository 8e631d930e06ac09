"""`bipareto experiment nas`: multi-objective architecture search."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli import values
from bipareto.cli.options import Json, Out, Quiet
from bipareto.cli.output import (
    Output,
    claim_experiment,
    ensure_experiment,
    ensure_folder,
    prefixes,
    results_of,
)
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.architectures import judged, show_best, show_cells, show_records
from bipareto_experiments.commands.data import Folder

if TYPE_CHECKING:
    from bipareto_experiments.nas.genotype import Genotype
    from bipareto_experiments.nas.known import KnownCells
    from bipareto_experiments.nas.task import Task

__all__ = ["commands"]

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Dataset = Annotated[
    str, typer.Option("--dataset", metavar="NAME", help="cifar10, cifar100 or another image set.")
]
Preset = Annotated[
    str,
    typer.Option(
        "--preset", metavar="NAME", help="proxy (NAS-Bench-201), darts, or paper (its search)."
    ),
]
Space = Annotated[
    str | None,
    typer.Option("--space", metavar="NAME", help="nas-bench-201 or darts; the preset's if none."),
]
SupernetOption = Annotated[
    str | None,
    typer.Option(
        "--supernet",
        metavar="KIND",
        help="plain or fast, the same function; fast on a GPU if none.",
    ),
]
Half = Annotated[bool, typer.Option("--half", help="Let the fast supernet work in bfloat16.")]
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objectives",
        metavar="NAME,..",
        help="Of loss, flops, skip, pooling; the preset's if none.",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", metavar="T", min=1, help="Steps of a search; the preset's if none."),
]
Batch = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="Images of a draw; the preset's if none.")
]
Cells = Annotated[
    int | None,
    typer.Option(
        "--cells", metavar="N", min=1, help="A stage of NAS-Bench-201; the preset's if none."
    ),
]
Side = Annotated[
    int | None,
    typer.Option(
        "--side", metavar="PIXELS", help="Images are averaged down to it; the preset's if none."
    ),
]
Channels = Annotated[
    int | None,
    typer.Option("--channels", metavar="C", min=1, help="Of the first cell; the preset's if none."),
]
Numbers = Annotated[
    str | None,
    typer.Option("--numbers", metavar="WHOSE", help="ours or paper: the methods' hyperparameters."),
]
Warmup = Annotated[
    float | None,
    typer.Option(
        "--warmup",
        metavar="SHARE",
        help="Of the steps: the weights learn before the architecture moves; the preset's if none.",
    ),
]
Sampled = Annotated[
    float | None,
    typer.Option(
        "--sampled",
        metavar="T",
        help="Judge architectures drawn at temperature T, e.g. 1, not their mixture (0).",
    ),
]
Cooled = Annotated[
    float | None,
    typer.Option(
        "--cooled", metavar="T", help="The temperature that drawn architectures end with."
    ),
]
Draws = Annotated[
    str | None,
    typer.Option(
        "--draws", metavar="KIND", help="twin or own: training images of MB-MOMEHA's theta and y."
    ),
]
Together = Annotated[
    int | None,
    typer.Option(
        "--together", metavar="N", min=1, help="Searches side by side; all on a GPU if none."
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="cpu or cuda; a GPU where there is one if none."),
]
Strengths = Annotated[
    list[str] | None,
    typer.Option(
        "--strengths",
        metavar="NAME,..",
        help="equal, weak, strong, extreme (-second: for FLOPs); the four if none.",
    ),
]
Seeds = Annotated[
    list[str] | None,
    typer.Option("--seed", "--seeds", metavar="N,N,..", help="Each has its own start and draws."),
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="Generated images and a small network: a first try in under a minute."
    ),
]


@commands.callback()
def about() -> None:
    """Architecture search with several objectives: accuracy against cost.

    x are the architecture's logits, y the weights of a supernet; the upper
    objectives are validation loss, FLOPs and the shares of skips and pooling.
    On NAS-Bench-201 the true accuracy of every architecture is known.
    Searches are resumable: the same command with the same --out goes on.
    """


@commands.command()
def search(
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="mb-momeha, mb-momeha-joint, wc-mhgd, wc-penalty, moco, darts or random.",
        ),
    ] = "mb-momeha",
    dataset: Dataset = "cifar10",
    preset: Preset = "proxy",
    space: Space = None,
    supernet: SupernetOption = None,
    half: Half = False,
    objectives: Objectives = None,
    strengths: Strengths = None,
    steps: Steps = None,
    batch: Batch = None,
    channels: Channels = None,
    cells: Cells = None,
    side: Side = None,
    numbers: Numbers = None,
    warmup: Warmup = None,
    sampled: Sampled = None,
    cooled: Cooled = None,
    draws: Draws = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Start and draws.")] = 0,
    together: Together = None,
    device: Device = None,
    folder: Folder = None,
    tiny: Tiny = False,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search by one method, once for each preference.

    \b
    Examples:
      bipareto experiment nas search --tiny --json
      bipareto experiment nas search --out runs/search
      bipareto experiment nas search --preset darts --half --out runs/darts
    """
    from bipareto_experiments.nas.studies import Study, compared

    out = Output(as_json, quiet)
    with out.listening():
        task, known = _task(
            out,
            dataset,
            preset,
            device,
            folder,
            tiny,
            out_dir,
            space=space,
            supernet=supernet,
            half=half or None,
            objectives=objectives,
            steps=steps,
            batch=batch,
            channels=channels,
            cells=cells,
            side=side,
            numbers=numbers,
            warmup=warmup,
            sampled=sampled,
            cooled=cooled,
            twin=_twin(draws),
        )
        study = Study(task, out_dir, [seed], known, together, out.progress, _teller(out), cells=0)
        chosen = (
            values.names(strengths)
            if strengths
            else (["strong", "strong-second"] if tiny else None)
        )
        records = compared(study, [method], chosen)["records"]
    show_records(out, records, list(task.settings.objectives))
    found = {
        "genotype": [r["genotype"] for r in records],
        "preference": [r["preference"] for r in records],
        "objectives": {
            name: [r["objectives"][i] for r in records]
            for i, name in enumerate(task.settings.objectives)
        },
        **_volume([r["objectives"] for r in records], task),
        "accuracy": [r.get("accuracy") for r in records],
        "flops": [r["flops"] for r in records],
        "params": [r["params"] for r in records],
        "seconds": study.seconds,
    }
    if out_dir is not None:
        _write_cells(out_dir, records)
        out.say(f"results.json and one genotype-N.json and .svg per preference are in {out_dir}")
    out.result(found)


@commands.command()
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            metavar="NAME,..",
            help="Of mb-momeha[-joint], wc-mhgd, wc-penalty, moco, darts, random; all if none.",
        ),
    ] = None,
    dataset: Dataset = "cifar10",
    preset: Preset = "proxy",
    space: Space = None,
    supernet: SupernetOption = None,
    half: Half = False,
    objectives: Objectives = None,
    strengths: Strengths = None,
    seeds: Seeds = None,
    steps: Steps = None,
    batch: Batch = None,
    channels: Channels = None,
    cells: Cells = None,
    side: Side = None,
    numbers: Numbers = None,
    warmup: Warmup = None,
    sampled: Sampled = None,
    cooled: Cooled = None,
    draws: Draws = None,
    together: Together = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0.1,
            help="For all searches of a method, the same for each; else by steps.",
        ),
    ] = None,
    device: Device = None,
    folder: Folder = None,
    tiny: Tiny = False,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """All methods under all preferences and seeds, judged by known answers.

    With --seconds every method has the same time for all its searches.
    First-order DARTS follows one objective; random search trains one supernet
    a seed and chooses among 500 random cells.  Everything is judged on
    validation images and on test images that neither level saw.  Where moocore
    is not installed the hypervolumes are left out; `figures` computes them from
    the same results.json elsewhere.

    \b
    Examples:
      bipareto experiment nas compare --half --seconds 76 --out runs/nas
      bipareto experiment nas compare --objectives loss,flops,skip,pooling --out runs/four
      bipareto experiment nas compare --tiny --methods mb-momeha,darts --steps 4 --out runs/tiny
    """
    from bipareto_experiments.nas.settings import METHODS
    from bipareto_experiments.nas.studies import Study, compared

    out = Output(as_json, quiet)
    with out.listening():
        task, known = _task(
            out,
            dataset,
            preset,
            device,
            folder,
            tiny,
            out_dir,
            space=space,
            supernet=supernet,
            half=half or None,
            objectives=objectives,
            steps=steps,
            batch=batch,
            channels=channels,
            cells=cells,
            side=side,
            numbers=numbers,
            warmup=warmup,
            sampled=sampled,
            cooled=cooled,
            twin=_twin(draws),
        )
        given = values.seeds(seeds or (["1"] if tiny else ["1,2,3"]))
        study = Study(
            task,
            out_dir,
            given,
            known,
            together,
            out.progress,
            _teller(out),
            cells=8 if tiny else 150,
            budget=seconds,
        )
        result = compared(
            study,
            values.names(methods) if methods else METHODS,
            values.names(strengths) if strengths else None,
        )
    found = judged(out, result, known)
    if out_dir is not None:
        out.say(
            f"results.json is in {out_dir}; pictures and tables of it: bipareto experiment nas "
            f"figures {out_dir}"
        )
    out.result(found | {"seconds": result["seconds"]})


@commands.command()
def tune(
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            metavar="NAME,..",
            help="Of mb-momeha[-joint], wc-mhgd, wc-penalty, moco, darts; all if none.",
        ),
    ] = None,
    dataset: Dataset = "cifar10",
    preset: Preset = "proxy",
    supernet: SupernetOption = None,
    half: Half = False,
    strengths: Strengths = None,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", help="Start and draws; not one that is compared with."),
    ] = 0,
    steps: Steps = None,
    cells: Cells = None,
    side: Side = None,
    warmup: Warmup = None,
    sampled: Sampled = None,
    cooled: Cooled = None,
    draws: Draws = None,
    together: Together = None,
    device: Device = None,
    folder: Folder = None,
    tiny: Tiny = False,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Each method's steps of x and y, by nine trials side by side.

    The best has the most hypervolume on validation images, mean of mixture and
    derived cells; test images and known accuracies take no part.

    \b
    Examples:
      bipareto experiment nas tune --half --steps 800 --out runs/tuning
      bipareto experiment nas tune --preset darts --half --steps 390 --out runs/tuning-darts
      bipareto experiment nas tune --tiny --methods mb-momeha --steps 4
    """
    from bipareto_experiments.nas.settings import TUNED
    from bipareto_experiments.nas.studies import Study, tuned

    out = Output(as_json, quiet)
    with out.listening():
        task, known = _task(
            out,
            dataset,
            preset,
            device,
            folder,
            tiny,
            out_dir,
            space=None,
            supernet=supernet,
            half=half or None,
            objectives=None,
            steps=steps,
            cells=cells,
            side=side,
            warmup=warmup,
            sampled=sampled,
            cooled=cooled,
            twin=_twin(draws),
        )
        study = Study(task, out_dir, [seed], known, together, out.progress, _teller(out), cells=0)
        result = tuned(
            study,
            values.names(methods) if methods else TUNED,
            values.names(strengths) if strengths else None,
        )
    found = judged(out, result, known)
    if "objectives" in found:
        found["best"] = show_best(out, result)
    if out_dir is not None:
        out.say(
            f"results.json is in {out_dir}; these tables again: bipareto experiment nas figures "
            f"{out_dir}"
        )
    out.result(found | {"seconds": result["seconds"]})


@commands.command()
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
    from bipareto_experiments.nas.studies import described, looked_up

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    if run.is_dir():
        kept = _results(run)["records"]
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
        genotypes, labels = [_read_genotype(run)], [{}]
    known = looked_up(genotypes[0].space.name, folder)
    records = [
        label | described(genotype, known)
        for label, genotype in zip(labels, genotypes, strict=True)
    ]
    if out_dir is not None:
        _write_cells(out_dir, records)
        out.say(f"wrote genotype-0 to genotype-{len(records) - 1}, .json and .svg, to {out_dir}")
    show_cells(out, records, genotypes)
    out.result({"cells": records})


@commands.command()
def train(
    genotype: Annotated[
        Path,
        typer.Argument(metavar="GENOTYPE", help="A genotype's JSON file, of `derive` or `search`."),
    ],
    dataset: Dataset = "cifar10",
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=1, help="Passes over the training images.")
    ] = 200,
    channels: Channels = None,
    cells: Annotated[
        int | None,
        typer.Option(
            "--cells", metavar="N", min=1, help="Per stage (NAS-Bench-201) or in all (DARTS)."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=2, help="Images of a step.")
    ] = 256,
    rate: Annotated[
        float, typer.Option("--rate", metavar="LR", help="Of SGD; falls to zero along a cosine.")
    ] = 0.1,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Start and order of the images.")
    ] = 0,
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
    from bipareto_experiments.nas.standalone import Recipe, sized, train_network
    from bipareto_experiments.nas.task import generated

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    cell = _read_genotype(genotype)
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
        seed=seed,
    )
    with out.listening():
        found = train_network(
            cell,
            network,
            images,
            recipe,
            where,
            folder=out_dir,
            progress=out.progress,
            say=_teller(out),
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


@commands.command()
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
    from bipareto_experiments.nas.studies import looked_up

    out = Output(as_json, quiet)
    results, names = [_results(run) for run in runs], prefixes(runs)
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
            json.dumps(values.finite(tables[name]), indent=1) + "\n", "utf-8"
        )
        written.append(f"{name}-tables.json")
    out.say(f"wrote {', '.join(written)} to {target}")
    out.result({"files": written, "tables": tables})


def _task(
    out: Output,
    dataset: str,
    preset: str,
    device: str | None,
    folder: Path | None,
    tiny: bool,
    out_dir: Path | None,
    **changes: Any,
) -> tuple[Task, KnownCells | None]:
    """The task, and the known accuracies where there are any.  `changes` are settings other than
    the preset's, None for the preset's own.
    """
    from bipareto_experiments.devices import device_of
    from bipareto_experiments.nas import settings as presets
    from bipareto_experiments.nas.studies import looked_up
    from bipareto_experiments.nas.task import build, generated

    ensure_experiment(out_dir, "nas")
    where = device or ("cpu" if tiny else None)
    if changes["supernet"] is None and device_of(where).type == "cuda":
        changes["supernet"] = "fast"
    if changes["objectives"]:
        changes["objectives"] = tuple(values.names(changes["objectives"]))
    given = {name: value for name, value in changes.items() if value is not None}
    settings = replace(presets.preset("tiny" if tiny else preset), **given)
    task = (
        generated(settings, device=where)
        if tiny
        else build(settings, dataset, folder=folder, device=where)
    )
    known = looked_up(settings.space, folder)
    if known is None and settings.space == "nas-bench-201" and not tiny:
        out.warn(
            "the table of NAS-Bench-201's accuracies is not in the data folder: accuracies are not "
            "looked up"
        )
    claim_experiment(out_dir, "nas")
    return task, known


def _twin(draws: str | None) -> bool | None:
    if draws not in (None, "twin", "own"):
        raise InvalidInput(f"--draws {draws!r} is not known; choose twin or own")
    return None if draws is None else draws == "twin"


def _teller(out: Output) -> Any:
    """Where a search stands, as lines with the time, where no progress bar is shown."""
    if out.quiet or out.console.is_terminal:
        return None
    return lambda text: out.say(f"{time.strftime('%H:%M:%S')} {text}")


def _volume(objectives: list[list[float]], task: Task) -> dict[str, Any]:
    """The hypervolume of a search's own objectives."""
    from bipareto_experiments.nas.judging import dearest

    corner = dearest(task.settings.objectives, task.problem.network.classes)
    if find_spec("moocore") is None:
        return {"hypervolume": None, "reference": corner}
    from bipareto.fronts.measures import hypervolume

    return {"hypervolume": hypervolume(objectives, corner), "reference": corner}


def _results(run: Path) -> dict[str, Any]:
    found = results_of(run, "nas", "bipareto experiment nas search --out FOLDER")
    if "settings" not in found or any("genotype" not in record for record in found["records"]):
        raise InvalidInput(
            f"{run / 'results.json'} holds no architecture searches; give the folder of `bipareto "
            "experiment nas search` or `compare`"
        )
    return found


def _read_genotype(path: Path) -> Genotype:
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


def _write_cells(folder: Path, records: list[dict[str, Any]]) -> None:
    from bipareto_experiments.nas.genotype import Genotype
    from bipareto_experiments.nas.picture import svg

    for i, record in enumerate(records):
        genotype = Genotype.from_json(json.dumps(record["genotype"]))
        preference = record.get("preference")
        title = f"preference {', '.join(f'{w:g}' for w in preference)}" if preference else ""
        (folder / f"genotype-{i}.json").write_text(genotype.to_json() + "\n", "utf-8")
        (folder / f"genotype-{i}.svg").write_text(svg(genotype, title), "utf-8")
