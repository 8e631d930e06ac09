"""The demo: a front of digits, its table, picture and words."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.fronts.front import front
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import MOMEHA
from bipareto.methods.parts import envelope
from bipareto.methods.parts.preferences import grid
from bipareto.problem import tree
from bipareto.problem.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from bipareto_experiments.digits import (
    DOMAINS,
    HIDDEN,
    NEWTON_STEPS,
    NOISE,
    REFERENCE,
    STEPS,
    SUPPRESSED,
    TOLERANCE,
    TRAIN,
    DigitsTask,
    digits_problem,
)


def run_demo(
    out: Path,
    *,
    steps: int | None = None,
    preferences: int = 10,
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Trace the front of `digits_problem(seed)`, write `out`/front.csv and `out`/front.png, and say
    what they show.

    All objectives and accuracies are those of the network after its training was finished for the
    found weights x (from where the method left it, to ||grad_y g|| <= 1e-4), not of the network
    that the method carries along.

    Args:
        out: a folder; made if it is missing.
        steps: iterations of the method, None for `STEPS`.
        preferences: points of the front, at least 2.
        seed: decides split, noise and first network.
        quiet: no progress bar and no words on the terminal.

    Returns:
        what was found, ready for JSON: `front` (a dict per preference), `baseline` (the same with
            equal weights), `hypervolume`
        up to `reference`, `rank_correlation` of w_1 with f_1 and f_2, `words` and more.
    """
    if preferences < 2:
        raise InvalidInput(f"preferences = {preferences}; a front needs at least 2 points")
    steps = STEPS if steps is None else steps
    began = time.perf_counter()
    task = digits_problem(seed)
    method = MOMEHA.tuned(task.problem, task.x0, task.y0, steps=steps)
    raw = front(
        task.problem,
        task.x0,
        task.y0,
        preferences=grid(2, preferences),
        seeds=[seed],
        method=method,
        steps=steps,
        progress=False if quiet else None,
    )
    if raw.interrupted:
        raise KeyboardInterrupt  # the words below are about runs that came to their end
    found = raw.resolve_lower(tol=TOLERANCE, max_iter=NEWTON_STEPS)
    points = _points(task, found)
    baseline = _baseline(task, method)
    summary: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "method": repr(method),
        "domains": list(DOMAINS),
        "noise": NOISE,
        "front": points,
        "baseline": baseline,
        "hypervolume": found.hypervolume(REFERENCE),
        "reference": list(REFERENCE),
        "nondominated": len(found.nondominated()),
        "rank_correlation": [
            _rank_correlation(found.preference[:, 0], found.objectives[:, i]) for i in range(2)
        ],
        "better_than_baseline": sum(
            all(f < b for f, b in zip(p["objectives"], baseline["objectives"], strict=True))
            for p in points
        ),
        "lower_residual": float(found.lower_residual.max())
        if found.lower_residual is not None
        else None,
    }
    summary["words"] = _words(summary)
    out.mkdir(parents=True, exist_ok=True)
    _write_csv(points, seed, out / "front.csv")
    _plot(points, baseline, out / "front.png")
    summary["files"] = [str(out / "front.csv"), str(out / "front.png")]
    summary["seconds"] = time.perf_counter() - began
    if not quiet:
        _say(summary)
    return summary


def _points(task: DigitsTask, found: ParetoFront) -> list[dict[str, Any]]:
    """One dict per run: preference, objectives, accuracy and mean weights (lists over domains), and
    shares of suppressed samples.
    """
    stacked = {
        "preference": found.preference,
        "objectives": found.objectives,
        **_judge(task, found.x, found.y),
    }
    return [
        {name: values[r].tolist() for name, values in stacked.items()} for r in range(len(found))
    ]


