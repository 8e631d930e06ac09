"""Plain data against the annotations of a dataclass, and hyperparameters as plain data.

What does not fit is refused with its path, what was found and what to write.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bipareto.errors import InvalidInput
from bipareto.sweep.grammar import dump_number, load_number, refuse

T = TypeVar("T")
#: Keys of earlier versions, and what they are called now.
RENAMED = {"numbers": "hyperparameters"}


def parse(kind: type[T], data: Any) -> T:
    """A configuration from plain data.

    >>> from dataclasses import make_dataclass
    >>> parse(
    ...     make_dataclass("Walk", [("steps", int)]), {"stpes": 10}
    ... )  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    bipareto.errors.InvalidInput: stpes is not a key that is known here; did you mean steps? ...
    """
    return _read(kind, data, "")


def _read(kind: Any, data: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _read_dataclass(kind, data, path)
    if origin in (Union, types.UnionType):
        return _read_union(arguments, data, path)
    if origin is Literal:
        return (
            data
            if isinstance(data, str) and data in arguments
            else refuse(path, data, f"one of {', '.join(arguments)}")
        )
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            return refuse(path, data, f"a list, each entry {_name(arguments[0])}")
        return tuple(_read(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(arguments[1], data, path)
    return _read_scalar(kind, data, path)


def _read_dataclass(kind: Any, data: Any, path: str) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(data, Mapping):
        return refuse(path, data, f"a mapping with the keys {', '.join(hints)}")
    for key in data:
        if key not in hints:
            if RENAMED.get(str(key)) in hints:
                raise InvalidInput(f"{_join(path, key)} is called {RENAMED[key]} now; rename it")
            near = get_close_matches(str(key), hints, n=1)
            hint = f"did you mean {near[0]}? The" if near else "the"
            shown = [*list(hints)[:3], "..."] if near and len(hints) > 3 else list(hints)
            raise InvalidInput(
                f"{_join(path, key)} is not a key that is known here; {hint} keys are "
                f"{', '.join(shown)}"
            )
    for item in fields(kind):
        if item.name not in data and item.default is MISSING and item.default_factory is MISSING:
            raise InvalidInput(
                f"{_join(path, item.name)} is missing; add it: {_name(hints[item.name])}"
            )
    values = {key: _read(hints[key], value, _join(path, key)) for key, value in data.items()}
    try:
        return kind(**values)
    except InvalidInput as error:
        # A nested value knows its own section only.
        text, section = str(error), path.partition(".")[0]
        raise InvalidInput(
            text if not path or text.startswith(section) else f"{path}: {text}"
        ) from None


def _read_mapping(kind: Any, data: Any, path: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        return refuse(path, data, "a mapping from names to values")
    for key in data:
        if not isinstance(key, str):
            raise InvalidInput(f"{_join(path, key)} has a key that is no text; write a name")
    return {
        key: load_number(value, _join(path, key))
        if kind is Any
        else _read(kind, value, _join(path, key))
        for key, value in data.items()
    }


def _read_union(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    rest = [kind for kind in kinds if kind is not types.NoneType]
    for kind in rest:
        takes_text = kind is str or get_origin(kind) is Literal
        if (kind is bool) == isinstance(data, bool) and takes_text == isinstance(data, str):
            return _read(kind, data, path)
    return refuse(path, data, " or ".join(map(_name, kinds)))


def _read_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            number = float(data)
        except OverflowError:
            number = math.inf
        return number if math.isfinite(number) else refuse(path, data, "a finite number")
    if kind is not float and type(data) is kind:
        return data
    return refuse(path, data, _name(kind))


def _name(kind: Any) -> str:
    plain = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        types.NoneType: "null",
    }
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


def wanted(default: Any, value: Any) -> str | None:
    """What an option's value should have been, judged by the default; None where it may be right.

    A vector or a schedule may stand where a number is the default.

    >>> wanted(20, 2.5), wanted(0.1, (0.7, 0.3)), wanted(True, 1)
    ('a whole number', None, 'true or false')
    """
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(default, (float, tuple)):
        right = isinstance(value, (int, float, tuple)) and not isinstance(value, bool)
        return (
            None
            if right and not (isinstance(value, float) and not math.isfinite(value))
            else "a number"
        )
    if isinstance(default, str):
        return None if isinstance(value, str) else "text"
    return None


def check_options(
    path: str, owner: str, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Refuse options that their owner does not have, or of a kind that the default rules out."""
    for key, value in given.items():
        where = _join(path, key)
        if key not in defaults:
            raise InvalidInput(
                f"{where} is not known to {owner}; choose from {', '.join(defaults)}"
            )
        kind = wanted(defaults[key], value)
        if kind is not None:
            more = ", a list or a form such as {power: [5, 0.45]}" if kind == "a number" else ""
            refuse(where, dump_number(value), f"{kind}{more}, e.g. {dump_number(defaults[key])}")
