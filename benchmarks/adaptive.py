"""Adaptive preferences against a uniform grid, and warm starts along a front against cold ones.

    python benchmarks/adaptive.py [--json FILE] [--quick]

Hypervolume: both begin at the same starts, run the same method and spend the same gradients (what
the library counts); the grid solves every preference from every start, `adaptive.trace` chooses.
Both are measured with the lower level solved again, as a share of the hypervolume of the exact
front.  `placement` is the same choice without the shorter warm runs.

Warm: 17 preferences on PL-SIN2.  Each run is stopped when its position error first falls to the
accuracy; cold runs begin at the problem's start, warm ones between their two neighbours on the
front as those were left.  The three first, which are cold in either case, are counted on both
sides.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.fronts import adaptive
from bipareto.fronts.measures import hypervolume
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods.base import State
from bipareto.methods.parts.preferences import grid
from bipareto.problem import tree
from bipareto.problems import KnownProblem
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Record


def share(problem: KnownProblem, fronts: list[ParetoFront]) -> float:
    """The hypervolume of all these fronts together, resolved, as a share of the exact one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        rows = torch.cat([front.resolve_lower().objectives for front in fronts])
    return hypervolume(rows, problem.reference) / hypervolume(
        problem.front(2001), problem.reference
    )


def gradients(fronts: list[ParetoFront]) -> int:
    """Gradients of g and of the f_i that the library counted."""
    return sum(
        front.oracles["lower_gradients"] + front.oracles["upper_gradients"] for front in fronts
    )


def against_grid(
    name: str, options: dict[str, Any], per_edge: int, starts: int, steps: int, seed: int
) -> dict[str, Any]:
    """One seed: the grid, the adaptive front, and the adaptive front without short warm runs."""
    problem = bp.problems.get(name, **options)
    method = bp.MOMEHA.tuned(problem, problem.x0, problem.y0, steps=steps)
    begun = [problem.start(1000 * seed + i) for i in range(starts)]
    common: dict[str, Any] = {"method": method, "steps": steps, "compile": False, "progress": False}
    weights = grid(problem.m, per_edge)
    fronts = {
        "grid": [bp.front(problem, x0, y0, preferences=weights, **common) for x0, y0 in begun]
    }
    for label, warm in (("adaptive", adaptive.WARM), ("placement", 1.0)):
        fronts[label] = [
            adaptive.trace(
                problem,
                begun,
                len(weights) * starts,
                method,
                options=LoopOptions(steps, compile=False, progress=False),
                warm=warm,
            )
        ]
    row: dict[str, Any] = {"seed": seed}
    for label, found in fronts.items():
        row |= {
            label: share(problem, found),
            f"{label}_points": sum(map(len, found)),
            f"{label}_gradients": gradients(found),
        }
    return row


class Reached:
    """A callback that keeps each run's (x, y) and step when its position error first falls to the
    accuracy, and ends with the last.
    """

    def __init__(
        self, problem: KnownProblem, method: bp.MOMEHA, preferences: Tensor, accuracy: float
    ) -> None:
        self.problem, self.accuracy = problem, accuracy
        self.wanted = torch.stack(
            [
                problem.solution(
                    w, mu=method.mu, ideal=method.ideal, extent=method.extent
                ).coordinates
                for w in preferences
            ]
        )
        self.found: dict[int, tuple[Tensor, Tensor, int]] = {}

    def __call__(self, seen: Record) -> bool:
        error = (self.problem.coordinates(seen.state.x) - self.wanted).abs().amax(-1)
        for run in range(len(error)):
            if error[run] <= self.accuracy:
                self.found.setdefault(
                    run, (seen.state.x[run].clone(), seen.state.y[run].clone(), seen.step)
                )
        return len(self.found) == len(error)


def run_until(
    problem: KnownProblem,
    method: bp.MOMEHA,
    states: list[State],
    preferences: Tensor,
    accuracy: float,
    limit: int,
) -> list[tuple[Tensor, Tensor, int]]:
    """(x, y, steps) of each run at the accuracy; `limit` steps where it was never reached."""
    watch = Reached(problem, method, preferences, accuracy)
    run = drive(
        problem,
        method,
        Begun(tree.stack(states), [0] * len(states), problem.m, batched=True),
        LoopOptions(limit, compile=False, record_every=5, callbacks=[watch], progress=False),
    )
    return [watch.found.get(i, (run.state.x[i], run.state.y[i], limit)) for i in range(len(states))]


