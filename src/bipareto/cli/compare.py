"""`bipareto compare`: every method on one problem, under an equal budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from bipareto.cli import values
from bipareto.cli.again import noted
from bipareto.cli.output import Output, ensure_folder, finite, lower_level
from bipareto.cli.values import (
    Compile,
    Dim,
    Json,
    Noise,
    Options,
    Out,
    ProblemName,
    Quiet,
    Seeds,
    problem_asked,
    taking,
)
from bipareto.errors import InvalidInput
from bipareto.sweep.config import PreferencesConfig, SweepConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bipareto.sweep.contenders import Contender


def compare(
    problem: ProblemName,
    methods: Annotated[
        str, taking("NAME,NAME,..|all", "Which methods; all that apply to the problem.")
    ] = "all",
    preferences: Annotated[
        int, taking("N", "How many along each edge of the simplex.", min=1)
    ] = 11,
    budget: Annotated[
        str, taking("KIND", "oracles (gradients per run) or seconds (per method).")
    ] = "oracles",
    amount: Annotated[
        float | None,
        taking("N", "How much of it: 80,000 gradients (your own problem: 10,000) or 20 seconds."),
    ] = None,
    seed: Seeds = None,
    start: Annotated[
        int, taking("N", "0 for the problem's own start, else its N-th random one.", min=0)
    ] = 0,
    dim: Dim = None,
    noise: Noise = 0.0,
    option: Options = None,
    compiled: Compile = None,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on a problem, with a known front or your own.

    Every method is tuned for its share of the budget and starts at the same
    point; those without preferences run once per seed.  With --budget oracles
    every run may spend the same number of gradients, a Hessian or Jacobian
    product counted as two.  Ranked by the worst distance to the exact front,
    then by the worst kkt residual, both with the lower level solved again.

    Your own problem (package.module:function, which returns (problem, x0, y0))
    has no exact front: methods are ranked by their mean hypervolume over seeds,
    up to a point that all share, on the problem's test_data where it has any.
    Several seeds give errors, and words: who is ahead beyond two of them.

    With --out: comparison.json, comparison.png (all fronts) and methods/, a run
    folder for each, for `bipareto report DIR`.  Killed, the comparison goes on
    with `bipareto resume DIR`.

    \b
    Examples:
      bipareto compare quadratic --preferences 5
      bipareto compare merely-convex --methods momeha,wc-penalty,moco
      bipareto compare pl-sin2 --dim 20 --budget seconds --amount 10 --out runs/c
      bipareto compare mine:problem --methods twin,mb-momeha --seed 0,1,2 --out runs/d
    """
    import json

    from bipareto.sweep import comparison, contenders
    from bipareto.sweep.comparison import Kept
    from bipareto.sweep.durable import write_text
    from bipareto.sweep.plan import Setup, build

    out = Output(as_json, quiet)
    ensure_folder(out_dir, own="comparison.json")
    if out_dir is not None and (out_dir / "comparison.json").exists():
        raise InvalidInput(f"--out {out_dir} holds a comparison already; choose another folder")
    asked = problem_asked(problem, option, dim, noise)
    setup = build(asked, [0])
    known, begin = setup.known, setup.starts[0]
    names = (
        comparison.applicable(setup.problem, setup.problem.check(*begin))
        if methods == "all"
        else [name.strip() for name in methods.split(",") if name.strip()]
    )
    seeds = values.seeds(seed or ["0"])
    kind = cast("comparison.Budget", budget)
    config = SweepConfig(
        problem=replace(asked, starts=start or "fixed"),
        preferences=PreferencesConfig(count=preferences),
        seeds=tuple(seeds),
        compile=False if budget == "seconds" else compiled,
    )
    built = None if start else Setup(setup.problem, setup.starts * len(seeds))
    if out_dir is not None and not (out_dir / "command.json").exists():
        write_text(out_dir / "command.json", json.dumps(noted()) + "\n")
    found = comparison.compare(
        setup.problem,
        names,
        begin=begin,
        preferences=preferences,
        budget=kind,
        amount=amount,
        seeds=seeds,
        start=start,
        compile=compiled,
        progress=out.progress,
        kept=None if out_dir is None else Kept(out_dir, config, built),
    )
    if out_dir is not None and any(comparison.INTERRUPTED in c.notes for c in found):
        raise InvalidInput(f"interrupted; the same command with --out {out_dir} goes on")
    notes: dict[str, list[str]] = {}
    for c in found:
        for note in c.notes:
            notes.setdefault(note, []).append(c.name)
    remarks = [f"{', '.join(whose)}: {note}" for note, whose in notes.items()]
    if all(c.front is None for c in found):
        raise InvalidInput(f"nothing was compared; {'; '.join(remarks) or 'name some --methods'}")
    data = [c.figures() for c in found]
    out.table(*_table(asked.name, known is not None, found))
    for remark in remarks:
        out.warn(remark)
    words = contenders.verdicts(found)
    for sentence in words:
        out.say(sentence)
    result = {
        "problem": {"name": asked.name, **asked.options},
        "budget": budget,
        "amount": amount,
        "seeds": seeds,
        "start": start,
        "reference": contenders.reference_point(setup.problem, found).tolist(),
        "methods": data,
        "verdicts": words,
    }
    if out_dir is not None:
        from bipareto.report import plot_comparison

        plot_comparison(
            {c.name: c.front.objectives for c in found if c.front is not None},
            known,
            out_dir / "comparison.png",
        )
        # Last: it says that the comparison is done.
        write_text(out_dir / "comparison.json", json.dumps(finite(result), indent=2) + "\n")
        out.say(
            f"wrote comparison.json, comparison.png and methods/ to {out_dir}; look at it: "
            f"bipareto report {out_dir}"
        )
    out.result(result)


def _table(name: str, known: bool, found: Sequence[Contender]) -> tuple[str, list[str], Any]:
    """Title, header and rows: distances where a front is known, else the mean over seeds."""
    measured = (
        ["distance", "kkt", "hypervolume", "gap"] if known else ["hypervolume", "error", "kkt"]
    )
    rows = []
    for c in found:
        figures = {
            "distance": f"{c.distance:.2e}",
            "kkt": "-" if math.isnan(c.kkt) else f"{c.kkt:.2e}",
            "hypervolume": f"{c.hypervolume if known else c.mean:.5g}",
            "gap": f"{c.gap:.2e}",
            "error": "-" if math.isnan(c.error) else f"{c.error:.2g}",
        }
        cost = [str(c.gradients), str(c.hessian_products), f"{c.seconds:.1f}"]
        runs = "-" if c.front is None else str(len(c.front))
        row = [c.name, runs, str(c.steps), *(figures[key] for key in measured), *cost]
        rows.append(row if c.front is not None else [c.name, *"-" * (len(row) - 1)])
    header = ["method", "runs", "steps", *measured, "gradients", "Hessian products", "seconds"]
    what = (
        "worst figures over the runs, hypervolume of all of them"
        if known
        else "mean hypervolume over seeds and its standard error, worst kkt"
    )
    levels = {lower_level(c.front) for c in found if c.front is not None}
    return f"{name}: {what}; {' or '.join(sorted(levels))}", header, rows
