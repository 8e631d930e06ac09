"""Training of many backbones side by side, kept in a folder that a later call goes on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.run.loop import Begun, LoopOptions
from bipareto.run.results import Record
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.fewshot.task import Task
from bipareto_experiments.trials import Finished, Trial, require_alike, run_in, stored

__all__ = ["Trial", "train"]


def train(
    task: Task,
    trials: Sequence[Trial],
    steps: int,
    *,
    begin: Tree | None = None,
    folder: Path | None = None,
    label: str = "training",
    progress: bool | None = None,
    watch: Callable[[int, Tree], None] | None = None,
    watch_every: int | None = None,
) -> Finished:
    """Train all trials side by side; their methods may differ in numbers only.

    Args:
        steps: joint steps, T in the paper.
        begin: backbones to begin with, with a first axis of trials; None for those of the seeds.
        folder: where checkpoints and the result are kept; a call with the same trials goes on from
            there, or returns what is done.
        watch: called with the joint step and the stacked backbones after every `watch_every` joint
            steps.
    """
    require_alike(trials)
    first = trials[0]
    if first.method.oracles(len(task.domains))["hessian_products"]:
        task = replace(task, network=replace(task.network, twice=True))
    state = tree.stack(
        [
            _begin(task, trial, None if begin is None else tree.select(begin, i))
            for i, trial in enumerate(trials)
        ]
    )
    key = {
        "trials": [trial.key() for trial in trials],
        "steps": steps,
        "network": repr(task.network),
        "data": task.images.name,
        "domains": task.domains.train,
        **({} if begin is None else {"begin": float(tree.norm(begin))}),
    }
    part = None if folder is None else SliceFolder(folder)
    done = stored(part, key, "training", (state.x,))
    if done is not None:
        return done
    draws = -(-steps // first.joint)
    every = draws if watch_every is None else max(1, watch_every // first.joint)

    def look(seen: Record) -> None:
        if watch is not None and seen.step % every == 0:
            watch(seen.step * first.joint, seen.state.x)

    seeds = [trial.seed if trial.draws is None else trial.draws for trial in trials]
    options = LoopOptions(
        draws,
        compile="replay" if task.device.type == "cuda" else False,
        record_every=every if watch else max(1, draws // 50),
        callbacks=[look],
        progress=progress,
        label=label,
    )
    begun = Begun(state, seeds, len(task.domains), batched=True)
    run = partial(run_in, part, key, "training", task.problem, first.method, begun, options)
    with task.arithmetic():
        return run(keep_y=False, joint=first.joint, looks_first=True)


def _begin(task: Task, trial: Trial, backbone: Tree | None) -> Any:
    x, y = task.start(trial.seed)
    return trial.method.begin(
        trial.method.prepare(task.problem, x if backbone is None else backbone, y), trial.preference
    )
