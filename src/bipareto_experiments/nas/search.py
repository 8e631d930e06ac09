"""Searches side by side, kept in a folder that a later call goes on from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoError, InvalidInput
from bipareto.methods.base import Method, Start
from bipareto.problem import tree
from bipareto.problem.draws import draw
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Record, Run
from bipareto.sweep.durable import StoreError, write_text
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.nas.task import Task

__all__ = ["Found", "NotEnoughMemory", "Trial", "search"]

#: Records of a search: points of its curves, and moments at which it can be taken up again.
RECORDS = 10
#: Seconds between checkpoints, and between words.
CHECKPOINT, TELL = 20.0, 5.0


class NotEnoughMemory(BiparetoError, RuntimeError):
    """The searches do not fit on the GPU side by side; the message says how many would, and the
    folder stays resumable.
    """


@dataclass(frozen=True)
class Trial:
    """One search: a method with its numbers, a preference (None where it has none), a seed."""

    method: Method
    preference: tuple[float, ...] | None
    seed: int

    def key(self) -> dict[str, Any]:
        """What decides the result, as JSON."""
        return {"method": repr(self.method), "preference": self.preference, "seed": self.seed}


@dataclass(frozen=True)
class Found:
    """Logits x and weights y with a first axis of trials, the seconds they took (all together), and
    why each search ended.

    objectives: as recorded on the way, (records, trials, m), on the draw of that step; steps: of
    each record, (records,).
    """

    x: Tree
    y: Tree
    seconds: float
    reason: tuple[str, ...]
    objectives: Tensor
    steps: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Found]) -> Found:
        """Trials that were searched one slice after the other."""
        if len(parts) == 1:
            return parts[0]
        x, y = tree.map_(lambda *leaves: torch.cat(leaves), *((part.x, part.y) for part in parts))
        # A slice in which every search ended early has fewer records.
        least = min((part.steps for part in parts), key=len)
        objectives = torch.cat([part.objectives[: len(least)] for part in parts], 1)
        reasons = tuple(reason for part in parts for reason in part.reason)
        return cls(x, y, sum(part.seconds for part in parts), reasons, objectives, least)


def search(
    task: Task,
    trials: Sequence[Trial],
    *,
    steps: int | None = None,
    records: int = RECORDS,
    folder: Path | None = None,
    together: int | None = None,
    label: str = "searching",
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> Found:
    """Run all trials, side by side as far as they fit; their methods may differ in numbers only.

    On a GPU a step is recorded once (`compile="replay"`) and serves every slice of equal size,
    whatever its preferences and seeds.

    Args:
        task: data and supernet.
        steps: other than the task's, for a look at the first ones.
        records: how often a search is looked at.
        folder: where checkpoints and results are kept; a call with the same trials goes on from
            there, or returns what is done.
        together: how many trials side by side; None for all on a GPU, and for one after the other
            on a CPU, which gains nothing.
        say: is told now and then where the search stands.
    """
    if not trials:
        raise InvalidInput("there is nothing to search: give at least one trial")
    if together is not None and together < 1:
        raise InvalidInput(f"together = {together}; at least one search must run at a time")
    if any(trial.method.structure() != trials[0].method.structure() for trial in trials):
        raise InvalidInput(
            "searches that run side by side must differ in numbers only, not in the structure of "
            "their method"
        )
    size = min(together or (len(trials) if task.device.type == "cuda" else 1), len(trials))
    parts = []
    for index, first in enumerate(range(0, len(trials), size)):
        own = list(trials[first : first + size])
        whole = size == len(trials)
        slice_folder = (
            None if folder is None else SliceFolder(folder if whole else folder / f"{index:03d}")
        )
        own_label = label if whole else f"{label}, {index + 1} of {-(-len(trials) // size)}"
        parts.append(
            _slice(
                task,
                own,
                steps or task.settings.steps,
                records,
                slice_folder,
                own_label,
                progress,
                say,
            )
        )
    return Found.joined(parts)


def _slice(
    task: Task,
    trials: list[Trial],
    steps: int,
    records: int,
    part: SliceFolder | None,
    label: str,
    progress: bool | None,
    say: Callable[[str], None] | None,
) -> Found:
    key = task.key() | {"trials": [trial.key() for trial in trials]}
    if part is not None and part.done:
        part.claim(key, "search")
        return _read(part, task)
    if task.device.type == "cuda":
        # Not at the top: it brings the kernels and Triton with it.
        from bipareto_experiments.nas.precompiled import precompile

        precompile(
            task.problem.network,
            [task.settings.batch, len(task.problem.halves(Role("upper", "full"), 0, 0).rows)],
        )
    starts = {seed: _start(task, seed) for seed in {trial.seed for trial in trials}}
    states = [trial.method.begin(starts[trial.seed], trial.preference) for trial in trials]
    batched = len(trials) > 1
    state = tree.stack(states) if batched else states[0]
    began = time.monotonic()
    told = began

    def tell(seen: Record) -> None:
        nonlocal told
        if say is not None and (seen.step == steps or time.monotonic() - told > TELL):
            told = time.monotonic()
            company = f", {len(trials)} side by side" if batched else ""
            say(f"{label}: step {seen.step} of {steps}{company}, {told - began:.1f} s")

    begun = Begun(state, [trial.seed for trial in trials], len(task.settings.objectives), batched)
    options = LoopOptions(
        steps,
        compile="replay" if task.device.type == "cuda" else False,
        record_every=max(1, steps // records),
        callbacks=[tell],
        progress=progress,
        label=label,
    )
    try:
        if part is None:
            return _found(drive(task.problem, trials[0].method, begun, options), 0.0, None)
        with part.held():
            part.claim(key, "search")
            snapshot, _ = part.restore(state)
            spent = _spent(part)
            part.note_attempt(0 if snapshot is None else snapshot.step)
            with part.recording(snapshot, seconds=CHECKPOINT, keep=2) as record:

                def keep(seen: Record) -> None:
                    before = part.step
                    record(seen)
                    if part.step != before:
                        write_text(
                            part.path / "seconds.json", json.dumps(spent + time.monotonic() - began)
                        )

                options = replace(options, callbacks=[keep, tell], resume=snapshot)
                run = drive(task.problem, trials[0].method, begun, options)
            found = _found(run, spent, part)
            leaves = {str(i): leaf for i, leaf in enumerate(tree.leaves((found.x, found.y)))}
            tensors = leaves | {"objectives": found.objectives, "steps": found.steps}
            part.write_result(
                tensors, key | {"seconds": found.seconds, "reason": list(found.reason)}
            )
            for old in part.checkpoints():
                old.unlink(missing_ok=True)
            return found
    except RuntimeError as error:
        if not _ran_out(error):
            raise
        raise NotEnoughMemory(_advice(task, trials)) from error


def _start(task: Task, seed: int) -> Start:
    """The start of a seed.

    `Method.prepare` would also probe the curvature of g, to say what is known of every network:
    that it is not convex.
    """
    problem = task.problem
    x, y = problem.start(seed)
    with torch.no_grad():
        return Start(x, y, problem.upper(x, y, problem.batch("upper", "full")))


def _found(run: Run, before: float, part: SliceFolder | None) -> Found:
    """What a run that came to its end has found; `before`: seconds that earlier attempts took."""
    if run.interrupted:
        kept = ", and nothing was kept; with --out FOLDER the same command goes on where it stopped"
        raise StoreError(
            "interrupted"
            + (kept if part is None else f"; the same command goes on from {part.path}")
        )
    x, y, objectives = run.state.x, run.state.y, run.history["objectives"].cpu()
    if objectives.dim() == 2:  # one search alone
        (x, y), objectives = (
            tree.map_(lambda leaf: leaf.unsqueeze(0), (x, y)),
            objectives.unsqueeze(1),
        )
    return Found(x, y, before + run.seconds, tuple(run.reason), objectives, run.history["step"])


def _spent(part: SliceFolder) -> float:
    """Seconds that earlier attempts took up to their last checkpoint."""
    path = part.path / "seconds.json"
    return json.loads(path.read_text("utf-8")) if path.exists() and part.step else 0.0


def _read(part: SliceFolder, task: Task) -> Found:
    tensors, meta = part.read_result()
    like = task.problem.start(0)
    x, y = tree.rebuild(
        like, [tensors[str(i)].to(task.device) for i in range(len(tree.leaves(like)))]
    )
    return Found(
        x, y, meta["seconds"], tuple(meta["reason"]), tensors["objectives"], tensors["steps"]
    )


def _ran_out(error: BaseException | None) -> bool:
    """Whether the GPU's memory was the cause; a recording that breaks off covers it with an error
    of its own.
    """
    return error is not None and (
        isinstance(error, torch.OutOfMemoryError) or _ran_out(error.__cause__ or error.__context__)
    )


def _advice(task: Task, trials: Sequence[Trial]) -> str:
    try:
        need, room = _memory(task, trials[0])
    except RuntimeError:
        # A recording that broke off can leave the device unusable for this process.
        return (
            f"not enough GPU memory for {len(trials)} searches side by side; "
            f"use --together {len(trials) // 2 or 1} or a smaller --batch"
        )
    fit = int(room // need)
    gib = 2**30
    one = f"one search takes about {need / gib:.1f} GiB of the {room / gib:.1f} GiB there are"
    if fit < 1:
        return f"not enough GPU memory: {one}; use a smaller --batch or --channels"
    return (
        f"not enough GPU memory for {len(trials)} searches side by side: {one}, so {fit} would "
        "fit; "
        f"use --together {min(fit, len(trials) - 1) or 1}"
    )


def _memory(task: Task, trial: Trial) -> tuple[float, float]:
    """Bytes that one search needs at its peak, with a margin for what a recording keeps, and bytes
    there are.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    m = len(task.settings.objectives)
    state = trial.method.begin(_start(task, trial.seed), trial.preference)
    trial.method.step(
        task.problem, state, draw(task.problem, trial.method.roles(m), 0, [trial.seed])
    )
    need = 1.3 * (torch.cuda.max_memory_allocated() - before)
    torch.cuda.empty_cache()
    return need, 0.95 * torch.cuda.mem_get_info()[0]
