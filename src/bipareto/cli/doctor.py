"""`bipareto doctor`: what is wrong with a run, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.options import Json, Quiet, Trust
from bipareto.cli.output import Output

__all__ = ["doctor"]


def doctor(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder: of `front`, `solve`, `sweep`.")
    ],
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is wrong with a run, the numbers that show it, and the remedy.

    Looks for steps that are too large, a theta that does not follow, a lower
    level at a maximum, a penalty that is too weak or too strong, features that
    collapse, an objective that drowns the others, and preferences without
    effect.  The exit code is 1 when something was found.

    \b
    Examples:
      bipareto front pl-sin2 --out runs/a && bipareto doctor runs/a
      bipareto front quadratic --set c=0.01 --out runs/b; bipareto doctor runs/b
    """
    from bipareto.doctor import examine
    from bipareto.sweep.reading import case, run_folders

    out = Output(as_json, quiet)
    parts = []
    for folder in run_folders(run):
        examined = case(folder, trusted=trust)
        found = examine(examined)
        if not found:
            out.say(f"{folder}: {examined.runs} runs, nothing found")
        for diagnosis in found:
            out.say(str(diagnosis))
        told = [asdict(diagnosis) for diagnosis in found]
        parts.append({"run": str(folder), "runs": examined.runs, "diagnoses": told})
    out.result(parts[0] if len(parts) == 1 else {"run": str(run), "runs": parts})
    if any(part["diagnoses"] for part in parts):
        raise typer.Exit(1)
