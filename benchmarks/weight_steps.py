"""What the weights' steps are worth: MB-MOMEHA, and WC-MHGD with one, two and four steps of the
weights for one of x.

    python benchmarks/weight_steps.py [--steps 400] [--seeds 0,1,2] [--json FILE]

A search on NAS-Bench-201 with 8 channels, on CIFAR-10 scaled to 8x8 pixels, under the two strong
preferences, with the numbers and schedules of `--preset darts`.  Printed are the validation loss
and FLOPs of 1,000 images at the end, mean over seeds.  Runs on a CPU, some 80 seconds for each
search.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bipareto.methods import WCMHGD
from bipareto.methods.base import Method, Start
from bipareto.run.stepping import draw
from bipareto_experiments.data import MissingData, load
from bipareto_experiments.devices import machine_of
from bipareto_experiments.nas.fast import FastNasBench201
from bipareto_experiments.nas.problem import Halves, Search
from bipareto_experiments.nas.settings import PRESETS, configured

SIDE, CHANNELS, BATCH = 8, 8, 48
PREFERENCES = ((0.75, 0.25), (0.25, 0.75))


def small_search() -> Search:
    """Loss and FLOPs on small images."""
    images = load("cifar10")
    own = ~images.test
    pixels = (
        torch.nn.functional.avg_pool2d(images.images[own].float(), 32 // SIDE)
        .round()
        .to(torch.uint8)
    )
    halves = Halves(len(pixels), BATCH, margin=1, flip=True, full=1000)
    network = FastNasBench201(channels=CHANNELS, size=SIDE)
    return Search(
        network,
        pixels,
        images.labels[own],
        halves,
        objectives=("loss", "flops"),
        decay=3e-4,
        clip=5.0,
    )


def compared(steps: int) -> dict[str, Method]:
    """The methods, by name."""
    settings = replace(PRESETS["darts"], steps=steps, batch=BATCH)
    nested = configured("wc-mhgd", settings)
    assert isinstance(nested, WCMHGD)
    return {"mb-momeha": configured("mb-momeha", settings)} | {
        f"wc-mhgd, D = {D}": replace(nested, lower_steps=D) for D in (1, 2, 4)
    }


def ended(
    problem: Search, method: Method, preference: tuple[float, ...], seed: int, steps: int
) -> list[float]:
    """Both objectives at the end of one search."""
    everything = problem.batch("upper", "full")
    x, y = problem.start(seed)
    with torch.no_grad():
        state: Any = method.begin(Start(x, y, problem.upper(x, y, everything)), preference)
    for t in range(steps):
        state, _ = method.step(problem, state, draw(problem, method.roles(2), t, [seed]))
    with torch.no_grad():
        return problem.upper(state.x, state.y, everything).tolist()


def main() -> None:
    """Search with every method, preference and seed."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--steps", type=int, default=400)
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--json", type=Path)
    asked = arguments.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    try:
        problem = small_search()
    except MissingData as error:
        print(f"not run: {error}")
        return
    found: dict[str, Any] = {
        "command": f"python benchmarks/weight_steps.py --steps {asked.steps} --seeds {asked.seeds}",
        "preferences": PREFERENCES,
        "seeds": seeds,
        "machine": machine_of(torch.device("cpu")),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "methods": {},
    }
    print(f"{'method':16s} {'preference':12s} {'loss':>8s} {'FLOPs':>8s}", flush=True)
    for name, method in compared(asked.steps).items():
        ends = [
            [ended(problem, method, preference, seed, asked.steps) for seed in seeds]
            for preference in PREFERENCES
        ]
        found["methods"][name] = ends
        for preference, of_seeds in zip(PREFERENCES, ends, strict=True):
            loss, flops = torch.tensor(of_seeds).mean(0).tolist()
            print(
                f"{name:16s} {', '.join(map(str, preference)):12s} {loss:8.3f} {flops:8.3f}",
                flush=True,
            )
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
