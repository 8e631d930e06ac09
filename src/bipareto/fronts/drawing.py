"""Pictures for publication, by matplotlib: numbers in, a figure out, one function each.

Colours are Okabe and Ito's, which most eyes tell apart, with a marker of its own for each; a method
has the same ones in every picture.  A weight is shown by viridis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bipareto.fronts.styles import COLOURS, MARKERS, labels_for, save, styles
from bipareto.problem import validation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "MARKERS",
    "draw_convergence",
    "draw_front",
    "draw_fronts",
    "draw_hypervolumes",
    "draw_radar",
    "labels_for",
    "save",
    "styles",
]

_EXACT = "0.75"


def _figure(width: float = 6.4, height: float = 4.8) -> Figure:
    from bipareto.fronts.canvas import Canvas  # which loads matplotlib

    return Canvas(figsize=(width, height), layout="constrained")


def draw_front(
    objectives: Tensor,
    *,
    preference: Tensor | None = None,
    exact: Tensor | None = None,
    names: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """A front: one axis per objective up to three, parallel coordinates beyond.

    Args:
        objectives: (R, m).
        preference: (R, m); points are coloured by the weight of the first objective.  None, or NaN,
            gives one colour.
        exact: points of the exact front (n, m), drawn beneath.
        names: a label per objective.
        title: a heading.
    """
    from matplotlib.cm import ScalarMappable

    points = objectives.detach().cpu()
    m = points.shape[1]
    if exact is not None:
        exact = validation.array(exact, "exact", "points of the exact front", columns=m)
    mapping: Any = ScalarMappable(cmap="viridis")
    mapping.set_clim(0, 1)
    weights = (
        torch.full_like(points, torch.nan) if preference is None else preference.detach().cpu()
    )
    colours = mapping.to_rgba(weights[:, 0].nan_to_num(0.5).numpy())
    labels = labels_for(m, names)
    figure = _figure()
    axes: Any = figure.add_subplot(projection="3d" if m == 3 else None)
    draw: Callable[..., None] = {1: _strip, 2: _plane, 3: _space}.get(m, _parallel)
    draw(axes, points, colours, exact, labels)
    axes.legend(loc="best" if m != 3 else "upper left")
    axes.set_title(title)
    if m > 1 and not weights.isnan().any():
        figure.colorbar(
            mapping,
            ax=axes,
            label=f"weight of {labels[0]}",
            shrink=0.8,
            pad=0.1 if m == 3 else 0.02,
        )
    return figure


def draw_fronts(
    fronts: Mapping[str, Tensor],
    *,
    methods: Sequence[str] | None = None,
    exact: Tensor | None = None,
    names: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Several fronts over the exact one: the plane for two objectives, parallel coordinates for
    more.

    Args:
        fronts: name -> objectives (R, m), in the order of the legend.
        methods: that found them, for their colours; None where they are the names.
        exact, names, title: as in `draw_front`.
    """
    figure = _figure(7.2)
    axes: Any = figure.add_subplot()
    m = next(iter(fronts.values())).shape[1]
    labels = labels_for(m, names)
    seen = (
        torch.cat([points.detach().cpu().to(torch.float64) for points in fronts.values()])
        if exact is None
        else exact
    )
    seen = seen[seen.isfinite().all(1)]
    low, high = seen.amin(0), seen.amax(0)
    margin = (0.1 if exact is None else 0.3) * (high - low).clamp_min(1e-12)
    if m == 2:
        if exact is not None:
            axes.scatter(*exact.T.tolist(), s=4, color=_EXACT, label="exact front")
        # Methods that went astray must not shrink the front to a dot.
        axes.set_xlim(float(low[0] - margin[0]), float(high[0] + margin[0]))
        axes.set_ylim(float(low[1] - margin[1]), float(high[1] + margin[1]))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
    else:
        _coordinates(axes, exact, labels)
    for (name, objectives), style in zip(
        fronts.items(), styles(methods or list(fronts)), strict=True
    ):
        points = objectives.detach().cpu()
        if m == 2:
            outside = int(
                ((points < low - margin) | (points > high + margin) | ~points.isfinite())
                .any(1)
                .sum()
            )
            axes.scatter(
                *points.T.tolist(),
                s=34,
                alpha=0.8,
                label=_plain(f"{name} ({outside} outside)" if outside else name),
                **style,
            )
        else:
            axes.plot(
                range(m),
                points.T.tolist(),
                alpha=0.7,
                label=[_plain(name), *[None] * (len(points) - 1)],
                **style,
            )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    return figure


def draw_radar(
    rows: Mapping[str, Tensor], low: Tensor, high: Tensor, *, names: Sequence[str] | None = None
) -> Figure:
    """Points on one spoke per objective, the best value at the rim and the worst at the centre.

    Args:
        rows: label -> objectives (m,).
        low, high: best and worst values (m,) of the scale.
        names: as in `draw_front`.
    """
    figure = _figure(6.4, 5.2)
    axes: Any = figure.add_subplot(projection="polar")
    m = len(low)
    angles = [2 * torch.pi * i / m for i in range(m)]
    for (label, row), style in zip(rows.items(), styles(list(rows)), strict=True):
        radius = ((high - row) / (high - low).clamp_min(1e-300)).clamp(0, 1).tolist()
        axes.plot([*angles, angles[0]], [*radius, radius[0]], label=_plain(label), **style)
    axes.set_xticks(angles, labels_for(m, names))
    axes.set_rlim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "", "", "best"])
    axes.legend(loc="center left", bbox_to_anchor=(1.1, 0.5))
    return figure


