"""What the doctor examines, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods import Method, Twin
from bipareto.methods.base import State
from bipareto.methods.parts import curvature, envelope
from bipareto.problem import Problem, tree
from bipareto.problem.notebook import html_table
from bipareto.problem.plugins import Registry
from bipareto.problem.tree import Tree
from bipareto.run.race import comes_in_batches
from bipareto.run.results import Failure
from bipareto.run.training import train_on

#: Adam's rate for trainings of y, which stop where g does not fall
RATE = 1e-2


@dataclass(frozen=True)
class Diagnosis:
    """One trouble: its name, which runs have it (places on the run axis), the numbers seen, and
    what to do, in words.
    """

    name: str
    runs: tuple[int, ...]
    seen: str
    remedy: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        which = ", ".join(map(str, self.runs[:6])) + (", ..." if len(self.runs) > 6 else "")
        runs = "runs" if len(self.runs) > 1 else "run"
        return f"{self.name} ({runs} {which}): {self.seen}. Remedy: {self.remedy}"

    def _repr_html_(self) -> str:
        return Diagnoses([self])._repr_html_()


class Diagnoses(list[Diagnosis]):
    """All diagnoses of a front or a solution, a list; none is a clean bill of health."""

    def _repr_html_(self) -> str:
        if not self:
            return "<p>No trouble found.</p>"
        rows = [[d.name, ", ".join(map(str, d.runs)), d.seen, d.remedy] for d in self]
        return html_table(rows, ["diagnosis", "runs", "seen", "remedy"])


@dataclass(frozen=True)
class Case:
    """What is examined: R runs stacked along a first axis.

    state: the method's own, as the runs left it; preference (R, m), NaN without; history: name ->
    (records, R, ...); failure: one per run; start: (x0, y0) where it is known; raced: whether the
    answers were held against x0 by trainings.
    """

    problem: Problem
    method: Method
    state: State
    preference: Tensor
    history: Mapping[str, Tensor]
    failure: Sequence[Failure | None]
    start: tuple[Tree, Tree] | None = None
    batched: bool = True
    raced: bool = False
    #: runs that are left out, because another trouble explains whatever they show
    ignored: frozenset[int] = frozenset()

    @property
    def x(self) -> Tree:
        """x as the runs left it."""
        return self.state.x

    @property
    def y(self) -> Tree:
        """y as the runs left it, not solved again."""
        return self.state.y

    @property
    def network(self) -> bool:
        """Whether the lower level is a training on data in batches."""
        return comes_in_batches(self.problem)

    @property
    def runs(self) -> int:
        """R."""
        return self.preference.shape[0]

    @cached_property
    def alive(self) -> list[int]:
        """The runs whose last state is finite and that are not ignored."""
        leaves = [*tree.leaves(self.x), *tree.leaves(self.y)]
        finite = (
            torch.stack([torch.isfinite(leaf).reshape(self.runs, -1).all(1) for leaf in leaves])
            .all(0)
            .tolist()
        )
        return [
            r
            for r in range(self.runs)
            if finite[r] and self.failure[r] is None and r not in self.ignored
        ]

    @cached_property
    def solved(self) -> envelope.LowerSolution:
        """The lower level of all runs solved again, from the returned y."""
        size = max(float(tree.norm(self.y)), 1.0)
        tol = 1e-8 if tree.first_leaf(self.y).dtype == torch.float64 else 1e-5 * size
        return envelope.solve_lower(
            self.problem, self.x, self.y, tol=tol, max_iter=50, batched=self.batched
        )

    @cached_property
    def objectives(self) -> Tensor:
        """f at the returned y (R, m)."""
        return self.at(self.y)

    @cached_property
    def resolved(self) -> Tensor:
        """f with the lower level solved (R, m); of a network, with y trained on by g alone."""
        if not self.network:
            return self.at(self.solved.y)
        if isinstance(self.method, Twin):
            return self.objectives  # its y has learned from g alone
        y = train_on(
            self.problem, self.x, self.y, rate=RATE, steps=100, rounds=3, batched=self.batched
        )
        return self.at(y)

    def at(self, y: Tree) -> Tensor:
        """f(x, y) on all data (R, m)."""
        batch = self.problem.batch("upper", "full")
        with torch.no_grad():
            return torch.stack(
                [self.problem.upper(*self.point(r, y), batch) for r in range(self.runs)]
            ).double()

    def point(self, r: int, y: Tree | None = None) -> tuple[Tree, Tree]:
        """(x, y) of one run."""
        return tree.select(self.x, r), tree.select(self.y if y is None else y, r)

    @cached_property
    def span(self) -> Tensor:
        """How far each objective travels (R, m): over the records of a run, over the front, and
        never below a fifth of its size.
        """
        seen = self.history["objectives"].double()
        own = seen.amax(0) - seen.amin(0)
        front = (
            (self.resolved[self.alive].amax(0) - self.resolved[self.alive].amin(0))
            if self.alive
            else own.amax(0)
        )
        return torch.maximum(torch.maximum(own, front), 0.2 * self.objectives.abs()).clamp_min(
            1e-12
        )

    @cached_property
    def curvature(self) -> dict[int, tuple[float, float]]:
        """Smallest and largest curvature of g in y at the returned points."""
        return {r: extreme_curvatures(self.problem, *self.point(r)) for r in self.alive}

    def number(self, name: str) -> Tensor | None:
        """A number of the method per run (R,) at the last step: gamma, mu, or a schedule such
        as c.
        """
        knobs = getattr(self.state, "knobs", None)
        value = getattr(knobs, name, None)
        if value is None:
            return None
        t = (self.state.t - 1).clamp_min(0)
        return (value(t) if callable(value) else value).expand(self.runs).double()


def extreme_curvatures(problem: Problem, x: Tree, y: Tree) -> tuple[float, float]:
    """Smallest and largest curvature of g in y at a point, as far as twenty products show."""
    stream = torch.Generator().manual_seed(0)
    return curvature.extremes(curvature.lower_in_y(problem, x, y), tree.ravel(y), stream, 20)


def diagnosed(
    name: str, seen_by_run: Mapping[int, Mapping[str, float]], seen: str, remedy: str
) -> list[Diagnosis]:
    """One diagnosis for the runs that have it, with the numbers of the worst (the first key of its
    numbers decides); none for none.
    """
    if not seen_by_run:
        return []
    worst = max(seen_by_run.values(), key=lambda numbers: abs(next(iter(numbers.values()))))
    numbers = {key: float(value) for key, value in worst.items()}
    return [
        Diagnosis(
            name,
            tuple(sorted(seen_by_run)),
            seen.format(**numbers),
            remedy.format(**numbers),
            numbers,
        )
    ]


class Look(NamedTuple):
    """One kind of trouble: its name, what it is in a sentence, what finds it in a case, and whether
    it is none before the run has ended.
    """

    name: str
    disease: str
    examine: Callable[[Case], list[Diagnosis]]
    at_end: bool = False


#: in the order of urgency: what an earlier one explains is not looked at again
LOOKS: list[Look] = []
_OF_OTHERS: Registry[Callable[[Case], list[Diagnosis]]] = Registry("diagnoses", {})


def looks() -> list[Look]:
    """All of `LOOKS`, then those of other packages: entry points of the group bipareto.diagnoses,
    functions of a case whose docstring says what the trouble is.
    """
    return LOOKS + [Look(name, sentence(examine), examine) for name, examine in _OF_OTHERS.items()]


def sentence(thing: Any) -> str:
    """What a class or function is, by the first paragraph of its docstring."""
    return " ".join((thing.__doc__ or "").strip().split("\n\n")[0].split())


def look(
    name: str, *, at_end: bool = False
) -> Callable[[Callable[[Case], list[Diagnosis]]], Callable[[Case], list[Diagnosis]]]:
    """Enter a function of a case among the looks; its docstring says what the trouble is.

    Args:
        name: of its diagnoses.
        at_end: look at runs that have ended only.
    """

    def enter(examine: Callable[[Case], list[Diagnosis]]) -> Callable[[Case], list[Diagnosis]]:
        LOOKS.append(Look(name, sentence(examine), examine, at_end))
        return examine

    return enter
