"""Sweeps at scale: speed against a loop of single solves, a million logged steps, ten thousand
preferences.

    python benchmarks/sweep.py                 all three, smaller: minutes
    python benchmarks/sweep.py speed           64 preferences x 3 seeds on PL-SIN2, d = 100
    python benchmarks/sweep.py log 1000000     time per logged step, at the start and at the end
    python benchmarks/sweep.py many 10000      peak memory of that many preferences

The loop of single solves is not run to its end: a few steps of an uncompiled `solve` are timed, and
multiplied.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import bipareto as bp
from bipareto.cli import main as command
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, Start
from bipareto.problem import Problem
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Record
from bipareto.sweep import plan
from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.store import RunFolder

SPEED = """
problem: {name: pl-sin2, options: {dim: 100}, starts: random}
preferences: {count: 64}
seeds: [0, 1, 2]
"""
MANY = """
problem: {name: quadratic, options: {dim: 2}}
method: {numbers: plain}
steps: 50
compile: false
"""


def speed(steps: int = 20_000) -> None:
    """One command for 192 runs against 192 plain solves one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "front.yaml"
        file.write_text(SPEED + f"steps: {steps}\n")
        began, used = time.perf_counter(), cpu()
        command_line("sweep", file, "--out", Path(folder) / "run", "--quiet")
        sweep, used = time.perf_counter() - began, cpu() - used
        config = load(SweepConfig, file)
        runs = RunFolder(Path(folder) / "run").manifest()["runs"]
    setup = plan.build(config.problem, config.seeds)
    method = plan.method_of(config.method, setup, steps)
    few, times, cpus = 300, [], []
    for x0, y0 in setup.starts:
        # The start (checks, warm-up) is paid once per solve and not per step: the difference of two
        # lengths leaves it out.
        marks = []
        for length in (few, 2 * few):
            began, before = time.perf_counter(), cpu()
            bp.solve(
                setup.problem, x0, y0, method=method, steps=length, compile=False, progress=False
            )
            marks.append((time.perf_counter() - began, cpu() - before))
        times.append((marks[1][0] - marks[0][0]) / few)
        cpus.append((marks[1][1] - marks[0][1]) / few)
    print(
        f"local: {runs} runs of {steps} steps in {sweep:.0f} s ({used:.0f} s of CPU), tuning, "
        "compiling and files included"
    )
    for name, each, ours in (
        ("wall", statistics.median(times), sweep),
        ("CPU", statistics.median(cpus), used),
    ):
        loop = each * steps * runs
        print(
            f"loop:  {1e3 * each:.2f} ms {name} per step of an uncompiled solve, {loop:.0f} s for "
            f"all; ratio {loop / ours:.1f}"
        )
    print(f"       (the loop is extrapolated from {len(times)} x {few} steps)")


def cpu() -> float:
    """CPU seconds of this process and of the compilers it has waited for: what a busy machine does
    not change.
    """
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def command_line(*words: object) -> None:
    """A command as a user types it; it ends by SystemExit."""
    try:
        command([str(word) for word in words])
    except SystemExit as end:
        if end.code:
            raise


class Counted(NamedTuple):
    """The state of `Count`."""

    x: Tensor
    y: Tensor
    t: Tensor


@dataclass(frozen=True)
class Count(Method):
    """A method that hardly computes, so that what is timed is the loop and the log."""

    uses_preference = False

    def begin(self, start: Start, preference: Any = None) -> Counted:
        return Counted(start.x, start.y, torch.zeros((), dtype=start.x.dtype))

    def step(
        self, problem: Problem, state: Counted, draw: Draw | None = None
    ) -> tuple[Counted, Info]:
        return Counted(state.x, state.y, state.t + 1), {
            "objectives": state.x,
            "residual": state.t,
            "lower": state.t,
        }

    def roles(self, m: int) -> tuple[str, ...]:
        return ()

    def oracles(self, m: int) -> dict[str, int]:
        return {}


def log(steps: int = 20_000, windows: int = 100, window: int = 500) -> None:
    """Every step is logged: is a step after `steps` of them as cheap as one at the start of a log?

    The clock is the process's own (CPU time).  Once the long log has its length, windows of it
    alternate with windows of young logs, so that whatever else slows the machine slows both; the
    ratio is taken pair by pair.
    """
    early: list[float] = []
    late: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        began = 0.0

        def alternate(seen: Record) -> None:
            nonlocal began
            if seen.step < steps or (seen.step - steps) % window:
                return
            if seen.step > steps:
                late.append((time.process_time() - began) / window)
            if len(late) < windows:
                early.append(_young(Path(folder) / f"young-{len(early)}", window))
            began = time.process_time()

        size = _logged(Path(folder) / "long", steps + windows * window, alternate)
    ratios = sorted(end / start for start, end in zip(early, late, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{steps} logged steps, {size / 1e6:.0f} MB; CPU microseconds per step: young log "
        f"{1e6 * statistics.median(early):.1f}",
        end=", ",
    )
    print(f"long log {1e6 * statistics.median(late):.1f}")
    # The spread of a median of n values is about 1.25 sigma / sqrt(n), and sigma about the
    # quartiles' distance / 1.35.
    error = 1.25 * (high - low) / 1.35 / len(ratios) ** 0.5
    print(
        f"last/first, {len(ratios)} alternating pairs of {window} steps: median {middle:.3f} +- "
        f"{error:.3f}, quartiles {low:.3f} to {high:.3f}"
    )


def _logged(folder: Path, steps: int, tick: Callable[[Record], None]) -> int:
    """A run that logs every step, `tick` called after each; the size of its log."""
    problem = bp.problems.get("quadratic", dim=2)
    part = RunFolder(folder).slice(0)
    part.path.mkdir(parents=True)
    with part.recording(None, seconds=30, keep=3) as record:
        drive(
            problem,
            Count(),
            Begun(Count().init(problem, problem.x0, problem.y0), [0], 2, batched=False),
            LoopOptions(
                steps, compile=False, record_every=1, callbacks=[record, tick], progress=False
            ),
        )
    return (part.path / "metrics.jsonl").stat().st_size


def _young(folder: Path, window: int) -> float:
    """CPU seconds per step of a log's second window; the first warms up."""
    marks: list[float] = []

    def tick(seen: Record) -> None:
        if seen.step in (window, 2 * window):
            marks.append(time.process_time())

    _logged(folder, 2 * window, tick)
    return (marks[1] - marks[0]) / window


def many(count: int = 2_000) -> None:
    """Peak memory of a sweep over that many preferences."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "front.yaml"
        file.write_text(MANY + f"preferences: {{count: {count}}}\n")
        began = time.perf_counter()
        command_line("sweep", file, "--out", Path(folder) / "run", "--quiet")
        seconds = time.perf_counter() - began
        size = sum(
            item.stat().st_size for item in (Path(folder) / "run").rglob("*") if item.is_file()
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{count} preferences in {seconds:.0f} s: peak memory {peak:.2f} GiB, folder "
        f"{size / 2**20:.0f} MiB"
    )


TASKS = {"speed": speed, "log": log, "many": many}

if __name__ == "__main__":
    name, *numbers = sys.argv[1:] or ["all"]
    if name == "all":
        speed(3_000)
        log()
        many()
    else:
        TASKS[name](*map(int, numbers))
