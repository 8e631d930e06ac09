"""A comparison in the making: which searches are run, how the cells they end with are looked up,
and what is written down.

A study's folder holds one sub-folder per method (resumable) and `results.json` with a record per
search, from which tables and figures are made anywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.sweep.durable import write_text
from bipareto_experiments.data import MissingData
from bipareto_experiments.devices import machine_of
from bipareto_experiments.nas.genotype import Genotype, derive
from bipareto_experiments.nas.known import DATASETS, KnownCells, load_known
from bipareto_experiments.nas.objectives import cost
from bipareto_experiments.nas.search import Found, Trial, search
from bipareto_experiments.nas.settings import DARTS_STEPS, TRIALS, configured, default_preferences
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.standalone import sized
from bipareto_experiments.nas.task import Task

__all__ = ["Study", "compared", "described", "looked_up", "ranked", "tuned"]

#: Random cells by which a supernet's ranking is judged.
CELLS = 150


@dataclass
class Study:
    """A comparison in the making.

    Args:
        task: data and supernet.
        folder: where it is kept; None keeps nothing.
        seeds: every method is run once with each.
        known: the looked-up accuracies; None where there are none.
        together: see `search`.
        progress, say: see `search`.
        cells: random cells by which the ranking of each seed's first supernet is judged; 0 for
            none.
    """

    task: Task
    folder: Path | None
    seeds: Sequence[int]
    known: KnownCells | None = None
    together: int | None = None
    progress: bool | None = None
    say: Callable[[str], None] | None = None
    cells: int = CELLS
    records: list[dict[str, Any]] = field(default_factory=list)
    rankings: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(
        self,
        name: str,
        wanted: Sequence[tuple[float, ...]],
        steps: int = 1,
        variants: Sequence[dict[str, float]] = ({},),
    ) -> None:
        """One method under all preferences with every seed; one without preferences is run as
        often, on other draws.

        Args:
            name: of the method.
            wanted: preferences.
            steps: how many times the steps of the settings.
            variants: steps other than the method's own, each recorded as a method by itself.
        """
        task = self.task.lasting(steps)
        labelled, trials = [], []
        for variant in variants:
            method = configured(name, task.settings, **variant)
            label = ", ".join([name, *(f"{step} = {value:g}" for step, value in variant.items())])
            # As many runs as the others have preferences, so that nobody wins by having drawn more
            # often.
            of_seed = [
                (w, 0) if method.uses_preference else (None, 1000 * k) for k, w in enumerate(wanted)
            ]
            own = [Trial(method, w, seed + more) for seed in self.seeds for w, more in of_seed]
            labelled += [label] * len(own)
            trials += own
        folder = None if self.folder is None else self.folder / name
        found = search(
            task,
            trials,
            folder=folder,
            together=self.together,
            label=name,
            progress=self.progress,
            say=self.say,
        )
        for i, (label, trial) in enumerate(zip(labelled, trials, strict=True)):
            self.records.append(
                {
                    "method": label,
                    "numbers": repr(trial.method),
                    **self._record(task, trial, found, i),
                }
            )
            self.seconds[label] = found.seconds * labelled.count(label) / len(labelled)
        for i in range(0, len(trials) if self.cells else 0, len(wanted)):
            self._rank(labelled[i], trials[i], found, i)
        self.write()

    def _record(self, task: Task, trial: Trial, found: Found, i: int) -> dict[str, Any]:
        x, y = tree.select((found.x, found.y), i)
        problem, space = task.problem, task.problem.network.space
        genotype = derive(space, x)
        batch = problem.batch("upper", "full")
        one_hot = tree.map_(lambda leaf: leaf.to(tree.first_leaf(y)), genotype.logits())
        with torch.no_grad():
            mixed, discrete = (problem.upper(at, y, batch).tolist() for at in (x, one_hot))
        return {
            "seed": trial.seed % 1000,
            "draws": trial.seed,
            "preference": trial.preference,
            "ended": found.reason[i],
            "objectives": mixed,
            "discrete": discrete,
            "logits": tree.map_(
                lambda leaf: [[round(v, 4) for v in row] for row in leaf.tolist()], x
            ),
            "curve": {"step": found.steps.tolist(), "objectives": found.objectives[:, i].tolist()},
            **described(genotype, self.known),
        }

    def _rank(self, name: str, trial: Trial, found: Found, i: int) -> None:
        """How the supernet of one search ranks random cells."""
        space = self.task.problem.network.space
        if self.known is None or space != NAS_BENCH_201:
            return
        stream = generator("random cells", 0, 0)
        numbers = torch.randperm(len(self.known.choices), generator=stream)[: self.cells]
        losses = ranked(self.task, tree.select(found.y, i), self.known.choices[numbers])
        self.rankings.append(
            {
                "method": name,
                "seed": trial.seed,
                "preference": trial.preference,
                "cells": numbers.tolist(),
                "loss": losses.tolist(),
            }
        )

    def result(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        task = self.task
        return {
            "settings": task.settings.to_json(),
            "objectives": list(task.settings.objectives),
            "data": {
                "name": task.images.name,
                "note": task.images.note,
                "classes": task.problem.network.classes,
            },
            "seeds": list(self.seeds),
            "machine": machine_of(task.device),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": self.seconds,
            "records": self.records,
            "rankings": self.rankings,
        }

    def write(self) -> None:
        """results.json, atomically."""
        if self.folder is not None:
            write_text(self.folder / "results.json", json.dumps(self.result()))


def compared(
    study: Study, methods: Sequence[str], strengths: Sequence[str] | None = None
) -> dict[str, Any]:
    """Every method under all preferences with every seed; first-order DARTS for the time that
    MB-MOMEHA takes.
    """
    if not methods:
        raise InvalidInput("no method to compare; name some, e.g. --methods mb-momeha,moco")
    wanted = default_preferences(len(study.task.settings.objectives), strengths)
    for name in methods:
        study.run(name, wanted, DARTS_STEPS if name == "darts" else 1)
    return study.result()


def tuned(
    study: Study,
    methods: Sequence[str],
    strengths: Sequence[str] | None = None,
    step: str = "alpha_x",
) -> dict[str, Any]:
    """Every method with each `step` that is worth a trial (`settings.TRIALS`), side by side;
    records are labelled with it.
    """
    if step not in TRIALS:
        raise InvalidInput(f"step {step!r} is not tuned; choose {' or '.join(TRIALS)}")
    if study.task.settings.numbers == "paper":
        raise InvalidInput(
            "the paper's numbers are fixed and are not tuned; use --preset proxy or --preset darts"
        )
    wanted = default_preferences(len(study.task.settings.objectives), strengths)
    for name in methods:
        study.run(
            name,
            wanted,
            DARTS_STEPS if name == "darts" else 1,
            [{step: value} for value in TRIALS[step][name]],
        )
    return study.result()


def ranked(task: Task, y: Tree, choices: Tensor) -> Tensor:
    """The validation loss (n,) of cells (n, edges) with the weights of a supernet, batch norm by
    the batch.
    """
    problem = task.problem
    batch = problem.batch("upper", "full")
    cells = tree.stack([Genotype.of(NAS_BENCH_201, {"cell": cell}).logits() for cell in choices])
    cells = tree.map_(lambda leaf: leaf.to(tree.first_leaf(y)), cells)
    with torch.no_grad():
        if problem.folded:
            losses = torch.func.vmap(lambda x: problem.loss(x, y, batch), chunk_size=10)(cells)
        else:
            losses = torch.stack(
                [problem.loss(tree.select(cells, i), y, batch) for i in range(len(choices))]
            )
    return losses.double().cpu()


def described(genotype: Genotype, known: KnownCells | None) -> dict[str, Any]:
    """A cell as JSON: its genotype, exact parameters and FLOPs of the published network, and the
    accuracy where it is known.
    """
    exact = cost(sized(genotype), genotype)
    found: dict[str, Any] = {
        "genotype": json.loads(genotype.to_json()),
        "params": exact.params,
        "flops": exact.flops,
    }
    if known is not None and genotype.space == NAS_BENCH_201:
        found |= {
            "number": known.number(genotype),
            "accuracy": {name: known.accuracy(genotype, name) for name in DATASETS},
        }
    return found


def looked_up(space: str, folder: str | Path | None) -> KnownCells | None:
    """The table of accuracies where the space has one and the data folder holds it."""
    if space != NAS_BENCH_201.name:
        return None
    try:
        return load_known(folder)
    except MissingData:
        return None
