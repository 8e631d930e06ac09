"""Sweeps at scale: a million logged steps, ten thousand preferences.

    python benchmarks/sweep.py                 both, smaller: minutes
    python benchmarks/sweep.py log 1000000     time per logged step, at the start and at the end
    python benchmarks/sweep.py many 10000      peak memory of that many preferences

What a step costs and what batching gains: `bipareto bench step`, `bipareto bench front`.
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
from bipareto.sweep.store import RunFolder

MANY = """
problem: {name: quadratic, options: {dim: 2}}
method: {hyperparameters: plain}
steps: 50
compile: false
"""


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


TASKS = {"log": log, "many": many}

if __name__ == "__main__":
    name, *numbers = sys.argv[1:] or ["all"]
    if name == "all":
        log()
        many()
    else:
        TASKS[name](*map(int, numbers))
