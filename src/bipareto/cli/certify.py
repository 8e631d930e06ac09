"""`bipareto certify`: what the points of a front are worth, without knowing the truth."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli.again import type_again
from bipareto.cli.output import Output
from bipareto.cli.values import (
    Json,
    Options,
    Quiet,
    RunOrProblem,
    ShortSteps,
    Trust,
    folder_of,
    taking,
)
from bipareto.errors import BiparetoWarning, InvalidInput

if TYPE_CHECKING:
    from bipareto.certificate.certificate import Certificate
    from bipareto.problem import Problem
    from bipareto.problem.tree import Tree

Index = Annotated[
    int | None, taking("N", "One run of it, in full; else a table of all.", "--index", "-i")
]
Gamma = Annotated[
    float | None, taking("G", "Of the Moreau envelope; else the method's own.", "--gamma")
]


def certify(
    context: typer.Context,
    run: RunOrProblem,
    index: Index = None,
    gamma: Gamma = None,
    steps: ShortSteps = 2000,
    option: Options = None,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Certify the points of a front.

    For every point: is the lower level solved, and at a minimum?  Is a common
    descent direction left?  At most 200 gradients a point.

    \b
    Columns:
      lower level    what kind of point of g(x, .) y is
      ||grad_y g||   zero where the lower level is solved
      gap            g minus its Moreau envelope; zero there too
      kkt            zero where no direction along the lower solutions
                     improves all objectives; valid for every method
      descent left   whether kkt is above 1e-6 of the longest gradient of an
                     objective: a point very near the front may still say yes
      stationarity   the paper's, for infeasible y: it means nothing where
                     the lower level is solved (docs/theory.md)

    \b
    Examples:
      bipareto front pl-sin2 --out runs/a && bipareto certify runs/a
      bipareto certify runs/a --index 5
      bipareto certify package.module:function --steps 5000
    """
    if (Path(run) / "experiment.json").is_file():
        asked = {"--index": index, "--gamma": gamma}
        given = [
            word
            for name, value in asked.items()
            if value is not None
            for word in (name, f"{value}")
        ]
        type_again(context, ["experiment", "certify", run, *given], as_json, quiet)
    from bipareto.sweep.reading import run_folders

    out = Output(as_json, quiet)
    with folder_of(out, run, steps, option) as path:
        own = trust or path != Path(run)  # a problem that was named here is imported anyway
        found = {
            run if folder == path else str(folder): _of_run(out, folder, index, gamma, own)
            for folder in run_folders(path)
        }
    parts = [in_json(path, points) for path, points in found.items()]
    out.result(parts[0] if len(parts) == 1 else {"run": run, "runs": parts})


def in_json(run: str, found: Mapping[int, Certificate]) -> dict[str, Any]:
    """The certificates of a run, for JSON."""
    return {"run": run, "certificates": [{"index": i, **asdict(c)} for i, c in found.items()]}


def _of_run(
    out: Output, run: Path, index: int | None, gamma: float | None, trust: bool
) -> dict[int, Certificate]:
    """The certificates of one run folder."""
    from bipareto.methods import MOMEHA
    from bipareto.sweep.reading import plan_of, read_runs

    plan, found = plan_of(run, trusted=trust), read_runs(run)[0].front
    problem, name = plan.setup.problem, plan.config.problem.name
    # Other methods have a gamma of another meaning, and so have fitted coordinates.
    own = None
    if isinstance(plan.method, MOMEHA) and plan.method.coordinates == "plain":
        own = plan.method.gamma
    points = {i: (problem, *found.point(i)) for i in range(len(found))}
    return certified(out, f"{run}", name, points, index, own if gamma is None else gamma)


def certified(
    out: Output,
    run: str,
    name: str,
    points: Mapping[int, tuple[Problem, Tree, Tree]],
    index: int | None,
    gamma: float | None,
    budget: int = 200,
) -> dict[int, Certificate]:
    """Certify points, each with its problem, and show what is found.

    Args:
        run, name: what messages and the table call it.
        index: this one alone, in full.
        gamma, budget: as `bipareto.certify` takes them.
    """
    from bipareto.certificate import certificate

    if index is not None and index not in points:
        raise InvalidInput(f"--index {index}: the front in {run} has runs 0 to {len(points) - 1}")
    certificates = {}
    for i in points if index is None else [index]:
        # The same sentences are in the notes.
        with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
            certificates[i] = certificate.certify(*points[i], gamma, budget=budget)
    if index is not None:
        out.say(str(certificates[index]))
    else:
        rows = [
            [
                str(i),
                c.lower_curvature,
                f"{c.lower_residual:.1e}",
                f"{c.gap:.1e}",
                f"{c.kkt:.1e}",
                {True: "yes", False: "no", None: "perhaps"}[c.common_descent],
                "-" if c.stationarity is None else f"{c.stationarity:.1e}",
                str(c.gradients),
            ]
            for i, c in certificates.items()
        ]
        header = [
            "run",
            "lower level",
            "||grad_y g||",
            "gap",
            "kkt",
            "descent left",
            "stationarity",
            "gradients",
        ]
        out.table(f"{name}: certificates of {len(rows)} points", header, rows, left=2)
        out.say(_verdict(list(certificates.values())))
    for i, c in certificates.items():
        for note in c.notes:
            out.warn(f"run {i}: {note}")
    return certificates


def _verdict(certificates: list[Certificate]) -> str:
    """The table in two sentences."""
    points = len(certificates)
    minima = sum(c.lower_curvature == "minimum" for c in certificates)
    left = sum(c.common_descent is not False for c in certificates)
    worst = f"kkt is {max(c.kkt for c in certificates):.1e} at most"
    if left == 0:
        gain = f"No direction is left that improves all objectives: {worst}."
    else:
        gain = (
            f"{left} of {points} may still improve in all objectives at once; {worst}, "
            "and more steps may make it smaller."
        )
    residual = max(c.lower_residual for c in certificates)
    return (
        f"The lower level is at a minimum at {minima} of {points} points, "
        f"with ||grad_y g|| {residual:.1e} at most. {gain}"
    )
