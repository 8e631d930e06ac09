"""Hyperparameters that others rely on: the papers' presets, number by number, and the defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bipareto.errors import InvalidInput
from bipareto.methods import METHODS
from bipareto.methods.parts.hypergradient import CG, FiniteDifference, Neumann
from bipareto.methods.parts.scalarization import Fixed
from bipareto.methods.parts.schedule import Constant, Power

STEP = Constant(0.01)
ENVELOPE = {
    "gamma": 0.1,
    "mu": 4.0,
    "alpha_theta": STEP,
    "alpha_x": STEP,
    "alpha_y": STEP,
    "c": Power(1.0, 0.25),
    "ideal": Fixed(0.0),
    "scalarization": "stch",
    "warmup": 0,
    "extent": 1.0,
    "coordinates": "plain",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "momeha": ENVELOPE,
    "mb-momeha": ENVELOPE | {"beta": Constant(0.9), "exact_weights": False},
    "meha": {"gamma": 0.1, "eta": STEP, "alpha": STEP, "beta": STEP, "c": Power(1.0, 0.25)},
    "moml": {
        "inner_steps": 4,
        "eta": 0.1,
        "alpha_x": STEP,
        "normalize": False,
        "weight_steps": None,
        "weight_lr": 0.05,
    },
    "gmoba": {"alpha_x": STEP, "beta": Constant(0.1), "eta": Constant(0.1)},
    "forum": {
        "alpha_x": Constant(0.001),
        "alpha_y": Constant(0.001),
        "inner_steps": 5,
        "eta": 0.1,
        "rho": 0.1,
        "beta": Power(1.0, -0.75),
        "normalize": False,
    },
    "moco": {
        "alpha_x": STEP,
        "beta": Power(0.1, -0.5),
        "gamma": Power(0.1, -0.5),
        "rho": 0.0,
        "lower_steps": 1,
        "lower_step": Constant(0.1),
        "hypergradient": Neumann(10, 0.1),
    },
    "wc-mhgd": {
        "alpha_x": STEP,
        "u": 10.0,
        "lower_steps": 4,
        "beta": Constant(0.1),
        "hypergradient": CG(10),
        "qp_steps": None,
        "qp_lr": 0.01,
        "qp_warm_start": False,
    },
    "wc-penalty": {
        "u": Constant(10.0),
        "v": Constant(10.0),
        "alpha_x": Constant(0.001),
        "alpha_y": Constant(0.001),
        "eta": Constant(0.001),
        "rho_init": None,
        "difference": None,
    },
    "twin": {
        "rho": 0.01,
        "alpha_x": STEP,
        "alpha_y": Constant(0.003),
        "mu": 4.0,
        "ideal": Fixed(0.0),
        "scalarization": "stch",
        "beta": 0.9,
        "epsilon": 0.003,
        "shared": 0.0,
    },
}
#: what the papers' presets change
PAPER: dict[str, dict[str, Any]] = {
    "momeha": {"gamma": 8.0},
    "mb-momeha": {
        "gamma": 8.0,
        "alpha_theta": Constant(0.025),
        "alpha_x": Constant(0.05),
        "alpha_y": Constant(0.025),
        "c": Power(1.0, 1 / 16),
    },
    "moml": {"eta": 0.05, "alpha_x": Constant(0.1), "weight_steps": 4},
    "gmoba": {"alpha_x": Constant(0.1), "beta": Constant(0.05), "eta": Constant(0.05)},
    "forum": {
        "alpha_x": Constant(0.1),
        "alpha_y": Constant(0.05),
        "inner_steps": 4,
        "eta": 0.05,
        "rho": 0.5,
    },
    "moco": {
        "alpha_x": Constant(0.05),
        "beta": Constant(0.1),
        "gamma": Constant(0.1),
        "lower_step": Constant(0.025),
        "hypergradient": FiniteDifference(1, 0.025, eps=0.01, relative=True),
    },
    "wc-mhgd": {
        "alpha_x": Constant(0.05),
        "beta": Constant(0.025),
        "hypergradient": FiniteDifference(4, 0.025, eps=0.01, relative=False),
        "qp_steps": 8,
    },
    "wc-penalty": {
        "u": Constant(0.01),
        "v": Constant(0.2),
        "alpha_x": Constant(0.1),
        "alpha_y": Constant(0.05),
        "eta": Constant(0.01),
    },
}


def values(method: Any) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    assert values(METHODS[name]()) == DEFAULTS[name]


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_hyperparameters(name: str) -> None:
    assert values(METHODS[name].paper()) == DEFAULTS[name] | PAPER[name]


#: setting of the analysis, what it asks of g, nested, certainty, whether it has preferences
TRAITS = {
    "momeha": ("deterministic", "nonconvex", False, 100, True),
    "mb-momeha": ("stochastic", "nonconvex", False, 100, True),
    "meha": ("deterministic", "nonconvex", False, 95, False),
    "moml": ("deterministic", "one minimiser", True, 90, False),
    "gmoba": ("deterministic", "strongly convex", False, 65, False),
    "forum": ("deterministic", "strongly convex", True, 97, False),
    "moco": ("stochastic", "strongly convex", True, 70, False),
    "wc-mhgd": ("both", "strongly convex", True, 75, True),
    "wc-penalty": ("both", "convex", False, 70, True),
    "twin": ("stochastic", "strongly convex", False, 100, True),
}


@pytest.mark.parametrize("name", TRAITS)
def test_traits(name: str) -> None:
    kind = METHODS[name]
    assert (*kind.traits[:4], kind.uses_preference) == TRAITS[name]
    assert bool(kind.traits.reconstructed) is (kind.traits.certainty <= 90)


#: method, hyperparameter, values at its limits that are taken, and values beyond that are not
LIMITS: list[tuple[str, str, list[Any], list[Any]]] = [
    ("momeha", "gamma", [1e-9, 1e9], [0.0, -1.0]),
    ("momeha", "mu", [1e-9], [0.0]),
    ("momeha", "alpha_x", [1e-9], [0.0]),
    ("momeha", "c", [1e-9], [0.0]),
    ("momeha", "warmup", [0, 1_000_000], [-1, 1_000_001]),
    ("mb-momeha", "beta", [0.0, 0.999], [1.0, -0.1]),
    ("moml", "inner_steps", [1, 10_000], [0, 10_001]),
    ("moml", "weight_steps", [None, 0, 4], [-1]),
    ("forum", "inner_steps", [1], [0]),
    ("forum", "rho", [1e-9], [0.0]),
    ("moco", "rho", [0.0], [-0.1]),
    ("moco", "lower_steps", [0], [-1]),
    ("wc-mhgd", "u", [0.0], [-0.1]),
    ("wc-penalty", "rho_init", [None, -5.0, 0.0], []),
    ("wc-penalty", "difference", [None, 0.1], [0.0]),
    ("twin", "rho", [1e-9, 1.0], [0.0, 1.1]),
    ("twin", "beta", [0.0, 0.999], [1.0, -0.1]),
    ("twin", "shared", [0.0, 1.0], [-0.1, 1.1]),
    ("twin", "epsilon", [1e-9], [0.0]),
]


@pytest.mark.parametrize(("name", "field", "inside", "outside"), LIMITS)
def test_limits(name: str, field: str, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        found = getattr(METHODS[name](**{field: value}), field)
        assert (found.value if isinstance(found, Constant) else found) == value
    for value in outside:
        with pytest.raises(InvalidInput, match=field):
            METHODS[name](**{field: value})
