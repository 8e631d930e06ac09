"""Suite `startup`: how long until something answers, ours and theirs, each in a new process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

from bipareto_experiments.bench.figures import Claim, Figures, interleaved

FIRST = """
import bipareto as bp
p = bp.problems.get("quadratic", dim=5)
bp.solve(p, p.x0, p.y0, method=bp.MOMEHA(), steps=10, progress=False)
"""
COMMANDS = {
    "bipareto --help": ["-m", "bipareto", "--help"],
    "python alone": ["-c", "pass"],
    "import bipareto": ["-c", "import bipareto"],
    "import torch": ["-c", "import torch"],
    "ten steps of a solve": ["-c", FIRST],
}
THEIRS = ("boat_torch", "torchjd", "torchopt", "jaxopt", "optuna", "pymoo", "botorch")


def run(seconds: float, seed: int = 0) -> Figures:
    """Measure CPU seconds of processes, about `seconds` in all."""
    figures = Figures("startup")
    commands = dict(COMMANDS)
    for name in THEIRS:
        if find_spec(name) is None:
            figures.missing[name] = "not installed"
        else:
            commands[f"import {name}"] = ["-c", f"import {name}"]

    def called(words: list[str]) -> None:
        subprocess.run(
            [sys.executable, "-W", "ignore", *words], check=False, capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def clock() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = interleaved(
        {name: partial(called, words) for name, words in commands.items()},
        seconds, least=3, clock=clock,
    )  # fmt: skip
    figures.timed("processes from start to end, CPU time", times, "bipareto --help")
    figures.claims.append(
        Claim("bipareto --help / import torch",
              1 / times.ratio("import torch", "bipareto --help"), 0.25)
    )  # fmt: skip
    return figures
