"""Diagnoses: what is wrong with a run, the numbers that say so, and the remedy.

`diagnose` looks at a finished front or solution, `Watch` is a callback that does the same on the
way and warns, and `bipareto doctor RUN` reads a folder.  Every diagnosis is made from measured
numbers at the states of the runs, on all the data; `LOOKS` has all kinds of them, most urgent
first.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bipareto.doctor import networks as _networks  # noqa: F401 (enters its looks)
from bipareto.doctor.convergence import LOOKS
from bipareto.doctor.evidence import Case, Diagnoses, Diagnosis, Look, looks
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import Method
from bipareto.problem import Problem, tree, validation
from bipareto.problem.tree import Tree
from bipareto.run.results import Record, Solution

__all__ = [
    "LOOKS",
    "Case",
    "Diagnoses",
    "Diagnosis",
    "Look",
    "Watch",
    "diagnose",
    "examine",
    "looks",
    "reconciled",
]

__doc__ = (
    (__doc__ or "")
    + "\n"
    + "\n".join(
        f"- *{name}*: " + " ".join(seen.disease for seen in LOOKS if seen.name == name)
        for name in dict.fromkeys(seen.name for seen in LOOKS)
    )
)


def diagnose(found: ParetoFront | Solution, start: tuple[Tree, Tree] | None = None) -> Diagnoses:
    """What is wrong with a front or a solution; an empty list is a clean bill of health.

    Args:
        found: what `front` or `solve` returned (not loaded from a file: the runs' states are
            needed).
        start: (x0, y0); with it, features that collapse can be seen.

    >>> import torch
    >>> from bipareto.fronts.front import solve
    >>> problem = Problem(
    ...     upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]),
    ...     lower=lambda x, y: (y - x)**2,
    ... )
    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> diagnose(solve(problem, zero, zero, steps=2000))
    []
    """
    return examine(_case_of(found, start))


def _as_start(start: Any, found: ParetoFront | Solution) -> tuple[Tree, Tree]:
    """(x0, y0), of the shapes that the runs have."""
    if not isinstance(start, Sequence) or isinstance(start, str) or len(start) != 2:
        raise InvalidInput(f"start is {validation.shown(start)}; pass the pair (x0, y0)")
    runs = int(isinstance(found, ParetoFront))
    pair = tree.as_tree(start[0], "x0"), tree.as_tree(start[1], "y0")
    for name, given, held in zip(("x0", "y0"), pair, (found.x, found.y), strict=True):
        shapes = [leaf.shape for leaf in tree.leaves(given)]
        if shapes != [leaf.shape[runs:] for leaf in tree.leaves(held)]:
            raise InvalidInput(
                f"start's {name} has shapes {list(map(tuple, shapes))}, which are not those of the "
                "runs; pass the start that these had"
            )
    return pair


def _case_of(found: ParetoFront | Solution, start: tuple[Tree, Tree] | None) -> Case:
    validation.instance(
        found, "found", (ParetoFront, Solution), "pass what bipareto.front or solve returned"
    )
    if start is not None:
        start = _as_start(start, found)
    if isinstance(found, Solution):
        if found.problem is None:
            raise InvalidInput(
                "this solution does not know its problem; pass what bipareto.solve returned"
            )
        history = {
            name: values[:, None] for name, values in found.history.items() if name != "step"
        }
        w = (
            torch.full((1, found.objectives.shape[0]), torch.nan)
            if found.preference is None
            else found.preference[None]
        )
        return Case(
            found.problem,
            found.method,
            state=tree.expand(found.state, 1),
            preference=w.double(),
            history=history,
            failure=[found.failure],
            start=start,
            batched=False,
            raced=found.race is not None,
        )
    if found.run is None or found.problem is None or found.method is None:
        raise InvalidInput(
            "this front holds no run states (it was loaded from a file or filtered); use `bipareto "
            "doctor RUN`, or the front itself"
        )
    state = found.run.state
    history = {name: values for name, values in found.run.history.items() if name != "step"}
    return Case(
        found.problem,
        found.method,
        state=state,
        preference=found.preference,
        history=history,
        failure=found.failure,
        start=start,
        batched=found.batched,
        raced=found.race is not None,
    )


class Watch:
    """A callback that examines a run on its way and warns, once for every trouble: `front(...,
    callbacks=[Watch(problem, method)])`.

    Args:
        problem, method: those that are run.
        start: (x0, y0), to see features that collapse.
        every: records between two examinations; `solve` and `front` make about 200 records in all.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        *,
        start: tuple[Tree, Tree] | None = None,
        every: int = 50,
    ) -> None:
        self.problem, self.method, self.start, self.every = problem, method, start, every
        self.found: dict[str, Diagnosis] = {}
        self._seen: list[dict[str, Tensor]] = []

    def __call__(self, record: Record) -> None:
        """Take in what the loop hands to a callback."""
        batched = record.state.t.dim() == 1

        def lead(value: Any) -> Any:
            return value if batched else tree.expand(value, 1)

        self._seen.append({name: lead(value) for name, value in record.info.items()})
        if len(self._seen) % self.every:
            return
        state = lead(record.state)
        runs = state.t.shape[0]
        failure = [record.ended[r].failure if r in record.ended else None for r in range(runs)]
        history = {name: torch.stack([seen[name] for seen in self._seen]) for name in self._seen[0]}
        w = getattr(
            state, "preference", torch.full((runs, history["objectives"].shape[-1]), torch.nan)
        )
        case = Case(
            self.problem, self.method, state, w.double(), history, failure, self.start, batched
        )
        for diagnosis in examine(case, ended=False):
            if diagnosis.name not in self.found:
                self.found[diagnosis.name] = diagnosis
                warnings.warn(f"at step {record.step}, {diagnosis}", BiparetoWarning, stacklevel=2)


