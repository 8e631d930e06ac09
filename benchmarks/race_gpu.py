"""The default of networks on a GPU: the race's share of the seconds, and the graphs it records.

    BIPARETO_DATA=FOLDER python benchmarks/race_gpu.py [--seeds 1,2] [--steps 2500] [--small]
        [--device cuda] [--json FILE]

Hyper-cleaning at FORUM's size (`bipareto experiment cleaning --method default`), three preferences,
no hyperparameter given.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bipareto.fronts import networks
from bipareto.run.graph import replay
from bipareto_experiments.cleaning import FULL, SMALL
from bipareto_experiments.cleaning_run import run_cleaning


class Watched:
    """A function that says how long it took, the device's work included."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner, self.seconds = inner, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begin = _now()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.seconds += _now() - begin


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--small", action="store_true", help="500 images a set")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in (int(s) for s in options.seeds.split(",")):
        race = Watched(networks.raced_or_rules)
        record = Watched(replay.ReplayedStepper._record)
        graphs: list[str] = []

        def noted(self: Any, *args: Any, graphs: list[str] = graphs, record: Any = record) -> None:
            graphs.append("branches" if self.branched else "one step for all runs")
            record(self, *args)

        networks.raced_or_rules = race  # type: ignore[assignment]
        replay.ReplayedStepper._record = noted  # type: ignore[method-assign]
        begin = _now()
        found = run_cleaning(
            None,
            seeds=[seed],
            sizes=SMALL if options.small else FULL,
            methods=["default"],
            preferences=3,
            steps=options.steps,
            device=options.device,
            progress=False,
        )
        whole = _now() - begin
        networks.raced_or_rules = race.inner
        replay.ReplayedStepper._record = record.inner  # type: ignore[method-assign]
        rows.append(
            {
                "seed": seed,
                "seconds": round(whole, 2),
                "race_seconds": round(race.seconds, 2),
                "race_share_of_seconds": round(race.seconds / found["rows"][0]["seconds"], 3),
                "race_share_of_gradients": round(found["rows"][0]["race"]["share"], 3),
                "recording_seconds": round(record.seconds, 2),
                "graphs": graphs,
                "race": found["rows"][0]["race"],
                "accuracy": [[row["preference"], row["test"], row["retrained"]]
                             for row in found["rows"]],
                "weights": [[row["clean_weight"], row["noisy_weight"]] for row in found["rows"]],
            }
        )  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
        if options.json:
            device = (
                torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
            )
            about = {"torch": torch.__version__, "device": device, "steps": options.steps}
            options.json.write_text(
                json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
