"""Fronts as tables: for pandas, in the cells of notebooks, and as CSV files that carry every digit
and no times, so that equal runs give equal files.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput, installed
from bipareto.problem import Problem, tree, validation
from bipareto.problem.notebook import frame, html_table, in_notebook, text_table
from bipareto.problem.tree import Tree
from bipareto.run.results import Run

__all__ = ["Tabular", "interactive_front", "write_csv", "write_metrics"]

#: the columns of a run folder's front.csv; the last two are there with `test_data` only
_KEPT = re.compile(r"run|seed|(w|f|own|test)\d+")


class Tabular:
    """What a front says to other tools: a DataFrame, a CSV file, tensors, a notebook's cell."""

    x: Tree
    y: Tree
    objectives: Tensor
    preference: Tensor
    seed: Tensor
    reason: tuple[str, ...]
    problem: Problem | None
    own: Tensor | None
    test: Tensor | None
    lower_residual: Tensor | None
    remaining: Tensor | None
    unseen: str | None
    run: Run | None

    def columns(self) -> dict[str, list[Any]]:
        """Column -> one value per run: run, seed, the preference w1..wm, the objectives f1..fm, and
        what else is known of each (test1..testm, and own1..ownm at the y that the run returned
        where y was solved again, both with `test_data`; lower_residual, remaining, reason).
        """
        own = None if self.test is None else self.own
        table: dict[str, list[Any]] = {
            "run": list(range(len(self.reason))),
            "seed": self.seed.tolist(),
        }
        measured = (self.preference, self.objectives, own, self.test)
        for name, values in zip(("w", "f", "own", "test"), measured, strict=True):
            for i, column in enumerate(() if values is None else values.detach().T.tolist(), 1):
                table[f"{name}{i}"] = column
        for name in ("lower_residual", "remaining"):
            if (values := getattr(self, name)) is not None:
                table[name] = values.tolist()
        return table | {"reason": list(self.reason)}

    def to_dataframe(self) -> Any:
        """The front as a pandas DataFrame, one row per run; `columns` says which columns."""
        return frame(self.columns())

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the table of `to_dataframe` with every digit; pandas is not needed."""
        table = self.columns()
        file = validation.path(path, "front.csv")
        try:
            _write(file, list(table), zip(*table.values(), strict=True))
        except OSError as error:
            raise InvalidInput(
                f"the front cannot be written to {file} ({error.strerror}); give a file in a "
                "folder that exists"
            ) from error

    def to_torch(self) -> dict[str, Any]:
        """x and y (trees), objectives, preference and seed as plain tensors, R first: what
        `torch.save` writes and `torch.load(..., weights_only=True)` reads.
        """
        names = ("x", "y", "objectives", "preference", "seed")
        return {name: tree.map_(Tensor.detach, getattr(self, name)) for name in names}

    def _labels(self) -> list[str]:
        m = self.objectives.shape[1]
        names = None if self.problem is None else self.problem.names
        return list(names or [f"f{i + 1}" for i in range(m)])

    def __repr__(self) -> str:
        return self._as(text_table)

    def _repr_html_(self) -> str:
        return self._as(html_table)

    def _as(self, form: Callable[..., str]) -> str:
        table = self.columns()
        if self.preference.isnan().all():
            table = {name: values for name, values in table.items() if name[0] != "w"}
        labels = {f"f{i}": name for i, name in enumerate(self._labels(), 1)}
        header = [labels.get(name, name) for name in table]
        caption = f"Pareto front: {len(self.reason)} runs"
        if self.unseen:
            caption += f"; what is left to gain was not looked at, because {self.unseen}"
        return form(zip(*table.values(), strict=True), header, caption)

    def _ipython_display_(self) -> None:
        """A picture to look into, where Plotly is installed, above the table."""
        from IPython.display import HTML, display

        if in_notebook() and find_spec("plotly") is not None and len(self.reason):
            display(self.interactive())
        display(HTML(self._repr_html_()) if in_notebook() else self.__repr__())

    def interactive(self) -> Any:
        """A Plotly figure of the front: points coloured by the weight of the first objective, which
        say their preference under the pointer; parallel coordinates beyond three objectives.
        """
        return interactive_front(self.objectives, self.preference, self._labels())


def write_csv(front: Tabular, path: str | PathLike[str], distance: Tensor | None = None) -> None:
    """One row per run: run, seed, w1..wm, f1..fm, and the distance (R,) to a known front where
    there is one; where there is `test_data`, also own1..ownm at the y that the run returned (where
    y was solved again) and test1..testm on it.

    Objectives are written as the front holds them; call `resolve_lower` first.
    """
    shown = {name: values for name, values in front.columns().items() if _KEPT.fullmatch(name)}
    if distance is not None:
        shown["distance"] = distance.tolist()
    _write(path, list(shown), zip(*shown.values(), strict=True))


def write_metrics(front: Tabular, path: str | PathLike[str]) -> None:
    """What a front's runs recorded on the way, one line of JSON per record, as sweeps write it;
    nothing for a front without runs.
    """
    if front.run is None:
        return
    history = {name: values.tolist() for name, values in front.run.history.items()}
    with Path(path).open("w", encoding="utf-8") as file:
        rows = (dict(zip(history, row, strict=True)) for row in zip(*history.values(), strict=True))
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _write(path: str | PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    # csv writes floats by repr, the shortest text that reads back as the same float.
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def interactive_front(objectives: Tensor, preference: Tensor, names: Sequence[str]) -> Any:
    """A Plotly figure: a plane or a space of two or three objectives, parallel coordinates else.

    Args:
        objectives: (R, m); runs that are not finite are left out.
        preference: (R, m), NaN where there is none.
        names: a label per objective.
    """
    go = installed(
        "plotly.graph_objects",
        "an interactive front needs plotly, which is not installed; get it with: pip install "
        "plotly (front.plot draws without it)",
    )
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
