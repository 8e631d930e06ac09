"""`bipareto data`: the image sets of the experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bipareto.cli.output import Output

__all__ = ["data"]

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The data folder; by default the one that BIPARETO_DATA names.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object, last on stdout; all else goes to stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No tables, no words, no progress bar.")]


@data.callback()
def about() -> None:
    """Image sets: what is there, fetch what is public, pack a folder.

    Sets lie in one folder, which the variable BIPARETO_DATA names, or --data.
    """


@data.command()
def domains(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An image set.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Decides the images that are looked at and the clusters.")] = 42,
    count: Annotated[int, typer.Option("--domains", metavar="N", min=1, help="How many.")] = 4,
    least: Annotated[
        int, typer.Option("--least", metavar="N", min=1, help="The fewest classes of a domain: 20 leave 5 each for validation and test.")
    ] = 20,
    out_file: Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Write the table of classes to this file.")] = None,
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
    from bipareto.data import load
    from bipareto.experiments.fewshot.domains import cluster
    from bipareto.experiments.fewshot.features import SIDE, class_features, pretrained

    out = Output(as_json, quiet)
    images = load(name, folder)
    network = pretrained(folder)
    found = cluster(images, class_features(images, network.trunk, seed=seed, progress=out.progress), seed, count=count, least=least)
    table: dict[str, Any] = {
        "set": name,
        "command": f"bipareto data domains {name} --seed {seed} --domains {count} --least {least}",
        "features": f"{network.name} ({network.file.name}), images enlarged to {SIDE}x{SIDE}, 20 per class",
        "pixels": images.note,
        "domains": {label: [images.class_names[c] for c in classes] for label, classes in found.items()},
    }
    rows = [[label, str(len(classes)), ", ".join(classes)] for label, classes in table["domains"].items()]
    out.table(f"{count} domains of {name} by {table['features']}", ["most typical", "classes", "which"], rows, left=3)
    if out_file is not None:
        write_whole(out_file, json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        out.say(f"written: {out_file}")
    out.result(table)


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    from bipareto.errors import InvalidInput

    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InvalidInput(f"{path} cannot be written ({error.strerror}); choose another file") from error
