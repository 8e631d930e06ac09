"""Multi-objective bilevel learning: min_x [f_1, ..., f_m](x, y*(x)) with y*(x) a stationary point of g(x, .).

>>> import bipareto as bp
>>> bp.problems.get("quadratic").m
2

Names are loaded when they are first used, so that importing the package, and `bipareto --help`, cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bipareto import doctor, errors, methods, oracle, parallel, preferences, problems, sampler, scalarization, schedule
    from bipareto.certificate import certify
    from bipareto.doctor import diagnose
    from bipareto.loop import solve
    from bipareto.methods import FORUM, GMOBA, MBMOMEHA, MEHA, MOMEHA, MOML, WCMHGD, MoCo, WCPenalty
    from bipareto.optimizer import Optimizer
    from bipareto.pareto import ParetoFront, front
    from bipareto.problem import Problem
    from bipareto.records import Solution

__all__ = [
    "FORUM",
    "GMOBA",
    "MBMOMEHA",
    "MEHA",
    "MOMEHA",
    "MOML",
    "WCMHGD",
    "MoCo",
    "Optimizer",
    "ParetoFront",
    "Problem",
    "Solution",
    "WCPenalty",
    "certify",
    "diagnose",
    "doctor",
    "errors",
    "front",
    "methods",
    "oracle",
    "parallel",
    "preferences",
    "problems",
    "sampler",
    "scalarization",
    "schedule",
    "solve",
]

__version__ = "0.1.0"

#: public name -> the module that holds it; the other names of `__all__` are modules themselves
_HOMES = {
    "FORUM": "methods",
    "GMOBA": "methods",
    "MBMOMEHA": "methods",
    "MEHA": "methods",
    "MOMEHA": "methods",
    "MOML": "methods",
    "WCMHGD": "methods",
    "MoCo": "methods",
    "WCPenalty": "methods",
    "Optimizer": "optimizer",
    "ParetoFront": "pareto",
    "Problem": "problem",
    "Solution": "records",
    "certify": "certificate",
    "diagnose": "doctor",
    "front": "pareto",
    "solve": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES.get(name, name)}")
    value = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
