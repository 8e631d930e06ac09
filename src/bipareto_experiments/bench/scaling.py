"""Suite `scaling`: step time and memory over objectives, preferences, parameters and processes.

The problem is separable, so that its cost is known: g = ||y - sin x||^2 / n + ..., and every f_i a
square distance of its own.  Slopes are of logs of time against logs of the size, by least squares.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.methods import MOMEHA
from bipareto.methods.parts.preferences import grid
from bipareto.problem import Problem, tree
from bipareto.run.steppers import stepper
from bipareto_experiments.bench.figures import Claim, Figures

METHOD = MOMEHA(gamma=0.5, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, c=2.0)
#: where slopes are taken from
BEYOND = 100_000
SIZES = {"cpu": (10**4, 10**5, 10**6, 10**7), "cuda": (10**5, 10**6, 10**7, 10**8)}
OBJECTIVES = (2, 4, 8, 16, 32, 64)
RUNS = (1, 4, 16, 64, 256)
PROCESSES = (1, 2, 4, 8, 16)


def separable(x: int, y: int, m: int, device: str) -> tuple[Problem, Tensor, Tensor]:
    """A problem with so many coordinates of x and y, and its start."""
    aims = [torch.full((y,), float(i), device=device) for i in range(m)]
    scale_x, scale_y = 1 / x, 1 / y

    def lower(a: Tensor, b: Tensor) -> Tensor:
        pull = a[:1].sin() if x != y else a.sin()
        return (b - pull).square().sum() * scale_y + (a * a).sum() * (0.01 * scale_x)

    def upper(a: Tensor, b: Tensor) -> Tensor:
        own = a.square().sum() * scale_x
        return torch.stack([(b - aim).square().sum() * scale_y + own for aim in aims])

    start = torch.zeros(x, device=device), torch.zeros(y, device=device)
    return Problem(upper, lower), *start


def timed(go: Callable[[], object], seconds: float, device: str) -> float:
    """Seconds of a call: the least of at least three."""
    times: list[float] = []
    go()
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
        _wait(device)
        begin = time.perf_counter() if device == "cuda" else time.process_time()
        go()
        _wait(device)
        times.append((time.perf_counter() if device == "cuda" else time.process_time()) - begin)
    return min(times)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log time over log size, by least squares."""
    logs = [(math.log(a), math.log(b)) for a, b in points]
    a, b = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    return sum((u - a) * (v - b) for u, v in logs) / sum((u - a) ** 2 for u, _ in logs)


def _step(
    problem: Problem, x0: Tensor, y0: Tensor, runs: int | None, m: int, how: bool | str = False
) -> Any:
    start = METHOD.prepare(problem, x0, y0)
    if runs is None:
        state: Any = METHOD.begin(start, torch.full((m,), 1 / m))
    else:
        state = tree.stack([METHOD.begin(start, w) for w in grid(2, max(runs, 2))[:runs]])
    step = stepper(problem, METHOD, batched=runs is not None, compile=how)
    packed = step.pack(state, {})
    del state

    def go() -> None:
        nonlocal packed
        packed, _ = step.advance(packed, {})

    return go


def parameters(seconds: float, device: str, how: bool | str = False) -> list[tuple[float, float]]:
    """Seconds of a step over n, where x and y have n coordinates each."""
    found = []
    for n in SIZES[device]:
        problem, x0, y0 = separable(n, n, 2, device)
        found.append((float(n), timed(_step(problem, x0, y0, None, 2, how), seconds, device)))
        gc.collect()
    return found


def objectives(seconds: float, device: str, how: bool | str = False) -> list[tuple[float, float]]:
    """Seconds of a step over m, with 1e5 coordinates (1e7 on a GPU)."""
    found = []
    for m in OBJECTIVES:
        n = 10**7 if device == "cuda" else 10**5
        problem, x0, y0 = separable(10, n, m, device)
        found.append((float(m), timed(_step(problem, x0, y0, None, m, how), seconds, device)))
    return found


def preferences(seconds: float, device: str) -> list[tuple[float, float]]:
    """Seconds of a batched step over preferences, with 1e4 coordinates."""
    found = []
    for runs in RUNS:
        problem, x0, y0 = separable(10, 10**4, 2, device)
        found.append((float(runs), timed(_step(problem, x0, y0, runs, 2), seconds, device)))
    return found


def _steps_in_a_process(steps: int) -> float:
    torch.set_num_threads(1)
    problem = bp.problems.get("pl-sin2", dim=100)
    go = _step(problem, problem.x0, problem.y0, None, 2)
    go()
    begin = time.process_time()
    for _ in range(steps):
        go()
    return time.process_time() - begin


def processes(seconds: float, device: str) -> list[tuple[float, float]]:
    """CPU seconds of 500 steps in each of k processes at a time; flat is perfect."""
    import os

    found = []
    for count in (k for k in PROCESSES if k <= (os.cpu_count() or 1)):
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            found.append((float(count), max(pool.map(_steps_in_a_process, [500] * count))))
    return found


class _Memory:
    """Peak memory of what happens inside, in bytes beyond what was there before."""

    def __init__(self, device: str) -> None:
        self.device, self.peak = device, 0

    def __enter__(self) -> _Memory:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5", "ascii")
            self.before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        now = torch.cuda.max_memory_allocated() if self.device == "cuda" else _status("VmHWM")
        self.peak = now - self.before


