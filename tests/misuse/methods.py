"""Hyperparameters of the methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import bipareto as bp
from bipareto.methods import METHODS
from bipareto.methods.parts import hypergradient
from misuse.harness import Case
from misuse.setting import method, problem, solve, start
from misuse.values import HUGE, NEGATIVE, NONE, NOT_A_NUMBER, NOT_FINITE, NOT_WHOLE, ZERO, few, over

POSITIVE = NOT_A_NUMBER | NOT_FINITE | NONE | NEGATIVE | ZERO
COUNT = NOT_A_NUMBER | NOT_WHOLE | NONE | NEGATIVE
#: fields of the methods by what they are
FIELDS: dict[str, dict[str, str]] = {
    "momeha": {
        "gamma": "positive",
        "mu": "positive",
        "alpha_theta": "positive",
        "alpha_x": "positive",
        "alpha_y": "positive",
        "c": "positive",
        "warmup": "count",
        "scalarization": "name",
        "ideal": "ideal",
    },
    "mb-momeha": {
        "gamma": "positive",
        "alpha_x": "positive",
        "c": "positive",
        "beta": "momentum",
        "exact_weights": "flag",
        "warmup": "count",
    },
    "twin": {"rho": "positive", "alpha_x": "positive", "beta": "momentum", "epsilon": "positive"},
    "meha": {
        "gamma": "positive",
        "eta": "positive",
        "alpha": "positive",
        "beta": "positive",
        "c": "positive",
    },
    "moml": {
        "inner_steps": "least one",
        "eta": "positive",
        "alpha_x": "positive",
        "weight_steps": "count or none",
        "weight_lr": "positive",
        "normalize": "flag",
    },
    "gmoba": {"alpha_x": "positive", "beta": "positive", "eta": "positive"},
    "forum": {
        "alpha_x": "positive",
        "alpha_y": "positive",
        "inner_steps": "least one",
        "eta": "positive",
        "rho": "positive",
        "beta": "positive",
        "normalize": "flag",
    },
    "moco": {
        "alpha_x": "positive",
        "beta": "positive",
        "gamma": "positive",
        "rho": "not negative",
        "lower_steps": "count",
        "lower_step": "positive",
        "hypergradient": "estimate",
    },
    "wc-mhgd": {
        "alpha_x": "positive",
        "u": "not negative",
        "lower_steps": "count",
        "beta": "positive",
        "qp_steps": "count or none",
        "qp_lr": "positive",
        "qp_warm_start": "flag",
        "hypergradient": "estimate",
    },
    "wc-penalty": {
        "u": "positive",
        "v": "positive",
        "alpha_x": "positive",
        "alpha_y": "positive",
        "eta": "positive",
        "rho_init": "number or none",
        "difference": "positive or none",
    },
}


def values_of(kind: str, full: bool) -> dict[str, Any]:
    words = NOT_A_NUMBER if full else few(NOT_A_NUMBER)
    return {
        "positive": words | NOT_FINITE | NONE | NEGATIVE | ZERO,
        "positive or none": words | NOT_FINITE | NEGATIVE | ZERO,
        "number or none": words | NOT_FINITE,
        "not negative": words | NOT_FINITE | NONE | NEGATIVE,
        "count": words | NOT_WHOLE | NONE | NEGATIVE | HUGE,
        "least one": words | NOT_WHOLE | NONE | NEGATIVE | ZERO | HUGE,
        "count or none": words | NOT_WHOLE | NEGATIVE | HUGE,
        "momentum": words | NOT_FINITE | NONE | NEGATIVE | {"1": 1.0, "2": 2.0},
        "name": {
            "unknown": "tschebyschow",
            "number": 3,
            "None": None,
            "list": ["stch"],
            "dict": {},
            "function": torch.logsumexp,
        },
        "flag": {"text": "yes", "2": 2, "None": None, "list": [], "nan": math.nan},
        "ideal": {
            "text": "zero",
            "nan": math.nan,
            "inf": math.inf,
            "three numbers": (0.0, 0.0, 0.0),
            "None": None,
            "matrix": torch.zeros(2, 2),
            "dict": {},
            "nan among them": (0.0, math.nan),
            "negative margin": bp.scalarization.Tracked(-1.0),
            "margin text": bp.scalarization.Tracked("a"),
            "margin nan": bp.scalarization.Tracked(math.nan),
            "fixed text": bp.scalarization.Fixed("a"),  # type: ignore[arg-type]
            "True": True,
            "empty": (),
            "above f": 1e9,
        },
        "estimate": {
            "text": "cg",
            "number": 3,
            "None": None,
            "class": hypergradient.CG,
            "function": torch.add,
        },
    }[kind]


def with_field(name: str, **numbers: Any) -> Any:
    return solve(method=METHODS[name](**numbers))  # type: ignore[call-arg]


def method_cases() -> Iterator[Case]:
    for name, fields in FIELDS.items():
        for field, kind in fields.items():
            # An ideal point above the objectives is warned of, no more.
            for case in over(
                name, partial(with_field, name), field, values_of(kind, full=name == "momeha")
            ):
                yield case._replace(may_warn=True) if "above f" in case.name else case
    for field in ("alpha_x", "c"):
        schedules = {
            "Power(nan)": bp.schedule.Power(math.nan, 0.25),
            "Power power text": bp.schedule.Power(1.0, "a"),
            "Power power nan": bp.schedule.Power(1.0, math.nan),
            "Power scale -1": bp.schedule.Power(-1.0, 0.25),
            "Power scale list": bp.schedule.Power([1.0], 0.25),
            "Constant text": bp.schedule.Constant("a"),
            "Constant None": bp.schedule.Constant(None),
            "Cosine period 0": bp.schedule.Cosine(0.1, 0),
            "Cosine period text": bp.schedule.Cosine(0.1, "a"),
            "Cosine floor -1": bp.schedule.Cosine(0.1, 10, -1.0),
            "Cosine period nan": bp.schedule.Cosine(0.1, math.nan),
            "Delayed text": bp.schedule.Delayed(0.1, "a", 0.0),
            "Delayed nan": bp.schedule.Delayed(math.nan, 1, 0.1),
            "Delayed inf": bp.schedule.Delayed(0.1, math.inf, math.nan),
            "function": lambda t: 0.1,
            "tuple": (0.1, 0.2),
            "class": bp.schedule.Power,
            "Power tensor": bp.schedule.Power(torch.tensor([1.0, 2.0]), 0.25),
            "Complement": bp.schedule.Complement(2.0, 0.0),
        }
        yield from over("schedule", partial(with_field, "momeha"), field, schedules)
    for label, call in {
        "theorem1 c0 text": lambda: method(**bp.schedule.theorem1("a")),
        "theorem1 c0 -1": lambda: method(**bp.schedule.theorem1(-1.0)),
        "theorem2 text": lambda: bp.MBMOMEHA(**bp.schedule.theorem2("a", 0.1, 0.1)),
        "theorem2 nan": lambda: bp.MBMOMEHA(**bp.schedule.theorem2(math.nan, 0.1, 0.1)),
        "theorem2 -1": lambda: bp.MBMOMEHA(**bp.schedule.theorem2(-1.0, 0.1, 0.1)),
        "theorem2 delta": lambda: bp.schedule.theorem2(0.1, 0.1, 0.1, delta=1.0),
        "theorem2 delta text": lambda: bp.schedule.theorem2(0.1, 0.1, 0.1, delta="a"),
        "theorem2 c0 nan": lambda: bp.MBMOMEHA(**bp.schedule.theorem2(0.1, 0.1, 0.1, c0=math.nan)),
        "theorem2 k -1": lambda: bp.MBMOMEHA(**bp.schedule.theorem2(0.1, 0.1, 0.1, k=-1.0)),
        "paper preset": lambda: bp.MOMEHA.paper("imagenet"),
        "paper preset number": lambda: bp.MOMEHA.paper(3),
        "paper preset list": lambda: bp.MOMEHA.paper([]),
    }.items():
        yield Case(f"schedule: {label}", call)
    ways: dict[str, Callable[[Any], Any]] = {
        "CG: iterations": hypergradient.CG,
        "Neumann: terms": partial(hypergradient.Neumann, eta=0.1),
        "Unrolled: steps": partial(hypergradient.Unrolled, eta=0.1),
    }
    counts = {"text": "a", "-1": -1, "0": 0, "2.5": 2.5, "True": True, "10^9": 10**9}
    for name, way in ways.items():
        for label, value in counts.items():
            yield Case(
                f"{name} = {label}",
                lambda w=way, v=value: solve(method=bp.WCMHGD(hypergradient=w(v))),
            )
    for label, value in {
        "text": "a",
        "-1": -1.0,
        "0": 0.0,
        "nan": math.nan,
        "inf": math.inf,
        "True": True,
    }.items():
        yield Case(
            f"Neumann: eta = {label}",
            lambda v=value: solve(method=bp.WCMHGD(hypergradient=hypergradient.Neumann(3, v))),
        )
    for name, cls in METHODS.items():
        for label, value in {
            "text": "a",
            "nan": math.nan,
            "0": 0,
            "-1": -1,
            "2.5": 2.5,
            "True": True,
        }.items():
            yield Case(
                f"{name}.tuned: steps = {label}",
                lambda c=cls, v=value: c.tuned(problem(), *start(), steps=v),
            )
    for label, value in {
        "text": "a",
        "nan": math.nan,
        "-1": -1,
        "2.5": 2.5,
        "None": None,
        "10^30": 10**30,
    }.items():
        yield Case(
            f"momeha.tuned: seed = {label}",
            lambda v=value: bp.MOMEHA.tuned(problem(), *start(), seed=v),
        )
