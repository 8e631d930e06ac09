"""`MOMEHA.tuned` on problems that no rule of this library was made on
(tests/foreign/problems.py).

    python benchmarks/foreign.py [CASE ...] [--steps 20000] [--json docs/results/foreign.json]

Per case a front with `MOMEHA.tuned(problem, x0, y0)` and default preferences: the worst distance
to the true front, by how much the worst run is dominated in units of the front's extent; the share
of its extent that is covered, in the objective covered least; seconds; and what was said.  A
*silent miss* is a distance above 0.02 or a coverage below 0.9 without a warning that names a cause.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.problem import tree

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.foreign.problems import CASES, coverage, distance

#: what counts as a hit
NEAR, COVERED = 0.02, 0.9
#: beginnings of warnings that name a cause
CAUSES = ("not converged", "finite numbers", "one point", "could not be solved", "covers")


def measure(name: str, steps: int) -> dict[str, Any]:
    """One case."""
    case = CASES[name]()
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        method = None
        if case.problem.sampler is None:
            method = bp.MOMEHA.tuned(case.problem, case.x0, case.y0, steps=steps)
        found = bp.front(case.problem, case.x0, case.y0, method=method, steps=steps, progress=False)
    seconds = time.perf_counter() - begin
    objectives = torch.stack([case.reduced(tree.select(found.x, i)) for i in range(len(found))])
    off = float(distance(objectives, case.truth).max())
    covered = float(coverage(objectives, case.truth).min())
    said = [str(w.message) for w in caught if issubclass(w.category, BiparetoWarning)]
    hit = off <= NEAR and covered >= COVERED
    named = any(cause in sentence for sentence in said for cause in CAUSES)
    return {
        "case": name,
        "what": (CASES[name].__doc__ or "").splitlines()[0],
        "runs": len(found),
        "distance": off,
        "coverage": covered,
        "seconds": round(seconds, 1),
        "said": said,
        "verdict": "hit" if hit else "named miss" if named else "silent miss",
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all without")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.cases or CASES:
        try:
            row = measure(name, options.steps)
        except Exception as error:  # noqa: BLE001
            row = {"case": name, "verdict": "crash", "said": [f"{type(error).__name__}: {error}"]}
        rows.append(row)
        print(
            f"{name:20s} {row.get('distance', float('nan')):9.1e} "
            f"{row.get('coverage', float('nan')):6.3f} {row.get('seconds', 0):7.1f} s  "
            f"{row['verdict']:12s} {'; '.join(text[:90] for text in row['said'])}",
            flush=True,
        )
        if options.json:
            facts = {
                "command": f"python benchmarks/foreign.py --steps {options.steps}",
                "torch": torch.__version__,
                "machine": f"{platform.machine()}, one thread of a busy machine",
                "date": datetime.now(UTC).date().isoformat(),
            }
            counts = {v: sum(r["verdict"] == v for r in rows) for v in {r["verdict"] for r in rows}}
            text = json.dumps({"counts": counts, "rows": rows, **facts}, indent=1)
            options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
