"""Searches side by side, kept in a folder that a later call goes on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from bipareto.errors import BiparetoError, InvalidInput
from bipareto.methods.base import Start
from bipareto.problem import tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree
from bipareto.run.loop import Begun, LoopOptions
from bipareto.run.results import Record
from bipareto.run.stepping import draw
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.nas.task import Task
from bipareto_experiments.trials import Finished, Trial, require_alike, run_in, stored

__all__ = ["NotEnoughMemory", "Trial", "search"]

#: Records of a search: points of its curves, and moments at which it can be taken up again.
RECORDS = 10
#: Seconds between words.
TELL = 5.0


class NotEnoughMemory(BiparetoError, RuntimeError):
    """The searches do not fit on the GPU side by side; the message says how many would, and the
    folder stays resumable.
    """


def search(
    task: Task,
    trials: Sequence[Trial],
    *,
    steps: int | None = None,
    records: int = RECORDS,
    begin: Mapping[int, Tree] | None = None,
    folder: Path | None = None,
    together: int | None = None,
    label: str = "searching",
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> Finished:
    """Run all trials, side by side as far as they fit; their methods may differ in numbers only.

    On a GPU a step is recorded once (`compile="replay"`) and serves every slice of equal size,
    whatever its preferences and seeds.

    Args:
        task: data and supernet.
        steps: other than the task's, for a look at the first ones.
        records: how often a search is looked at.
        begin: weights that the searches of each seed begin with; None for untrained ones.
        folder: where checkpoints and results are kept; a call with the same trials goes on from
            there, or returns what is done.
        together: how many trials side by side; None for all on a GPU, and for one after the other
            on a CPU, which gains nothing.
        say: is told now and then where the search stands.
    """
    require_alike(trials)
    if together is not None and together < 1:
        raise InvalidInput(f"together = {together}; at least one search must run at a time")
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
                begin,
                slice_folder,
                own_label,
                progress,
                say,
            )
        )
    return Finished.joined(parts)


def _slice(
    task: Task,
    trials: list[Trial],
    steps: int,
    records: int,
    begin: Mapping[int, Tree] | None,
    part: SliceFolder | None,
    label: str,
    progress: bool | None,
    say: Callable[[str], None] | None,
) -> Finished:
    key = task.key() | {"trials": [trial.key() for trial in trials]}
    done = stored(part, key, "search", task.problem.start(0))
    if done is not None:
        return done
    if task.device.type == "cuda":
        # Not at the top: it brings the kernels and Triton with it.
        from bipareto_experiments.nas.precompiled import precompile

        precompile(
            task.problem.network,
            [task.settings.batch, len(task.problem.halves(Role("upper", "full"), 0, 0).rows)],
        )
    starts = {seed: _start(task, seed, begin) for seed in {trial.seed for trial in trials}}
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
        return run_in(part, key, "search", task.problem, trials[0].method, begun, options)
    except RuntimeError as error:
        if not _ran_out(error):
            raise
        raise NotEnoughMemory(_advice(task, trials)) from error


def _start(task: Task, seed: int, begin: Mapping[int, Tree] | None = None) -> Start:
    """The start of a seed, with weights of `begin` where there are some.

    `Method.prepare` would also probe the curvature of g, to say what is known of every network:
    that it is not convex.
    """
    problem = task.problem
    x, y = problem.start(seed)
    if begin is not None:
        y = begin[seed]
    with torch.no_grad():
        return Start(x, y, problem.upper(x, y, problem.batch("upper", "full")))


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
