"""Arguments of `solve`, `front` and preferences."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bipareto as bp
from bipareto.fronts.adaptive import trace
from bipareto.run.loop import LoopOptions
from misuse.data import data_problem, minibatches, of_data
from misuse.harness import Case
from misuse.losses import _stepped
from misuse.setting import front, lower, method, problem, solve, start, upper
from misuse.values import NEGATIVE, NONE, NOT_A_NUMBER, NOT_WHOLE, ZERO, few, over


def _equal_to(**others: Any) -> Callable[[Any], bool]:
    return lambda found: torch.equal(found.x, solve(**others).x)


def call_cases() -> Iterator[Case]:
    not_count = NOT_A_NUMBER | NOT_WHOLE | NEGATIVE
    yield from over("solve", solve, "steps", not_count | ZERO | NONE)
    yield from over("front", front, "steps", few(NOT_A_NUMBER) | NOT_WHOLE | NEGATIVE | ZERO | NONE)
    yield from over("solve", solve, "record_every", not_count | ZERO)
    yield from over("front", front, "record_every", few(NOT_A_NUMBER) | NOT_WHOLE | NEGATIVE | ZERO)
    yield from over("solve", solve, "tol", NOT_A_NUMBER | NEGATIVE | {"nan": math.nan})
    yield from over("front", front, "tol", few(NOT_A_NUMBER) | NEGATIVE | {"nan": math.nan})
    yield from over("solve", solve, "seed", NOT_A_NUMBER | NOT_WHOLE | NONE | {"-1": -1})
    yield from over(
        "solve with data",
        lambda seed: of_data(sampler=minibatches(), seed=seed),
        "seed",
        few(NOT_A_NUMBER) | NOT_WHOLE | NONE | {"-1": -1},
    )
    seeds = {
        "number": 3,
        "text": "abc",
        "empty": [],
        "None": None,
        "halves": [0.5],
        "texts": ["a"],
        "nan": [math.nan],
        "nested": [[0]],
        "negative": [-1],
        "True": [True],
        "twice": [0, 0],
        "huge": [10**30],
        "numerals": "12",
    }
    yield from over("front", front, "seeds", seeds)
    yield from over(
        "front with data",
        lambda seeds: front(data_problem(), seeds=seeds, x0=torch.zeros(3), y0=torch.zeros(3)),
        "seeds",
        seeds,
    )
    methods = {
        "text": "momeha",
        "class": bp.MOMEHA,
        "number": 3,
        "dict": {},
        "state": (1, 2),
        "problem": problem(),
        "optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1),
    }
    for name, call in (("solve", solve), ("front", front)):
        yield from over(name, call, "method", methods)
        yield from over(
            name,
            call,
            "compile",
            {
                "unknown backend": "nonsense",
                "number": 3,
                "list": ["inductor"],
                "dict": {},
                "nan": math.nan,
                "empty text": "",
            },
            may_warn=True,
        )
        yield from over(
            name,
            call,
            "callbacks",
            {
                "a function": print,
                "None": None,
                "numbers": [3],
                "text": "abc",
                "one that takes nothing": [lambda: None],
            },
            raises=(),
        )
        yield from over(name, call, "progress", {"text": "yes", "number": 3, "list": []})
    vectors: dict[str, Any] = {
        "text": "abc",
        "number": 0.5,
        "three": [0.3, 0.3, 0.4],
        "one": [1.0],
        "empty": [],
        "sum 2": [1.0, 1.0],
        "negative": [1.5, -0.5],
        "nan": [math.nan, 0.5],
        "inf": [math.inf, 0.0],
        "texts": ["a", "b"],
        "dict": {0: 0.5, 1: 0.5},
        "None inside": [None, 0.5],
        "complex": [0.5j, 0.5],
        "ragged": [[0.5, 0.5], [1.0]],
        "object": object(),
        "zero": [0.0, 0.0],
        "tensor of three axes": torch.full((1, 1, 3), 1 / 3),
        "matrix": [[0.5, 0.5], [0.5, 0.5]],
        "function": max,
        "bytes": b"ab",
        "set": {0.4, 0.6},
        "booleans": [True, False],
        "meta": torch.full((2,), 0.5, device="meta"),
        "sparse": torch.tensor([0.5, 0.5]).to_sparse(),
        "numerals": ["0.5", "0.5"],
        "sum 1.001": [0.5, 0.501],
        "complex tensor": torch.tensor([0.5, 0.5], dtype=torch.complex64),
        "generator": (v for v in (0.5, 0.5)),
        "three axes": torch.full((2, 2, 2), 0.5),
    }
    warned = {"one zero": [1.0, 0.0]}
    yield from over("solve", solve, "preference", vectors)
    yield from over("solve", solve, "preference", warned, may_warn=True)
    yield from over(
        "front",
        front,
        "preferences",
        {k: v for k, v in vectors.items() if k != "matrix"}
        | {
            "unknown name": "uniform",
            "count 0": "0",
            "random:0": "random:0",
            "random:-1": "random:-1",
            "no file": "nowhere.csv",
            "das-dennis:x": "das-dennis:x",
            "empty text": "",
            "colon": ":",
            "a folder": tempfile.gettempdir(),
        },
    )
    yield from over("front", front, "preferences", warned, may_warn=True)
    yield from over(
        "Optimizer",
        lambda preferences: _stepped(problem(), preferences=preferences),
        "preferences",
        {k: v for k, v in vectors.items() if k != "matrix"},
    )
    yield from over(
        "init",
        lambda preference: method().init(problem(), *start(), preference),
        "preference",
        vectors,
    )
    yield Case(
        "solve: preference for a method without",
        lambda: solve(method=bp.GMOBA(), preference=[0.5, 0.5]),
    )
    yield Case("front: preferences for a method without", lambda: front(method=bp.GMOBA()))
    for label, value in {
        "text": "abc",
        "None": None,
        "-1": -1,
        "0": 0,
        "2": 2,
        "2.5": 2.5,
        "nan": math.nan,
        "True": True,
        "list": [4],
        "10^400": 10**400,
    }.items():
        yield Case(
            f"front: budget = {label}", lambda v=value: front(preferences="adaptive", budget=v)
        )
    yield Case("front: budget without adaptive", lambda: front(budget=5))
    yield Case(
        "adaptive: one objective",
        lambda: front(
            bp.Problem(lambda x, y: upper(x, y)[:1], lower), preferences="adaptive", budget=5
        ),
    )
    for label, value in {
        "text": "a",
        "0": 0.0,
        "2": 2.0,
        "nan": math.nan,
        "None": None,
        "True": True,
    }.items():
        yield Case(
            f"trace: warm = {label}",
            lambda v=value: trace(
                problem(), [start()], budget=4, method=method(), options=LoopOptions(4), warm=v
            ),
        )
    for label, value in {
        "empty": [],
        "a tensor": torch.zeros(3),
        "one of a pair": [(start()[0],)],
        "None": None,
        "number": 3,
        "triples": [(*start(), 1)],
    }.items():
        yield Case(
            f"trace: starts = {label}",
            lambda v=value: trace(problem(), v, budget=4, method=method(), options=LoopOptions(4)),
        )
    # What is too many.
    many = bp.Problem(
        lambda x, y: torch.stack([(x - i).square().sum() + y.square().sum() for i in range(12)]),
        lower,
    )
    most = bp.Problem(
        lambda x, y: torch.stack([(x - i).square().sum() + y.square().sum() for i in range(30)]),
        lower,
    )
    yield Case(
        "front: 12 objectives without preferences",
        lambda: front(many, preferences=None),
        right=lambda found: len(found) <= 36,
    )
    yield Case(
        "front: 30 objectives without preferences",
        lambda: front(most, preferences=None),
        right=lambda found: len(found) <= 36,
    )
    yield Case("front: das-dennis:99999999", lambda: front(preferences="das-dennis:99999999"))
    yield Case("front: random:9999999999", lambda: front(preferences="random:9999999999"))
    yield Case("front: 10^7 seeds", lambda: front(seeds=range(10**7)))
    yield Case("solve: warmup 10^9", lambda: solve(method=method(warmup=10**9)))
    yield Case("moco: lower_steps 10^7", lambda: solve(method=bp.MoCo(lower_steps=10**7)))
    yield Case("moml: inner_steps 10^7", lambda: solve(method=bp.MOML(inner_steps=10**7)))
    yield Case(
        "certify: budget 10^9",
        lambda: bp.certify(problem(), *start(), budget=10**9),
        right=lambda c: c.gradients < 10**6,
    )
    yield Case(
        "resolve_lower: max_iter 10^12",
        lambda: front().resolve_lower(max_iter=10**12),
        right=lambda f: bool((f.lower_residual < 1e-6).all()),
    )


def preference_cases() -> Iterator[Case]:
    grid, draws, favouring, named, read = (
        getattr(bp.preferences, name) for name in ("grid", "random", "favouring", "named", "read")
    )
    counts = NOT_A_NUMBER | NOT_WHOLE | NEGATIVE | ZERO | NONE
    yield from over("grid", lambda m: grid(m, 3), "m", counts)
    yield from over("grid", lambda n: grid(2, n), "n", counts)
    yield from over(
        "random", lambda m: draws(m, 3), "m", few(NOT_A_NUMBER) | NOT_WHOLE | NEGATIVE | ZERO | NONE
    )
    yield from over(
        "random", lambda n: draws(2, n), "n", few(NOT_A_NUMBER) | NOT_WHOLE | NEGATIVE | ZERO | NONE
    )
    yield from over(
        "random",
        lambda seed: draws(2, 3, seed),
        "seed",
        few(NOT_A_NUMBER) | NOT_WHOLE | NONE | {"10^30": 10**30, "-1": -1},
    )
    yield from over(
        "favouring",
        lambda m: favouring(m, "strong"),
        "m",
        few(NOT_A_NUMBER) | NOT_WHOLE | NEGATIVE | ZERO | NONE | {"1": 1},
    )
    yield from over(
        "favouring",
        lambda strength: favouring(3, strength),
        "strength",
        {"unknown": "huge", "number": 3, "None": None, "list": [], "nan": math.nan},
    )
    yield from over(
        "named",
        lambda text: named(text, 2),
        "text",
        {
            "None": None,
            "number": 11,
            "list": ["11"],
            "unknown": "abc",
            "0": "0",
            "random:": "random:x",
            "bytes": b"11",
            "long": "a" * 5000,
            "null byte": "a\0b",
            "superscript": "²",
            "other digits": "das-dennis:②",
        },
    )
    yield from over(
        "named", lambda m: named("strong", m), "m", few(NOT_A_NUMBER) | NONE | {"1": 1, "0": 0}
    )
    yield Case("grid: boundary with one point", lambda: grid(2, 1, boundary=True))
    yield Case("grid(30, 11)", lambda: grid(30, 11))
    yield Case("grid(2, 10^10)", lambda: grid(2, 10**10))
    yield Case("grid(100, 100)", lambda: grid(100, 100))
    yield Case("random(2, 10^12)", lambda: draws(2, 10**12))
    yield Case("favouring(10^6)", lambda: favouring(10**6, "strong"))
    files = {
        "empty": "",
        "words": "a b\nc d",
        "ragged": "0.5 0.5\n1.0",
        "negative": "1.5,-0.5",
        "sum": "0.5 0.6",
        "three": "0.2 0.3 0.5",
        "nan": "nan 0.5",
        "comment": "# nothing",
        "binary": "\0\1\2",
        "json dict": "{}",
        "json number": "3",
        "json text": '"a"',
        "json null": "null",
        "json nested": "[[[0.5, 0.5]]]",
        "json cut": "[[0.5, 0.",
        "json texts": '[["a", "b"]]',
        "json bool": "[[true, false]]",
        "json mixed": "[[0.5, null]]",
    }
    for label, text in files.items():
        yield Case(
            f"read: {label}", partial(_read, text, ".json" if label.startswith("json") else ".csv")
        )
    for label, path in {
        "a folder": tempfile.gettempdir(),
        "nowhere": "/nowhere/at/all",
        "None": None,
        "number": 3,
        "empty": "",
        "null byte": "a\0b",
    }.items():
        yield Case(f"read from {label}", lambda p=path: read(p, 2))


def _read(text: str, ending: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"w{ending}"
        path.write_text(text)
        return bp.preferences.read(path, 2)
