"""A comparison in the making: which searches are run, how what they end with is judged, and what is
written down.

Supernets and derived cells are judged twice: on validation images, which the upper level has seen,
and on test images, which neither level has.  Cells of NAS-Bench-201 are looked up besides.

A study's folder holds one sub-folder per method (resumable) and `results.json` with a record per
search, from which tables and figures are made anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization
from bipareto.problem import tree
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto.sweep.durable import write_text
from bipareto_experiments.nas.evaluation import judged, ranked, stacked, upper_of_many
from bipareto_experiments.nas.genotype import Genotype, derive
from bipareto_experiments.nas.known import KnownCells
from bipareto_experiments.nas.lookups import described
from bipareto_experiments.nas.search import RECORDS, Trial, search
from bipareto_experiments.nas.settings import TUNED, configured, default_preferences, pace
from bipareto_experiments.nas.settings import trials as worth_trying
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.task import Task
from bipareto_experiments.trials import Finished, RecordedStudy

#: Random cells by which a supernet's ranking is judged.
CELLS = 150
#: Random cells that random search chooses among, and the smoothing of the scalarization by which it
#: does.
DRAWN, MU = 500, 4.0
#: Steps of two short searches from which the length of one of so many seconds is reckoned; the
#: longer one is lengthened, to at most so many steps, until it takes that many seconds more.
SHORT, LONG, MOST, CLEAR = 10, 40, 2560, 1.0
#: Preferences of trials with two objectives.
_BOTH = ("strong", "strong-second")


@dataclass
class Study(RecordedStudy):
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
        budget: seconds that every method has for all its searches together, recording and judging
            not counted; None gives all the steps of the settings.
    """

    task: Task
    folder: Path | None
    seeds: Sequence[int]
    known: KnownCells | None = None
    together: int | None = None
    progress: bool | None = None
    say: Callable[[str], None] | None = None
    cells: int = CELLS
    budget: float | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    rankings: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    #: supernets that searches begin with, one a seed, once they are trained
    weights: Finished | None = None

    def run(
        self,
        name: str,
        wanted: Sequence[tuple[float, ...]],
        variants: Sequence[dict[str, float]] = ({},),
    ) -> None:
        """One method under all preferences with every seed; one without preferences is run as
        often, on other draws.

        Random search trains one supernet a seed, for the time that the others take for all, and
        chooses a cell for every preference.

        Args:
            name: of the method.
            wanted: preferences.
            variants: hyperparameters other than the method's own, each recorded as a method by
                itself.
        """

        def trials_of(task: Task) -> tuple[list[str], list[Trial]]:
            labels, trials = [], []
            for variant in variants:
                method = configured(name, task.settings, **variant)
                label = ", ".join(
                    [name, *(f"{step} = {value:g}" for step, value in variant.items())]
                )
                # As many runs as the others have preferences, so that nobody wins by having drawn
                # more often.
                of_seed = [
                    (w, 0) if method.uses_preference else (None, 1000 * k)
                    for k, w in enumerate(wanted)
                ]
                own = [
                    Trial(method, w, seed + more)
                    for seed in self.seeds
                    for w, more in (of_seed[:1] if name == "random" else of_seed)
                ]
                labels += [label] * len(own)
                trials += own
            return labels, trials

        folder = None if self.folder is None else self.folder / name
        share = self.task.settings.pretrain if name != "random" else 0.0
        steps = self._steps(name, folder, trials_of, 1 - share)
        task = self.task.lasting(steps, name)
        labels, trials = trials_of(task)
        begin, before = self._pretrained(trials) if share else (None, 0.0)
        found = search(
            task,
            trials,
            begin=begin,
            folder=folder,
            together=self.together,
            label=name,
            progress=self.progress,
            say=self.say,
        )
        if name == "random":
            labels, trials, found = self._chosen(task, trials, found, wanted)
        for label in labels:
            own = labels.count(label) / len(labels)
            self.seconds[label] = (before + found.seconds) * own
        for label, trial, record in zip(
            labels, trials, self._records(task, trials, found), strict=True
        ):
            self.records.append(
                {
                    "method": label,
                    "numbers": repr(trial.method),
                    "steps": task.settings.steps,
                    **record,
                }
            )
        for i in range(0, len(trials) if self.cells else 0, len(wanted)):
            self._rank(labels[i], trials[i], found, i)
        self.write()

    def _pretrained(self, trials: Sequence[Trial]) -> tuple[dict[int, Tree], float]:
        """Weights for every trial's seed, from one supernet for each of the study's seeds, and the
        seconds that these took, which every method is charged with.
        """

        def alone(task: Task) -> tuple[list[str], list[Trial]]:
            method = configured("random", task.settings)
            return [], [Trial(method, None, seed) for seed in self.seeds]

        if self.weights is None:
            folder = None if self.folder is None else self.folder / "pretrained"
            steps = self._steps("random", folder, alone, self.task.settings.pretrain)
            task = self.task.lasting(steps, "random")
            self.weights = search(
                task,
                alone(task)[1],
                folder=folder,
                together=self.together,
                label="weights alone",
                progress=self.progress,
                say=self.say,
            )
        place = {seed: i for i, seed in enumerate(self.seeds)}
        kept = self.weights
        # Methods without preferences are run on other draws, thousands apart.
        begin = {trial.seed: tree.select(kept.y, place[trial.seed % 1000]) for trial in trials}
        return begin, kept.seconds

    def _steps(
        self,
        name: str,
        folder: Path | None,
        trials_of: Callable[[Task], tuple[list[str], list[Trial]]],
        share: float = 1.0,
    ) -> int:
        """How long a search is: as the settings say, or as many steps as fit into the seconds that
        each method has for all its searches, of both that share.

        What was reckoned once is kept, for the call that goes on.
        """
        steps = self.task.settings.steps
        if self.budget is None:
            return max(1, int(share * steps * pace(name, self.task.settings)))
        kept = None if folder is None else folder / "steps.json"
        if kept is not None and kept.exists():
            return int(json.loads(kept.read_text("utf-8")))
        task = self.task.lasting(LONG, name)

        def taken(count: int) -> float:
            # Not `lasting`: the recorded step belongs to the problem.
            return search(
                task,
                trials_of(task)[1],
                steps=count,
                records=1,
                together=self.together,
                label=f"timing {name}",
                progress=False,
            ).seconds

        taken(SHORT)  # compiles and records
        first, count = taken(SHORT), LONG
        # A search of a few steps takes as long as its start varies: longer ones tell the rate.
        while (longer := taken(count) - first) < CLEAR and count < MOST:
            count *= 4
        budget = share * self.budget
        rate = max(longer / (count - SHORT), budget / MOST**2)
        each = max(first - SHORT * rate, 0.0)
        steps = max(LONG, int((budget - RECORDS * each) / rate))
        if self.say is not None:
            self.say(
                f"{name}: {1e3 * rate:.1f} ms a step, {each:.2f} s a record; {steps} steps in "
                f"{budget:g} s"
            )
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, json.dumps(steps))
        return steps

    def _chosen(
        self, task: Task, trials: list[Trial], found: Finished, wanted: Sequence[tuple[float, ...]]
    ) -> tuple[list[str], list[Trial], Finished]:
        """Random search: of random cells, for every preference the one whose scalarized
        validation objectives are least.
        """
        space = task.problem.network.space
        best, weights, kept = [], [], []
        for i, trial in enumerate(trials):
            stream = generator("random search", 0, trial.seed)
            cells = [Genotype.random(space, stream) for _ in range(DRAWN)]
            y = tree.select(found.y, i)
            x = stacked(cells, y)
            f = upper_of_many(task, x, y)
            for w in wanted:
                aim = torch.tensor(w, dtype=torch.float64)
                value = scalarization.get("stch").value(
                    f, aim, torch.zeros_like(aim), torch.tensor(MU, dtype=torch.float64)
                )
                best.append(tree.select(x, int(value.argmin())))
                weights.append(y)
                kept.append((Trial(trial.method, w, trial.seed), i))
        picked = [i for _, i in kept]
        objectives = found.objectives[:, picked]
        reasons = tuple(found.reason[i] for i in picked)
        whole = Finished(
            tree.stack(best), tree.stack(weights), found.seconds, reasons, objectives, found.steps
        )
        return ["random"] * len(kept), [trial for trial, _ in kept], whole

    def _records(self, task: Task, trials: list[Trial], found: Finished) -> list[dict[str, Any]]:
        space = task.problem.network.space
        genotypes = [derive(space, tree.select(found.x, i)) for i in range(len(trials))]
        kinds = {"mixture": found.x, "discrete": stacked(genotypes, found.y)}
        seen = {
            name: {part: judged(task, x, found.y, part) for part in ("upper", "test")}
            for name, x in kinds.items()
        }
        return [
            {
                "seed": trial.seed % 1000,
                "draws": trial.seed,
                "preference": trial.preference,
                "ended": found.reason[i],
                "objectives": seen["mixture"]["upper"].objectives[i].tolist(),
                "discrete": seen["discrete"]["upper"].objectives[i].tolist(),
                "test": {
                    name: parts["test"].objectives[i].tolist() for name, parts in seen.items()
                },
                "test_accuracy": {
                    name: float(parts["test"].accuracy[i]) for name, parts in seen.items()
                },
                "logits": tree.map_(
                    lambda leaf: [[round(v, 6) for v in row] for row in leaf.tolist()],
                    tree.select(found.x, i),
                ),
                "curve": {
                    "step": found.steps.tolist(),
                    "objectives": found.objectives[:, i].tolist(),
                },
                **described(genotypes[i], self.known),
            }
            for i, trial in enumerate(trials)
        ]

    def _rank(self, name: str, trial: Trial, found: Finished, i: int) -> None:
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

    def described(self) -> dict[str, Any]:
        task = self.task
        return {
            "settings": task.settings.to_json(),
            "objectives": list(task.settings.objectives),
            "data": {
                "name": task.images.name,
                "note": task.images.note,
                "classes": task.problem.network.classes,
            },
            "judged_on": task.judged_on,
            "budget": self.budget,
            "rankings": self.rankings,
        }


