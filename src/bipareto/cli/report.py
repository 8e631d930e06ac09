"""`bipareto report`: a page of fronts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.again import type_again
from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import Json, Quiet, taking
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from bipareto.sweep.reading import StoredRun


def report(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of fronts, sweeps and comparisons, or files of fronts."
        ),
    ],
    page: Annotated[
        Path | None, taking("FILE", "The page; else report.html in the first folder.", "--out")
    ] = None,
    title: Annotated[str | None, taking("TEXT", "Of the page; else the names of the runs.")] = None,
    certified: Annotated[
        bool | None,
        typer.Option(
            "--certify/--no-certify",
            help="Certify every point of known problems; by default where they are few and small.",
        ),
    ] = None,
    figures: Annotated[
        Path | None, taking("DIR", "Also write the figures for publication there.")
    ] = None,
    form: Annotated[str, taking("KIND", "Of these figures: pdf, png or svg.", "--format")] = "pdf",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make one page of one or several fronts.

    The page is a single file that needs no network: the front in two or three
    dimensions, parallel coordinates and radar for three objectives and more,
    what each point is and the line of Python that loads it, sliders for the
    preference, convergence, a comparison of the runs, their configuration.

    Of an experiment its pictures and tables are made, as `bipareto experiment
    figures` does.

    \b
    Examples:
      bipareto report runs/a
      bipareto report runs/a runs/b --title "two methods" --out compare.html
      bipareto report runs/a --figures figures --format png
    """
    from bipareto import __version__
    from bipareto.report.page import build, write_page
    from bipareto.sweep.reading import read_runs

    out = Output(as_json, quiet)
    if any((path / "experiment.json").is_file() for path in runs):
        if page is not None:
            raise InvalidInput(
                f"an experiment has pictures and tables, no page: give --figures DIR, not --out "
                f"{page}"
            )
        into = ["--out", str(figures)] if figures else []
        type_again(context, ["experiment", "figures", *map(str, runs), *into], as_json, quiet)
    if form not in ("pdf", "png", "svg"):
        raise InvalidInput(f"--format {form!r} is not known; choose pdf, png or svg")
    target = page or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html"
    if target.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(
            f"--out {target} is no name of a page; let it end in .html, so that it takes no other "
            "file's place"
        )
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


def _figures(found: list[StoredRun], data: dict[str, Any], folder: Path, form: str) -> list[str]:
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
