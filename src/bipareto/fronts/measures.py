"""Measures of a front, each with what it is relative to.

Objectives are to be taken with the lower level solved (`ParetoFront.resolve_lower`): a relaxed
lower level lets points lie below the true front, and every measure would reward that.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import validation

Array = np.ndarray[Any, np.dtype[np.float64]]


def _rows(values: Any, name: str = "objectives") -> Array:
    rows = validation.array(values, name, "one row of numbers per run, (R, m)").numpy()
    if rows.ndim != 2:
        raise InvalidInput(f"{name} has shape {rows.shape}; pass one row per run, (R, m)")
    return rows


def _corner(reference: Any, m: int) -> Array:
    corner = validation.array(reference, "reference", f"{m} numbers, worse than the front").numpy()
    if corner.shape != (m,):
        raise InvalidInput(
            f"reference has shape {corner.shape}; it needs one number per objective, ({m},)"
        )
    if not np.isfinite(corner).all():
        raise InvalidInput(f"reference is {corner.tolist()}; it needs finite numbers")
    return corner


def _seeds(seed: Any, runs: int) -> Array:
    """Which seed each run has, (R,)."""
    seeds = validation.array(seed, "seed", f"{runs} whole numbers, one per run").numpy()
    if seeds.shape != (runs,):
        raise InvalidInput(f"seed has shape {seeds.shape}; pass one for each of the {runs} runs")
    return seeds


def _finite(values: Any) -> Array:
    rows = _rows(values)
    return rows[np.isfinite(rows).all(1)]


def pareto_optimal(objectives: Any, among: Any = None) -> Tensor:
    """Which rows of (R, m) are Pareto optimal among the given points: no point is at most as large
    in every objective and smaller in one.  A mask (R,).

    Args:
        among: the points (n, m) that may dominate; None for the rows themselves.

    >>> pareto_optimal([[0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]).tolist()
    [True, False, True]
    """
    rows, others = _compared(objectives, among)
    return torch.from_numpy(
        ~((others <= rows).all(-1) & (others < rows).any(-1)).any(0) & np.isfinite(rows[0]).all(-1)
    )


def weakly_pareto_optimal(objectives: Any, among: Any = None) -> Tensor:
    """Which rows of (R, m) are weakly Pareto optimal among the given points: no point is smaller in
    *every* objective.  A mask (R,); a Pareto optimal row is weakly so, the converse fails.

    Args:
        among: as in `pareto_optimal`.

    >>> weakly_pareto_optimal([[0.0, 1.0], [0.0, 2.0], [1.0, 3.0]]).tolist()
    [True, True, False]
    """
    rows, others = _compared(objectives, among)
    return torch.from_numpy(~(others < rows).all(-1).any(0) & np.isfinite(rows[0]).all(-1))


def _compared(objectives: Any, among: Any) -> tuple[Array, Array]:
    """The rows (1, R, m) and those to compare (n, 1, m); what is not finite dominates nothing."""
    rows = _rows(objectives)
    others = _finite(objectives) if among is None else _finite(among)
    if rows.shape[1] != others.shape[1]:
        raise InvalidInput(
            f"among has {others.shape[1]} objectives and the rows have {rows.shape[1]}; pass (n, "
            f"{rows.shape[1]})"
        )
    return rows[None], others[:, None]


def hypervolume(objectives: Any, reference: Any) -> float:
    """The volume that the rows of (R, m) dominate, up to the reference point (m,).

    >>> hypervolume([[0.0, 1.0], [1.0, 0.0]], [2.0, 2.0])
    3.0
    """
    import moocore

    points = _finite(objectives)
    corner = _corner(reference, points.shape[1])
    if missing := len(_rows(objectives)) - len(points):
        warnings.warn(
            f"{missing} of {len(points) + missing} rows hold NaN or infinity and dominate nothing; "
            "see front.failure for the runs they come from",
            BiparetoWarning,
            stacklevel=2,
        )
    return float(moocore.hypervolume(points, ref=corner)) if len(points) else 0.0


def beyond(objectives: Tensor) -> Tensor:
    """A reference point (m,) where none is known: the worst finite values of (R, m) plus a tenth of
    their ranges; NaN where nothing is finite.

    >>> beyond(torch.tensor([[0.0, 20.0], [10.0, 10.0], [torch.nan, 50.0]])).tolist()
    [11.0, 21.0]
    """
    f = objectives.detach().cpu()
    f = f[f.isfinite().all(1)]
    if not len(f):
        return f.new_full((f.shape[1],), torch.nan)
    return f.amax(0) + 0.1 * (f.amax(0) - f.amin(0))


def igd_plus(objectives: Any, target: Any) -> float:
    """IGD+: how far, on average, the points of the target front (n, m) are from being dominated; 0
    is best.

    >>> igd_plus([[0.0, 0.5]], [[0.0, 0.0], [0.0, 1.0]])
    0.25
    """
    import moocore

    points, goal = _finite(objectives), _rows(target, "target")
    if not len(goal) or goal.shape[1] != points.shape[1] or not np.isfinite(goal).all():
        raise InvalidInput(
            f"target has shape {goal.shape}; pass finite points of the exact front, (n, "
            f"{points.shape[1]}) with n >= 1"
        )
    return float(moocore.igd_plus(points, ref=goal)) if len(points) else float("inf")


def spread(objectives: Any) -> float:
    """How much of objective space the nondominated rows span: the diagonal of their bounding box.

    >>> spread([[0.0, 3.0], [4.0, 0.0], [9.0, 9.0]])
    5.0
    """
    import moocore

    points = _finite(objectives)
    if not len(points):
        return 0.0
    points = points[moocore.is_nondominated(points)]
    return float(np.linalg.norm(points.max(0) - points.min(0)))


class Response(NamedTuple):
    """Of each objective: the slope of f_i in its own weight w_i (negative where preferring it
    helps), and its standard error.
    """

    slope: list[float]
    standard_error: list[float]


def response(objectives: Any, preference: Any, seed: Any = None) -> Response:
    """Does the preferred objective improve?

    The least-squares slope of f_i over w_i, taken seed by seed and averaged; its standard error is
    that of the average, or of the regression where there is one seed.

    Args:
        objectives, preference: (R, m).
        seed: (R,); None is one seed.

    >>> w = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]])
    >>> [round(s, 6) for s in response(1 - w, w).slope]
    [-1.0, -1.0]
    """
    f, w = _rows(objectives), _rows(preference, "preference")
    if w.shape != f.shape:
        raise InvalidInput(
            f"preference has shape {w.shape}, but objectives has {f.shape}; pass one preference "
            "per run"
        )
    seeds = np.zeros(len(f)) if seed is None else _seeds(seed, len(f))
    good = np.isfinite(f).all(1) & np.isfinite(w).all(1)
    slopes, errors = [], []
    for i in range(f.shape[1]):
        fits = [
            _line(w[good & (seeds == s), i], f[good & (seeds == s), i]) for s in np.unique(seeds)
        ]
        values = np.array([slope for slope, _ in fits])
        slopes.append(float(values.mean()))
        with np.errstate(over="ignore", invalid="ignore"):
            errors.append(
                float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else fits[0][1]
            )
    return Response(slopes, errors)


def _line(w: Array, f: Array) -> tuple[float, float]:
    """The slope of a straight line and its standard error, NaN where the points do not tell."""
    centred = w - w.mean() if len(w) else w
    scale = float(centred @ centred)
    if not scale:
        return float("nan"), float("nan")
    slope = float(centred @ f) / scale
    if len(w) < 3:
        return slope, float("nan")
    with np.errstate(over="ignore", invalid="ignore"):
        rest = f - f.mean() - slope * centred
        # Runs on their way to infinity have squares beyond the range of floats: the error is then
        # infinite.
        return slope, float(np.sqrt(rest @ rest / (len(w) - 2) / scale))


def attainment(
    objectives: Any, seed: Any, percentiles: Sequence[float] = (0, 50, 100)
) -> dict[float, list[list[float]]]:
    """The surfaces that at least so many per cent of the seeds attain: 0 by any, 50 by half of
    them, 100 by all.

    Args:
        objectives: (R, m) with m = 2 or 3.
        seed: (R,).
        percentiles: which surfaces.
    """
    import moocore

    rows = _rows(objectives)
    seeds = _seeds(seed, len(rows))
    levels = validation.array(
        percentiles, "percentiles", "numbers from 0 to 100, e.g. [0, 50, 100]"
    )
    if levels.dim() != 1 or not ((levels >= 0) & (levels <= 100)).all():
        raise InvalidInput(
            f"percentiles is {validation.shown(percentiles)}; pass numbers from 0 to 100, e.g. [0, "
            "50, 100]"
        )
    if rows.shape[1] not in (2, 3):
        raise InvalidInput(
            f"attainment surfaces are known for 2 and 3 objectives; these have {rows.shape[1]}"
        )
    good = np.isfinite(rows).all(1)
    order = np.argsort(seeds[good], kind="stable")
    found = moocore.eaf(rows[good][order], seeds[good][order], percentiles=list(percentiles))
    return {p: [row[:-1].tolist() for row in found if row[-1] == p] for p in percentiles}


class Measured(Protocol):
    """What `measure` looks at of a front."""

    @property
    def objectives(self) -> Tensor:
        """(R, m)."""

    @property
    def preference(self) -> Tensor:
        """(R, m), NaN for methods without."""

    @property
    def seed(self) -> Tensor:
        """(R,)."""

    @property
    def lower_residual(self) -> Tensor | None:
        """||grad_y g|| (R,), None where the lower level was not solved again."""


def measure(front: Measured, reference: Any, target: Tensor | None = None) -> dict[str, Any]:
    """All measures of a front, with the reference point and what else they depend on.

    Args:
        front: its objectives are taken as they are; call `resolve_lower` first.
        reference: (m,), worse than the front.
        target: points of the exact front (n, m) where it is known.
    """
    f, m = front.objectives, front.objectives.shape[1]
    found: dict[str, Any] = {
        "reference": _corner(reference, m).tolist(),
        "lower_level": "as returned" if front.lower_residual is None else "solved",
        "hypervolume": hypervolume(f, reference),
        "hypervolume_by_seed": {
            int(s): hypervolume(f[front.seed == s], reference) for s in front.seed.unique()
        },
        "spread": spread(f),
        "response": None
        if torch.isnan(front.preference).any()
        else response(f, front.preference, front.seed)._asdict(),
    }
    if target is not None:
        found |= {"igd_plus": igd_plus(f, target), "target_points": len(target)}
    if m in (2, 3) and len(front.seed.unique()) > 1:
        found["attainment"] = attainment(f, front.seed)
    return _plain(found)


def _plain(value: Any) -> Any:
    """Data for JSON, which knows no NaN and no infinity: these become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
