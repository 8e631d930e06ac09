"""The loop that drives every method: records, callbacks, progress, reasons of stop, and the `Solution`.

A step is pure, so the loop needs no bookkeeping inside it.  Steps run in blocks of `record_every`; at the end of a block
the loop looks once at the device: it records what the last step saw, keeps the best iterate, and checks that all is
finite.  When a run has gone bad inside a block, the block is replayed from its first state to find the exact step, and
the state before it is kept.  Healthy steps pay nothing for that.
"""

from __future__ import annotations

import math
import re
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bipareto import tree
from bipareto.errors import BiparetoWarning, InvalidInput, NotBatchable
from bipareto.methods import MOMEHA, Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem
from bipareto.sampler import draw
from bipareto.tree import Tree

__all__ = ["COMPILE_FROM", "Callback", "Failure", "Iterate", "Reason", "Record", "Run", "Solution", "drive", "solution_of", "solve", "stepper"]

#: From this many steps on, compiling pays on every machine tried; below it the plain step finishes first.
COMPILE_FROM = 3000

Reason = Literal["steps", "converged", "callback", "interrupted", "nonfinite"]
Step = Callable[[State, Draw], tuple[State, Info]]


@dataclass(frozen=True)
class Record:
    """What a callback sees: steps done so far, the state after them, and the last step's info (with a run axis in a front)."""

    step: int
    state: State
    info: Info


Callback = Callable[[Record], bool | None]


@dataclass(frozen=True)
class Iterate:
    """A point on the way: x, y, the objectives (m,) there as the step saw them, the method's residual, and the step t."""

    x: Tree
    y: Tree
    objectives: Tensor
    residual: float
    step: int


@dataclass(frozen=True)
class Failure:
    """Where a run left the finite numbers: the step, and the term that did ("f_2", "g", or the update of x, y or theta)."""

    step: int
    term: str

    def __str__(self) -> str:
        return f"{self.term} was NaN or infinite at step {self.step}; the state before it is kept. Smaller steps or a larger c are the usual remedy"


