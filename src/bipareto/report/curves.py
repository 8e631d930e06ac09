"""What runs recorded on the way, read back and thinned so that a picture of it stays small.

Records are lines of JSON, {"step": 100, "objectives": [[...], ...], "gap": [...]}, one list entry
per run; a million of them are cut into buckets of consecutive lines, and of each bucket and run the
smallest and the largest value are kept, in the order in which they came.  A spike of one step
survives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bipareto.errors import InvalidInput
from bipareto.sweep.reading import Source

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Runs whose own curve is kept; of more, they are taken evenly, and the band shows the others.
RUNS = 24
#: Points of a curve at most.
POINTS = 800
#: What is drawn, in this order, where a method records it; a method without a measure of
#: stationarity has a residual.
_QUANTITIES = ("objectives", "gap", "stationarity")


@dataclass(frozen=True)
class Curves:
    """Thinned records: steps (X,), names of Q quantities, which K runs are drawn, their values (Q,
    K, X), and over *all* runs the smallest, the largest and the median value (Q, X); how many
    records and runs there were.
    """

    steps: Array
    names: tuple[str, ...]
    runs: tuple[int, ...]
    values: Array
    low: Array
    high: Array
    median: Array
    records: int
    total: int


def read_curves(
    sources: Sequence[Source], labels: Sequence[str], points: int = POINTS
) -> Curves | None:
    """All sources side by side, in the order of their runs; None where nothing was recorded.

    Args:
        sources: files of records; they may have ended at different steps.
        labels: a name per objective.
        points: of a curve, at most.
    """
    counts = [_lines(source.path) for source in sources]
    if not counts or not max(counts):
        return None
    longest = max(counts)
    # Two values per bucket; short histories are kept as they are.
    width = 1 if longest <= points else -(-longest // (points // 2))
    parts = [
        _thinned(source, width) for source, count in zip(sources, counts, strict=True) if count
    ]
    names = parts[0].names
    if any(part.names != names for part in parts):
        raise InvalidInput(
            f"{sources[0].path} and another slice record different quantities; write the run again"
        )
    buckets = max(len(part.low) for part in parts)
    low, high, first_low = (
        np.concatenate([_filled(getattr(part, name), buckets) for part in parts], 1)
        for name in ("low", "high", "low_first")
    )
    steps = max((part.steps for part in parts), key=len)
    runs = low.shape[1]
    drawn = np.unique(np.linspace(0, runs - 1, min(runs, RUNS)).round().astype(int))
    m = parts[0].objectives
    # A bucket of one record has one value; others have two, in the order in which they came.
    first, second = np.where(first_low > 0, low, high), np.where(first_low > 0, high, low)
    pairs = np.stack([first, second], 1) if width > 1 else first[:, None]
    repeat = pairs.shape[1]
    return Curves(
        steps=steps[:, :repeat].reshape(-1),
        names=(*labels[:m], *names[m:]),
        runs=tuple(drawn.tolist()),
        values=pairs.reshape(repeat * buckets, runs, -1)[:, drawn].transpose(2, 1, 0),
        low=_over(np.nanmin, low, repeat),
        high=_over(np.nanmax, high, repeat),
        median=_over(np.nanmedian, (low + high) / 2, repeat),
        records=longest,
        total=runs,
    )


def _over(reduce: Any, values: Array, repeat: int) -> Array:
    """Over runs of (buckets, runs, Q), NaN where all are; buckets `repeat` times, shape (Q, X)."""
    empty = np.asarray(np.isnan(values).all(1))
    found = np.where(empty, np.nan, reduce(np.where(empty[:, None], 0.0, values), axis=1))
    return np.repeat(found, repeat, 0).T


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


class _Part(NamedTuple):
    """Of one source, by bucket: first and last step (B, 2), smallest and largest values (B, runs,
    Q), whether the smallest came first.
    """

    steps: Array
    names: tuple[str, ...]
    objectives: int
    low: Array
    high: Array
    low_first: Array


def _thinned(source: Source, width: int) -> _Part:
    low, high, low_first, steps = [], [], [], []
    names: tuple[str, ...] = ()
    m = 0
    for rows in _buckets(source.path, width):
        present = [
            name
            for name in (*_QUANTITIES, *(() if "stationarity" in rows[0] else ("residual",)))
            if name in rows[0]
        ]
        blocks = [np.array([row[name] for row in rows], dtype=np.float64) for name in present]
        if (
            blocks[0].ndim == 2 and present[0] == "objectives"
        ):  # a slice of one run that was not batched
            blocks = [block[:, None] for block in blocks]
        blocks = [
            block[:, : source.runs] if block.ndim == 3 else block[:, : source.runs, None]
            for block in blocks
        ]
        m = blocks[0].shape[2] if present[0] == "objectives" else 0
        names = (*(f"f{i + 1}" for i in range(m)), *present[1:])
        values = np.where(np.isfinite(together := np.concatenate(blocks, 2)), together, np.nan)
        bad = np.isnan(values)
        at_low, at_high = (
            np.where(bad, np.inf, values).argmin(0),
            np.where(bad, -np.inf, values).argmax(0),
        )
        low.append(np.take_along_axis(values, at_low[None], 0)[0])
        high.append(np.take_along_axis(values, at_high[None], 0)[0])
        low_first.append(at_low <= at_high)
        steps.append((rows[0]["step"], rows[-1]["step"]))
    return _Part(
        np.array(steps, dtype=np.float64),
        names,
        m,
        np.array(low),
        np.array(high),
        np.array(low_first),
    )


def _buckets(path: Path, width: int) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # the end of a run that is being written
            if len(rows) == width:
                yield rows
                rows = []
    if rows:
        yield rows


def _filled(values: Array, buckets: int) -> Array:
    """NaN after the end of a slice that stopped early."""
    missing = np.full((buckets - len(values), *values.shape[1:]), np.nan)
    return np.concatenate([values, missing])
