"""Runs as CSV files that carry every digit and no times, so that equal runs give equal files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from bipareto.fronts.pareto import ParetoFront
from bipareto.run.results import Solution

__all__ = ["write_csv", "write_history", "write_metrics"]


def write_csv(
    front: ParetoFront, path: str | PathLike[str], distance: Tensor | None = None
) -> None:
    """One row per run: run, seed, w1..wm, f1..fm, and the distance (R,) to a known front where
    there is one; where there is `test_data`, also own1..ownm at the y that the run returned (where
    y was solved again) and test1..testm on it.

    Objectives are written as the front holds them; call `resolve_lower` first.
    """
    m = front.objectives.shape[1]
    more = {} if front.test is None else {"own": front.own, "test": front.test}
    more = {name: values for name, values in more.items() if values is not None}
    header = [
        "run",
        "seed",
        *(f"w{i + 1}" for i in range(m)),
        *(f"f{i + 1}" for i in range(m)),
        *(["distance"] if distance is not None else []),
        *(f"{name}{i + 1}" for name in more for i in range(m)),
    ]
    columns = [
        front.preference,
        front.objectives,
        *([distance[:, None]] if distance is not None else []),
        *more.values(),
    ]
    numbers = [
        [value for column in columns for value in column[r].tolist()] for r in range(len(front))
    ]
    _write(path, header, ([r, int(front.seed[r]), *numbers[r]] for r in range(len(front))))


def write_history(solution: Solution, path: str | PathLike[str]) -> None:
    """One row per record: step, f1..fm, then what else the method reports (g, gap, residuals)."""
    history = dict(solution.history)
    steps, objectives = history.pop("step"), history.pop("objectives")
    header = ["step", *(f"f{i + 1}" for i in range(objectives.shape[1])), *history]
    rows = zip(
        steps.tolist(),
        objectives.tolist(),
        *(values.tolist() for values in history.values()),
        strict=True,
    )
    _write(path, header, ([step, *f, *rest] for step, f, *rest in rows))


def write_metrics(front: ParetoFront, path: str | PathLike[str]) -> None:
    """What a front's runs recorded on the way, one line of JSON per record, as sweeps write it;
    nothing for a front without runs.
    """
    if front.run is None:
        return
    history = {name: values.tolist() for name, values in front.run.history.items()}
    with Path(path).open("w", encoding="utf-8") as file:
        rows = (dict(zip(history, row, strict=True)) for row in zip(*history.values(), strict=True))
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _write(path: str | PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    # csv writes floats by repr, the shortest text that reads back as the same float.
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
