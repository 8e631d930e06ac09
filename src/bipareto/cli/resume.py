"""`bipareto resume`: go on with a run where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.again import type_again, words_of
from bipareto.cli.output import Output
from bipareto.cli.sweep import Address, Engine, Workers, engine_asked, tell, teller
from bipareto.cli.values import Json, Quiet
from bipareto.errors import InvalidInput

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def resume(
    context: typer.Context,
    run: Run,
    engine: Engine = None,
    workers: Workers = None,
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run where it stopped.

    The result is, bit for bit, that of a run that was never interrupted.  A
    comparison or an experiment goes on by the command that began it.

    \b
    Examples:
      bipareto resume runs/a
      bipareto resume runs/a --engine ray --address auto
    """
    from bipareto.sweep import sweep
    from bipareto.sweep.config import SweepConfig, load
    from bipareto.sweep.plan import foretold
    from bipareto.sweep.store import RunFolder

    out = Output(as_json, quiet)
    if (run / "comparison.json").exists():
        out.say(f"{run} holds a comparison that is done; look at it: bipareto report {run}")
        out.result({"run": str(run), "state": "done"})
        return
    if (words := words_of(run)) is not None:
        type_again(context, words, as_json, quiet)
    if (run / "experiment.json").exists():
        raise InvalidInput(
            f"{run} holds an experiment of a version that did not note its command; it goes on "
            f"when that command is called again with --out {run}"
        )
    if not RunFolder(run).exists() and (run / "methods").is_dir():
        raise InvalidInput(
            f"{run} holds a comparison of a version that did not note its command; it goes on when "
            f"bipareto compare is called again with the same words and --out {run}"
        )
    with out.listening():
        RunFolder(run).manifest()
        config = load(SweepConfig, RunFolder(run).config)
        wanted = engine_asked(config.engine, engine, workers, address)
        out.foretell(foretold(config.problem))
        found = sweep.resume(run, engine=wanted, progress=out.progress, told=teller(out))
    tell(out, found, run)
