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
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bipareto import tree
from bipareto.errors import BiparetoWarning, InvalidInput, NotBatchable
from bipareto.methods import MOMEHA, Method
from bipareto.methods.base import Draw, Info, State
from bipareto.modules import write_back
from bipareto.problem import Problem
from bipareto.sampler import draw
from bipareto.tree import Tree

__all__ = [
    "COMPILE_FROM",
    "Callback",
    "Ended",
    "Failure",
    "Iterate",
    "Reason",
    "Record",
    "Run",
    "Snapshot",
    "Solution",
    "Stepper",
    "drive",
    "solution_of",
    "solve",
    "stepper",
]

#: From this many steps on, compiling (15 to 30 s) pays for a batch and for a single run; below it the plain step finishes first.
COMPILE_FROM = {True: 3_000, False: 20_000}

Reason = Literal["steps", "converged", "callback", "interrupted", "nonfinite"]
Step = Callable[[State, Draw], tuple[State, Info]]


@dataclass(frozen=True)
class Record:
    """What a callback sees: steps done so far, the state after them, and the last step's info (with a run axis in a front).

    best: the best iterates so far; ended: the runs that have already stopped, by their place on the run axis.
    """

    step: int
    state: State
    info: Info
    best: dict[str, Any] = field(default_factory=dict)
    ended: Mapping[int, Ended] = field(default_factory=dict)


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


class Ended(NamedTuple):
    """A run that has stopped: its last state, its steps, and why."""

    state: State
    steps: int
    reason: Reason
    failure: Failure | None


@dataclass(frozen=True)
class Snapshot:
    """What `drive` needs to go on from the end of a block as if it had never stopped; the draws need nothing, being pure in t.

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
    problem: Problem | None = field(default=None, repr=False)

    def write_back(self, x: nn.Module | Tree | None, y: nn.Module | Tree | None) -> None:
        """Copy the answer into modules (or tensors) like those the run started from.

        The running statistics of their norm layers, which a run does without, are estimated for the answer on all the data.

        Args:
            x, y: what `Problem.from_modules` was given, or others with the same parameters; None leaves one out.
        """
        write_back(self.problem, self.x, self.y, x, y)


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
        compile: True, False or a backend's name; None compiles when it pays (from 20,000 steps on; for a front, from 3,000).
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

    def pick(value: Any) -> Any:
        return value if index is None else tree.select(value, index)

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
        problem=problem,
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
    resume: Snapshot | None = None,
) -> Run:
    """Run `steps` iterations of one run, or of a stack of runs with one seed each; from a snapshot on, where one is given."""
    if not isinstance(steps, int) or steps < 1:
        raise InvalidInput(f"steps = {steps!r}; it must be a whole number of at least 1")
    if record_every is not None and record_every < 1:
        raise InvalidInput(f"record_every = {record_every!r}; it must be at least 1")
    block = record_every or max(1, math.ceil(steps / 200))
    start_time = time.perf_counter()
    draws = _Draws(problem, method.roles(m), seeds)
    compile = steps >= COMPILE_FROM[batched] if compile is None else compile
    step = stepper(problem, method, batched=batched, shared_draw=draws.shared, compile=compile)

    def report(before: State, after: State, info: Info, batches: Draw) -> Info:
        one = partial(method.report, problem)
        return (
            torch.func.vmap(one, in_dims=(0, 0, 0, None if draws.shared else 0))(before, after, info, batches)
            if batched
            else one(before, after, info, batches)
        )

    def replay(before: State, t: int) -> tuple[State, Info]:
        batches = draws(t)
        after, info = step(before, batches)
        return after, report(before, after, info, batches)

    watch = _Watch(len(seeds), batched, math.ceil(steps / block))
    done = 0
    if resume is not None:
        done, state = resume.step, resume.state
        watch.restore(resume)
    with _bar(progress, label, steps) as advance:
        advance(done)
        while done < steps and not watch.finished():
            count = min(block, steps - done)
            first, packed = state, step.pack(state, draws(done))
            try:
                # The block's first step has torch.compile check that its graph still fits; the others take its word.
                previous, t = packed, done
                packed, info = step.advance(packed, draws(t))
                with step.unguarded():
                    for t in range(done + 1, done + count):
                        previous = packed
                        packed, info = step.advance(packed, draws(t))
            except KeyboardInterrupt:
                watch.stop_all("interrupted", step.unpack(packed), t)
                break
            done += count
            before, state = step.unpack(previous), step.unpack(packed)
            info = report(before, state, info, draws(done - 1))
            watch.look(done, first, before, state, info, replay, count, tol)
            advance(count)
            # A list, so that every callback is called even when an earlier one ends the run.
            if any([callback(Record(done, state, info, watch.best, dict(watch.ended))) for callback in callbacks]):
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

    def __init__(self, runs: int, batched: bool, records: int) -> None:
        self.runs, self.batched, self.records = runs, batched, records
        self.ended: dict[int, Ended] = {}
        self.history: dict[str, Tensor] = {}
        self.steps: list[int] = []
        self.best: dict[str, Any] = {}

    def finished(self) -> bool:
        return len(self.ended) == self.runs

    def restore(self, snapshot: Snapshot) -> None:
        """Be as at the end of the snapshot's block."""
        self.ended, self.best = dict(snapshot.ended), dict(snapshot.best)
        rows = dict(snapshot.history)
        self.steps = rows.pop("step").tolist()
        self.history = {name: values.new_zeros((self.records, *values.shape[1:])) for name, values in rows.items()}
        for name, values in rows.items():
            self.history[name][: len(self.steps)] = values

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
            small = (info["residual"].reshape(-1) <= tol).tolist()
            self._end([r for r in range(self.runs) if small[r]], "converged", state, done)

    def stop_all(self, reason: Reason, state: State, done: int) -> None:
        self._end(range(self.runs), reason, state, done)

    def _end(self, runs: Sequence[int] | range, reason: Reason, state: State, done: int, failure: Failure | None = None) -> None:
        for r in runs:
            self.ended.setdefault(r, Ended(self._take(state, r), done, reason, failure))

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
        residual = torch.nan_to_num(info["residual"], nan=math.inf)
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
    # The gap holds g at theta as well as at y.
    if not all(math.isfinite(float(info[name])) for name in ("lower", "gap") if name in info):
        return "g"
    for name in ("theta", "x", "y"):
        if any(not torch.isfinite(leaf).all() for leaf in tree.leaves(getattr(state, name, ()))):
            return f"the update of {name}"
    return next((name for name, value in info.items() if not torch.isfinite(value).all()), "the state")


