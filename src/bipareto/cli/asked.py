"""From the options of `solve`, `front` and `compare` to the one configuration of a run."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from bipareto.cli import values
from bipareto.errors import InvalidInput
from bipareto.sweep import typed
from bipareto.sweep.config import MethodConfig, PreferencesConfig, ProblemConfig
from bipareto.sweep.grammar import parse

if TYPE_CHECKING:
    from bipareto.sweep.builder import Setup

__all__ = ["method_asked", "preferences_asked", "problem_asked"]


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
        name, values.pairs(option or [], "-o", f"problem {name!r}", problems.options(name)) | short
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
    given = values.pairs(settings or [], "--set", f"method {name!r}", defaults)
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
