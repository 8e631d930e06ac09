"""Any folder or file that holds a front, read back: the one reader of fronts on disk.

- a run folder (`store`): what `bipareto front`, `solve` and `sweep` wrote with --out
- what `bipareto compare --out` wrote: comparison.json, and a run folder per method in methods/
- any front.npz, or another file of `ParetoFront.save`, on its own

Reading imports and runs nothing that a folder names.  A run of a problem of one's own
(module:function) can be examined only with that code, so `plan_of` and `case` ask to be told that
it is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bipareto import problems
from bipareto.errors import BiparetoError, InvalidInput
from bipareto.fronts.pareto import ParetoFront
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.problems import KnownProblem
from bipareto.run.results import Failure
from bipareto.sweep.config import SweepConfig, load
from bipareto.sweep.plan import Plan, read_plan
from bipareto.sweep.progress import experiment
from bipareto.sweep.store import RunFolder

if TYPE_CHECKING:
    from bipareto.doctor.evidence import Case


class Source(NamedTuple):
    """A file of records, and how many of its runs count (a padded slice holds copies behind)."""

    path: Path
    runs: int


@dataclass(frozen=True)
class StoredRun:
    """One front on disk.

    name: what it is called on a page; path: the file that `ParetoFront.load` reads.
    known: its problem, where that has a known front; question: what the problem was, equal for
        fronts that can be compared.
    method: the method's name; numbers: its hyperparameters, as far as they are known.
    sources: files of what was recorded on the way.
    config: all that is known of how it was made.
    folder: the run folder; None for a file on its own.
    raced: whether the method was found by a race, which trains y on g alone at its end.
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
    folder: Path | None
    raced: bool = False


def read_runs(path: Path) -> list[StoredRun]:
    """The fronts of a folder or file: one, or one per method for a comparison."""
    _refuse_experiment(path)
    if path.is_file():
        return [_plain(path, str(path))]
    if (path / "manifest.json").exists():
        return [_run(path, str(path))]
    if (path / "comparison.json").exists():
        return _comparison(path)
    if (path / "front.npz").exists():
        return [_plain(path / "front.npz", str(path))]
    if not path.exists():
        raise InvalidInput(
            f"{path} does not exist; give the folder of a front, a sweep or a comparison"
        )
    raise InvalidInput(
        f"{path} holds no front; give a folder that `bipareto front --out`, `bipareto sweep` or "
        "`bipareto compare --out` wrote, or a front.npz"
    )


def run_folders(path: Path) -> list[Path]:
    """The run folders of a path: itself, or those of a comparison's methods, perhaps on its way."""
    _refuse_experiment(path)
    compared = (path / "comparison.json").exists()
    if not compared and ((path / "manifest.json").exists() or not (path / "methods").is_dir()):
        return [path]
    return _methods(path)


def _methods(path: Path) -> list[Path]:
    parts = sorted((path / "methods").glob("*/manifest.json"))
    if not parts:
        raise InvalidInput(
            f"{path} has no fronts of its methods; write it again: bipareto compare ... --out "
            f"{path}"
        )
    return [part.parent for part in parts]


def _refuse_experiment(path: Path) -> None:
    if (found := experiment(path)) is not None:
        raise InvalidInput(
            f"{path} holds an experiment ({found.method}, {found.state}), not the front of a run; "
            f"bipareto certify {path} and bipareto report {path} read it"
        )


def plan_of(path: Path, *, trusted: bool = False) -> Plan:
    """The plan of a run folder; what holds another thing is refused by its reason.

    Args:
        path: the folder.
        trusted: whether a problem that it names as module:function may be imported and called.
    """
    if (path / "front.json").exists() and not (path / "manifest.json").exists():
        raise InvalidInput(
            f"{path} was written before fronts had run folders (front.json without manifest.json); "
            "`bipareto report` still draws it, for the rest make it again with `bipareto front`"
        )
    folder = RunFolder(path)
    folder.check()
    name = load(SweepConfig, folder.config).problem.name
    if ":" in name and not trusted:
        raise InvalidInput(
            f"{path} names code as its problem, {name}, which would be imported and called; if you "
            "trust the folder, say so with --trust"
        )
    return read_plan(folder)


