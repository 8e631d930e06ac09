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

#: Rounds of neighbours after the first trials.
ROUNDS = 4


def tune(study: Study, methods: Sequence[str] = COMPARED) -> dict[str, Any]:
    """Try every entry of `settings.TRIALS` under the equal preference, then half and twice every
    number of the best, until none of these is better or `ROUNDS` have been made.

    So the best lies on no edge: it was compared with a neighbour on either side in every number.

    Returns:
        By method: `numbers`, those that do best on the validation classes (none, hence the
            preset's, where every trial diverged), `trials`, each with its numbers and its mean
            accuracy over domains (0 where it diverged), `settled`, whether all neighbours of the
            best were tried, and `seconds`.
    """
    if not all(study.task.domains.validation):
        raise InvalidInput(
            f"the domains of {study.task.images.name} have no validation classes to tune on; take "
            "fc100 or caltech101, which have"
        )
    for name in methods:
        study.method(name)  # a wrong name is told before the first training
    found: dict[str, Any] = {}
    for name in methods:
        judged: list[dict[str, Any]] = []
        seconds, new = 0.0, TRIALS[name]
        for number in range(ROUNDS + 1):
            more, took = _try(study, name, new, number)
            judged, seconds = judged + more, seconds + took
            best = max(judged, key=lambda trial: trial["accuracy"])
            tried = [trial["numbers"] for trial in judged]
            new = [numbers for numbers in _neighbours(best["numbers"]) if numbers not in tried]
            if not new or not best["accuracy"]:
                break
        if not best["accuracy"]:
            warnings.warn(
                f"every trial of {name} diverged; the preset's numbers are kept",
                BiparetoWarning,
                stacklevel=2,
            )
        found[name] = {
            "numbers": best["numbers"] if best["accuracy"] else {},
            "trials": judged,
            "settled": not new,
            "seconds": seconds,
        }
        if study.folder is not None:
            text = json.dumps(
                {
                    "steps": study.steps,
                    "seed": study.seeds[0],
                    "learner": study.task.network.learner,
                    "methods": found,
                },
                indent=1,
            )
            write_text(study.folder / "tuning.json", text)
    return found


def _try(
    study: Study, name: str, chances: Sequence[dict[str, float]], number: int
) -> tuple[list[dict[str, Any]], float]:
    """Train with each of these numbers side by side; their accuracies and the seconds."""
    m, seed = len(study.task.domains), study.seeds[0]
    built = [study.configured(name, m, numbers) for numbers in chances]
    trials = [
        Trial(method, (1 / m,) * m if method.uses_preference else None, seed) for method in built
    ]
    trained = train(
        study.task,
        trials,
        study.steps,
        folder=None if study.folder is None else study.folder / f"tune-{name}-{number}",
        label=f"tuning {name}, round {number}",
        progress=study.progress,
    )
    judged: list[dict[str, Any]] = []
    for i, numbers in enumerate(chances):
        seen = (
            study.judge(tree.select(trained.x, i), seed, part="validation")["accuracy"]
            if trained.reason[i] == "steps"
            else [0.0]
        )
        judged.append({"numbers": numbers, "accuracy": sum(seen) / len(seen)})
    return judged, trained.seconds


def _neighbours(numbers: dict[str, float]) -> list[dict[str, float]]:
    """Half and twice each number, the others kept."""
    return [
        numbers | {key: value * factor} for key, value in numbers.items() for factor in (0.5, 2.0)
    ]
