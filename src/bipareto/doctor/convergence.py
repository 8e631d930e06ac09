"""The last look: runs that were stopped too early, where nothing else explains it."""

from __future__ import annotations

import torch

from bipareto.certificate.remaining import remaining, unseeable
from bipareto.doctor.checks import LOOKS
from bipareto.doctor.evidence import Case, Diagnosis, diagnosed, look
from bipareto.problem import tree
from bipareto.run.arrival import (
    LEFT,
    NOT_SEEN,
    extent_of,
    more_steps,
    steps_needed,
    warn_of_missing,
)

__all__ = ["LOOKS"]


@look("not-converged", at_end=True)
def _not_converged(case: Case) -> list[Diagnosis]:
    """All objectives still fall together, by a visible share of the front's extent, when one walks
    on from where the run ended.
    """
    # Noise leaves a distance that more steps shrink slowly: no disease.
    if not case.alive or case.problem.sampler is not None or case.network:
        return []
    index = torch.tensor(case.alive, device=tree.first_leaf(case.x).device)
    extent = extent_of(case.method, case.resolved[index])
    x, y = tree.select((case.x, case.solved.y), index)
    if why := unseeable(case.problem, x, y):
        warn_of_missing([f"{NOT_SEEN}, because {why}"])
        return []
    left = remaining(case.problem, x, y, extent).tolist()
    share = {r: value for r, value in zip(case.alive, left, strict=True) if value > LEFT}
    if not share:
        return []
    worst = max(share, key=lambda r: share[r])
    seen = case.history["objectives"][:, worst]
    taken = int(case.state.t[worst])
    remedy = "take more steps"
    if taken and len(seen) >= 8:
        remedy = more_steps(steps_needed(seen, taken, share[worst], extent))
    return diagnosed(
        "not-converged",
        {r: {"left": 100 * value} for r, value in share.items()},
        "all objectives still fall together by {left:.2g} % of the front's extent",
        remedy,
    )
