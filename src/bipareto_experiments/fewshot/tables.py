"""Tables of a study as CSV files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bipareto_experiments.fewshot.summaries import comparable, summary

if TYPE_CHECKING:
    pass


def write_tables(result: dict[str, Any], folder: Path, prefix: str) -> list[str]:
    """Write accuracies with hypervolumes, and what preferences change, as CSV; returns the names of
    the files, none if nothing is comparable.
    """
    if not comparable(result):
        return []
    found = summary(result)
    names = [f"{prefix}-methods.csv", f"{prefix}-response.csv"]
    keys = (
        "accuracy",
        "accuracy_error",
        "hypervolume",
        "hypervolume_error",
        "hypervolume_equal",
        "hypervolume_equal_error",
        "untrained",
    )
    rows: list[list[Any]] = [["method", *keys]] + [
        [name, *(r[key] for key in keys)] for name, r in found.items()
    ]
    _write_rows(folder / names[0], rows)
    answers = [
        [name, a["domain"] + 1, a["weight"], a["rise"], a["error"], a["seed_error"]]
        for name, r in found.items()
        for a in r["response"]
    ]
    if not answers:
        return names[:1]
    _write_rows(
        folder / names[1],
        [
            [
                "method",
                "preferred_domain",
                "weight",
                "rise",
                "error_over_episodes",
                "error_over_seeds",
            ],
            *answers,
        ],
    )
    return names


def _write_rows(path: Path, rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [["" if v is None else v for v in row] for row in rows]
        )