def examine(case: Case, *, ended: bool = True) -> Diagnoses:
    """All diagnoses of a case, most urgent first.  What a trouble found earlier explains is not
    reported again for the same run.

    Args:
        ended: whether the runs have; some troubles are none on the way.
    """
    if case.alive and not len(
        case.history.get("objectives", ())
    ):  # a folder of a run that was stopped at once has no such column
        raise InvalidInput(
            "these runs were stopped before anything was recorded: there is nothing to examine; "
            "let them make more steps"
        )
    found = Diagnoses()
    rest = case  # one object as long as nothing is found: it keeps what it has computed
    for look in looks():
        if look.at_end and not ended:
            continue
        if seen := look.examine(rest):
            found += seen
            rest = replace(
                case, ignored=frozenset(r for diagnosis in found for r in diagnosis.runs)
            )
    return reconciled(found)


def reconciled(found: Diagnoses) -> Diagnoses:
    """Diagnoses whose remedies do not contradict each other.

    All runs of a method share their penalty c.  Where it is too weak for some and too strong for
    others no c is right: y's directions differ too much in curvature, and that is the trouble.
    """
    named = {diagnosis.name: diagnosis for diagnosis in found}
    weak, strong = named.get("penalty-too-weak"), named.get("penalty-too-strong")
    if weak is None or strong is None:
        return found
    both = Diagnosis(
        "no-penalty-fits",
        tuple(sorted({*weak.runs, *strong.runs})),
        f"the penalty is too weak for {len(weak.runs)} runs ({weak.seen}) and too strong for "
        f"{len(strong.runs)} others ({strong.seen}): the lower level is ill-conditioned",
        "leave c and give more steps, or rescale y so that g curves alike in all directions",
        {f"weak {key}": value for key, value in weak.numbers.items()}
        | {f"strong {key}": value for key, value in strong.numbers.items()},
    )
    return Diagnoses([both, *(item for item in found if item is not weak and item is not strong)])
