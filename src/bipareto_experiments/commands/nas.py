"""`bipareto experiment nas`: multi-objective architecture search."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli import values
from bipareto.cli.output import Output
from bipareto.cli.values import Json, Quiet, taking
from bipareto_experiments.commands.alike import train_alike
from bipareto_experiments.commands.architectures import judged, show_best, show_records
from bipareto_experiments.commands.cells import derive, figures, teller, train, write_cells
from bipareto_experiments.commands.kept import claim_experiment, ensure_experiment
from bipareto_experiments.commands.options import grouped
from bipareto_experiments.commands.search_options import SearchOptions

if TYPE_CHECKING:
    from bipareto_experiments.nas.studies import Study
    from bipareto_experiments.nas.task import Task


commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Seeds = Annotated[
    list[str] | None, taking("N,N,..", "Each has its own start and draws.", "--seed", "--seeds")
]


@commands.callback()
def about() -> None:
    """Architecture search with several objectives: accuracy against cost.

    x are the architecture's logits, y the weights of a supernet; the upper
    objectives are validation loss, FLOPs and the shares of skips and pooling.
    On NAS-Bench-201 the true accuracy of every architecture is known.
    Searches are resumable: the same command with the same --out goes on.
    """


@commands.command()
@grouped
def search(
    options: SearchOptions,
    method: Annotated[
        str,
        taking(
            "NAME",
            "mb-momeha, mb-momeha-joint, mb-momeha-nested, wc-mhgd, wc-penalty, moco, darts or "
            "random.",
        ),
    ] = "mb-momeha",
    seed: Annotated[int, taking("N", "Start and draws.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search by one method, once for each preference.

    \b
    Examples:
      bipareto experiment nas search --tiny --json
      bipareto experiment nas search --out runs/search
      bipareto experiment nas search --preset darts --half --out runs/darts
    """
    from bipareto_experiments.nas.studies import compared

    out = Output(as_json, quiet)
    with out.listening():
        study = _study(out, options, [seed], cells=0)
        default = ["strong", "strong-second"] if options.tiny else None
        chosen = options.named_strengths() or default
        records = compared(study, [method], chosen)["records"]
    names, out_dir = study.task.settings.objectives, options.out_dir
    show_records(out, records, list(names))
    found = {
        "genotype": [r["genotype"] for r in records],
        "preference": [r["preference"] for r in records],
        "objectives": {name: [r["objectives"][i] for r in records] for i, name in enumerate(names)},
        **_volume([r["objectives"] for r in records], study.task),
        "accuracy": [r.get("accuracy") for r in records],
        "flops": [r["flops"] for r in records],
        "params": [r["params"] for r in records],
        "seconds": study.seconds,
    }
    if out_dir is not None:
        write_cells(out_dir, records)
        out.say(f"results.json and one genotype-N.json and .svg per preference are in {out_dir}")
    out.result(found)


