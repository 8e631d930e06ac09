"""Preference vectors: points of the simplex that say how much each objective matters."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Sequence
from itertools import combinations
from math import comb
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import validation

__all__ = ["FAMILIES", "as_preference", "covering", "favouring", "grid", "named", "random", "read"]

#: The paper's strengths: how far the preferred objective's weight goes from 1/m towards 1, read off
#: its vectors for m = 4.
STRENGTHS = {"weak": 0.08, "moderate": 0.2, "strong": 0.36, "extreme": 0.96}
#: The paper's own preferred weights for m = 2, which do not follow from those of m = 4.
_FOR_TWO = {"weak": 0.5, "moderate": 0.6, "strong": 0.75, "extreme": 0.9}
#: A set with more preferences than this is a slip: nobody can run it.
MOST = 1_000_000
#: What `covering` makes at most beyond two objectives, and how far it stays inside the simplex.
FEW, INSIDE = 36, 0.01
#: What `named` knows, a file aside.
FAMILIES = ("das-dennis", "random", *STRENGTHS)


def grid(m: int, n: int, *, boundary: bool = False) -> Tensor:
    """A regular (Das-Dennis) grid on the simplex, `n` points along each edge, shape (count, m),
    float64.

    For m = 2 these are exactly n preferences.  The theory needs every w_i > 0, so the grid lies
    inside by default; `boundary=True` spans the whole simplex, corners included.

    >>> grid(2, 3)
    tensor([[0.7500, 0.2500],
            [0.5000, 0.5000],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    boundary = validation.flag(boundary, "boundary")
    m = validation.count(m, "m", least=1, most=MOST)
    n = validation.count(n, "n", least=2 if boundary else 1, most=MOST**2)
    if (count := _points(m, n)) > MOST:
        raise InvalidInput(
            f"grid(m={m}, n={n}) has {count:,} points; at most {MOST:,} are made. Take fewer along "
            f"each edge, preferences.covering({m}) for a few that cover the front, or "
            f'preferences.random({m}, 100) ("random:100")'
        )
    least = 0 if boundary else 1
    total = n - 1 + least * m
    # Compositions of `total` into m parts >= least, by the stars-and-bars bijection; first
    # objective's weight falling.
    bars = combinations(range(n - 1 + m - 1), m - 1)
    parts = [
        [b - a - 1 + least for a, b in zip((-1, *cut), (*cut, n + m - 2), strict=True)]
        for cut in bars
    ]
    return torch.tensor(parts, dtype=torch.float64).flip(0) / total


def _points(m: int, n: int) -> int:
    """The points of a grid, comb(n + m - 2, m - 1); of a very large one as many as are too many."""
    found, total = 1, n + m - 2
    for k in range(min(m, n) - 1):
        found = found * (total - k) // (k + 1)
        if found > MOST**3:
            break
    return found


def covering(m: int) -> Tensor:
    """Few preferences that reach the ends of a front of m objectives, shape (count, m), float64.

    The regular grid from corner to corner with 11 points along each edge for m = 2, and with as
    many as make at most 36 in all for m >= 3; corners and centre alone where even three along an
    edge are too many (m > 8).  Then w <- (1 - e) w + e/m with e = 0.01, so that every w_i > 0.

    >>> [len(covering(m)) for m in (1, 2, 3, 4, 6, 12, 30)]
    [1, 11, 36, 35, 21, 13, 31]
    """
    if m < 1:
        raise InvalidInput(f"covering(m={m}): m must be at least 1")
    sizes = [n for n in range(3, 12) if comb(n + m - 2, m - 1) <= FEW]
    centre = torch.full((1, m), 1 / m, dtype=torch.float64)
    if m == 1:
        return centre
    if sizes:
        w = grid(m, sizes[-1], boundary=True)
    else:
        w = torch.cat([torch.eye(m, dtype=torch.float64), centre])
    return (1 - INSIDE) * w + INSIDE * centre


def random(m: int, n: int, seed: int = 0) -> Tensor:
    """n preferences drawn uniformly from the simplex, shape (n, m), float64; all weights are > 0.

    >>> random(3, 5).sum(1).allclose(torch.ones(5, dtype=torch.float64))
    True
    """
    m, n = validation.count(m, "m", least=1), validation.count(n, "n", least=1)
    _limit(m, n, f"random({m}, {n})", "take fewer draws")
    stream = torch.Generator().manual_seed(validation.seed(seed))
    # Exponential variables divided by their sum are uniform on the simplex.
    draws = torch.rand(n, m, generator=stream, dtype=torch.float64).clamp_min(1e-12).log().neg()
    return draws / draws.sum(1, keepdim=True)


def favouring(m: int, strength: str) -> Tensor:
    """The paper's vectors that prefer one objective, for each objective in turn: shape (m, m),
    float64.

    The preferred weight is 1/m + s (1 - 1/m), the others share the rest; s = 0.08 (weak), 0.2
    (moderate), 0.36 (strong) and 0.96 (extreme) give the paper's vectors for m = 4.  For m = 2 the
    paper has 0.5, 0.6, 0.75 and 0.9, which are taken as they are (weak is then one vector, of equal
    weights).

    >>> favouring(4, "strong")[0]
    tensor([0.5200, 0.1600, 0.1600, 0.1600], dtype=torch.float64)
    """
    validation.choice(strength, "strength", STRENGTHS)
    m = validation.count(m, "m", least=2)
    _limit(m, m, f"favouring({m}, {strength!r})", "give the preferences themselves")
    top = _FOR_TWO[strength] if m == 2 else 1 / m + STRENGTHS[strength] * (1 - 1 / m)
    rest = (1 - top) / (m - 1)
    vectors = torch.full((m, m), rest, dtype=torch.float64) + (top - rest) * torch.eye(
        m, dtype=torch.float64
    )
    return vectors.unique(dim=0).flip(0)


def read(path: str | PathLike[str], m: int) -> Tensor:
    """Preferences from a file, shape (count, m): a JSON list of vectors, or one vector per line
    with commas or blanks between.

    Lines that start with # and one line of column names are passed over.
    """
    path = validation.path(path, "preferences.csv")
    try:
        text = path.read_text("utf-8")
        rows = json.loads(text) if path.suffix == ".json" else _lines(text)
    except OSError as error:
        raise InvalidInput(
            f"preferences cannot be read from {path} ({error.strerror}); give a file with one "
            "vector per line"
        ) from error
    except ValueError as error:
        raise InvalidInput(
            f"{path} holds no preferences ({error}); write one vector of {m} numbers per line, or "
            "a JSON list of them"
        ) from error
    if not rows:
        raise InvalidInput(f"{path} holds no preferences; write one vector of {m} numbers per line")
    try:
        if not isinstance(rows, list):
            raise InvalidInput(
                f"it holds {validation.shown(rows)}; write one vector of {m} numbers per line, or "
                "a JSON list of them"
            )
        return as_preference(rows, m).reshape(-1, m)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _lines(text: str) -> list[list[float]]:
    kept = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    table = [
        row if len(row) > 1 else row[0].split() for row in csv.reader(kept, skipinitialspace=True)
    ]
    names = bool(table) and not any(
        part.strip()[:1].isdigit() or part.strip()[:1] in "-." for part in table[0]
    )
    return [[float(part) for part in row] for row in table[1 if names else 0 :]]


def named(text: str, m: int, seed: int = 0) -> Tensor:
    """Preferences by name, shape (count, m): how the command line and `front` read a text.

    Args:
        text: "11" or "das-dennis:11", a grid with 11 along each edge; "random:20", twenty draws;
            "weak", "moderate", "strong" or "extreme", see `favouring`; else the name of a file, see
            `read`.
        m: the number of objectives.
        seed: of the draws.

    >>> named("moderate", 2)
    tensor([[0.6000, 0.4000],
            [0.4000, 0.6000]], dtype=torch.float64)
    """
    if not isinstance(text, str):
        raise InvalidInput(
            f'preferences is {validation.shown(text)}; pass a text such as "11", "random:20" or '
            '"strong", or vectors'
        )
    m = validation.count(m, "m", least=1)
    name, colon, number = text.partition(":")
    if text.isdecimal():
        name, colon, number = "das-dennis", ":", text
    if name in STRENGTHS and not colon:
        return favouring(m, name)
    if name in ("das-dennis", "random"):
        if not (number or "11").isdecimal():
            raise InvalidInput(
                f"preferences {text!r}: {number!r} is no count; write e.g. {name}:11"
            )
        count = int(number or 11)
        return grid(m, count) if name == "das-dennis" else random(m, count, seed)
    try:
        there = "\0" not in text and Path(text).is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        raise InvalidInput(
            f"preferences {validation.shown(text)} are not known; give a count, one of "
            f"{', '.join(FAMILIES)} (das-dennis:11, random:20), "
            "or a file with one vector per line"
        )
    return read(text, m)


def as_preference(value: Any, m: int) -> Tensor:
    """Check one preference (m,) or several (R, m): on the simplex, of the right length; warn of
    zeros.

    Returns it as given, not rescaled, in float64 on the CPU.
    """
    w = validation.array(value, "preference", f"m numbers that sum to 1, e.g. {_example(m)}")
    if not w.numel():
        raise InvalidInput(
            f"preference is empty (shape {tuple(w.shape)}); pass m = {m} numbers, e.g. "
            f"{_example(m)}, or rows of them"
        )
    if w.dim() > 2:
        raise InvalidInput(
            f"preference has shape {tuple(w.shape)}; pass m = {m} numbers, or rows of them"
        )
    if w.dim() == 0 or w.shape[-1] != m:
        if not w.dim():
            raise InvalidInput(
                f"preference is one number, {w.item():g}; pass m = {m} numbers, e.g. "
                f"{_example(m)}, or rows of them: preferences.grid({m}, 11)"
            )
        raise InvalidInput(
            f"preference {_show(w)} has {w.shape[-1]} entries, but upper returns m = {m} "
            f"objectives; pass m numbers, e.g. {_example(m)}"
        )
    if not torch.isfinite(w).all() or (w < 0).any():
        raise InvalidInput(
            f"preference {_show(w)} has a negative or non-finite entry; every w_i must be > 0, "
            f"e.g. {_example(m)}"
        )
    off = (w.sum(-1) - 1).abs().max().item()
    if off > 1e-6:
        total = w.reshape(-1, m).sum(-1)
        raise InvalidInput(
            f"preference {_show(w)} sums to {total[(total - 1).abs().argmax()].item():.6g}, not 1; "
            "divide it by its sum"
        )
    if (w == 0).any():
        warnings.warn(
            f"preference {_show(w)} has a zero: that objective gets no gradient and the theory (w "
            "> 0) does not apply; "
            "use a small positive weight, or preferences.grid(m, n), which stays inside the "
            "simplex",
            BiparetoWarning,
            stacklevel=3,
        )
    return w


def _limit(m: int, n: int, call: str, instead: str) -> None:
    if n > MOST or n * m > 10 * MOST:
        raise InvalidInput(
            f"{call} are {validation.shown(n)} preferences of {m} objectives; at most {MOST:,} "
            f"are made: {instead}"
        )


def _show(w: Tensor) -> str:
    rows = w.reshape(-1, w.shape[-1])
    if w.dim() < 2 or rows.shape[0] == 1:
        return str([round(v, 6) for v in w.flatten().tolist()])
    return f"({rows.shape[0]} vectors, the first {[round(v, 6) for v in rows[0].tolist()]})"


def _example(m: int) -> Sequence[float]:
    """About equal weights that sum to 1 as they are written."""
    each = round(1 / m, 4)
    return [round(1 - (m - 1) * each, 4), *[each] * (m - 1)]
