"""Multi-objective bilevel learning: min_x [f_1, ..., f_m](x, y*(x)) with y*(x) a stationary point
of g(x, .).

>>> import bipareto as bp
>>> bp.problems.get("quadratic").m
2

Names are loaded when they are first used, so that importing the package, and `bipareto --help`,
cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bipareto import doctor as doctor
    from bipareto import errors as errors
    from bipareto import methods as methods
    from bipareto import problems as problems
    from bipareto.certificate.certificate import certify as certify
    from bipareto.doctor import diagnose as diagnose
    from bipareto.fronts.front import front as front
    from bipareto.fronts.pareto import ParetoFront as ParetoFront
    from bipareto.methods import FORUM as FORUM
    from bipareto.methods import GMOBA as GMOBA
    from bipareto.methods import MBMOMEHA as MBMOMEHA
    from bipareto.methods import MEHA as MEHA
    from bipareto.methods import MOMEHA as MOMEHA
    from bipareto.methods import MOML as MOML
    from bipareto.methods import WCMHGD as WCMHGD
    from bipareto.methods import MoCo as MoCo
    from bipareto.methods import WCPenalty as WCPenalty
    from bipareto.methods.parts import preferences as preferences
    from bipareto.methods.parts import scalarization as scalarization
    from bipareto.methods.parts import schedule as schedule
    from bipareto.problem import Problem as Problem
    from bipareto.problem import oracle as oracle
    from bipareto.problem import parallel as parallel
    from bipareto.problem import sampler as sampler
    from bipareto.run.loop import solve as solve
    from bipareto.run.optimizer import Optimizer as Optimizer
    from bipareto.run.results import Solution as Solution

__version__ = "0.1.0"

#: public name -> the module that holds it; for a module, "" or its package with a dot at the end
_HOMES = {
    "FORUM": "methods",
    "GMOBA": "methods",
    "MBMOMEHA": "methods",
    "MEHA": "methods",
    "MOMEHA": "methods",
    "MOML": "methods",
    "MoCo": "methods",
    "Optimizer": "run.optimizer",
    "ParetoFront": "fronts.pareto",
    "Problem": "problem",
    "Solution": "run.results",
    "WCMHGD": "methods",
    "WCPenalty": "methods",
    "certify": "certificate.certificate",
    "diagnose": "doctor",
    "doctor": "",
    "errors": "",
    "front": "fronts.front",
    "methods": "",
    "oracle": "problem.",
    "parallel": "problem.",
    "preferences": "methods.parts.",
    "problems": "",
    "sampler": "problem.",
    "scalarization": "methods.parts.",
    "schedule": "methods.parts.",
    "solve": "run.loop",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    is_module = home == "" or home.endswith(".")
    module = import_module(f"{__name__}.{home}{name}" if is_module else f"{__name__}.{home}")
    value = module if is_module else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
