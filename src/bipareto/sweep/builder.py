"""From a configuration to the problem, the method and the preferences, for all kinds of runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods import METHODS, Method, Twin
from bipareto.methods.parts.preferences import as_preference, grid, named
from bipareto.problem import Problem
from bipareto.problem.tree import Tree
from bipareto.problems import KnownProblem, get, options
from bipareto.run.loop import method_kind
from bipareto.sweep.config import MethodConfig, ProblemConfig, SweepConfig
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
