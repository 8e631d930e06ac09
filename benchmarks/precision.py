"""What float32 and bfloat16 do to one step of each method of architecture search, against the same
step in float64.

    python benchmarks/precision.py [--space nas-bench-201|darts] [--side 16] [--warm 60] [--draws 5]
    [--json FILE]

A supernet of 16 channels on CIFAR-10 scaled to `side` pixels is first trained by `warm` steps of
MB-MOMEHA.  From there every method makes one step on each of some draws, in three precisions;
printed is ||move - move in float64|| / ||move in float64|| of x and of y, the median over draws.
Methods that take second derivatives from differences of gradients are run with each of some shifts.
Runs on a CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bipareto.methods import WCMHGD, MoCo, WCPenalty
from bipareto.methods.base import Method, Start
from bipareto.problem import tree
from bipareto.run.stepping import draw
from bipareto_experiments.data import MissingData, load
from bipareto_experiments.devices import machine_of
from bipareto_experiments.nas.fast import FastDarts, FastNasBench201
from bipareto_experiments.nas.problem import Halves, Search
from bipareto_experiments.nas.settings import TUNED, Settings, configured

NETWORKS = {"nas-bench-201": FastNasBench201, "darts": FastDarts}
PREFERENCE, SEED, FAR = (0.6, 0.4), 1, 5000
SHIFTS = (0.01, 0.03, 0.1, 0.3)


def searches(space: str, side: int) -> dict[str, Search]:
    """The problem in float32 (and float64, by its arguments' type), and in bfloat16."""
    images = load("cifar10")
    own = ~images.test
    pixels = (
        torch.nn.functional.avg_pool2d(images.images[own].float(), 32 // side)
        .round()
        .to(torch.uint8)
    )

    def problem(half: bool) -> Search:
        network = NETWORKS[space](channels=16, size=side, half=half)
        halves = Halves(len(pixels), 64, margin=side // 8, flip=True, full=256)
        return Search(
            network,
            pixels,
            images.labels[own],
            halves,
            objectives=("loss", "flops"),
            decay=3e-4,
            clip=5.0,
        )

    return {"float32": problem(half=False), "bfloat16": problem(half=True)}


def stepped(problem: Search, method: Method, x: Any, y: Any, t: int) -> Any:
    """How far one step from (x, y), on the draws of step t, moves both, in float64."""
    with torch.no_grad():
        start = Start(x, y, problem.upper(x, y, problem.batch("upper", "full")))
    before = method.begin(start, PREFERENCE if method.uses_preference else None)
    after, _ = method.step(problem, before, draw(problem, method.roles(2), t, [SEED]))
    return double((tree.sub(after.x, before.x), tree.sub(after.y, before.y)))


def variants(name: str) -> dict[str, Method]:
    """A method, or its forms with other shifts."""
    method = configured(name, Settings())
    if isinstance(method, WCPenalty):
        return {f"{name}, shift {shift}": replace(method, difference=shift) for shift in SHIFTS}
    if isinstance(method, WCMHGD | MoCo):
        return {
            f"{name}, shift {shift}": replace(
                method, hypergradient=replace(method.hypergradient, eps=shift)
            )
            for shift in SHIFTS
        }
    return {name: method}


def double(point: Any) -> Any:
    """In float64."""
    return tree.map_(torch.Tensor.double, point)


def trained(problem: Search, steps: int) -> tuple[Any, Any]:
    """x and y after some steps of MB-MOMEHA."""
    method = configured("mb-momeha", Settings(cosine="none"))
    x, y = problem.start(SEED)
    with torch.no_grad():
        state = method.begin(
            Start(x, y, problem.upper(x, y, problem.batch("upper", "full"))), PREFERENCE
        )
    for t in range(steps):
        state, _ = method.step(problem, state, draw(problem, method.roles(2), t, [SEED]))
    return state.x, state.y


def main() -> None:
    """Measure every method."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--space", choices=list(NETWORKS), default="nas-bench-201")
    arguments.add_argument("--side", type=int, default=16)
    arguments.add_argument("--warm", type=int, default=60)
    arguments.add_argument("--draws", type=int, default=5)
    arguments.add_argument("--json", type=Path)
    asked = arguments.parse_args()
    try:
        problems = searches(asked.space, asked.side)
    except MissingData as error:
        print(f"not run: {error}")
        return
    x, y = trained(problems["float32"], asked.warm)
    found: dict[str, Any] = {
        "space": asked.space,
        "side": asked.side,
        "warm": asked.warm,
        "draws": asked.draws,
        "seed": SEED,
        "preference": PREFERENCE,
        "machine": machine_of(torch.device("cpu")),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "methods": {},
    }
    print(f"{'method':24s} {'precision':10s} {'move of x':>10s} {'move of y':>10s}", flush=True)
    for name, method in (pair for known in TUNED for pair in variants(known).items()):
        apart: dict[str, list[list[float]]] = {label: [] for label in problems}
        for t in range(FAR, FAR + asked.draws):
            truth = stepped(problems["float32"], method, double(x), double(y), t)
            for label, problem in problems.items():
                apart[label].append(
                    [
                        float(tree.relative_distance(a, b))
                        for a, b in zip(stepped(problem, method, x, y, t), truth, strict=True)
                    ]
                )
        found["methods"][name] = apart
        for label, rows in apart.items():
            of_x, of_y = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{name:24s} {label:10s} {of_x:10.2g} {of_y:10.2g}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
