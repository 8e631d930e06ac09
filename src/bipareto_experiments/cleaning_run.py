"""Data hyper-cleaning run, judged and drawn."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.fronts.drawing import styles
from bipareto.fronts.front import front
from bipareto.methods import Method
from bipareto.methods.parts.preferences import grid
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.run.results import Record
from bipareto.sweep.durable import write_tensors
from bipareto_experiments.cleaning import (
    FULL,
    METHODS,
    REPORTED,
    SETS,
    STEPS,
    CleaningTask,
    Sizes,
    cleaning_problem,
)
from bipareto_experiments.devices import device_of, machine_of

__all__ = ["run_cleaning"]


@dataclass
class _Selection:
    """The iterate of each run with the best mean accuracy on the second validation sets: a
    callback.
    """

    task: CleaningTask
    score: Tensor | None = None
    x: Tree = None
    y: Tree = None
    curve: list[list[float]] = field(default_factory=list)

    def __call__(self, record: Record) -> None:
        score = self.task.accuracy(record.state.y, self.task.second).mean(1)
        self.curve.append(score.tolist())
        if self.score is None:
            self.score, self.x, self.y = score, record.state.x, record.state.y
            return
        better = score > self.score
        self.score = torch.where(better, score, self.score)
        self.x, self.y = tree.where_run(better, (record.state.x, record.state.y), (self.x, self.y))


def run_cleaning(
    out: Path | None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sizes: Sizes = FULL,
    methods: Sequence[str] = ("momeha", "forum"),
    preferences: int = 5,
    steps: int | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    data: Path | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run the experiment and say what it gives; with `out`, write cleaning.json, cleaning.csv and
    cleaning.png there.

    Args:
        out: a folder; made if it is missing.
        seeds: each draws its own images, noise and first network.
        sizes: `FULL` is FORUM's, `SMALL` runs in seconds.
        methods: of "momeha", "forum" and "default", the call without a method on batches of images:
            no hyperparameter is given, and no validation set chooses an iterate.
        preferences: points of MOMEHA's front, an odd number so that equal weights are among them.
        steps: iterations, None for `STEPS`.
        changes: numbers of the methods to be changed, name -> value.
        device: None takes a GPU where there is one.
        data: the folder of the two sets; None as in `read_set`.
        progress: as in `solve`.

    Returns:
        `rows`, one dict per method, seed and preference with test accuracies in percent (`test` of
        the iterate that the second validation sets choose, `last` of the last one, `retrained`
        after training on for the x chosen), and `summary`: mean and spread over seeds.
    """
    if preferences % 2 == 0:
        raise InvalidInput(
            f"preferences = {preferences}; take an odd number, so that equal weights are among them"
        )
    made = {name: _method(name, sizes, changes) for name in methods}
    where = device_of(device)
    rows = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        task = cleaning_problem(seed, sizes, device=where, data=data)
        for name, method in made.items():
            rows += _run_one(
                None if out is None else out / f"points-{name}-{seed}.safetensors",
                task,
                name,
                method,
                seed,
                steps or STEPS[name],
                grid(2, preferences) if method is None or method.uses_preference else None,
                progress,
            )
    summary = {
        name: _summary([row for row in rows if row["method"] == name and row["equal"]])
        for name in methods
    }
    found = {
        "sizes": sizes._asdict(),
        "seeds": list(seeds),
        "device": machine_of(where),
        "numbers": {name: repr(method) for name, method in made.items() if method is not None},
        "reported": {"forum": list(REPORTED)},
        "summary": summary,
        "rows": rows,
    }
    if out is not None:
        (out / "cleaning.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        found["files"] = [str(out / "cleaning.json"), *drawn_again(out, out)]
    return found


def _results(run: Path, *names: str) -> list[Any]:
    """What cleaning.json of a finished run has under these names."""
    try:
        found = json.loads((run / "cleaning.json").read_text("utf-8"))
        return [found[name] for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{run} holds no results of hyper-cleaning ({error}); go on with: bipareto resume {run}"
        ) from error


def cleaned(run: Path) -> Iterator[tuple[str, int, Sizes, Path]]:
    """Of a finished run: every method and seed, the sizes, and the file with the points that were
    judged: x, the leaves of y, and as "preferences" those of its rows.
    """
    methods, seeds, sizes = _results(run, "summary", "seeds", "sizes")
    for name in methods:
        for seed in seeds:
            file = run / f"points-{name}-{seed}.safetensors"
            if not file.exists():
                raise InvalidInput(
                    f"{file} is missing: earlier versions kept no points; make the run again in "
                    "another folder"
                )
            yield name, seed, Sizes(**sizes), file


def drawn_again(run: Path, out: Path) -> list[str]:
    """cleaning.csv and cleaning.png of a finished run, made of its cleaning.json."""
    (rows,) = _results(run, "rows")
    _write_csv(rows, out / "cleaning.csv")
    _plot(rows, out / "cleaning.png")
    return [str(out / "cleaning.csv"), str(out / "cleaning.png")]


def _method(name: str, sizes: Sizes, changes: Mapping[str, Any] | None) -> Method | None:
    if name == "default":
        return None
    if name not in METHODS:
        known = ", ".join([*METHODS, "default"])
        raise InvalidInput(f"method {name!r} is not known here; choose one of {known}")
    return replace(METHODS[name](sizes), **(changes or {}))


def _run_one(
    file: Path | None,
    task: CleaningTask,
    name: str,
    method: Method | None,
    seed: int,
    steps: int,
    wanted: Any,
    progress: bool | None,
) -> list[dict[str, Any]]:
    began = time.perf_counter()
    chosen = _Selection(task)
    found = front(
        task.problem if method is not None else task.batches,
        task.x0,
        task.y0,
        preferences=wanted,
        method=method,
        steps=steps,
        callbacks=[chosen] if method is not None else [],
        progress=progress,
        compile="replay" if task.x0.is_cuda else False,
        record_every=max(1, steps // 50),
    )
    if found.interrupted:
        raise KeyboardInterrupt  # half of a run is not to stand among the others
    seconds = time.perf_counter() - began
    if method is None:
        chosen.x, chosen.y = found.x, found.y
    accuracy = {
        "test": task.accuracy(chosen.y, task.test),
        "last": task.accuracy(found.y, task.test),
        "retrained": task.accuracy(
            _trained_on(task, chosen.x, chosen.y, min(steps, 300), 0.3), task.test
        ),
    }
    weights = task.weights(chosen.x)
    if file is not None:
        wanted_of = [None] * len(found) if wanted is None else found.preference.tolist()
        write_tensors(file, {"x": chosen.x, **chosen.y}, {"preferences": wanted_of})
    return [
        {
            "method": name,
            "seed": seed,
            "preference": None if wanted is None else found.preference[r].tolist(),
            "equal": wanted is None or float((found.preference[r] - 0.5).abs().max()) < 1e-6,
            "objectives": found.objectives[r].tolist(),
            **{
                key: [round(100 * v, 3) for v in values[r].tolist()]
                for key, values in accuracy.items()
            },
            "clean_weight": weights["clean"][r],
            "noisy_weight": weights["noisy"][r],
            "steps": steps,
            "seconds": seconds,
            **({} if found.race is None else {"race": found.race.summary()}),
        }
        for r in range(len(found))
    ]


def _trained_on(task: CleaningTask, x: Tree, y: Tree, steps: int, step_size: float) -> Tree:
    """Networks after more gradient steps on their weighted training images alone."""
    slope = torch.func.vmap(torch.func.grad(task.problem.lower, argnums=1))
    for _ in range(steps):
        y = tree.add_scaled(y, -step_size, slope(x, y))
    return y


def _summary(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Mean and standard deviation over seeds of the test accuracies, set by set."""
    said = {}
    for key in ("test", "last", "retrained"):
        values = torch.tensor([row[key] for row in rows])
        said[key] = [round(v, 2) for v in values.mean(0).tolist()]
        said[f"{key}_spread"] = [
            round(v, 2) for v in (values.std(0) if len(values) > 1 else values[0] * 0).tolist()
        ]
    return said


def _write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        pairs = ("objectives", "test", "last", "retrained", "clean_weight", "noisy_weight")
        writer.writerow(
            ["method", "seed", "w1", "w2", *(f"{name}_{s}" for name in pairs for s in SETS)]
        )
        for row in rows:
            writer.writerow(
                [
                    row["method"],
                    row["seed"],
                    *(row["preference"] or ["", ""]),
                    *(value for name in pairs for value in row[name]),
                ]
            )


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Left: test accuracy on one set against the other; right: whom the weights trust."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    ours = [row for row in rows if row["preference"] is not None]
    if ours:
        colours: dict[str, Any] = {
            "c": [row["preference"][0] for row in ours],
            "cmap": "viridis",
            "vmin": 0,
            "vmax": 1,
        }
        dots = left.scatter(
            *zip(*(row["test"] for row in ours), strict=True),
            edgecolors="black",
            s=50,
            label="MOMEHA",
            **colours,
        )
        figure.colorbar(dots, ax=left, label=f"preference for {SETS[0]}")
    others = [row for row in rows if row["preference"] is None]
    forum: dict[str, Any] = {"edgecolors": "black", **styles(["forum"])[0]}
    if others:
        left.scatter(
            *zip(*(row["test"] for row in others), strict=True),
            s=80,
            label="FORUM, our code",
            **forum,
        )
    left.scatter(
        *REPORTED, s=160, label="FORUM, as reported at full size", **forum | {"marker": "*"}
    )
    left.set(
        xlabel=f"test accuracy on {SETS[0]} (%)",
        ylabel=f"test accuracy on {SETS[1]} (%)",
        title="Half of the training labels are wrong",
    )
    left.legend()
    left.grid(alpha=0.3)
    labels = [
        row["method"]
        + "\n"
        + ("" if row["preference"] is None else format(row["preference"][0], ".2f"))
        for row in rows
        if row["seed"] == rows[0]["seed"]
    ]
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    for key, colour, word in (
        ("clean_weight", "tab:green", "right label"),
        ("noisy_weight", "tab:red", "wrong label"),
    ):
        for s, marker in enumerate("os"):
            right.plot(
                range(len(first)),
                [row[key][s] for row in first],
                marker,
                color=colour,
                label=f"{SETS[s]}, {word}",
            )
    right.set(
        xticks=range(len(first)),
        xticklabels=labels,
        ylim=(0, 1),
        ylabel="mean weight of training images",
        title="Whom the weights trust",
    )
    right.axhline(0.5, color="0.6", linestyle=":", label="all alike")
    right.legend(fontsize="small", loc=(0.34, 0.1))
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=120, metadata={"Software": None})
