"""Whether a front has arrived: what is left to gain, whether its ends are reached, and the words
for what is missing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from bipareto.certificate.remaining import remaining, values
from bipareto.errors import BiparetoWarning
from bipareto.methods import Method
from bipareto.methods.parts import envelope
from bipareto.problem import Problem, tree
from bipareto.run.results import Run

__all__ = ["LEFT", "extent_of", "missing", "steps_needed", "warn_of_missing"]

#: a share of the extent that all objectives can still gain together, above which a run has not
#: arrived
LEFT = 0.01
#: the share of each objective's range that a front is to cover
COVERED = 0.9
#: objectives of all runs within this share of the extent are one point
ONE_POINT = 1e-3
#: variables up to which a front is looked at after the run without being asked
MOST = 20_000


def extent_of(method: Method, objectives: Tensor) -> Tensor:
    """The range of each objective (m,): the method's, where it has measured it, else that of the
    given objectives (R, m).
    """
    measured = getattr(method, "extent", 1.0)
    if isinstance(measured, tuple):
        return torch.tensor(measured, dtype=torch.float64, device=objectives.device)
    rows = objectives[torch.isfinite(objectives).all(1)].double()
    if not len(rows):
        return torch.ones(objectives.shape[1], dtype=torch.float64, device=objectives.device)
    span, size = rows.amax(0) - rows.amin(0), rows.abs().amax(0)
    span = torch.where(span > 1e-3 * span.amax().clamp_min(1e-300), span, size)
    return torch.where(span > 0, span, torch.ones_like(span))


def missing(
    problem: Problem, method: Method, run: Run, preference: Tensor
) -> tuple[Tensor | None, list[str]]:
    """What all objectives of each run can still gain together, as a share of the extent (R,), and
    sentences about what is not as it should be; None where looking would cost too much.
    """
    x, y = run.state.x, run.state.y
    if tree.ravel(tree.select((x, y), 0)).numel() > MOST:
        return None, []
    alive = [r for r, failure in enumerate(run.failure) if failure is None]
    if not alive:
        return None, []
    index = torch.tensor(alive, device=run.state.t.device)
    x, y = tree.select(x, index), tree.select(y, index)
    try:
        solved = envelope.solve_lower(problem, x, y, tol=1e-6)
        f = values(problem, x, solved.y)
        left = remaining(problem, x, solved.y, extent_of(method, f))
    except RuntimeError:  # losses that cannot be batched or differentiated twice
        return None, []
    found = torch.full((len(run.failure),), torch.nan, dtype=torch.float64)
    found[index.cpu()] = left.cpu()
    said = []
    if unsolved := int((~solved.converged).sum()):
        said.append(
            f"the lower level could not be solved at {unsolved} of {len(alive)} answers: g has a "
            "kink there or no minimum nearby; smooth it (sqrt(v*v + 1e-6) for |v|, say), or take "
            "objectives there with care"
        )
    late = [r for r in alive if float(found[r]) > LEFT]
    if late:
        said.append(_late(run, found, late, extent_of(method, f)))
    if f.shape[1] > 1 and len(alive) > 1:
        said += _narrow(method, f, preference[index.cpu()])
    return found, said


def _late(run: Run, found: Tensor, late: Sequence[int], extent: Tensor) -> str:
    worst = max(late, key=lambda r: float(found[r]))
    steps = steps_needed(run, worst, float(found[worst]), extent)
    remedy = (
        f"about {steps:,} steps would be needed at the pace of the last quarter"
        if steps
        else "more steps will hardly help, for it moved little in the last quarter: begin at "
        "another start, or at what was found (x0, y0 = front.point(i))"
    )
    return (
        f"{len(late)} of {len(found)} runs have not converged: all objectives of run {worst} still "
        f"fall together by {100 * float(found[worst]):.2g} % of the front's extent; {remedy}"
    )


def steps_needed(run: Run, r: int, left: float, extent: Tensor) -> int | None:
    """How many steps a run would need at the pace of its last quarter, two digits of it; None where
    that is more than a hundred times as many.
    """
    seen = run.history.get("objectives")
    if seen is None or len(seen) < 8:
        return None
    seen = seen[:, r].double() if seen.dim() == 3 else seen.double()
    steps = run.steps[r]
    pace = float(((seen[-len(seen) // 4] - seen[-1]).abs() / extent.to(seen)).max())
    if not pace > 0 or not math.isfinite(pace):
        return None
    more = steps + 0.25 * steps * max(left / pace, 1.0) * 2
    if more > 100 * steps:
        return None
    digits = 10 ** max(len(str(int(more))) - 2, 0)
    return math.ceil(more / digits) * digits


def _narrow(method: Method, f: Tensor, preference: Tensor) -> list[str]:
    """Sentences on preferences without effect, and on ends of the front that are not reached."""
    spread = float((preference.amax(0) - preference.amin(0)).max())
    if not spread > 0.5:  # few or near preferences are not asked to cover anything
        return []
    measured = isinstance(getattr(method, "extent", 1.0), tuple)
    unit = extent_of(method, f) if measured else f.abs().amax(0).clamp_min(1e-300)
    share = ((f.amax(0) - f.amin(0)) / unit).nan_to_num()
    if bool((share < ONE_POINT).all()):
        return [
            "all preferences end at one point: the objectives do not conflict from this start, or "
            "x has no influence on them"
        ]
    if not measured or not spread > 0.95:
        return []
    short = [f"{100 * s:.0f} % of f_{i + 1}'s" for i, s in enumerate(share.tolist()) if s < COVERED]
    if not short:
        return []
    return [
        f"the front covers {', '.join(short)} range only, as far as its ends were found from the "
        "start: runs stop short of an end, or fall into another basin; more steps or several "
        "starts show which"
    ]


def warn_of_missing(said: Sequence[str], stacklevel: int = 3) -> None:
    """One warning per sentence."""
    for sentence in said:
        warnings.warn(sentence, BiparetoWarning, stacklevel=stacklevel)
