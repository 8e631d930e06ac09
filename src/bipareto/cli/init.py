"""`bipareto init`: a problem file and a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.output import Output
from bipareto.cli.values import Json, Quiet
from bipareto.errors import InvalidInput

CONFIGURATION = """\
# bipareto sweep front.yaml --out runs/a      a front in a folder that survives a crash
# bipareto resume runs/a                      goes on where it was stopped
problem:
  name: problem:digits    # module:function of this folder; it returns (problem, x0, y0)
  options: {hidden: 8}    # arguments of that function
method:
  name: twin              # for losses on batches; momeha where nothing is drawn (bipareto list)
  hyperparameters: tuned  # or plain, and your own on top:
  # set: {rho: 0.1}
preferences: {count: 5}   # along each edge of the simplex; or vectors: [[0.7, 0.3]]
seeds: [0]                # every preference runs once with each
steps: 300
# engine: {name: processes, workers: 2}    # changes no number
# checkpoint: {seconds: 30}
# track: tensorboard
"""


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Made if need be.")] = Path(),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a problem of your own to begin with: problem.py and front.yaml.

    Both run as they are, in seconds; nothing that is there is overwritten.

    \b
    Examples:
      bipareto init mine
      bipareto front problem:digits --steps 300 --preferences 5 --out runs/first
      bipareto sweep front.yaml --out runs/a
    """
    template = Path(__file__).with_name("template.py").read_text("utf-8")
    files = {folder / "problem.py": template, folder / "front.yaml": CONFIGURATION}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise InvalidInput(f"{there[0]} exists already; give another folder: bipareto init FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, "utf-8")
    out = Output(as_json, quiet)
    here = "" if folder == Path() else f"cd {folder} && "
    out.say(
        f"wrote problem.py and front.yaml to {folder}; try:\n"
        f"  {here}bipareto front problem:digits --steps 300 --preferences 5 --out runs/first"
    )
    out.result({"files": [str(path) for path in files]})
