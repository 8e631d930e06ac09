"""Which preferences to solve next, from the objectives found so far."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bipareto.fronts.measures import Array, hypervolume
from bipareto.methods import Method
from bipareto.methods.parts import scalarization
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: The weight that a near-corner preference leaves to each other objective.
EDGE = 0.02


#: Runs, by their place on the run axis, that are neighbours on the front: two ends of an edge, or
#: the corners of a simplex.
Neighbours = tuple[int, ...]


#: The objectives (m,) expected between neighbours and the preference (m,) that leads there, or None
#: where nothing can be said.
Predict = Callable[[Neighbours], tuple[Array, Array] | None]


class Proposal(NamedTuple):
    """A preference (m,) to solve next, the solved runs it lies between, its score (`propose`)."""

    preference: Tensor
    parents: Neighbours
    score: float


def corners(m: int) -> Tensor:
    """The preferences that come first: one near each corner of the simplex and the centre, shape (m
    + 1, m), float64.

    >>> corners(2)
    tensor([[0.9800, 0.0200],
            [0.0200, 0.9800],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    identity = torch.eye(m, dtype=torch.float64)
    near = torch.full_like(identity, EDGE) + (1 - m * EDGE) * identity
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
    # In units of the extent the scalarization has none.
    s = torch.as_tensor(getattr(method, "extent", 1.0), dtype=torch.float64)
    f, z = (value.detach().to("cpu", torch.float64) / s for value in (objectives, ideal))
    normals = scalarization.get(name).weights(f, w, z, torch.as_tensor(mu, dtype=torch.float64))
    normal = (normals / normals.sum(1, keepdim=True)).mean(0)
    return scalarization.aim(name, target.to("cpu", torch.float64) / s, normal, z.mean(0), mu)
