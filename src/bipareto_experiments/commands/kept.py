"""The folder of an experiment: whose it is, its results, what its pictures are called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bipareto.cli.again import noted
from bipareto.cli.output import ensure_folder
from bipareto.errors import InvalidInput


def ensure_experiment(path: Path | None, name: str) -> None:
    """Make the folder of --out for the experiment of that name; one that holds something else,
    another experiment included, is refused.
    """
    ensure_folder(path, own="experiment.json")
    held = None if path is None else name_of(path)
    if held not in (None, name):
        raise InvalidInput(
            f"--out {path} already holds another experiment ({held}, says experiment.json); choose "
            "another folder"
        )


def name_of(path: Path) -> str | None:
    """The name of the experiment that a folder belongs to; None where none has claimed it."""
    try:
        return str(json.loads((path / "experiment.json").read_text("utf-8"))["experiment"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path / 'experiment.json'} does not say whose the folder is "
            f"({type(error).__name__}); choose another folder"
        ) from error


def claim_experiment(path: Path | None, name: str) -> None:
    """Write down whose a folder is, and what it was asked for, before the first run: results.json
    comes with the first results, and a run may be stopped before.
    """
    if path is not None:
        from bipareto.sweep.durable import write_text  # which loads torch

        write_text(path / "experiment.json", json.dumps({"experiment": name} | noted()) + "\n")


def results_of(run: Path, name: str, command: str) -> dict[str, Any]:
    """results.json of a run of the experiment of that name; `command` makes one, for the
    message.
    """
    path, held = run / "results.json", name_of(run)
    if held not in (None, name):
        raise InvalidInput(
            f"{run} holds another experiment ({held}, says experiment.json); the right one is made "
            f"with: {command}"
        )
    if not run.exists():
        raise InvalidInput(f"{run} does not exist; it is made with: {command}")
    if not path.exists():
        remedy = (
            f"it is made with: {command}"
            if held is None
            else "go on with the command that began it"
        )
        raise InvalidInput(f"{run} holds no results.json; {remedy}")
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InvalidInput(
            f"{path} is no JSON ({error}); call the command that wrote it again"
        ) from error


def prefixes(runs: Sequence[Path]) -> list[str]:
    """What the files that are drawn of each run begin with: the names of their folders, which must
    differ.
    """
    names = [run.resolve().name for run in runs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidInput(
            f"two of the runs are named {twice[0]}, so their pictures would have the same names; "
            "draw them one by one, each with --out"
        )
    return names
