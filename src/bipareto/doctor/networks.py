"""Looks at runs whose lower level is a training: drift, leak, test data of another kind, and an x
that has run to a corner.

Such a y is not solved for, it is trained, and ends on a slope among saddles; the looks that solve
the lower level by Newton steps say nothing about it and leave it out (`Case.network`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bipareto.doctor.evidence import Case, Diagnosis, diagnosed, look
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.run.budget import FEW
from bipareto.run.training import judged

#: y has grown by this factor, and would wander this many times as far as by SGD's noise alone
GROWN, WANDERS = 1.25, 3.0
#: an objective worsens by this share of itself when y is trained on g alone, or on test data, and
#: by this share of its span
LEAKS, SEEN = 0.5, 0.1
#: a coordinate of x has gone so far, and g's slope in x is this share of what it was at x0
FAR, FLAT = 10.0, 1e-2


@look("drift")
def _drift(case: Case) -> list[Diagnosis]:
    """y and theta wander together through directions in which g is flat: y has grown, and gamma is
    far below alpha_y T.

    At kappa = alpha_theta/alpha_y = 1 the difference y - theta is a random walk that moves both by
    alpha/gamma of it at every step: about 0.6 alpha T/gamma times as far as noise alone.
    """
    gamma, knobs = case.number("gamma"), getattr(case.state, "knobs", None)
    if not case.network or gamma is None or knobs is None or case.start is None:
        return []
    zero = torch.zeros_like(case.state.t)
    alpha, alpha_theta = (
        getattr(knobs, name)(zero).expand(case.runs).double() for name in ("alpha_y", "alpha_theta")
    )
    wanders = 0.6 * alpha * case.state.t.double() / gamma
    # kappa > 1 forgets the difference.
    forgets = 2**0.5 / (alpha_theta / alpha - 1).clamp_min(1e-9)
    wanders = torch.minimum(wanders, forgets)
    start = float(tree.norm(case.start[1]))
    size = tree.ravel(case.y, batch_dims=1).double().norm(dim=1)
    apart = tree.ravel(tree.sub(case.y, case.state.theta), batch_dims=1).double().norm(dim=1)  # type: ignore[attr-defined]
    found = {
        r: {
            "factor": float(size[r]) / start,
            "size": float(size[r]),
            "start": start,
            "apart": float(apart[r]),
            "wanders": float(wanders[r]),
            "gamma": float(gamma[r]),
            "enough": float(alpha[r] * case.state.t[r]),
        }
        for r in case.alive
        if start > 0 and size[r] > GROWN * start and wanders[r] > WANDERS
    }
    return diagnosed(
        "drift",
        found,
        "||y|| has grown from {start:.3g} to {size:.3g} (||y - theta|| = {apart:.3g}): with gamma ="
        " {gamma:.3g} noise moves y and theta together {wanders:.2g} times as far as a training",
        "take gamma of about alpha_y T = {enough:.3g} or alpha_theta = 1.5 alpha_y, or leave the "
        "method out: Twin has no theta",
    )


@look("leak")
def _leak(case: Case) -> list[Diagnosis]:
    """y has learned the upper level's data: an objective is much worse once y is trained on g
    alone; or x has: it is much worse on test data.
    """
    if not case.network or not case.alive:
        return []
    found = _worse(case, case.resolved) if hasattr(case.state, "theta") else {}
    c = case.number("c")
    if found:
        much = "" if c is None else f" (c = {float(c[next(iter(found))]):.3g})"
        return diagnosed(
            "leak",
            found,
            "an objective worsens by {change:.3g} % when y is trained on g alone: y "
            f"has learned the upper level's data{much}",
            "raise c tenfold, or leave the method out: with Twin y never sees that data",
        )
    return diagnosed(
        "leak",
        {r: change for r, change in _worse_on_test(case).items() if _may_have_learned(case, r)},
        "an objective is worse by {change:.3g} % on test data: x has learned the upper "
        "level's data by heart",
        "give the upper level more data, x fewer coordinates or smaller steps, or take fewer steps",
    )


@look("other-data")
def _other_data(case: Case) -> list[Diagnosis]:
    """An objective is much worse on test data though x has not moved, or has too few coordinates to
    have learned the upper level's data: the two are data of different kinds, or one is small.
    """
    if not case.network or not case.alive:
        return []
    return diagnosed(
        "other-data",
        {r: change for r, change in _worse_on_test(case).items() if not _may_have_learned(case, r)},
        "an objective is worse by {change:.3g} % on test data, and x has hardly had the means to "
        "learn the upper level's data: test data is harder, or of another kind",
        "draw both from one source (shuffle before you split), and enough of each",
    )


def _may_have_learned(case: Case, run: int) -> bool:
    """Whether x has moved, and has coordinates enough to fit the upper level's data."""
    x, _ = case.point(run)
    flat = tree.ravel(x)
    moved = case.start is None or not torch.equal(flat, tree.ravel(case.start[0]).to(flat))
    return moved and flat.numel() > FEW


def _worse_on_test(case: Case) -> dict[int, dict[str, float]]:
    _, test = judged(case.problem, case.x, case.y, case.batched)
    return {} if test is None else _worse(case, test.double())


def _worse(case: Case, other: Tensor) -> dict[int, dict[str, float]]:
    """By how many percent an objective of a run is worse in `other` (R, m), where that matters."""
    change = other - case.objectives
    size = case.objectives.abs().clamp_min(1e-12)
    share = torch.where(change > SEEN * case.span, change / size, 0.0).amax(1)
    return {r: {"change": 100 * float(share[r])} for r in case.alive if share[r] > LEAKS}


@look("corner")
def _corner(case: Case) -> list[Diagnosis]:
    """x has gone so far that g hardly depends on it any more, as the logits of a softmax do at a
    corner: nothing leads it back.

    After a race it is no trouble: trainings have found that corner better than x0.
    """
    if not case.network or case.start is None or case.raced:
        return []
    x0 = tree.ravel(case.start[0]).double()
    far = (tree.ravel(case.x, batch_dims=1).double() - x0).abs().amax(1)
    found: dict[int, dict[str, float]] = {}
    for r in case.alive:
        if far[r] < FAR:
            continue
        x, y = case.point(r)
        here, there = (_slope(case, point, y) for point in (x, case.start[0]))
        if here < FLAT * there:
            found[r] = {"far": float(far[r]), "here": here, "there": there}
    return diagnosed(
        "corner",
        found,
        "a coordinate of x has gone {far:.3g} from its start, and ||grad_x g|| has fallen from "
        "{there:.3g} to {here:.3g}",
        "divide alpha_x by ten, or leave the method out: a race finds how far x may go",
    )


def _slope(case: Case, x: Tree, y: Tree) -> float:
    batch = case.problem.batch("lower", "full")
    slope = torch.func.grad(lambda point: case.problem.lower(point, y, batch))(x)
    return float(tree.norm(slope))
