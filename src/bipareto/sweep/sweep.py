"""Whole fronts in a run folder: begun once, resumed after anything, executed by any engine.

A sweep's runs stand on one axis, seed by seed, and are cut into slices of one size (the last one is
padded).  All that decides a number is written to the manifest when the sweep begins; a slice is
then a pure function of the folder and its index, which is what lets engines, crashes and resumes
leave every bit as it is.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.doctor import Case
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts import measures
from bipareto.fronts.pareto import ParetoFront
from bipareto.fronts.tables import write_csv
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.problems import KnownProblem
from bipareto.run.loop import drive
from bipareto.run.results import Callback, Failure, Run, Snapshot
from bipareto.run.trackers import open_tracker, prepare_tracker
from bipareto.sweep import engines
from bipareto.sweep.config import EngineConfig, SweepConfig, dump, load
from bipareto.sweep.durable import Damaged, StoreError, write_atomic
from bipareto.sweep.plan import Plan, begin, read_plan, versions
from bipareto.sweep.store import RunFolder

__all__ = ["Status", "case", "resume", "run_slice", "status", "sweep"]


def sweep(
    config: SweepConfig,
    path: str | PathLike[str],
    *,
    progress: bool | None = None,
    told: Callable[[int, int], None] | None = None,
) -> ParetoFront:
    """Begin a sweep in a new folder and run it to its end.

    Args:
        config: what to run.
        path: the folder; it must not hold a run yet.
        progress: as in `solve`.
        told: called with (slices done, slices) whenever one is done.
    """
    folder = RunFolder(Path(path))
    with folder.locked():
        if folder.exists():
            raise InvalidInput(
                f"{path} holds a run already; go on with it: bipareto resume {path}, or choose "
                "another folder"
            )
        if config.track is not None:
            prepare_tracker(config.track, folder.path)
        _, manifest = begin(config)
        folder.create(dump(config), manifest)
        return _finish(folder, config.engine, progress, told)


def resume(
    path: str | PathLike[str],
    *,
    engine: EngineConfig | None = None,
    progress: bool | None = None,
    told: Callable[[int, int], None] | None = None,
) -> ParetoFront:
    """Go on with a sweep where it stopped; of one that is done, the front is put together again.

    Args:
        path: its folder.
        engine: another engine than the one it was begun with.
        progress, told: as in `sweep`.
    """
    folder = RunFolder(Path(path))
    manifest = folder.manifest()
    with folder.locked():
        changed = {
            name: (then, now)
            for name, now in versions().items()
            if (then := manifest["versions"].get(name)) != now
        }
        if changed:
            text = ", ".join(f"{name} {then} -> {now}" for name, (then, now) in changed.items())
            warnings.warn(
                f"the run was begun with other versions ({text}); its last bits may differ from an "
                "uninterrupted one",
                BiparetoWarning,
                stacklevel=2,
            )
        config = load(SweepConfig, folder.config)
        if config.track is not None:
            prepare_tracker(config.track, folder.path)
        return _finish(folder, engine or config.engine, progress, told)


def _finish(
    folder: RunFolder,
    engine: EngineConfig,
    progress: bool | None,
    told: Callable[[int, int], None] | None,
) -> ParetoFront:
    manifest = folder.manifest()
    waiting = [index for index in range(manifest["slices"]) if not _is_done(folder, index)]
    work = partial(
        run_slice,
        str(folder.path.resolve()),
        progress=progress if engine.name == "local" else False,
    )
    done = manifest["slices"] - len(waiting)
    if waiting:
        for _, complaints in engines.get(engine, manifest["threads"]).run(work, waiting):
            done += 1
            for text in complaints:
                warnings.warn(f"{text}; the one before it was used", BiparetoWarning, stacklevel=3)
            if told is not None:
                told(done, manifest["slices"])
    return _collect(folder)


def _is_done(folder: RunFolder, index: int) -> bool:
    """Whether a slice has a result that can be read; a damaged one is computed again."""
    part = folder.slice(index)
    if not part.done:
        return False
    try:
        part.read_result()
    except Damaged as error:
        warnings.warn(f"{error}; the slice is computed again", BiparetoWarning, stacklevel=4)
        (part.path / "result.safetensors").unlink(missing_ok=True)
        return False
    return True


def run_slice(path: str, index: int, progress: bool | None = False) -> list[str]:
    """Run one slice to its end from wherever it stands, and write its result.

    Args:
        path: the run folder.
        index: which slice.
        progress: as in `solve`.

    Returns:
        what was wrong with checkpoints, in words.
    """
    folder = RunFolder(Path(path))
    plan, part = read_plan(folder), folder.slice(index)
    before = torch.get_num_threads()
    torch.set_num_threads(plan.manifest["threads"])
    try:
        with part.held():
            return [] if part.done else _run_held(plan, folder, index, progress)
    finally:
        torch.set_num_threads(before)


def _run_held(plan: Plan, folder: RunFolder, index: int, progress: bool | None) -> list[str]:
    config, manifest, part = plan.config, plan.manifest, folder.slice(index)
    runs = plan.runs(index)
    padded = runs + runs[-1:] * (manifest["slice"] - len(runs))
    states, batched = plan.states(runs), manifest["batched"]
    state = tree.stack(states + states[-1:] * (len(padded) - len(runs))) if batched else states[0]
    snapshot, complaints = part.restore(state)
    part.note_attempt(0 if snapshot is None else snapshot.step)
    with (
        part.recording(snapshot, config.checkpoint.seconds, config.checkpoint.keep) as record,
        _tracking(plan, folder, index, snapshot) as track,
    ):
        run = drive(
            plan.setup.problem,
            plan.method,
            state,
            plan.seeds(padded),
            m=manifest["m"],
            steps=config.steps,
            batched=batched,
            compile=manifest["compile"],
            record_every=config.record_every,
            tol=config.tol,
            callbacks=[record, *track],
            progress=progress,
            label=f"runs {runs[0] + 1}-{runs[-1] + 1} of {manifest['runs']}",
            resume=snapshot,
        )
    if "interrupted" in run.reason:
        raise StoreError(f"interrupted; go on with: bipareto resume {folder.path}")
    _write_result(plan, folder, index, run)
    return complaints


@contextmanager
def _tracking(
    plan: Plan, folder: RunFolder, index: int, snapshot: Snapshot | None
) -> Iterator[list[Callback]]:
    """The callbacks that show a slice elsewhere, if that was asked for."""
    name, runs = plan.config.track, plan.runs(index)
    if name is None:
        yield []
        return
    labels = (
        [f"run {run:0{len(str(plan.manifest['runs']))}d}" for run in runs]
        if plan.manifest["batched"]
        else None
    )
    begin = 0 if snapshot is None else snapshot.step
    with open_tracker(
        name,
        folder.path,
        run=f"slice {index:05d}",
        runs=labels,
        begin=begin,
        parameters=plan.manifest["method"],
    ) as tracker:
        yield [tracker]


def _write_result(plan: Plan, folder: RunFolder, index: int, run: Run) -> None:
    runs, batched = plan.runs(index), plan.manifest["batched"]
    state = (
        tree.select(run.state, slice(len(runs)))
        if batched
        else tree.map_(lambda leaf: leaf[None], run.state)
    )
    front = _front(
        plan, state.x, state.y, runs, run.reason[: len(runs)], run.failure[: len(runs)], run.seconds
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", BiparetoWarning
        )  # the residuals are stored, and the whole front warns once
        solved = front.resolve_lower()
    tensors = {
        f"{name}.{i}": leaf
        for name in ("x", "y")
        for i, leaf in enumerate(tree.leaves(getattr(solved, name)))
    }
    tensors |= {f"returned.{i}": leaf for i, leaf in enumerate(tree.leaves(state.y))}
    tensors |= {f"state.{i}": leaf.contiguous() for i, leaf in enumerate(tree.leaves(state))}
    tensors |= {"objectives": solved.objectives}
    if solved.lower_residual is not None:
        tensors["lower_residual"] = solved.lower_residual
    failure = [None if f is None else [f.step, f.term] for f in front.failure]
    folder.slice(index).write_result(
        tensors,
        {
            "runs": runs,
            "reason": front.reason,
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
    vectors = [plan.preferences[run % len(plan.preferences)] for run in runs]
    return ParetoFront(
        x=x,
        y=y,
        objectives=torch.empty(len(runs), m),
        preference=torch.stack(
            [torch.full((m,), torch.nan, dtype=torch.float64) if w is None else w for w in vectors]
        ),
        seed=torch.tensor(plan.seeds(runs)),
        reason=tuple(reason),
        failure=tuple(failure),
        seconds=seconds,
        method=plan.method,
        problem=plan.setup.problem,
        batched=plan.manifest["batched"],
    )


def _collect(folder: RunFolder) -> ParetoFront:
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
    front = _front(
        plan,
        x,
        y,
        range(plan.manifest["runs"]),
        [r for meta in metas for r in meta["reason"]],
        failure,
        sum(meta["seconds"] for meta in metas),
    )
    front = replace(
        front, objectives=tensors["objectives"], lower_residual=tensors.get("lower_residual")
    )
    known = plan.setup.known
    distance = None if known is None else known.distance_to_front(front.objectives)
    write_atomic(folder.path / "front.csv", lambda partial: write_csv(front, partial, distance))
    write_atomic(folder.path / "front.npz", front.save)
    folder.write_text("measures.json", json.dumps(_measured(front, known), indent=2) + "\n")
    return front


def case(path: str | PathLike[str]) -> Case:
    """A finished sweep as the doctor takes it: the last states of all runs, and what was recorded
    of them.
    """
    folder = RunFolder(Path(path))
    folder.manifest()
    plan = read_plan(folder)
    parts = [folder.slice(index) for index in range(plan.manifest["slices"])]
    if not all(part.done for part in parts):
        raise InvalidInput(f"{path} is not finished; go on with: bipareto resume {path}")
    read = [part.read_result() for part in parts]
    template = tree.stack(plan.states([0]))
    state = tree.rebuild(
        template,
        [
            torch.cat([tensors[f"state.{i}"] for tensors, _ in read])
            for i in range(len(tree.leaves(template)))
        ],
    )
    rows = [
        [json.loads(line) for line in (part.path / "metrics.jsonl").read_text("utf-8").splitlines()]
        for part in parts
    ]
    records = min(map(len, rows))
    history = {
        name: torch.cat(
            [_recorded(found[:records], name, len(plan.runs(i))) for i, found in enumerate(rows)],
            dim=1,
        )
        for name in rows[0][0]
        if name != "step"
    }
    wanted = [plan.preferences[run % len(plan.preferences)] for run in range(plan.manifest["runs"])]
    nothing = torch.full((plan.manifest["m"],), torch.nan, dtype=torch.float64)
    failure = [None if f is None else Failure(*f) for _, meta in read for f in meta["failure"]]
    return Case(
        plan.setup.problem,
        plan.method,
        state.x,
        state.y,
        torch.stack([nothing if w is None else w for w in wanted]),
        history,
        failure,
        state,
        plan.setup.starts[0],
        plan.manifest["batched"],
    )


def _recorded(rows: list[dict[str, Any]], name: str, runs: int) -> Tensor:
    """What was recorded of a slice's runs, without its padding: (records, runs, ...)."""
    values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
    m = values.shape[-1] if name in ("objectives", "weights") else 1
    return (
        values.reshape(len(rows), -1, m)[:, :runs].squeeze(-1)
        if m == 1
        else values.reshape(len(rows), -1, m)[:, :runs]
    )


