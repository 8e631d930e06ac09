"""The typed configuration of a sweep, and its YAML form.

A file may leave out everything but the problem's name:

    problem: {name: pl-sin2, options: {dim: 100}}
    method: {name: momeha, numbers: tuned, set: {mu: 8, c: {power: [5, 0.45]}}}
    preferences: {count: 64}
    seeds: [0, 1, 2]
    steps: 20000

What a file may hold is read off the dataclasses below, so a key that they do not have, or a value of another kind, is
refused with its path, what was found and what to write.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bipareto.errors import InvalidInput

__all__ = [
    "CheckpointConfig",
    "EngineConfig",
    "MethodConfig",
    "PreferencesConfig",
    "ProblemConfig",
    "SearchConfig",
    "SweepConfig",
    "TuneConfig",
    "check_options",
    "dump",
    "dump_number",
    "load",
    "load_number",
    "parse",
    "require_yaml",
    "to_dict",
]

T = TypeVar("T")


def _require(holds: bool, path: str, found: Any, wanted: str) -> None:
    if not holds:
        raise InvalidInput(f"{path} is {_show(found)}; it must be {wanted}")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class ProblemConfig:
    """Which problem: one of `bipareto list`, or "module:function", a function of the options that returns (problem, x0, y0)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    #: "fixed" starts every seed at the problem's own start, "random" at one drawn from the seed (known problems only)
    starts: Literal["fixed", "random"] = "fixed"


@dataclass(frozen=True)
class MethodConfig:
    """Which method, where its numbers come from, and those that are given."""

    name: str = "momeha"
    numbers: Literal["tuned", "plain", "paper"] = "tuned"
    set: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreferencesConfig:
    """A family of preferences (see `preferences.named`) or the given vectors.

    "das-dennis" is a regular grid with `count` preferences along each edge of the simplex, "random" draws `count` of them; the
    paper's strengths have one vector per objective.
    """

    family: Literal["das-dennis", "random", "weak", "moderate", "strong", "extreme"] = "das-dennis"
    count: int = 11
    boundary: bool = False
    vectors: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        _require(self.count >= (2 if self.boundary else 1), "preferences.count", self.count, "at least 1 (2 with boundary: true)")
        if self.vectors is not None:
            _require(len(self.vectors) > 0 and all(self.vectors), "preferences.vectors", list(self.vectors), "a list of vectors, e.g. [[0.7, 0.3]]")
            _require(len({len(w) for w in self.vectors}) == 1, "preferences.vectors", list(self.vectors), "a list of vectors of one length")


@dataclass(frozen=True)
class EngineConfig:
    """Where slices are executed.  It changes no number, so a run may be resumed with another one."""

    name: Literal["local", "processes", "ray"] = "local"
    #: worker processes, or Ray tasks at a time; null for one per core
    workers: int | None = None
    #: a Ray cluster, e.g. "auto"; null starts one on this machine
    address: str | None = None
    #: GPUs of one Ray task, fractions allowed
    gpus: float = 0.0

    def __post_init__(self) -> None:
        _require(self.workers is None or self.workers >= 1, "engine.workers", self.workers, "at least 1, or null for one per core")
        _require(self.gpus >= 0, "engine.gpus", self.gpus, "0 or more")


@dataclass(frozen=True)
class CheckpointConfig:
    """How often the middle of a slice is saved, and how many of these files are kept."""

    seconds: float = 30.0
    keep: int = 3

    def __post_init__(self) -> None:
        _require(self.seconds >= 0, "checkpoint.seconds", self.seconds, "0 (after every record) or more")
        _require(self.keep >= 1, "checkpoint.keep", self.keep, "at least 1")


@dataclass(frozen=True)
class SweepConfig:
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

    def __post_init__(self) -> None:
        _require(len(self.seeds) > 0, "seeds", list(self.seeds), "a list of at least one whole number, e.g. [0]")
        _require(all(0 <= seed < 2**63 for seed in self.seeds), "seeds", list(self.seeds), "whole numbers from 0 to 2^63 - 1")
        _require(len(set(self.seeds)) == len(self.seeds), "seeds", list(self.seeds), "different from each other")
        _require(self.steps >= 1, "steps", self.steps, "at least 1")
        _require(self.record_every is None or self.record_every >= 1, "record_every", self.record_every, "at least 1, or null")
        _require(self.tol is None or self.tol > 0, "tol", self.tol, "above 0, or null")
        _require(self.slice is None or self.slice >= 1, "slice", self.slice, "at least 1, or null")
        _require(self.threads >= 1, "threads", self.threads, "at least 1")


