"""Whole fronts in a run folder: begun once, resumed after anything, executed by any engine.

A sweep's runs stand on one axis, seed by seed, and are cut into slices of one size (the last one is
padded).  All that decides a number is written to the manifest when the sweep begins; a slice is
then a pure function of the folder and its index, which is what lets engines, crashes and resumes
leave every bit as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.front import front
from bipareto.fronts.pareto import ParetoFront
from bipareto.fronts.tables import write_metrics
from bipareto.problem import tree
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Callback, Snapshot
from bipareto.run.trackers import open_tracker, prepare_tracker
from bipareto.sweep import engines
from bipareto.sweep.collecting import collect, write_result
from bipareto.sweep.config import EngineConfig, SweepConfig, dump, load
from bipareto.sweep.durable import Damaged, Interrupted
from bipareto.sweep.plan import (
    Plan,
    Setup,
    begin,
    build,
    chosen,
    manifest_of,
    method_of,
    preferences_of,
    races,
    read_plan,
    versions,
)
from bipareto.sweep.store import RunFolder


def sweep(
    config: SweepConfig,
    path: str | PathLike[str],
    *,
    setup: Setup | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    told: Callable[[int, int], None] | None = None,
) -> ParetoFront:
    """Begin a sweep in a new folder and run it to its end.

    Args:
        config: what to run.
        path: the folder; it must not hold a run yet.
        setup: the problem, where it has been built already.
        callbacks: as in `solve`, with the local engine; they are forgotten when a run is resumed.
        progress: as in `solve`.
        told: called with (slices done, slices) whenever one is done.

    A front with adaptive preferences, or whose method is found by a race, is made in one piece and
    kept once it is whole.
    """
    if callbacks and config.engine.name != "local":
        raise InvalidInput(
            f"callbacks cannot be called from the workers of engine {config.engine.name!r}; use "
            "engine local"
        )
    folder = RunFolder(Path(path))
    _refuse_another(folder)
    setup = build(config.problem, config.seeds) if setup is None else setup
    config = chosen(config, setup)
    if config.preferences.family == "adaptive" or races(config, setup):
        found = traced(config, setup, callbacks=callbacks, progress=progress)
        return keep(config, found, path, setup)
    with folder.locked():
        _refuse_another(folder)
        if config.track is not None:
            prepare_tracker(config.track, folder.path)
        plan = begin(config, setup)
        folder.create(dump(config), plan.manifest)
        read_plan(folder, setup)
        return _finish(folder, config.engine, progress, told, callbacks)


def _refuse_another(folder: RunFolder) -> None:
    if folder.exists():
        raise InvalidInput(
            f"{folder.path} holds a run already; go on with it: bipareto resume {folder.path}, or "
            "choose another folder"
        )


def traced(
    config: SweepConfig,
    setup: Setup,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> ParetoFront:
    """The front of a configuration without a folder, its lower level not solved again.

    Args:
        config: what to run.
        setup: the problem that `build` made of it.
        callbacks, progress: as in `solve`.
    """
    config = chosen(config, setup)
    if any(start is not setup.starts[0] for start in setup.starts):
        raise InvalidInput("problem.starts differ by seed; such fronts are made in a folder, --out")
    method = method_of(config.method, setup, config.steps)
    x0, y0 = setup.starts[0]
    adaptive = config.preferences.family == "adaptive"
    preferences: Any = "adaptive"
    if not adaptive:
        m = setup.known.m if setup.known else setup.problem.check(x0, y0)
        rows = [w for w in preferences_of(config, method, m) if w is not None]
        preferences = torch.stack(rows) if rows else None
    return front(
        setup.problem,
        x0,
        y0,
        preferences=preferences,
        budget=config.preferences.budget,
        seeds=config.seeds,
        method=None if races(config, setup) else method,
        steps=config.steps,
        compile=config.compile,
        record_every=config.record_every,
        tol=config.tol,
        callbacks=callbacks,
        progress=progress,
    )


def keep(
    config: SweepConfig, found: ParetoFront, path: str | PathLike[str], setup: Setup | None = None
) -> ParetoFront:
    """Write a front that is already there as a finished run folder; returns it with the lower
    level solved.

    Args:
        config: how it was made.
        found: what `front` returned.
        path: the folder; it must not hold a run yet.
        setup: the problem, where it has been built already.
    """
    if found.run is None or found.method is None:
        raise InvalidInput("this front holds no run states; keep what bipareto.front returned")
    folder = RunFolder(Path(path))
    with folder.locked():
        _refuse_another(folder)
        runs = len(found)
        manifest = manifest_of(config, found.method, found[0], runs, runs, found.batched)
        manifest["chosen"] = {
            "preferences": found.preference.tolist() if found.method.uses_preference else None,
            "seeds": found.seed.tolist(),
        }
        if found.race is not None:
            manifest["race"] = found.race.summary()
        folder.create(dump(config), manifest)
        part = folder.slice(0)
        with part.held():
            part.note_attempt(0)
            write_metrics(found, part.path / "metrics.jsonl")
            write_result(read_plan(folder, setup), folder, 0, found.run, stacked=True)
        # What is missing was said when the front was made.
        with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
            return collect(folder)


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
    callbacks: Sequence[Callback] = (),
) -> ParetoFront:
    manifest = folder.manifest()
    finished = [index for index in range(manifest["slices"]) if _is_done(folder, index)]
    waiting = [index for index in range(manifest["slices"]) if index not in finished]
    folder.reopen(finished)
    for index in waiting:
        folder.slice(index).result.unlink(missing_ok=True)
    work = partial(
        run_slice,
        str(folder.path.resolve()),
        progress=progress if engine.name == "local" else False,
        callbacks=callbacks,
    )
    done = len(finished)
    if waiting:
        for index, complaints in engines.get(engine, manifest["threads"]).run(work, waiting):
            done += 1
            folder.note_result(index)
            for text in complaints:
                warnings.warn(f"{text}; the one before it was used", BiparetoWarning, stacklevel=3)
            if told is not None:
                told(done, manifest["slices"])
    return collect(folder)


def _is_done(folder: RunFolder, index: int) -> bool:
    """Whether a slice has a result that can be read; a damaged one is computed again."""
    part = folder.slice(index)
    if not part.done and not folder.had_result(index):
        return False
    try:
        part.read_result()
    except FileNotFoundError:
        said = f"{part.result} is gone"
    except Damaged as error:
        said = str(error)
    else:
        return True
    warnings.warn(f"{said}; the slice is computed again", BiparetoWarning, stacklevel=4)
    return False


def run_slice(
    path: str, index: int, progress: bool | None = False, callbacks: Sequence[Callback] = ()
) -> list[str]:
    """Run one slice to its end from wherever it stands, and write its result.

    Args:
        path: the run folder.
        index: which slice.
        progress, callbacks: as in `solve`.

    Returns:
        what was wrong with checkpoints, in words.
    """
    folder = RunFolder(Path(path))
    plan, part = read_plan(folder), folder.slice(index)
    before = torch.get_num_threads()
    torch.set_num_threads(plan.manifest["threads"])
    try:
        with part.held():
            return [] if part.done else _run_held(plan, folder, index, progress, callbacks)
    finally:
        torch.set_num_threads(before)


def _run_held(
    plan: Plan, folder: RunFolder, index: int, progress: bool | None, callbacks: Sequence[Callback]
) -> list[str]:
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
            Begun(state, plan.seeds(padded), manifest["m"], batched),
            LoopOptions(
                config.steps,
                manifest["compile"],
                config.record_every,
                config.tol,
                [record, *track, *callbacks],
                progress,
                label=f"runs {runs[0] + 1}-{runs[-1] + 1} of {manifest['runs']}",
                resume=snapshot,
            ),
        )
    if run.interrupted:
        raise Interrupted(f"interrupted; go on with: bipareto resume {folder.path}")
    write_result(plan, folder, index, run, stacked=batched)
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