def _status(field: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def copies(device: str) -> dict[str, float]:
    """Copies of y (of x) at the peak of a run, beyond what its largest gradient takes alone.

    The start is not counted: it is the user's.  A step is taken on a state of its own.
    """
    n = 10**7
    small, x0, y0 = separable(10, 10, 2, device)
    bp.solve(small, x0, y0, method=METHOD, steps=4, compile=False)  # what is loaded once is loaded
    found = {}
    for level in ("y", "x"):
        problem, x0, y0 = separable(*((10, n) if level == "y" else (n, 10)), 2, device)
        size = 4 * n
        w = torch.full((2,), 0.5, device=device)

        # The two largest gradients of a step, at tensors that are there.
        with _Memory(device) as of_y:
            b = y0.detach().requires_grad_()
            value = torch.logsumexp(4 * w * problem.upper(x0, b), 0) + problem.lower(x0, b)
            torch.autograd.grad(value, b)
            del value
        with _Memory(device) as of_x:
            a = x0.detach().requires_grad_()
            value = torch.logsumexp(4 * w * problem.upper(a, y0), 0) + problem.lower(a, y0)
            torch.autograd.grad(value - problem.lower(a, y0), a)
            del value
        alone = max(of_y.peak, of_x.peak)
        with _Memory(device) as one:
            go = _step(problem, x0, y0, None, 2)
            for _ in range(3):
                go()
            del go
        with _Memory(device) as whole:
            bp.solve(
                problem, x0, y0, method=METHOD, steps=4, record_every=2, compile=False,
                progress=False,
            )  # fmt: skip
        found[f"step, copies of {level}"] = (one.peak - alone) / size
        found[f"solve, copies of {level}"] = (whole.peak - alone) / size
        found[f"one gradient alone, copies of {level}"] = alone / size
    return found


PARTS: dict[str, Callable[[float, str], Any]] = {
    "parameters": parameters,
    "objectives": objectives,
    "replayed-parameters": partial(parameters, how="replay"),
    "replayed-objectives": partial(objectives, how="replay"),
    "preferences": preferences,
    "processes": processes,
}
#: parts where there is no GPU, and where there is one
CPU_PARTS = ("parameters", "objectives", "preferences", "processes", "memory")
GPU_PARTS = ("parameters", "memory", "replayed-parameters", "replayed-objectives")
LABELS = {
    "replayed-parameters": "coordinates of x and y",
    "replayed-objectives": "objectives m",
    "parameters": "coordinates of x and y",
    "objectives": "objectives m",
    "preferences": "preferences side by side",
    "processes": "processes at a time",
}


def run(
    seconds: float,
    seeds: Sequence[int],
    only: Sequence[str] | None,
    folder: Path,
    say: Callable[[str], None],
) -> Figures:
    """Measure; on the GPU where there is one and --only says cuda."""
    torch.set_num_threads(1)
    names = list(only or CPU_PARTS)
    device = "cuda" if "cuda" in names else "cpu"
    figures = Figures("scaling" if device == "cpu" else "scaling-gpu")
    names = [name for name in names if name != "cuda"] or list(GPU_PARTS)
    curves: dict[str, list[tuple[float, float]]] = {}
    for name in (n for n in names if n != "memory"):
        curves[name] = PARTS[name](seconds, device)
        say(f"{name}: {json.dumps(curves[name])}")
        rows = [(f"{int(a):,}", f"{1e3 * b:.4g}") for a, b in curves[name]]
        figures.tables[f"{name}, {device}"] = ((LABELS[name], "ms"), rows)
    for name, points in curves.items():
        of = name.rpartition("-")[2]
        if of in ("parameters", "objectives"):
            least, words = (BEYOND, "beyond 1e5 parameters") if of == "parameters" else (8, "of m")
            figures.data[f"slope, {name}"] = steepness = slope([p for p in points if p[0] >= least])
            # On a GPU a plain step waits for Python, whatever its size; what is asked of a step is
            # asked of a replayed one there.
            if device == "cpu" or "replayed" in name:
                figures.claims.append(Claim(f"|slope - 1| {words}", abs(steepness - 1), 0.1))
    if "memory" in names:
        held = copies(device)
        figures.tables[f"memory beyond gradients, {device}"] = (
            ("", "copies"), [(k, f"{v:.2f}") for k, v in held.items()],
        )  # fmt: skip
        figures.data["memory"] = held
        figures.claims += [
            Claim("copies of y in a step", held["step, copies of y"], 4.0),
            Claim("copies of x in a step", held["step, copies of x"], 2.0),
            Claim("copies of y in solve", held["solve, copies of y"], 4.0),
            Claim("copies of x in solve", held["solve, copies of x"], 2.0),
        ]
    figures.data["seconds"] = curves
    if curves:
        figures.draw = (len(curves), lambda axes: _draw(axes, curves))
    return figures


def _draw(axes: Sequence[Any], curves: dict[str, list[tuple[float, float]]]) -> None:
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        sizes, times = zip(*points, strict=True)
        axis.loglog(sizes, times, marker="o", color="#1f6f8b")
        last = points[-1]
        for (a, _), (b, _) in pairwise(points):
            axis.plot([a, b], [last[1] * a / last[0], last[1] * b / last[0]], ":", color="grey")
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axis.xaxis.minorticks_off()
        axis.set_xlabel(LABELS[name], fontsize=8)
        axis.set_ylabel("seconds of a step" if name != "processes" else "seconds", fontsize=8)
        axis.set_title(f"{name} (dotted: slope 1)", fontsize=9)
        axis.tick_params(labelsize=7)
