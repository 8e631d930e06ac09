"""Starts that cannot be used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bipareto as bp
from misuse.harness import Case
from misuse.setting import DOUBLE, front, lower, method, problem, solve, start, upper


class _Frozen(nn.Module):
    def __init__(self, *frozen: str) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.full((3,), 0.3, dtype=DOUBLE), requires_grad="a" not in frozen)
        self.b = nn.Parameter(torch.full((3,), -0.5, dtype=DOUBLE), requires_grad="b" not in frozen)


def _with_frozen(place: str, *frozen: str) -> Any:
    x0, y0 = start()
    module = _Frozen(*frozen)
    given = {"x0": x0, "y0": y0} | {place: module}

    def pair(v: Any) -> tuple[Tensor, Tensor]:
        return (
            (v.get("a", module.a.detach()), v.get("b", module.b.detach()))
            if isinstance(v, dict)
            else (v, v)
        )

    def f(x: Any, y: Any) -> Tensor:
        (xa, xb), (ya, yb) = pair(x), pair(y)
        return upper(xa, ya) + upper(xb, yb)

    def g(x: Any, y: Any) -> Tensor:
        (xa, xb), (ya, yb) = pair(x), pair(y)
        return lower(xa, ya) + lower(xb, yb)

    answer = bp.solve(bp.Problem(f, g), **given, method=method(), steps=3, progress=False)
    return getattr(answer, place[0]), module, frozen


def _kept(value: Any) -> bool:
    tree, module, frozen = value
    return all(
        name not in tree or torch.equal(tree[name], getattr(module, name)) for name in frozen
    )


def tree_cases() -> Iterator[Case]:
    one = torch.full((3,), 0.3, dtype=DOUBLE)
    bad: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "number": lambda: 0.3,
        "whole number": lambda: 3,
        "text": lambda: "a",
        "array": lambda: one.numpy(),
        "list of numbers": lambda: [0.1, 0.2, 0.3],
        "empty list": list,
        "empty dict": dict,
        "empty tuple": tuple,
        "dict with None": lambda: {"a": one, "b": None},
        "dict with text": lambda: {"a": one, "b": "c"},
        "integers": lambda: torch.ones(3, dtype=torch.int64),
        "booleans": lambda: torch.ones(3, dtype=torch.bool),
        "complex": lambda: one.to(torch.complex128),
        "empty tensor": lambda: torch.zeros(0, dtype=DOUBLE),
        "nan": lambda: one * math.nan,
        "inf": lambda: one + math.inf,
        "half": one.half,
        "bfloat16": one.bfloat16,
        "float32": one.float,
        "sparse": one.to_sparse,
        "sparse csr": lambda: torch.eye(3, dtype=DOUBLE).to_sparse_csr(),
        "meta": lambda: one.to("meta"),
        "generator": lambda: (v for v in (one,)),
        "set": lambda: {one},
        "object": object,
        "function": lambda: start,
        "module class": lambda: nn.Linear,
        "module without parameters": nn.ReLU,
        "quantized": lambda: torch.quantize_per_tensor(one.float(), 0.1, 0, torch.quint8),
        "float8": lambda: one.to(torch.float8_e4m3fn),
        "nested": lambda: torch.nested.nested_tensor([one, one[:2]]),
        "lazy module": lambda: nn.LazyLinear(2),
        "module float32": lambda: nn.Linear(3, 1),
        "numpy inside": lambda: {"a": one.numpy()},
        "problem": problem,
        "other shape": lambda: torch.zeros(4, dtype=DOUBLE),
        "a batch": lambda: one.expand(7, 3, 3),
        "dict with odd keys": lambda: {(1, 2): one},
        "None inside list": lambda: [one, None],
        "string tensor": lambda: np.array(["a"]),
        "masked": lambda: np.ma.array([1.0, 2.0, 3.0]),
    }
    for label, build in bad.items():
        for place in ("x0", "y0"):
            # Losses ask for one tensor: one that takes any nesting would hide what is wrong.
            accepted = _broadcasts if label == "a batch" else None
            yield Case(
                f"solve: {place} = {label}",
                lambda b=build, p=place: solve(**{p: b()}),
                right=accepted,
                raises=(TypeError, AttributeError, RuntimeError)
                if label in ("other shape", "dict with odd keys")
                else (),
            )
            if label not in ("other shape", "dict with odd keys", "a batch"):
                yield Case(f"front: {place} = {label}", lambda b=build, p=place: front(**{p: b()}))
                yield Case(
                    f"tuned: {place} = {label}",
                    lambda b=build, p=place: bp.MOMEHA.tuned(
                        problem(), **(dict(zip(("x0", "y0"), start(), strict=True)) | {p: b()})
                    ),
                )
                yield Case(
                    f"certify: {place[0]} = {label}",
                    lambda b=build, p=place: bp.certify(
                        problem(), **(dict(zip(("x", "y"), start(), strict=True)) | {p[0]: b()})
                    ),
                )
                yield Case(
                    f"Optimizer: {place} = {label}",
                    lambda b=build, p=place: bp.Optimizer(
                        problem(),
                        **(dict(zip(("x0", "y0"), start(), strict=True)) | {p: b()}),
                        method=method(),
                    ),
                )
    leaf = torch.full((3,), 0.3, dtype=DOUBLE, requires_grad=True)
    good = {
        "requires grad": leaf,
        "not a leaf": leaf * 1,
        "a parameter": nn.Parameter(one),
        "expanded": torch.tensor(0.3, dtype=DOUBLE).expand(3),
        "transposed": one[None].T[:, 0],
        "negated view": one.neg().neg(),
    }
    reference = solve().x
    for label, value in good.items():
        yield Case(
            f"solve: x0 = {label}",
            lambda v=value: solve(x0=v).x,
            right=lambda x: torch.equal(x, reference) and not x.requires_grad,
        )
        yield Case(
            f"certify: x = {label}",
            lambda v=value: bp.certify(problem(), v, start()[1]),
            right=lambda c: c.gradients > 0,
        )
    with torch.inference_mode():
        strange = torch.full((3,), 0.3, dtype=DOUBLE)
    yield Case(
        "solve: x0 = inference tensor",
        lambda: solve(x0=strange).x,
        right=lambda x: torch.equal(x, reference),
    )
    yield Case(
        "solve: x0 and y0 are one tensor",
        lambda: solve(x0=one, y0=one),
        right=lambda s: (
            torch.equal(one, torch.full((3,), 0.3, dtype=DOUBLE)) and not torch.equal(s.x, s.y)
        ),
    )
    for place in ("x0", "y0"):
        for frozen in (("a",), ("b",), ("a", "b")):
            yield Case(
                f"solve: {place} = module with {' and '.join(frozen)} frozen",
                lambda p=place, f=frozen: _with_frozen(p, *f),
                right=_kept,
            )


def _broadcasts(solution: Any) -> bool:
    return True
