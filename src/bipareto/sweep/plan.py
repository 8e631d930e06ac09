"""From a configuration to what is run: the problem and its starts, the method and its numbers, the
preferences, the slices.

All that decides a number is decided here, once, when a sweep begins; a plan can be read back from
its run folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput, NotBatchable
from bipareto.fronts.batch import SLICE
from bipareto.methods import METHODS, Method, Twin
from bipareto.methods.base import State
from bipareto.methods.parts.preferences import as_preference, grid, named
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problems import KnownProblem, get, options
from bipareto.run.loop import method_kind, pays_to_compile
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto.sweep import engines
from bipareto.sweep.config import MethodConfig, ProblemConfig, SweepConfig, load
from bipareto.sweep.durable import version_of
from bipareto.sweep.grammar import dump_number, load_number
from bipareto.sweep.store import RunFolder
from bipareto.sweep.typed import check_options


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
        if config.starts != "fixed":
            raise InvalidInput(
                f"problem.starts is {config.starts!r}, which only known problems have; use fixed, "
                "or draw the start in your function"
            )
        return Setup(problem, [(x0, y0)] * len(seeds))
    check_options(
        "problem.options", f"problem {config.name!r}", config.options, options(config.name)
    )
    with _naming("problem.options", config.options):
        known = get(config.name, **config.options)
    if config.starts == "fixed":
        return Setup(known, [(known.x0, known.y0)] * len(seeds))
    return Setup(
        known, [known.start(seed if config.starts == "random" else config.starts) for seed in seeds]
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


def foretold(config: ProblemConfig) -> str | None:
    """The code that `build` would import and call, and its file, in words; None for a known
    problem.  Nothing is imported to say it.
    """
    if ":" not in config.name:
        return None
    module, _, name = config.name.partition(":")
    _look_here()
    spec = None
    with suppress(ImportError, ValueError):
        # Of a package alone: to find a module inside it would import it.
        spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        where = "which is not found"
    else:
        where = spec.origin or ", ".join(spec.submodule_search_locations or ["a namespace"])
    given = ", ".join(f"{key}={value!r}" for key, value in config.options.items())
    return f"the problem is code: {module} ({where}) is imported and {name}({given}) called"


def _look_here() -> None:
    """As `python -m` does: a problem in a file of the folder at hand is found."""
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)


def _user_problem(config: ProblemConfig) -> tuple[Problem, Tree, Tree]:
    module, _, name = config.name.partition(":")
    _look_here()
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


def chosen(config: SweepConfig, setup: Setup) -> SweepConfig:
    """The configuration with "auto" replaced by the method that suits the problem."""
    if config.method.name != "auto":
        return config
    return replace(config, method=replace(config.method, name=auto(setup.problem)))


def auto(problem: Problem) -> str:
    """The name of the method that suits a problem."""
    return next(name for name, kind in METHODS.items() if kind is method_kind(problem))


def races(config: SweepConfig, setup: Setup) -> bool:
    """Whether `front` finds the hyperparameters by a race: none are given, and data comes in
    batches.  Such a front is made in one piece.
    """
    method = chosen(config, setup).method
    given = method.hyperparameters != "tuned" or method.set
    fixed = given or config.preferences.family == "adaptive"
    return method.name == "twin" and not fixed and method_kind(setup.problem) is Twin


def method_of(config: MethodConfig, setup: Setup, steps: int) -> Method:
    """The method, its hyperparameters tuned, plain or the paper's, with those of `set` on top."""
    if config.name == "auto":
        config = replace(config, name=auto(setup.problem))
    if config.name not in METHODS:
        known = ", ".join(METHODS)
        raise InvalidInput(f"method.name is {config.name!r}; choose auto, or one of {known}")
    kind = METHODS[config.name]
    check_options(
        "method.set",
        f"method {config.name!r}",
        config.set,
        {f.name: f.default for f in fields(kind) if f.default is not MISSING},
    )
    x0, y0 = (setup.known.x0, setup.known.y0) if setup.known else setup.starts[0]
    with _naming(f"method.set (hyperparameters: {config.hyperparameters})", config.set):
        if config.hyperparameters == "tuned":
            start = kind.tuned(setup.problem, x0, y0, steps=steps)
        elif config.hyperparameters == "plain":
            start = kind()
        elif hasattr(kind, "paper"):
            start = kind.paper()
        else:
            raise InvalidInput(f"{config.name} has no hyperparameters of a paper; use plain")
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
        manifest_of(config, method, start, runs, min(size, runs), batched),
    )


def manifest_of(
    config: SweepConfig, method: Method, start: Any, runs: int, size: int, batched: bool
) -> dict[str, Any]:
    """What was decided, as JSON.

    Args:
        config: what was asked for.
        method: with its hyperparameters.
        start: a point with its x, y and objectives (m,), for their sizes, dtype and device.
        runs: how many.
        size: of a slice.
        batched: whether the runs of a slice are stepped side by side.
    """
    objectives, numbers = start.objectives, tree.numel((start.x, start.y))
    together = size * numbers if batched else numbers
    compiles = pays_to_compile(config.steps, together, batched, objectives.device)
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
    """As many runs side by side as a quarter of the memory holds, one slice per worker at least."""
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