@dataclass(frozen=True)
class SearchConfig:
    """The values of one number: low to high (log for a logarithmic scale), or a list of choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.choices is not None:
            _require(len(self.choices) > 0 and self.low is None and self.high is None, "choices", list(self.choices), "a list without low and high")
        else:
            _require(self.low is not None and self.high is not None and self.low < self.high, "low", self.low, "below high; or give choices")
            _require(not self.log or (self.low or 0) > 0, "low", self.low, "above 0 on a logarithmic scale")


@dataclass(frozen=True)
class TuneConfig:
    """A search: the sweep of one trial, and which of the method's numbers vary."""

    sweep: SweepConfig
    space: Mapping[str, SearchConfig]
    trials: int = 32
    #: trials that run side by side
    batch: int = 8
    measure: Literal["hypervolume", "igd_plus", "spread"] = "hypervolume"
    reference: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _require(len(self.space) > 0, "space", dict(self.space), "a mapping from a number of the method to its values, e.g. mu: {low: 1, high: 16}")
        _require(self.trials >= 1, "trials", self.trials, "at least 1")
        _require(self.batch >= 1, "batch", self.batch, "at least 1")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2^32 - 1")


# Reading: data against the annotations of a dataclass.


def parse(kind: type[T], data: Any) -> T:
    """A configuration from plain data.

    >>> parse(SweepConfig, {"problem": {"name": "pl-sin2"}, "stpes": 10})
    Traceback (most recent call last):
    bipareto.errors.InvalidInput: stpes is not a key that is known here; did you mean steps? The keys are problem, method, preferences, ...
    """
    return _read(kind, data, "")


