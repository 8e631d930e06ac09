"""Where a running sweep stands, read off its folder without disturbing it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bipareto import problems
from bipareto.fronts.measures import beyond, hypervolume
from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.durable import last_record
from bipareto.sweep.store import RunFolder, SliceFolder


class SliceProgress(NamedTuple):
    """A slice: its runs, steps done of `steps`, how long it has been worked on, seconds still to go
    (None before it moves), its state.
    """

    number: int
    first: int
    last: int
    step: int
    steps: int
    seconds: float | None
    left: float | None
    state: str


class Progress(NamedTuple):
    """A sweep.

    done: share of all steps.  hypervolume: of what is there so far, up to `reference`; of finished
    slices with the lower level solved, of the others as last recorded.  slowest: the slice that
    will take longest from now.  worst: the run whose recorded residual is the largest, and that
    residual; None where nothing was recorded.
    """

    path: Path
    problem: str
    method: str
    state: str
    runs: int
    done: float
    slices: list[SliceProgress]
    hypervolume: float | None
    reference: list[float] | None
    reference_is: str
    slowest: SliceProgress | None
    worst: tuple[int, float] | None


def progress(path: str | PathLike[str]) -> Progress:
    """Look at a sweep; it may be running, stopped or done."""
    folder = RunFolder(Path(path))
    folder.check()
    manifest, config = folder.manifest(), load(SweepConfig, folder.config)
    size, total = manifest["slice"], manifest["runs"]
    at_work = folder.running()
    slices, objectives, residuals = [], [], dict[int, float]()
    for index in range(manifest["slices"]):
        part, runs = folder.slice(index), range(index * size, min((index + 1) * size, total))
        last = _last(part, at_work)
        slices.append(_slice(part, index, runs, last, config.steps))
        rows = _objectives(part, last, len(runs))
        if rows is not None:
            objectives.append(rows)
        if last is not None and "residual" in last:
            residuals |= dict(zip(runs, np.atleast_1d(last["residual"]).tolist(), strict=False))
    state = (
        "running"
        if at_work
        else "done"
        if (folder.path / "front.csv").exists() and all(s.state == "done" for s in slices)
        else "stopped"
    )
    reference, reference_is = _reference(config, objectives)
    waiting = [part for part in slices if part.left is not None and part.state != "done"]
    return Progress(
        path=folder.path,
        problem=config.problem.name,
        method=config.method.name,
        state=state,
        runs=total,
        done=sum(part.step for part in slices) / (config.steps * len(slices)),
        slices=slices,
        hypervolume=None
        if reference is None
        else hypervolume(np.concatenate(objectives), reference),
        reference=reference,
        reference_is=reference_is,
        slowest=max(waiting, key=lambda part: part.left or 0.0, default=None),
        worst=max(residuals.items(), key=lambda item: item[1], default=None),
    )


def _last(part: SliceFolder, at_work: bool) -> dict[str, Any] | None:
    """The last record of a slice that is not done; of one that nobody works on the last that its
    checkpoint holds, from which it would go on.
    """
    at = part.check(at_work=at_work)
    if part.done or not (at_work or at):
        return None
    return last_record(part.path / "metrics.jsonl", None if at_work or at is None else at.size)


def _slice(
    part: SliceFolder, index: int, runs: range, last: dict[str, Any] | None, steps: int
) -> SliceProgress:
    step = steps if part.done else int(last["step"]) if last else part.step
    begun = None if part.done else part.attempt()
    state = "done" if part.done else "begun" if begun else "waiting"
    seconds = left = None
    if begun and last and step > begun["step"]:
        seconds = max((part.path / "metrics.jsonl").stat().st_mtime - begun["time"], 1e-3)
        left = seconds / (step - begun["step"]) * (steps - step)
    return SliceProgress(
        index, runs[0], runs[-1], step, steps, seconds, 0.0 if part.done else left, state
    )


def _objectives(
    part: SliceFolder, last: dict[str, Any] | None, runs: int
) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """(runs, m) of the slice as far as it is known."""
    if part.done:
        return part.read_result()[0]["objectives"].double().numpy()
    if last is None or "objectives" not in last:
        return None
    rows = np.array(last["objectives"], dtype=np.float64)
    return rows[:runs] if rows.ndim == 2 else rows[None]


def _reference(config: SweepConfig, objectives: list[Any]) -> tuple[list[float] | None, str]:
    """That of a known problem, else a tenth beyond the worst values so far."""
    corner = beyond(torch.from_numpy(np.concatenate(objectives or [np.empty((0, 1))])))
    if corner.isnan().any():
        return None, "nothing finite is recorded yet"
    if ":" not in config.problem.name:
        known = problems.get(config.problem.name, **config.problem.options)
        return known.reference.tolist(), "the exact front's worst values plus a tenth of its ranges"
    return corner.tolist(), "a tenth beyond the worst values so far, so it moves"
