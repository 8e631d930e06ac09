"""Fronts that commands trace: those that were asked for, and a short one of a problem where a run
folder could be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.values import problem_asked
from bipareto.sweep.config import PreferencesConfig, SweepConfig

if TYPE_CHECKING:
    from bipareto.cli.output import Output
    from bipareto.fronts.pareto import ParetoFront
    from bipareto.methods import Method
    from bipareto.problem.tree import Tree
    from bipareto.sweep.builder import Setup


RunOrProblem = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder: of `front`, `solve`, `sweep`; or package.module:function.",
    ),
]
ShortSteps = Annotated[
    int,
    typer.Option("--steps", metavar="N", min=1, help="Of the front of package.module:function."),
]


@contextmanager
def folder_of(out: Output, asked: str, steps: int, option: list[str] | None) -> Iterator[Path]:
    """The run folder that was named, or one of a short front of the problem that was named: five
    preferences along each edge, the method that suits the problem, tuned.
    """
    if ":" not in asked or Path(asked).exists():
        yield Path(asked)
        return
    from bipareto.sweep import sweep
    from bipareto.sweep.builder import build, chosen

    problem = problem_asked(asked, option, None, 0.0)
    setup = build(problem, [0])
    preferences = PreferencesConfig(count=5)
    config = chosen(SweepConfig(problem=problem, preferences=preferences, steps=steps), setup)
    with TemporaryDirectory() as folder, out.listening():
        run = Path(folder) / "run"
        sweep.sweep(config, run, setup=setup, progress=out.progress)
        out.say(f"{asked}: a front of {steps} steps, {config.method.name}")
        yield run


def front_of(
    config: SweepConfig,
    setup: Setup,
    out_dir: Path | None,
    progress: bool | None,
    callbacks: Sequence[Any] = (),
) -> tuple[ParetoFront, Method, Tree, list[int]]:
    """The front of a configuration, in a folder or in memory: with its lower level solved; its
    method with hyperparameters; y as the runs returned it, and their steps.
    """
    from bipareto.sweep import sweep
    from bipareto.sweep.reading import plan_of, returned

    if out_dir is not None:
        found = sweep.sweep(config, out_dir, setup=setup, callbacks=callbacks, progress=progress)
        return found, plan_of(out_dir, trusted=True).method, *returned(out_dir, trusted=True)
    raw = sweep.traced(config, setup, callbacks=callbacks, progress=progress)
    assert raw.method is not None
    # The y of a race was trained on g alone already.
    found = raw if raw.race else raw.resolve_lower()
    return found, raw.method, raw.y, [] if raw.run is None else raw.run.steps