def _read(kind: Any, data: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _read_dataclass(kind, data, path)
    if origin in (Union, types.UnionType):
        return _read_union(arguments, data, path)
    if origin is Literal:
        return data if isinstance(data, str) and data in arguments else _refuse(path, data, f"one of {', '.join(arguments)}")
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            return _refuse(path, data, f"a list, each entry {_name(arguments[0])}")
        return tuple(_read(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(arguments[1], data, path)
    return _read_scalar(kind, data, path)


def _read_dataclass(kind: Any, data: Any, path: str) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(data, Mapping):
        return _refuse(path, data, f"a mapping with the keys {', '.join(hints)}")
    for key in data:
        if key not in hints:
            near = get_close_matches(str(key), hints, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            shown = [*list(hints)[:3], "..."] if near and len(hints) > 3 else list(hints)
            raise InvalidInput(f"{_join(path, key)} is not a key that is known here; {hint}The keys are {', '.join(shown)}")
    for item in fields(kind):
        if item.name not in data and item.default is MISSING and item.default_factory is MISSING:
            raise InvalidInput(f"{_join(path, item.name)} is missing; add it: {_name(hints[item.name])}")
    values = {key: _read(hints[key], value, _join(path, key)) for key, value in data.items()}
    try:
        return kind(**values)
    except InvalidInput as error:
        # A nested value knows its own section only.
        text, section = str(error), path.partition(".")[0]
        raise InvalidInput(text if not path or text.startswith(section) else f"{path}: {text}") from None


def _read_mapping(kind: Any, data: Any, path: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        return _refuse(path, data, "a mapping from names to values")
    for key in data:
        if not isinstance(key, str):
            raise InvalidInput(f"{_join(path, key)} has a key that is no text; write a name")
    return {key: load_number(value, _join(path, key)) if kind is Any else _read(kind, value, _join(path, key)) for key, value in data.items()}


def _read_union(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    rest = [kind for kind in kinds if kind is not types.NoneType]
    for kind in rest:
        if (kind is bool) == isinstance(data, bool) and (kind is str) == isinstance(data, str):
            return _read(kind, data, path)
    return _refuse(path, data, " or ".join(map(_name, kinds)))


def _read_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            number = float(data)
        except OverflowError:
            number = math.inf
        return number if math.isfinite(number) else _refuse(path, data, "a finite number")
    if kind is not float and type(data) is kind:
        return data
    return _refuse(path, data, _name(kind))


def _refuse(path: str, data: Any, wanted: str) -> Any:
    found = {str: "text", bool: "a truth value", type(None): "nothing", list: "a list", dict: "a mapping"}.get(type(data), type(data).__name__)
    hint = ", without the quotes" if isinstance(data, str) and "number" in wanted and _is_number(data) else ""
    raise InvalidInput(f"{path or 'the configuration'} is {_show(data)} ({found}); it must be {wanted}{hint}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _name(kind: Any) -> str:
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "null"}
    if kind in plain:
        return plain[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_name, arguments))
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list, each entry {_name(arguments[0])}"
    return "a mapping"


def _join(path: str, key: Any) -> str:
    shown = key if isinstance(key, str) else repr(key)
    return f"{path}.{shown}" if path else shown


# Numbers of methods and options of problems: plain values, and forms such as {power: [5, 0.45]}.


def _forms() -> dict[str, Callable[..., Any]]:
    from bipareto import hypergradient
    from bipareto.scalarization import Fixed, Tracked
    from bipareto.schedule import Complement, Constant, Power

    estimators = (hypergradient.CG, hypergradient.FiniteDifference, hypergradient.Neumann, hypergradient.Unrolled)
    return {form.__name__.lower(): form for form in (Constant, Power, Complement, Fixed, Tracked, *estimators)}


def load_number(value: Any, path: str) -> Any:
    """A number of a method as YAML writes it: a scalar, a list, or a form with its arguments, {power: [5, 0.45]}."""
    if isinstance(value, (list, tuple)):
        return tuple(load_number(item, f"{path}[{i}]") for i, item in enumerate(value))
    if not isinstance(value, Mapping):
        if value is not None and not isinstance(value, (bool, int, float, str)):
            return _refuse(path, value, "a number, a list, true, false, null or text")
        return value
    forms = _forms()
    if len(value) != 1 or next(iter(value)) not in forms:
        return _refuse(path, dict(value), f"a number, or one form with its arguments such as {{power: [5, 0.45]}}; the forms are {', '.join(forms)}")
    ((name, given),) = value.items()
    arguments = load_number(given, f"{path}.{name}")
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    if not all(isinstance(item, (int, float, tuple)) for item in arguments):
        return _refuse(f"{path}.{name}", given, "a list of numbers")
    try:
        return forms[name](*arguments)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = getattr(forms[name], "_fields", None) or [item.name for item in fields(forms[name])]  # type: ignore[arg-type]
        raise InvalidInput(f"{path}.{name} is {_show(given)}; write [{', '.join(wanted)}] ({error})") from error


def dump_number(value: Any) -> Any:
    """The way back: `load_number(dump_number(v), "")` equals v."""
    name = type(value).__name__.lower()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: [dump_number(getattr(value, item.name)) for item in fields(value)]}
    if hasattr(value, "_fields"):
        return {name: [dump_number(item) for item in value]}
    return [dump_number(item) for item in value] if isinstance(value, (list, tuple)) else value


def check_options(path: str, owner: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse options that their owner does not have, and those whose kind cannot be right, judged by the default."""
    for key, value in given.items():
        where = _join(path, key)
        if key not in defaults:
            raise InvalidInput(f"{where} is not known to {owner}; choose from {', '.join(defaults)}")
        default = defaults[key]
        if isinstance(default, bool):
            right, wanted = isinstance(value, bool), "true or false"
        elif isinstance(default, int):
            right, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        elif isinstance(default, (float, tuple)):
            # A vector or a schedule may stand where a number is the default.
            right, wanted = (
                isinstance(value, (int, float, tuple)) and not isinstance(value, bool),
                "a number, a list or a form such as {power: [5, 0.45]}",
            )
        elif isinstance(default, str):
            right, wanted = isinstance(value, str), "text"
        else:
            continue
        if not right or (isinstance(value, float) and not math.isfinite(value)):
            _refuse(where, dump_number(value), f"{wanted}, e.g. {dump_number(default)}")


# YAML.


def to_dict(value: Any) -> Any:
    """A configuration as plain data: what `parse` reads."""
    if isinstance(value, (ProblemConfig, MethodConfig, PreferencesConfig, EngineConfig, CheckpointConfig, SweepConfig, SearchConfig, TuneConfig)):
        return {item.name: to_dict(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    return dump_number(value)


def require_yaml() -> Any:
    """The yaml module, or an error that says how to get it."""
    try:
        import yaml
    except ImportError as error:
        raise InvalidInput("configurations are YAML files, which need pyyaml; get it with: pip install 'bipareto[store]'") from error
    return yaml


def dump(config: Any) -> str:
    """The YAML text of a configuration, every key written out."""
    return require_yaml().safe_dump(to_dict(config), sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def load(kind: type[T], source: str | PathLike[str]) -> T:
    """Read a configuration file."""
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as a configuration ({error}); pass a YAML file") from error
    yaml = require_yaml()
    try:
        data = yaml.load(text, Loader=_loader(yaml))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not YAML ({' '.join(str(error).split())}); write key: value lines") from error
    try:
        return parse(kind, data)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _loader(yaml: Any) -> Any:
    """YAML 1.1 takes 1e-3 for text, and the last of two equal keys without a word; both are surprises."""
    import re

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = [key for i, key in enumerate(keys) if key in keys[:i]]
            if twice:
                raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} occurs twice", node.start_mark)
            return super().construct_mapping(node, deep)

    number = re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader
