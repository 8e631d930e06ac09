"""A sweep with `engine: ray` and shares of a GPU, against the same sweep in one process.

    python benchmarks/ray_gpu.py [--device cuda] [--shares 0.25,0.125,1] [--preferences 8]
        [--seeds 0,1] [--seconds 1.0] [--compile false] [--once replay] [--timeout 150]
        [--json FILE]
    python benchmarks/ray_gpu.py --device cpu --small      on a GPU that Ray is only told of

The problem is a user's own, `module:function`: a weight for each of ten classes as x, a perceptron
of 3 x 32 x 32 pixels as y, the losses on two halves of a batch as objectives; all tensors lie on
the device.  Every sweep is `bipareto sweep FILE` in a process of its own, one run to a slice; the
steps are as many as take --seconds in one run, measured before.  The whole is from the command to
its end, what a user waits for: imports, the start of Ray and of its workers, runs, the front's
files.  The runs are from when the first is taken up to when the last has its result, which with
Ray holds the start of most workers: the process that came last took its first run up after so many
of these seconds.  The GPU's utilization is what nvidia-smi says five times a second, the share of
time in which a kernel of anybody's is at work: over the runs, and from when all processes were
there.

With --once the sweep is also run with all runs side by side in one process, steps taken in that
way: what one would do instead of giving each run a share.

A sweep that fails, or takes longer than --timeout, is a line that says so, and the next one is
taken; the file is written after each.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bipareto as bp
from bipareto.methods import MOMEHA
from bipareto.problem import Problem
from bipareto_experiments.bench.figures import about

PIXELS, CLASSES = 3 * 32 * 32, 10
NUMBERS = {"gamma": 1.0, "alpha_theta": 0.05, "alpha_x": 0.05, "alpha_y": 0.05, "c": 1.0}
METHOD = {"name": "momeha", "hyperparameters": "plain", "set": NUMBERS}
#: the sweep that all others are held against
BASE = "one process"
#: how the GPU is asked, five times a second
ASKED = ["nvidia-smi", "--query-gpu=timestamp,utilization.gpu,memory.used"]
FORMAT = ["--format=csv,noheader,nounits", "-lms", "200"]


def problem(device: str, width: int = 512, batch: int = 256) -> tuple[Problem, Any, Any]:
    """Class weights and a perceptron, as a user would write them."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(PIXELS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    ).to(device)
    stream = torch.Generator().manual_seed(1)

    def images() -> tuple[Tensor, Tensor]:
        pixels = torch.randn(batch, PIXELS, generator=stream)
        return pixels.to(device), torch.randint(CLASSES, (batch,), generator=stream).to(device)

    half = batch // 2

    def lower(x: Tensor, y: Any, data: tuple[Tensor, Tensor]) -> Tensor:
        each = cross_entropy(y(data[0]), data[1], reduction="none")
        return (torch.sigmoid(x)[data[1]] * each).mean()

    def loss(y: Any, data: tuple[Tensor, Tensor], rows: slice) -> Tensor:
        return cross_entropy(y(data[0][rows]), data[1][rows])

    return Problem.from_modules(
        x=torch.zeros(CLASSES, device=device),
        y=net,
        lower=lower,
        lower_data=images(),
        upper=[
            lambda x, y, data: loss(y, data, slice(half)),
            lambda x, y, data: loss(y, data, slice(half, None)),
        ],
        upper_data=images(),
    )


class Sample(NamedTuple):
    """The GPU at a moment of the runs."""

    seconds: float
    percent: float
    mib: float


class Swept(NamedTuple):
    """A sweep: its seconds, when its last process took its first run up, the GPU's samples
    meanwhile, its processes and its front.
    """

    whole: float
    runs: float
    all_there: float
    samples: list[Sample]
    workers: int
    objectives: list[list[float]]


class Failed(Exception):
    """A sweep that did not end well; its text is the end of what it said."""


