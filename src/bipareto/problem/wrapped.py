"""A problem inside another: what a wrapper hands on of the one it holds."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from bipareto.problem.base import Problem
from bipareto.problem.sampler import Role, Sampler
from bipareto.problem.tree import Tree


class Wrapped(Problem):
    """A problem that asks another, `inner`; wrappers override the evaluations that they change.

    Args:
        problem: the one inside.
        sampler: draws in place of its own.
    """

    def __init__(self, problem: Problem, sampler: Sampler | None = None) -> None:
        super().__init__(
            problem.upper, problem.lower, sampler=sampler or problem.sampler, names=problem.names
        )
        self.inner, self.parts, self.per_objective = problem, problem.parts, problem.per_objective
        self.draws, self.has_test = problem.draws, problem.has_test
        self.mixed = problem.mixed

    def upper(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return self.inner.upper(x, y, batch)

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return self.inner.objective(i, x, y, batch)

    def lower(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return self.inner.lower(x, y, batch)

    def lower_part(self, part: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return self.inner.lower_part(part, x, y, batch)

    def _watching(self) -> AbstractContextManager[object]:
        return self.inner._watching()

    def _check_reach(self, f: Any, g: Any, known: Any) -> None:
        self.inner._check_reach(f, g, known)

    def with_key(self, role: Role, t: int, seed: int, batch: Any) -> Any:
        return self.inner.with_key(role, t, seed, batch)

    def write_back(self, x: Tree, y: Tree, module_x: Any, module_y: Any) -> None:
        self.inner.write_back(x, y, module_x, module_y)
