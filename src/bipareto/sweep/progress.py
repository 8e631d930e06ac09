"""Where a run or an experiment stands, read off its folder without disturbing it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bipareto import problems
from bipareto.fronts.measures import beyond, hypervolume
from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.durable import Damaged, is_locked, last_record
from bipareto.sweep.store import RunFolder, SliceFolder

if TYPE_CHECKING:
    from bipareto.doctor.recorded import Training


class Status(NamedTuple):
    """Where a run stands: "done", "running" or "stopped", slices done, share of all steps."""

    path: Path
    problem: str
    method: str
    runs: int
    state: str
    slices_done: int
    slices: int
    progress: float


def experiment(path: Path) -> Status | None:
    """Where the folder of an experiment stands, its trainings as slices and its name as the method;
    None for another folder.
    """
    mark = path / "experiment.json"
    if not mark.is_file():
        return None
    try:
        name = str(json.loads(mark.read_text("utf-8"))["experiment"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"{mark} does not say whose the folder is ({type(error).__name__})"
        ) from error
    parts = [SliceFolder(found.parent) for found in path.rglob("attempts.jsonl")]
    done = sum(part.done for part in parts)
    told = any((path / file).is_file() for file in ("results.json", f"{name}.json"))
    state = (
        "running"
        if any(is_locked(part.path / "lock") for part in parts)
        else "done"
        if told and done == len(parts)
        else "stopped"
    )
    share = done / len(parts) if parts else float(told)
    return Status(path, "experiment", name, len(parts), state, done, len(parts), share)


def trainings(path: Path) -> list[Training]:
    """The trainings of an experiment's folder that are done: from their results, or from the rows
    of an experiment that keeps these alone.
    """
    parts = [SliceFolder(mark.parent) for mark in sorted(path.rglob("attempts.jsonl"))]
    files = [part.result for part in parts if part.done] or sorted(path.glob("*.json"))
    found: list[Training] = []
    for file in files:
        try:
            found += _of_rows(file) if file.suffix == ".json" else _of_slice(file)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Damaged(
                f"{file} is no result of an experiment ({type(error).__name__}: {error})"
            ) from error
    return found


def _of_slice(file: Path) -> list[Training]:
    tensors, meta = SliceFolder(file.parent).read_result()
    # Few-shot learning named its objectives otherwise.
    seen = tensors["objectives" if "objectives" in tensors else "losses"]
    return [
        _training(trial, reason, seen[:, i])
        for i, (trial, reason) in enumerate(zip(meta["trials"], meta["reason"], strict=True))
    ]


def _of_rows(file: Path) -> list[Training]:
    rows = json.loads(file.read_text("utf-8")).get("rows", [])
    return [
        _training(row, "steps", torch.tensor([row["objectives"]], dtype=torch.float64))
        for row in rows
    ]


def _training(trial: Mapping[str, Any], reason: str, objectives: Tensor) -> Training:
    from bipareto.doctor.recorded import Training

    wanted = trial["preference"] and tuple(trial["preference"])
    return Training(str(trial["method"]), wanted, int(trial["seed"]), reason, objectives)


def status(path: str | PathLike[str]) -> Status:
    """Look at a run without disturbing it."""
    folder = RunFolder(Path(path))
    folder.check()
    manifest, config = folder.manifest(), load(SweepConfig, folder.config)
    parts = [folder.slice(index) for index in range(manifest["slices"])]
    done = [part.done for part in parts]
    at_work = folder.running()
    for part in parts:
        part.check(at_work=at_work)
    steps = sum(
        config.steps if finished else part.step for part, finished in zip(parts, done, strict=True)
    )
    collected = (folder.path / "front.csv").exists() and all(done)
    return Status(
        folder.path,
        config.problem.name,
        config.method.name,
        manifest["runs"],
        "running" if at_work else "done" if collected else "stopped",
        sum(done),
        len(parts),
        steps / (config.steps * len(parts)),
    )


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
