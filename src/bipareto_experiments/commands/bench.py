"""`bipareto bench`: what ours costs and reaches beside its alternatives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import Json, Quiet, taking
from bipareto.errors import InvalidInput

#: suite -> seconds of measurement in each table, by default
SUITES = {
    "step": 20.0,
    "front": 20.0,
    "startup": 30.0,
    "methods": 0.0,
    "alternatives": 0.0,
    "scaling": 2.0,
    "gpu": 5.0,
}


def bench(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(SUITES)}.")],
    out_dir: Annotated[Path, taking("DIR", "Where SUITE.json and SUITE.png go.", "--out")] = Path(
        "bench-out"
    ),
    seconds: Annotated[float | None, taking("S", "For each table of times.", min=0.0)] = None,
    seeds: Annotated[str, taking("N,N,..", "Of data and starts.")] = "0,1,2",
    only: Annotated[
        str | None,
        taking("NAME,..", "Of methods, alternatives and scaling: these problems or parts."),
    ] = None,
    rivals: Annotated[
        Path | None,
        taking("DIR", "The rivals' environment; else in the cache.  Made where it is not there."),
    ] = None,
    here: Annotated[
        bool,
        typer.Option("--here", help="No environment: with those rivals that are installed here."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure one suite against what one would do instead.

    \b
    step          a step against the same by hand, BOAT, TorchOpt and TorchJD
    front         32 preferences against loops; hypervolumes against pymoo, BoTorch
    startup       until something answers
    methods       gradients to 99 % of the exact points' hypervolume, all methods
    alternatives  hypervolume over seconds: BOAT, TorchOpt, Optuna, SGD by hand
    scaling       step time and memory over m, preferences and parameters
    gpu           a ResNet-18 replayed as a CUDA graph

    Rivals are installed into an environment of their own; one that cannot be is
    named and counts as not measured.  All ratios are of interleaved repeats.

    \b
    Examples:
      bipareto bench step
      bipareto bench alternatives --only cleaning --seeds 0
    """
    if suite not in SUITES:
        raise InvalidInput(f"suite {suite!r} is not known; choose one of {', '.join(SUITES)}")
    try:
        numbers = [int(word) for word in seeds.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--seeds {seeds!r}; pass numbers, e.g. --seeds 0,1,2") from error
    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    if not here:
        raise typer.Exit(_there(suite, rivals, out))
    from bipareto_experiments.bench import suites

    each = SUITES[suite] if seconds is None else seconds
    names = None if only is None else only.split(",")
    with out.listening():
        figures = suites.run(suite, each, numbers, names, out_dir, out.say)
    figures.show(out)
    # without folders, which are nobody else's
    command = f"bipareto bench {suite} --seconds {each:g} --seeds {seeds}"
    command += "" if only is None else f" --only {only}"
    path = figures.write(out_dir, command, numbers)
    out.say(f"written to {path} and {path.with_suffix('.png').name}")
    out.result({"suite": suite, "claims": [[c.text, c.value, c.met] for c in figures.claims]})


def _there(suite: str, rivals: Path | None, out: Output) -> int:
    """The same command in the environment of the rivals."""
    from bipareto_experiments.bench.rivals import environment, run_there
    from bipareto_experiments.data.cache import cache_folder

    python = environment(cache_folder() / "rivals" if rivals is None else rivals, out.say)
    return run_there(python, [*sys.argv[1:], "--here"])
