"""The points at which an experiment ended, read back from its folder, each with its problem: what
can be certified of it.

The lower level is what a step of the experiment has of it: all images of hyper-cleaning, those
images of a search by which a supernet is judged, and one episode of few-shot learning, on which the
learners, which no folder keeps, are trained anew until they solve it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bipareto.methods.parts.envelope import solve_one
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.sweep.durable import read_tensors
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.cleaning import cleaning_problem
from bipareto_experiments.cleaning_run import cleaned
from bipareto_experiments.trials import read_back

if TYPE_CHECKING:
    from bipareto_experiments.fewshot.studies import Study as FewShotStudy
    from bipareto_experiments.nas.studies import Study as Searches

#: Folders of a search's weights alone: no architecture was moved there.
ALONE = ("pretrained", "random")


class Ended(NamedTuple):
    """One training: where it is kept, its preference and seed in words, and its point."""

    label: str
    problem: Problem
    x: Tree
    y: Tree


def of_searches(study: Searches) -> list[Ended]:
    """Logits and weights of every search, in operations that can be differentiated twice."""
    plain = replace(study.task.settings, supernet="plain", half=False, clip=None)
    problem = replace(study.task, settings=plain).problem
    found: list[Ended] = []
    for part in _done(study.folder):
        if part.path.name not in ALONE and part.path.parent.name not in ALONE:
            end, meta = read_back(part, problem.start(0))
            for i, trial in enumerate(meta["trials"]):
                found.append(Ended(_words(part, trial), problem, *tree.select(end.point, i)))
    return found


def of_backbones(study: FewShotStudy) -> list[Ended]:
    """Backbones, with learners that solve one episode."""
    twice = replace(study.task, network=replace(study.task.network, twice=True))
    found: list[Ended] = []
    for part in _done(study.folder):
        alone = part.path.name.removeprefix("only-")
        task = twice if alone == part.path.name else twice.alone(int(alone) - 1)
        end, meta = read_back(part, task.start(0)[:1])
        for i, trial in enumerate(meta["trials"]):
            x, y = tree.select(end.x, i), task.start(int(trial["seed"]))[1]
            y = solve_one(task.problem, x, y, tol=1e-6, max_iter=50)
            found.append(Ended(_words(part, trial), task.problem, x, y))
    return found


def of_cleaning(run: Path) -> list[Ended]:
    """Weights of images and networks, those that were judged."""
    found: list[Ended] = []
    for name, seed, sizes, file in cleaned(run):
        task = cleaning_problem(seed, sizes)
        tensors, meta = read_tensors(file)
        x = tensors.pop("x")
        for i, w in enumerate(meta["preferences"]):
            words = f"{name}, {_wanted(w)}seed {seed}"
            y = {key: leaf[i] for key, leaf in tensors.items()}
            found.append(Ended(words, task.problem, x[i], y))
    return found


def _done(folder: Path | None) -> list[SliceFolder]:
    assert folder is not None
    parts = [SliceFolder(mark.parent) for mark in sorted(folder.rglob("attempts.jsonl"))]
    return [part for part in parts if part.done]


def _words(part: SliceFolder, trial: Mapping[str, Any]) -> str:
    own = part.path.parent.name if part.path.name.isdecimal() else part.path.name
    return f"{own}, {_wanted(trial['preference'])}seed {trial['seed']}"


def _wanted(preference: Sequence[float] | None) -> str:
    return "" if preference is None else "(" + ", ".join(f"{w:.3g}" for w in preference) + "), "
