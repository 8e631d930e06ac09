"""The typed configuration of a sweep, and its YAML form.

A file may leave out everything but the problem's name:

    problem: {name: pl-sin2, options: {dim: 100}}
    method: {name: momeha, hyperparameters: tuned, set: {mu: 8, c: {power: [5, 0.45]}}}
    preferences: {count: 64}
    seeds: [0, 1, 2]
    steps: 20000

What a file may hold is read off the dataclasses below, so a key that they do not have, or a value
of another kind, is refused with its path, what was found and what to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

from bipareto.errors import InvalidInput, installed
from bipareto.sweep.grammar import dump_number, require
from bipareto.sweep.typed import RENAMED, parse

T = TypeVar("T")
#: the engines of this package
ENGINE_NAMES = ("local", "processes", "ray")


class _Section:
    """A part of a configuration, which refuses what it cannot hold when it is made."""

    #: what its keys are called by in messages, e.g. "engine."
    path = ""

    def _require(self, holds: bool, name: str, wanted: str) -> None:
        found = getattr(self, name)
        shown = list(found) if isinstance(found, tuple) else found
        require(holds, self.path + name, shown, wanted)


@dataclass(frozen=True)
class ProblemConfig(_Section):
    """Which problem: one of `bipareto list`, or "module:function", a function of the options that
    returns (problem, x0, y0).
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    #: "fixed" starts every seed at the problem's own start; known problems also have "random", one
    #: drawn from the seed, and N, their N-th random start for every seed
    starts: Literal["fixed", "random"] | int = "fixed"


@dataclass(frozen=True)
class MethodConfig(_Section):
    """Which method ("auto" is the one that `bipareto.front` would choose for the problem), where
    its hyperparameters come from, and those that are given.
    """

    name: str = "auto"
    hyperparameters: Literal["tuned", "plain", "paper"] = "tuned"
    set: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreferencesConfig(_Section):
    """A family of preferences (see `preferences.named`) or the given vectors.

    "das-dennis" is a regular grid with `count` preferences along each edge of the simplex, "random"
    draws `count` of them; the paper's strengths have one vector per objective.  "adaptive" chooses
    them on the way, for the work of `budget` full runs; such a front is made in one piece, without
    checkpoints.
    """

    path = "preferences."
    family: Literal["das-dennis", "random", "weak", "moderate", "strong", "extreme", "adaptive"] = (
        "das-dennis"
    )
    count: int = 11
    boundary: bool = False
    vectors: tuple[tuple[float, ...], ...] | None = None
    budget: int | None = None

    def __post_init__(self) -> None:
        least, adaptive = 2 if self.boundary else 1, self.family == "adaptive"
        self._require(self.count >= least, "count", "at least 1 (2 with boundary: true)")
        fits = (self.budget is not None) == adaptive
        self._require(fits, "budget", "given with family: adaptive, and only there")
        if self.vectors is not None:
            some = len(self.vectors) > 0 and all(self.vectors)
            self._require(some, "vectors", "a list of vectors, e.g. [[0.7, 0.3]]")
            one = len({len(w) for w in self.vectors}) == 1
            self._require(one, "vectors", "a list of vectors of one length")


@dataclass(frozen=True)
class EngineConfig(_Section):
    """Where slices are executed; it changes no number, so a run may be resumed with another."""

    path = "engine."
    #: local, processes, ray, or the engine of another package
    name: str = "local"
    #: worker processes, or Ray tasks at a time; null for one per core
    workers: int | None = None
    #: a Ray cluster, e.g. "auto"; null starts one on this machine
    address: str | None = None
    #: GPUs of one Ray task, fractions allowed
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ENGINE_NAMES:
            from bipareto.problem.plugins import declared  # the package loads torch: not for --help

            known = [*ENGINE_NAMES, *declared("engines")]
            self._require(self.name in known, "name", f"one of {', '.join(known)}")
        enough = self.workers is None or self.workers >= 1
        self._require(enough, "workers", "at least 1, or null for one per core")
        self._require(self.gpus >= 0, "gpus", "0 or more")


@dataclass(frozen=True)
class CheckpointConfig(_Section):
    """How often the middle of a slice is saved, and how many of these files are kept."""

    path = "checkpoint."
    seconds: float = 30.0
    keep: int = 3

    def __post_init__(self) -> None:
        self._require(self.seconds >= 0, "seconds", "0 (after every record) or more")
        self._require(self.keep >= 1, "keep", "at least 1")


