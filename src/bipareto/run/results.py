"""What a run leaves behind: the records that callbacks see, the snapshot to go on from, the run,
and the `Solution`.

`Watch` gathers them while the loop goes: it looks at the end of each block only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bipareto.errors import BiparetoWarning
from bipareto.methods import Method
from bipareto.methods.base import Info, State
from bipareto.problem import Problem, tree
from bipareto.problem.modules import copy_into
from bipareto.problem.tree import Tree

__all__ = [
    "Callback",
    "Ended",
    "Failure",
    "Iterate",
    "Reason",
    "Record",
    "Run",
    "Snapshot",
    "Solution",
    "Watch",
    "as_batch",
    "warn_of_failures",
]

Reason = Literal["steps", "converged", "callback", "interrupted", "nonfinite"]


@dataclass(frozen=True)
class Record:
    """What a callback sees: steps done so far, the state after them, and the last step's info (with
    a run axis in a front).

    best: the best iterates so far; ended: the runs that have already stopped, by their place on the
    run axis.
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


def warn_of_failures(failures: Sequence[Failure | None], stacklevel: int = 3) -> None:
    """Say, once for all runs, that some left the finite numbers: where, at which term, and what to
    do.
    """
    bad = [failure for failure in failures if failure is not None]
    if not bad:
        return
    first = min(bad, key=lambda failure: failure.step)
    terms = ", ".join(sorted({failure.term for failure in bad}))
    which = f"{len(bad)} of {len(failures)} runs" if len(failures) > 1 else "the run"
    warnings.warn(
        f"{which} left the finite numbers ({terms}; first at step {first.step}) and stopped there "
        "with the state before it; the values of such a run are no answer. Where f or g is "
        "undefined somewhere (a log or root of a negative number), write it so that it is not; "
        "else take smaller steps, e.g. dataclasses.replace(front.method, alpha_x=...), or start "
        "nearer. bipareto.diagnose says more",
        BiparetoWarning,
        stacklevel=stacklevel,
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


@dataclass(frozen=True)
class Solution:
    """The answer of one run.

    x, y, theta: the last iterate (theta is None for methods without one); objectives: f(x, y) on
    all data, shape (m,); best: the recorded iterate with the smallest residual, for which the
    theory's rates hold; history: what was recorded, name -> tensor with one row per record,
    `history["step"]` the step of each row; remaining: what all objectives can still gain together,
    a share of the front's extent, None where it was not looked at (`bipareto.certify` does).
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


@dataclass
class Run:
    """What `drive` returns for one run or a stack of runs (every tensor then has a first axis
    R).
    """

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

    def lead(value: Any) -> Any:
        return tree.map_(lambda leaf: leaf[None], value)

    history = {
        name: values if name == "step" else values[:, None] for name, values in run.history.items()
    }
    return replace(run, state=lead(run.state), best=lead(run.best), history=history)


class Watch:
    """What the loop sees at the end of each block, and the runs that have already ended."""

    def __init__(self, runs: int, m: int, batched: bool, records: int) -> None:
        self.runs, self.m, self.batched, self.records = runs, m, batched, records
        self.ended: dict[int, Ended] = {}
        self.history: dict[str, Tensor] = {}
        self.steps: list[int] = []
        self.best: dict[str, Any] = {}

    def finished(self) -> bool:
        """Whether every run has ended."""
        return len(self.ended) == self.runs

    def restore(self, snapshot: Snapshot) -> None:
        """Be as at the end of the snapshot's block."""
        self.ended, self.best = dict(snapshot.ended), dict(snapshot.best)
        rows = dict(snapshot.history)
        self.steps = rows.pop("step").tolist()
        self.history = {
            name: values.new_zeros((self.records, *values.shape[1:]))
            for name, values in rows.items()
        }
        for name, values in rows.items():
            self.history[name][: len(self.steps)] = values

    def look(
        self,
        done: int,
        first: State,
        previous: State,
        state: State,
        info: Info,
        step: Callable[[State, int], tuple[State, Info]],
        count: int,
        tol: float | None,
    ) -> None:
        """Record, keep the best iterate, end the runs that are finite no more or have converged."""
        self._record(done, info)
        self._keep_best(done - 1, previous, info)
        good = self._finite(state, info)
        bad = [r for r in range(self.runs) if not good[r] and r not in self.ended]
        if bad:
            self._locate(bad, first, done - count, count, step)
        if tol is not None:
            small = (info["residual"].reshape(-1) <= tol).tolist()
            self._end([r for r in range(self.runs) if small[r]], "converged", state, done)

    def lost(self, state: State, info: Info) -> Tensor:
        """The runs, as a mask of the run axis, that still go and are finite no more."""
        good = self._finite(state, info)
        mask = [not good[r] and r not in self.ended for r in range(self.runs)]
        return torch.tensor(mask, device=state.t.device).reshape(state.t.shape)

    def stop_all(self, reason: Reason, state: State, done: int) -> None:
        """End the runs that still go, for that reason."""
        self._end(range(self.runs), reason, state, done)

    def _end(
        self,
        runs: Sequence[int] | range,
        reason: Reason,
        state: State,
        done: int,
        failure: Failure | None = None,
    ) -> None:
        for r in runs:
            self.ended.setdefault(r, Ended(self._take(state, r), done, reason, failure))

    def _take(self, value: Any, r: int) -> Any:
        return tree.select(value, r) if self.batched else value

    def _record(self, done: int, info: Info) -> None:
        if not self.history:
            # Room for all records at once: appending never moves what is there.
            self.history = {
                name: value.new_zeros((self.records, *value.shape)) for name, value in info.items()
            }
        for name, value in info.items():
            self.history[name][len(self.steps)] = value
        self.steps.append(done)

    def _keep_best(self, t: int, point: State, info: Info) -> None:
        residual = torch.nan_to_num(info["residual"], nan=math.inf)
        step = torch.full_like(residual, t)
        seen = {
            "x": point.x,
            "y": point.y,
            "objectives": info["objectives"],
            "residual": residual,
            "step": step,
        }
        self.best = (
            seen
            if not self.best
            else tree.where_run(residual < self.best["residual"], seen, self.best)
        )

    def _finite(self, state: State, info: Info) -> list[bool]:
        # What is read off a move is not known where the step was zero, as at the end of a schedule:
        # that is no failure.
        seen = [
            torch.where(v.isnan(), 0, v) if name in ("stationarity", "residual") else v
            for name, v in info.items()
        ]
        values = [*tree.leaves(state.x), *tree.leaves(state.y), *seen]
        flags = [torch.isfinite(v).reshape(self.runs, -1).all(1) for v in values]
        return torch.stack(flags).all(0).tolist()

    def _locate(
        self,
        bad: list[int],
        first: State,
        t: int,
        count: int,
        step: Callable[[State, int], tuple[State, Info]],
    ) -> None:
        """Replay the block to find, for each bad run, the first step whose info or new state is not
        finite.
        """
        waiting, state = set(bad), first
        for at in range(t, t + count):
            new, info = step(state, at)
            good = self._finite(new, info)
            for r in [r for r in waiting if not good[r]]:
                failure = Failure(at, _term(self._take(info, r), self._take(new, r)))
                self._end([r], "nonfinite", state, at, failure)
                waiting.discard(r)
            if not waiting:
                return
            state = new

    def run(self, seconds: float, compiled: bool) -> Run:
        """What was gathered, once every run has ended."""
        ended = [self.ended[r] for r in range(self.runs)]
        states = [state for state, *_ in ended]
        state = tree.stack(states) if self.batched else states[0]
        best = self.best or self._unseen(state, [done for _, done, _, _ in ended])
        history = {name: values[: len(self.steps)] for name, values in self.history.items()} or {
            "objectives": best["objectives"][None][:0]
        }
        history["step"] = torch.tensor(self.steps, dtype=torch.int64)
        return Run(
            state=state,
            steps=[done for _, done, _, _ in ended],
            reason=[reason for _, _, reason, _ in ended],
            failure=[failure for *_, failure in ended],
            best=best,
            history=history,
            seconds=seconds,
            compiled=compiled,
        )

    def _unseen(self, state: State, steps: list[int]) -> dict[str, Any]:
        """The best iterate where nothing was recorded: the last one, of which nothing is known."""
        residual = torch.full_like(state.t, math.inf)
        return {
            "x": state.x,
            "y": state.y,
            "objectives": residual.new_full((*residual.shape, self.m), math.nan),
            "residual": residual,
            "step": residual.new_tensor(steps).reshape(residual.shape),
        }


def _term(info: Info, state: State) -> str:
    """Which quantity of one run is not finite: an objective, g, or the update of a variable."""
    for i, value in enumerate(info["objectives"].reshape(-1).tolist()):
        if not math.isfinite(value):
            return f"f_{i + 1}"
    values = info | {name: getattr(state, name, ()) for name in ("theta", "x", "y")}
    # The gap holds g at the new theta, so theta is looked at first.
    for name in ("lower", "theta", "gap", "x", "y"):
        if not all(torch.isfinite(leaf).all() for leaf in tree.leaves(values.get(name, ()))):
            return "g" if name in ("lower", "gap") else f"the update of {name}"
    return next(
        (name for name, value in info.items() if not torch.isfinite(value).all()), "the state"
    )
