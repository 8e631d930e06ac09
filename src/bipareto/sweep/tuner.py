"""Search of a method's hyperparameters with Optuna, many trials at a time.

Hyperparameters live in the state of a run, so trials that differ only in them are just more runs
of one batch: their states are stacked and stepped side by side.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput, installed
from bipareto.fronts import measures
from bipareto.methods import Method
from bipareto.methods.parts import envelope
from bipareto.problem import tree
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Run
from bipareto.sweep.config import SearchConfig, SweepConfig, TuneConfig, dump
from bipareto.sweep.plan import Setup, build, method_of, preferences_of
from bipareto.sweep.store import RunFolder
from bipareto.sweep.typed import check_options


class Tuned(NamedTuple):
    """What a search found: the best value of the measure, where, and out of how many trials."""

    measure: str
    value: float
    hyperparameters: dict[str, float]
    reference: list[float]
    trials: int


def tune(
    config: TuneConfig, path: Path, *, storage: str | None = None, study_name: str = "tune"
) -> Tuned:
    """Search, and write the best configuration to PATH/best.yaml.

    Args:
        config: the sweep of one trial and the space.
        path: a folder.
        storage: any of Optuna's URLs; None is an SQLite file in the folder.
        study_name: trials of one name add up over calls.
    """
    remedy = "tuning needs Optuna; get it with: pip install 'bipareto[tune]'"
    optuna = installed("optuna", remedy)
    setup = build(config.sweep.problem, config.sweep.seeds)
    base = method_of(config.sweep.method, setup, config.sweep.steps)
    check_options(
        "space",
        f"method {config.sweep.method.name!r}",
        dict.fromkeys(config.space, 1.0),
        dict.fromkeys(_tunable(base), 1.0),
    )
    reference = _reference(config, setup)
    path.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=study_name,
        storage=storage or f"sqlite:///{path / 'trials.db'}",
        direction="maximize" if config.measure in ("hypervolume", "spread") else "minimize",
        sampler=optuna.samplers.TPESampler(seed=config.seed),
        load_if_exists=True,
    )
    study.set_user_attr("reference", reference.tolist())
    space = {name: _distribution(optuna, values) for name, values in config.space.items()}
    for begin in range(0, config.trials, config.batch):
        trials = [study.ask(space) for _ in range(min(config.batch, config.trials - begin))]
        for trial, value in zip(
            trials,
            evaluate(config, setup, base, [trial.params for trial in trials], reference),
            strict=True,
        ):
            if math.isfinite(value):
                study.tell(trial, value)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        raise InvalidInput(
            "no trial stayed finite; narrow the space to smaller steps or a larger c"
        )
    best = study.best_trial
    chosen = replace(
        config.sweep,
        method=replace(config.sweep.method, set={**config.sweep.method.set, **best.params}),
    )
    RunFolder(path).write_text("best.yaml", dump(chosen))
    return Tuned(
        config.measure, float(best.value), dict(best.params), reference.tolist(), len(study.trials)
    )


def evaluate(
    config: TuneConfig,
    setup: Setup,
    base: Method,
    numbers: list[dict[str, float]],
    reference: Tensor,
) -> list[float]:
    """The measure of each set of numbers; NaN where no run of it stayed finite.

    Args:
        config: the search.
        setup: its problem and starts.
        base: the method whose numbers are replaced.
        numbers: one dict per trial.
        reference: (m,).
    """
    methods: list[Method | None] = []
    for given in numbers:
        try:
            methods.append(replace(base, **given))
        except InvalidInput:
            methods.append(None)
    values = [math.nan] * len(numbers)
    groups: dict[Any, list[int]] = {}
    for index, method in enumerate(methods):
        if method is not None:
            groups.setdefault((method.structure(), getattr(method, "warmup", 0)), []).append(index)
    for members in groups.values():
        found = _run_together(
            config.sweep, setup, [method for i in members if (method := methods[i]) is not None]
        )
        for index, objectives in zip(members, found, strict=True):
            if torch.isfinite(objectives).all(1).any():
                values[index] = _value(config.measure, objectives, reference, setup)
    return values


def _run_together(sweep: SweepConfig, setup: Setup, methods: list[Method]) -> list[Tensor]:
    """The objectives (R, m) of each method's front, the lower level solved, all in one batch."""
    states, seeds = [], []
    for method in methods:
        for seed, (x0, y0) in zip(sweep.seeds, setup.starts, strict=True):
            start = method.prepare(setup.problem, x0, y0)
            wanted = preferences_of(sweep, method, start.objectives.shape[0])
            states += [method.begin(start, w) for w in wanted]
            seeds += [seed] * len(wanted)
    m = (
        states[0].preference.shape[-1]
        if hasattr(states[0], "preference")
        else start.objectives.shape[0]
    )
    run: Run = drive(
        setup.problem,
        methods[0],
        Begun(tree.stack(states), seeds, m, batched=True),
        LoopOptions(sweep.steps, sweep.compile, sweep.record_every, sweep.tol, progress=False),
    )
    if run.interrupted:
        raise KeyboardInterrupt  # the study must not learn from runs that were cut short
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        y = envelope.solve_lower(setup.problem, run.state.x, run.state.y, batched=True).y
    batch = setup.problem.batch("upper", "full")
    with torch.no_grad():
        objectives = torch.func.vmap(lambda u, v: setup.problem.upper(u, v, batch))(run.state.x, y)
    failed = torch.tensor([failure is not None for failure in run.failure])
    objectives[failed.to(objectives.device)] = torch.nan
    return list(objectives.reshape(len(methods), -1, m).cpu())


def _value(measure: str, objectives: Tensor, reference: Tensor, setup: Setup) -> float:
    if measure == "hypervolume":
        return measures.hypervolume(objectives, reference)
    if measure == "spread":
        return measures.spread(objectives)
    if setup.known is None:
        raise InvalidInput(
            "measure is igd_plus, which needs a problem with a known front; use hypervolume"
        )
    return measures.igd_plus(objectives, setup.known.front())


def _reference(config: TuneConfig, setup: Setup) -> Tensor:
    """The given reference point, the known one, or the objectives at the start."""
    start = (
        setup.problem.upper(*setup.starts[0], setup.problem.batch("upper", "full"))
        .detach()
        .to("cpu", torch.float64)
    )
    if config.reference is not None:
        if len(config.reference) != len(start):
            raise InvalidInput(
                f"reference is {list(config.reference)}; it must have one number per objective, "
                f"{len(start)}"
            )
        return torch.tensor(config.reference, dtype=torch.float64)
    return start if setup.known is None else setup.known.reference


def _tunable(method: Method) -> list[str]:
    """The fields of a method that take a number."""
    return [
        name
        for name, value in vars(method).items()
        if not isinstance(value, (str, bool, int)) or isinstance(value, float)
    ]


def _distribution(optuna: Any, values: SearchConfig) -> Any:
    if values.choices is not None:
        return optuna.distributions.CategoricalDistribution(values.choices)
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)
