"""What the commands of few-shot studies read and show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bipareto.cli.output import Output
from bipareto.errors import InvalidInput


def show_tables(out: Output, found: dict[str, Any]) -> None:
    """Accuracies and hypervolumes by method, and what a preference changes in its own domain."""

    def number(value: float | None, digits: int = 3) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [
        [
            name,
            number(r["accuracy"]),
            number(r["accuracy_error"]),
            number((r["equal"] or {}).get("accuracy")),
            number(r["untrained"]),
            *(
                number(r[f"hypervolume{key}"], 4)
                for key in ("", "_error", "_equal", "_equal_error")
            ),
        ]
        for name, r in found.items()
    ]
    header = [
        "method",
        "accuracy",
        "+-",
        "at equal w",
        "untrained",
        "hypervolume",
        "+-",
        "at equal w",
        "+-",
    ]
    out.table(
        "Test accuracy on unseen classes; hypervolume of accuracies above chance", header, rows
    )
    answers = [
        [
            name,
            f"domain {a['domain'] + 1}",
            f"{a['weight']:.2f}",
            f"{a['rise']:+.3f}",
            f"{a['error']:.3f}",
            number(a["seed_error"]),
        ]
        for name, r in found.items()
        for a in r["response"]
    ]
    if answers:
        out.table(
            "What a preference changes in its own domain",
            ["method", "prefers", "w", "rise", "+- episodes", "+- seeds"],
            answers,
            left=2,
        )


def tuned_numbers(path: Path | None, learner: str) -> dict[str, Any] | None:
    """The numbers by method that the tune command found."""
    if path is None:
        return None
    remedy = f"make one with `bipareto experiment fewshot tune --learner {learner} --out DIR`"
    try:
        told = json.loads(path.read_text("utf-8"))
        found = {
            name: {key: float(value) for key, value in entry["numbers"].items()}
            for name, entry in told["methods"].items()
        }
        tuned_for = told["learner"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{path} is not a tuning.json ({type(error).__name__}: {error}); {remedy}"
        ) from error
    if tuned_for != learner:
        raise InvalidInput(
            f"{path} was tuned with the {tuned_for} learner, whose steps do not suit the {learner} "
            f"learner; {remedy}"
        )
    return found


def say_where(out: Output, folder: Path | None) -> None:
    """Where the records are, and what comes next."""
    if folder is not None:
        out.say(
            f"results.json is in {folder}; pictures and tables of it: bipareto experiment fewshot "
            f"figures {folder}"
        )
