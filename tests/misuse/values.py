"""Values that no argument can take, and products of arguments and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch

from misuse.harness import Case


def _strange() -> object:
    return object()


NOT_A_NUMBER: dict[str, Any] = {
    "text": "abc",
    "numeral": "0.1",
    "list": [0.1],
    "dict": {"a": 1},
    "complex": 1j,
    "object": _strange(),
    "function": _strange,
    "two numbers": torch.tensor([0.1, 0.2]),
    "array": np.array([0.1, 0.2]),
    "bytes": b"1",
    "True": True,
    "class": float,
    "complex tensor": torch.tensor(1j),
    "meta tensor": torch.tensor(0.1, device="meta"),
}
NOT_FINITE: dict[str, Any] = {
    "nan": math.nan,
    "inf": math.inf,
    "nan tensor": torch.tensor(torch.nan),
    "-inf": -math.inf,
    "10^400": 10**400,
}
NONE: dict[str, Any] = {"None": None}
NEGATIVE: dict[str, Any] = {"-1": -1, "-0.5": -0.5}
ZERO: dict[str, Any] = {"0": 0}
NOT_WHOLE: dict[str, Any] = {
    "2.5": 2.5,
    "nan": math.nan,
    "inf": math.inf,
    "1e400": 10**400,
    "half": Fraction(1, 2),
}
FEW = ("text", "numeral", "list", "True", "two numbers", "complex")
HUGE: dict[str, Any] = {"10^9": 10**9, "10^18": 10**18}


def few(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in FEW}


def over(
    name: str, call: Callable[..., Any], argument: str, values: Mapping[str, Any], **options: Any
) -> Iterator[Case]:
    for label, value in values.items():
        yield Case(f"{name}: {argument} = {label}", partial(call, **{argument: value}), **options)
