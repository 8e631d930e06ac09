"""Options as people write them on the command line, and the configuration of a run made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from bipareto.errors import InvalidInput
from bipareto.sweep import typed
from bipareto.sweep.config import MethodConfig, PreferencesConfig, ProblemConfig
from bipareto.sweep.grammar import parse, show

if TYPE_CHECKING:
    from bipareto.sweep.builder import Setup


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


def problem_asked(
    name: str, option: list[str] | None, dim: int | None, noise: float
) -> ProblemConfig:
    """A problem of `bipareto list`, or one's own, package.module:function."""
    short = ({} if dim is None else {"dim": dim}) | ({"noise": noise} if noise else {})
    if ":" in name:
        given: dict[str, Any] = {}
        for text in option or []:
            key, equals, value = text.partition("=")
            if not equals:
                raise InvalidInput(f"-o {text!r} is not of the form key=value")
            given[key.strip()] = parse(value)
        return ProblemConfig(name, given | short)
    from bipareto import problems

    return ProblemConfig(
        name, pairs(option or [], "-o", f"problem {name!r}", problems.options(name)) | short
    )


def method_asked(name: str, source: str, settings: list[str] | None, setup: Setup) -> MethodConfig:
    """A method, where its hyperparameters come from, and those that are given.

    Args:
        name: "auto" is the method that suits the problem.
        source: what --hyperparameters says.
        settings: what --set says, each time.
        setup: the problem.
    """
    from bipareto.methods import METHODS
    from bipareto.sweep.builder import auto

    if name == "auto":
        name = auto(setup.problem)
    if name not in METHODS:
        raise InvalidInput(
            f"method {name!r} is not known; choose auto, or one of {', '.join(METHODS)}"
        )
    kind = METHODS[name]
    sources = ["tuned", "plain", *(["paper"] if hasattr(kind, "paper") else [])]
    if source not in sources:
        raise InvalidInput(
            f"--hyperparameters {source!r} is not known for {name}; choose one of "
            f"{', '.join(sources)}"
        )
    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    given = pairs(settings or [], "--set", f"method {name!r}", defaults)
    return replace(typed.parse(MethodConfig, {"name": name, "hyperparameters": source}), set=given)


def preferences_asked(text: str, budget: int | None, setup: Setup) -> PreferencesConfig:
    """A count, a family, a file of vectors, or "adaptive" with its budget.

    Args:
        text: what --preferences says.
        budget: what --budget says.
        setup: the problem, whose number of objectives the vectors of a file must have.
    """
    if (budget is not None) != (text == "adaptive"):
        raise InvalidInput(
            f"--budget {budget} with --preferences {text}; --preferences adaptive and --budget N "
            "go together"
        )
    if text == "adaptive":
        return PreferencesConfig(family="adaptive", budget=budget)
    name, _, count = ("das-dennis", "", text) if text.isdecimal() else text.partition(":")
    if name in ("das-dennis", "random") and (count or "11").isdecimal():
        return typed.parse(PreferencesConfig, {"family": name, "count": int(count or 11)})
    from bipareto.methods.parts.preferences import STRENGTHS, named

    if text in STRENGTHS:
        return typed.parse(PreferencesConfig, {"family": text})
    m = setup.known.m if setup.known else setup.problem.check(*setup.starts[0])
    return PreferencesConfig(vectors=tuple(map(tuple, named(text, m).tolist())))
