"""Pictures of a comparison: true accuracy and FLOPs, hypervolumes, the plane of objectives, curves,
exploration, how supernets rank cells.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bipareto.errors import InvalidInput
from bipareto.fronts.drawing import COLOURS, MARKERS, save, styles
from bipareto_experiments.nas.judging import points_of, reference_point, summary
from bipareto_experiments.nas.known import KnownCells
from bipareto_experiments.nas.settings import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Records = list[dict[str, Any]]
#: The paper plots 1 - loss, with its second objective scaled by 0.67 and its third by 2.
_SCALES = {"loss": 1.0, "flops": 0.67, "skip": 2.0, "pooling": 1.0}
_LABELS = {
    "loss": "validation loss",
    "flops": "FLOPs (share of the most expensive)",
    "skip": "skip density",
    "pooling": "pooling density",
}
#: Preferences that the paper leaves out of its exploration plots.
_EXTREME = 0.9


def draw(result: dict[str, Any], known: KnownCells | None, folder: Path, prefix: str) -> list[str]:
    """Write every figure that the records allow; returns the names of the files.  Trials of `tune`
    have tables only.
    """
    if not _methods(result["records"]):
        return []
    painters: dict[str, Callable[[dict[str, Any], KnownCells | None], Figure | None]] = {
        "front": _front,
        "hypervolume": _hypervolume,
        "plane": _plane,
        "curves": _curves,
        "exploration": _exploration,
        "ranking": _ranking,
    }
    written = []
    for kind, painter in painters.items():
        figure = painter(result, known)
        if figure is not None:
            save(figure, folder / f"{prefix}-{kind}.png")
            written.append(f"{prefix}-{kind}.png")
    if not written:
        raise InvalidInput(
            "these records make none of the figures; run: bipareto experiment nas compare"
        )
    return written


def _figure(width: float = 7.2, height: float = 4.8, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)
    return figure, list(axes[0])


def _methods(records: Records) -> list[str]:
    present = {r["method"] for r in records}
    return [name for name in METHODS if name in present]


def _front(result: dict[str, Any], known: KnownCells | None) -> Figure | None:
    """Found cells over all cells and the true front."""
    records = [r for r in result["records"] if "number" in r]
    if known is None or not records:
        return None
    figure, (axis,) = _figure(8.0, 5.2)
    everything, best = (
        points_of(known, torch.arange(len(known.choices))),
        points_of(known, known.front()),
    )
    axis.scatter(
        everything[:, 1].tolist(),
        (100 - everything[:, 0]).tolist(),
        s=2,
        color="0.85",
        rasterized=True,
        label="all 15,625 cells",
    )
    axis.plot(
        best[:, 1].tolist(),
        (100 - best[:, 0]).tolist(),
        color="0.4",
        linewidth=1.2,
        drawstyle="steps-post",
        label="true front",
    )
    methods = _methods(records)
    for name, style in zip(methods, styles(methods), strict=True):
        found = points_of(known, [r["number"] for r in records if r["method"] == name])
        axis.scatter(
            found[:, 1].tolist(),
            (100 - found[:, 0]).tolist(),
            s=42,
            edgecolors="black",
            linewidths=0.4,
            label=name,
            **style,
        )
    axis.set(
        xlabel="MFLOPs of the trained network",
        ylabel="test accuracy on CIFAR-10 in %",
        title="Architectures found, looked up",
        ylim=(70, 95.5),
    )
    below = sum(r["accuracy"]["cifar10"] < 70 for r in records)
    if below:
        axis.text(
            0.99,
            0.02,
            f"{below} found cells lie below 70 %",
            transform=axis.transAxes,
            ha="right",
            fontsize="small",
        )
    axis.grid(alpha=0.3)
    axis.legend(loc="lower center", fontsize="small", ncols=2)
    return figure


def _hypervolume(result: dict[str, Any], known: KnownCells | None) -> Figure | None:
    """Bars by method, with random draws and the true front."""
    if known is None or not any("number" in r for r in result["records"]):
        return None
    said = summary(result, known)
    titles = {
        "chance": "below chance",
        "median": "below the median cell",
        "linked": 'below the median cell, "none" not taken',
    }
    figure, axes = _figure(13.2, 4.4, 3)
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        names = _methods(result["records"])
        for place, (name, style) in enumerate(zip(names, styles(names), strict=True)):
            own = said["methods"][name]["hypervolume"][key]
            axis.bar(
                place,
                own["mean"],
                yerr=own["error"] or 0.0,
                capsize=4,
                color=style["color"],
                alpha=0.85,
            )
            axis.scatter(
                [place] * len(own["by_seed"]), own["by_seed"], s=14, color="black", zorder=3
            )
        random = said["random"][key]
        axis.axhspan(random["low"], random["high"], color="0.9", zorder=0)
        axis.axhline(
            random["mean"],
            color="0.5",
            label=f"{said['random']['cells']} random cells: mean, 5 to 95 %",
        )
        axis.axhline(1.0, color="black", linestyle=":", label="true front")
        axis.set_xticks(range(len(names)), names, rotation=20)
        axis.set(ylabel="share of the true front's hypervolume", title=title, ylim=(0, 1.05))
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small"
    )
    return figure


def _plane(result: dict[str, Any], known: KnownCells | None) -> Figure | None:
    """Both objectives of the supernets at the end of every search, on unseen images where they were
    looked at, and of each method's seeds together the front.
    """
    names, records = result["objectives"], result["records"]
    if len(names) != 2:
        return None
    import moocore

    corner = reference_point(names, result["data"]["classes"])
    figure, (axis,) = _figure(8.0, 5.2)
    methods, outside = _methods(records), 0
    unseen = all("test" in r for r in records)
    for name, style in zip(methods, styles(methods), strict=True):
        own = [r for r in records if r["method"] == name]
        points = torch.tensor(
            [r["test"]["mixture"] if unseen else r["objectives"] for r in own], dtype=torch.float64
        )
        inside = points[(points < torch.tensor(corner)).all(1)]
        outside += len(points) - len(inside)
        axis.scatter(
            inside[:, 0].tolist(),
            inside[:, 1].tolist(),
            s=42,
            edgecolors="black",
            linewidths=0.4,
            label=name,
            **style,
        )
        front = (
            inside[torch.as_tensor(moocore.is_nondominated(inside.numpy()))]
            if len(inside)
            else inside
        )
        axis.plot(
            *front[front[:, 0].argsort()].T.tolist(),
            drawstyle="steps-post",
            color=style["color"],
            linewidth=1.0,
        )
    beyond = f"; {outside} ended beyond that point" if outside else ""
    title = f"Objectives of the supernets, below ({corner[0]:.3g}, {corner[1]:.3g}){beyond}"
    labels = [_LABELS[name] for name in names]
    if unseen:
        labels = [label.replace("validation", "test") for label in labels]
    axis.set(xlabel=labels[0], ylabel=labels[1], title=title)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return figure


def _curves(result: dict[str, Any], known: KnownCells | None) -> Figure | None:
    """For each objective its value on the way, by method: mean over seeds and over the preferences
    for it, the extreme one left out; where none is for it, the one that weighs it most.
    """
    names, records = (
        result["objectives"],
        [r for r in result["records"] if not r["preference"] or max(r["preference"]) < _EXTREME],
    )
    if not records:
        return None
    methods = _methods(records)
    figure, axes = _figure(4.4 * len(names), 4.0, len(names))
    for i, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for method, style in zip(methods, styles(methods), strict=True):
            own = [r for r in records if r["method"] == method]
            if own[0]["preference"]:
                own = _preferring(own, i)
            least = min((len(r["curve"]["step"]) for r in own), default=0)
            if not least:
                continue
            values = torch.tensor(
                [[row[i] for row in r["curve"]["objectives"][:least]] for r in own],
                dtype=torch.float64,
            ).mean(0)
            steps = own[0]["curve"]["step"][:least]
            # Each method by its own number of steps: DARTS makes more of them in the same time.
            axis.plot(
                [s / steps[-1] for s in steps], values.tolist(), markersize=3, label=method, **style
            )
        axis.set(
            xlabel="share of the search",
            ylabel=_LABELS[name],
            title=f"where {name} is preferred most",
        )
        axis.grid(alpha=0.3)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small"
    )
    return figure


def _preferring(records: Records, i: int) -> Records:
    """Those whose preference is for objective i, or else weighs it most."""
    found = [
        r for r in records if r["preference"][i] == max(r["preference"]) > min(r["preference"])
    ]
    most = max(r["preference"][i] for r in records)
    return found or [r for r in records if r["preference"][i] == most]


def _exploration(result: dict[str, Any], known: KnownCells | None) -> Figure | None:
    """The objectives that each preference ends at, as 1 - scaled loss: the plane for two, parallel
    coordinates for more.

    Each coordinate has its own range, from the worst to the best of all searches shown.
    """
    names = result["objectives"]
    records = [r for r in result["records"] if r["preference"] and max(r["preference"]) < _EXTREME]
    if not records or len(names) < 2:
        return None
    methods = _methods(records)
    width = max(4.6 * len(methods), 7.0)
    figure, axes = _figure(width, 4.6, len(methods))
    labels = [f"1 - {_SCALES[n]:g} {n}" if _SCALES[n] != 1 else f"1 - {n}" for n in names]
    scales = torch.tensor([_SCALES[n] for n in names], dtype=torch.float64)
    everything = 1 - scales * torch.tensor([r["objectives"] for r in records], dtype=torch.float64)
    worst, best = everything.amin(0), everything.amax(0)
    for axis, method in zip(axes, methods, strict=True):
        own = [r for r in records if r["method"] == method]
        for k, preference in enumerate(dict.fromkeys(tuple(r["preference"]) for r in own)):
            rows = torch.tensor(
                [r["objectives"] for r in own if tuple(r["preference"]) == preference],
                dtype=torch.float64,
            )
            shown = 1 - scales * rows
            style: dict[str, Any] = {
                "color": COLOURS[k % len(COLOURS)],
                "marker": MARKERS[k % len(MARKERS)],
            }
            label = ", ".join(f"{w:.2f}" for w in preference)
            if len(names) == 2:
                axis.scatter(shown[:, 0].tolist(), shown[:, 1].tolist(), label=label, **style)
            else:
                height = (shown - worst) / (best - worst).clamp(min=1e-12)
                axis.plot(range(len(names)), height.mean(0).tolist(), label=label, **style)
                axis.scatter(
                    list(range(len(names))) * len(height),
                    height.flatten().tolist(),
                    s=8,
                    alpha=0.5,
                    color=style["color"],
                )
        axis.set_title(method)
        axis.grid(alpha=0.3)
        if len(names) == 2:
            axis.set(xlabel=labels[0], ylabel=labels[1])
        else:
            axis.set_xticks(
                range(len(names)),
                [f"{low:.3f}\n{label}" for low, label in zip(worst.tolist(), labels, strict=True)],
            )
            top = axis.secondary_xaxis("top")
            top.set_xticks(range(len(names)), [f"{high:.3f}" for high in best.tolist()])
            axis.set_yticks([0, 1], ["worst", "best"])
    columns = int(width // (0.5 + 0.6 * len(names)))
    figure.legend(
        *axes[-1].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        fontsize="small",
        title="preference",
    )
    return figure


def _ranking(result: dict[str, Any], known: KnownCells | None) -> Figure | None:
    """Minus the supernet's loss of random cells against their known accuracy, one supernet of each
    method.
    """
    if known is None or not result["rankings"]:
        return None
    methods = _methods(result["rankings"])
    figure, axes = _figure(3.6 * len(methods), 3.6, len(methods))
    from scipy.stats import spearmanr

    for axis, method, style in zip(axes, methods, styles(methods), strict=True):
        ranking = next(r for r in result["rankings"] if r["method"] == method)
        accuracy = known.accuracies["cifar10"][torch.tensor(ranking["cells"])]
        score = [-loss for loss in ranking["loss"]]
        axis.scatter(score, accuracy.tolist(), s=10, color=style["color"])
        correlation = spearmanr(score, accuracy.numpy()).statistic
        axis.set(
            xlabel="minus the loss with the supernet's weights",
            ylabel="known accuracy in %",
            title=f"{method}: Spearman {correlation:.2f}",
        )
        axis.grid(alpha=0.3)
    return figure
