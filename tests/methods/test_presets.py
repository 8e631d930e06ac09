"""Hyperparameters that others rely on: the papers' presets, number by number, and the defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

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
