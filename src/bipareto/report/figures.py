"""Pictures of fronts in files: what was found over what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import torch
from torch import Tensor

from bipareto.fronts import drawing
from bipareto.fronts.measures import hypervolume
from bipareto.fronts.pareto import ParetoFront
from bipareto.problems.base import KnownProblem
from bipareto.report.curves import Curves


def plot_front(
    front: ParetoFront,
    known: KnownProblem | None = None,
    path: str | PathLike[str] = "front.png",
    *,
    title: str | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw a front into an image file: one axis per objective up to three, parallel coordinates
    beyond.

    Points are coloured by the weight of the first objective.

    Args:
        front: what was found; resolve its lower level first, or points may lie below the exact
            front.
        known: the problem whose exact front is drawn beneath.
        path: the file; its ending decides the format.
        title: a heading; None makes one from the problem and the method.
        names: a label per objective; None takes the problem's names, else f_1, f_2, ...
    """
    problem = known or front.problem
    heading = _title(front, known) if title is None else title
    exact = None if known is None else known.front(401)
    labels = names or (None if problem is None else problem.names)
    front.plot(path, exact=exact, names=labels, title=heading)


def plot_comparison(
    fronts: Mapping[str, Tensor],
    known: KnownProblem | None = None,
    path: str | PathLike[str] = "comparison.png",
    *,
    methods: Sequence[str] | None = None,
) -> None:
    """Draw the fronts of several methods over the exact one: the plane for two objectives, parallel
    coordinates for more.

    Args:
        fronts: method name -> the objectives (R, m) of its runs with the lower level solved; in the
            order of the legend.
        known: the problem, whose exact front is drawn beneath.
        path: the file; its ending decides the format.
        methods: where the fronts have other names, the methods, whose colours they take.
    """
    if known is None:
        drawing.save(drawing.draw_fronts(fronts, methods=methods), path)
    else:
        title = f"{known.name}: methods under an equal budget"
        drawing.save(
            drawing.draw_fronts(
                fronts, methods=methods, exact=known.front(401), names=known.names, title=title
            ),
            path,
        )


def plot_radar(
    front: ParetoFront,
    path: str | PathLike[str] = "radar.png",
    *,
    names: Sequence[str] | None = None,
) -> None:
    """Draw, one spoke per objective, the runs that are best in one of them and the one that is best
    in its worst.

    Args:
        front: with at least three objectives.
        path: the file; its ending decides the format.
        names: a label per objective.
    """
    f = front.objectives.detach().to("cpu", torch.float64)
    f = f[f.isfinite().all(1)]
    low, high = f.amin(0), f.amax(0)
    scaled = (f - low) / (high - low).clamp_min(1e-300)
    labels = names or [f"f{i + 1}" for i in range(f.shape[1])]
    rows = {f"best in {labels[i]}": f[int(f[:, i].argmin())] for i in range(f.shape[1])}
    rows["balanced"] = f[int(scaled.amax(1).argmin())]
    drawing.save(drawing.draw_radar(rows, low, high, names=names), path)


def plot_convergence(
    curves: Curves, path: str | PathLike[str] = "convergence.png", *, title: str = ""
) -> None:
    """Draw what was recorded on the way: each objective, the gap and the stationarity.

    Args:
        curves: see `bipareto.report.curves`.
        path: the file; its ending decides the format.
        title: a heading.
    """
    lines = {name: curves.values[q].tolist() for q, name in enumerate(curves.names)}
    drawing.save(drawing.draw_convergence(curves.steps.tolist(), lines, title=title), path)


def plot_hypervolumes(
    fronts: Mapping[str, ParetoFront],
    reference: Sequence[float],
    path: str | PathLike[str] = "hypervolume.png",
    *,
    methods: Sequence[str] | None = None,
    exact: float | None = None,
) -> None:
    """Draw the hypervolume of several fronts: mean over seeds, standard deviation, and the seeds.

    Args:
        fronts: name -> front with the lower level solved.
        reference: (m,), the same for all.
        path: the file; its ending decides the format.
        methods: as in `plot_comparison`.
        exact: the hypervolume of the exact front.
    """
    values = {
        name: [
            hypervolume(front.objectives[front.seed == s], reference) for s in front.seed.unique()
        ]
        for name, front in fronts.items()
    }
    title = "hypervolume up to (" + ", ".join(f"{value:.4g}" for value in reference) + ")"
    drawing.save(drawing.draw_hypervolumes(values, methods=methods, exact=exact, title=title), path)


def _title(front: ParetoFront, known: KnownProblem | None) -> str:
    method = "front" if front.method is None else type(front.method).__name__
    return method if known is None else f"{known.name}: {method}, {len(front)} runs"
