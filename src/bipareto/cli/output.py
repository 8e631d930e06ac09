"""Where words, tables and results go: with --json one object on stdout and all else on stderr; and
what `solve` and `front` show.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.sweep import grammar

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from bipareto.fronts.pareto import ParetoFront
    from bipareto.methods import Method
    from bipareto.problem import Problem
    from bipareto.problem.tree import Tree
    from bipareto.problems.base import KnownProblem


def finite(value: Any) -> Any:
    """Data for JSON, which knows no NaN and no infinity: these become null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    "command.json": "a comparison",
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


def position_error(
    known: KnownProblem, method: Method, x: Tree, preference: Tensor | None
) -> Tensor | None:
    """How far each run is from its preference's exact point; None where the method names none."""
    from bipareto.methods.parts.scalarization import Fixed

    if preference is None:
        # One objective has one exact point, whatever the scalarization.
        return known.position_error(x, x.new_ones(len(x), 1)) if known.m == 1 else None
    question: dict[str, Any] = {
        name: getattr(method, name, None) for name in ("scalarization", "ideal", "mu", "extent")
    }
    if question["scalarization"] is None or not isinstance(question["ideal"], Fixed):
        return None
    return known.position_error(x, preference, **question)


def lower_level(found: ParetoFront) -> str:
    """What was done at the lower level before the objectives of a front were taken, in words."""
    return "y trained on g" if found.lower_residual is None else "the lower level solved"


def front_table(
    out: Output,
    title: str,
    problem: Problem,
    found: ParetoFront,
    distance: Tensor | None,
    position: Tensor | None,
) -> None:
    """One row per run: preference, objectives, and where the front is known how far it is off."""
    names = problem.names or [f"f{i + 1}" for i in range(found.objectives.shape[1])]
    many_seeds = len(found.seed.unique()) > 1
    known = distance is not None
    header = [
        "run",
        *(["seed"] if many_seeds else []),
        "preference",
        *names,
        *([f"{name}, test" for name in names] if found.test is not None else []),
        *(["distance", "position error"] if known else []),
        *(["left to gain"] if found.remaining is not None else []),
        "stopped by",
    ]
    rows = []
    for run in range(len(found)):
        row = [str(run), *([str(int(found.seed[run]))] if many_seeds else [])]
        nothing = found.preference[run].isnan().any()
        row.append("-" if nothing else numbers(found.preference[run], "{:.3f}"))
        row += [f"{value:.6g}" for value in found.objectives[run].tolist()]
        row += [] if found.test is None else [f"{v:.6g}" for v in found.test[run].tolist()]
        if distance is not None:
            row.append(f"{float(distance[run]):.2e}")
            row.append("-" if position is None else f"{float(position[run]):.2e}")
        if found.remaining is not None:
            row.append(f"{float(found.remaining[run]):.2e}")
        rows.append([*row, found.reason[run]])
    out.table(f"{title}: objectives with {lower_level(found)}", header, rows, left=0)
    if found.unseen:
        out.say(f"what is left to gain was not looked at, because {found.unseen}")


def hyperparameters(name: str, method: Method) -> dict[str, Any]:
    """A method and its hyperparameters, in the form that --set reads."""
    return {"name": name, **{f.name: grammar.show(getattr(method, f.name)) for f in fields(method)}}


def plain(value: Tree) -> Any:
    """A tree of tensors as JSON."""
    from bipareto.problem import tree

    return tree.map_(lambda leaf: leaf.tolist(), value)


def worst(per_run: Tensor | None) -> float | None:
    """The largest value over the runs."""
    return None if per_run is None else float(per_run.max())


def number(per_run: Tensor | None) -> str:
    """The largest value over the runs, in words."""
    return "-" if per_run is None else f"{float(per_run.max()):.2e}"


def numbers(vector: Tensor, form: str = "{:.5g}") -> str:
    """A vector, in words."""
    return "(" + ", ".join(form.format(value) for value in vector.tolist()) + ")"


def leave(failed: bool) -> None:
    """End with exit code 1 where all runs failed."""
    if failed:
        raise typer.Exit(1)
