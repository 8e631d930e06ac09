"""Whether runs have arrived: what is left to gain, whether the ends of the front are reached, and
the words for what is missing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from textwrap import shorten
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.certificate.remaining import remaining, unseeable, values
from bipareto.errors import BiparetoWarning
from bipareto.methods import Method, Twin
from bipareto.methods.parts import curvature, envelope
from bipareto.methods.tuning import local
from bipareto.methods.tuning.functions import known
from bipareto.methods.tuning.local import DENSE
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.run.results import Failure, Run, Solution, as_batch

__all__ = [
    "ASK",
    "LEFT",
    "NOT_SEEN",
    "ONE_BY_ONE",
    "OWN_METHOD",
    "TRAINED",
    "Arrival",
    "arrival",
    "extent_of",
    "looked_over",
    "more_steps",
    "standstill",
    "steps_needed",
    "warn_of_missing",
]

#: a share of the extent that all objectives can still gain together, above which a run has not
#: arrived
LEFT = 0.01
#: the share of each objective's range that a front is to cover
COVERED = 0.9
#: objectives of all runs within this share of the extent are one point
ONE_POINT = 1e-3
#: g's curvature at a lower solution below this share of that a little away is none
FLAT = 1e-3


#: what is said where `remaining` is None, before the reason; and what to do
NOT_SEEN = "whether the answer has arrived was not looked at"
ASK = "bipareto.certify(problem, x, y) looks at one point of any size"
#: the reason where a user has chosen the method
OWN_METHOD = "only answers of the default method are looked at unasked"
#: ... where the losses forced one run after the other, and where y was trained
ONE_BY_ONE = "the losses cannot be batched by vmap"
TRAINED = "it was judged by trainings on the data, against x0 and the other answers"
#: ... and where it was trained, but too few steps allowed a race
ON_A_SLOPE = "y was trained, and no lower solution is near it"
#: ... and where Ctrl-C ended the look
CUT_SHORT = "the look was interrupted"
#: why answers are dominated that have arrived at lower solutions, and what to do
ANOTHER_BASIN = (
    ": they ended in another basin, where no small step helps, and a front from where the better "
    "ones ended (x0, y0 = front.point(i)) may reach further"
)


class Arrival(NamedTuple):
    """What all objectives of each run can still gain together, a share of the extent (R,), NaN
    where a run failed; sentences about what is not as it should be; and where nothing was looked
    at (`remaining` is None) why not.
    """

    remaining: Tensor | None
    said: list[str]
    unseen: str | None = None


def extent_of(method: Method | None, objectives: Tensor) -> Tensor:
    """The range of each objective (m,): the method's, where it has measured it, else that of the
    given objectives (R, m); their size where they do not differ.
    """
    measured = getattr(method, "extent", 1.0)
    if isinstance(measured, tuple):
        return torch.tensor(measured, dtype=torch.float64, device=objectives.device)
    rows = objectives[torch.isfinite(objectives).all(1)].double()
    if not len(rows):
        return torch.ones(objectives.shape[1], dtype=torch.float64, device=objectives.device)
    span, size = rows.amax(0) - rows.amin(0), rows.abs().amax(0)
    span = torch.where(span > ONE_POINT * size, span, size)
    return torch.where(span > 0, span, torch.ones_like(span))


def arrival(
    problem: Problem,
    method: Method | None,
    x: Tree,
    y: Tree,
    failure: Sequence[Failure | None],
    preference: Tensor | None = None,
    run: Run | None = None,
    *,
    trained: bool = False,
) -> Arrival:
    """Look at the answers of R runs, on all the data.

    Args:
        problem, method: what was run.
        x, y: the answers, with a first axis R.
        failure: of each run.
        preference: (R, m), or None for a method without.
        run: what was recorded on the way, where it is known: it tells the steps that are needed.
        trained: y was trained and judged by trainings: many networks have no lower solution near
            the answer, which is then no news, nor is it where `Twin` trained y.
    """
    why = unseeable(problem, x, y)
    if why is None:
        try:
            return _look(problem, method, x, y, failure, preference, run, trained)
        except KeyboardInterrupt:  # the answers are there, and are kept
            why = CUT_SHORT
        except RuntimeError as error:
            decomposition = isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
            if not decomposition and "memory" not in str(error):
                raise
            why = (
                f"memory or a decomposition failed ({shorten(str(error), 80, placeholder=' ...')})"
            )
    return Arrival(None, [f"{NOT_SEEN}, because {why}; {ASK}"], why)


def _look(
    problem: Problem,
    method: Method | None,
    x: Tree,
    y: Tree,
    failure: Sequence[Failure | None],
    preference: Tensor | None,
    run: Run | None,
    trained: bool,
) -> Arrival:
    runs = len(failure)
    small = tree.ravel(tree.select((x, y), 0)).numel() <= DENSE
    said, learned = [], trained or isinstance(method, Twin)
    # From where a network was trained to, a lower solution is a few Newton steps away or none.
    most = 200 if small and not learned else 20
    solved = envelope.solve_lower(problem, x, y, tol=1e-6, max_iter=most)
    unsolved = int((~solved.converged).sum())
    if unsolved:
        if not learned:
            said.append(_unsolved(unsolved, runs, small, tree.first_leaf(y).dtype))
    elif flat := _flat(problem, x, y, solved.y):
        said.append(flat)
    alive = [r for r in range(runs) if failure[r] is None and bool(solved.converged[r])]
    left = torch.full((runs,), torch.nan, dtype=torch.float64)
    if not alive:
        why = TRAINED if trained else ON_A_SLOPE
        return Arrival(None, said, why) if learned else Arrival(left, said)
    index = torch.tensor(alive, device=tree.first_leaf(x).device)
    x, returned, y = (tree.select(point, index) for point in (x, y, solved.y))
    f = values(problem, x, y)
    extent = extent_of(method, f)
    left[index.cpu()] = remaining(problem, x, y, extent).cpu()
    if late := [r for r in alive if float(left[r]) > LEFT]:
        said.append(_late(run, left, late, extent))
    # A trained y is an answer by itself, and no basin of lower solutions.
    judged = values(problem, x, returned) if learned else f
    span = extent_of(method, judged)
    if beaten := _beaten(judged, span, left[index.cpu()].to(f) > LEFT):
        said.append(beaten if learned else f"{beaten}{ANOTHER_BASIN}")
    narrow = []
    if preference is not None and f.shape[1] > 1 and len(alive) > 1 and not said:
        narrow = _narrow(problem, x, y, f, extent, preference[index.cpu()])
    # A training does not follow y where g curves least, in any precision.
    if (said or narrow) and small and not learned and (blurred := _blurred(problem, x, y)):
        narrow = [blurred]  # the cause: more steps would not help
    return Arrival(left, said + narrow)


def _unsolved(unsolved: int, runs: int, small: bool, dtype: torch.dtype) -> str:
    if small:
        coarse = "" if dtype == torch.float64 else ", or needs float64"
        return (
            f"the lower level could not be solved at {unsolved} of {runs} answers: g has a "
            f"kink there or no minimum nearby{coarse}; smooth it (sqrt(v*v + 1e-6) for |v|, say), "
            "or take objectives there with care"
        )
    return (
        f"the lower level was not solved by 20 Newton steps from {unsolved} of {runs} answers, "
        "so that it is not known whether these have arrived"
    )


def _flat(problem: Problem, x: Tree, y: Tree, solved: Tree) -> str | None:
    """A sentence where g has no curvature at the lower solutions, compared with that on the way
    from y as the runs left it, and as far again to the other side.
    """
    flat, centre = tree.ravel(y, batch_dims=1), tree.ravel(solved, batch_dims=1)
    # A y that solves the lower level to rounding shows nothing.
    far = (flat - centre).norm(dim=1) > 1e-4 * centre.norm(dim=1)
    if not bool(far.any()):
        return None
    x, end, v = tree.select(x, far), centre[far], (flat - centre)[far]

    def beside(at: Tensor) -> Tree:
        return tree.unravel(at, tree.select(y, 0))

    there, back = (
        local.lower_slopes(problem, x, beside(at))[1].detach() for at in (end + v, end - v)
    )
    away = (v * (there - back)).sum(1) / 2
    here = (v * local.hessian_along(problem, x, beside(end), v)).sum(1)
    shares = (here.abs() / away)[away > 0].tolist()
    if not shares or not min(shares) < FLAT:
        return None
    return (
        f"g has no curvature at {sum(share < FLAT for share in shares)} of {len(far)} "
        f"lower solutions ({min(shares):.1g} of that a little away): its penalty does not hold y "
        "there, and y follows x late or not at all; write g so that it curves where it is least (a "
        "residual squared, not to the fourth power), or add a small multiple of (y*y).sum()"
    )


def _blurred(problem: Problem, x: Tree, y: Tree) -> str | None:
    """A sentence where g's curvatures in y differ by more than single precision can tell."""
    dtype = tree.first_leaf(y).dtype
    share = local.narrowness(local.look(problem, x, y).g_yy)
    count = int((share < local.FLOOR[dtype]).sum())
    if dtype == torch.float64 or not count:
        return None
    return (
        f"{str(dtype).removeprefix('torch.')} cannot tell g's curvatures apart at {count} of "
        f"{len(share)} lower solutions (the smallest is {float(share.min()):.0e} of the largest), "
        "and y is not followed where g curves least: pass x0, y0 and the data in float64"
    )


def _late(run: Run | None, found: Tensor, late: Sequence[int], extent: Tensor) -> str:
    worst = max(late, key=lambda r: float(found[r]))
    seen = None if run is None else run.history.get("objectives")
    which = f"{len(late)} of {len(found)} runs have" if len(found) > 1 else "the run has"
    whose = f" of run {worst}" if len(found) > 1 else ""
    sentence = (
        f"{which} not converged: all objectives{whose} still fall together by "
        f"{100 * float(found[worst]):.2g} % of the front's extent"
    )
    if run is None or seen is None or len(seen) < 8:
        return f"{sentence}; take more steps"
    steps = steps_needed(seen[:, worst], run.steps[worst], float(found[worst]), extent)
    return f"{sentence}; {more_steps(steps)}"


def more_steps(steps: int | None) -> str:
    """The remedy for a run that would need so many steps."""
    if steps:
        return f"about {steps:,} steps would be needed at the pace of the last quarter"
    return (
        "more steps will hardly help, for it moved little in the last quarter: begin at "
        "another start, or at what was found (x0, y0 = front.point(i))"
    )


def _beaten(f: Tensor, extent: Tensor, late: Tensor) -> str | None:
    """A sentence where answers (R, m) are dominated by others, clearly, though they have arrived:
    of runs that are `late` (R,) it is no news.
    """
    by = ((f[:, None] - f[None]) / extent).amin(2).amax(1).masked_fill(late, 0.0)
    count = int((by > LEFT).sum())
    if not count:
        return None
    return (
        f"{count} of {len(f)} answers are dominated by another of these runs, by up to "
        f"{100 * float(by.max()):.2g} % of the front's extent; front.nondominated() leaves them out"
    )


def steps_needed(seen: Tensor, steps: int, left: float, extent: Tensor) -> int | None:
    """How many steps a run would need at the pace of its last quarter, two digits of it; None where
    that is more than a hundred times as many.

    Args:
        seen: its objectives as recorded (T, m).
        steps: taken.
        left: to gain, a share of the extent (m,).
    """
    seen = seen.double()
    pace = float(((seen[-max(len(seen) // 4, 1)] - seen[-1]).abs() / extent.to(seen)).max())
    if not pace > 0 or not math.isfinite(pace):
        return None
    more = steps + 0.25 * steps * max(left / pace, 1.0) * 2
    if more > 100 * steps:
        return None
    digits = 10 ** max(len(str(int(more))) - 2, 0)
    return math.ceil(more / digits) * digits


def _narrow(
    problem: Problem, x: Tree, y: Tree, f: Tensor, extent: Tensor, preference: Tensor
) -> list[str]:
    """Sentences on preferences without effect, and on ends of the front that are not reached."""
    spread = float((preference.amax(0) - preference.amin(0)).max())
    if not spread > 0.5:  # few or near preferences are not asked to cover anything
        return []
    span = f.amax(0) - f.amin(0)
    if bool((span < ONE_POINT * extent).all()):
        return [_one_point(problem, x, y, f)]
    if not spread > 0.95 or tree.ravel(tree.select((x, y), 0)).numel() > DENSE:
        return []
    # The ends of the front as found from the answers nearest to them.
    m = f.shape[1]
    like = tree.select(x, 0), tree.select(y, 0)
    nearest = tree.select((x, y), f.argmin(0))
    weights = torch.eye(m, dtype=torch.float64, device=f.device) / extent + 2e-3 / extent
    kept = known(problem, x, y)
    begun = local.look(problem, *nearest, kept)
    ends = local.minimise(problem, weights, begun, like, kept, iterations=10).f
    every = torch.cat([f, ends[torch.isfinite(ends).all(1)]])
    share = (span / (every.amax(0) - every.amin(0)).clamp_min(1e-300)).tolist()
    short = [f"{100 * s:.0f} % of f_{i + 1}'s" for i, s in enumerate(share) if s < COVERED]
    if not short:
        return []
    return [
        f"the front covers {', '.join(short)} range only, as far as its ends were found from the "
        "answers: runs stop short of an end; more steps reach further"
    ]


def _one_point(problem: Problem, x: Tree, y: Tree, f: Tensor) -> str:
    """Why all preferences end at one point: the objectives are asked at other x, with y solved
    again there.
    """
    begin = "all preferences end at one point: "
    at = tree.select((x, y), 0)
    flat = tree.ravel(at[0])
    stream = torch.Generator().manual_seed(0)
    size = 0.1 * (float(flat.abs().mean()) or 1.0)
    moved = torch.stack([flat + size * curvature.normal(flat, stream) for _ in range(4)])
    others = local.as_trees(moved, at[0])
    settled = local.settle(problem, others, tree.expand(at[1], 4))
    change = values(problem, others, settled) - f[:1]
    still = (change.abs() <= 1e-9 * f[:1].abs()).all(0)
    if bool(still.all()):
        return begin + (
            "x has no influence on the objectives, neither directly nor through y; check that "
            "upper or lower use it"
        )
    if bool(still.any()):
        names = ", ".join(f"f_{i + 1}" for i in still.nonzero().flatten().tolist())
        return begin + f"{names} does not depend on x there; there is nothing to weigh it against"
    return begin + (
        "the objectives do not conflict as far as was seen from this start (one x is best for all "
        "of them); another start, or other objectives, would show more"
    )


def warn_of_missing(said: Sequence[str], stacklevel: int = 3) -> None:
    """One warning per sentence."""
    for sentence in said:
        warnings.warn(sentence, BiparetoWarning, stacklevel=stacklevel)


def standstill(x0: Tree, x: Tree, failure: Sequence[Failure | None]) -> list[str]:
    """A sentence where the x of runs that did not fail, with a first axis R, is x0 to the last bit:
    nothing there depended on it.
    """
    still = (tree.ravel(x, batch_dims=1) == tree.ravel(x0)).all(1).cpu()
    still &= torch.tensor([failed is None for failed in failure])
    if not still.any():
        return []
    return [
        f"x has not moved from x0 in {int(still.sum())} of {len(still)} runs: no objective changes "
        "with x there, neither by itself nor through the lower solution. If x0 is a stationary "
        "point, start elsewhere, e.g. at x0 + 0.1 * torch.randn_like(x0); else see that x acts on "
        "where lower has its minimum and not only on its value"
    ]


def looked_over(problem: Problem, found: Solution, run: Run, x0: Tree) -> Solution:
    """A solution from x0 with what is left to gain, after warnings of what is missing."""
    one = as_batch(run)
    seen = arrival(problem, found.method, one.state.x, one.state.y, run.failure, run=one)
    warn_of_missing(seen.said or standstill(x0, one.state.x, run.failure), stacklevel=4)
    left = None if seen.remaining is None else float(seen.remaining[0])
    return replace(found, remaining=left, unseen=seen.unseen)
