"""`bipareto doctor`: what is wrong with a run, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bipareto.cli.output import Output
from bipareto.cli.values import Json, Options, Quiet, RunOrProblem, ShortSteps, Trust, folder_of
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from bipareto.doctor import Diagnoses


def doctor(
    run: RunOrProblem,
    steps: ShortSteps = 2000,
    option: Options = None,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is wrong with a run, the numbers that show it, and the remedy.

    Looks for steps that are too large, a theta that does not follow, a lower
    level at a maximum, a penalty that is too weak or too strong, features that
    collapse, an objective that drowns the others, and preferences without
    effect.  The exit code is 1 when something was found.  Of an experiment its
    records are examined.

    `bipareto doctor env` says what is installed, which CPU and GPU are there,
    and what will be fast.

    \b
    Examples:
      bipareto front pl-sin2 --out runs/a && bipareto doctor runs/a
      bipareto front quadratic --set c=0.01 --out runs/b; bipareto doctor runs/b
      bipareto doctor package.module:function --steps 5000
      bipareto doctor env
    """
    out = Output(as_json, quiet)
    if run == "env" and not Path(run).exists():
        from bipareto.doctor.environment import environment, in_words

        seen = environment()
        out.say(in_words(seen))
        out.result(seen)
        return
    with folder_of(out, run, steps, option) as path:
        experiment = (path / "experiment.json").is_file()
        parts = [_recorded(out, path)] if experiment else _examined(out, path, run, trust)
    out.result(parts[0] if len(parts) == 1 else {"run": run, "runs": parts})
    if any(part["diagnoses"] for part in parts):
        raise typer.Exit(1)


def _examined(out: Output, path: Path, asked: str, trust: bool) -> list[dict[str, Any]]:
    """The diagnoses of every run folder at a path, told as they are made."""
    from bipareto.doctor import examine
    from bipareto.sweep.reading import case, run_folders

    parts = []
    for folder in run_folders(path):
        name = asked if folder == path else str(folder)
        examined = case(folder, trusted=trust or path != Path(asked))
        parts.append(_told(out, name, examined.runs, examine(examined)))
    return parts


def _recorded(out: Output, path: Path) -> dict[str, Any]:
    """The diagnoses of an experiment, from the records of its trainings."""
    from bipareto.doctor.recorded import examine_trainings
    from bipareto.sweep.progress import trainings

    found = trainings(path)
    if not found:
        raise InvalidInput(
            f"{path} holds an experiment without a finished training; go on with: bipareto resume "
            f"{path}"
        )
    return _told(out, str(path), len(found), examine_trainings(found))


def _told(out: Output, name: str, runs: int, found: Diagnoses) -> dict[str, Any]:
    if not found:
        out.say(f"{name}: {runs} runs, nothing found")
    for diagnosis in found:
        out.say(str(diagnosis))
    return {"run": name, "runs": runs, "diagnoses": [asdict(diagnosis) for diagnosis in found]}