def _plain(path: Path, name: str) -> StoredRun:
    front = ParetoFront.load(path)
    records = path.with_name("metrics.jsonl")
    sources = (Source(records, len(front)),) if records.exists() else ()
    return StoredRun(name, path, front, None, name, "", {}, sources, "", None)


def _run(path: Path, name: str) -> StoredRun:
    if not (path / "front.npz").exists():
        raise InvalidInput(
            f"{path} is not finished; look at it with: bipareto watch {path}, or go on with: "
            f"bipareto resume {path}"
        )
    RunFolder(path).check()
    manifest, config = RunFolder(path).manifest(), load(SweepConfig, path / "config.yaml")
    problem = {"name": config.problem.name, **config.problem.options}
    size, runs = manifest["slice"], manifest["runs"]
    parts = [
        Source(RunFolder(path).slice(i).path / "metrics.jsonl", min(size, runs - i * size))
        for i in range(manifest["slices"])
    ]
    return StoredRun(
        name=name,
        path=path / "front.npz",
        front=ParetoFront.load(path / "front.npz"),
        known=_known(problem),
        question=json.dumps(problem, sort_keys=True),
        method=config.method.name,
        numbers=manifest["method"],
        sources=tuple(part for part in parts if part.path.exists()),
        config=(path / "config.yaml").read_text("utf-8") + "\n" + json.dumps(manifest, indent=2),
        folder=path,
        raced="race" in manifest,
    )


def _comparison(path: Path) -> list[StoredRun]:
    return [_run(part, f"{path}: {part.name}") for part in _methods(path)]


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


def _results(path: Path, plan: Plan) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    parts = [RunFolder(path).slice(index) for index in range(plan.manifest["slices"])]
    if not all(part.done for part in parts):
        raise InvalidInput(f"{path} is not finished; go on with: bipareto resume {path}")
    return [part.read_result() for part in parts]


def returned(path: Path) -> tuple[Tree, list[int]]:
    """y of all runs as they left it, not solved again, and their steps; of a run that is trusted,
    see `plan_of`.
    """
    plan = plan_of(path, trusted=True)
    read = _results(path, plan)
    like = plan.setup.starts[0][1]
    leaves = [
        torch.cat([tensors[f"returned.{i}"] for tensors, _ in read])
        for i in range(len(tree.leaves(like)))
    ]
    return tree.rebuild(like, leaves), [steps for _, meta in read for steps in meta["steps"]]


def case(path: str | PathLike[str], *, trusted: bool = False) -> Case:
    """A finished run as the doctor takes it: last states and records of its runs (`plan_of`)."""
    from bipareto.doctor.evidence import Case

    plan = plan_of(Path(path), trusted=trusted)
    read = _results(Path(path), plan)
    template = tree.stack(plan.states([0]))
    parts = [f"state.{i}" for i in range(len(tree.leaves(template)))]
    if any(parts[-1] not in tensors for tensors, _ in read):
        raise InvalidInput(
            f"{path} holds last states of an earlier version of bipareto, which the doctor of this "
            "one cannot read; certify and report can, or run it again in a new folder"
        )
    state = tree.rebuild(
        template, [torch.cat([tensors[name] for tensors, _ in read]) for name in parts]
    )
    rows = [_rows(RunFolder(Path(path)).slice(i).path) for i in range(len(read))]
    records = min(map(len, rows))
    names = [name for name in rows[0][0] if name != "step"] if records else []
    history = {
        name: torch.cat(
            [_recorded(part[:records], name, len(plan.runs(i))) for i, part in enumerate(rows)],
            dim=1,
        )
        for name in names
    }
    failure = [None if f is None else Failure(*f) for _, meta in read for f in meta["failure"]]
    setup, batched = plan.setup, plan.manifest["batched"]
    w = plan.preference_rows(range(plan.manifest["runs"]))
    return Case(setup.problem, plan.method, state, w, history, failure, setup.starts[0], batched)


def _rows(part: Path) -> list[dict[str, Any]]:
    path = part / "metrics.jsonl"
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} cannot be read ({error}); make the run again in another folder"
        ) from error


def _recorded(rows: list[dict[str, Any]], name: str, runs: int) -> Tensor:
    """What was recorded of a slice's runs, without its padding: (records, runs, ...)."""
    values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
    m = values.shape[-1] if name in ("objectives", "weights") else 1
    values = values.reshape(len(rows), -1, m)[:, :runs]
    return values.squeeze(-1) if m == 1 else values
