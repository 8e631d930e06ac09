"""What experiments share: a trial, runs kept in a folder that a later call goes on from, a study.

A study's folder holds one sub-folder per group of trials that ran side by side (resumable) and
`results.json` with a record per trial, from which tables and figures are made anywhere.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.base import Method
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Record, Run
from bipareto.sweep.durable import StoreError, write_text
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.devices import machine_of
from bipareto_experiments.episodic import Episodic

#: Seconds between checkpoints.
CHECKPOINT = 20.0


@dataclass(frozen=True)
class Trial:
    """One run: a method with its hyperparameters, a preference (None where it has none), a seed.

    draws: the seed of the batches, where that is another one than the seed of the start.
    """

    method: Method
    preference: tuple[float, ...] | None
    seed: int
    draws: int | None = None

    @property
    def joint(self) -> int:
        """Joint steps per draw."""
        return self.method.joint if isinstance(self.method, Episodic) else 1

    def key(self) -> dict[str, Any]:
        """What decides the result, as JSON."""
        own = {} if self.draws is None else {"draws": self.draws}
        return {
            "method": repr(self.method),
            "preference": self.preference,
            "seed": self.seed,
            **own,
        }


def require_alike(trials: Sequence[Trial]) -> None:
    """Refuse trials that cannot run side by side."""
    if not trials:
        raise InvalidInput("there is nothing to run: give at least one trial")
    if any(trial.method.structure() != trials[0].method.structure() for trial in trials):
        raise InvalidInput(
            "trials that run side by side must differ in numbers only, not in the structure of "
            "their method"
        )


@dataclass(frozen=True)
class Finished:
    """The result of trials: x, and y where it is kept, with a first axis of trials, the seconds
    they took (all together), and why each ended.

    objectives: as recorded on the way, (records, trials, m), on the draw of that step; steps: of
    each record, (records,).
    """

    x: Tree
    y: Tree | None
    seconds: float
    reason: tuple[str, ...]
    objectives: Tensor
    steps: Tensor

    @property
    def point(self) -> tuple[Tree, ...]:
        """(x,) or (x, y)."""
        return (self.x,) if self.y is None else (self.x, self.y)

    @classmethod
    def joined(cls, parts: Sequence[Finished]) -> Finished:
        """Trials that ran one slice after the other."""
        if len(parts) == 1:
            return parts[0]
        point = tree.map_(lambda *leaves: torch.cat(leaves), *(part.point for part in parts))
        # A slice in which every run ended early has fewer records.
        least = min((part.steps for part in parts), key=len)
        objectives = torch.cat([part.objectives[: len(least)] for part in parts], 1)
        reasons = tuple(reason for part in parts for reason in part.reason)
        seconds = sum(part.seconds for part in parts)
        return cls(point[0], (*point, None)[1], seconds, reasons, objectives, least)


def run_in(
    part: SliceFolder | None,
    key: dict[str, Any],
    what: str,
    problem: Problem,
    method: Method,
    begun: Begun,
    options: LoopOptions,
    *,
    keep_y: bool = True,
    joint: int = 1,
    looks_first: bool = False,
) -> Finished:
    """Run what is begun to its end; in a folder, from where an earlier call was stopped.

    Args:
        part: where checkpoints and the result are kept; None keeps nothing.
        key: all that decides the result, as JSON: a folder of another one is refused.
        what: is kept there, e.g. "search".
        keep_y: whether y is part of the result.
        joint: how many steps of the experiment one step of the loop is.
        looks_first: whether the callbacks have seen a step when a checkpoint says that it is over;
            else they see what is kept already.
    """
    if part is None:
        run = drive(problem, method, begun, options)
        if run.interrupted:
            raise StoreError(
                "interrupted, and nothing was kept; with --out FOLDER the same command goes on "
                "where it stopped"
            )
        return _finished(run, 0.0, begun.batched, keep_y, joint)
    with part.held():
        part.claim(key, what)
        snapshot, _ = part.restore(begun.state)
        spent, began = _spent(part), time.monotonic()
        part.note_attempt(0 if snapshot is None else snapshot.step)
        with part.recording(snapshot, seconds=CHECKPOINT, keep=2) as record:

            def keep(seen: Record) -> None:
                before = part.step
                record(seen)
                if part.step != before:
                    write_text(
                        part.path / "seconds.json", json.dumps(spent + time.monotonic() - began)
                    )

            own = options.callbacks
            callbacks = [*own, keep] if looks_first else [keep, *own]
            run = drive(
                problem, method, begun, replace(options, callbacks=callbacks, resume=snapshot)
            )
        if run.interrupted:
            raise StoreError(f"interrupted; the same command goes on from {part.path}")
        finished = _finished(run, spent, begun.batched, keep_y, joint)
        leaves = {str(i): leaf for i, leaf in enumerate(tree.leaves(finished.point))}
        part.write_result(
            leaves | {"objectives": finished.objectives, "steps": finished.steps},
            key | {"seconds": finished.seconds, "reason": list(finished.reason)},
        )
        for old in part.checkpoints():
            old.unlink(missing_ok=True)
    return finished


def stored(
    part: SliceFolder | None, key: dict[str, Any], what: str, like: tuple[Tree, ...]
) -> Finished | None:
    """The result that a folder holds, if any; `like` is a point of that structure and device."""
    if part is None or not part.done:
        return None
    part.claim(key, what)
    return read_back(part, like)[0]


def read_back(part: SliceFolder, like: tuple[Tree, ...]) -> tuple[Finished, dict[str, Any]]:
    """The result that a folder holds, and what was noted with it: its key."""
    tensors, meta = part.read_result()
    device = tree.first_leaf(like).device
    # Few-shot learning named its leaves and objectives otherwise.
    leaves = [
        tensors[str(i) if str(i) in tensors else f"x.{i}"].to(device)
        for i in range(len(tree.leaves(like)))
    ]
    objectives = tensors["objectives" if "objectives" in tensors else "losses"]
    x, *rest = tree.rebuild(like, leaves)
    y, reason = rest[0] if rest else None, tuple(meta["reason"])
    return Finished(x, y, meta["seconds"], reason, objectives, tensors["steps"]), meta


def _finished(run: Run, before: float, batched: bool, keep_y: bool, joint: int) -> Finished:
    """What a run ends with; `before`: seconds that earlier attempts took."""
    x, y, objectives = run.state.x, run.state.y, run.history["objectives"].cpu()
    if not batched:
        x, y = tree.map_(lambda leaf: leaf.unsqueeze(0), (x, y))
        objectives = objectives.unsqueeze(1)
    steps = run.history["step"] * joint
    seconds = before + run.seconds
    return Finished(x, y if keep_y else None, seconds, tuple(run.reason), objectives, steps)


def _spent(part: SliceFolder) -> float:
    """Seconds that earlier attempts took up to their last checkpoint."""
    path = part.path / "seconds.json"
    return json.loads(path.read_text("utf-8")) if path.exists() and part.step else 0.0


class RecordedStudy(ABC):
    """A study in the making: what was run, how it was judged, and how long it took."""

    task: Any
    #: where it is kept; None keeps nothing
    folder: Path | None
    seeds: Sequence[int]
    #: one entry per trial
    records: list[dict[str, Any]]
    #: by method or group
    seconds: dict[str, float]

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """What is of this kind of study, for `result`."""

    def result(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return self.described() | {
            "seeds": list(self.seeds),
            "machine": machine_of(self.task.device),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": self.seconds,
            "records": self.records,
        }

    def write(self) -> None:
        """results.json, atomically."""
        if self.folder is not None:
            write_text(self.folder / "results.json", json.dumps(self.result()))
