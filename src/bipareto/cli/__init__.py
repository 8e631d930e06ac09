"""The command line.

Nothing heavy is imported here: torch and its like are loaded by the commands that need them, so that help is immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from bipareto import __version__
from bipareto.cli.catalogue import demo, list_
from bipareto.cli.certifying import certify
from bipareto.cli.comparing import compare
from bipareto.cli.data import commands as data_commands
from bipareto.cli.doctoring import doctor
from bipareto.cli.experiments import app as experiment_commands
from bipareto.cli.output import fail
from bipareto.cli.reporting import report, watch
from bipareto.cli.runs import front, solve
from bipareto.cli.sweeps import ls, resume, sweep, tune
from bipareto.errors import BiparetoError

__all__ = ["app", "main"]

# Plain help: it is compact, and Rich's would take twice the time to start.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def bipareto(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    """Multi-objective bilevel learning: which x serves several objectives best,
    when a lower problem answers each x with its own y?

    \b
    Start here:
      bipareto demo                              a front on real data, a minute
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
app.command()(demo)
for command in (sweep, resume, ls, tune, report, watch):
    app.command()(command)
app.add_typer(data_commands, name="data")
app.add_typer(experiment_commands, name="experiment")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors of this package become one line and exit code 2.

    Args:
        arguments: the words after the program's name; None takes those of the process.
    """
    try:
        app(args=arguments, prog_name="bipareto")
    except BiparetoError as error:
        fail(str(error))
        sys.exit(2)
