"""The studies of the experiment: what is trained, how it is judged, and what is written down.

A study's folder holds one sub-folder per group of backbones that were trained side by side
(resumable) and `results.json` with a record per backbone, from which tables and figures are made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bipareto.methods.base import Method
from bipareto.problem import tree
from bipareto.sweep.durable import write_text
from bipareto_experiments.episodic import Episodic
from bipareto_experiments.fewshot.settings import (
    COMPARED,
    MOVING,
    Protocol,
    adaptation,
    configured,
    preferences,
)
from bipareto_experiments.fewshot.task import Task
from bipareto_experiments.fewshot.training import Trial, train
from bipareto_experiments.trials import RecordedStudy

#: Episodes per domain that a finished backbone and a point of a curve are judged by, as in the
#: paper.
EPISODES, CURVE_EPISODES = 192, 48

#: Seeds of the comparison whose backbones are judged on the way.
CURVE_SEEDS = 3


@dataclass
class Study(RecordedStudy):
    """A study in the making.

    Args:
        task: data, domains and network.
        folder: where it is kept; None keeps nothing.
        steps: joint steps T.
        seeds: every setting is run once with each.
        protocol, preset: see `settings.configured`.
        numbers: by method, in place of the preset's: what `tune` found.
        progress: as in `solve`.
        episodes: per domain, to judge a finished backbone.
    """

    task: Task
    folder: Path | None
    steps: int
    seeds: Sequence[int]
    protocol: Protocol = "warm"
    preset: str = "robust"
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    progress: bool | None = None
    episodes: int = EPISODES
    records: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def method(self, name: str) -> Method:
        """A method of the comparison with its numbers."""
        return self.configured(name, len(self.task.domains), self.numbers.get(name))

    def configured(self, name: str, m: int, numbers: Mapping[str, float] | None) -> Method:
        """The same for m domains, with these numbers."""
        return configured(
            name, self.task.network.learner, m, self.protocol, self.preset, self.steps, numbers
        )

    def judge(
        self, x: Any, seed: int, part: str = "test", episodes: int | None = None
    ) -> dict[str, Any]:
        """Accuracy and loss per domain of one backbone, with the standard error over episodes and
        how many are right in each.
        """
        eta = adaptation(self.task.network.learner, len(self.task.domains))
        found = self.task.judge(
            x, self.task.start(seed)[1], part=part, episodes=episodes or self.episodes, eta=eta
        )
        count = found.accuracy.shape[0]
        return {
            "accuracy": found.accuracy.mean(0).tolist(),
            "error": (found.accuracy.std(0) / count**0.5).tolist(),
            "loss": found.loss.mean(0).tolist(),
            "judged": self._judged,
            "episodes": (found.accuracy.T * self._judged).round().int().tolist()
            if episodes is None
            else None,
        }

    @property
    def _judged(self) -> int:
        """Query images per episode and domain."""
        return self.task.network.ways * self.task.queries

    def untrained(self) -> None:
        """Backbones as they begin, under the same adaptation."""
        for seed in self.seeds:
            label = {"group": "untrained", "method": "untrained", "seed": seed, "preference": None}
            self.records.append(label | self.judge(self.task.start(seed)[0], seed))

    def run(
        self,
        group: str,
        trials: Sequence[Trial],
        labels: Sequence[dict[str, Any]],
        watched: Callable[[Trial], bool] = lambda trial: False,
        steps: int | None = None,
        begin: Any = None,
    ) -> Any:
        """Train a group side by side, judge every backbone, and keep the records; returns the
        backbones.

        Args:
            watched: which of them are judged on the way too, on training and on unseen classes.
            steps: other than the study's.
            begin: backbones to begin with, with a first axis of trials.
        """
        curves: dict[int, list[dict[str, Any]]] = {
            i: [] for i, trial in enumerate(trials) if watched(trial)
        }
        # A training that goes on begins after points that it has judged.
        kept = None if self.folder is None else self.folder / group / "curves.json"
        if kept is not None and kept.exists():
            curves |= {int(i): row for i, row in json.loads(kept.read_text("utf-8")).items()}

        def look(step: int, x: Any) -> None:
            for i, points in curves.items():
                if any(point["step"] == step for point in points):
                    continue
                point: dict[str, Any] = {"step": step}
                for part, suffix in (("test", ""), ("train", "_train")):
                    seen = self.judge(
                        tree.select(x, i), trials[i].seed, part=part, episodes=CURVE_EPISODES
                    )
                    point |= {key + suffix: seen[key] for key in ("accuracy", "loss")}
                points.append(point)
            if kept is not None:
                write_text(kept, json.dumps(curves))

        trained = train(
            self.task,
            trials,
            steps or self.steps,
            begin=begin,
            folder=None if self.folder is None else self.folder / group,
            label=group,
            progress=self.progress,
            watch=look if curves else None,
            watch_every=max(1, self.steps // 20) if curves else None,
        )
        self.seconds[group] = trained.seconds
        for i, (trial, label) in enumerate(zip(trials, labels, strict=True)):
            record = {
                "group": group,
                **label,
                "seed": trial.seed,
                "preference": trial.preference,
                "numbers": repr(trial.method),
                "ended": trained.reason[i],
            }
            record |= self.judge(tree.select(trained.x, i), trial.seed)
            record["training"] = {
                "step": trained.steps.tolist(),
                "loss": trained.objectives[:, i].tolist(),
            }
            if i in curves:
                record["curve"] = curves[i]
            self.records.append(record)
        self.write()
        return trained.x

    def across(
        self,
        group: str,
        name: str,
        wanted: Sequence[tuple[float, ...] | None],
        watched: Callable[[Trial], bool] = lambda trial: False,
        **label: Any,
    ) -> None:
        """One method under several preferences, with every seed."""
        method = self.method(name)
        trials = [Trial(method, w, seed) for seed in self.seeds for w in wanted]
        self.run(group, trials, [{"method": name, **label} for _ in trials], watched)

    def described(self) -> dict[str, Any]:
        task = self.task
        return {
            "data": {
                "name": task.images.name,
                "note": task.images.note,
                "domains": task.domains.to_json(task.images),
            },
            "network": repr(task.network),
            "steps": self.steps,
            "protocol": self.protocol,
            "preset": self.preset,
            "numbers": self.numbers,
        }


def comparison(
    study: Study, methods: Sequence[str] = COMPARED, strengths: Sequence[str] = ("weak", "moderate")
) -> dict[str, Any]:
    """Every method under equal, weak and moderate preferences; one without preferences has one
    answer, and runs once with each seed.

    Args:
        strengths: which preferences beside the equal one; "strong" and "extreme" show the
            deterioration that the paper reports.
    """
    wanted = preferences(len(study.task.domains), strengths)
    given = {
        name: wanted if study.method(name).uses_preference else [None] for name in methods
    }  # a wrong name is told before the first training
    study.untrained()
    m = len(study.task.domains)
    # The paper's training curves are those of domain 1 under the moderate preference for it; a
    # method without preferences shows its only one.
    shown = (None, preferences(m, ["moderate"])[1])

    def watched(trial: Trial) -> bool:
        return trial.preference in shown and trial.seed in study.seeds[:CURVE_SEEDS]

    for name, its in given.items():
        study.across(name, name, its, watched)
    return study.result()


def sensitivity(
    study: Study, values: Sequence[float] = (1.0, 2.0, 4.0, 8.0, 16.0)
) -> dict[str, Any]:
    """MOMEHA against mu, against gamma, and under four preference strengths; with curves under the
    equal preference.

    Args:
        values: of mu and of gamma, each with the other at its preset value.
    """
    method = study.method("momeha")
    study.untrained()
    m = len(study.task.domains)
    tilted = preferences(m, ["moderate"])[min(2, m)]
    for name in ("mu", "gamma"):
        trials = [
            Trial(_with(method, name, value), tilted, seed)
            for seed in study.seeds
            for value in values
        ]
        study.run(
            f"by-{name}",
            trials,
            [{"method": "momeha", name: value} for _ in study.seeds for value in values],
        )
    study.run(
        "curves",
        [Trial(method, (1 / m,) * m, seed) for seed in study.seeds],
        [{"method": "momeha"} for _ in study.seeds],
        watched=lambda trial: True,
    )
    for strength in ("weak", "moderate", "strong", "extreme"):
        wanted = preferences(m, [strength])
        # The equal preference is the reference of all four and is run once.
        study.across(
            f"strength-{strength}",
            "momeha",
            wanted if strength == "weak" else wanted[1:],
            strength=strength,
        )
    return study.result()


def refinement(
    study: Study,
    strengths: Sequence[str] = ("moderate",),
    *,
    steps: int = 1000,
    pace: float = 0.3,
    scalarizations: Sequence[str] = ("stch",),
) -> dict[str, Any]:
    """One backbone a seed under the equal preference, refined towards every preference from there
    on the same episodes.

    Start, episodes and learners' y_0 are those of the equal preference, which is refined too: what
    is left between two backbones of a seed is the preference.

    Args:
        strengths: of the preferences.
        steps: joint steps of the refinement.
        pace: of its step of x, as a share of the first one's; it falls to zero along half a cosine.
        scalarizations: by which preferences weigh the domains, each a method by itself: "stch", or
            "linear" for a plain weighted sum.
    """
    m, learner = len(study.task.domains), study.task.network.learner
    study.untrained()
    even = (1 / m,) * m
    shared = study.run(
        "shared",
        [Trial(study.method("momeha"), even, seed) for seed in study.seeds],
        [{"method": "momeha, shared"} for _ in study.seeds],
    )
    numbers = {"alpha_x": MOVING[learner][0], **study.numbers.get("momeha", {})}
    numbers["alpha_x"] *= pace
    for name in scalarizations:
        method = configured(
            "momeha",
            learner,
            m,
            study.protocol,
            study.preset,
            steps,
            numbers | {"scalarization": name},
        )
        wanted = preferences(m, strengths)
        trials = [Trial(method, w, seed, draws=seed + 1000) for seed in study.seeds for w in wanted]
        begin = tree.map_(partial(torch.repeat_interleave, repeats=len(wanted), dim=0), shared)
        study.run(
            f"refined-{name}",
            trials,
            [{"method": f"momeha, {name}"} for _ in trials],
            steps=steps,
            begin=begin,
        )
    return study.result()


def single_domain(study: Study) -> dict[str, Any]:
    """One domain alone in training, judged on all: an m x m matrix, the reference of the preference
    study.

    A preference of nearly one for domain i leaves the others without weight; here their learners
    take no part either.
    """
    task = study.task
    method = study.configured("momeha", 1, study.numbers.get("momeha"))
    for i, name in enumerate(task.domains.names):
        trials = [Trial(method, (1.0,), seed) for seed in study.seeds]
        folder = None if study.folder is None else study.folder / f"only-{i + 1}"
        trained = train(
            task.alone(i),
            trials,
            study.steps,
            folder=folder,
            label=f"only {name}",
            progress=study.progress,
        )
        for k, trial in enumerate(trials):
            record = {
                "group": "single",
                "method": "momeha",
                "trained_on": i,
                "seed": trial.seed,
                "preference": None,
            }
            study.records.append(record | study.judge(tree.select(trained.x, k), trial.seed))
        study.write()
    return study.result()


def _with(method: Method, name: str, value: float) -> Method:
    """The method with another mu or gamma."""
    if isinstance(method, Episodic):
        return replace(method, method=_with(method.method, name, value))
    return replace(method, **{name: value})
