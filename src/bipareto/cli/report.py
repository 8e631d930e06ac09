"""`bipareto report` and `bipareto watch`: fronts one can look at."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.options import Json, Quiet
from bipareto.cli.output import Output, ensure_folder
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bipareto.report.runs import ReportRun
    from bipareto.sweep.progress import Progress

__all__ = ["report", "watch"]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of fronts, sweeps and comparisons, or files of fronts."
        ),
    ],
    page: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The page; else report.html in the first folder."
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option("--title", metavar="TEXT", help="Of the page; else the names of the runs."),
    ] = None,
    certified: Annotated[
        bool | None,
        typer.Option(
            "--certify/--no-certify",
            help="Certify every point of known problems; by default where they are few and small.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", metavar="DIR", help="Also write the figures for publication there."
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="KIND", help="Of these figures: pdf, png or svg.")
    ] = "pdf",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make one page of one or several fronts.

    The page is a single file that needs no network: the front in two or three
    dimensions, parallel coordinates and radar for three objectives and more,
    what each point is and the line of Python that loads it, sliders for the
    preference, convergence, a comparison of the runs, their configuration.

    \b
    Examples:
      bipareto report runs/a
      bipareto report runs/a runs/b --title "two methods" --out compare.html
      bipareto report runs/a --figures figures --format png
    """
    from bipareto import __version__
    from bipareto.report.page import build, write_page
    from bipareto.report.runs import read_runs

    out = Output(as_json, quiet)
    if form not in ("pdf", "png", "svg"):
        raise InvalidInput(f"--format {form!r} is not known; choose pdf, png or svg")
    target = page or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html"
    with out.listening():
        found = [run for path in runs for run in read_runs(path)]
        data = build(
            found,
            title=title or ", ".join(str(path) for path in runs),
            version=__version__,
            certified=certified,
        )
        ensure_folder(target.parent)
        write_page(data, target)
        written = [str(target)]
        if figures is not None:
            ensure_folder(figures)
            written += _figures(found, data, figures, form)
    out.say(
        f"wrote {', '.join(written)} ({target.stat().st_size / 1e6:.1f} MB page, "
        f"{sum(len(run.front) for run in found)} points)"
    )
    measured = [
        {"name": run["name"], "points": len(run["seed"]), "hypervolume": run["hypervolume"]}
        for run in data["runs"]
    ]
    out.result(
        {"page": str(target), "files": written, "reference": data["reference"], "runs": measured}
    )


def _figures(found: list[ReportRun], data: dict[str, Any], folder: Path, form: str) -> list[str]:
    """The figures of the page, drawn by matplotlib."""
    from bipareto import report as drawn
    from bipareto.report.curves import read_curves

    written: list[Path] = []

    def target(name: str) -> Path:
        written.append(folder / f"{name}.{form}")
        return written[-1]

    for i, run in enumerate(found):
        suffix = f"-{i + 1}" if len(found) > 1 else ""
        drawn.plot_front(
            run.front, run.known, target(f"front{suffix}"), title=run.name.replace("$", r"\$")
        )
        if data["m"] > 2:
            drawn.plot_radar(
                run.front, target(f"radar{suffix}"), names=run.known.names if run.known else None
            )
        if (curves := read_curves(run.sources, data["names"])) is not None:
            drawn.plot_convergence(curves, target(f"convergence{suffix}"))
    if len(found) > 1 and data["comparable"]:
        fronts, methods = {run.name: run.front for run in found}, [run.method for run in found]
        drawn.plot_comparison(
            {name: front.objectives for name, front in fronts.items()},
            found[0].known,
            target("comparison"),
            methods=methods,
        )
        drawn.plot_hypervolumes(
            fronts,
            data["reference"],
            target("hypervolume"),
            methods=methods,
            exact=data["exact_hypervolume"],
        )
    return [str(path) for path in written]


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a sweep.")],
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Watch a sweep while it runs.

    Shows its progress, the hypervolume so far and the slowest slice, and leaves
    when the sweep is done.  It only reads; stop it as you like.  With --json it
    looks once.

    \b
    Examples:
      bipareto watch runs/a
      bipareto watch runs/a --once
    """
    from bipareto.sweep.progress import progress

    out = Output(as_json)
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

    lines = Table.grid(padding=(0, 2))
    left = max(
        (part.left for part in seen.slices if part.left is not None and part.state != "done"),
        default=None,
    )
    rows: list[tuple[str, Any]] = [
        (
            "run",
            Text(f"{seen.path}: {seen.method} on {seen.problem}, {seen.runs} runs, {seen.state}"),
        ),
        (
            "progress",
            Text(
                f"{seen.done:.1%} of all steps"
                + (
                    ""
                    if left is None or seen.state != "running"
                    else f", about {_clock(left)} left"
                )
            ),
        ),
        ("", ProgressBar(total=1.0, completed=seen.done, width=50)),
    ]
    if seen.hypervolume is not None and seen.reference is not None:
        corner = ", ".join(f"{value:.5g}" for value in seen.reference)
        rows.append(
            (
                "hypervolume",
                Text(f"{seen.hypervolume:.6g} so far, up to ({corner}), {seen.reference_is}"),
            )
        )
    if seen.slowest is not None:
        slow = seen.slowest
        rows.append(
            (
                "slowest",
                Text(
                    f"slice {slow.number}, runs {slow.first}-{slow.last}: step {slow.step} of "
                    f"{slow.steps}, {_clock(slow.left)} left"
                ),
            )
        )
    if seen.worst is not None:
        rows.append(("farthest", Text(f"run {seen.worst[0]}, residual {seen.worst[1]:.3g}")))
    for name, value in rows:
        lines.add_row(name, value)
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
