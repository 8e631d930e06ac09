"""Where a running sweep stands, read off its folder without disturbing it."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bipareto import problems
from bipareto.fronts.measures import hypervolume
from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.durable import Damaged
from bipareto.sweep.store import RunFolder, SliceFolder

__all__ = ["Progress", "SliceProgress", "last_record", "progress"]

#: A line of records is read from the end of its file in pieces of this size.
_PIECE = 1 << 16


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
    slices, objectives, residuals = [], [], dict[int, float]()
    for index in range(manifest["slices"]):
        part, runs = folder.slice(index), range(index * size, min((index + 1) * size, total))
        part.check()
        last = None if part.done else last_record(part.path / "metrics.jsonl")
        slices.append(_slice(part, index, runs, last, config.steps))
        rows = _objectives(part, last, len(runs))
        if rows is not None:
            objectives.append(rows)
        if last is not None and "residual" in last:
            residuals |= dict(zip(runs, np.atleast_1d(last["residual"]).tolist(), strict=False))
    state = (
        "running"
        if folder.running()
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


def last_record(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of records, however long the file is; None where there is
    none.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            tail = b""
            while end > 0:
                begin = max(0, end - _PIECE)
                file.seek(begin)
                tail = file.read(end - begin) + tail
                end = begin
                if b"\0" in tail:
                    raise ValueError("zeros in place of text")
                lines = tail[: tail.rfind(b"\n") + 1].splitlines()
                # The first line of a piece may be cut; a second one is whole.
                if len(lines) > 1 or (lines and begin == 0):
                    return json.loads(lines[-1])
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise Damaged(
            f"{path} is damaged ({error}); bipareto resume RUN makes it anew as far as it must"
        ) from error
    return None


def _slice(
    part: SliceFolder, index: int, runs: range, last: dict[str, Any] | None, steps: int
) -> SliceProgress:
    step = steps if part.done else int(last["step"]) if last else part.step
    begun = last_record(part.path / "attempts.jsonl")
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
    rows = np.concatenate(objectives) if objectives else np.empty((0, 0))
    rows = rows[np.isfinite(rows).all(1)] if len(rows) else rows
    if not len(rows):
        return None, "nothing finite is recorded yet"
    if ":" not in config.problem.name:
        known = problems.get(config.problem.name, **config.problem.options)
        return known.reference.tolist(), "the exact front's worst values plus a tenth of its ranges"
    return (
        rows.max(0) + 0.1 * np.ptp(rows, axis=0)
    ).tolist(), "a tenth beyond the worst values so far, so it moves"
