"""Where words, tables and results go: with --json one object on stdout and all else on stderr."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bipareto.cli.values import finite
from bipareto.errors import BiparetoWarning, InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output", "ensure_folder", "fail"]


class Output:
    """The voice of one command.

    Args:
        as_json: the result is one JSON object, last on stdout; everything else goes to stderr.
        quiet: no tables, no words, no progress bar; warnings and the JSON object stay.
    """

    def __init__(self, as_json: bool, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.warnings: list[str] = []

    @property
    def progress(self) -> bool | None:
        """What `solve` and `front` take: None shows a bar on a terminal."""
        return False if self.quiet else None

    @cached_property
    def console(self) -> Console:
        """Where people read."""
        from rich.console import Console

        console = Console(stderr=self.as_json, quiet=self.quiet, highlight=False)
        if not console.is_terminal:
            console.width = 160  # a file or a pipe has no width; do not fold tables into it
        return console

    def say(self, text: str) -> None:
        """One paragraph of words."""
        self.console.print(text, markup=False, soft_wrap=True)

    def table(
        self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1
    ) -> None:
        """An aligned table; the first `left` columns are words, the others what must stay in one
        piece: numbers, commands.

        Where a terminal is narrow, words and headers are wrapped and the space between columns
        halved.  Nothing is cut: a table that is still too wide keeps its width, and the terminal
        folds its lines.
        """
        from rich import box
        from rich.table import Table

        columns = [(name, [row[index] for row in rows]) for index, name in enumerate(header)]
        natural = [
            max(0, *(len(line) for text in (name, *cells) for line in text.splitlines()))
            for name, cells in columns
        ]
        least = [
            max(
                0,
                *(
                    len(word)
                    for text in (name, *cells)
                    for word in (text.split() if index < left or text is name else [text])
                ),
            )
            for index, (name, cells) in enumerate(columns)
        ]
        tight = sum(least) + 3 * len(columns) + 1 > self.console.width
        frame = 2 * len(columns) - 1 if tight else 3 * len(columns) + 1
        spare = max(0, self.console.width - frame - sum(least))
        wanted = sum(natural) - sum(least)
        share = min(1.0, spare / wanted) if wanted else 0.0
        table = Table(
            title=title,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            collapse_padding=tight,
            pad_edge=not tight,
            show_edge=not tight,
        )
        for index, name in enumerate(header):
            width = least[index] + int(share * (natural[index] - least[index]))
            table.add_column(name, justify="left" if index < left else "right", width=width)
        for row in rows:
            table.add_row(*row)
        seen = self.console.width
        self.console.width = max(seen, frame + sum(least))
        self.console.print(table)
        self.console.width = seen

    def foretell(self, text: str | None) -> None:
        """One line on stderr of what is about to happen, however quiet a command is."""
        if text is not None:
            typer.echo(f"note: {text}", err=True)

    def warn(self, text: str) -> None:
        """One line on stderr, remembered for the JSON object; the same text once."""
        if text not in self.warnings:
            self.warnings.append(text)
            typer.secho(f"warning: {text}", fg="yellow", err=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn the warnings that Python would show into lines of `warn`."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", BiparetoWarning)
            warnings.showwarning = lambda message, *_, **__: self.warn(str(message))
            yield

    def result(self, data: dict[str, Any]) -> None:
        """The answer of the command, for machines."""
        if self.as_json:
            typer.echo(json.dumps(finite({**data, "warnings": self.warnings}), allow_nan=False))


#: the file that says whose a folder is, and whose
OWNERS = {
    "comparison.json": "a comparison",
    # of versions whose fronts had no run folder
    "front.json": "a front",
    "manifest.json": "a run",
    "experiment.json": "an experiment",
    "results.json": "an experiment",
}


def ensure_folder(path: Path | None, option: str = "--out", own: str | None = None) -> None:
    """Make the folder of --out, or of another option, before the work, not after it.

    With `own`, one of `OWNERS`, a folder that belongs to something else is refused: the files of
    both have the same names.
    """
    others = [
        name
        for name in OWNERS
        if own is not None
        and path is not None
        and OWNERS[name] != OWNERS[own]
        and (path / name).exists()
    ]
    if others:
        raise InvalidInput(
            f"{option} {path} already holds {OWNERS[others[0]]} ({others[0]}); choose another "
            "folder"
        )
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{option} {path} cannot be made ({error.strerror}); choose another folder"
            ) from error


def fail(message: str) -> None:
    """One red line on stderr."""
    typer.secho(f"error: {message}", fg="red", err=True)
