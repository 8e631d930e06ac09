"""Preferences chosen on the way: where the front is still thin, and started from what is already
solved.

A few preferences, one near each corner of the simplex and its centre, are solved from the start.
Then, round by round, the gaps between neighbouring points of the front are ranked by the
hypervolume that a point inside might add, and the best ones are solved.  Such a run does not begin
at (x_0, y_0) but between its two neighbours, so a fraction of the steps is enough.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.batch import join_runs, run_states
from bipareto.fronts.measures import Array, hypervolume
from bipareto.fronts.pareto import ParetoFront, front_of
from bipareto.methods import Method
from bipareto.methods.base import State
from bipareto.methods.parts import scalarization
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.run.results import Run

__all__ = ["Proposal", "aimed", "between", "corners", "propose", "trace"]

#: The weight that a near-corner preference leaves to each other objective.
EDGE = 0.02
#: Steps of a warm run as a share of those of a cold one, measured in benchmarks/adaptive.py.
WARM = 0.25


#: Runs, by their place on the run axis, that are neighbours on the front: two ends of an edge, or
#: the corners of a simplex.
Neighbours = tuple[int, ...]
#: The objectives (m,) expected between neighbours and the preference (m,) that leads there, or None
#: where nothing can be said.
Predict = Callable[[Neighbours], tuple[Array, Array] | None]


class Proposal(NamedTuple):
    """A preference (m,) to be solved next, the solved runs it lies between, and its score (see
    `propose`).
    """

    preference: Tensor
    parents: Neighbours
    score: float


def corners(m: int, edge: float = EDGE) -> Tensor:
    """The preferences that come first: one near each corner of the simplex and the centre, shape (m
    + 1, m), float64.

    >>> corners(2)
    tensor([[0.9800, 0.0200],
            [0.0200, 0.9800],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    near = torch.full((m, m), edge, dtype=torch.float64) + (1 - m * edge) * torch.eye(
        m, dtype=torch.float64
    )
    return torch.cat([near, torch.full((1, m), 1 / m, dtype=torch.float64)])


def propose(
    objectives: Any,
    preference: Any,
    count: int,
    *,
    predict: Predict | None = None,
    reference: Any = None,
    tried: Container[Neighbours] = (),
) -> list[Proposal]:
    """The next preferences for a partial front, at most `count`, best first.

    Neighbours are the edges and simplices of a Delaunay triangulation of the nondominated points,
    seen along (1, ..., 1) in objectives scaled to their ranges; for m = 2 this is their order along
    the front.  The score of a preference between neighbours is the hypervolume that the point
    expected there would add, points already chosen counted as found.

    Args:
        objectives, preference: (R, m) of what is solved; rows that are not finite are passed over.
        predict: what to expect between neighbours.  Where it returns None, and without it, the mean
            of their preferences is proposed, a point halfway from the mean of their objectives to
            their componentwise minimum is expected, and the score is multiplied by the largest
            distance of their preferences: a gap in the front promises as much after halving as
            before, and must not take all the budget.
        reference: (m,) for the hypervolume; None is a tenth of the ranges beyond the worst
            nondominated values.
        tried: neighbours that have been proposed between before.
    """
    import moocore

    f, w = (
        np.asarray(torch.as_tensor(value).detach().cpu(), dtype=np.float64)
        for value in (objectives, preference)
    )
    rows = np.flatnonzero(np.isfinite(f).all(1) & np.isfinite(w).all(1))
    best = rows[moocore.is_nondominated(f[rows])] if len(rows) else rows
    rows = best if len(best) > 1 else rows
    if len(rows) < 2:
        return []
    span = np.ptp(f[rows], axis=0)
    corner = (
        f[rows].max(0) + 0.1 * span
        if reference is None
        else np.asarray(reference, dtype=np.float64)
    )
    found = f[rows]

    def expected(group: Neighbours) -> tuple[Array, Array, float]:
        known = None if predict is None else predict(group)
        if known is not None:
            return (*known, 1.0)
        ends, weights = f[list(group)], w[list(group)]
        trust = max(float(np.linalg.norm(a - b)) for a, b in combinations(weights, 2))
        return 0.5 * (ends.mean(0) + ends.min(0)), weights.mean(0), trust

    groups = [
        tuple(int(rows[i]) for i in group)
        for group in _neighbours(f[rows] / np.where(span > 0, span, 1.0))
    ]
    places = {group: expected(group) for group in groups if group not in tried}
    base = hypervolume(found, corner)

    def score(group: Neighbours) -> float:
        point, _, trust = places[group]
        return trust * (hypervolume(np.vstack([found, point]), corner) - base)

    heap = [(-score(group), group) for group in places]
    heapq.heapify(heap)
    chosen: list[Proposal] = []
    # A chosen point can only lower what the others would add, so a score that is still the best
    # when it is renewed is the best.
    while heap and len(chosen) < count:
        _, group = heapq.heappop(heap)
        renewed = score(group)
        if renewed <= 1e-12 * base:
            continue
        if heap and renewed < -heap[0][0]:
            heapq.heappush(heap, (-renewed, group))
            continue
        chosen.append(Proposal(torch.from_numpy(places[group][1]), group, renewed))
        found = np.vstack([found, places[group][0]])
        base = hypervolume(found, corner)
    return chosen


def _neighbours(points: Array) -> Iterator[Neighbours]:
    """Groups of neighbouring rows (R, m): edges, and for m >= 3 simplices, of a triangulation of
    the projections along (1, ..., 1).
    """
    count, m = points.shape
    if m == 2:
        order = np.argsort(points[:, 0] - points[:, 1], kind="stable").tolist()
        yield from pairwise(order)
        return
    if count <= m:
        simplices = [list(range(count))]
    else:
        from scipy.spatial import Delaunay

        basis = np.linalg.svd(np.ones((1, m)))[2][1:]  # the plane across (1, ..., 1)
        # QJ nudges points that lie on one line or circle, which regular fronts have.
        simplices = Delaunay(points @ basis.T, qhull_options="QJ").simplices.tolist()
    groups = {tuple(sorted(simplex)) for simplex in simplices}
    yield from sorted(groups | {pair for group in groups for pair in combinations(group, 2)})


def between(problem: Problem, points: Sequence[tuple[Tree, Tree]]) -> tuple[Tree, Tree] | None:
    """The mean of solved points (x, y), where the lower level allows it; None where it does not.

    On one smooth piece of the front the mean is a much better start than any of the points: its
    error falls with the square of their distance.  On two branches of the lower level it may lie on
    a ridge between them.  So it is taken only where the mean y answers the mean x better than every
    point's own y does.
    """
    x, y = (
        tree.map_(lambda *leaves: torch.stack(leaves).mean(0), *(point[i] for point in points))
        for i in (0, 1)
    )
    batch = problem.batch("lower", "full")
    with torch.no_grad():
        middle, *ends = (
            float(problem.lower(x, v, batch)) for v in (y, *(point[1] for point in points))
        )
    return (x, y) if middle <= min(ends) else None


def aimed(
    method: Method, target: Tensor, preference: Tensor, objectives: Tensor, ideal: Tensor | None
) -> Tensor:
    """The preference (m,) whose point lies between solved ones, at the objectives `target` (m,).

    Between points of a front lies the mean of its normals, and at a solved point the normal is the
    weight that the method's scalarization gives each objective.  For a method that does not say how
    it scalarizes, the mean of the preferences.

    Args:
        preference, objectives, ideal: (k, m) of the solved points.
    """
    name, mu = getattr(method, "scalarization", None), getattr(method, "mu", None)
    w = preference.to("cpu", torch.float64)
    if name is None or mu is None or ideal is None:
        return w.mean(0)
    f, z = (value.detach().to("cpu", torch.float64) for value in (objectives, ideal))
    normals = scalarization.get(name).weights(f, w, z, torch.as_tensor(mu, dtype=torch.float64))
    return scalarization.aim(
        name, target, (normals / normals.sum(1, keepdim=True)).mean(0), z.mean(0), mu
    )


def trace(
    problem: Problem,
    starts: Sequence[tuple[Tree | nn.Module, Tree | nn.Module]],
    *,
    budget: int,
    method: Method,
    steps: int = 20_000,
    warm: float = WARM,
    seeds: Sequence[int] = (0,),
    reference: Any = None,
    compile: bool | str | None = None,
    record_every: int | None = None,
    tol: float | None = None,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
) -> ParetoFront:
    """A front whose preferences are chosen on the way; `front(..., preferences="adaptive",
    budget=N)` is this with one start.

    Args:
        problem: f and g.
        starts: pairs (x_0, y_0); where the lower level has several solutions, give several.  From
            each, the m + 1 preferences of `corners` are solved; the branches that are dominated
            then get no more runs.
        budget: for each seed, the work of so many runs of `steps` steps.  Warm runs are shorter, so
            more points come back.
        method: must take preferences.
        steps: of a cold run.
        warm: steps of a warm run as a share of that; it begins at iteration steps - warm * steps of
            the method's schedules, so that every run ends with the same penalty, and with it the
            same bias.  1 makes all runs equally long.
        reference: as in `propose`.
        others: as in `front`.
    """
    if not method.uses_preference:
        raise InvalidInput(
            f"{type(method).__name__} has no preferences to adapt; use a method that has, such as "
            "MOMEHA"
        )
    if not 0 < warm <= 1:
        raise InvalidInput(f"warm = {warm}; it must be above 0 and at most 1")
    begun = [method.prepare(problem, x, y) for x, y in starts]
    m = begun[0].objectives.shape[0]
    if m < 2:
        raise InvalidInput(
            "there is one objective, so there is one preference and nothing to adapt; call front "
            "without preferences, or solve"
        )
    cold = [(start, w) for start in begun for w in corners(m)]
    if budget < len(cold):
        raise InvalidInput(
            f"budget = {budget}, but {len(cold)} runs come first (near each of the {m} corners and "
            "at the centre, from each start); allow more"
        )
    short = max(1, math.ceil(warm * steps))
    options = {
        "m": m,
        "compile": compile,
        "record_every": record_every or max(1, math.ceil(steps / 200)),
        "tol": tol,
        "callbacks": callbacks,
        "progress": progress,
    }
    parts: list[_Found] = []
    for seed in seeds:
        if parts and "interrupted" in parts[-1].run.reason:
            break
        done = _Found.solve(
            problem,
            method,
            [method.begin(start, w) for start, w in cold],
            [seed] * len(cold),
            options | {"steps": steps},
        )
        left, middles, tried = (
            (budget - len(cold)) * steps,
            _Middles(problem, method),
            set[Neighbours](),
        )
        while left >= short and not done.stopped:
            predict = partial(middles.expected, done)
            chosen = propose(
                done.objectives,
                done.preference,
                min(len(cold), left // short),
                predict=predict,
                reference=reference,
                tried=tried,
            )
            if not chosen:
                break
            tried |= {proposal.parents for proposal in chosen}
            states = [
                _warm_state(problem, method, done.run, middles, proposal, steps - short)
                for proposal in chosen
            ]
            done = done.joined(
                _Found.solve(
                    problem, method, states, [seed] * len(states), options | {"steps": short}
                )
            )
            left -= len(states) * short
        parts.append(done)
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined(part)
    return front_of(problem, method, whole.run, whole.preference, whole.seeds, whole.batched)


class _Found(NamedTuple):
    """What is solved so far: the runs, their preferences (R, m), objectives (R, m) and seeds."""

    run: Run
    preference: Tensor
    objectives: Tensor
    seeds: list[int]
    batched: bool

    @classmethod
    def solve(
        cls,
        problem: Problem,
        method: Method,
        states: list[State],
        seeds: list[int],
        options: dict[str, Any],
    ) -> _Found:
        run, batched = run_states(problem, method, states, seeds, options)
        preference = torch.stack([state.preference for state in states]).to("cpu", torch.float64)
        found = front_of(problem, method, run, preference, seeds, batched)
        return cls(run, preference, found.objectives, seeds, batched)

    @property
    def stopped(self) -> bool:
        return any(reason in ("interrupted", "callback") for reason in self.run.reason)

    def joined(self, other: _Found) -> _Found:
        return _Found(
            join_runs([self.run, other.run]),
            torch.cat([self.preference, other.preference]),
            torch.cat([self.objectives, other.objectives]),
            self.seeds + other.seeds,
            self.batched and other.batched,
        )


class _Middles:
    """The means of neighbours, computed once: what starts there, and what to expect there."""

    def __init__(self, problem: Problem, method: Method) -> None:
        self.problem, self.method = problem, method
        self.known: dict[Neighbours, tuple[tuple[Tree, Tree], Tensor] | None] = {}

    def __call__(self, run: Run, group: Neighbours) -> tuple[tuple[Tree, Tree], Tensor] | None:
        """((x, y), objectives (m,)) between the runs, or None where the lower level does not allow
        it.
        """
        if group not in self.known:
            middle = between(
                self.problem,
                [(tree.select(run.state.x, i), tree.select(run.state.y, i)) for i in group],
            )
            with torch.no_grad():
                self.known[group] = (
                    None
                    if middle is None
                    else (middle, self.problem.upper(*middle, self.problem.batch("upper", "full")))
                )
        return self.known[group]

    def expected(self, done: _Found, group: Neighbours) -> tuple[Array, Array] | None:
        """Objectives there, and the preference that aims at them."""
        found = self(done.run, group)
        if found is None:
            return None
        f, rows = found[1].cpu().to(torch.float64), list(group)
        ideal = getattr(done.run.state, "ideal", None)
        w = aimed(
            self.method,
            f,
            done.preference[rows],
            done.objectives[rows],
            None if ideal is None else ideal[rows],
        )
        return f.numpy(), w.numpy()


def _warm_state(
    problem: Problem, method: Method, run: Run, middles: _Middles, proposal: Proposal, begin: int
) -> State:
    """The state of a proposal, between its parents, or at the one that serves its preference best;
    its schedules are at iteration `begin`.
    """
    middle = middles(run, proposal.parents)
    ends = [(tree.select(run.state.x, i), tree.select(run.state.y, i)) for i in proposal.parents]
    # The lower level is solved there already, to the accuracy of the method.
    settled = replace(method, warmup=0) if getattr(method, "warmup", 0) else method  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", BiparetoWarning
        )  # the problem was checked, and warned of, at the start
        starts = [settled.prepare(problem, x, y) for x, y in ([middle[0]] if middle else ends)]
    start = min(starts, key=lambda one: float((proposal.preference * one.objectives.cpu()).max()))
    state = settled.begin(start, proposal.preference)
    return state._replace(t=state.t + begin)
