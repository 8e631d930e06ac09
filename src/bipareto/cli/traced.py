"""Commands that read a run folder take a problem as well, and trace a short front of it first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from bipareto.cli.values import problem_asked
from bipareto.sweep.config import PreferencesConfig, SweepConfig

if TYPE_CHECKING:
    from bipareto.cli.output import Output

__all__ = ["RunOrProblem", "ShortSteps", "folder_of"]

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