class Stepper:
    """The step of a method on a problem, batched as asked: `stepper(state, draw) -> (state, info)`.

    Between steps the loop holds a *packed* state, which only the stepper understands: here the state itself.
    """

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool) -> None:
        # A stepper is kept as long as its problem (below); holding the problem here would keep both for ever.
        find = weakref.ref(problem)

        def step(state: State, batches: Draw) -> tuple[State, Info]:
            return method.step(find(), state, batches)  # type: ignore[arg-type]

        self.plain: Step = torch.func.vmap(step, in_dims=(0, None if shared_draw else 0)) if batched else step

    def pack(self, state: State, batches: Draw) -> Any:
        """A state in the form that `advance` takes; `batches` is a draw to look at, nothing is stepped."""
        return state

    def unpack(self, packed: Any) -> State:
        """The state that was packed."""
        return packed

    def advance(self, packed: Any, batches: Draw) -> tuple[Any, Info]:
        """One step of a packed state."""
        try:
            return self.plain(packed, batches)
        except RuntimeError as error:
            raise _batching_error(error) from error

    def unguarded(self) -> AbstractContextManager[object]:
        """Steps taken in here may assume that nothing but the state has changed since the last one."""
        return nullcontext()

    def __call__(self, state: State, batches: Draw) -> tuple[State, Info]:
        packed, info = self.advance(self.pack(state, batches), batches)
        return self.unpack(packed), info


