"""The results of slices, and all of them as one front: the one writer of fronts on disk."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning
from bipareto.fronts import measures
from bipareto.fronts.pareto import ParetoFront
from bipareto.fronts.tables import write_csv
from bipareto.methods.tuning.local import DENSE
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.problems import KnownProblem
from bipareto.run.arrival import ONE_BY_ONE, OWN_METHOD, TRAINED, arrival, warn_of_missing
from bipareto.run.results import Failure, Run
from bipareto.sweep.durable import write_atomic
from bipareto.sweep.plan import Plan, read_plan
from bipareto.sweep.store import RunFolder

__all__ = ["collect", "reference_of", "write_result"]

#: what a result may hold of its runs beside x, y and the objectives
_MEASURED = ("lower_residual", "own", "test")


def write_result(plan: Plan, folder: RunFolder, index: int, run: Run, *, stacked: bool) -> None:
    """Solve the lower level of a slice's runs again, and write their end.

    Args:
        plan, folder, index: which slice of which run.
        run: what `drive` returned.
        stacked: whether its tensors have a run axis.
    """
    runs = plan.runs(index)
    state = tree.select(run.state, slice(len(runs))) if stacked else tree.expand(run.state, 1)
    found = _front(
        plan, state.x, state.y, runs, run.reason[: len(runs)], run.failure[: len(runs)], run.seconds
    )
    found = replace(found.with_y(state.y, None, plan.setup.problem), own=None)
    # The residuals are stored, and the whole front warns once.
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        # The y of a race was trained on g alone already.
        solved = found if "race" in plan.manifest else found.resolve_lower()
    tensors = {
        f"{name}.{i}": leaf
        for name in ("x", "y")
        for i, leaf in enumerate(tree.leaves(getattr(solved, name)))
    }
    tensors |= {f"returned.{i}": leaf for i, leaf in enumerate(tree.leaves(state.y))}
    tensors |= {f"state.{i}": leaf.contiguous() for i, leaf in enumerate(tree.leaves(state))}
    for name in ("objectives", *_MEASURED):
        if (value := getattr(solved, name)) is not None:
            tensors[name] = value
    failure = [None if f is None else [f.step, f.term] for f in found.failure]
    folder.slice(index).write_result(
        tensors,
        {
            "runs": runs,
            "reason": found.reason,
            "failure": failure,
            "steps": run.steps[: len(runs)],
            "seconds": run.seconds,
        },
    )


def _front(
    plan: Plan,
    x: Tree,
    y: Tree,
    runs: Sequence[int],
    reason: Sequence[Any],
    failure: Sequence[Failure | None],
    seconds: float,
) -> ParetoFront:
    """A front of the given runs, its objectives still to be computed."""
    m = plan.manifest["m"]
    return ParetoFront(
        x=x,
        y=y,
        objectives=torch.empty(len(runs), m),
        preference=plan.preference_rows(runs),
        seed=torch.tensor(plan.seeds(runs)),
        reason=tuple(reason),
        failure=tuple(failure),
        seconds=seconds,
        method=plan.method,
        problem=plan.setup.problem,
        batched=plan.manifest["batched"],
    )


def collect(folder: RunFolder) -> ParetoFront:
    """All slices as one front, written to the folder with its measures."""
    plan = read_plan(folder)
    read = [folder.slice(index).read_result() for index in range(plan.manifest["slices"])]
    tensors = {name: torch.cat([part[name] for part, _ in read]) for name in read[0][0]}
    start = plan.setup.starts[0]
    x, y = (
        tree.rebuild(like, [tensors[f"{name}.{i}"] for i in range(len(tree.leaves(like)))])
        for name, like in zip("xy", start, strict=True)
    )
    metas = [meta for _, meta in read]
    failure = [None if f is None else Failure(*f) for meta in metas for f in meta["failure"]]
    found = _front(
        plan,
        x,
        y,
        range(plan.manifest["runs"]),
        [r for meta in metas for r in meta["reason"]],
        failure,
        sum(meta["seconds"] for meta in metas),
    )
    measured: dict[str, Any] = {name: tensors.get(name) for name in _MEASURED}
    found = replace(found, objectives=tensors["objectives"], **measured)
    # As `front` looks at them, whether in a folder or not.
    raced = "race" in plan.manifest
    small = tree.ravel(start).numel() <= DENSE
    fitted = getattr(plan.method, "coordinates", "plain") == "fitted"
    if found.batched and (small if raced else fitted):
        seen = arrival(
            plan.setup.problem, plan.method, x, y, failure, found.preference, trained=raced
        )
        warn_of_missing(seen.said)
        found = replace(found, remaining=seen.remaining, unseen=seen.unseen)
    else:
        own = OWN_METHOD if found.batched else ONE_BY_ONE
        found = replace(found, unseen=TRAINED if raced and not small else own)
    known = plan.setup.known
    distance = None if known is None else known.distance_to_front(found.objectives)
    write_atomic(folder.path / "front.csv", lambda partial: write_csv(found, partial, distance))
    write_atomic(folder.path / "front.npz", found.save)
    folder.write_text("measures.json", json.dumps(_measured(found, known), indent=2) + "\n")
    folder.seal()
    return found


def reference_of(found: ParetoFront, known: KnownProblem | None) -> tuple[Tensor, str]:
    """The point (m,) up to which the hypervolume is taken, and what it is, in words."""
    if known is not None:
        return known.reference, "the exact front's worst values plus a tenth of its ranges"
    words = "the worst values found plus a tenth of their ranges: not comparable between runs"
    return measures.beyond(found.objectives), words


def _measured(found: ParetoFront, known: KnownProblem | None) -> dict[str, Any]:
    reference, words = reference_of(found, known)
    target = None if known is None else known.front()
    return measures.measure(found, reference, target) | {"reference_is": words}
