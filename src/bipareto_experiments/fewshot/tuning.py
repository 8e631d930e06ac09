"""Hyperparameters of the compared methods, by trials on validation classes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from bipareto.sweep.durable import write_text
from bipareto_experiments.fewshot.settings import COMPARED, TRIALS
from bipareto_experiments.fewshot.studies import Study
from bipareto_experiments.fewshot.training import Trial, train

__all__ = ["tune"]


def tune(study: Study, methods: Sequence[str] = COMPARED) -> dict[str, Any]:
    """Try every entry of `settings.TRIALS` under the equal preference, and take what does best on
    the validation classes.

    Returns:
        By method: `numbers`, the best ones (none, hence the preset's, where every trial diverged),
            and `trials`, each with its numbers
        and its mean accuracy over domains (0 where it diverged).
    """
    if not all(study.task.domains.validation):
        raise InvalidInput(
            f"the domains of {study.task.images.name} have no validation classes to tune on; take "
            "fc100 or caltech101, which have"
        )
    for name in methods:
        study.method(name)  # a wrong name is told before the first training
    m, seed = len(study.task.domains), study.seeds[0]
    found: dict[str, Any] = {}
    for name in methods:
        chances = [study.configured(name, m, numbers) for numbers in TRIALS[name]]
        trials = [
            Trial(method, (1 / m,) * m if method.uses_preference else None, seed)
            for method in chances
        ]
        folder = None if study.folder is None else study.folder / f"tune-{name}"
        trained = train(
            study.task,
            trials,
            study.steps,
            folder=folder,
            label=f"tuning {name}",
            progress=study.progress,
        )
        judged: list[dict[str, Any]] = []
        for i, numbers in enumerate(TRIALS[name]):
            healthy = trained.reason[i] == "steps"
            seen = (
                study.judge(tree.select(trained.x, i), seed, part="validation")["accuracy"]
                if healthy
                else [0.0]
            )
            judged.append({"numbers": numbers, "accuracy": sum(seen) / len(seen)})
        best = max(judged, key=lambda trial: trial["accuracy"])
        if not best["accuracy"]:
            warnings.warn(
                f"every trial of {name} diverged; the preset's numbers are kept",
                BiparetoWarning,
                stacklevel=2,
            )
        found[name] = {
            "numbers": best["numbers"] if best["accuracy"] else {},
            "trials": judged,
            "seconds": trained.seconds,
        }
        if study.folder is not None:
            text = json.dumps(
                {
                    "steps": study.steps,
                    "seed": seed,
                    "learner": study.task.network.learner,
                    "methods": found,
                },
                indent=1,
            )
            write_text(study.folder / "tuning.json", text)
    return found
