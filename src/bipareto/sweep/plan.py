"""From a configuration to what is run: the problem and its starts, the method and its numbers, the
preferences, the slices.

All that decides a number is decided here, once, when a sweep begins; a plan can be read back from
its run folder.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput, NotBatchable
from bipareto.fronts.batch import SLICE
from bipareto.methods import METHODS, Method
from bipareto.methods.base import State
from bipareto.methods.parts.preferences import as_preference, grid, named
from bipareto.problem import Problem, tree
from bipareto.problem.draws import draw
from bipareto.problem.tree import Tree
from bipareto.problems import KnownProblem, get, options
from bipareto.run.loop import COMPILE_FROM
from bipareto.run.steppers import stepper
from bipareto.sweep import engines
from bipareto.sweep.config import MethodConfig, ProblemConfig, SweepConfig, load
from bipareto.sweep.store import RunFolder
from bipareto.sweep.typed import check_options, dump_number, load_number

__all__ = [
    "Plan",
    "Setup",
    "begin",
    "build",
    "method_of",
    "preferences_of",
    "read_plan",
    "versions",
]

#: What a run needs at the height of a step, in multiples of its state: gradients, graph and
#: records.
PER_RUN = 40


class Setup(NamedTuple):
    """A problem and where its runs start, for each seed of a sweep."""

    problem: Problem
    starts: list[tuple[Tree, Tree]]

    @property
    def known(self) -> KnownProblem | None:
        """The problem as one with a known front, or None."""
        return self.problem if isinstance(self.problem, KnownProblem) else None


def build(config: ProblemConfig, seeds: Sequence[int]) -> Setup:
    """The problem of a configuration.

    Args:
        config: its name and options.
        seeds: one start is made for each.
    """
    if ":" in config.name:
        problem, x0, y0 = _user_problem(config)
        if config.starts == "random":
            raise InvalidInput(
                "problem.starts is 'random', which only known problems have; use fixed, or draw "
                "the start in your function"
            )
        return Setup(problem, [(x0, y0)] * len(seeds))
    check_options(
        "problem.options", f"problem {config.name!r}", config.options, options(config.name)
    )
    with _naming("problem.options", config.options):
        known = get(config.name, **config.options)
    return Setup(
        known,
        [
            known.start(seed) if config.starts == "random" else (known.x0, known.y0)
            for seed in seeds
        ],
    )


@contextmanager
def _naming(path: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Give errors of what is built from a section the name of that section."""
    try:
        yield
    except (
        InvalidInput,
        TypeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(f"{path} {dict(given)!r} cannot be used: {text}") from error


def _user_problem(config: ProblemConfig) -> tuple[Problem, Tree, Tree]:
    module, _, name = config.name.partition(":")
    try:
        make: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"problem.name {config.name!r} cannot be imported ({error}); write "
            "package.module:function"
        ) from error
    with _naming("problem.options", config.options):
        made = make(**config.options)
    if not (isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], Problem)):
        raise InvalidInput(
            f"problem.name {config.name!r} returned {type(made).__name__}; it must return "
            "(problem, x0, y0)"
        )
    return made


def method_of(config: MethodConfig, setup: Setup, steps: int) -> Method:
    """The method with its numbers: tuned, plain or the paper's, with those of `set` on top."""
    if config.name not in METHODS:
        raise InvalidInput(f"method.name is {config.name!r}; choose one of {', '.join(METHODS)}")
    kind = METHODS[config.name]
    check_options(
        "method.set",
        f"method {config.name!r}",
        config.set,
        {f.name: f.default for f in fields(kind) if f.default is not MISSING},
    )
    x0, y0 = (setup.known.x0, setup.known.y0) if setup.known else setup.starts[0]
    with _naming(f"method.set (numbers: {config.numbers})", config.set):
        if config.numbers == "tuned":
            start = kind.tuned(setup.problem, x0, y0, steps=steps)
        elif config.numbers == "plain":
            start = kind()
        elif hasattr(kind, "paper"):
            start = kind.paper()
        else:
            raise InvalidInput(f"{config.name} has no numbers of a paper; use plain")
        return replace(start, **config.set)


def preferences_of(config: SweepConfig, method: Method, m: int) -> list[Tensor | None]:
    """One vector per run of a seed; [None] for a method without preferences."""
    if not method.uses_preference:
        if config.preferences.vectors is not None:
            raise InvalidInput(
                f"preferences.vectors is given, but {config.method.name} has no preferences; leave "
                "it out"
            )
        return [None]
    given = config.preferences
    if given.vectors is None and given.family == "das-dennis":
        return list(grid(m, given.count, boundary=given.boundary))
    if given.vectors is None:
        return list(named(f"random:{given.count}" if given.family == "random" else given.family, m))
    with _naming("preferences.vectors", {"vectors": given.vectors}):
        return list(as_preference(given.vectors, m).reshape(-1, m))


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

    def states(self, runs: Sequence[int]) -> list[State]:
        """The first state of each of these runs."""
        per_seed = len(self.preferences)
        starts = {
            s: self.method.prepare(self.setup.problem, *self.setup.starts[s])
            for s in {run // per_seed for run in runs}
        }
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", BiparetoWarning
            )  # zeros were warned of when the preferences were made
            return [
                self.method.begin(starts[run // per_seed], self.preferences[run % per_seed])
                for run in runs
            ]

    def seeds(self, runs: Sequence[int]) -> list[int]:
        """The seed of each of these runs."""
        return [self.config.seeds[run // len(self.preferences)] for run in runs]


def begin(config: SweepConfig) -> tuple[Plan, dict[str, Any]]:
    """Decide all that decides numbers."""
    setup = build(config.problem, config.seeds)
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
    size = min(size, runs)
    manifest = {
        "format": 1,
        "runs": runs,
        "m": m,
        "slice": size,
        "slices": math.ceil(runs / size),
        "batched": batched,
        "steps": config.steps,
        "threads": config.threads,
        "compile": config.steps >= COMPILE_FROM[batched]
        if config.compile is None
        else config.compile,
        "dtype": str(start.objectives.dtype),
        "device": str(start.objectives.device),
        "method": {f.name: dump_number(getattr(method, f.name)) for f in fields(method)},
        "versions": versions(),
    }
    return Plan(setup, method, wanted, config, manifest), manifest


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
    for name in ("bipareto", "torch", "numpy", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def read_plan(folder: RunFolder) -> Plan:
    """The plan of a run that was begun."""
    # The text is part of the key: a folder may be removed and made anew within one process.
    return _plan_of(folder.path, (folder.path / "manifest.json").read_text("utf-8"))


@lru_cache(maxsize=4)
def _plan_of(path: Path, manifest_text: str) -> Plan:
    """A plan read back from its folder; kept, since compiled steps belong to the problem."""
    config, manifest = load(SweepConfig, RunFolder(path).config), json.loads(manifest_text)
    setup = build(config.problem, config.seeds)
    method = METHODS[config.method.name](
        **{name: load_number(value, name) for name, value in manifest["method"].items()}
    )
    return Plan(setup, method, preferences_of(config, method, manifest["m"]), config, manifest)
