"""`bipareto experiment`: the experiments on data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli import values
from bipareto.cli.certify import Gamma, Index, certified, in_json
from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import Json, Out, Quiet, taking
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.cells import figures as nas_figures
from bipareto_experiments.commands.fewshot import commands as fewshot
from bipareto_experiments.commands.fewshot import figures as fewshot_figures
from bipareto_experiments.commands.kept import (
    claim_experiment,
    ensure_experiment,
    name_of,
    study_of,
)
from bipareto_experiments.commands.nas import commands as nas

__all__ = ["app"]

#: bytes that a certificate's float64 vectors may take, two for every gradient of its budget, and
#: the gradients that it has at least
MEMORY, LEAST = 2**31, 40

app = typer.Typer(no_args_is_help=True, help="Experiments on data.", rich_markup_mode=None)
app.add_typer(fewshot, name="fewshot")
app.add_typer(nas, name="nas")


@app.callback()
def experiment() -> None:
    """Experiments on data, each with its published figures beside ours."""


@app.command()
def cleaning(
    seed: Annotated[
        list[str] | None, taking("N,N,..", "Each draws its own images, noise and network.")
    ] = None,
    steps: Annotated[
        int | None, taking("N", "Iterations; else those of the full experiment.", min=1)
    ] = None,
    preferences: Annotated[int, taking("N", "Points of the front, an odd number.", min=1)] = 5,
    method: Annotated[
        list[str] | None,
        taking(
            "NAME", "momeha, forum or default (no numbers given); repeatable, else the first two."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        taking("KEY=VALUE", "A number of the (one) --method; repeatable.", "--set"),
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small", help="500 images a set and a small network: seconds instead of minutes."
        ),
    ] = False,
    device: Annotated[
        str | None, taking("NAME", "cpu or cuda; else a GPU where there is one.")
    ] = None,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Data hyper-cleaning: MNIST and Fashion-MNIST, half of the labels wrong.

    A weight per training image is learned so that one network reads clean
    validation images of both sets; FORUM's setting, beside its reported
    accuracies.  The idx files are taken from $BIPARETO_DATA/mnist and
    $BIPARETO_DATA/fashion-mnist (or from Debian's dataset-fashion-mnist).

    With --out: cleaning.json, cleaning.csv and cleaning.png.

    \b
    Examples:
      bipareto experiment cleaning --small --steps 200 --out runs/small
      bipareto experiment cleaning --seed 0,1,2 --out runs/cleaning --json
      bipareto experiment cleaning --method forum --set rho=0.1 --small
      bipareto experiment cleaning --method default --preferences 3
    """
    from dataclasses import fields

    from bipareto_experiments.cleaning import FULL, METHODS, REPORTED, SETS, SMALL
    from bipareto_experiments.cleaning_run import run_cleaning

    out = Output(as_json, quiet)
    ensure_experiment(out_dir, "cleaning")
    claim_experiment(out_dir, "cleaning")
    changes = {}
    if settings:
        if method is None or len(method) != 1 or method[0] not in METHODS:
            raise InvalidInput(
                "--set changes the numbers of one method; name it with --method momeha or --method "
                "forum"
            )
        example = METHODS[method[0]](FULL)
        changes = values.pairs(
            settings,
            "--set",
            f"method {method[0]!r}",
            {f.name: getattr(example, f.name) for f in fields(example)},
        )
    with out.listening():
        found = run_cleaning(
            out_dir,
            seeds=values.seeds(seed or ["0,1,2"]),
            sizes=SMALL if small else FULL,
            methods=method or ["momeha", "forum"],
            preferences=preferences,
            steps=steps,
            changes=changes,
            device=device,
            progress=out.progress,
        )
    rows = [
        [
            name,
            *(
                f"{mean:.2f} ± {spread:.2f}"
                for key in ("test", "retrained")
                for mean, spread in zip(said[key], said[f"{key}_spread"], strict=True)
            ),
        ]
        for name, said in found["summary"].items()
    ]
    rows.append(["forum, reported", *(f"{value:.2f}" for value in REPORTED), "-", "-"])
    count = len(found["seeds"])
    over = f"mean ± standard deviation of {count} seeds" if count > 1 else "one seed"
    out.table(
        f"Test accuracy in %, equal preference, {over}",
        ["method", *SETS, *(f"{s}, retrained" for s in SETS)],
        rows,
    )
    if out_dir is not None:
        out.say(f"wrote cleaning.json, cleaning.csv and cleaning.png to {out_dir}")
    out.result(found)


@app.command()
def certify(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished experiment.")
    ],
    index: Index = None,
    gamma: Gamma = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Certify the points at which an experiment's trainings ended.

    What `bipareto certify` does with such a folder; its help says what the
    columns mean.  Networks are trained, not solved: the first columns say how
    far a supernet is from solving its lower level.  The learners of few-shot
    learning are solved anew, on one episode.

    \b
    Examples:
      bipareto experiment certify runs/nas
      bipareto experiment certify runs/cleaning --index 2
    """
    from bipareto.problem import tree
    from bipareto.sweep.progress import experiment as status_of
    from bipareto_experiments import points

    out = Output(as_json, quiet)
    status = status_of(run)
    if status is None or not (status.slices_done or status.state == "done"):
        held = "no experiment" if status is None else "an experiment without a finished training"
        raise InvalidInput(f"{run} holds {held}; go on with: bipareto resume {run}")
    with out.listening():
        match name_of(run):
            case "nas":
                ended = points.of_searches(study_of(context, run))
            case "fewshot":
                ended = points.of_backbones(study_of(context, run))
            case _:
                ended = points.of_cleaning(run)
    if not ended:
        raise InvalidInput(f"{run} holds no training whose point could be certified")
    size = tree.ravel((ended[0].x, ended[0].y)).numel()
    found = certified(
        out,
        str(run),
        name_of(run) or "",
        {i: (end.problem, end.x, end.y) for i, end in enumerate(ended)},
        index,
        gamma,
        budget=max(LEAST, min(200, MEMORY // (16 * size))),
    )
    for i in found:
        out.say(f"run {i}: {ended[i].label}")
    labels = {str(i): ended[i].label for i in found}
    out.result(in_json(str(run), found) | {"labels": labels})


@app.command()
def figures(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of finished experiments of one kind."),
    ],
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw what experiments of any kind found, and write their tables.

    The figures command of the experiment that the folders belong to; what
    `bipareto report` does with such a folder.

    \b
    Examples:
      bipareto experiment figures runs/nas
      bipareto experiment figures runs/cleaning --out figures
    """
    from bipareto_experiments.cleaning_run import drawn_again

    kinds = {name_of(run) for run in runs}
    if len(kinds) > 1 or None in kinds:
        held = ", ".join(sorted(kind or "none" for kind in kinds))
        raise InvalidInput(
            f"the folders hold experiments of several kinds ({held}); draw each kind alone"
        )
    match kinds.pop():
        case "nas":
            nas_figures(runs, None, out_dir, as_json, quiet)
        case "fewshot":
            fewshot_figures(runs, out_dir, as_json, quiet)
        case _:
            out = Output(as_json, quiet)
            ensure_folder(out_dir)
            written = [file for run in runs for file in drawn_again(run, out_dir or run)]
            out.say(f"wrote {', '.join(written)}")
            out.result({"files": written})
