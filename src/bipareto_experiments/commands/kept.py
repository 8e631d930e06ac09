"""The folder of an experiment: whose it is, its results, what its pictures are called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from bipareto.cli.again import noted, words_of
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


class Begun(Exception):
    """A study that a command has made and is about to run: ends the command where that is all that
    is wanted of it.
    """

    def __init__(self, study: Any) -> None:
        super().__init__("a study, not to be run")
        self.study = study


#: whether commands make their study and do not run it
_ONLY_BEGUN: ContextVar[bool] = ContextVar("_ONLY_BEGUN", default=False)


def study_of(context: typer.Context, run: Path) -> Any:
    """The study of a folder, not run: made by the command that the folder notes."""
    words = words_of(run)
    if words is None:
        raise InvalidInput(
            f"{run} holds an experiment of a version that did not note its command, so its problem "
            f"cannot be made again; see what its records say with: bipareto doctor {run}"
        )
    token = _ONLY_BEGUN.set(True)
    try:
        root = context.find_root().command
        root.main([*words, "--quiet"], prog_name="bipareto", standalone_mode=False)
    except Begun as begun:
        return begun.study
    finally:
        _ONLY_BEGUN.reset(token)
    raise InvalidInput(f"{run} was made by a command that makes no study: {' '.join(words)}")


def claim_experiment(path: Path | None, name: str, study: Any = None) -> None:
    """Write down whose a folder is, and what it was asked for, before the first run: results.json
    comes with the first results, and a run may be stopped before.

    Args:
        study: what the command will run.
    """
    if _ONLY_BEGUN.get():
        raise Begun(study)
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