class CompiledStepper(Stepper):
    """The same through `torch.compile`, with the state packed flat: leaves that move, leaves that are kept, and all numbers in one.

    Flattening a state and handing constants in and out of the graph at every step would cost more than a small step.
    """

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool, backend: str) -> None:
        super().__init__(problem, method, batched, shared_draw)
        self.template: State = None
        self.kinds: list[str] = []
        self.broken = False

        def moving(moved: list[Tensor], kept: list[Tensor], numbers: Tensor, batches: Draw) -> tuple[list[Tensor], Info]:
            state, info = self.plain(self._join(moved, kept, numbers), batches)
            return self._pick(state, "moved"), info

        # Dynamo keeps its cache on the code object and refuses the ninth variant of it; each stepper gets one of its own.
        code = moving.__code__.replace(co_name=f"step_{id(self):x}")
        own = types.FunctionType(code, moving.__globals__, code.co_name, moving.__defaults__, moving.__closure__)
        self.fast = torch.compile(own, fullgraph=True, dynamic=False, backend=backend)

    def _join(self, moved: list[Tensor], kept: list[Tensor], numbers: Tensor) -> State:
        parts = {"moved": iter(moved), "kept": iter(kept), "number": iter(numbers.unbind(-1))}
        return tree.rebuild(self.template, [next(parts[kind]) for kind in self.kinds])

    def _pick(self, state: State, wanted: str) -> list[Tensor]:
        return [leaf for leaf, kind in zip(tree.leaves(state), self.kinds, strict=True) if kind == wanted]

    def pack(self, state: State, batches: Draw) -> Any:
        if self.template is None:
            # Preference, numbers and the like come out of a step as the very memory that went in.
            after, _ = super().advance(state, batches)
            scalar = state.t.dim()
            for u, v in zip(tree.leaves(state), tree.leaves(after), strict=True):
                unchanged = u.data_ptr() == v.data_ptr()
                self.kinds.append(("number" if u.dim() == scalar and u.dtype == state.t.dtype else "kept") if unchanged else "moved")
            self.template = tree.map_(lambda leaf: 0, state)
        # Leaves that share memory (theta_0 is y_0) would compile to a graph of their own, good for the first step only.
        seen: set[int] = set()
        state = tree.map_(lambda leaf: leaf.clone() if leaf.data_ptr() in seen or seen.add(leaf.data_ptr()) else leaf, state)  # type: ignore[func-returns-value]
        numbers = self._pick(state, "number")
        stacked = torch.stack(numbers, -1) if numbers else state.t.new_zeros((*state.t.shape, 0))
        return self._pick(state, "moved"), self._pick(state, "kept"), stacked

    def unpack(self, packed: Any) -> State:
        return self._join(*packed)

    def unguarded(self) -> AbstractContextManager[object]:
        # Checking hundreds of guards takes longer than a small step.
        return torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)

    def _call(self, *arguments: Any) -> tuple[list[Tensor], Info]:
        try:
            return self.fast(*arguments)
        except RuntimeError as error:
            if "skip_guard_eval_unsafe" not in str(error):
                raise
            with torch.compiler.set_stance("default"):
                return self.fast(*arguments)

    def advance(self, packed: Any, batches: Draw) -> tuple[Any, Info]:
        moved, kept, numbers = packed
        if not self.broken:
            try:
                moved, info = self._call(moved, kept, numbers, batches)
                return (moved, kept, numbers), info
            except torch._dynamo.exc.TorchDynamoException as error:
                self.broken = True
                reason = " ".join(str(error).strip().splitlines()[:2])
                warnings.warn(f"torch.compile could not take this problem ({reason}); going on uncompiled", BiparetoWarning, stacklevel=2)
        state, info = super().advance(self.unpack(packed), batches)
        return (self._pick(state, "moved"), kept, numbers), info


_COMPILED: WeakKeyDictionary[Problem, dict[Any, CompiledStepper]] = WeakKeyDictionary()


def stepper(problem: Problem, method: Method, *, batched: bool, shared_draw: bool = True, compile: bool | str = False) -> Stepper:
    """The step of a method on a problem, batched and compiled as asked.

    Args:
        batched: states carry a first run axis.
        shared_draw: all runs see the same draw (one seed); else draws carry the run axis too.
        compile: True for Inductor, or a backend's name.

    Compiled steps are kept per problem and structure of method: numbers live in the state, so gamma, mu, steps and penalties
    of any value share one graph.
    """
    if not compile:
        return Stepper(problem, method, batched, shared_draw)
    backend = "inductor" if compile is True else compile
    known = _COMPILED.setdefault(problem, {})
    key = (method.structure(), batched, shared_draw, backend)
    if key not in known:
        known[key] = CompiledStepper(problem, method, batched, shared_draw, backend)
    return known[key]


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
