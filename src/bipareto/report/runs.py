"""Any folder that holds a front, read back for a report.

- what `bipareto front --out` wrote: front.npz, front.json, metrics.jsonl
- what `bipareto sweep` wrote: front.npz, config.yaml, manifest.json, slices/*/metrics.jsonl
- what `bipareto compare --out` wrote: comparison.json and fronts/METHOD.npz, one front per method
- any front.npz, or another file of `ParetoFront.save`, on its own
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bipareto import problems
from bipareto.errors import BiparetoError, InvalidInput
from bipareto.fronts.pareto import ParetoFront
from bipareto.problems import KnownProblem
from bipareto.report.curves import Source
from bipareto.sweep.config import SweepConfig, load

__all__ = ["ReportRun", "read_runs"]


@dataclass(frozen=True)
class ReportRun:
    """One front of a report.

    name: what it is called on the page; path: the file that `ParetoFront.load` reads. known: its
    problem, where that has a known front; question: what the problem was, equal for fronts that can
    be compared. method: the method's name; numbers: of the method, as far as they are known.
    sources: files of what was recorded on the way. config: all that is known of how it was made.
    """

    name: str
    path: Path
    front: ParetoFront
    known: KnownProblem | None
    question: str
    method: str
    numbers: Mapping[str, Any]
    sources: tuple[Source, ...]
    config: str


def read_runs(path: Path) -> list[ReportRun]:
    """The fronts of a folder or file: one, or one per method for a comparison."""
    if path.is_file():
        return [_plain(path, str(path))]
    if (path / "comparison.json").exists():
        return _comparison(path)
    if (path / "manifest.json").exists():
        return [_sweep(path)]
    if (path / "front.npz").exists():
        return [
            _front(path)
            if (path / "front.json").exists()
            else _plain(path / "front.npz", str(path))
        ]
    if not path.exists():
        raise InvalidInput(
            f"{path} does not exist; give the folder of a front, a sweep or a comparison"
        )
    raise InvalidInput(
        f"{path} holds no front; give a folder that `bipareto front --out`, `bipareto sweep` or "
        "`bipareto compare --out` wrote, or a front.npz"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); write it again") from error
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} holds no object; write it again")
    return data


def _known(problem: Mapping[str, Any]) -> KnownProblem | None:
    """The problem from its name and options; None where it is not one of ours."""
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in problem.items()
        if key != "name"
    }
    try:
        return problems.get(str(problem.get("name")), **options)
    except (BiparetoError, TypeError):
        return None


def _recorded(path: Path, runs: int) -> tuple[Source, ...]:
    return (Source(path, runs),) if path.exists() else ()


def _plain(path: Path, name: str) -> ReportRun:
    front = ParetoFront.load(path)
    sources = _recorded(path.with_name("metrics.jsonl"), len(front))
    return ReportRun(name, path, front, None, name, "", {}, sources, "")


def _front(path: Path) -> ReportRun:
    asked, front = _json(path / "front.json"), ParetoFront.load(path / "front.npz")
    problem, method = dict(asked.get("problem", {})), dict(asked.get("method", {}))
    return ReportRun(
        name=str(path),
        path=path / "front.npz",
        front=front,
        known=_known(problem),
        question=json.dumps(problem, sort_keys=True),
        method=str(method.pop("name", "")),
        numbers=method,
        sources=_recorded(path / "metrics.jsonl", len(front)),
        config=(path / "front.json").read_text("utf-8"),
    )


def _comparison(path: Path) -> list[ReportRun]:
    asked = _json(path / "comparison.json")
    problem = dict(asked.get("problem", {}))
    found = []
    for row in asked.get("methods", []):
        file = path / "fronts" / f"{row['method']}.npz"
        if not file.exists():
            continue  # the method refused the problem; comparison.json says why
        front = ParetoFront.load(file)
        found.append(
            ReportRun(
                name=f"{path}: {row['method']}",
                path=file,
                front=front,
                known=_known(problem),
                question=json.dumps(problem, sort_keys=True),
                method=row["method"],
                numbers={},
                sources=_recorded(file.with_suffix(".jsonl"), len(front)),
                config=json.dumps(
                    {
                        "problem": problem,
                        "budget": asked.get("budget"),
                        "amount": asked.get("amount"),
                        **row,
                    },
                    indent=2,
                ),
            )
        )
    if not found:
        raise InvalidInput(
            f"{path} has no fronts of its methods; write it again: bipareto compare ... --out "
            f"{path}"
        )
    return found


def _sweep(path: Path) -> ReportRun:
    if not (path / "front.npz").exists():
        raise InvalidInput(
            f"{path} is not finished; look at it with: bipareto watch {path}, or go on with: "
            f"bipareto resume {path}"
        )
    manifest, config = _json(path / "manifest.json"), load(SweepConfig, path / "config.yaml")
    front = ParetoFront.load(path / "front.npz")
    problem = {"name": config.problem.name, **config.problem.options}
    size, runs = manifest["slice"], manifest["runs"]
    parts = [
        (path / "slices" / f"{i:05d}" / "metrics.jsonl", min(size, runs - i * size))
        for i in range(manifest["slices"])
    ]
    return ReportRun(
        name=str(path),
        path=path / "front.npz",
        front=front,
        known=_known(problem),
        question=json.dumps(problem, sort_keys=True),
        method=config.method.name,
        numbers=manifest["method"],
        sources=tuple(Source(*part) for part in parts if part[0].exists()),
        config=(path / "config.yaml").read_text("utf-8") + "\n" + json.dumps(manifest, indent=2),
    )