@commands.command()
@grouped
def compare(
    options: SearchOptions,
    methods: Annotated[
        list[str] | None,
        taking(
            "NAME,..",
            "Of mb-momeha[-joint], wc-mhgd, wc-penalty, moco, darts, random; all if none.",
        ),
    ] = None,
    seeds: Seeds = None,
    seconds: Annotated[
        float | None,
        taking("S", "For all searches of a method, the same for each; else by steps.", min=0.1),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """All methods under all preferences and seeds, judged by known answers.

    With --seconds every method has the same time for all its searches.
    First-order DARTS follows one objective; random search trains one supernet
    a seed and chooses among 500 random cells.  Everything is judged on
    validation images and on test images that neither level saw.  Where moocore
    is not installed the hypervolumes are left out; `figures` computes them from
    the same results.json elsewhere.

    \b
    Examples:
      bipareto experiment nas compare --half --seconds 76 --out runs/nas
      bipareto experiment nas compare --objectives loss,flops,skip,pooling --out runs/four
      bipareto experiment nas compare --tiny --methods mb-momeha,darts --steps 4 --out runs/tiny
    """
    from bipareto_experiments.nas.settings import METHODS
    from bipareto_experiments.nas.studies import compared

    out = Output(as_json, quiet)
    with out.listening():
        given = values.seeds(seeds or (["1"] if options.tiny else ["1,2,3"]))
        study = _study(out, options, given, cells=8 if options.tiny else 150, budget=seconds)
        result = compared(
            study, values.names(methods) if methods else METHODS, options.named_strengths()
        )
    found = judged(out, result, study.known)
    if options.out_dir is not None:
        out.say(
            f"results.json is in {options.out_dir}; pictures and tables of it: bipareto experiment "
            f"nas figures {options.out_dir}"
        )
    out.result(found | {"seconds": result["seconds"]})


@commands.command()
@grouped
def tune(
    options: SearchOptions,
    methods: Annotated[
        list[str] | None,
        taking("NAME,..", "Of mb-momeha[-joint], wc-mhgd, wc-penalty, moco, darts; all if none."),
    ] = None,
    seed: Annotated[int, taking("N", "Start and draws; not one that is compared with.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Each method's steps of x and y, by nine trials side by side.

    The best has the most hypervolume on validation images, mean of mixture and
    derived cells; test images and known accuracies take no part.

    \b
    Examples:
      bipareto experiment nas tune --half --steps 800 --out runs/tuning
      bipareto experiment nas tune --preset darts --half --steps 390 --out runs/tuning-darts
      bipareto experiment nas tune --tiny --methods mb-momeha --steps 4
    """
    from bipareto_experiments.nas.settings import TUNED
    from bipareto_experiments.nas.studies import tuned

    out = Output(as_json, quiet)
    with out.listening():
        study = _study(out, options, [seed], cells=0)
        result = tuned(
            study, values.names(methods) if methods else TUNED, options.named_strengths()
        )
    found = judged(out, result, study.known)
    if "objectives" in found:
        found["best"] = show_best(out, result)
    if options.out_dir is not None:
        out.say(
            f"results.json is in {options.out_dir}; these tables again: bipareto experiment nas "
            f"figures {options.out_dir}"
        )
    out.result(found | {"seconds": result["seconds"]})


def _study(out: Output, options: SearchOptions, seeds: list[int], **more: Any) -> Study:
    """A study of the task, with the known accuracies where there are any."""
    from bipareto_experiments.devices import device_of
    from bipareto_experiments.nas import settings as presets
    from bipareto_experiments.nas.lookups import looked_up
    from bipareto_experiments.nas.studies import Study
    from bipareto_experiments.nas.task import build, generated

    ensure_experiment(options.out_dir, "nas")
    where, tiny = options.device or ("cpu" if options.tiny else None), options.tiny
    changes = options.settings()
    if changes["supernet"] is None and device_of(where).type == "cuda":
        changes["supernet"] = "fast"
    given = {name: value for name, value in changes.items() if value is not None}
    settings = replace(presets.preset("tiny" if tiny else options.preset), **given)
    task = (
        generated(settings, device=where)
        if tiny
        else build(settings, options.dataset, folder=options.folder, device=where)
    )
    known = looked_up(settings.space, options.folder)
    if known is None and settings.space == "nas-bench-201" and not tiny:
        out.warn(
            "the table of NAS-Bench-201's accuracies is not in the data folder: accuracies are not "
            "looked up"
        )
    study = Study(
        task, options.out_dir, seeds, known, options.together, out.progress, teller(out), **more
    )
    claim_experiment(options.out_dir, "nas", study)
    return study


def _volume(objectives: list[list[float]], task: Task) -> dict[str, Any]:
    """The hypervolume of a search's own objectives."""
    from bipareto_experiments.nas.judging import reference_point

    corner = reference_point(task.settings.objectives, task.problem.network.classes)
    if find_spec("moocore") is None:
        return {"hypervolume": None, "reference": corner}
    from bipareto.fronts.measures import hypervolume

    return {"hypervolume": hypervolume(objectives, corner), "reference": corner}


for command in (derive, train, train_alike, figures):
    commands.command()(command)
