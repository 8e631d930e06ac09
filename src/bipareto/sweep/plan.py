"""From a configuration to what is run: the problem and its starts, the method and its numbers, the
preferences, the slices.

All that decides a number is decided here, once, when a sweep begins; a plan can be read back from
its run folder.
"""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, NotBatchable
from bipareto.fronts.batch import SLICE
from bipareto.methods import METHODS, Method
from bipareto.methods.base import State
from bipareto.problem import tree
from bipareto.problem.draws import draw
from bipareto.run.loop import pays_to_compile
from bipareto.run.steppers import stepper
from bipareto.sweep import engines
from bipareto.sweep.builder import Setup, build, method_of, preferences_of
from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.durable import version_of
from bipareto.sweep.grammar import dump_number, load_number
from bipareto.sweep.store import RunFolder

#: Plans that are kept in memory.
MOST_PLANS = 4
_PLANS: dict[tuple[Path, str], Plan] = {}
#: What a run needs at the height of a step, in multiples of its state: gradients, graph and
#: records.
PER_RUN = 40


@dataclass
class Plan:
    """A sweep as it will be executed: every slice follows from it."""

    setup: Setup
    method: Method
    preferences: list[Tensor | None]
    config: SweepConfig
    manifest: dict[str, Any]

    def runs(self, index: int) -> list[int]:
        """The runs of a slice, by their place on the run axis."""
        size = self.manifest["slice"]
        return list(range(index * size, min((index + 1) * size, self.manifest["runs"])))

    def preference(self, run: int) -> Tensor | None:
        """The preference of a run; None for a method without."""
        if chosen := self.manifest.get("chosen"):
            rows = chosen["preferences"]
            return None if rows is None else torch.tensor(rows[run], dtype=torch.float64)
        return self.preferences[run % len(self.preferences)]

    def preference_rows(self, runs: Sequence[int]) -> Tensor:
        """The preferences of these runs as rows (len(runs), m), NaN for a method without."""
        nothing = torch.full((self.manifest["m"],), torch.nan, dtype=torch.float64)
        rows = [self.preference(run) for run in runs]
        return torch.stack([nothing if w is None else w for w in rows])

    def seeds(self, runs: Sequence[int]) -> list[int]:
        """The seed of each of these runs."""
        if chosen := self.manifest.get("chosen"):
            return [chosen["seeds"][run] for run in runs]
        return [self.config.seeds[run // len(self.preferences)] for run in runs]

    def states(self, runs: Sequence[int]) -> list[State]:
        """The first state of each of these runs."""
        seeds = self.seeds(runs)
        starts = {
            seed: self.method.prepare(
                self.setup.problem, *self.setup.starts[self.config.seeds.index(seed)]
            )
            for seed in set(seeds)
        }
        # Zeros were warned of when the preferences were made.
        with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
            return [
                self.method.begin(starts[seed], self.preference(run))
                for seed, run in zip(seeds, runs, strict=True)
            ]


def begin(config: SweepConfig, setup: Setup) -> Plan:
    """Decide all that decides numbers.

    Args:
        config: what was asked for, its method by name.
        setup: the problem that `build` made of it.
    """
    method = method_of(config.method, setup, config.steps)
    start = method.prepare(setup.problem, *setup.starts[0])
    m = start.objectives.shape[0]
    wanted = preferences_of(config, method, m)
    state = method.begin(start, wanted[0])
    runs = len(wanted) * len(config.seeds)
    try:
        stepper(setup.problem, method, batched=True)(
            tree.stack([state]), draw(setup.problem, method.roles(m), 0, config.seeds[:1])
        )
        batched, size = True, config.slice or _slice_size(state, runs, config)
    except NotBatchable as error:
        warnings.warn(
            f"{error}. Going on with one run after the other", BiparetoWarning, stacklevel=3
        )
        batched, size = False, 1
    return Plan(
        setup,
        method,
        wanted,
        config,
        manifest_of(config, method, start.objectives, runs, min(size, runs), batched),
    )


def manifest_of(
    config: SweepConfig, method: Method, objectives: Tensor, runs: int, size: int, batched: bool
) -> dict[str, Any]:
    """What was decided, as JSON.

    Args:
        config: what was asked for.
        method: with its hyperparameters.
        objectives: f (m,) at a start, for its size, dtype and device.
        runs: how many.
        size: of a slice.
        batched: whether the runs of a slice are stepped side by side.
    """
    compiles = pays_to_compile(config.steps, batched, objectives.device)
    return {
        "format": 1,
        "runs": runs,
        "m": objectives.shape[0],
        "slice": size,
        "slices": math.ceil(runs / size),
        "batched": batched,
        "steps": config.steps,
        "threads": config.threads,
        "compile": compiles if config.compile is None else config.compile,
        "dtype": str(objectives.dtype),
        "device": str(objectives.device),
        "method": {f.name: dump_number(getattr(method, f.name)) for f in fields(method)},
        "versions": versions(),
    }


def _slice_size(state: State, runs: int, config: SweepConfig) -> int:
    """As many runs side by side as a quarter of the memory holds, and no fewer slices than
    workers.
    """
    weight = PER_RUN * sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(state))
    device = tree.first_leaf(state).device
    memory = (
        torch.cuda.mem_get_info(device)[0]
        if device.type == "cuda"
        else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    )
    engine = engines.get(config.engine, config.threads)
    workers = 1 if isinstance(engine, engines.Local) else engine.workers(runs)
    return max(1, min(SLICE, math.ceil(runs / workers), int(memory / 4 / workers / weight)))


def versions() -> dict[str, str]:
    """Of what may change the last bits of a number."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": platform.machine(),
    }
    return found | {
        name: version_of(name) for name in ("bipareto", "torch", "numpy", "safetensors")
    }


def read_plan(folder: RunFolder, setup: Setup | None = None) -> Plan:
    """The plan of a run that was begun; kept, since compiled steps belong to the problem.

    Args:
        folder: of the run.
        setup: its problem, where it has been built already.
    """
    # The text is part of the key: a folder may be removed and made anew within one process.
    text = (folder.path / "manifest.json").read_text("utf-8")
    key = folder.path.resolve(), text
    if key not in _PLANS:
        while len(_PLANS) >= MOST_PLANS:
            del _PLANS[next(iter(_PLANS))]
        _PLANS[key] = _plan_of(folder, json.loads(text), setup)
    return _PLANS[key]


def _plan_of(folder: RunFolder, manifest: dict[str, Any], setup: Setup | None) -> Plan:
    config = load(SweepConfig, folder.config)
    setup = build(config.problem, config.seeds) if setup is None else setup
    method = METHODS[config.method.name](
        **{name: load_number(value, name) for name, value in manifest["method"].items()}
    )
    chosen = "chosen" in manifest
    wanted = [] if chosen else preferences_of(config, method, manifest["m"])
    return Plan(setup, method, wanted, config, manifest)
