"""Where a run or an experiment stands, looked at without disturbing it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.durable import Damaged, is_locked
from bipareto.sweep.store import RunFolder, SliceFolder

if TYPE_CHECKING:
    from bipareto.doctor.recorded import Training


class Status(NamedTuple):
    """Where a run stands: "done", "running" or "stopped", slices done, and the share of all
    steps.
    """

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
