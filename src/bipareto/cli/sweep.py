"""`bipareto sweep`: a configured front in a run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.output import Output, ensure_folder, lower_level
from bipareto.cli.values import Json, Quiet, taking
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from bipareto.fronts.pareto import ParetoFront
    from bipareto.sweep.config import EngineConfig


Config = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="What to run.")]
Engine = Annotated[
    str | None, taking("NAME", "local, processes or ray; changes no number.", "--engine")
]
Workers = Annotated[
    int | None, taking("N", "Slices at a time; by default one per core.", "--workers", min=1)
]
Address = Annotated[
    str | None, taking("HOST:PORT", "An existing Ray cluster, or auto.", "--address")
]
Track = Annotated[
    str | None,
    taking(
        "NAME", "Also show records in tensorboard, mlflow or wandb; changes no number.", "--track"
    ),
]


def sweep(
    config: Config,
    out_dir: Annotated[Path, taking("RUN", "The folder of the run, which must be new.", "--out")],
    engine: Engine = None,
    workers: Workers = None,
    address: Address = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a configured front in a folder that survives a crash.

    \b
    The smallest configuration, in YAML:
      problem: {name: pl-sin2, options: {dim: 100}}
      preferences: {count: 64}
      seeds: [0, 1, 2]

    \b
    Examples:
      bipareto sweep front.yaml --out runs/a
      bipareto sweep front.yaml --out runs/b --engine processes --workers 4
      bipareto sweep front.yaml --out runs/c --track tensorboard
    """
    from bipareto.sweep import sweep
    from bipareto.sweep.config import SweepConfig, load, to_dict
    from bipareto.sweep.plan import foretold
    from bipareto.sweep.typed import parse

    out = Output(as_json, quiet)
    with out.listening():
        asked = load(SweepConfig, config)
        asked = replace(asked, engine=engine_asked(asked.engine, engine, workers, address))
        asked = asked if track is None else parse(SweepConfig, to_dict(asked) | {"track": track})
        ensure_folder(out_dir, own="manifest.json")
        out.foretell(foretold(asked.problem))
        found = sweep.sweep(asked, out_dir, progress=out.progress, told=teller(out))
    tell(out, found, out_dir)


def engine_asked(
    given: EngineConfig, name: str | None, workers: int | None, address: str | None
) -> EngineConfig:
    """The configured engine, with what the command line says on top."""
    from bipareto.sweep.config import EngineConfig, to_dict
    from bipareto.sweep.typed import parse

    changes = {
        key: value
        for key, value in (("name", name), ("workers", workers), ("address", address))
        if value is not None
    }
    try:
        return parse(EngineConfig, to_dict(given) | changes)
    except InvalidInput as error:
        raise InvalidInput(f"--engine: {error}") from error


def teller(out: Output) -> Any:
    """What says that a slice is done."""
    return lambda done, slices: out.say(f"slice {done} of {slices} done") if slices > 1 else None


def tell(out: Output, found: ParetoFront, path: Path) -> None:
    """The measures of a finished run."""
    measures = json.loads((path / "measures.json").read_text("utf-8"))
    failed = sum(failure is not None for failure in found.failure)
    if failed:
        out.warn(
            f"{failed} of {len(found)} runs left the finite numbers; the first: "
            f"{next(filter(None, found.failure))}"
        )
    if not out.quiet:
        corner = ", ".join(f"{value:.6g}" for value in measures["reference"])
        out.say(
            f"{len(found)} runs: hypervolume {measures['hypervolume']:.6g} up to ({corner}), with "
            f"{lower_level(found)}"
        )
        out.say(f"wrote front.csv, front.npz and measures.json to {path}")
    out.result(
        {
            "run": str(path),
            "runs": len(found),
            "failed": failed,
            "seconds": found.seconds,
            **measures,
        }
    )
