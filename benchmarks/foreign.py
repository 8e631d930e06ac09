"""The default call on problems that no rule of this library was made on
(tests/foreign/problems.py; those of tests/foreign/late.py were written after the last rule).

    python benchmarks/foreign.py [CASE ...] [--steps 20000] [--precision float64 float32]
        [--workers 2] [--json FILE]
    python benchmarks/foreign.py --table docs/results/foreign.json

Per case `bipareto.front(problem, x0, y0)`, in float64 and with states and losses rounded to
float32: the worst distance to the true front, by how much the worst run is dominated in units of
the front's extent; the share of its extent that is covered, in the objective covered least;
seconds; and what was said.  A miss is a distance above 0.02 or a coverage below 0.9: *named* where
a warning names the right cause (`CAUSES`), *misnamed* where only others were said, else *silent*.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.problem import tree

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.foreign.late import LATE
from tests.foreign.problems import CASES, Case, coverage

#: all cases; those of LATE were written after the last rule was made
EVERY = CASES | LATE

#: what counts as a hit
NEAR, COVERED = 0.02, 0.9
#: what is wrong where a case misses, as found out by other means (docs/foreign.md), and a word of
#: the warning that says it; a miss that is said to be something else is misnamed
CAUSES = {
    "ten_thousand": "not converged",
    "kernel_width": "not converged",
    "minibatches": "not converged",
    "condition_1e6": "float32 cannot tell",
    "quartic_valley": "no curvature",
    "kink": "g has a kink there",
}


def rounded(case: Case) -> tuple[bp.Problem, Any, Any]:
    """The problem with x, y, f and g in float32; what a loss does inside stays as it is."""

    def exact(point: Any) -> Any:
        return tree.map_(lambda leaf: leaf.double(), point)

    inner = case.problem
    if tree.first_leaf(case.x0).dtype == torch.float32:
        return inner, case.x0, case.y0
    problem = bp.Problem(
        upper=lambda x, y, *data: inner.upper(exact(x), exact(y), *data).float(),
        lower=lambda x, y, *data: inner.lower(exact(x), exact(y), *data).float(),
        sampler=inner.sampler,
    )
    return problem, *tree.map_(lambda leaf: leaf.float(), (case.x0, case.y0))


def measured(
    case: Case, problem: bp.Problem, x0: Any, y0: Any, steps: int, cause: str | None
) -> dict[str, Any]:
    """One front; `cause` is the word that a warning should hold where it misses."""
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        found = bp.front(problem, x0, y0, steps=steps, progress=False)
    seconds = time.perf_counter() - begin
    x = tree.map_(lambda leaf: leaf.double(), found.x)
    objectives = torch.stack([case.reduced(tree.select(x, i)) for i in range(len(found))])
    off = float(case.distance(objectives).max())
    covered = float(coverage(objectives, case.truth).min())
    said = [str(w.message) for w in caught if issubclass(w.category, BiparetoWarning)]
    hit = off <= NEAR and covered >= COVERED
    named = cause is not None and any(cause in sentence for sentence in said)
    miss = "named miss" if named else "misnamed miss" if said else "silent miss"
    left = found.remaining
    return {
        "runs": len(found),
        "distance": off,
        "coverage": covered,
        "remaining": None if left is None else float(left.max()),
        "seconds": round(seconds, 1),
        "said": said,
        "verdict": "hit" if hit else miss,
    }


def measure(name: str, precision: str, steps: int) -> dict[str, Any]:
    """One case in one precision; {} where it has another."""
    torch.set_num_threads(1)
    case = EVERY[name]()
    if precision == "float64" and tree.first_leaf(case.x0).dtype != torch.float64:
        return {}
    problem = rounded(case) if precision == "float32" else (case.problem, case.x0, case.y0)
    return measured(case, *problem, steps, CAUSES.get(name))


def alone(name: str, precision: str, steps: int) -> dict[str, Any]:
    """`measure` in a process of its own: what one case does to it harms no other."""
    asked = name, precision, steps
    code = (
        f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        f"from foreign import measure; print(json.dumps(measure{asked}))"
    )
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"verdict": "crash", "said": done.stderr.splitlines()[-40:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(EVERY)}; all without")
    parser.add_argument("--steps", type=int, default=20_000)
    both = ["float64", "float32"]
    parser.add_argument("--precision", nargs="+", choices=both, default=both)
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--table", type=Path, help="print the figures of this file as a table")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text())["rows"])))
        return
    names = options.cases or list(EVERY)
    rows = {name: {"case": name, "what": _first_line(name)} for name in names}
    with ThreadPoolExecutor(options.workers) as pool:
        futures = {
            pool.submit(alone, name, precision, options.steps): (name, precision)
            for precision in options.precision
            for name in names
        }
        for future in as_completed(futures):
            name, precision = futures[future]
            if seen := future.result():
                rows[name][precision] = seen
                _print(name, precision, seen)
                if options.json:
                    _write(options.json, list(rows.values()), options.steps)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The figures as lines of Markdown."""
    lines = ["| case | precision | distance | coverage | said |", "|---|---|--:|--:|---|"]
    for row in rows:
        late = " *" if row["case"] in LATE else ""
        for key in ("float64", "float32"):
            if (seen := row.get(key)) is None:
                continue
            said = "; ".join(_words(text) for text in seen["said"]) or "–"
            figures = (
                f"{seen['distance']:.1e} | {seen['coverage']:.3f}" if "distance" in seen else "|"
            )
            lines.append(f"| {row['case']}{late} | {key} | {figures} | {said} |")
    return lines


def _words(text: str) -> str:
    """The first clause of a warning."""
    return re.split(r":| \(", text, maxsplit=1)[0]


def _first_line(name: str) -> str:
    return " ".join((EVERY[name].__doc__ or "").split("\n\n")[0].split())


def _print(name: str, key: str, seen: dict[str, Any]) -> None:
    print(
        f"{name:20s} {key} {seen.get('distance', float('nan')):9.1e} "
        f"{seen.get('coverage', float('nan')):6.3f} {seen.get('seconds', 0):7.1f} s  "
        f"{seen['verdict']:12s} {'; '.join(text[:90] for text in seen['said'])}",
        flush=True,
    )


def _write(path: Path, rows: list[dict[str, Any]], steps: int) -> None:
    counts: dict[str, dict[str, int]] = {}
    for key in ("float64", "float32"):
        for group, late in ((key, False), (f"{key}, written after the rules", True)):
            seen = [row[key] for row in rows if key in row and (row["case"] in LATE) is late]
            verdicts = [one["verdict"] for one in seen]
            counts[group] = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    facts = {
        "command": f"python benchmarks/foreign.py --steps {steps}",
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, one thread per case",
        "date": datetime.now(UTC).date().isoformat(),
    }
    path.write_text(json.dumps({"counts": counts, "rows": rows, **facts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
