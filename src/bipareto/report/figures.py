"""Pictures of fronts: what was found over what is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bipareto.pareto import ParetoFront
from bipareto.problem import Problem
from bipareto.problems.base import KnownProblem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_comparison", "plot_front"]

_EXACT = "0.75"
#: Okabe and Ito's colours, told apart by most eyes, and markers for the rest
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def plot_front(
    front: ParetoFront,
    known: KnownProblem | None = None,
    path: str | PathLike[str] = "front.png",
    *,
    title: str | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw a front into an image file: one axis per objective up to three, parallel coordinates beyond.

    Points are coloured by the weight of the first objective.

    Args:
        front: what was found; resolve its lower level first, or points may lie below the exact front.
        known: the problem whose exact front is drawn beneath.
        path: the file; its ending decides the format.
        title: a heading; None makes one from the problem and the method.
        names: a label per objective; None takes the problem's names, else f_1, f_2, ...
    """
    # The figure is built by hand: pyplot would keep global state and look for a display.
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    points = front.objectives.detach().cpu()
    m = points.shape[1]
    mapping = ScalarMappable(cmap="viridis")
    mapping.set_clim(0, 1)
    # Methods without preferences have NaN for weights; their points share one colour.
    colours = mapping.to_rgba(front.preference[:, 0].nan_to_num(0.5).numpy())
    exact = None if known is None else known.front(401)
    labels = _labels(known or front.problem, names, m)
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes: Any = figure.add_subplot(projection="3d" if m == 3 else None)
    draw: Callable[..., None] = {1: _strip, 2: _plane, 3: _space}.get(m, _parallel)
    draw(axes, points, colours, exact, labels)
    axes.legend(loc="best" if m != 3 else "upper left")
    axes.set_title(_title(front, known) if title is None else title)
    if m > 1 and not front.preference.isnan().any():
        figure.colorbar(mapping, ax=axes, label=f"weight of {labels[0]}", shrink=0.8, pad=0.1 if m == 3 else 0.02)
    # No version or date in the file: equal fronts give equal pictures.
    figure.savefig(path, dpi=150, metadata={"Software": None} if str(path).endswith(".png") else None)


def plot_comparison(fronts: Mapping[str, Tensor], known: KnownProblem, path: str | PathLike[str] = "comparison.png") -> None:
    """Draw the fronts of several methods over the exact one: the plane for two objectives, parallel coordinates for more.

    Args:
        fronts: method name -> the objectives (R, m) of its runs with the lower level solved; in the order of the legend.
        known: the problem, whose exact front is drawn beneath.
        path: the file; its ending decides the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes: Any = figure.add_subplot()
    exact, labels = known.front(401), _labels(known, None, known.m)
    low, high = exact.amin(0), exact.amax(0)
    margin = 0.3 * (high - low).clamp_min(1e-12)
    if known.m == 2:
        axes.scatter(*exact.T.tolist(), s=4, color=_EXACT, label="exact front")
        # Methods that went astray must not shrink the front to a dot.
        axes.set_xlim(float(low[0] - margin[0]), float(high[0] + margin[0]))
        axes.set_ylim(float(low[1] - margin[1]), float(high[1] + margin[1]))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
    else:
        axes.fill_between(range(known.m), low.tolist(), high.tolist(), color=_EXACT, alpha=0.5, label="range of the exact front")
        axes.set_xticks(range(known.m), labels)
        axes.set_ylabel("value of the objective")
    for index, (name, objectives) in enumerate(fronts.items()):
        points = objectives.detach().cpu()
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        if known.m == 2:
            outside = int(((points < low - margin) | (points > high + margin) | ~points.isfinite()).any(1).sum())
            label = f"{name} ({outside} outside)" if outside else name
            axes.scatter(*points.T.tolist(), s=34, color=colour, marker=marker, alpha=0.8, label=label)
        else:
            axes.plot(range(known.m), points.T.tolist(), color=colour, marker=marker, alpha=0.7, label=[name, *[None] * (len(points) - 1)])
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(f"{known.name}: methods under an equal budget")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150, metadata={"Software": None} if str(path).endswith(".png") else None)


def _strip(axes: Axes, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]) -> None:
    """One objective: its value for every run."""
    if exact is not None:
        axes.axhline(float(exact.min()), color=_EXACT, label="exact minimum")
    axes.scatter(range(len(points)), points[:, 0].tolist(), c=colours, label="found")
    axes.set_xlabel("run")
    axes.set_ylabel(labels[0])
    axes.grid(alpha=0.3)


def _plane(axes: Axes, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]) -> None:
    _scatter(axes, points, colours, exact)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(alpha=0.3)


def _space(axes: Any, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]) -> None:
    _scatter(axes, points, colours, exact, depthshade=False)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_zlabel(labels[2])
    axes.view_init(elev=25, azim=45)  # from the side of large values the whole front is in sight


def _scatter(axes: Any, points: Tensor, colours: Any, exact: Tensor | None, **style: Any) -> None:
    if exact is not None:
        # Dots, not a line: a front may have gaps.
        axes.scatter(*exact.T.tolist(), s=4, color=_EXACT, label="exact front", **style)
    axes.scatter(*points.T.tolist(), s=36, c=colours, edgecolors="black", linewidths=0.5, label="found", **style)


def _parallel(axes: Axes, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]) -> None:
    """Many objectives: one line per run across the objectives, over the range of the exact front."""
    positions = range(len(labels))
    if exact is not None:
        axes.fill_between(positions, exact.amin(0).tolist(), exact.amax(0).tolist(), color=_EXACT, alpha=0.5, label="range of the exact front")
    for index, row in enumerate(points.tolist()):
        axes.plot(positions, row, marker="o", color=colours[index], label="found" if index == 0 else None)
    axes.set_xticks(positions, labels)
    axes.set_ylabel("value of the objective")


def _labels(problem: Problem | None, names: Sequence[str] | None, m: int) -> Sequence[str]:
    return names or (problem.names if problem is not None else None) or [rf"$f_{{{i + 1}}}$" for i in range(m)]


def _title(front: ParetoFront, known: KnownProblem | None) -> str:
    method = "front" if front.method is None else type(front.method).__name__
    return method if known is None else f"{known.name}: {method}, {len(front)} runs"
