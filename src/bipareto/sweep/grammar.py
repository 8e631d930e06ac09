"""How hyperparameters and options are written, in files and on the command line.

Numbers, fractions (1/3), vectors (0.7,0.3), true and false, words, and the small values of the
library: schedules such as power(5,0.45), ideal points such as tracked(0.1), hypergradients such as
cg(20,1e-8).  What `show` prints, `parse` reads.  YAML may also write a form as {power: [5, 0.45]}.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bipareto.errors import InvalidInput


def require(holds: bool, path: str, found: Any, wanted: str) -> None:
    """Refuse what was found at a path unless the condition holds."""
    if not holds:
        raise InvalidInput(f"{path} is {_show(found)}; it must be {wanted}")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def refuse(path: str, data: Any, wanted: str) -> Any:
    """Raise an error that names the path, what was found there, and what it must be."""
    found = {
        str: "text",
        bool: "a truth value",
        type(None): "nothing",
        list: "a list",
        dict: "a mapping",
    }.get(type(data), type(data).__name__)
    hint = (
        ", without the quotes"
        if isinstance(data, str) and "number" in wanted and _is_number(data)
        else ""
    )
    raise InvalidInput(
        f"{path or 'the configuration'} is {_show(data)} ({found}); it must be {wanted}{hint}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def forms() -> dict[str, Callable[..., Any]]:
    """The library's small values by lower-case names: schedules, ideal points, hypergradients."""
    from bipareto.methods.parts import hypergradient
    from bipareto.methods.parts.scalarization import Fixed, Tracked
    from bipareto.methods.parts.schedule import Complement, Constant, Cosine, Delayed, Power

    estimators = (
        hypergradient.CG,
        hypergradient.FiniteDifference,
        hypergradient.Neumann,
        hypergradient.Unrolled,
    )
    return {
        form.__name__.lower(): form
        for form in (Constant, Power, Complement, Cosine, Delayed, Fixed, Tracked, *estimators)
    }


def load_number(value: Any, path: str) -> Any:
    """A number of a method as YAML writes it: a scalar, a list, or a form with its arguments,
    {power: [5, 0.45]}.
    """
    if isinstance(value, (list, tuple)):
        return tuple(load_number(item, f"{path}[{i}]") for i, item in enumerate(value))
    if isinstance(value, str) and "(" in value:
        return parse(value)
    if not isinstance(value, Mapping):
        if value is not None and not isinstance(value, (bool, int, float, str)):
            return refuse(path, value, "a number, a list, true, false, null or text")
        return value
    known = forms()
    if len(value) != 1 or next(iter(value)) not in known:
        return refuse(
            path,
            dict(value),
            f"a number, or one form with its arguments such as {{power: [5, 0.45]}}; the forms are "
            f"{', '.join(known)}",
        )
    ((name, given),) = value.items()
    arguments = load_number(given, f"{path}.{name}")
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    if not all(isinstance(item, (int, float, tuple)) for item in arguments):
        return refuse(f"{path}.{name}", given, "a list of numbers")
    try:
        return known[name](*arguments)
    except (TypeError, ValueError, OverflowError) as error:
        names = getattr(known[name], "_fields", None) or [item.name for item in fields(known[name])]  # type: ignore[arg-type]
        raise InvalidInput(
            f"{path}.{name} is {_show(given)}; write [{', '.join(names)}] ({error})"
        ) from error


def dump_number(value: Any) -> Any:
    """The way back: `load_number(dump_number(v), "")` equals v."""
    name = type(value).__name__.lower()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: [dump_number(getattr(value, item.name)) for item in fields(value)]}
    if hasattr(value, "_fields"):
        return {name: [dump_number(item) for item in value]}
    return [dump_number(item) for item in value] if isinstance(value, (list, tuple)) else value


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
    known = forms()
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
