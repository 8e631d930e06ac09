"""What is asked of fronts, and their files."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bipareto as bp
from bipareto.fronts import measures
from misuse.harness import Case
from misuse.setting import DOUBLE, front, lower, method, problem, start, upper
from misuse.values import NEGATIVE, NONE, NOT_A_NUMBER, NOT_WHOLE, ZERO, over


def made() -> Any:
    """A front of three runs that end for different reasons."""
    wall = 2.5

    def f(x: Tensor, y: Tensor) -> Tensor:
        return upper(x, y) + torch.where(x.sum() > wall, math.nan, 0.0)

    return bp.front(
        bp.Problem(f, lower),
        *start(),
        method=method(),
        preferences=[[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]],
        steps=40,
        progress=False,
    )


def _reasons_follow(front: Any, mask: Any, rows: list[int]) -> bool:
    part = front.subset(mask)
    return (
        part.reason == tuple(front.reason[r] for r in rows)
        and torch.equal(part.objectives.nan_to_num(), front.objectives[rows].nan_to_num())
        and len(part.failure) == len(rows)
    )


def _solved(front: Any) -> bool:
    return bool((front.lower_residual < 1e-6).all())


def front_cases() -> Iterator[Case]:
    whole = made()
    one = front()
    for label, mask, rows in (
        ("boolean tensor", torch.tensor([False, True, True]), [1, 2]),
        ("boolean array", np.array([False, True, True]), [1, 2]),
        ("booleans", [False, True, True], [1, 2]),
        ("numbers", [2, 0], [2, 0]),
        ("array", np.array([2, 0]), [2, 0]),
        ("tensor", torch.tensor([2, 0]), [2, 0]),
        ("slice", slice(1, None), [1, 2]),
        ("negative", torch.tensor([-1]), [2]),
        ("twice", torch.tensor([1, 1]), [1, 1]),
        ("nothing", torch.zeros(3, dtype=torch.bool), []),
        ("empty", torch.zeros(0, dtype=torch.int64), []),
        (
            "condition",
            whole.objectives[:, 0] < 1e9,
            (whole.objectives[:, 0] < 1e9).nonzero().flatten().tolist(),
        ),
        ("range", range(2), [0, 1]),
        ("uint8", torch.tensor([0, 1, 1], dtype=torch.uint8), [0, 1, 1]),
    ):
        yield Case(
            f"subset: {label}", lambda m=mask, r=rows: _reasons_follow(whole, m, r), right=bool
        )
    for label, mask in {
        "short mask": torch.tensor([True, False]),
        "long mask": torch.ones(9, dtype=torch.bool),
        "text": "abc",
        "None": None,
        "number": 1.5,
        "out of range": torch.tensor([7]),
        "halves": torch.tensor([0.5]),
        "matrix": torch.zeros(2, 2, dtype=torch.int64),
        "dict": {},
        "texts": ["a"],
        "nan": torch.tensor([math.nan]),
    }.items():
        yield Case(f"subset: {label}", lambda m=mask: one.subset(m), raises=(IndexError,))
    for label, index in {
        "text": "a",
        "None": None,
        "half": 0.5,
        "mask": torch.tensor([True, False, True]),
        "list": [0],
        "slice": slice(2),
        "nan": math.nan,
        "tuple": (0, 1),
        "array": np.array([0, 1]),
        "True": True,
    }.items():
        yield Case(
            f"front[{label}]",
            lambda i=index: one[i],
            raises=(IndexError,),
            right=(lambda v, i=index: len(v) == 2)
            if label in ("mask", "slice", "array")
            else (lambda v: len(v) == 1)
            if label == "list"
            else None,
        )
        yield Case(f"front.point({label})", lambda i=index: one.point(i), raises=(IndexError,))
    for label, index in {"tensor": torch.tensor(1), "numpy": np.int64(1), "negative": -2}.items():
        yield Case(
            f"front[{label}]",
            lambda i=index: one[i].objectives,
            right=lambda f: torch.equal(f, one.objectives[1]),
        )
        yield Case(
            f"front.point({label})",
            lambda i=index: one.point(i)[0],
            right=lambda x: torch.equal(x, one.x[1]),
        )
    yield Case("front[9]", lambda: one[9], raises=(IndexError,))
    corners: dict[str, Any] = {
        "text": "a",
        "number": 3.0,
        "three": [1.0, 2.0, 3.0],
        "nan": [math.nan, 1.0],
        "None": None,
        "inf": [math.inf, 1.0],
        "texts": ["a", "b"],
        "empty": [],
        "matrix": [[1.0, 2.0]],
        "complex": [1j, 1],
        "dict": {},
        "object": object(),
        "booleans": [True, True],
        "meta": torch.zeros(2, device="meta"),
    }
    yield from over("front.hypervolume", one.hypervolume, "reference", corners)
    yield from over(
        "front.hypervolume",
        one.hypervolume,
        "reference",
        {"better than the front": [-9.0, -9.0]},
        may_warn=True,
        right=lambda v: v == 0.0,
    )
    yield from over(
        "measure", lambda reference: measures.measure(one, reference), "reference", corners
    )
    rows: dict[str, Any] = {
        "text": "a",
        "number": 3.0,
        "vector": [1.0, 2.0],
        "None": None,
        "ragged": [[1.0], [1.0, 2.0]],
        "texts": [["a", "b"]],
        "complex": [[1j, 1]],
        "dict": {},
        "object": object(),
        "cube": np.zeros((2, 2, 2)),
        "front": one,
        "meta": torch.zeros(2, 2, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
    }
    yield from over(
        "hypervolume",
        lambda objectives: measures.hypervolume(objectives, [2.0, 2.0]),
        "objectives",
        rows,
    )
    yield from over(
        "igd_plus",
        lambda objectives: measures.igd_plus(objectives, [[0.0, 0.0]]),
        "objectives",
        rows,
    )
    yield from over(
        "igd_plus",
        lambda target: measures.igd_plus([[0.0, 0.0]], target),
        "target",
        rows
        | {"three columns": [[1.0, 2.0, 3.0]], "nan": [[math.nan, 0.0]], "empty": np.zeros((0, 2))},
    )
    yield from over("spread", measures.spread, "objectives", rows)
    yield from over(
        "response",
        lambda preference: measures.response([[1.0, 2.0], [2.0, 1.0]], preference),
        "preference",
        rows | {"other length": [[0.5, 0.5]] * 3, "three columns": [[0.2, 0.3, 0.5]] * 2},
    )
    yield from over(
        "response",
        lambda seed: measures.response([[1.0, 2.0], [2.0, 1.0]], [[0.2, 0.8], [0.8, 0.2]], seed),
        "seed",
        {"text": "a", "short": [0], "long": [0, 1, 2], "matrix": [[0, 1]], "texts": ["a", "b"]},
    )
    yield from over(
        "attainment",
        lambda objectives: measures.attainment(objectives, [0, 1]),
        "objectives",
        rows | {"four columns": np.zeros((2, 4)), "other length": np.zeros((3, 2))},
    )
    yield from over(
        "attainment",
        lambda seed: measures.attainment([[1.0, 2.0], [2.0, 1.0]], seed),
        "seed",
        {"text": "a", "short": [0], "long": [0, 1, 2], "texts": ["a", "b"]},
    )
    yield from over(
        "attainment",
        lambda percentiles: measures.attainment([[1.0, 2.0], [2.0, 1.0]], [0, 1], percentiles),
        "percentiles",
        {
            "text": "a",
            "above": [200],
            "negative": [-1],
            "nan": [math.nan],
            "number": 50,
            "texts": ["a"],
        },
    )
    for label, value in NOT_A_NUMBER.items():
        yield Case(f"resolve_lower: tol = {label}", lambda v=value: one.resolve_lower(tol=v))
        yield Case(
            f"resolve_lower: max_iter = {label}", lambda v=value: one.resolve_lower(max_iter=v)
        )
    for label, value in ({"nan": math.nan, "None": None} | NEGATIVE | ZERO).items():
        yield Case(
            f"resolve_lower: tol = {label}",
            lambda v=value: one.resolve_lower(tol=v),
            may_warn=True,
            right=_solved,
        )
    for label, value in (NOT_WHOLE | NEGATIVE | NONE).items():
        yield Case(
            f"resolve_lower: max_iter = {label}",
            lambda v=value: one.resolve_lower(max_iter=v),
            may_warn=True,
        )
    for label, value in {"text": "a", "number": 3, "class": bp.Problem, "function": upper}.items():
        yield Case(
            f"resolve_lower: problem = {label}", lambda v=value: one.resolve_lower(problem=v)
        )
    places = {
        "a folder": tempfile.gettempdir(),
        "nowhere": "/nowhere/front.npz",
        "None": None,
        "number": 3,
        "empty": "",
        "null byte": "a\0b",
        "in a file": "/etc/passwd/front.npz",
        "read-only": "/proc/front.npz",
        "long": "/tmp/" + "a" * 5000,
        "list": [],
    }
    for label, path in places.items():
        yield Case(f"save: {label}", lambda p=path: one.save(p))
        yield Case(f"load: {label}", lambda p=path: bp.ParetoFront.load(p))
        if label != "None":
            yield Case(f"plot: {label}", lambda p=path: one.plot(p))
    yield Case("plot: unknown ending", lambda: one.plot("front.xyz"))
    for label, value in {
        "text": "a",
        "three columns": torch.zeros(3, 3),
        "vector": torch.zeros(3),
        "number": 3,
        "texts": [["a", "b"]],
    }.items():
        yield Case(f"plot: exact = {label}", lambda v=value: one.plot(exact=v))
    for label, value in {
        "one": ["a"],
        "three": ["a", "b", "c"],
        "number": 3,
        "numbers": [1, 2],
    }.items():
        yield Case(
            f"plot: names = {label}", lambda v=value: one.plot(names=v), right=lambda figure: False
        )
    for label, change in _damages():
        yield Case(f"load: {label}", partial(_loaded, one, change))
    yield from over(
        "diagnose",
        bp.diagnose,
        "found",
        {
            "text": "a",
            "None": None,
            "number": 3,
            "tensor": torch.zeros(2),
            "list": [one],
            "problem": problem(),
            "filtered": one.subset(torch.tensor([0])),
        },
    )
    yield from over(
        "diagnose",
        lambda start: bp.diagnose(one, start),
        "start",
        {
            "text": "ab",
            "number": 3,
            "one": (start()[0],),
            "tensor": torch.zeros(3),
            "Nones": (None, None),
            "shapes": (torch.zeros(5, dtype=DOUBLE), torch.zeros(5, dtype=DOUBLE)),
        },
    )


def _damages() -> Iterator[tuple[str, Callable[[dict[str, Any]], Any]]]:
    def meta(**changes: Any) -> Callable[[dict[str, Any]], Any]:
        def change(arrays: dict[str, Any]) -> None:
            arrays["meta"] = np.array(json.dumps(json.loads(str(arrays["meta"])) | changes))

        return change

    yield "without objectives", lambda arrays: arrays.pop("objectives")
    yield "without meta", lambda arrays: arrays.pop("meta")
    yield "without x", lambda arrays: arrays.pop("x.0")
    yield "without seed", lambda arrays: arrays.pop("seed")
    yield "fewer rows of x", lambda arrays: arrays.update({"x.0": arrays["x.0"][:1]})
    yield (
        "fewer rows of objectives",
        lambda arrays: arrays.update(objectives=arrays["objectives"][:1]),
    )
    yield (
        "texts for objectives",
        lambda arrays: arrays.update(objectives=np.array([["a", "b"]] * 3)),
    )
    yield "a vector for objectives", lambda arrays: arrays.update(objectives=np.zeros(3))
    yield "fewer reasons", meta(reason=["steps"])
    yield "unknown reason", meta(reason=["because"] * 3)
    yield "reason number", meta(reason=3)
    yield "failure text", meta(failure="a")
    yield "layout other", meta(layout={"x": {"dict": {"a": None, "b": None}}, "y": None})
    yield "layout nonsense", meta(layout={"x": {"what": []}, "y": None})
    yield "layout missing", meta(layout={})
    yield "format 99", meta(format=99)
    yield "seconds text", meta(seconds="a")
    yield "meta number", lambda arrays: arrays.update(meta=np.array("3"))
    yield "meta cut", lambda arrays: arrays.update(meta=np.array(str(arrays["meta"])[:20]))


def _loaded(front: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "front.npz"
        front.save(path)
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        change(arrays)
        with path.open("wb") as stream:
            np.savez(stream, **arrays)
        return bp.ParetoFront.load(path)
