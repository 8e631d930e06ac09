"""Training of many backbones side by side, kept in a folder that a later call goes on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.base import Method
from bipareto.methods.episodic import Episodic
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Record
from bipareto.sweep.durable import StoreError
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.fewshot.task import Task

__all__ = ["Trained", "Trial", "train"]


@dataclass(frozen=True)
class Trial:
    """One backbone to be trained: a method with its numbers, a preference (None where it has none),
    a seed.

    draws: the seed of the episodes, where that is another one than the seed of the start.
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


@dataclass(frozen=True)
class Trained:
    """Backbones x with a first axis of trials, the seconds they took (all together), and why each
    run ended.
    """

    x: Tree
    seconds: float
    reason: tuple[str, ...]
    #: training objectives as recorded, (records, trials, domains), and the joint step of each
    #: record
    losses: Tensor
    steps: Tensor


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
) -> Trained:
    """Train all trials side by side; their methods may differ in numbers only.

    Args:
        steps: joint steps, T in the paper.
        begin: backbones to begin with, with a first axis of trials; None for those of the seeds.
        folder: where checkpoints and the result are kept; a call with the same trials goes on from
            there, or returns what is done.
        watch: called with the joint step and the stacked backbones after every `watch_every` joint
            steps.
    """
    first = trials[0]
    if any(trial.method.structure() != first.method.structure() for trial in trials):
        raise InvalidInput(
            "trials that train side by side must differ in numbers only, not in the structure of "
            "their method"
        )
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
    if part is not None and part.done:
        part.claim(key, "training")
        return _read(part, state)
    draws = -(-steps // first.joint)
    every = draws if watch_every is None else max(1, watch_every // first.joint)

    def look(seen: Record) -> None:
        if watch is not None and seen.step % every == 0:
            watch(seen.step * first.joint, seen.state.x)

    seeds = [trial.seed if trial.draws is None else trial.draws for trial in trials]
    begun = Begun(state, seeds, len(task.domains), batched=True)
    options = LoopOptions(
        draws,
        compile="replay" if task.device.type == "cuda" else False,
        record_every=every if watch else max(1, draws // 50),
        callbacks=[look],
        progress=progress,
        label=label,
    )
    if part is None:
        with task.arithmetic():
            run = drive(task.problem, first.method, begun, options)
        if run.interrupted:
            raise StoreError(
                "interrupted, and nothing was kept; with --out FOLDER the same command goes on "
                "where it stopped"
            )
        return _trained(run, first.joint)
    with part.held(), task.arithmetic():
        part.claim(key, "training")
        snapshot, _ = part.restore(state)
        part.note_attempt(0 if snapshot is None else snapshot.step)
        with part.recording(snapshot, seconds=30, keep=2) as record:
            options = replace(options, callbacks=[record, look], resume=snapshot)
            run = drive(task.problem, first.method, begun, options)
        if run.interrupted:
            raise StoreError(f"interrupted; the same command goes on from {part.path}")
        trained = _trained(run, first.joint)
        leaves = {f"x.{i}": leaf for i, leaf in enumerate(tree.leaves(trained.x))}
        part.write_result(
            leaves | {"losses": trained.losses, "steps": trained.steps},
            {"seconds": trained.seconds, "reason": list(trained.reason)},
        )
    return trained


def _begin(task: Task, trial: Trial, backbone: Tree | None) -> Any:
    x, y = task.start(trial.seed)
    return trial.method.begin(
        trial.method.prepare(task.problem, x if backbone is None else backbone, y), trial.preference
    )


def _trained(run: Any, joint: int) -> Trained:
    return Trained(
        run.state.x,
        run.seconds,
        tuple(run.reason),
        run.history["objectives"].cpu(),
        run.history["step"] * joint,
    )


def _read(part: SliceFolder, template: Any) -> Trained:
    tensors, meta = part.read_result()
    x = template.x
    device = tree.first_leaf(x).device
    leaves = [tensors[f"x.{i}"].to(device) for i in range(len(tree.leaves(x)))]
    return Trained(
        tree.rebuild(x, leaves),
        meta["seconds"],
        tuple(meta["reason"]),
        tensors["losses"],
        tensors["steps"],
    )
