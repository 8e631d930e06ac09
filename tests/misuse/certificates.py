"""Arguments of `certify`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

import bipareto as bp
from misuse.harness import Case
from misuse.setting import DOUBLE, problem, start, upper
from misuse.values import NEGATIVE, NONE, NOT_A_NUMBER, NOT_FINITE, NOT_WHOLE, ZERO, few, over


def certify(**others: Any) -> Any:
    x, y = start()
    return bp.certify(**{"problem": problem(), "x": x, "y": y, "budget": 40} | others)


def certify_cases() -> Iterator[Case]:
    yield from over("certify", certify, "gamma", NOT_A_NUMBER | NOT_FINITE | NEGATIVE | ZERO)
    yield from over(
        "certify",
        lambda mu: certify(preference=[0.5, 0.5], mu=mu, c=1.0),
        "mu",
        few(NOT_A_NUMBER) | NOT_FINITE | NEGATIVE | ZERO,
    )
    yield from over(
        "certify",
        lambda c: certify(preference=[0.5, 0.5], mu=1.0, c=c),
        "c",
        few(NOT_A_NUMBER) | NOT_FINITE | NEGATIVE | ZERO,
    )
    yield from over("certify", certify, "rho_y", NOT_A_NUMBER | NOT_FINITE | NEGATIVE)
    yield from over("certify", certify, "tol", NOT_A_NUMBER | NOT_FINITE | NEGATIVE | NONE)
    yield from over("certify", certify, "budget", NOT_A_NUMBER | NOT_WHOLE | NEGATIVE | ZERO | NONE)
    yield from over("certify", certify, "seed", few(NOT_A_NUMBER) | NOT_WHOLE | NONE)
    yield from over(
        "certify",
        lambda preference: certify(preference=preference, mu=1.0, c=1.0),
        "preference",
        {
            "text": "a",
            "three": [0.2, 0.3, 0.5],
            "sum": [1.0, 1.0],
            "nan": [math.nan, 1.0],
            "negative": [-1.0, 2.0],
            "number": 0.5,
        },
    )
    yield from over(
        "certify",
        lambda ideal: certify(preference=[0.5, 0.5], mu=1.0, c=1.0, ideal=ideal),
        "ideal",
        {
            "text": "a",
            "nan": math.nan,
            "above": 1e9,
            "three": (0.0, 0.0, 0.0),
            "None": None,
            "inf": math.inf,
            "dict": {},
        },
    )
    yield from over(
        "certify",
        lambda scalarization: certify(
            preference=[0.5, 0.5], mu=1.0, c=1.0, scalarization=scalarization
        ),
        "scalarization",
        {"unknown": "a", "number": 3, "None": None, "list": []},
    )
    yield from over(
        "certify",
        certify,
        "problem",
        {"text": "a", "None": None, "function": upper, "class": bp.Problem},
    )
    yield from over(
        "certify", certify, "x", {"shape": torch.zeros(5, dtype=DOUBLE)}, raises=(RuntimeError,)
    )
    yield Case(
        "certify: scalarization not known without preference",
        lambda: certify(scalarization="nonsense"),
    )