@dataclass(frozen=True)
class SweepConfig(_Section):
    """A front: a problem, a method, preferences and seeds, and how they are run."""

    problem: ProblemConfig
    method: MethodConfig = MethodConfig()
    preferences: PreferencesConfig = PreferencesConfig()
    seeds: tuple[int, ...] = (0,)
    steps: int = 20_000
    record_every: int | None = None
    tol: float | None = None
    #: true, false or a backend's name; null compiles when it pays
    compile: bool | str | None = None
    #: runs that are stepped side by side; null sizes slices to the memory
    slice: int | None = None
    #: of each slice; the last bits of a front may depend on it
    threads: int = 1
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    #: also send records to RUN/tensorboard, MLflow or Weights & Biases; changes no number
    track: Literal["tensorboard", "mlflow", "wandb"] | None = None

    def __post_init__(self) -> None:
        seeds, every = self.seeds, self.record_every
        self._require(len(seeds) > 0, "seeds", "a list of at least one whole number, e.g. [0]")
        whole = all(0 <= seed < 2**63 for seed in seeds)
        self._require(whole, "seeds", "whole numbers from 0 to 2^63 - 1")
        self._require(len(set(seeds)) == len(seeds), "seeds", "different from each other")
        self._require(self.steps >= 1, "steps", "at least 1")
        self._require(every is None or every >= 1, "record_every", "at least 1, or null")
        self._require(self.tol is None or self.tol > 0, "tol", "above 0, or null")
        self._require(self.slice is None or self.slice >= 1, "slice", "at least 1, or null")
        self._require(self.threads >= 1, "threads", "at least 1")


@dataclass(frozen=True)
class SearchConfig(_Section):
    """The values of one number: low to high (log for a logarithmic scale), or a list of choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if self.choices is not None:
            alone = len(self.choices) > 0 and low is None and high is None
            self._require(alone, "choices", "a list without low and high")
        else:
            ordered = low is not None and high is not None and low < high
            self._require(ordered, "low", "below high; or give choices")
            self._require(not self.log or (low or 0) > 0, "low", "above 0 on a logarithmic scale")


@dataclass(frozen=True)
class TuneConfig(_Section):
    """A search: the sweep of one trial, and which of the method's hyperparameters vary."""

    sweep: SweepConfig
    space: Mapping[str, SearchConfig]
    trials: int = 32
    #: trials that run side by side
    batch: int = 8
    measure: Literal["hypervolume", "igd_plus", "spread"] = "hypervolume"
    reference: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        wanted = "a mapping from a hyperparameter to its values, e.g. mu: {low: 1, high: 16}"
        self._require(len(self.space) > 0, "space", wanted)
        self._require(self.trials >= 1, "trials", "at least 1")
        self._require(self.batch >= 1, "batch", "at least 1")
        self._require(0 <= self.seed < 2**32, "seed", "from 0 to 2^32 - 1")


def to_dict(value: Any) -> Any:
    """A configuration as plain data: what `parse` reads."""
    if isinstance(value, _Section):
        return {item.name: to_dict(getattr(value, item.name)) for item in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    return dump_number(value)


def _yaml() -> Any:
    remedy = "configurations are YAML files, which need pyyaml; get it with: pip install pyyaml"
    return installed("yaml", remedy)


def dump(config: Any) -> str:
    """The YAML text of a configuration, every key written out."""
    return _yaml().safe_dump(
        to_dict(config), sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )


def load(kind: type[T], source: str | PathLike[str]) -> T:
    """Read a configuration file."""
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} cannot be read as a configuration ({error}); pass a YAML file"
        ) from error
    yaml = _yaml()
    try:
        data = yaml.load(text, Loader=_loader(yaml))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is not YAML ({' '.join(str(error).split())}); write key: value lines"
        ) from error
    if (path.parent / "manifest.json").exists():
        data = _as_now(data)
    try:
        return parse(kind, data)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _as_now(data: Any) -> Any:
    """The configuration in a run folder of an earlier version, with today's keys."""
    method = data.get("method") if isinstance(data, dict) else None
    if not isinstance(method, dict) or "numbers" not in method:
        return data
    return data | {"method": {RENAMED.get(key, key): value for key, value in method.items()}}


def _loader(yaml: Any) -> Any:
    """YAML 1.1 takes 1e-3 for text, and the last of two equal keys without a word."""
    import re

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = [key for i, key in enumerate(keys) if key in keys[:i]]
            if twice:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {twice[0]!r} occurs twice", node.start_mark
                )
            return super().construct_mapping(node, deep)

    number = re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader
