"""`bipareto sweep`, `resume`, `ls` and `tune`: fronts that live in a run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.output import Output, ensure_folder
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from bipareto.fronts.pareto import ParetoFront
    from bipareto.sweep.config import EngineConfig

__all__ = ["ls", "resume", "sweep", "tune"]

Config = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="What to run.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="local, processes or ray; changes no number."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=1, help="Slices at a time; by default one per core."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="An existing Ray cluster, or auto."),
]
Track = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="Also show records in tensorboard or mlflow; changes no number.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object, last on stdout; all else goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No tables, no words, no progress bar.")]


def sweep(
    config: Config,
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="RUN", help="The folder of the run, which must be new.")
    ],
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
    from bipareto.sweep.typed import parse

    out = Output(as_json, quiet)
    with out.listening():
        asked = load(SweepConfig, config)
        asked = replace(asked, engine=_engine(asked.engine, engine, workers, address))
        asked = asked if track is None else parse(SweepConfig, to_dict(asked) | {"track": track})
        ensure_folder(out_dir, own="manifest.json")
        found = sweep.sweep(asked, out_dir, progress=out.progress, told=_teller(out))
    _tell(out, found, out_dir)


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
    from bipareto.sweep.config import SweepConfig, load
    from bipareto.sweep.store import RunFolder

    out = Output(as_json, quiet)
    if (run / "experiment.json").exists():
        raise InvalidInput(
            f"{run} holds an experiment, which goes on when its own command is called again with "
            f"--out {run}"
        )
    with out.listening():
        RunFolder(run).manifest()
        wanted = _engine(load(SweepConfig, RunFolder(run).config).engine, engine, workers, address)
        found = sweep.resume(run, engine=wanted, progress=out.progress, told=_teller(out))
    _tell(out, found, run)


def ls(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look for runs.")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """List the runs of `bipareto sweep` and how far they are.

    Folders of `bipareto front` and `compare` are not listed: these have no steps
    left to go; `bipareto report DIR` shows them.

    \b
    Examples:
      bipareto ls
      bipareto ls runs --json
    """
    from bipareto.errors import BiparetoError
    from bipareto.sweep import sweep

    out = Output(as_json)
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass the one that holds your runs")
    found = []
    for manifest in sorted(folder.rglob("manifest.json")):
        try:
            found.append(sweep.status(manifest.parent))
        except BiparetoError as error:
            out.warn(f"{manifest.parent}: {error}")
    rows = [
        [
            str(item.path),
            item.problem,
            item.method,
            item.state,
            str(item.runs),
            f"{item.slices_done}/{item.slices}",
            f"{item.progress:.0%}",
        ]
        for item in found
    ]
    if found:
        header = ["run", "problem", "method", "state", "runs", "slices", "steps"]
        out.table(f"{len(found)} run{'' if len(found) == 1 else 's'} in {folder}", header, rows, 4)
    else:
        out.say(
            f"no folder of `bipareto sweep` under {folder}; pages of other fronts: bipareto report "
            "DIR"
        )
    out.result({"runs": [{**item._asdict(), "path": str(item.path)} for item in found]})


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
    from bipareto.sweep.config import TuneConfig, load

    out = Output(as_json, quiet)
    with out.listening():
        found = tuner.tune(load(TuneConfig, config), out_dir, storage=storage, study_name=study)
    if not quiet:
        numbers = ", ".join(f"{name} = {value:.5g}" for name, value in found.numbers.items())
        out.say(
            f"best of {found.trials} trials: {found.measure} {found.value:.6g} at {numbers}; run "
            f"it: bipareto sweep {out_dir / 'best.yaml'} --out RUN"
        )
    out.result({**found._asdict(), "config": str(out_dir / "best.yaml")})


def _engine(
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


def _teller(out: Output) -> Any:
    return lambda done, slices: out.say(f"slice {done} of {slices} done") if slices > 1 else None


def _tell(out: Output, found: ParetoFront, path: Path) -> None:
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
            f"{len(found)} runs: hypervolume {measures['hypervolume']:.6g} up to ({corner}), lower "
            "level solved"
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
