"""The page on methods: the paper's Table 1 from what the code declares, beside what was
measured.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from bipareto.methods import METHODS, Method

_HEAD = """# The methods

*Written by `python benchmarks/compare.py --page` from what the methods declare and from
[published results](results/compare). Edit those, not this page.*

## What each one promises

The table of the MOMEHA paper, from the code. Scenario, lower level and loop are what a method's own
paper analyses. Whether it is Hessian-free is read off the oracles it declares, which the tests
count; whether it follows preferences off its interface. *Certain* says how sure we are that the
code is the published method: where neither paper nor authors' code could be read to the end, parts
are reconstructed. MEHA is the ancestor for one objective and not in the paper's table. *Per step*:
gradients of g, gradients of the f_i, Hessian or Jacobian products, for two objectives and the
default numbers.
"""

_MEASURED = """
## What was measured

Distance to the exact front relative to its extent: the worst over preferences and starts, after the
lower level was solved again. Every method is tuned to the problem and may spend the same number of
gradients per run, a Hessian product counted as two. Methods without preferences return one point
per start. A dagger: the method itself warned or failed; its words stand below. The random starts of
mo-sin lie on other branches of the lower level than its front, and a local method seldom leaves its
branch: look at start 0 there.
"""


def declared(name: str) -> dict[str, str]:
    """A method's row of the first table, column -> text."""
    kind = METHODS[name]
    method, traits = kind(), kind.traits
    cost = method.oracles(2)
    return {
        "method": _title(kind),
        "scenario": traits.scenario,
        "lower level": traits.lower_level,
        "loop": "nested" if traits.nested else "single",
        "Hessian-free": _mark(cost["hessian_products"] == 0),
        "preference": _mark(kind.uses_preference),
        "per step": f"{cost['lower_gradients']}, {cost['upper_gradients']}, "
        f"{cost['hessian_products']}",
        "certain": f"{traits.certainty} %",
        "reconstructed": traits.reconstructed or "nothing",
    }


def methods_page(results: str | PathLike[str]) -> str:
    """The whole page in Markdown.

    Args:
        results: folder with one JSON file per problem, as `benchmarks/compare.py` writes them; may
            be empty.
    """
    rows = [declared(name) for name in METHODS]
    text = _HEAD + "\n" + _table(list(rows[0]), [list(row.values()) for row in rows])
    files = sorted(Path(results).glob("*.json"))
    problems = [json.loads(path.read_text("utf-8")) for path in files]
    if not problems:
        return text
    compared = [
        name
        for name in METHODS
        if any(row["method"] == name for problem in problems for row in problem["rows"])
    ]
    cells = [
        [_title(METHODS[name]), *(_summary(problem, name) for problem in problems)]
        for name in compared
    ]
    text += (
        _MEASURED + "\n" + _table(["method", *(problem["problem"] for problem in problems)], cells)
    )
    return text + "".join(_section(problem) for problem in problems)


def _section(problem: dict[str, Any]) -> str:
    """One problem: how it was run, the picture, every start, and what the methods said."""
    name, starts = problem["problem"], len(problem["starts"])
    what = problem["summary"][0].upper() + problem["summary"][1:]
    how = (
        f"{what}. {problem['preferences']} preferences, {starts} starts, {problem['amount']:,} "
        f"gradients per run. `{problem['command']}`, {problem['machine']}, {problem['date']}. "
        "Seconds are CPU time per start."
    )
    text = (
        f"\n### {name}\n\n{_filled(how)}\n\n"
        f"![{name}: the fronts of all methods from the problem's own start over the exact "
        f"one](images/compare-{name}.png)\n\n"
    )
    header = [
        "method",
        *(f"distance, start {start}" for start in problem["starts"]),
        "kkt",
        "gradients",
        "Hessian products",
        "seconds",
    ]
    ranked = sorted(
        {row["method"] for row in problem["rows"]},
        key=lambda method: _worst(_rows(problem, method), "distance_to_front"),
    )
    cells, said = [], []
    for method in ranked:
        rows = _rows(problem, method)
        figures = [
            str(rows[0]["gradients"]),
            str(rows[0]["hessian_products"]),
            f"{sum(row['seconds'] for row in rows) / len(rows):.0f}",
        ]
        cells.append(
            [
                _title(METHODS[method]),
                *(_distance(row) for row in rows),
                _number(_worst(rows, "kkt")),
                *figures,
            ]
        )
        said += [
            _filled(f"- {_title(METHODS[method])}: {note}", "  ")
            for note in dict.fromkeys(note for row in rows for note in row["notes"])
        ]
    text += _table(header, cells)
    return text + ("\nWhat the methods said:\n\n" + "\n".join(said) + "\n" if said else "")


def _rows(problem: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return sorted(
        (row for row in problem["rows"] if row["method"] == method), key=lambda row: row["start"]
    )


def _summary(problem: dict[str, Any], method: str) -> str:
    rows = _rows(problem, method)
    if not rows:
        return "–"
    warned = "†" if any(row["notes"] for row in rows) else ""
    return (
        _number(_worst(rows, "distance_to_front"))
        if all(row["runs"] for row in rows)
        else "refused"
    ) + warned


def _worst(rows: Iterable[dict[str, Any]], key: str) -> float:
    """The largest; a value that was not finite is written as null."""
    return max(math.inf if row[key] is None else row[key] for row in rows)


def _distance(row: dict[str, Any]) -> str:
    return _number(_worst([row], "distance_to_front")) if row["runs"] else "refused"


def _number(value: float) -> str:
    # JSON has no infinity; what went there is stored as the largest float.
    return "0" if value == 0 else f"{value:.1e}" if value < 1e300 else "diverged"


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _mark(yes: bool) -> str:
    return "yes" if yes else "no"


def _title(kind: type[Method]) -> str:
    return f"`{kind.__name__}`"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
