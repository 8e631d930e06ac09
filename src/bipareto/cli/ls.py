"""`bipareto ls`: the runs of a folder, and how far they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.output import Output
from bipareto.cli.values import Json
from bipareto.errors import InvalidInput

#: Files that make a folder a run.
_MARKS = ("manifest.json", "checksums.json", "experiment.json")


def ls(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look for runs.")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """List the runs under a folder and how far they are.

    All of them: those of `front`, `solve` and `sweep`, the methods of a
    comparison, and experiments, whose slices are trainings.

    \b
    Examples:
      bipareto ls
      bipareto ls runs --json
    """
    from bipareto.errors import BiparetoError
    from bipareto.sweep.progress import experiment, status

    out = Output(as_json)
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass the one that holds your runs")
    found = []
    # By any of these files: where one is lost another tells.
    for run in sorted({p.parent for name in _MARKS for p in folder.rglob(name)}):
        try:
            found.append(experiment(run) or status(run))
        except BiparetoError as error:
            out.warn(f"{run}: {error}")
    rows = [
        [
            str(item.path),
            item.problem,
            item.method,
            item.state,
            str(item.runs),
            f"{item.slices_done}/{item.slices}",
            f"{item.progress:.0%}",
        ]
        for item in found
    ]
    if found:
        header = ["run", "problem", "method", "state", "runs", "slices", "steps"]
        out.table(f"{len(found)} run{'' if len(found) == 1 else 's'} in {folder}", header, rows, 4)
    else:
        out.say(
            f"no run and no experiment under {folder}; pages of other fronts: bipareto report DIR"
        )
    out.result({"runs": [{**item._asdict(), "path": str(item.path)} for item in found]})
