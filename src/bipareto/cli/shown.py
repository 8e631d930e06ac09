"""What `solve` and `front` show of their results."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

from bipareto.sweep import grammar

if TYPE_CHECKING:
    from torch import Tensor

    from bipareto.cli.output import Output
    from bipareto.fronts.pareto import ParetoFront
    from bipareto.methods import Method
    from bipareto.problem import Problem
    from bipareto.problem.tree import Tree
    from bipareto.problems.base import KnownProblem

__all__ = [
    "front_table",
    "hyperparameters",
    "leave",
    "number",
    "numbers",
    "plain",
    "position_error",
    "worst",
]


def position_error(
    known: KnownProblem, method: Method, x: Tree, preference: Tensor | None
) -> Tensor | None:
    """How far each run is from the exact point of its preference; None where the method does not
    say which point that is.
    """
    from bipareto.methods.parts.scalarization import Fixed

    if preference is None:
        # One objective has one exact point, whatever the scalarization.
        return known.position_error(x, x.new_ones(len(x), 1)) if known.m == 1 else None
    question: dict[str, Any] = {
        name: getattr(method, name, None) for name in ("scalarization", "ideal", "mu", "extent")
    }
    if question["scalarization"] is None or not isinstance(question["ideal"], Fixed):
        return None
    return known.position_error(x, preference, **question)


def front_table(
    out: Output,
    title: str,
    problem: Problem,
    found: ParetoFront,
    distance: Tensor | None,
    position: Tensor | None,
) -> None:
    """One row per run: preference, objectives, and where the front is known how far it is off."""
    names = problem.names or [f"f{i + 1}" for i in range(found.objectives.shape[1])]
    many_seeds = len(found.seed.unique()) > 1
    known = distance is not None
    header = [
        "run",
        *(["seed"] if many_seeds else []),
        "preference",
        *names,
        *([f"{name}, test" for name in names] if found.test is not None else []),
        *(["distance", "position error"] if known else []),
        *(["left to gain"] if found.remaining is not None else []),
        "stopped by",
    ]
    rows = []
    for run in range(len(found)):
        row = [str(run), *([str(int(found.seed[run]))] if many_seeds else [])]
        nothing = found.preference[run].isnan().any()
        row.append("-" if nothing else numbers(found.preference[run], "{:.3f}"))
        row += [f"{value:.6g}" for value in found.objectives[run].tolist()]
        row += [] if found.test is None else [f"{v:.6g}" for v in found.test[run].tolist()]
        if distance is not None:
            row.append(f"{float(distance[run]):.2e}")
            row.append("-" if position is None else f"{float(position[run]):.2e}")
        if found.remaining is not None:
            row.append(f"{float(found.remaining[run]):.2e}")
        rows.append([*row, found.reason[run]])
    out.table(f"{title}: objectives with the lower level solved", header, rows, left=0)
    if found.unseen:
        out.say(f"what is left to gain was not looked at, because {found.unseen}")


def hyperparameters(name: str, method: Method) -> dict[str, Any]:
    """A method and its hyperparameters, in the form that --set reads."""
    return {"name": name, **{f.name: grammar.show(getattr(method, f.name)) for f in fields(method)}}


def plain(value: Tree) -> Any:
    """A tree of tensors as JSON."""
    from bipareto.problem import tree

    return tree.map_(lambda leaf: leaf.tolist(), value)


def worst(per_run: Tensor | None) -> float | None:
    """The largest value over the runs."""
    return None if per_run is None else float(per_run.max())


def number(per_run: Tensor | None) -> str:
    """The largest value over the runs, in words."""
    return "-" if per_run is None else f"{float(per_run.max()):.2e}"


def numbers(vector: Tensor, form: str = "{:.5g}") -> str:
    """A vector, in words."""
    return "(" + ", ".join(form.format(value) for value in vector.tolist()) + ")"


def leave(failed: bool) -> None:
    """End with exit code 1 where all runs failed."""
    if failed:
        raise typer.Exit(1)
