"""What comes of misuses, damaged run folders, random command lines and configurations: counts.

    python benchmarks/harnesses.py [--json FILE] [--only misuses|damages|commands] [--number N]
        [--seed N]

The cases are those of tests/misuse and tests/damage; `make slow` asserts what is counted here.
FILE keeps what was counted before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from damage.commands import command_lines, configurations, try_configuration, try_line
from damage.harness import count as count_trials
from damage.harness import make_runs, trials
from misuse.cases import cases
from misuse.harness import BAD, count, try_case


def misuses() -> dict[str, Any]:
    """Every misuse of the table: what came of it, and the words of those that must not be."""
    outcomes = [try_case(case, 60.0) for case in cases()]
    bad = {outcome.name: outcome.words[:200] for outcome in outcomes if outcome.kind in BAD}
    return count(outcomes) | {"bad": bad}


def damages(home: Path, number: int, seed: int) -> dict[str, Any]:
    """So many damaged folders or more, finished and stopped runs alike, each shown to one command:
    what it made of them.
    """
    runs = make_runs(home / "runs")
    found = list(trials(runs, home, seed, rounds=max(1, -(-number // 1_600))))
    bad = [list(trial) for trial in found if trial.kind in ("traceback", "silent")]
    return {"trials": len(found), **count_trials(found), "bad": bad}


def commands(home: Path, number: int, seed: int) -> dict[str, Any]:
    """So many command lines and as many configurations: which ended in a traceback."""
    runs, work = make_runs(home / "runs"), home / "work"
    work.mkdir()
    os.chdir(work)
    lines = islice(command_lines(seed, list(runs.values()), work), number)
    bad: list[Any] = [[words, trace] for words in lines if (trace := try_line(words)) is not None]
    bad_lines = len(bad)
    for data in islice(configurations(seed), number):
        shutil.rmtree(work / "sweep", ignore_errors=True)
        if (trace := try_configuration(data, work)) is not None:
            bad.append([data, trace])
    return {
        "each": number,
        "tracebacks_lines": bad_lines,
        "tracebacks_configurations": len(bad) - bad_lines,
        "bad": bad,
    }


def main() -> None:
    """Count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=["misuses", "damages", "commands"])
    parser.add_argument("--number", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=8)
    given = parser.parse_args()
    target = None if given.json is None else given.json.resolve()
    torch.set_num_threads(1)
    data = json.loads(target.read_text("utf-8")) if target and target.exists() else {}
    parts = {
        "misuses": lambda home: misuses(),
        "damages": lambda home: damages(home, given.number, given.seed),
        "commands": lambda home: commands(home, given.number, given.seed),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as home:
                begin = time.perf_counter()
                found = part(Path(home))
            found |= {
                "seed": given.seed,
                "seconds": round(time.perf_counter() - begin),
                "date": time.strftime("%Y-%m-%d"),
                "machine": f"{platform.machine()}, Python {platform.python_version()}, "
                f"torch {torch.__version__}",
            }
            data[name] = [*data.get(name, []), found]
            print(name, found)
            if target is not None:
                target.write_text(json.dumps(data, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