def _measured(front: ParetoFront, known: KnownProblem | None) -> dict[str, Any]:
    """The measures, up to the known reference point or, without one, a tenth beyond the worst
    values found.
    """
    f = front.objectives[torch.isfinite(front.objectives).all(1)]
    if known is not None:
        return measures.measure(front, known.reference, known.front()) | {
            "reference_is": "the exact front's worst values plus a tenth of its ranges"
        }
    reference = (
        f.amax(0) + 0.1 * (f.amax(0) - f.amin(0))
        if len(f)
        else torch.full((front.objectives.shape[1],), torch.nan)
    )
    return measures.measure(front, reference.cpu()) | {
        "reference_is": "the worst values found plus a tenth of their ranges: not comparable "
        "between runs"
    }


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


def status(path: str | PathLike[str]) -> Status:
    """Look at a run without disturbing it."""
    folder = RunFolder(Path(path))
    manifest, config = folder.manifest(), load(SweepConfig, folder.config)
    parts = [folder.slice(index) for index in range(manifest["slices"])]
    done = [part.done for part in parts]
    steps = sum(
        config.steps if finished else part.step for part, finished in zip(parts, done, strict=True)
    )
    state = (
        "running"
        if folder.running()
        else "done"
        if (folder.path / "front.csv").exists() and all(done)
        else "stopped"
    )
    return Status(
        folder.path,
        config.problem.name,
        config.method.name,
        manifest["runs"],
        state,
        sum(done),
        len(parts),
        steps / (config.steps * len(parts)),
    )
