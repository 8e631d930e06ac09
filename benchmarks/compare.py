"""Every method on problems with known fronts, from three starts, under an equal budget: the figures
and pictures of docs/methods.md.

    python benchmarks/compare.py [--problem NAME ...] [--workers 2] [--amount 80000] [--machine
    WORDS] python benchmarks/compare.py --method NAME    # this one again, beside the rows that the
    others have python benchmarks/compare.py --page           # only write the page again

Start 0 is the problem's own, the others are random.  Each (problem, method, start) is one job of
one thread; with the default amount a job takes about a minute.  Writes
docs/results/compare/NAME.json, docs/images/compare-NAME.png and docs/methods.md.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import bipareto as bp
from bipareto.cli.values import finite
from bipareto.report import plot_comparison
from bipareto.sweep.comparison import applicable, compare
from bipareto_experiments.methods_page import methods_page

DOCS = Path(__file__).parents[1] / "docs"
PROBLEMS = ("quadratic", "merely-convex", "pl-sin2", "mo-sin")
STARTS = (0, 1, 2)
PREFERENCES = 11


def job(problem: str, method: str, start: int, amount: int) -> dict[str, Any]:
    """One method on one problem from one start, with the objectives of its runs to six digits."""
    torch.set_num_threads(1)
    began = time.process_time()
    (found,) = compare(
        bp.problems.get(problem),
        [method],
        preferences=PREFERENCES,
        amount=amount,
        start=start,
        compile=False,
        progress=False,
    )
    rows = (
        []
        if found.front is None
        else [[float(f"{value:.6g}") for value in row] for row in found.front.objectives.tolist()]
    )
    return found.figures() | {
        "start": start,
        "seconds": round(time.process_time() - began, 1),
        "objectives": rows,
    }


def published(problem: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows that the problem's file holds, of the same budget."""
    held = json.loads((options.results / f"{problem}.json").read_text("utf-8"))
    if held["amount"] != options.amount:
        raise SystemExit(
            f"{problem}.json is of {held['amount']} gradients per run, not {options.amount}; give "
            f"--amount {held['amount']}"
        )
    return held["rows"]


def publish(problem: str, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """The problem's file and picture."""
    known = bp.problems.get(problem)
    command = "python benchmarks/compare.py" + "".join(
        f" --problem {name}" for name in options.problem or []
    )
    command += "" if options.amount == 80_000 else f" --amount {options.amount}"
    about = {
        "problem": problem,
        "summary": known.summary,
        "command": command,
        "machine": options.machine,
        "date": str(date.today()),
        "torch": torch.__version__,
        "budget": "oracles",
        "amount": options.amount,
        "preferences": PREFERENCES,
        "starts": list(STARTS),
    }
    (options.results / f"{problem}.json").write_text(
        json.dumps(finite(about | {"rows": rows})) + "\n", encoding="utf-8"
    )
    own = sorted(
        (row for row in rows if row["start"] == 0 and row["runs"]),
        key=lambda row: row["distance_to_front"],
    )
    points = {
        row["method"]: torch.tensor(
            [[math.nan if v is None else v for v in point] for point in row["objectives"]]
        )
        for row in own
    }
    plot_comparison(points, known, options.images / f"compare-{problem}.png")


def main() -> None:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--problem", action="append", choices=PROBLEMS, help="only these; repeatable"
    )
    parser.add_argument(
        "--method",
        action="append",
        choices=bp.methods.METHODS,
        help="only these, the rows of the others stay; repeatable",
    )
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time")
    parser.add_argument(
        "--amount",
        type=int,
        default=80_000,
        help="gradients per run, a Hessian product counted as two",
    )
    parser.add_argument(
        "--machine", default="2-core x86 CPU", help="what to write beside the figures"
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="run nothing, write the page from the results that are there",
    )
    parser.add_argument(
        "--docs", type=Path, default=DOCS, help="where the results, images and page go"
    )
    options = parser.parse_args()
    options.results, options.images = options.docs / "results" / "compare", options.docs / "images"
    for folder in (options.results, options.images):
        folder.mkdir(parents=True, exist_ok=True)
    if not options.page:
        names = options.problem or list(PROBLEMS)
        methods = {name: applicable(bp.problems.get(name)) for name in names}
        wanted = {
            name: [
                method for method in methods[name] if method in (options.method or methods[name])
            ]
            for name in names
        }
        jobs = [
            (name, method, start) for name in names for method in wanted[name] for start in STARTS
        ]
        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
            running = [pool.submit(job, *what, options.amount) for what in jobs]
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for number, ((name, method, start), found) in enumerate(
                zip(jobs, running, strict=True), 1
            ):
                row = found.result()
                rows[name].append(row)
                figures = f"distance {row['distance_to_front']:.2e}  {row['seconds']:.0f} s"
                print(
                    f"{number:3d}/{len(jobs)}  {name:14s} {method:11s} start {start}  {figures}",
                    flush=True,
                )
        for name in names:
            kept = (
                [row for row in published(name, options) if row["method"] not in options.method]
                if options.method
                else []
            )
            publish(
                name,
                sorted(rows[name] + kept, key=lambda row: methods[name].index(row["method"])),
                options,
            )
    (options.docs / "methods.md").write_text(methods_page(options.results), encoding="utf-8")


if __name__ == "__main__":
    main()
