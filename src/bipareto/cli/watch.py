"""`bipareto watch`: a run while it goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.output import Output
from bipareto.cli.values import Json, taking

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bipareto.sweep.progress import Progress


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a sweep.")],
    every: Annotated[float, taking("SECONDS", "How often to look.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Watch a sweep while it runs.

    Shows its progress, the hypervolume so far and the slowest slice, and leaves
    when the sweep is done.  It only reads; stop it as you like.  With --json it
    looks once.  Of an experiment it says how many of its trainings are done.

    \b
    Examples:
      bipareto watch runs/a
      bipareto watch runs/a --once
    """
    from bipareto.sweep.progress import experiment, progress
    from bipareto.sweep.reading import run_folders

    out = Output(as_json)
    if (trained := experiment(run)) is not None:
        out.say(
            f"{run}: experiment {trained.method}, {trained.state}; {trained.slices_done} of "
            f"{trained.slices} trainings that were begun are done"
        )
        out.result({**trained._asdict(), "path": str(run)})
        return
    *done, last = run_folders(run)
    for folder in done:
        out.console.print(_view(progress(folder)))
    run = last
    seen = progress(run)
    if as_json or once or not out.console.is_terminal:
        out.console.print(_view(seen))
    else:
        from rich.live import Live

        with Live(_view(seen), console=out.console, refresh_per_second=4) as live:
            while seen.state == "running":
                time.sleep(every)
                seen = progress(run)
                live.update(_view(seen))
    data = seen._asdict() | {
        "path": str(seen.path),
        "slices": [part._asdict() for part in seen.slices],
    }
    out.result(data | {"slowest": None if seen.slowest is None else seen.slowest._asdict()})


def _view(seen: Progress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    left = max(
        (part.left for part in seen.slices if part.left is not None and part.state != "done"),
        default=None,
    )
    to_go = "" if left is None or seen.state != "running" else f", about {_clock(left)} left"
    rows: dict[str, Any] = {
        "run": f"{seen.path}: {seen.method} on {seen.problem}, {seen.runs} runs, {seen.state}",
        "progress": f"{seen.done:.1%} of all steps{to_go}",
        "": ProgressBar(total=1.0, completed=seen.done, width=50),
    }
    if seen.hypervolume is not None and seen.reference is not None:
        corner = ", ".join(f"{value:.5g}" for value in seen.reference)
        rows["hypervolume"] = (
            f"{seen.hypervolume:.6g} so far, up to ({corner}), {seen.reference_is}"
        )
    if (slow := seen.slowest) is not None:
        rows["slowest"] = (
            f"slice {slow.number}, runs {slow.first}-{slow.last}: step {slow.step} of "
            f"{slow.steps}, {_clock(slow.left)} left"
        )
    if seen.worst is not None:
        rows["farthest"] = f"run {seen.worst[0]}, residual {seen.worst[1]:.3g}"
    lines = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        lines.add_row(name, Text(value) if isinstance(value, str) else value)
    done = sum(part.state == "done" for part in seen.slices)
    return Group(lines, Text(f"{done} of {len(seen.slices)} slices done"))


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes} min {rest:02d} s"
        if minutes
        else f"{rest} s"
    )