@dataclass(frozen=True)
class Solution:
    """The answer of one run.

    x, y, theta: the last iterate (theta is None for methods without one); objectives: f(x, y) on all data, shape (m,);
    best: the recorded iterate with the smallest residual, for which the theory's rates hold; history: what was recorded,
    name -> tensor with one row per record, `history["step"]` the step of each row.
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


@dataclass
class Run:
    """What `drive` returns for one run or a stack of runs (every tensor then has a first axis R)."""

    state: State
    steps: list[int]
    reason: list[Reason]
    failure: list[Failure | None]
    best: dict[str, Any]
    history: dict[str, Tensor]
    seconds: float
    compiled: bool


def solve(
    problem: Problem,
    x0: Tree | nn.Module,
    y0: Tree | nn.Module,
    *,
    preference: Any = None,
    method: Method | None = None,
    steps: int = 20_000,
    seed: int = 0,
    compile: bool | str | None = None,
    record_every: int | None = None,
    tol: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Solution:
    """Solve one problem for one preference.

    Args:
        problem: f and g.
        x0, y0: where to start: a tensor, a tree of tensors, or a module.
        preference: w, m numbers > 0 that sum to 1; None is equal weights.
        method: None is `MOMEHA.tuned(problem, x0, y0, steps=steps)`.
        steps: iterations.
        seed: which draws a problem with a sampler makes.
        compile: True, False or a backend's name; None compiles when it pays (3,000 steps or more).
        record_every: record, look for trouble and call back every so many steps; None gives about 200 records.
        tol: stop when the method's residual falls to it.
        callbacks: functions of a `Record`; one that returns True ends the run.
        progress: show a bar; None shows it when stderr is a terminal.

    >>> import torch
    >>> problem = Problem(upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]), lower=lambda x, y: (y - x)**2)
    >>> answer = solve(problem, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), steps=2000)
    >>> round(float(answer.x), 2)
    0.5
    """
    method = choose_method(method, problem, x0, y0, steps)
    start = method.prepare(problem, x0, y0)
    state = method.begin(start, preference)
    run = drive(
        problem, method, state, [seed], m=start.objectives.shape[0], steps=steps, batched=False, compile=compile, record_every=record_every, tol=tol,
        callbacks=callbacks, progress=progress,
    )  # fmt: skip
    return solution_of(problem, method, run, None, seed)


def choose_method(method: Method | None, problem: Problem, x0: Any, y0: Any, steps: int) -> Method:
    """The given method, or MOMEHA with numbers fitted to the problem."""
    if method is not None and not isinstance(method, Method):
        raise InvalidInput(f"method is {method!r}; pass a method such as bipareto.MOMEHA(), not its name or class")
    return MOMEHA.tuned(problem, x0, y0, steps=steps) if method is None else method


def solution_of(problem: Problem, method: Method, run: Run, index: int | None, seed: int) -> Solution:
    """One run of a `Run` as a Solution; `index` None for a single run."""
    pick = (lambda value: value) if index is None else (lambda value: tree.select(value, index))
    i = index or 0
    state = pick(run.state)
    with torch.no_grad():
        objectives = problem.upper(state.x, state.y, problem.batch("upper", "full", seed=seed))
    best = Iterate(
        x=pick(run.best["x"]), y=pick(run.best["y"]), objectives=pick(run.best["objectives"]),
        residual=float(pick(run.best["residual"])), step=int(pick(run.best["step"])),
    )  # fmt: skip
    history = {name: values if index is None or name == "step" else values[:, index] for name, values in run.history.items()}
    return Solution(
        x=state.x,
        y=state.y,
        theta=getattr(state, "theta", None),
        objectives=objectives,
        best=best,
        reason=run.reason[i],
        failure=run.failure[i],
        preference=getattr(state, "preference", None),
        seed=seed,
        steps=run.steps[i],
        seconds=run.seconds,
        oracles={name: count * run.steps[i] for name, count in method.oracles(objectives.shape[0]).items()},
        history=history,
        method=method,
        state=state,
    )


def drive(
    problem: Problem,
    method: Method,
    state: State,
    seeds: Sequence[int],
    *,
    m: int,
    steps: int,
    batched: bool,
    compile: bool | str | None,
    record_every: int | None,
    tol: float | None,
    callbacks: Sequence[Callback],
    progress: bool | None,
    label: str = "solving",
) -> Run:
    """Run `steps` iterations of one run, or of a stack of runs with one seed each."""
    if not isinstance(steps, int) or steps < 1:
        raise InvalidInput(f"steps = {steps!r}; it must be a whole number of at least 1")
    if record_every is not None and record_every < 1:
        raise InvalidInput(f"record_every = {record_every!r}; it must be at least 1")
    block = record_every or max(1, math.ceil(steps / 200))
    start_time = time.perf_counter()
    draws = _Draws(problem, method.roles(m), seeds)
    compile = steps >= COMPILE_FROM if compile is None else compile
    step = stepper(problem, method, batched=batched, shared_draw=draws.shared, compile=compile)
    watch = _Watch(len(seeds), batched, math.ceil(steps / block), method.residual)
    done = 0
    with _bar(progress, label, steps) as advance:
        while done < steps and not watch.finished():
            count = min(block, steps - done)
            first = previous = state
            try:
                for t in range(done, done + count):
                    previous = state
                    state, info = step(state, draws(t))
            except KeyboardInterrupt:
                watch.stop_all("interrupted", state, done)
                break
            done += count
            watch.look(done, first, previous, state, info, lambda s, t: step(s, draws(t)), count, tol)
            advance(count)
            # A list, so that every callback is called even when an earlier one ends the run.
            if any([callback(Record(done, state, info)) for callback in callbacks]):
                watch.stop_all("callback", state, done)
    watch.stop_all("steps", state, done)
    return watch.run(time.perf_counter() - start_time, compiled=bool(compile))


class _Draws:
    """The draws of each step, gathered to runs: preferences of one seed share them, seeds do not."""

    def __init__(self, problem: Problem, roles: Sequence[str], seeds: Sequence[int]) -> None:
        self.problem, self.roles = problem, roles
        self.unique = sorted(set(seeds))
        self.shared = len(self.unique) == 1
        self.index = torch.tensor([self.unique.index(seed) for seed in seeds])

    def __call__(self, t: int) -> Draw:
        if self.problem.sampler is None:
            return {}
        drawn = draw(self.problem, self.roles, t, self.unique)
        return drawn if self.shared else tree.map_(lambda leaf: leaf[self.index.to(leaf.device)], drawn)


class _Watch:
    """What the loop sees at the end of each block, and the runs that have already ended."""

    def __init__(self, runs: int, batched: bool, records: int, residual: str) -> None:
        self.runs, self.batched, self.records, self.residual = runs, batched, records, residual
        self.ended: dict[int, tuple[State, int, Reason, Failure | None]] = {}
        self.history: dict[str, Tensor] = {}
        self.steps: list[int] = []
        self.best: dict[str, Any] = {}

    def finished(self) -> bool:
        return len(self.ended) == self.runs

    def look(
        self, done: int, first: State, previous: State, state: State, info: Info, step: Callable[[State, int], tuple[State, Info]],
        count: int, tol: float | None,
    ) -> None:  # fmt: skip
        """Record, keep the best iterate, end the runs that are finite no more or have converged."""
        self._record(done, info)
        self._keep_best(done - 1, previous, info)
        good = self._finite(state, info)
        bad = [r for r in range(self.runs) if not good[r] and r not in self.ended]
        if bad:
            self._locate(bad, first, done - count, count, step)
        if tol is not None:
            small = (info[self.residual].reshape(-1) <= tol).tolist()
            self._end([r for r in range(self.runs) if small[r]], "converged", state, done)

    def stop_all(self, reason: Reason, state: State, done: int) -> None:
        self._end(range(self.runs), reason, state, done)

    def _end(self, runs: Sequence[int] | range, reason: Reason, state: State, done: int, failure: Failure | None = None) -> None:
        for r in runs:
            self.ended.setdefault(r, (self._take(state, r), done, reason, failure))

    def _take(self, value: Any, r: int) -> Any:
        return tree.select(value, r) if self.batched else value

    def _record(self, done: int, info: Info) -> None:
        if not self.history:
            # Room for all records at once: appending never moves what is there.
            self.history = {name: value.new_zeros((self.records, *value.shape)) for name, value in info.items()}
        for name, value in info.items():
            self.history[name][len(self.steps)] = value
        self.steps.append(done)

    def _keep_best(self, t: int, point: State, info: Info) -> None:
        residual = torch.nan_to_num(info[self.residual], nan=math.inf)
        step = torch.full_like(residual, t)
        seen = {"x": point.x, "y": point.y, "objectives": info["objectives"], "residual": residual, "step": step}
        self.best = seen if not self.best else tree.where_run(residual < self.best["residual"], seen, self.best)

    def _finite(self, state: State, info: Info) -> list[bool]:
        values = [*tree.leaves(state.x), *tree.leaves(state.y), *info.values()]
        flags = [torch.isfinite(v).reshape(self.runs, -1).all(1) for v in values]
        return torch.stack(flags).all(0).tolist()

    def _locate(self, bad: list[int], first: State, t: int, count: int, step: Callable[[State, int], tuple[State, Info]]) -> None:
        """Replay the block to find, for each bad run, the first step whose info or new state is not finite."""
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
        ended = [self.ended[r] for r in range(self.runs)]
        states = [state for state, *_ in ended]
        history = {name: values[: len(self.steps)] for name, values in self.history.items()}
        history["step"] = torch.tensor(self.steps)
        return Run(
            state=tree.stack(states) if self.batched else states[0],
            steps=[done for _, done, _, _ in ended],
            reason=[reason for _, _, reason, _ in ended],
            failure=[failure for *_, failure in ended],
            best=self.best,
            history=history,
            seconds=seconds,
            compiled=compiled,
        )


def _term(info: Info, state: State) -> str:
    """Which quantity of one run is not finite: an objective, g, or the update of a variable."""
    for i, value in enumerate(info["objectives"].reshape(-1).tolist()):
        if not math.isfinite(value):
            return f"f_{i + 1}"
    if not math.isfinite(float(info["lower"])):
        return "g"
    for name in ("theta", "x", "y"):
        if any(not torch.isfinite(leaf).all() for leaf in tree.leaves(getattr(state, name, ()))):
            return f"the update of {name}"
    return next((name for name, value in info.items() if not torch.isfinite(value).all()), "the state")


_STEPPERS: WeakKeyDictionary[Problem, dict[Any, Step]] = WeakKeyDictionary()


def stepper(problem: Problem, method: Method, *, batched: bool, shared_draw: bool = True, compile: bool | str = False) -> Step:
    """The step of a method on a problem as a function (state, draw) -> (state, info), batched and compiled as asked.

    Args:
        batched: states carry a first run axis.
        shared_draw: all runs see the same draw (one seed); else draws carry the run axis too.
        compile: True for Inductor, or a backend's name.

    Compiled steps are kept per problem and structure of method: numbers live in the state, so gamma, mu, steps and penalties
    of any value share one graph.
    """
    if not compile:
        return _plain_step(problem, method, batched, shared_draw)
    key = (method.structure(), batched, shared_draw, compile)
    known = _STEPPERS.setdefault(problem, {})
    if key not in known:
        known[key] = _compiled(_plain_step(problem, method, batched, shared_draw), "inductor" if compile is True else compile)
    return known[key]


def _plain_step(problem: Problem, method: Method, batched: bool, shared_draw: bool) -> Step:
    def step(state: State, batches: Draw) -> tuple[State, Info]:
        return method.step(problem, state, batches)

    if not batched:
        return step
    mapped = torch.func.vmap(step, in_dims=(0, None if shared_draw else 0))

    def steps(state: State, batches: Draw) -> tuple[State, Info]:
        try:
            return mapped(state, batches)
        except RuntimeError as error:
            raise _batching_error(error) from error

    return mapped if torch.compiler.is_compiling() else steps


def _compiled(step: Step, backend: str) -> Step:
    # Dynamo keeps its cache on the code object and refuses the ninth variant of it; each stepper gets a code object of its own.
    code = step.__code__.replace(co_name=f"{step.__code__.co_name}_{id(step):x}")
    own = types.FunctionType(code, step.__globals__, code.co_name, step.__defaults__, step.__closure__)
    fast = torch.compile(own, fullgraph=True, dynamic=False, backend=backend)
    broken = False

    def run(state: State, batches: Draw) -> tuple[State, Info]:
        nonlocal broken
        if not broken:
            try:
                return fast(state, batches)
            except torch._dynamo.exc.TorchDynamoException as error:
                broken = True
                reason = str(error).strip().splitlines()[0]
                warnings.warn(f"torch.compile could not take this problem ({reason}); going on uncompiled", BiparetoWarning, stacklevel=2)
        return step(state, batches)

    return run


def _batching_error(error: RuntimeError) -> Exception:
    """A functorch failure as an error that names the operator; any other error as it is."""
    text = str(error)
    if "vmap" not in text and "functorch" not in text:
        return error
    found = re.search(r"aten::\w+|\.item\(\)|data-dependent control flow|in-place", text)
    operator = found.group(0) if found else text.splitlines()[0]
    return NotBatchable(
        f"a loss uses {operator}, which torch.func.vmap cannot batch; write it without boolean masks, .item(), in-place "
        "writes and running statistics (torch.where instead of indexing by a mask)"
    )


@contextmanager
def _bar(progress: bool | None, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, or nothing."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)
