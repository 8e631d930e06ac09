"""The command line.

Nothing heavy is imported here: torch and its like are loaded by the commands that need them, so
that help is immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from bipareto import __version__
from bipareto.cli.again import TYPED
from bipareto.cli.certify import certify
from bipareto.cli.compare import compare
from bipareto.cli.doctor import doctor
from bipareto.cli.front import front
from bipareto.cli.init import init
from bipareto.cli.list import list_
from bipareto.cli.ls import ls
from bipareto.cli.output import fail
from bipareto.cli.report import report
from bipareto.cli.resume import resume
from bipareto.cli.solve import solve
from bipareto.cli.sweep import sweep
from bipareto.cli.tune import tune
from bipareto.cli.watch import watch
from bipareto.errors import BiparetoError

__all__ = ["add_command", "app", "main"]

# Plain help: it is compact, and Rich's would take twice the time to start.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def bipareto(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Multi-objective bilevel learning: which x serves several objectives best,
    when a lower problem answers each x with its own y?

    \b
    Start here:
      bipareto demo                              a front on real data, a minute
      bipareto init mine                         a problem of your own to change
      bipareto list                              the problems and methods
      bipareto front pl-sin2 --dim 20            a front, against the exact one
      bipareto solve pl-sin2 -p 0.7,0.3          one point of it
      bipareto compare quadratic                 all methods on one problem
      bipareto report runs/a                     a page of a front, to look at

    Commands print tables for people, or with --json one object for programs;
    `bipareto COMMAND --help` has examples.
    """


app.command("list")(list_)
app.command()(solve)
app.command()(front)
app.command()(compare)
app.command()(certify)
app.command()(doctor)
for command in (init, sweep, resume, ls, tune, report, watch):
    app.command()(command)


def add_command(name: str, command: Any) -> None:
    """Add a command, a function or a Typer application with commands of its own; one that is there
    already stays.

    Args:
        name: the word after `bipareto`.
        command: what an entry point of the group "bipareto.commands" holds.
    """
    if name in {
        info.name or info.callback.__name__ for info in app.registered_commands if info.callback
    }:
        return
    if name in {group.name for group in app.registered_groups}:
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


for found in entry_points(group="bipareto.commands"):
    try:
        add_command(found.name, found.load())
    except Exception as error:  # noqa: BLE001  one broken package does not take the others along
        fail(
            f"the command {found.name} ({found.value}) cannot be imported and is left out: {error}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors of this package become one line and exit code 2.

    Args:
        arguments: the words after the program's name; None takes those of the process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    old = next((word for word in words if word.partition("=")[0] == "--numbers"), None)
    if old is not None and "experiment" not in words:
        fail("--numbers is called --hyperparameters now, with the same values; write that")
        sys.exit(2)
    try:
        TYPED.set(words)
        app(args=words, prog_name="bipareto")
    except BiparetoError as error:
        fail(str(error))
        sys.exit(2)
    except OSError as error:
        # A file in the place of a folder, a folder that is read-only, a name that is too long.
        if error.filename is None:
            raise
        fail(f"{str(error.filename)[:200]}: {error.strerror}; give another file or folder")
        sys.exit(2)
