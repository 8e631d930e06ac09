"""`bipareto data`: the image sets of the experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import taking
from bipareto.errors import InvalidInput

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[
    Path | None,
    taking("DIR", "The data folder; by default the one that BIPARETO_DATA names.", "--data"),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object, last on stdout; all else goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No tables, no words, no progress bar.")]


@commands.callback()
def about() -> None:
    """Image sets: what is there, fetch what is public, pack a folder.

    Sets lie in one folder, which the variable BIPARETO_DATA names, or --data.
    """


@commands.command("list")
def list_(folder: Folder = None, as_json: Json = False) -> None:
    """Show which sets are there, and what to put where for the others.

    \b
    Examples:
      bipareto data list
      bipareto data list --data ~/data --json
    """
    from bipareto_experiments.data import KNOWN, data_folder
    from bipareto_experiments.data.catalogue import others
    from bipareto_experiments.fewshot.features import find_weights

    out = Output(as_json)
    where = data_folder(folder)
    names = [*KNOWN, *(others(where) if where is not None else [])]
    sets = [_state(name, where) for name in names]
    here = [entry for entry in sets if entry["found"]]
    rows = [
        [
            e["name"],
            e["title"],
            *(_or_dash(e[key]) for key in ("path", "note", "images", "test", "classes", "side")),
        ]
        for e in here
    ]
    if here:
        out.table(
            f"Image sets{f' in {where}' if where else ''}, as they are stored",
            ["name", "what", "where", "pixels", "images", "of them test", "classes", "side"],
            rows,
            left=4,
        )
    absent = [entry for entry in sets if not entry["found"]]
    if absent:
        header = ["name", "what", "put this into the data folder", "or"]
        out.table(
            "Not there",
            header,
            [
                [e["name"], e["title"], "  or  ".join(e["wanted"]), e["fetch"] or "-"]
                for e in absent
            ],
            left=3,
        )
    if where is None:
        out.say("No data folder: set BIPARETO_DATA to a folder, or pass --data DIR.")
    weights = find_weights(where)
    out.say(
        "Pretrained weights: "
        f"{weights[1] if weights else 'none; try: bipareto data fetch resnet18'}"
    )
    for entry in sets:
        if entry["problem"]:
            out.warn(entry["problem"])
    out.result(
        {
            "folder": None if where is None else str(where),
            "sets": sets,
            "weights": str(weights[1]) if weights else None,
        }
    )


def _state(name: str, folder: Path | None) -> dict[str, Any]:
    """One row of `list`."""
    from bipareto_experiments.data import KNOWN, DataError
    from bipareto_experiments.data.catalogue import places, wanted
    from bipareto_experiments.data.remotes import REMOTES

    entry: dict[str, Any] = {
        "name": name,
        "title": KNOWN[name].title if name in KNOWN else "your own",
        "found": False,
        "problem": None,
    }
    entry |= dict.fromkeys(("path", "note", "images", "test", "classes", "side"))
    entry |= {
        "wanted": wanted(name),
        "fetch": f"bipareto data fetch {name}" if name in REMOTES else None,
    }
    for place in places(name, folder):
        try:
            found = place.summary()
        except DataError as error:
            entry["problem"] = entry["problem"] or str(error)
            continue
        counts = {
            "images": found.images,
            "test": found.test,
            "classes": found.classes,
            "side": found.side,
        }
        return {**entry, "found": True, "path": str(place.path), "note": found.note, **counts}
    return entry


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


@commands.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A public set, or resnet18 or mobilenetv2 for pretrained weights."
        ),
    ],
    mirror: Annotated[
        str | None, taking("URL", "Take the files from below this address instead.")
    ] = None,
    folder: Folder = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a public set into the data folder.

    A file that breaks off is kept, and the same command goes on from there.
    It is put in place only if its checksum is right.

    \b
    Examples:
      bipareto data fetch cifar100
      bipareto data fetch resnet18 --data ~/data
    """
    from bipareto_experiments.data import VARIABLE, data_folder
    from bipareto_experiments.data.fetch import fetch as fetch_

    out = Output(as_json, quiet)
    if folder is not None:
        ensure_folder(folder, "--data")
    where = data_folder(folder)
    if where is None:
        raise InvalidInput(f"no data folder: set {VARIABLE} to a folder, or pass --data DIR")
    paths = fetch_(name, where, mirror=mirror, progress=out.progress, told=out.say)
    out.result({"name": name, "paths": [str(path) for path in paths]})


