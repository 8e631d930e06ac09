"""Fronts that are looked into with the pointer, by Plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput

__all__ = ["interactive_front"]


def interactive_front(objectives: Tensor, preference: Tensor, names: Sequence[str]) -> Any:
    """A Plotly figure: a plane or a space of two or three objectives, parallel coordinates else.

    Args:
        objectives: (R, m); runs that are not finite are left out.
        preference: (R, m), NaN where there is none.
        names: a label per objective.
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise InvalidInput(
            "an interactive front needs plotly, which is not installed; get it with: pip install "
            "plotly (front.plot draws without it)"
        ) from error
    finite = torch.isfinite(objectives).all(1).cpu()
    f = objectives.detach().cpu()[finite].T.tolist()
    w = preference.cpu()[finite].tolist()
    colour = [row[0] if row[0] == row[0] else 0.5 for row in w]
    scale = {"color": colour, "colorscale": "Viridis", "cmin": 0, "cmax": 1}
    axes = {axis: {"title": {"text": name}} for axis, name in zip("xyz", names, strict=False)}
    layout = {"height": 420, "margin": {"l": 50, "r": 10, "t": 30, "b": 45}}
    if len(f) not in (2, 3):
        dimensions = [{"label": n, "values": v} for n, v in zip(names, f, strict=True)]
        return go.Figure(go.Parcoords(line=scale, dimensions=dimensions), layout)
    runs = finite.nonzero().flatten().tolist()
    text = [
        f"run {run}<br>preference " + ", ".join(f"{v:.3g}" for v in row)
        for run, row in zip(runs, w, strict=True)
    ]
    points = {"mode": "markers", "marker": scale | {"size": 9 if len(f) == 2 else 4}, "text": text}
    if len(f) == 2:
        layout |= {f"{axis}axis": value for axis, value in axes.items()}
        return go.Figure(go.Scatter(x=f[0], y=f[1], **points), layout)
    layout["scene"] = {f"{axis}axis": value for axis, value in axes.items()}
    return go.Figure(go.Scatter3d(x=f[0], y=f[1], z=f[2], **points), layout)
