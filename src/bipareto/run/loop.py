"""The loop that drives every method: blocks of steps, callbacks, progress.

A step is pure, so the loop needs no bookkeeping inside it.  Steps run in blocks of `record_every`;
at the end of a block the loop looks once at the device: it records what the last step saw, keeps
the best iterate, and checks that all is finite.  When a run has gone bad inside a block, the block
is replayed from its first state to find the exact step, and the state before it is kept.  Healthy
steps pay nothing for that.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods import MBMOMEHA, MOMEHA, Method, Twin
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem, tree, validation
from bipareto.problem.base import as_problem
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree
from bipareto.run.bars import bar
from bipareto.run.race import comes_in_batches
from bipareto.run.results import Callback, Iterate, Record, Run, Snapshot, Solution
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto.run.watching import Watch

__all__ = [
    "Begun",
    "LoopOptions",
    "as_method",
    "choose_method",
    "drive",
    "method_kind",
    "not_begun",
    "pays_to_compile",
    "solution_of",
    "warn_of_runaways",
]

#: From this many steps on, compiling (15 to 30 s) pays for a batch and for a single run; below it
#: the plain step finishes first.
COMPILE_FROM = {True: 3_000, False: 20_000}
#: On a processor it also pays from so many steps times numbers in x and y on: a compiled step makes
#: none of the large arrays between, and spares some nine nanoseconds a number.
COMPILE_WORK = 10**10
#: What torch.compile makes for a processor writes beyond its buffers on some small problems before
#: this version (seen with 2.11: the heap is damaged and the process dies).
SAFE_ON_CPU = (2, 13)
#: From this many steps on recording a batched step (a dozen of its steps) pays.
TRACE_FROM = 100
#: How often a run whose method can shorten its steps may take a block again.
RETRIES = 12
#: A y that is so many times the size of the start, plus one, has run away.
AWAY = 1e5
#: From so many numbers in x and y on, every step is looked at, which costs little then, and no
#: block's first state is held to find the step at which a run went bad.
LARGE = 4_000_000
#: Rows of a history; each holds what a step saw, for every run.
MOST_RECORDS = 10**7


def warn_of_runaways(y0: Tree, run: Run, *, batched: bool) -> None:
    """Warn of runs whose y has gone very far: a lower level that has a minimum would hold it."""
    sizes = tree.ravel(run.state.y, batch_dims=int(batched)).norm(dim=-1).reshape(-1).tolist()
    start = 1.0 + float(tree.norm(y0))
    gone = [
        r for r, size in enumerate(sizes) if size > AWAY * start and run.reason[r] != "nonfinite"
    ]
    if gone:
        warnings.warn(
            f"y has gone to a size of {max(sizes[r] for r in gone):.2g} from {start:.2g} in "
            f"{len(gone)} of {len(sizes)} runs: lower may have no minimum there; check its sign, "
            "add a term that grows, such as a weight decay, or take smaller steps",
            BiparetoWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class LoopOptions:
    """How the loop runs, as `solve` documents it; checked when it is made.

    label: what the progress bar says; resume: where to go on, instead of from the start.
    """

    steps: int = 20_000
    compile: bool | str | None = None
    record_every: int | None = None
    tol: float | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool | None = None
    label: str = "solving"
    resume: Snapshot | None = None

    def __post_init__(self) -> None:
        steps = validation.count(self.steps, "steps", least=1, most=validation.MOST_STEPS)
        object.__setattr__(self, "steps", steps)
        if self.record_every is not None:
            every = validation.count(
                self.record_every, "record_every", least=1, most=validation.MOST_STEPS
            )
            object.__setattr__(self, "record_every", every)
            if steps // every > MOST_RECORDS:
                raise InvalidInput(
                    f"record_every = {every} makes {steps // every:,} records of {steps:,} steps, "
                    f"which can be {MOST_RECORDS:,} at most; record every "
                    f"{math.ceil(steps / MOST_RECORDS):,} steps or less often, or leave "
                    "record_every out"
                )
        if self.tol is not None:
            object.__setattr__(self, "tol", validation.number(self.tol, "tol", least=0))
        self._check_compile()
        if not isinstance(self.callbacks, Sequence) or isinstance(self.callbacks, str):
            raise InvalidInput(
                f"callbacks is {validation.shown(self.callbacks)}; pass a list of functions of a "
                "record, e.g. callbacks=[look]"
            )
        for callback in self.callbacks:
            validation.function(callback, "callback", ["record"], "see bipareto.run.results.Record")
        if self.progress is not None:
            validation.flag(self.progress, "progress")

    def _check_compile(self) -> None:
        value = self.compile
        if not (value is None or isinstance(value, bool) or (isinstance(value, str) and value)):
            raise InvalidInput(
                f"compile is {validation.shown(value)}; pass True, False, None or the name of a "
                "backend of torch.compile"
            )
        if isinstance(value, str) and value not in ("replay", *torch.compiler.list_backends(None)):
            known = ", ".join(["replay", *torch.compiler.list_backends()])
            raise InvalidInput(
                f"compile = {value!r} is no backend of torch.compile; choose from {known}, or "
                "pass True"
            )

    @property
    def block(self) -> int:
        """The steps between two looks at the device."""
        return self.record_every or max(1, math.ceil(self.steps / 200))


@dataclass(frozen=True)
class Begun:
    """One run at its start, or a stack of runs with one seed each, on m objectives."""

    state: State
    seeds: Sequence[int]
    m: int
    batched: bool


def method_kind(problem: Problem) -> type[Method]:
    """The method that suits a problem: MOMEHA; MB-MOMEHA where a sampler draws; `Twin` where what
    is drawn are batches of data (`front` and `solve` race it, docs/networks.md).
    """
    if comes_in_batches(problem):
        return Twin
    return MOMEHA if problem.sampler is None else MBMOMEHA


def choose_method(method: Method | None, problem: Problem, x0: Any, y0: Any, steps: int) -> Method:
    """The given method, or the one that suits the problem, with tuned hyperparameters."""
    if method is not None:
        return as_method(method)
    return method_kind(as_problem(problem)).tuned(problem, x0, y0, steps=steps)


def as_method(value: Any) -> Method:
    """A method, not its name or its class."""
    found: Method = validation.instance(
        value, "method", Method, "pass a method such as bipareto.MOMEHA(), not its name or class"
    )
    return found


def solution_of(
    problem: Problem, method: Method, run: Run, index: int | None, seed: int
) -> Solution:
    """One run of a `Run` as a Solution; `index` None for a single run."""

    def pick(value: Any) -> Any:
        return value if index is None else tree.select(value, index)

    i = index or 0
    state = pick(run.state)
    levels = ("upper", "test") if problem.has_test else ("upper",)
    with torch.no_grad():
        objectives, *rest = (
            problem.upper(state.x, state.y, problem.batch(level, "full", seed=seed))
            for level in levels
        )
    test = rest[0] if rest else None
    best = Iterate(
        x=pick(run.best["x"]),
        y=pick(run.best["y"]),
        objectives=pick(run.best["objectives"]),
        residual=float(pick(run.best["residual"])),
        step=int(pick(run.best["step"])),
    )
    history = {
        name: values if index is None or name == "step" else values[:, index]
        for name, values in run.history.items()
    }
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
        oracles=method.cost(objectives.shape[0], run.steps[i]),
        history=history,
        method=method,
        state=state,
        problem=problem,
        test=test,
    )


def drive(problem: Problem, method: Method, begun: Begun, options: LoopOptions) -> Run:
    """Run one run, or a stack of runs, to its end; from a snapshot on, where one is given."""
    state, batched, steps, block = begun.state, begun.batched, options.steps, options.block
    start_time = time.perf_counter()
    draws = _Draws(problem, method.roles(begun.m), begun.seeds)
    compile = _how(state, begun.batched, options)
    step = stepper(problem, method, batched=batched, shared_draw=draws.shared, compile=compile)

    def replay(before: State, t: int) -> tuple[State, Info]:
        batches = draws(t)
        after, info = step(before, batches)
        return after, step.report(before, after, info, batches)

    renewals, retries = method.renewals(steps), torch.full_like(state.t, RETRIES)
    # What a renewal lengthens may be taken again from its first state; a replayed step copies what
    # it is asked for.
    size = tree.numel((state.x, state.y))
    large = size >= LARGE and not renewals and compile != "replay"
    watch = Watch(len(begun.seeds), begun.m, batched, math.ceil(steps / block), large)
    done, renewed = 0, -1
    if options.resume is not None:
        done, state = options.resume.step, options.resume.state
        watch.restore(options.resume)
    with bar(options.label, steps, options.progress) as advance:
        advance(done)
        while done < steps and not watch.finished():
            count = min(block, steps - done)
            # Here, so that a run that goes on from a checkpoint does it too; a block that is taken
            # again has done it.
            if renewed < done and any(done - block < mark <= done for mark in renewals):
                state = _renewed(problem, method, state, batched)
            renewed = done
            first: Any = None if large else state
            packed = step.pack(state, draws(done))
            del state
            try:
                # The block's first step has torch.compile check that its graph still fits; the
                # others take its word.
                previous, t = packed, done
                packed, info = step.advance(packed, draws(t))
                seen = info
                with step.unguarded():
                    for t in range(done + 1, done + count):
                        if large:
                            ends = step.unpack(previous), step.unpack(packed)
                            watch.check(t - 1, *ends, info, replay, 1)
                            del ends
                        previous = packed
                        packed, info = step.advance(packed, draws(t))
            except KeyboardInterrupt:
                state = step.unpack(packed)
                watch.stop_all("interrupted", state, t)
                break
            before, end = step.unpack(previous), step.unpack(packed)
            if renewals:
                lost = watch.lost(end, info, method.thrown(end, seen, info)) & (retries > 0)
                if bool(lost.any()):
                    # The block is taken again, by these runs with shorter steps.
                    state = tree.where_run(lost, method.shortened(first), first)
                    retries = retries - lost.to(retries)
                    continue
            done, state = done + count, end
            info = step.report(before, state, info, draws(done - 1))
            taken = 1 if large else count
            watch.check(done - taken, before if large else first, state, info, replay, taken)
            watch.look(done, before, state, info, options.tol)
            del before, previous, first, packed, end  # a large y is held no longer than needed
            advance(count)
            # A list, so that every callback is called even when an earlier one ends the run.
            if any(
                [
                    callback(Record(done, state, info, watch.best, dict(watch.ended)))
                    for callback in options.callbacks
                ]
            ):
                watch.stop_all("callback", state, done)
    watch.stop_all("steps", state, done)
    return watch.run(time.perf_counter() - start_time, compiled=compile not in (False, "traced"))


def pays_to_compile(steps: int, numbers: int, batched: bool, device: torch.device) -> bool:
    """Whether so many steps are compiled where nobody says how they are taken.

    Args:
        numbers: in x and y of all runs that are stepped side by side.
    """
    if device.type != "cpu":
        return steps >= COMPILE_FROM[batched]
    # A version of torch compares with tuples, which its annotations do not say.
    safe: bool = torch.__version__ >= SAFE_ON_CPU  # type: ignore[operator]
    return safe and (steps >= COMPILE_FROM[batched] or steps * numbers >= COMPILE_WORK)


def _how(state: State, batched: bool, options: LoopOptions) -> bool | str:
    """How the steps are taken where nobody says: compiled, traced or plain."""
    if options.compile is not None:
        return options.compile
    device, numbers = tree.first_leaf(state.x).device, tree.numel((state.x, state.y))
    if pays_to_compile(options.steps, numbers, batched, device):
        return True
    # Callbacks are somebody else's code, which may change what a loss reads between two blocks.
    small = device.type == "cpu" and not options.callbacks
    return "traced" if batched and small and options.steps >= TRACE_FROM else False


def _renewed(problem: Problem, method: Method, state: State, batched: bool) -> State:
    if batched:
        return method.renewed(problem, state)
    return tree.select(method.renewed(problem, tree.expand(state, 1)), 0)


def not_begun(begun: Begun) -> Run:
    """What `drive` would return if it were interrupted before the first step."""
    watch = Watch(len(begun.seeds), begun.m, begun.batched, 0)
    watch.stop_all("interrupted", begun.state, 0)
    return watch.run(0.0, compiled=False)


class _Draws:
    """The draws of each step, gathered to runs: preferences of one seed share them, seeds do
    not.
    """

    def __init__(self, problem: Problem, roles: Sequence[Role], seeds: Sequence[int]) -> None:
        self.problem, self.roles = problem, roles
        self.unique = sorted(set(seeds))
        self.shared = len(self.unique) == 1
        self.index = torch.tensor([self.unique.index(seed) for seed in seeds])

    def __call__(self, t: int) -> Draw:
        if self.problem.sampler is None:
            return {}
        drawn = draw(self.problem, self.roles, t, self.unique)
        if self.shared:
            return drawn
        # Leaves that several roles share are gathered once.
        self.index = self.index.to(tree.first_leaf(drawn).device)
        gathered = {id(leaf): leaf[self.index] for leaf in tree.leaves(drawn)}
        return tree.map_(lambda leaf: gathered[id(leaf)], drawn)
