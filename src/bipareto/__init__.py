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
    from bipareto import report as report
    from bipareto.certificate.certificate import certify as certify
    from bipareto.certificate.stationarity import pareto_stationarity as pareto_stationarity
    from bipareto.doctor import diagnose as diagnose
    from bipareto.fronts.front import front as front
    from bipareto.fronts.front import solve as solve
    from bipareto.fronts.measures import pareto_optimal as pareto_optimal
    from bipareto.fronts.measures import weakly_pareto_optimal as weakly_pareto_optimal
    from bipareto.fronts.pareto import ParetoFront as ParetoFront
    from bipareto.methods import FORUM as FORUM
    from bipareto.methods import GMOBA as GMOBA
    from bipareto.methods import MBMOMEHA as MBMOMEHA
    from bipareto.methods import MEHA as MEHA
    from bipareto.methods import MOMEHA as MOMEHA
    from bipareto.methods import MOML as MOML
    from bipareto.methods import WCMHGD as WCMHGD
    from bipareto.methods import MoCo as MoCo
    from bipareto.methods import Twin as Twin
    from bipareto.methods import WCPenalty as WCPenalty
    from bipareto.methods.parts import preferences as preferences
    from bipareto.methods.parts import scalarization as scalarization
    from bipareto.methods.parts import schedule as schedule
    from bipareto.problem import Problem as Problem
    from bipareto.problem import oracle as oracle
    from bipareto.problem import parallel as parallel
    from bipareto.problem import sampler as sampler
    from bipareto.run import monitors as monitors
    from bipareto.run import trackers as trackers
    from bipareto.run.optimizer import Optimizer as Optimizer
    from bipareto.run.results import Solution as Solution

__version__ = "0.1.0"

#: public name -> where it is: a module, or "module:name" for a thing inside one
_HOMES = {
    "FORUM": "methods:FORUM",
    "GMOBA": "methods:GMOBA",
    "MBMOMEHA": "methods:MBMOMEHA",
    "MEHA": "methods:MEHA",
    "MOMEHA": "methods:MOMEHA",
    "MOML": "methods:MOML",
    "MoCo": "methods:MoCo",
    "Optimizer": "run.optimizer:Optimizer",
    "ParetoFront": "fronts.pareto:ParetoFront",
    "Problem": "problem:Problem",
    "Solution": "run.results:Solution",
    "Twin": "methods:Twin",
    "WCMHGD": "methods:WCMHGD",
    "WCPenalty": "methods:WCPenalty",
    "certify": "certificate.certificate:certify",
    "diagnose": "doctor:diagnose",
    "doctor": "doctor",
    "errors": "errors",
    "front": "fronts.front:front",
    "methods": "methods",
    "monitors": "run.monitors",
    "oracle": "problem.oracle",
    "parallel": "problem.parallel",
    "pareto_optimal": "fronts.measures:pareto_optimal",
    "pareto_stationarity": "certificate.stationarity:pareto_stationarity",
    "preferences": "methods.parts.preferences",
    "problems": "problems",
    "report": "report",
    "sampler": "problem.sampler",
    "scalarization": "methods.parts.scalarization",
    "schedule": "methods.parts.schedule",
    "solve": "fronts.front:solve",
    "trackers": "run.trackers",
    "weakly_pareto_optimal": "fronts.measures:weakly_pareto_optimal",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, inside = _HOMES[name].partition(":")
    value: Any = import_module(f"{__name__}.{home}")
    value = getattr(value, inside) if inside else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
