"""`bipareto tune`: a search of a method's hyperparameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bipareto.cli.output import Output
from bipareto.cli.values import Json, Options, Quiet, ShortSteps, problem_asked, taking
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from bipareto.sweep.config import TuneConfig


#: how far from a tuned hyperparameter its range reaches
FACTOR = 4.0


def tune(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG.yaml", help="What to search; or package.module:function."),
    ],
    method: Annotated[
        str | None, taking("NAME", "Of package.module:function; else what suits it.")
    ] = None,
    space: Annotated[
        list[str] | None, taking("KEY=LOW:HIGH", "A hyperparameter's range; repeatable.")
    ] = None,
    steps: ShortSteps = 2000,
    trials: Annotated[int, taking("N", "Of package.module:function.", min=1)] = 32,
    option: Options = None,
    storage: Annotated[
        str | None, taking("URL", "Any of Optuna's; by default an SQLite file beside --out.")
    ] = None,
    study: Annotated[str, taking("NAME", "Trials of one name add up.")] = "tune",
    out_dir: Annotated[Path, taking("DIR", "Where best.yaml and the storage go.", "--out")] = Path(
        "runs/tune"
    ),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search a method's hyperparameters with Optuna.

    Trials that differ only in these run side by side, as one batch.  The best
    ones are written as a configuration for `bipareto sweep`.

    Of your own problem, package.module:function, the tuned hyperparameters
    themselves are searched, a factor of four to either side; --space names
    others.

    \b
    A configuration, in YAML:
      sweep: {problem: {name: pl-sin2}, steps: 2000, preferences: {count: 5}}
      space: {mu: {low: 1, high: 16, log: true}, gamma: {choices: [0.1, 0.2]}}
      trials: 32

    \b
    Examples:
      bipareto tune search.yaml --out runs/search
      bipareto tune package.module:function --space mu=1:16 --trials 16
    """
    from bipareto.sweep import tuner
    from bipareto.sweep.config import TuneConfig, load
    from bipareto.sweep.plan import foretold

    out = Output(as_json, quiet)
    with out.listening():
        if ":" in config and not Path(config).exists():
            asked = _own(config, method, space or [], steps, trials, option)
        else:
            asked = load(TuneConfig, config)
            out.foretell(foretold(asked.sweep.problem))
        found = tuner.tune(asked, out_dir, storage=storage, study_name=study)
    if not quiet:
        numbers = ", ".join(
            f"{name} = {value:.5g}" for name, value in found.hyperparameters.items()
        )
        out.say(
            f"best of {found.trials} trials: {found.measure} {found.value:.6g} at {numbers}; run "
            f"it: bipareto sweep {out_dir / 'best.yaml'} --out RUN"
        )
    out.result({**found._asdict(), "config": str(out_dir / "best.yaml")})


def _own(
    name: str,
    method: str | None,
    space: list[str],
    steps: int,
    trials: int,
    option: list[str] | None,
) -> TuneConfig:
    """The search for a problem of one's own: five preferences, ranges that are given or surround
    the tuned hyperparameters.
    """
    from bipareto.sweep.config import (
        MethodConfig,
        PreferencesConfig,
        SearchConfig,
        SweepConfig,
        TuneConfig,
    )
    from bipareto.sweep.plan import auto, build, method_of

    problem = problem_asked(name, option, None, 0.0)
    setup = build(problem, [0])
    method = method or auto(setup.problem)
    ranges = {}
    for text in space:
        key, _, values = text.partition("=")
        try:
            low, high = (float(value) for value in values.split(":"))
        except ValueError as error:
            raise InvalidInput(f"--space {text!r} is not of the form key=low:high") from error
        ranges[key.strip()] = SearchConfig(low=low, high=high, log=low > 0)
    if not ranges:
        tuned = method_of(MethodConfig(method), setup, steps)
        ranges = {
            key: SearchConfig(low=value / FACTOR, high=value * FACTOR, log=True)
            for key, value in vars(tuned).items()
            if isinstance(value, float) and value > 0
        }
    if not ranges:
        raise InvalidInput(
            f"{method} has no plain hyperparameters to search; name some with --space"
        )
    return TuneConfig(
        sweep=SweepConfig(
            problem=problem,
            method=MethodConfig(method),
            preferences=PreferencesConfig(count=5),
            steps=steps,
        ),
        space=ranges,
        trials=trials,
    )