def _judge(task: DigitsTask, x: Tensor, y: Tree) -> dict[str, Tensor]:
    """What the objectives do not show, stacked over runs."""
    return {
        "accuracy": task.accuracy(y),
        "clean_weight": task.mean_weight(x, noisy=False),
        "noisy_weight": task.mean_weight(x, noisy=True),
        "noisy_suppressed": task.suppressed(x, noisy=True),
        "clean_suppressed": task.suppressed(x, noisy=False),
    }


def _baseline(task: DigitsTask, method: MOMEHA) -> dict[str, Any]:
    """The network trained on all samples alike: same start and warm-up, same tolerance, x = x0."""
    x = task.x0[None]
    begun = tree.expand(method.prepare(task.problem, task.x0, task.y0).y, 1)
    y = envelope.solve_lower(task.problem, x, begun, tol=TOLERANCE, max_iter=NEWTON_STEPS).y
    with torch.no_grad():
        objectives = task.problem.upper(task.x0, tree.select(y, 0))
    return {
        "objectives": objectives.tolist(),
        **{name: values[0].tolist() for name, values in _judge(task, x, y).items()},
    }


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two vectors without ties."""
    first, second = (v.argsort().argsort() for v in (a, b))
    n = len(a)
    return 1 - 6 * int((first - second).square().sum()) / (n * (n * n - 1))


def _words(summary: dict[str, Any]) -> str:
    """The picture in a few lines; every statement is computed."""
    points, baseline = summary["front"], summary["baseline"]
    first, last = points[0], points[-1]
    even = min(points, key=lambda p: abs(p["preference"][0] - p["preference"][1]))
    better, count = summary["better_than_baseline"], len(points)
    rank = summary["rank_correlation"]
    said = [
        f"One network with {HIDDEN} hidden units learns from {2 * TRAIN} handwritten digits, half "
        f"of them {DOMAINS[0]} and half {DOMAINS[1]}; "
        f"{NOISE:.0%} of the labels are wrong.",
        f"Trained on all samples alike, it reads {_accuracies(baseline)} of the test digits "
        "correctly.",
        f"With a learned weight for each sample, {'all' if better == count else better or 'none'} "
        f"of the {count} points of the front beat that "
        "in both validation losses.",
    ]
    if rank[0] < -0.7 and rank[1] > 0.7:
        said.append(
            "The points trade one domain for the other: from the strongest preference for "
            f"{DOMAINS[0]} digits (w_1 = {first['preference'][0]:.2f}) "
            f"to the weakest ({last['preference'][0]:.2f}), their loss {_change(first, last, 0)} "
            f"and that of {DOMAINS[1]} digits {_change(first, last, 1)} "
            f"(rank correlations with w_1: {rank[0]:.2f} and {rank[1]:.2f}); "
            f"test accuracy goes from {_accuracies(first)} to {_accuracies(last)}, "
            f"and the most even preference gives {_accuracies(even)}."
        )
    else:
        said.append(
            "The preferences hardly order the points (rank correlations of w_1 with the losses "
            f"{rank[0]:.2f} and {rank[1]:.2f}): no trade-off shows."
        )
    clean, noisy = (sum(even[name]) / 2 for name in ("clean_weight", "noisy_weight"))
    said.append(
        f"At the most even preference, samples with right labels weigh {clean:.2f} on average and "
        f"those with wrong labels {noisy:.2f}: "
        f"{even['noisy_suppressed']:.0%} of the wrong labels are suppressed (weight below "
        f"{SUPPRESSED}; all start at 0.5), "
        f"and {even['clean_suppressed']:.0%} of the right ones."
    )
    return "\n".join(f"- {statement}" for statement in said)


def _accuracies(point: dict[str, Any]) -> str:
    return " and ".join(
        f"{value:.0%} ({name})" for name, value in zip(DOMAINS, point["accuracy"], strict=True)
    )


def _change(first: dict[str, Any], last: dict[str, Any], i: int) -> str:
    a, b = first["objectives"][i], last["objectives"][i]
    return f"{'rises' if b > a else 'falls'} from {a:.2f} to {b:.2f}"


def _say(summary: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(summary["words"], markup=False)
    console.print(
        f"Written: {', '.join(summary['files'])} ({summary['seconds']:.0f} s)",
        markup=False,
        soft_wrap=True,
    )


def _write_csv(points: list[dict[str, Any]], seed: int, path: Path) -> None:
    """One row per preference: run, seed, w, f, test accuracy, mean weights per domain, shares of
    suppressed samples.
    """
    columns = {
        "w": "preference",
        "f": "objectives",
        "accuracy": "accuracy",
        "clean_weight": "clean_weight",
        "noisy_weight": "noisy_weight",
    }
    shares = ["noisy_suppressed", "clean_suppressed"]
    # csv writes floats by repr, the shortest text that reads back as the same float.
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["run", "seed", *(f"{name}{i}" for name in columns for i in (1, 2)), *shares]
        )
        for run, point in enumerate(points):
            writer.writerow(
                [
                    run,
                    seed,
                    *(value for key in columns.values() for value in point[key]),
                    *(point[name] for name in shares),
                ]
            )


def _plot(points: list[dict[str, Any]], baseline: dict[str, Any], path: Path) -> None:
    """Three panels: the front, what it means on test images, and whom the weights trust."""
    # The figure is built by hand: pyplot would keep global state and look for a display.
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(14, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.12))
    left, middle, right = figure.subplots(1, 3)
    dots = _plane(left, points, baseline, "objectives")
    left.set(title="The front: losses on clean validation digits\n(lower left is better)")
    left.set(
        xlabel=f"validation loss, {DOMAINS[0]} digits",
        ylabel=f"validation loss, {DOMAINS[1]} digits",
    )
    _plane(middle, points, baseline, "accuracy")
    middle.set(title="The same networks on test digits\n(upper right is better)")
    middle.set(
        xlabel=f"test accuracy, {DOMAINS[0]} digits", ylabel=f"test accuracy, {DOMAINS[1]} digits"
    )
    figure.colorbar(
        dots, ax=[left, middle], label=rf"preference $w_1$ for {DOMAINS[0]} digits", pad=0.01
    )

    preference = [p["preference"][0] for p in points]
    for d, (domain, colour) in enumerate(zip(DOMAINS, ("tab:blue", "tab:orange"), strict=True)):
        for key, label, style in (
            ("clean_weight", "right", "o-"),
            ("noisy_weight", "wrong", "x--"),
        ):
            right.plot(
                preference,
                [p[key][d] for p in points],
                style,
                color=colour,
                label=f"{domain}, {label} label",
            )
    right.axhline(0.5, color="0.6", linestyle=":", label="all samples alike")
    right.set(
        title=f"Whom the weights trust\n({NOISE:.0%} of the training labels are wrong)", ylim=(0, 1)
    )
    right.set(
        xlabel=rf"preference $w_1$ for {DOMAINS[0]} digits",
        ylabel="mean weight of training samples",
    )
    right.legend(fontsize="small")
    right.grid(alpha=0.3)
    # No version or date in the file: equal fronts give equal pictures.
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _plane(axes: Axes, points: list[dict[str, Any]], baseline: dict[str, Any], key: str) -> Any:
    """Points of one quantity, domain against domain, coloured by preference, with the baseline;
    returns the coloured dots.
    """
    first, second = zip(*(p[key] for p in points), strict=True)
    axes.plot(first, second, color="0.75", zorder=1)
    colours: dict[str, Any] = {
        "c": [p["preference"][0] for p in points],
        "cmap": "viridis",
        "vmin": 0,
        "vmax": 1,
    }
    dots = axes.scatter(
        first,
        second,
        s=60,
        edgecolors="black",
        zorder=2,
        label="learned weights, by preference",
        **colours,
    )
    a, b = baseline[key]
    axes.scatter(
        a,
        b,
        marker="X",
        s=110,
        color="tab:red",
        edgecolors="black",
        zorder=3,
        label="all samples alike",
    )
    axes.legend()
    axes.grid(alpha=0.3)
    return dots
