"""What the battery runs on: small problems of any size and dtype, methods by name, and a problem
that counts derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods import METHODS, Method
from bipareto.methods.base import Info, State
from bipareto.problem import Problem, oracle
from bipareto.run.stepping import draw

#: lower levels: strongly convex, with one stationary point, and strongly convex with noise on every
#: gradient
KINDS = ("quadratic", "nonconvex", "noisy")


class Case(NamedTuple):
    """A method by name on a problem it takes, with its number of objectives and a start."""

    method: Method
    problem: Problem
    m: int
    x: Tensor
    y: Tensor

    def init(self, preference: Any = None) -> State:
        """The method's first state for a preference."""
        return self.method.init(self.problem, self.x, self.y, preference)


def made(
    m: int,
    kind: str = "quadratic",
    d: int = 3,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> tuple[Problem, Tensor, Tensor]:
    """f_i = ||x - p_i||^2/2 + ||y - q_i||^2/2 + 1 over g = sum phi(y - Ax), phi quadratic or u^2/2
    + 1.5 sin^2 u, and a start.
    """
    stream = torch.Generator().manual_seed(d)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64).to(device, dtype)

    # Drawn in an order that leaves the first objectives the same whatever m is.
    A, curvature, x, y = 0.5 * normal(d, d), 1 + 0.5 * normal(d).tanh(), normal(d), normal(d)
    p, q = zip(*((normal(d), normal(d)) for _ in range(m)), strict=True)
    p, q = torch.stack(p), torch.stack(q)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - p).square().sum(1) + (y - q).square().sum(1)) + 1

    def lower(x: Tensor, y: Tensor) -> Tensor:
        u = y - A @ x
        return (
            (0.5 * u.square() + 1.5 * u.sin().square()).sum()
            if kind == "nonconvex"
            else 0.5 * (curvature * u.square()).sum()
        )

    problem = Problem(upper, lower)
    return (oracle.noisy(problem, 0.1, x, y) if kind == "noisy" else problem), x, y


def case(name: str, kind: str = "quadratic", m: int = 2, **shape: Any) -> Case:
    """The method of that name, with its default numbers, on m objectives or on the one that it
    takes.
    """
    method = METHODS[name]()
    for count in (m, 1):
        problem, x, y = made(count, kind, **shape)
        try:
            method.begin(method.prepare(problem, x, y))
        except InvalidInput:
            continue
        return Case(method, problem, count, x, y)
    raise AssertionError(f"{name} takes neither {m} objectives nor one")


def preference_of(method: Method, m: int) -> Tensor | None:
    """An uneven preference for methods that have one."""
    w = torch.arange(1, m + 1, dtype=torch.float64)
    return w / w.sum() if method.uses_preference else None


def steps_of(
    given: Case, state: State, first: int, last: int, seed: int = 0
) -> Iterator[tuple[State, Info]]:
    """The states after steps first, ..., last - 1, with what they saw."""
    for t in range(first, last):
        state, info = given.method.step(
            given.problem, state, draw(given.problem, given.method.roles(given.m), t, [seed])
        )
        yield state, info


def dict_start() -> tuple[dict[str, Tensor], list[Tensor]]:
    """(x0, y0) of `DICT_PROBLEM`."""
    return {"a": torch.ones(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}, [
        torch.zeros(2, dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
    ]


def _dict_upper(x: dict[str, Tensor], y: list[Tensor]) -> Tensor:
    return torch.stack(
        [
            x["a"].square().sum() + (y[0] - 1).square().sum(),
            (x["b"] - 2).square().sum() + y[1].square().sum(),
        ]
    )


def _dict_lower(x: dict[str, Tensor], y: list[Tensor]) -> Tensor:
    return (y[0] - x["a"]).square().sum() + (y[1] - x["b"]).square().sum()


#: x a dict, y a list: the same arithmetic as on one flat vector
DICT_PROBLEM = Problem(_dict_upper, _dict_lower)


class Tapped(oracle.Counting):
    """A problem on single tensors that counts derivatives of g as autograd takes them, in a plain
    eager run.

    Every evaluation of g passes x and y through an identity that is told when it is differentiated,
    and when its derivative is: the first round of an evaluation is a gradient, each later arrival
    at x or at y is a product with g_xy or g_yy.
    """

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        evaluation = _Evaluation(self)
        return super().lower(_Tap.apply(x, evaluation), _Tap.apply(y, evaluation), batch)


class _Evaluation:
    def __init__(self, problem: Tapped) -> None:
        self.counts = problem.counts
        self.differentiated = self.again = False

    def arrive(self) -> None:
        if self.again:
            self.counts["hessian_products"] += 1
        elif not self.differentiated:
            self.differentiated = True
            self.counts["lower_gradients"] += 1


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, evaluation: _Evaluation) -> Tensor:
        ctx.evaluation = evaluation
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        ctx.evaluation.arrive()
        return _TapOfGradient.apply(cotangent, ctx.evaluation), None


class _TapOfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, evaluation: _Evaluation) -> Tensor:
        ctx.evaluation = evaluation
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        ctx.evaluation.again = True
        return cotangent, None
