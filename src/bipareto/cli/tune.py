"""`bipareto tune`: a search of a method's hyperparameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.options import Json, Quiet
from bipareto.cli.output import Output
from bipareto.cli.sweep import Config

__all__ = ["tune"]


def tune(
    config: Config,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="URL",
            help="Any of Optuna's; by default an SQLite file beside --out.",
        ),
    ] = None,
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="Trials of one name add up.")
    ] = "tune",
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where best.yaml and the storage go.")
    ] = Path("runs/tune"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search a method's numbers with Optuna.

    Trials that differ only in numbers run side by side, as one batch.  The best
    numbers are written as a configuration for `bipareto sweep`.

    \b
    A configuration, in YAML:
      sweep: {problem: {name: pl-sin2}, steps: 2000, preferences: {count: 5}}
      space: {mu: {low: 1, high: 16, log: true}, gamma: {choices: [0.1, 0.2]}}
      trials: 32

    \b
    Examples:
      bipareto tune search.yaml --out runs/search
    """
    from bipareto.sweep import tuner
    from bipareto.sweep.builder import foretold
    from bipareto.sweep.config import TuneConfig, load

    out = Output(as_json, quiet)
    with out.listening():
        asked = load(TuneConfig, config)
        out.foretell(foretold(asked.sweep.problem))
        found = tuner.tune(asked, out_dir, storage=storage, study_name=study)
    if not quiet:
        numbers = ", ".join(f"{name} = {value:.5g}" for name, value in found.numbers.items())
        out.say(
            f"best of {found.trials} trials: {found.measure} {found.value:.6g} at {numbers}; run "
            f"it: bipareto sweep {out_dir / 'best.yaml'} --out RUN"
        )
    out.result({**found._asdict(), "config": str(out_dir / "best.yaml")})