@commands.command()
def pack(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A folder per class (CLASS/*.jpg or GROUP/CLASS/*.jpg), or tiny-imagenet-200.",
        ),
    ],
    out_file: Annotated[
        Path, typer.Argument(metavar="OUT.zip", help="The container, which must be new.")
    ],
    size: Annotated[int, taking("N", "The side of the images in pixels.", min=1, max=16383)] = 32,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack an image folder into one small file that loads in a second.

    Pictures are resized to squares, then kept without loss.  Put the file into
    the data folder as NAME.zip or NAME_anything.zip, and load it as NAME.

    \b
    Examples:
      bipareto data pack caltech256/256_ObjectCategories caltech256_32px.zip
      bipareto data pack photos photos.zip --size 64
    """
    from bipareto_experiments.data.folders import read_folder, read_tiny_imagenet
    from bipareto_experiments.data.packed import write_packed

    out = Output(as_json, quiet)
    if out_file.suffix != ".zip":
        raise InvalidInput(
            f"{out_file} does not end in .zip, so it would not be found as a container; call it "
            f"{out_file.stem}.zip"
        )
    if out_file.exists():
        raise InvalidInput(f"{out_file} exists; choose another name, or move it away")
    read = read_tiny_imagenet if (folder / "val" / "val_annotations.txt").exists() else read_folder
    images = read(folder, out_file.stem.partition("_")[0], size)
    write_packed(images, out_file, out.progress)
    counts = {
        "images": len(images),
        "classes": len(images.class_names),
        "bytes": out_file.stat().st_size,
    }
    out.say(
        f"{out_file}: {counts['images']} images of {counts['classes']} classes, {size}x{size}, "
        f"{counts['bytes'] / 1e6:.1f} MB; {images.note}"
    )
    out.result({"path": str(out_file), **counts, "side": size, "note": images.note})


@commands.command()
def domains(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An image set.")],
    seed: Annotated[
        int, taking("N", "Decides the images that are looked at and the clusters.", min=0)
    ] = 42,
    count: Annotated[int, taking("N", "How many.", "--domains", min=1)] = 4,
    least: Annotated[
        int,
        taking(
            "N", "The fewest classes of a domain: 20 leave 5 each for validation and test.", min=1
        ),
    ] = 20,
    out_file: Annotated[
        Path | None, taking("FILE.json", "Write the table of classes to this file.", "--out")
    ] = None,
    folder: Folder = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cluster the classes of a set into domains that look alike.

    Classes are compared by the mean feature of 20 of their images in a network
    trained on ImageNet: ResNet-18 or MobileNetV2, whichever weights are in the
    data folder.  About a minute for Caltech-101 on one core.

    \b
    Examples:
      bipareto data domains caltech101
      bipareto data domains caltech256 --seed 1 --out caltech256_domains.json
    """
    from bipareto_experiments.data import load
    from bipareto_experiments.fewshot.clustering import cluster
    from bipareto_experiments.fewshot.features import SIDE, class_features, pretrained

    out = Output(as_json, quiet)
    images = load(name, folder)
    network = pretrained(folder)
    found = cluster(
        images,
        class_features(images, network.trunk, seed=seed, progress=out.progress),
        seed,
        count=count,
        least=least,
    )
    table: dict[str, Any] = {
        "set": name,
        "command": f"bipareto data domains {name} --seed {seed} --domains {count} --least {least}",
        "features": f"{network.name} ({network.file.name}), images enlarged to {SIDE}x{SIDE}, 20 "
        "per class",
        "pixels": images.note,
        "domains": {
            label: [images.class_names[c] for c in classes] for label, classes in found.items()
        },
    }
    rows = [
        [label, str(len(classes)), ", ".join(classes)]
        for label, classes in table["domains"].items()
    ]
    out.table(
        f"{count} domains of {name} by {table['features']}",
        ["most typical", "classes", "which"],
        rows,
        left=3,
    )
    if out_file is not None:
        write_whole(out_file, json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        out.say(f"written: {out_file}")
    out.result(table)


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InvalidInput(
            f"{path} cannot be written ({error.strerror}); choose another file"
        ) from error
