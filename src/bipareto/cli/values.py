"""Values as people write them on the command line, and the way back.

Numbers, fractions (1/3), vectors (0.7,0.3), true and false, words, and the small values of the
library: schedules such as power(5,0.45), ideal points such as tracked(0.1), hypergradients such as
cg(20,1e-8).  What `show` prints, `parse` reads.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bipareto.errors import InvalidInput
from bipareto.sweep import typed

__all__ = ["finite", "names", "numbers", "pairs", "parse", "seeds", "show"]

_WORDS = {"true": True, "false": False, "none": None}


def parse(text: str) -> Any:
    """One value.

    >>> parse("1/4"), parse("0.7,0.3"), parse("true"), parse("linear")
    (0.25, (0.7, 0.3), True, 'linear')
    >>> parse("power(5, 0.45)")
    Power(scale=5, power=0.45)
    """
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, _NotAValue):
        return text


class _NotAValue(Exception):
    """The text is Python but no value; it is taken as a word."""


def _evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _WORDS.get(name.lower(), name)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_evaluate(part) for part in parts)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right) if _number(right) != 0:
            return _number(left) / _number(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _form(name, [_evaluate(argument) for argument in arguments])
    raise _NotAValue


def _number(node: ast.expr) -> float:
    value = _evaluate(node)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NotAValue
    return value


def _form(name: str, arguments: list[Any]) -> Any:
    known = typed.forms()
    if name.lower() not in known:
        raise InvalidInput(
            f"{name}(...) is not known; choose one of {', '.join(f'{form}(...)' for form in known)}"
        )
    form = known[name.lower()]
    try:
        return form(*arguments)
    except TypeError as error:
        wanted = inspect.signature(form).parameters
        raise InvalidInput(
            f"{name} was given {len(arguments)} values; write {name}({', '.join(wanted)})"
        ) from error


def show(value: Any) -> Any:
    """A method's number as JSON: numbers stay numbers, a constant schedule is its number, others
    are the text `parse` reads.

    >>> from bipareto.methods.parts.schedule import Constant, Power
    >>> show(Constant(0.1)), show(Power(5.0, 0.45))
    (0.1, 'power(5.0,0.45)')
    """
    kind = type(value).__name__
    if kind in ("Constant", "Fixed"):
        return show(value[0])
    if is_dataclass(value):
        return _call(kind, [getattr(value, field.name) for field in fields(value)])
    if isinstance(value, tuple):
        return _call(kind, value) if hasattr(value, "_fields") else [show(part) for part in value]
    return value


def _call(kind: str, parts: Iterable[Any]) -> str:
    return f"{kind.lower()}({','.join(str(show(part)) for part in parts)})"


def numbers(text: str, name: str) -> list[float]:
    """Comma-separated numbers.

    >>> numbers(".7,.3", "--preference")
    [0.7, 0.3]
    """
    value = parse(text)
    found = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(number, (int, float)) for number in found):
        raise InvalidInput(
            f"{name} {text!r} is not a list of numbers; write them with commas, e.g. 0.7,0.3"
        )
    return [float(number) for number in found]


def seeds(texts: Iterable[str]) -> list[int]:
    """Seeds from an option that may be repeated and may hold commas.

    >>> seeds(["0,1", "7"])
    [0, 1, 7]
    """
    try:
        return [int(part) for text in texts for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(
            f"--seed {' '.join(texts)!r} is not a list of whole numbers; write e.g. --seed 0,1,2"
        ) from error


def names(texts: Iterable[str]) -> list[str]:
    """Words separated by commas, from one option or several.

    >>> names(["weak,moderate", "strong"])
    ['weak', 'moderate', 'strong']
    """
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def pairs(
    texts: Iterable[str], flag: str, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """key=value options as a dict, their keys and kinds checked against the defaults.

    Args:
        texts: what was written.
        flag: the option it was written with, for messages.
        owner: whose options these are, for messages.
        defaults: every key there is, with its default value.

    >>> pairs(["dim=20", "kappa=3/2"], "-o", "pl-sin2", {"dim": 20, "kappa": 1.5})
    {'dim': 20, 'kappa': 1.5}
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InvalidInput(
                f"{flag} {text!r} is not of the form key=value, e.g. {flag} "
                f"{next(iter(defaults))}={show(next(iter(defaults.values())))}"
            )
        if key not in defaults:
            raise InvalidInput(f"{owner} has no {key!r}; choose one of {', '.join(defaults)}")
        found[key] = parse(value)
        if (kind := typed.wanted(defaults[key], found[key])) is not None:
            raise InvalidInput(
                f"{flag} {text!r}: {key} must be {kind}, e.g. {key}={show(defaults[key])}"
            )
    return found


def finite(value: Any) -> Any:
    """Data for JSON, which knows no NaN and no infinity: these become null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
