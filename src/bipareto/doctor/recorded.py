"""Diagnoses of trainings of which only records are kept, as an experiment's folder has them: no
problem is at hand, so nothing is evaluated again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from bipareto.doctor.checks import ONE_POINT, VISIBLE
from bipareto.doctor.evidence import Diagnoses, diagnosed


class Training(NamedTuple):
    """One training on disk: its method in words, preference (None without), seed, why it ended, and
    f as it was recorded, (records, m).
    """

    method: str
    preference: tuple[float, ...] | None
    seed: int
    reason: str
    objectives: Tensor


def examine_trainings(trainings: Sequence[Training]) -> Diagnoses:
    """What the records of trainings show: f that left the finite numbers, f that ends above its
    start, preferences without effect.  Runs are numbered in the order they are given in.
    """
    lost = {
        r: {"records": float(len(one.objectives))}
        for r, one in enumerate(trainings)
        if one.reason == "nonfinite" or not bool(one.objectives.isfinite().all())
    }
    found = Diagnoses(
        diagnosed(
            "steps-too-large",
            lost,
            "the run left the finite numbers",
            "divide the method's steps by ten",
        )
    )
    rest = {r: one for r, one in enumerate(trainings) if r not in lost}
    found += diagnosed(
        "worse-than-start",
        {r: {"rise": rise} for r, one in rest.items() if (rise := _rise(one.objectives)) > 0},
        "every objective ends above where it began, one by {rise:.3g} % (medians of the first and "
        "the last quarter of the records)",
        "divide the method's steps by four, or give the weights a warm-up before x moves",
    )
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for r, one in rest.items():
        if one.preference is not None:
            alike[one.method, one.seed].append(r)
    narrow: dict[int, dict[str, float]] = {}
    for runs in alike.values():
        narrow |= _narrow({r: rest[r] for r in runs})
    found += diagnosed(
        "preference-without-effect",
        narrow,
        "preferences {spread:.2g} apart give objectives within {width:.2g} % of each other",
        "raise mu and the steps; if that changes nothing, the objectives do not conflict",
    )
    return found


def _rise(objectives: Tensor) -> float:
    """By how many percent the objective that rose most did, where all of them rose visibly, else
    0; fewer than eight records say nothing.
    """
    quarter = len(objectives) // 4
    if quarter < 2:
        return 0.0
    first, last = (part.median(0).values for part in (objectives[:quarter], objectives[-quarter:]))
    rise = (last - first) / first.abs().clamp_min(1e-12)
    return 100 * float(rise.max()) if float(rise.min()) > VISIBLE else 0.0


def _narrow(trainings: dict[int, Training]) -> dict[int, dict[str, float]]:
    """Trainings of one method and seed that end at one point though their preferences differ."""
    if len(trainings) < 2:
        return {}
    ends = [one.objectives[-1].double() for one in trainings.values()]
    wanted = [one.preference or () for one in trainings.values()]
    spread = max(max(values) - min(values) for values in zip(*wanted, strict=True))
    width = max(
        float((max(values) - min(values)) / max(*map(abs, values), 1e-12))
        for values in zip(*(end.tolist() for end in ends), strict=True)
    )
    if spread < 0.2 or width > ONE_POINT:
        return {}
    return {r: {"width": 100 * width, "spread": spread} for r in trainings}
