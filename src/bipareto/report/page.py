"""One HTML page with everything in it: the data as JSON, Plotly, the styles and the program.

Nothing that comes from a user is written as HTML.  The data stands in a script element of type
application/json with every "<" escaped, and the program puts texts into the page as text.
"""

from __future__ import annotations

import html
import json
import math
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bipareto.certificate.certificate import certify
from bipareto.errors import BiparetoError, BiparetoWarning, InvalidInput, installed
from bipareto.fronts.drawing import COLOURS, styles
from bipareto.fronts.measures import beyond, hypervolume, igd_plus
from bipareto.problem import tree
from bipareto.report.curves import Curves, read_curves
from bipareto.run.results import Leak
from bipareto.sweep.durable import write_text
from bipareto.sweep.reading import StoredRun

#: Points are certified without being asked for where there are at most so many, of at most so many
#: variables.
CERTIFY_POINTS, CERTIFY_SIZE = 64, 2_000
#: Points of the exact front that are drawn.
EXACT_POINTS = {2: 201, 3: 1500}

Report = dict[str, Any]


def build(
    runs: Sequence[StoredRun], *, title: str, version: str, certified: bool | None = None
) -> Report:
    """The data of a page.

    Args:
        runs: at least one, all with the same number of objectives.
        title: of the page.
        version: of this library.
        certified: compute the certificate of every point of a known problem; None does where the
            front is small.
    """
    sizes = {run.name: run.front.objectives.shape[1] for run in runs}
    (first, m), *others = sizes.items()
    for name, size in others:
        if size != m:
            raise InvalidInput(
                f"{first} has {m} objectives and {name} has {size}; write a page for each"
            )
    same = len({run.question for run in runs}) == 1
    known = runs[0].known if same else None
    names = list((known.names if known is not None else None) or [f"f{i + 1}" for i in range(m)])
    reference, reference_is = _reference(runs, same)
    target = None if known is None else known.front(EXACT_POINTS.get(m, 400))
    return {
        "title": title,
        "version": version,
        "m": m,
        "names": names,
        "comparable": same,
        "reference": _rounded(reference),
        "reference_is": reference_is,
        "exact": None if target is None else _columns(target),
        "exact_hypervolume": None
        if known is None or target is None
        else _number(hypervolume(known.front(2001 if m > 2 else 401), reference)),
        "colours": list(COLOURS),
        "runs": [
            _run(run, names, reference, target, certified) | {"colour": style["color"]}
            for run, style in zip(runs, styles([run.method for run in runs]), strict=True)
        ],
    }


def _reference(runs: Sequence[StoredRun], same: bool) -> tuple[list[float], str]:
    if same and runs[0].known is not None:
        return runs[
            0
        ].known.reference.tolist(), "the exact front's worst values plus a tenth of its ranges"
    corner = beyond(torch.cat([run.front.objectives.cpu().double() for run in runs]))
    if corner.isnan().any():
        return [0.0] * len(corner), "no point is finite"
    return corner.tolist(), "the worst values on this page plus a tenth of their ranges"


def _run(
    run: StoredRun,
    names: Sequence[str],
    reference: list[float],
    target: Tensor | None,
    certified: bool | None,
) -> Report:
    import moocore

    front, f = run.front, run.front.objectives.detach().to("cpu", torch.float64)
    finite = f.isfinite().all(1)
    best = np.zeros(len(f), dtype=bool)
    best[finite.numpy()] = moocore.is_nondominated(f[finite].numpy()) if finite.any() else []
    seeds = front.seed.tolist()
    with_preference = not bool(front.preference.isnan().any())
    distance = (
        None
        if run.known is None
        else run.known.distance_to_front(torch.where(finite[:, None], f, 0.0))
    )
    return {
        "name": run.name,
        "method": run.method,
        "load": f"bp.ParetoFront.load({str(run.path)!r})",
        "objectives": _columns(f),
        "preference": _columns(front.preference) if with_preference else None,
        "seed": seeds,
        "reason": list(front.reason),
        "failure": {
            str(i): str(failure) for i, failure in enumerate(front.failure) if failure is not None
        },
        "lower_residual": None
        if front.lower_residual is None
        else _rounded(front.lower_residual.tolist(), 3),
        "nondominated": [int(flag) for flag in best],
        "distance": None
        if distance is None
        else _rounded(torch.where(finite, distance, torch.nan).tolist(), 3),
        "certificates": _certificates(run, certified),
        "hypervolume": _number(hypervolume(f, reference)),
        "hypervolume_by_seed": {
            str(s): _number(hypervolume(f[front.seed == s], reference)) for s in sorted(set(seeds))
        },
        "igd_plus": None if target is None else _number(igd_plus(f, target)),
        # The y of a race was trained on g alone.
        "resolved": front.lower_residual is not None or run.raced,
        "leak": None if front.test is None else _leak(front.leak),
        "seconds": _number(front.seconds, 4),
        "curves": _curves(read_curves(run.sources, names)),
        "config": run.config,
    }


