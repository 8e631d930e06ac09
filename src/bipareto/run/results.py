"""What a run leaves behind: the records that callbacks see, the snapshot to go on from, the run,
and the `Solution`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from bipareto.errors import BiparetoWarning
from bipareto.methods import Method
from bipareto.methods.base import Info, State
from bipareto.problem import Problem, tree
from bipareto.problem.modules import copy_into
from bipareto.problem.notebook import frame, html_table, text_table
from bipareto.problem.tree import Tree
from bipareto.run.race import Race


class Leak(NamedTuple):
    """Objectives (m,) at the y that a run returned (None where that is the next row), with y solved
    or trained on g alone, and the same on data that no step has seen (None without `test_data`).

    From the first row to the second y unlearns what F's pull has taught it of the upper level's
    data; from the second to the third x is judged on data that it did not learn from.
    """

    own: Tensor | None
    objectives: Tensor
    test: Tensor | None

    def rows(self) -> list[tuple[str, Tensor]]:
        """What is known, each with its name."""
        names = ("y as returned", "y trained on g", "held-out data")
        return [(name, row) for name, row in zip(names, self, strict=True) if row is not None]

    def __str__(self) -> str:
        return "\n".join(
            f"{name:16}" + "".join(f"{value:12.5g}" for value in row.tolist())
            for name, row in self.rows()
        )


Reason = Literal["steps", "converged", "callback", "interrupted", "nonfinite"]


@dataclass(frozen=True)
class Record:
    """What a callback sees: steps done so far, the state after them, and the last step's info (with
    a run axis in a front).

    best: the best iterates so far, in the host's memory where there are millions of coordinates;
    ended: the runs that have already stopped, by their place on the run axis.
    """

    step: int
    state: State
    info: Info
    best: dict[str, Any] = field(default_factory=dict)
    ended: Mapping[int, Ended] = field(default_factory=dict)


Callback = Callable[[Record], bool | None]


@dataclass(frozen=True)
class Iterate:
    """A point on the way: x, y, the objectives (m,) there as the step saw them, the method's
    residual, and the step t.

    Of a run that was stopped before anything was recorded it is where the run stood: objectives
    NaN, residual infinite.
    """

    x: Tree
    y: Tree
    objectives: Tensor
    residual: float
    step: int


@dataclass(frozen=True)
class Failure:
    """Where a run left the finite numbers: the step, and the term that did ("f_2", "g", or the
    update of x, y or theta).
    """

    step: int
    term: str

    def __str__(self) -> str:
        return (
            f"{self.term} was NaN or infinite at step {self.step}; the state before it is kept. "
            "Smaller steps or a larger c are the usual remedy"
        )


def warn_of_failures(
    failures: Sequence[Failure | None], answer: str = "the values of such a run are no answer"
) -> None:
    """Say, once for all runs, that some left the finite numbers: where, and what to do.

    Args:
        answer: what is returned for such a run, in words.
    """
    bad = [failure for failure in failures if failure is not None]
    if not bad:
        return
    first = min(bad, key=lambda failure: failure.step)
    terms = ", ".join(sorted({failure.term for failure in bad}))
    which = f"{len(bad)} of {len(failures)} runs" if len(failures) > 1 else "the run"
    warnings.warn(
        f"{which} left the finite numbers ({terms}; first at step {first.step}) and stopped there "
        f"with the state before it; {answer}. Where f or g is undefined somewhere (a log or root "
        "of a negative number), write it so that it is not; else take smaller steps, e.g. "
        "dataclasses.replace(front.method, alpha_x=...), or start nearer. bipareto.diagnose says "
        "more",
        BiparetoWarning,
        stacklevel=3,
    )


class Ended(NamedTuple):
    """A run that has stopped: its last state, its steps, and why."""

    state: State
    steps: int
    reason: Reason
    failure: Failure | None


@dataclass(frozen=True)
class Snapshot:
    """What `drive` needs to go on from the end of a block as if it had never stopped; the draws
    need nothing, being pure in t.

    history: what was recorded up to `step`, rows as in `Run.history`; the others as in `Record`.
    """

    step: int
    state: State
    best: dict[str, Any]
    ended: Mapping[int, Ended]
    history: dict[str, Tensor]


@dataclass(frozen=True, repr=False)
class Solution:
    """The answer of one run.

    x, y, theta: the last iterate (theta is None for methods without one); objectives: f(x, y) on
    all data, shape (m,); best: the recorded iterate with the smallest residual, for which the
    theory's rates hold; history: what was recorded, name -> tensor with one row per record,
    `history["step"]` the step of each row; remaining: what all objectives can still gain together,
    a share of the front's extent, None where it was not looked at (`bipareto.certify` does);
    unseen: why it was not, in words.
    """

    x: Tree
    y: Tree
    theta: Tree | None
    objectives: Tensor
    best: Iterate
    reason: Reason
    failure: Failure | None
    preference: Tensor | None
    seed: int
    steps: int
    seconds: float
    oracles: dict[str, int]
    history: dict[str, Tensor]
    method: Method
    state: State = field(repr=False)
    problem: Problem | None = field(default=None, repr=False)
    remaining: float | None = None
    unseen: str | None = None
    #: the objectives (m,) at the y that the run returned, where y has been replaced since
    own: Tensor | None = None
    #: the objectives (m,) on `test_data`, which no step has seen, where there is any
    test: Tensor | None = None
    #: what was tried before the run, where the method was found by a race
    race: Race | None = field(default=None, repr=False)

    @property
    def leak(self) -> Leak:
        """What y and x have learned of the upper level's data."""
        return Leak(self.own, self.objectives, self.test)

    def write_back(self, x: nn.Module | Tree | None, y: nn.Module | Tree | None) -> None:
        """Copy the answer into modules (or tensors) like those the run started from.

        The running statistics of their norm layers, which a run does without, are estimated for the
        answer on all the data.

        Args:
            x, y: what `Problem.from_modules` was given, or others with the same parameters; None
                leaves one out.
        """
        if self.problem is None:
            copy_into("x", self.x, x)
            copy_into("y", self.y, y)
        else:
            self.problem.write_back(self.x, self.y, x, y)

    def to_dataframe(self) -> Any:
        """What was recorded as a pandas DataFrame: step, f1..fm, and what the method reports."""
        rows = dict(self.history)
        objectives = {f"f{i}": f for i, f in enumerate(rows.pop("objectives").T.tolist(), 1)}
        return frame(
            {"step": rows.pop("step").tolist()}
            | objectives
            | {name: values.tolist() for name, values in rows.items()}
        )

    def __repr__(self) -> str:
        return self._as(text_table)

    def _repr_html_(self) -> str:
        return self._as(html_table)

    def _as(self, form: Callable[..., str]) -> str:
        shown = {"objectives": self.objectives, "preference": self.preference}
        rows = [
            (name, ", ".join(f"{v:.5g}" for v in value.tolist()))
            for name, value in shown.items()
            if value is not None
        ]
        ended = f"{self.reason} after {self.steps} steps in {self.seconds:.1f} s"
        left = f"not looked at, because {self.unseen}" if self.unseen else self.remaining
        rows += [("ended", ended), ("method", str(self.method)), ("left to gain", str(left))]
        return form(rows if self.failure is None else [*rows, ("failure", str(self.failure))])


@dataclass
class Run:
    """What `drive` returns for one run, or a stack of runs (tensors then have a first axis R)."""

    state: State
    steps: list[int]
    reason: list[Reason]
    failure: list[Failure | None]
    best: dict[str, Any]
    history: dict[str, Tensor]
    seconds: float
    compiled: bool

    @property
    def interrupted(self) -> bool:
        """Whether somebody pressed Ctrl-C before all runs had ended."""
        return "interrupted" in self.reason


def as_batch(run: Run) -> Run:
    """A single run as a batch of one: a first axis is put before all that has none."""
    history = {
        name: values if name == "step" else values[:, None] for name, values in run.history.items()
    }
    return replace(
        run, state=tree.expand(run.state, 1), best=tree.expand(run.best, 1), history=history
    )
