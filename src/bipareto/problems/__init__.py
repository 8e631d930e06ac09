"""Problems with known fronts, by name.

>>> problem = get("quadratic", dim=3)
>>> problem.front(11).shape
torch.Size([11, 2])
"""

from __future__ import annotations

import inspect
from typing import Any

from bipareto.errors import InvalidInput
from bipareto.problem import validation
from bipareto.problem.plugins import Registry
from bipareto.problems.base import Constants, KnownProblem, Point
from bipareto.problems.bistable import Bistable
from bipareto.problems.ds1 import DS1
from bipareto.problems.merely_convex import MerelyConvex
from bipareto.problems.quadratic import PLSin2, Quadratic
from bipareto.problems.ridge import Ridge
from bipareto.problems.sine import MoSin, MoSin2, Sin, SinTrap
from bipareto.problems.tp2 import TP2S

__all__ = [
    "DS1",
    "PROBLEMS",
    "TP2S",
    "Bistable",
    "Constants",
    "KnownProblem",
    "MerelyConvex",
    "MoSin",
    "MoSin2",
    "PLSin2",
    "Point",
    "Quadratic",
    "Ridge",
    "Sin",
    "SinTrap",
    "get",
    "names",
    "options",
]

#: every known problem by its name; each class carries a one-line `summary`
PROBLEMS: Registry[type[KnownProblem]] = Registry(
    "problems",
    {
        problem.name: problem
        for problem in (
            Quadratic,
            PLSin2,
            Sin,
            SinTrap,
            MoSin,
            MoSin2,
            MerelyConvex,
            TP2S,
            DS1,
            Ridge,
            Bistable,
        )
    },
)


#: Dimensions and counts of a known problem at most.
MOST = 20_000


def names() -> tuple[str, ...]:
    """The names that `get` knows."""
    return tuple(PROBLEMS)


def options(name: str) -> dict[str, Any]:
    """The options of a problem and their defaults.

    >>> options("quadratic")
    {'dim': 5, 'm': 2, 'seed': 0, 'noise': 0.0}
    """
    return {key: value.default for key, value in inspect.signature(_known(name)).parameters.items()}


def get(name: str, **given: Any) -> KnownProblem:
    """The problem of that name; options that are not given keep their defaults."""
    allowed = options(name)
    for key, value in given.items():
        if key not in allowed:
            raise InvalidInput(
                f"problem {name!r} has no option {key!r}; choose from {', '.join(allowed)}"
            )
        given[key] = _option(key, value, allowed[key])
    return _known(name)(**given)


def _option(name: str, value: Any, default: Any) -> Any:
    """The option of a known problem, of the kind that its default is of."""
    if name == "seed":
        return validation.seed(value)
    if type(default) is int:
        return validation.count(
            value, name, most=MOST, instead="the matrices of a larger problem would not fit"
        )
    return validation.number(value, name) if type(default) is float else value


def _known(name: str) -> type[KnownProblem]:
    return PROBLEMS[validation.choice(name, "problem", PROBLEMS)]