def _leak(leak: Leak) -> list[tuple[str, list[float | None]]]:
    """Objectives in the mean over the points: with y as returned, trained on g, on test data."""
    return [(name, _rounded(row.tolist(), 4)) for name, row in leak.rows()]


def _certificates(run: StoredRun, certified: bool | None) -> list[Report | None] | None:
    """One per point, None for points that are not finite; None altogether where they are not wanted
    or the problem is not known.
    """
    front, known = run.front, run.known
    if known is None:
        if certified:
            warnings.warn(
                f"{run.name}: its problem is not one of `bipareto list`, so its points cannot be "
                "certified here",
                BiparetoWarning,
                stacklevel=4,
            )
        return None
    size = sum(leaf[0].numel() for leaf in tree.leaves((front.x, front.y)))
    if not (
        certified
        if certified is not None
        else len(front) <= CERTIFY_POINTS and size <= CERTIFY_SIZE
    ):
        return None
    gamma = run.numbers.get("gamma")
    return [
        _certificate(run, i, gamma if isinstance(gamma, float) else None) for i in range(len(front))
    ]


def _certificate(run: StoredRun, i: int, gamma: float | None) -> Report | None:
    x, y = run.front.point(i)
    if run.known is None or not all(bool(leaf.isfinite().all()) for leaf in tree.leaves((x, y))):
        return None
    # The same sentences are in the notes.
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        try:
            found = certify(run.known, x, y, gamma)
        except BiparetoError as error:
            return {"notes": [str(error)]}
    return {
        "lower": found.lower_curvature,
        "lower_residual": _number(found.lower_residual, 3),
        "gap": _number(found.gap, 3),
        "kkt": _number(found.kkt, 3),
        "descent": {True: "yes", False: "no", None: "perhaps"}[found.common_descent],
        "notes": list(found.notes),
    }


def _curves(curves: Curves | None) -> Report | None:
    if curves is None:
        return None
    # With a line for every run there is nothing left for a band to show.
    band = (
        {name: _table(getattr(curves, name)) for name in ("low", "high", "median")}
        if curves.total > len(curves.runs)
        else None
    )
    return {
        "steps": curves.steps.astype(int).tolist(),
        "names": list(curves.names),
        "runs": list(curves.runs),
        "records": curves.records,
        "total": curves.total,
        "values": [_table(block) for block in curves.values],
        "band": band,
    }


def _table(rows: Any) -> list[list[float | None]]:
    return [_rounded(row, 5) for row in np.asarray(rows).tolist()]


def _columns(rows: Tensor) -> list[list[float | None]]:
    return [_rounded(column) for column in rows.detach().to("cpu", torch.float64).T.tolist()]


def _rounded(values: Sequence[float], digits: int = 9) -> list[float | None]:
    return [_number(value, digits) for value in values]


def _number(value: float, digits: int = 9) -> float | None:
    """So many significant digits, which halves the page; None for what JSON does not have."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def write_page(report: Report, path: Path) -> None:
    """Write the page; it loads nothing from anywhere."""
    remedy = "a report needs Plotly; install it: pip install 'bipareto[report]'"
    plotly = installed("plotly.offline", remedy)
    assets = resources.files("bipareto.report") / "assets"
    parts = {
        "policy": _POLICY,
        "title": html.escape(report["title"]),
        "style": (assets / "page.css").read_text("utf-8"),
        "body": (assets / "page.html").read_text("utf-8"),
        "plotly": plotly.get_plotlyjs(),
        "data": json.dumps(report, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "program": "\n".join(
            (assets / name).read_text("utf-8") for name in ("charts.js", "page.js")
        ),
    }
    # In the place of a link that may stand there, not through it.
    write_text(path, _PAGE.format_map(parts))


# Nothing is loaded from anywhere.  Plotly's drawing by WebGL makes functions out of texts of its
# own.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<script id="data" type="application/json">{data}</script>
<script>{plotly}</script>
<script>
{program}
</script>
</body>
</html>
"""
