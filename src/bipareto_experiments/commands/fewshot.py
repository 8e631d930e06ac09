"""`bipareto experiment fewshot`: multi-domain few-shot learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bipareto.cli import values
from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import Json, Out, Quiet, taking
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.domains import say_where, show_tables, tuned_numbers
from bipareto_experiments.commands.kept import (
    claim_experiment,
    ensure_experiment,
    prefixes,
    results_of,
)
from bipareto_experiments.commands.options import grouped
from bipareto_experiments.commands.study_options import Dataset, Methods, StudyOptions, Tuning

if TYPE_CHECKING:
    from bipareto_experiments.fewshot.network import Learner
    from bipareto_experiments.fewshot.settings import Protocol
    from bipareto_experiments.fewshot.studies import Study


commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

#: Joint steps T that the paper gives for its study of sensitivity.
LENGTHS = {"paper-sensitivity": 5000}


@commands.callback()
def about() -> None:
    """Few-shot learning on four domains at once: which backbone serves which domain?

    x is a shared backbone, y one learner per domain; the upper objectives are the
    domains' losses on query images.  Studies are resumable: the same command with
    the same --out goes on where it stopped.
    """


@commands.command()
@grouped
def comparison(
    options: StudyOptions,
    dataset: Dataset = "caltech101",
    methods: Methods = None,
    strengths: Annotated[
        list[str] | None,
        taking("NAME,..", "weak, moderate, strong, extreme; the first two if none."),
    ] = None,
    tuning: Tuning = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """All methods under several preferences.

    Equal, weak and moderate ones; accuracies on unseen classes and hypervolume.

    \b
    Examples:
      bipareto experiment fewshot comparison --tiny --json
      bipareto experiment fewshot comparison --dataset caltech101 --out runs/caltech
      bipareto experiment fewshot comparison --tuning runs/tuned/tuning.json
      bipareto experiment fewshot comparison --dataset fc100 --methods momeha --out runs/fc100
      bipareto experiment fewshot comparison --domains art,photo,sketch --out runs/styles
    """
    from bipareto_experiments.fewshot.settings import COMPARED
    from bipareto_experiments.fewshot.studies import comparison as run
    from bipareto_experiments.fewshot.summaries import summary

    out = Output(as_json, quiet)
    with out.listening():
        study = _study(out, dataset, options, tuned_numbers(tuning, options.learner))
        chosen = (
            values.names(strengths)
            if strengths
            else (["moderate"] if options.tiny else ["weak", "moderate"])
        )
        result = run(study, values.names(methods) if methods else COMPARED, chosen)
        found = summary(result)
    show_tables(out, found)
    say_where(out, options.out_dir)
    out.result(
        {
            "methods": found,
            "seconds": result["seconds"],
            "reference": next(iter(found.values()))["reference"],
        }
    )


@commands.command()
@grouped
def tune(
    options: StudyOptions,
    dataset: Dataset = "caltech101",
    methods: Methods = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Each method's numbers, by short trials.

    Eight for each under the equal preference, then half and twice every number of
    the best until none is better, judged on validation classes; one seed (0 if
    none), and 500 joint steps if none are given.
    With --out: tuning.json, which the comparison takes.

    \b
    Examples:
      bipareto experiment fewshot tune --dataset caltech101 --out runs/tuned
      bipareto experiment fewshot comparison --tuning runs/tuned/tuning.json
    """
    from bipareto_experiments.fewshot.settings import COMPARED
    from bipareto_experiments.fewshot.tuning import tune as run

    out = Output(as_json, quiet)
    with out.listening():
        study = _study(
            out, dataset, replace(options, seeds=options.seeds or ["0"], steps=options.steps or 500)
        )
        found = run(study, values.names(methods) if methods else COMPARED)
    rows = [
        [
            name,
            ", ".join(f"{key} = {value:g}" for key, value in trial["numbers"].items()),
            f"{trial['accuracy']:.3f}",
            "*" if trial["numbers"] == r["numbers"] else "",
        ]
        for name, r in found.items()
        for trial in r["trials"]
    ]
    out.table(
        "Accuracy on validation classes", ["method", "numbers", "accuracy", "taken"], rows, left=2
    )
    out.result({"methods": found})


@commands.command()
@grouped
def sensitivity(
    options: StudyOptions, dataset: Dataset = "fc100", as_json: Json = False, quiet: Quiet = False
) -> None:
    """MOMEHA against mu, gamma and strength.

    The strength is that of preferences, weak to extreme; with curves on the way.

    \b
    Examples:
      bipareto experiment fewshot sensitivity --steps 5000 --out runs/sensitivity
    """
    from bipareto_experiments.fewshot.studies import sensitivity as run
    from bipareto_experiments.fewshot.summaries import summary

    out = Output(as_json, quiet)
    with out.listening():
        result = run(_study(out, dataset, options))
        found = summary(result)
    show_tables(out, found)
    say_where(out, options.out_dir)
    out.result({"methods": found, "seconds": result["seconds"]})


