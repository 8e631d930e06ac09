"""Which suites there are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from bipareto_experiments.bench.figures import Figures

#: suites that are measured case by case and go on where they stopped
RESUMED = ("methods", "alternatives", "scaling")


def run(
    suite: str,
    seconds: float,
    seeds: Sequence[int],
    only: Sequence[str] | None,
    folder: Path,
    say: Callable[[str], None],
) -> Figures:
    """Run the suite of that name.

    Args:
        seconds: for each table of times.
        seeds: of data and starts; suites of times take the first.
        only: names of cases, for the suites that have them.
        folder: where a suite that is resumed keeps its cases.
        say: one line for people.
    """
    module = importlib.import_module(f"bipareto_experiments.bench.{suite}")
    if suite in RESUMED:
        found: Figures = module.run(seconds, seeds, only, folder, say)
    else:
        found = module.run(seconds, seeds[0])
    return found