@contextmanager
def sampled(path: Path, device: str) -> Iterator[None]:
    """Write the GPU's utilization to a file while the body runs."""
    if device != "cuda" or shutil.which("nvidia-smi") is None:
        yield
        return
    with path.open("w", encoding="utf-8") as file:
        asking = subprocess.Popen([*ASKED, *FORMAT], stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            asking.terminate()
            asking.wait()


def read_samples(path: Path, begin: float, end: float) -> list[Sample]:
    """The samples between two times."""
    found: list[Sample] = []
    for row in csv.reader(path.read_text("utf-8").splitlines()) if path.exists() else ():
        try:
            when = datetime.strptime(row[0].strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp()
            used, held = float(row[1]), float(row[2])
        except (ValueError, IndexError):
            continue
        if begin <= when <= end:
            found.append(Sample(when - begin, used, held))
    return found


def finish(command: list[str], place: Path, environment: dict[str, str], limit: float) -> None:
    """Run a command to its end, or stop it and all that it started after so many seconds."""
    path = place / "said.txt"
    with path.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Failed(f"not done after {limit:g} s\n{path.read_text()[-2000:]}") from None
    if code:
        raise Failed(f"exit {code}\n{path.read_text()[-2000:]}")


def sweep(folder: Path, name: str, config: dict[str, Any], options: argparse.Namespace) -> Swept:
    """`bipareto sweep`, as from a shell."""
    place = folder / name
    place.mkdir()
    (place / "sweep.yaml").write_text(yaml.safe_dump(config), "utf-8")
    # The command and Ray's workers start elsewhere, where relative paths lead nowhere.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    if options.device != "cuda":
        environment["RAY_OVERRIDE_RESOURCES"] = '{"GPU": 1}'
    command = [sys.executable, "-m", "bipareto", "sweep", "sweep.yaml", "--out", "run", "--quiet"]
    with sampled(place / "gpu.csv", options.device):
        begin = time.time()
        finish(command, place, environment, options.timeout)
        whole = time.time() - begin
    parts = sorted((place / "run/slices").iterdir())
    attempts = [
        json.loads(line)
        for part in parts
        for line in (part / "attempts.jsonl").read_text("utf-8").splitlines()
    ]
    arrivals: dict[tuple[str, int], float] = {}
    for item in sorted(attempts, key=lambda item: item["time"]):
        arrivals.setdefault((item["host"], item["pid"]), item["time"])
    taken_up = min(arrivals.values())
    over = max((part / "result.safetensors").stat().st_mtime for part in parts)
    with (place / "run/front.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [key for key in rows[0] if key.startswith("f") and key[1:].isdigit()]
    return Swept(
        whole,
        over - taken_up,
        max(arrivals.values()) - taken_up,
        read_samples(place / "gpu.csv", taken_up, over),
        len(arrivals),
        [[float(row[key]) for key in names] for row in rows],
    )


def steps_of(seconds: float, options: argparse.Namespace) -> int:
    """As many steps as take so many seconds in one process."""
    device = torch.device(options.device)

    def timed(steps: int) -> float:
        begin = time.perf_counter()
        bp.solve(
            *problem(options.device, options.width, options.batch),
            method=MOMEHA(**NUMBERS),
            steps=steps,
            compile=False,
            progress=False,
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    timed(10)
    each = max((timed(60) - timed(10)) / 50, 1e-5)
    return min(max(round(seconds / each), 20), 20_000)


def difference(found: list[list[float]], wanted: list[list[float]]) -> float:
    """The largest relative difference between two fronts."""
    pairs = zip(chain(*found), chain(*wanted), strict=True)
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)


def kinds(options: argparse.Namespace, base: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The configuration of each sweep, by its name."""
    found = {BASE: base}
    if options.once:
        way = {"compile": yaml.safe_load(options.once), "slice": None}
        found[f"side by side, {options.once}"] = base | way
    for share in (float(word) for word in options.shares.split(",")):
        found[f"ray, {share:g} GPU"] = base | {"engine": {"name": "ray", "gpus": share}}
    return found


def row_of(one: Swept, first: Swept | None, runs: int) -> dict[str, Any]:
    """What is written of a sweep, against the first one unless that failed."""
    used = [sample.percent for sample in one.samples]
    then = [sample.percent for sample in one.samples if sample.seconds >= one.all_there]
    return {
        "runs": runs,
        "workers": one.workers,
        "seconds": round(one.whole, 2),
        "seconds_of_runs": round(one.runs, 2),
        "seconds_to_last_process": round(one.all_there, 2),
        "times_one_process": first and round(first.whole / one.whole, 3),
        "runs_times_one_process": first and round(first.runs / one.runs, 3),
        "gpu_utilization": round(statistics.fmean(used), 1) if used else None,
        "gpu_utilization_all_there": round(statistics.fmean(then), 1) if then else None,
        "gpu_mib_at_most": max((sample.mib for sample in one.samples), default=None),
        "gpu_samples": used,
        "same_digits": first and one.objectives == first.objectives,
        "largest_difference": first and difference(one.objectives, first.objectives),
    }


COLUMNS = {
    "seconds": "whole, s",
    "seconds_of_runs": "runs, s",
    "times_one_process": "speed",
    "runs_times_one_process": "of runs",
    "workers": "processes",
    "seconds_to_last_process": "last one",
    "gpu_utilization": "GPU, %",
    "gpu_utilization_all_there": "then, %",
    "gpu_mib_at_most": "MiB",
    "largest_difference": "differs by",
}


def show(name: str, row: dict[str, Any]) -> None:
    """Print a line of the table, or what went wrong."""
    if "failed" in row:
        print(f"{name:24} FAILED: {row['failed']}", flush=True)
        return
    cells = [row[key] for key in COLUMNS]
    words = ["-" if c is None else f"{c:.2g}" if 0 < abs(c) < 0.01 else f"{c:g}" for c in cells]
    widths = [max(len(title), 8) for title in COLUMNS.values()]
    print(f"{name:24}", *(f"{w:>{n}}" for w, n in zip(words, widths, strict=True)), flush=True)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="four short runs of a small network")
    parser.add_argument("--shares", default="0.25,0.125,1")
    parser.add_argument("--preferences", type=int, default=8)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one run")
    parser.add_argument("--steps", type=int, help="instead of as many as take --seconds")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--compile", default="false", help="how Ray's sweeps take steps")
    parser.add_argument("--once", help="how steps are taken side by side; '' for not at all")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds of one sweep")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.small:
        options.width, options.batch, options.preferences = 16, 32, 2
        options.steps, options.shares = options.steps or 40, "0.5"
    if options.once is None:
        options.once = "replay" if options.device == "cuda" else "false"
    began = time.perf_counter()
    seeds = [int(word) for word in options.seeds.split(",")]
    base = {
        "problem": {
            "name": "ray_gpu:problem",
            "options": {
                "device": options.device, "width": options.width, "batch": options.batch,
            },
        },
        "method": METHOD,
        "preferences": {"count": options.preferences},
        "seeds": seeds,
        "steps": options.steps or steps_of(options.seconds, options),
        "record_every": 50,
        "compile": yaml.safe_load(options.compile),
        "slice": 1,
    }  # fmt: skip
    if options.device == "cuda":
        torch.cuda.empty_cache()
    words = " ".join(sys.argv[1:]).replace(f" --json {options.json}", "")
    data = about(f"python benchmarks/ray_gpu.py {words}", seeds)
    data["versions"]["ray"] = __import__("ray").__version__
    found: dict[str, Any] = {"about": data, "sweep": base, "rows": {}}
    runs = options.preferences * len(seeds)
    print(f"{runs} runs of {base['steps']} steps; {data['machine']}, {data['cores']} cores")
    print(f"{'':24}", *(f"{title:>8}" for title in COLUMNS.values()))
    with tempfile.TemporaryDirectory() as folder:
        first: Swept | None = None
        for name, config in kinds(options, base).items():
            try:
                one = sweep(Path(folder), name, config, options)
            except (Failed, OSError, KeyError, ValueError) as error:
                found["rows"][name] = {"runs": runs, "failed": str(error)}
            else:
                first = one if name == BASE else first
                found["rows"][name] = row_of(one, first, runs)
            show(name, found["rows"][name])
            found["seconds"] = round(time.perf_counter() - began, 1)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
