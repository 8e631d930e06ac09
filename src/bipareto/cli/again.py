"""Words that were typed once and are typed again: a comparison and an experiment note in their
folder what they were called with, so that `resume` and `report` take that folder too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from bipareto import __version__
from bipareto.errors import InvalidInput

#: the words of the command line that runs
TYPED: ContextVar[Sequence[str]] = ContextVar("TYPED")
#: the file that holds the words of a comparison, and of an experiment
NOTES = ("command.json", "experiment.json")


def noted() -> dict[str, Any]:
    """The words of this command line and the version, for a folder."""
    return {"version": __version__, "command": list(TYPED.get(()))}


def words_of(folder: Path) -> list[str] | None:
    """The words that a folder was made with, its own name as --out; None where none are noted."""
    note = next((folder / name for name in NOTES if (folder / name).is_file()), None)
    if note is None:
        return None
    try:
        words = json.loads(note.read_text("utf-8")).get("command")
        if not words:
            return None
        if words[0] not in ("compare", "experiment") or not all(type(w) is str for w in words):
            raise ValueError("not the words of a comparison or an experiment")
    except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
        raise InvalidInput(
            f"{note} is damaged ({error}); type the command that made {folder} again"
        ) from error
    return [*_without_output(iter(words)), "--out", str(folder)]


def _without_output(words: Iterator[str]) -> list[str]:
    kept = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out=") and word not in ("--json", "--quiet", "-q"):
            kept.append(word)
    return kept


def type_again(context: typer.Context, words: Sequence[str], as_json: bool, quiet: bool) -> None:
    """Run a command line inside this one, and leave with its exit code."""
    asked = [*words, *["--json"] * as_json, *["--quiet"] * quiet]
    typer.echo(f"note: bipareto {' '.join(words)}", err=True)
    TYPED.set(words)
    root = context.find_root().command
    code = root.main(asked, prog_name="bipareto", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)
