"""Pictures of fronts: what was found over what is known."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bipareto.pareto import ParetoFront
from bipareto.problems.base import KnownProblem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_front"]

_EXACT = {"color": "0.75", "label": "exact front"}
_FOUND = "found, coloured by the first weight"


def plot_front(
    front: ParetoFront,
    known: KnownProblem | None = None,
    path: str | PathLike[str] = "front.png",
    *,
    title: str | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw a front into an image file: one axis per objective up to three, parallel coordinates beyond.

    Args:
        front: what was found; resolve its lower level first, or points may lie below the exact front.
        known: the problem whose exact front is drawn beneath.
        path: the file; its ending decides the format.
        title: a heading; None makes one from the problem and the method.
        names: a label per objective; None takes the problem's names, else f_1, f_2, ...
    """
    # The figure is built by hand: pyplot would keep global state and look for a display.
    from matplotlib.figure import Figure

    points = front.objectives.detach().cpu()
    m = points.shape[1]
    weights = front.preference[:, 0].nan_to_num(0.5).tolist()
    exact = None if known is None else known.front(401)
    labels = _labels(front, known, names, m)
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    if m == 3:
        axes: Any = figure.add_subplot(projection="3d")
        _scatter(axes, points, weights, exact, labels)
        axes.set_zlabel(labels[2])
    else:
        axes = figure.add_subplot()
        draw = {1: _strip, 2: _scatter}.get(m, _parallel)
        draw(axes, points, weights, exact, labels)
        axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(_title(front, known) if title is None else title)
    # No version or date in the file: equal fronts give equal pictures.
    figure.savefig(path, dpi=150, metadata={"Software": None} if str(path).endswith(".png") else None)


def _scatter(axes: Any, points: Tensor, weights: list[float], exact: Tensor | None, labels: Sequence[str]) -> None:
    if exact is not None:
        # Dots, not a line: a front may have gaps.
        axes.scatter(*exact.T.tolist(), s=4, **_EXACT)
    axes.scatter(*points.T.tolist(), c=weights, s=36, cmap="viridis", vmin=0, vmax=1, edgecolors="black", linewidths=0.5, label=_FOUND)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])


def _strip(axes: Axes, points: Tensor, weights: list[float], exact: Tensor | None, labels: Sequence[str]) -> None:
    """One objective: its value for every run."""
    if exact is not None:
        axes.axhline(float(exact.min()), **(_EXACT | {"label": "exact minimum"}))
    axes.plot(range(len(points)), points[:, 0].tolist(), "o", label="found")
    axes.set_xlabel("run")
    axes.set_ylabel(labels[0])


def _parallel(axes: Axes, points: Tensor, weights: list[float], exact: Tensor | None, labels: Sequence[str]) -> None:
    """Many objectives: one line per run across the objectives, over the range of the exact front."""
    from matplotlib import colormaps

    positions = range(len(labels))
    if exact is not None:
        axes.fill_between(positions, exact.amin(0).tolist(), exact.amax(0).tolist(), **(_EXACT | {"label": "range of the exact front"}), alpha=0.5)
    for index, (row, weight) in enumerate(zip(points.tolist(), weights, strict=True)):
        axes.plot(positions, row, marker="o", color=colormaps["viridis"](weight), label=_FOUND if index == 0 else None)
    axes.set_xticks(positions, labels)
    axes.set_ylabel("objective value")


def _labels(front: ParetoFront, known: KnownProblem | None, names: Sequence[str] | None, m: int) -> Sequence[str]:
    problem = known or front.problem
    return names or (problem.names if problem is not None else None) or [rf"$f_{{{i + 1}}}$" for i in range(m)]


def _title(front: ParetoFront, known: KnownProblem | None) -> str:
    method = "front" if front.method is None else type(front.method).__name__
    return method if known is None else f"{known.name}: {method}, {len(front)} runs"