def compared(
    study: Study, methods: Sequence[str], strengths: Sequence[str] | None = None
) -> dict[str, Any]:
    """Every method under all preferences with every seed; all for the same time where the study
    has a budget.
    """
    if not methods:
        raise InvalidInput("no method to compare; name some, e.g. --methods mb-momeha,moco")
    wanted = default_preferences(len(study.task.settings.objectives), strengths)
    for name in methods:
        study.run(name, wanted)
    return study.result()


def tuned(
    study: Study, methods: Sequence[str], strengths: Sequence[str] | None = None
) -> dict[str, Any]:
    """Every method with each pair of steps that is worth a trial (`settings.trials`), side by
    side; records are labelled with it.
    """
    if study.task.settings.numbers == "paper":
        raise InvalidInput(
            "the paper's numbers are fixed and are not tuned; use --preset proxy or --preset darts"
        )
    unknown = [name for name in methods if name not in TUNED]
    if unknown:
        raise InvalidInput(f"method {unknown[0]!r} is not tuned; choose from {', '.join(TUNED)}")
    m = len(study.task.settings.objectives)
    wanted = default_preferences(m, strengths or (_BOTH if m == 2 else None))
    for name in methods:
        study.run(name, wanted, worth_trying(name, study.task.settings))
    return study.result()
