"""`bipareto resume`: go on with a run where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.options import Json, Quiet
from bipareto.cli.output import Output
from bipareto.cli.sweep import Address, Engine, Workers, engine_asked, tell, teller
from bipareto.errors import InvalidInput

__all__ = ["resume"]

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def resume(
    run: Run,
    engine: Engine = None,
    workers: Workers = None,
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run where it stopped.

    The result is, bit for bit, that of a run that was never interrupted.

    \b
    Examples:
      bipareto resume runs/a
      bipareto resume runs/a --engine ray --address auto
    """
    from bipareto.sweep import sweep
    from bipareto.sweep.builder import foretold
    from bipareto.sweep.config import SweepConfig, load
    from bipareto.sweep.store import RunFolder

    out = Output(as_json, quiet)
    if (run / "experiment.json").exists():
        raise InvalidInput(
            f"{run} holds an experiment, which goes on when its own command is called again with "
            f"--out {run}"
        )
    if not RunFolder(run).exists() and (run / "methods").is_dir():
        raise InvalidInput(
            f"{run} holds a comparison, which goes on when bipareto compare is called again with "
            f"the same words and --out {run}"
        )
    with out.listening():
        RunFolder(run).manifest()
        config = load(SweepConfig, RunFolder(run).config)
        wanted = engine_asked(config.engine, engine, workers, address)
        out.foretell(foretold(config.problem))
        found = sweep.resume(run, engine=wanted, progress=out.progress, told=teller(out))
    tell(out, found, run)
