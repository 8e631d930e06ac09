"""Arguments of `Optimizer`, and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import bipareto as bp
from misuse.data import data_problem
from misuse.harness import Case
from misuse.setting import DOUBLE, method, problem, solve, start, upper
from misuse.values import NONE, NOT_A_NUMBER, NOT_WHOLE, over


def optimizer_cases() -> Iterator[Case]:
    def make(**others: Any) -> Any:
        x0, y0 = start()
        given = {"problem": problem(), "x0": x0, "y0": y0, "method": method()} | others
        optimizer = bp.Optimizer(**given)
        optimizer.step()
        return optimizer

    yield from over(
        "Optimizer",
        make,
        "method",
        {"text": "momeha", "class": bp.MOMEHA, "None": None, "number": 3},
    )
    yield from over(
        "Optimizer", make, "problem", {"text": "a", "None": None, "number": 3, "function": upper}
    )
    yield from over("Optimizer", make, "seed", NOT_A_NUMBER | NOT_WHOLE | NONE)
    yield from over(
        "Optimizer",
        make,
        "compile",
        {"unknown": "nonsense", "number": 3, "list": []},
        may_warn=True,
    )
    yield Case(
        "Optimizer: preferences for a method without",
        lambda: make(method=bp.GMOBA(), preferences=[[0.5, 0.5]]),
    )
    yield Case("Optimizer: batches without data", lambda: make().step({"lower": torch.zeros(2)}))
    data = data_problem()
    optimizer = bp.Optimizer(data, torch.zeros(3), torch.zeros(3), method())
    good = {
        "lower": (torch.zeros(4, 3), torch.zeros(4)),
        "upper": (torch.zeros(4, 3), torch.zeros(4)),
    }
    batches = {
        "no upper": {"lower": good["lower"]},
        "empty": {},
        "number": 3,
        "text": "a",
        "list": [1],
        "unknown role": {"lower": good["lower"], "uper": good["upper"]},
        "extra role": good | {"validation": good["upper"]},
        "None batch": {"lower": None, "upper": None},
        "texts": {"lower": "a", "upper": "b"},
        "arrays": {"lower": (np.zeros((4, 3)), np.zeros(4)), "upper": good["upper"]},
    }
    for label, value in batches.items():
        yield Case(f"Optimizer.step: {label}", lambda v=value: optimizer.step(v))
    state = make().state_dict()
    wrong = {
        "text": "a",
        "None": None,
        "empty": {},
        "list": [],
        "no steps": {k: v for k, v in state.items() if k != "steps"},
        "other method": state | {"method": "MOMEHA()"},
        "fewer leaves": state | {"state": state["state"][:-1]},
        "other shapes": state | {"state": [v[None] for v in state["state"]]},
        "texts": state | {"state": ["a"] * len(state["state"])},
        "steps text": state | {"steps": "a"},
        "steps -1": state | {"steps": -1},
        "steps half": state | {"steps": 0.5},
        "seed text": state | {"seed": "a"},
        "state None": state | {"state": None},
        "nan state": state | {"state": [v * math.nan for v in state["state"]]},
        "whole numbers": state | {"state": [v.long() for v in state["state"]]},
        "data": state | {"data": [{"level": "a"}]},
    }
    for label, value in wrong.items():
        yield Case(f"Optimizer.load_state_dict: {label}", lambda v=value: make().load_state_dict(v))
    for label, value in {
        "text": "a",
        "9": 9,
        "-9": -9,
        "None": None,
        "half": 0.5,
        "True": True,
    }.items():
        yield Case(
            f"Optimizer.write_back: run = {label}",
            lambda v=value: make().write_back(
                torch.zeros(3, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE), v
            ),
            raises=(IndexError,),
        )
    for label, value in {
        "text": "a",
        "number": 3,
        "other shape": torch.zeros(5, dtype=DOUBLE),
        "dict": {},
        "list": [torch.zeros(3)],
        "array": np.zeros(3),
        "whole numbers": torch.zeros(3, dtype=torch.int64),
        "module": nn.Linear(2, 2),
        "meta": torch.zeros(3, device="meta"),
        "expanded": torch.zeros(1).expand(3),
    }.items():
        yield Case(f"write_back: x = {label}", lambda v=value: solve().write_back(v, None))
        yield Case(f"write_back: y = {label}", lambda v=value: solve().write_back(None, v))
