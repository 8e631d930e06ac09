"""Options as people write them on the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bipareto.errors import InvalidInput
from bipareto.sweep import typed
from bipareto.sweep.grammar import parse, show

__all__ = ["finite", "names", "numbers", "pairs", "seeds"]


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