def warm_against_cold(
    dim: int, seed: int, accuracy: float, steps: int, limit: int
) -> dict[str, Any]:
    """Gradients that 17 preferences need, cold and warm, to the same accuracy.

    The first three are solved cold in either case.  The others lie between neighbours, as
    `adaptive.trace` would put them, and start there; the same preferences are then solved cold.
    """
    problem = bp.problems.get("pl-sin2", dim=dim, seed=seed)
    method = bp.MOMEHA.tuned(problem, problem.x0, problem.y0, steps=steps)
    start = method.prepare(problem, problem.x0, problem.y0)
    ideal = method.begin(start).ideal
    first = torch.tensor([0.95, 0.5, 0.05], dtype=torch.float64)
    preference = dict(zip((0, 8, 16), torch.stack([first, 1 - first], 1), strict=True))
    states = [method.begin(start, w) for w in preference.values()]
    solved = dict(
        zip(
            preference,
            run_until(
                problem, method, states, torch.stack(list(preference.values())), accuracy, limit
            ),
            strict=True,
        )
    )
    for width in (4, 2, 1):
        level, states = list(range(width, 17, 2 * width)), []
        for i in level:
            ends = [i - width, i + width]
            points = [solved[end][:2] for end in ends]
            x, y = adaptive.between(problem, points) or points[0]
            values = torch.stack([problem.upper(*point) for point in points])
            weights = torch.stack([preference[end] for end in ends])
            preference[i] = adaptive.aimed(
                method, problem.upper(x, y), weights, values, ideal.expand(2, -1)
            )
            state = method.begin(start._replace(x=x, y=y), preference[i])
            states.append(state._replace(t=state.t + round((1 - adaptive.WARM) * steps)))
        found = run_until(
            problem, method, states, torch.stack([preference[i] for i in level]), accuracy, limit
        )
        solved |= dict(zip(level, found, strict=True))
    w = torch.stack(list(preference.values()))
    cold = run_until(problem, method, [method.begin(start, one) for one in w], w, accuracy, limit)
    cost = method.oracles(2)["lower_gradients"] + method.oracles(2)["upper_gradients"]
    spent = {
        "cold": cost * sum(found[2] for found in cold),
        "warm": cost * sum(found[2] for found in solved.values()),
    }
    missed = sum(found[2] >= limit for found in [*cold, *solved.values()])
    return {"seed": seed, **spent, "saved": 1 - spent["warm"] / spent["cold"], "missed": missed}


def write(result: dict[str, Any], path: str | None) -> None:
    """What is measured so far, so that a long run leaves something whenever it ends."""
    if path is not None:
        Path(path).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--only", choices=["hypervolume", "warm"], help="one of the two parts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(2 if options.quick else 5)
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": "2-core x86 CPU",
        "python": platform.python_version(),
        "command": "python benchmarks/adaptive.py --json docs/results/adaptive.json",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    cases = {
        "mo-sin2, 4 random starts": ("mo-sin2", {}, 9, 4, 1000),
        "mo-sin2, 1 random start": ("mo-sin2", {}, 9, 1, 1000),
        "quadratic, m = 3": ("quadratic", {"m": 3}, 5, 1, 500),
    }
    for label, (name, problem_options, per_edge, starts, steps) in (
        cases.items() if options.only != "warm" else ()
    ):
        rows = [
            against_grid(
                name,
                problem_options | ({"seed": seed} if name == "quadratic" else {}),
                per_edge,
                starts,
                steps,
                seed,
            )
            for seed in seeds
        ]
        mean = {
            key: statistics.mean(row[key] for row in rows)
            for key in ("grid", "adaptive", "placement")
        }
        result[label] = {
            "steps": steps,
            "per_edge": per_edge,
            "starts": starts,
            "mean": mean,
            "seeds": rows,
        }
        print(
            label,
            "  ".join(f"{key} {value:.4f}" for key, value in mean.items()),
            "of the exact hypervolume",
            flush=True,
        )
        write(result, options.json)
    for accuracy in (1e-2, 3e-3, 1e-3) if options.only != "hypervolume" else ():
        rows = [warm_against_cold(20, seed, accuracy, 2000, 4000) for seed in seeds]
        saved = statistics.mean(row["saved"] for row in rows)
        label = f"pl-sin2, warm starts, position error {accuracy:g}"
        result[label] = {"dim": 20, "preferences": 17, "mean_saved": saved, "seeds": rows}
        print(
            label,
            f"saved {saved:.1%} of the gradients, at least {min(row['saved'] for row in rows):.1%}",
            flush=True,
        )
        write(result, options.json)


if __name__ == "__main__":
    main()
