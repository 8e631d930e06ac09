"""`MOMEHA.tuned` on every known problem, against the best of a random search over its numbers.

    python benchmarks/tuned_vs_random.py [--problem NAME ...] [--steps 20000] [--json FILE]

Per problem tuned from the problem's own start and (one branch only) from five random starts, and in
one batch 30 trials in plain coordinates that draw gamma, c_0, p, the steps and mu log-uniformly,
from the problem's own start; five preferences each.  Figures are the worst distance to the exact
front over the preferences, relative to its extent, with the lower level solved again to 1e-13 (at
1e-8 the error of that solve, not the method, is what one sees on half of the problems).  Ratios
count distances below 1e-12 as 1e-12.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.methods.parts import envelope
from bipareto.methods.parts.schedule import Power
from bipareto.problem import tree
from bipareto.run.loop import Begun, LoopOptions, drive

TRIALS, PREFERENCES, STARTS = 30, 5, 5
#: distances below this are rounding
ROUNDING = 1e-12
#: problems whose lower level has one branch: any start must do
ONE_BRANCH = ("quadratic", "pl-sin2", "merely-convex", "tp2-s", "ds1", "ridge")
PROBLEMS = (*ONE_BRANCH, "sin", "sin-trap", "mo-sin", "mo-sin2", "bistable")


def trial(problem: Any, tuned: bp.MOMEHA, stream: random.Random) -> bp.MOMEHA:
    """Numbers drawn without knowledge of the problem but its weak convexity and the scale of its
    objectives.
    """

    def log_uniform(low: float, high: float) -> float:
        return math.exp(stream.uniform(math.log(low), math.log(high)))

    gamma = log_uniform(0.05, 1.0) * min(problem.constants.gamma_max, 5.0)
    alpha = log_uniform(1e-3, 0.5)
    return bp.MOMEHA(
        gamma=gamma,
        mu=tuned.mu * log_uniform(0.1, 10),
        alpha_theta=alpha,
        alpha_x=log_uniform(1e-3, 2.0),
        alpha_y=alpha,
        c=Power(log_uniform(0.3, 300), stream.uniform(0, 0.45)),
        ideal=tuned.ideal,
        extent=tuned.extent,
    )


def distances(
    problem: Any, methods: list[bp.MOMEHA], x: Any, y: Any, weights: list[Tensor], steps: int
) -> Tensor:
    """The worst distance over the preferences for each of several methods with one state's
    structure, as one batch.
    """
    starts = [method.prepare(problem, x, y) for method in methods]
    states = [
        method.begin(start, w)
        for method, start in zip(methods, starts, strict=True)
        for w in weights
    ]
    run = drive(
        problem,
        methods[0],
        Begun(tree.stack(states), [0] * len(states), problem.m, batched=True),
        LoopOptions(steps, compile=True),
    )
    y = envelope.solve_lower(problem, run.state.x, run.state.y, tol=1e-13).y
    with torch.no_grad():
        objectives = torch.func.vmap(problem.upper)(run.state.x, y)
    worst = problem.distance_to_front(objectives).nan_to_num(nan=math.inf)
    return worst.reshape(len(methods), len(weights)).amax(1)


def measure(name: str, steps: int) -> dict[str, Any]:
    """All runs of one problem."""
    torch.set_num_threads(1)
    problem = bp.problems.get(name)
    weights = (
        [torch.ones(1, dtype=torch.float64)]
        if problem.m == 1
        else list(bp.preferences.grid(problem.m, PREFERENCES))
    )
    starts = [
        (problem.x0, problem.y0),
        *([problem.start(seed) for seed in range(STARTS)] if name in ONE_BRANCH else []),
    ]
    tuned = [bp.MOMEHA.tuned(problem, x, y, steps=steps) for x, y in starts]
    stream = random.Random(0)
    trials = [trial(problem, tuned[0], stream) for _ in range(TRIALS)]
    ours = torch.stack(
        [
            distances(problem, [method], *start, weights, steps)[0]
            for method, start in zip(tuned, starts, strict=True)
        ]
    )
    others = distances(problem, trials, *starts[0], weights, steps)
    return {
        "problem": name,
        "tuned": float(ours[0]),
        "tuned, worst of random starts": float(ours[1:].max()) if len(ours) > 1 else None,
        "best of 30 trials": float(others.min()),
        "median of 30 trials": float(others.median()),
        "ratio to the best": max(float(ours[0]), ROUNDING) / max(float(others.min()), ROUNDING),
        "numbers": {
            "gamma": tuned[0].gamma,
            "mu": tuned[0].mu,
            "alpha_x": tuned[0].alpha_x[0],
            "alpha_y": tuned[0].alpha_y[0],
            "c": list(tuned[0].c),
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--problem", action="append", choices=PROBLEMS, help="only these; repeatable"
    )
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2, help="problems at a time")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    names = options.problem or list(PROBLEMS)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(measure, names, [options.steps] * len(names)))
    columns = [
        "tuned",
        "tuned, worst of random starts",
        "best of 30 trials",
        "median of 30 trials",
        "ratio to the best",
    ]
    print(f"{'problem':14s}" + "".join(f"{column:>32s}" for column in columns))
    for row in rows:
        print(
            f"{row['problem']:14s}"
            + "".join(f"{'-' if row[c] is None else format(row[c], '.2e'):>32s}" for c in columns)
        )
    if options.json:
        Path(options.json).write_text(
            json.dumps({"rows": rows, "steps": options.steps, "torch": torch.__version__}, indent=1)
        )


if __name__ == "__main__":
    main()