def draw_convergence(
    steps: Sequence[float], curves: Mapping[str, Sequence[Sequence[float]]], *, title: str = ""
) -> Figure:
    """What was recorded on the way, one panel per quantity, one line per run; logarithmic where all
    values are > 0.

    Args:
        steps: of the records.
        curves: quantity -> one list of values per run.
        title: a heading.
    """
    figure = _figure(3.2 * min(3, len(curves)), 2.6 * -(-len(curves) // 3) + 0.4)
    grid = figure.subplots(-(-len(curves) // 3), min(3, len(curves)), squeeze=False)
    panels = list(grid.flat)
    for axes, (name, lines) in zip(panels, curves.items(), strict=False):
        for index, line in enumerate(lines):
            axes.plot(steps, line, color=COLOURS[index % len(COLOURS)], linewidth=1.0, alpha=0.8)
        # NaN stands after the end of a run.
        if all(value > 0 for line in lines for value in line if value == value):
            axes.set_yscale("log")
        axes.set_title(_plain(name))
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    figure.suptitle(title)
    return figure


def draw_hypervolumes(
    values: Mapping[str, Sequence[float]],
    *,
    methods: Sequence[str] | None = None,
    exact: float | None = None,
    title: str = "",
) -> Figure:
    """One bar per method, the mean over its seeds, with its standard deviation and the seeds
    themselves.

    Args:
        values: name -> hypervolume by seed.
        methods: as in `draw_fronts`.
        exact: that of the exact front, drawn as a line.
        title: a heading.
    """
    figure = _figure(max(4.8, 1.2 * len(values)), 4.2)
    axes: Any = figure.add_subplot()
    for index, (found, style) in enumerate(
        zip(values.values(), styles(methods or list(values)), strict=True)
    ):
        numbers = torch.tensor(found, dtype=torch.float64)
        spread = float(numbers.std()) if len(numbers) > 1 else None
        axes.bar(
            index, float(numbers.mean()), yerr=spread, capsize=5, color=style["color"], alpha=0.6
        )
        axes.scatter([index] * len(numbers), numbers.tolist(), color="black", s=12, zorder=3)
    if exact is not None:
        axes.axhline(exact, color="black", linestyle="--", linewidth=1)
        axes.text(
            0.99,
            exact,
            "exact front",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="bottom",
        )
    axes.set_xticks(range(len(values)), [_plain(name) for name in values], rotation=20, ha="right")
    axes.set_ylabel("hypervolume")
    axes.set_title(title)
    return figure


def _plain(text: str) -> str:
    """A name from a user as it is: matplotlib would read mathematics between dollar signs."""
    return text.replace("$", r"\$")


def _strip(
    axes: Axes, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]
) -> None:
    """One objective: its value for every run."""
    if exact is not None:
        axes.axhline(float(exact.min()), color=_EXACT, label="exact minimum")
    axes.scatter(range(len(points)), points[:, 0].tolist(), c=colours, label="found")
    axes.set_xlabel("run")
    axes.set_ylabel(labels[0])
    axes.grid(alpha=0.3)


def _plane(
    axes: Axes, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]
) -> None:
    _scatter(axes, points, colours, exact)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(alpha=0.3)


def _space(
    axes: Any, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]
) -> None:
    _scatter(axes, points, colours, exact, depthshade=False)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_zlabel(labels[2])
    axes.view_init(elev=25, azim=45)  # from the side of large values the whole front is in sight


def _scatter(axes: Any, points: Tensor, colours: Any, exact: Tensor | None, **style: Any) -> None:
    if exact is not None:
        # Dots, not a line: a front may have gaps.
        axes.scatter(*exact.T.tolist(), s=4, color=_EXACT, label="exact front", **style)
    axes.scatter(
        *points.T.tolist(),
        s=36,
        c=colours,
        edgecolors="black",
        linewidths=0.5,
        label="found",
        **style,
    )


def _parallel(
    axes: Axes, points: Tensor, colours: Any, exact: Tensor | None, labels: Sequence[str]
) -> None:
    """Many objectives: one line per run across them, over the range of the exact front."""
    _coordinates(axes, exact, labels)
    for index, row in enumerate(points.tolist()):
        label = "found" if index == 0 else None
        axes.plot(range(len(row)), row, marker="o", color=colours[index], label=label)


def _coordinates(axes: Axes, exact: Tensor | None, labels: Sequence[str]) -> None:
    """Parallel coordinates, empty but for the range of the exact front."""
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel("value of the objective")
    if exact is not None:
        low, high = exact.amin(0).tolist(), exact.amax(0).tolist()
        band: dict[str, Any] = {"color": _EXACT, "alpha": 0.5, "label": "range of the exact front"}
        axes.fill_between(range(len(labels)), low, high, **band)