@commands.command()
@grouped
def refine(
    options: StudyOptions,
    dataset: Dataset = "fc100",
    strengths: Annotated[
        list[str] | None, taking("NAME,..", "weak, moderate, strong, extreme; moderate if none.")
    ] = None,
    scalarizations: Annotated[
        list[str] | None,
        taking(
            "NAME,..",
            "stch (as published), linear (a weighted sum), tchebycheff; stch if none.",
            "--by",
        ),
    ] = None,
    more: Annotated[
        int | None, taking("T", "Joint steps of the refinement; 1000 if none.", min=1)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One backbone for all, then refined towards each preference.

    Every preference goes on from the same backbone on the same episodes, so that
    what differs in the end is the preference and not another start.

    \b
    Examples:
      bipareto experiment fewshot refine --seeds 0,1,2,3,4,5,6,7,8,9 --out runs/refined
      bipareto experiment fewshot refine --by stch,linear --out runs/both
      bipareto experiment fewshot refine --tiny --json
    """
    from bipareto_experiments.fewshot.studies import refinement
    from bipareto_experiments.fewshot.summaries import summary

    out = Output(as_json, quiet)
    with out.listening():
        study = _study(out, dataset, options)
        result = refinement(
            study,
            values.names(strengths) if strengths else ["moderate"],
            steps=more or (12 if options.tiny else 1000),
            scalarizations=values.names(scalarizations) if scalarizations else ["stch"],
        )
        found = summary(result)
    show_tables(out, found)
    say_where(out, options.out_dir)
    out.result({"methods": found, "seconds": result["seconds"]})


@commands.command("single-domain")
@grouped
def single_domain(
    options: StudyOptions, dataset: Dataset = "fc100", as_json: Json = False, quiet: Quiet = False
) -> None:
    """Train on one domain alone, judge on all: a matrix.

    \b
    Examples:
      bipareto experiment fewshot single-domain --out runs/single
    """
    import torch

    from bipareto_experiments.fewshot.studies import single_domain as run

    out = Output(as_json, quiet)
    with out.listening():
        study = _study(out, dataset, options)
        records = run(study)["records"]
    names = study.task.domains.names
    rows = [
        torch.tensor([r["accuracy"] for r in records if r["trained_on"] == i], dtype=torch.float64)
        .mean(0)
        .tolist()
        for i in range(len(names))
    ]
    shown = [
        [f"only {name}", *(f"{value:.3f}" for value in row)]
        for name, row in zip(names, rows, strict=True)
    ]
    out.table("Test accuracy by domain", ["trained on", *names], shown)
    say_where(out, options.out_dir)
    out.result({"domains": list(names), "accuracy": rows})


@commands.command()
def figures(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished studies.")
    ],
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw what the studies found, and write their tables.

    A single-domain study among the RUNs becomes the reference in the others'
    picture of preference strengths.

    \b
    Examples:
      bipareto experiment fewshot figures runs/sensitivity runs/caltech --out docs/figures
    """
    from bipareto_experiments.fewshot.figures import draw
    from bipareto_experiments.fewshot.tables import write_tables

    out = Output(as_json, quiet)
    written: list[str] = []
    results = [
        results_of(run, "fewshot", f"bipareto experiment fewshot comparison --out {run}")
        for run in runs
    ]
    for run, result in zip(runs, results, strict=True):
        if any("accuracy" not in record for record in result["records"]):
            raise InvalidInput(
                f"{run / 'results.json'} holds no few-shot study; give the folder of `bipareto "
                "experiment fewshot comparison`"
            )
    target = out_dir or runs[0]
    ensure_folder(target)
    alone = [r for result in results for r in result["records"] if "trained_on" in r]
    for name, result in zip(prefixes(runs), results, strict=True):
        written += draw(result, target, name, alone) + write_tables(result, target, name)
    out.say(f"wrote {', '.join(written)} to {target}")
    out.result({"files": written})


def _study(
    out: Output, dataset: str, options: StudyOptions, numbers: dict[str, Any] | None = None
) -> Study:
    from bipareto_experiments.fewshot.studies import Study
    from bipareto_experiments.fewshot.task import build, generated

    ensure_experiment(options.out_dir, "fewshot")
    kind, tiny = cast("Learner", options.learner), options.tiny
    task = (
        generated(kind, device=options.device or "cpu")
        if tiny
        else build(
            dataset,
            kind,
            sets=values.names(options.sets) if options.sets else (),
            folder=options.folder,
            device=options.device,
        )
    )
    seeds = values.seeds(options.seeds or (["0"] if tiny else ["0,1,2"]))
    study = Study(
        task,
        options.out_dir,
        options.steps or (24 if tiny else LENGTHS.get(options.preset, 2500)),
        seeds,
        cast("Protocol", options.protocol),
        options.preset,
        numbers or {},
        out.progress,
        episodes=24 if tiny else 192,
    )
    claim_experiment(options.out_dir, "fewshot", study)
    return study
