"""The defaults on the problems with known answers: PL-SIN2, noisy gradients, the sin trap.

    python benchmarks/known.py [--json FILE] [--quick]

Every figure is of resolved points; distances are relative to the front's extent, positions run from
0 to 1 along it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import torch

import bipareto as bp


def defaults(dim: int, steps: int, seeds: list[int], noise: float = 0.0) -> dict[str, Any]:
    """One front of 11 preferences with the tuned method: worst distance and position error (means
    over seeds under noise).
    """
    problem = bp.problems.get("pl-sin2", dim=dim, noise=noise)
    begin = time.perf_counter()
    kind = bp.MBMOMEHA if noise else bp.MOMEHA
    method = kind.tuned(problem, problem.x0, problem.y0, steps=steps)
    weights = bp.preferences.grid(2, 11)
    found = bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences=weights,
        seeds=seeds,
        method=method,
        steps=steps,
    ).resolve_lower()
    seconds = time.perf_counter() - begin
    distance = problem.distance_to_front(found.objectives).reshape(len(seeds), 11).mean(0)
    position = (
        problem.position_error(
            found.x, found.preference, mu=method.mu, ideal=method.ideal, extent=method.extent
        )
        .reshape(len(seeds), 11)
        .mean(0)
    )
    return {
        "problem": "pl-sin2",
        "dim": dim,
        "noise": noise,
        "method": kind.__name__,
        "steps": steps,
        "seeds": seeds,
        "distance": float(distance.max()),
        "position_error": float(position.max()),
        "seconds": round(seconds, 1),
    }


def trap(starts: int, steps: int) -> dict[str, Any]:
    """sin-trap from starts near the lower maximum: how many runs end at a lower minimum."""
    problem = bp.problems.get("sin-trap")
    minima = 0
    for seed in range(starts):
        stream = torch.Generator().manual_seed(seed)
        x0 = problem.x0 + torch.randn(problem.x0.shape, generator=stream, dtype=torch.float64)
        y0 = (
            math.pi / 2
            - x0
            + 2.0
            + 0.05 * torch.randn(problem.y0.shape, generator=stream, dtype=torch.float64)
        )
        answer = bp.solve(problem, x0, y0, steps=steps)
        minima += bool(torch.sin(answer.x + answer.y - 2.0).max() < -0.99)
    return {"problem": "sin-trap", "starts": starts, "steps": steps, "end at a minimum": minima}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="fewer steps and seeds")
    options = parser.parse_args()
    steps = 5_000 if options.quick else 20_000
    rows = [defaults(dim, steps, [0]) for dim in (3, 20, 100)]
    rows.append(defaults(20, steps, list(range(3 if options.quick else 10)), noise=0.1))
    rows.append(trap(5 if options.quick else 20, 5_000))
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.2e}"
                if isinstance(value, float) and key != "seconds"
                else f"{key} {value}"
                for key, value in row.items()
            )
        )
    if options.json:
        facts = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.processor() or platform.machine(),
        }
        Path(options.json).write_text(json.dumps({"rows": rows, **facts}, indent=1))


if __name__ == "__main__":
    main()
