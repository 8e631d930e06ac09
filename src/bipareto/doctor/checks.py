"""The single looks: each takes a case and returns the diagnoses it finds, none for a healthy one.

A look carries its name, what the trouble is (its docstring) and the remedy; `bipareto list` and the
module's own text are made of them.
"""

from __future__ import annotations

import math
import warnings

import torch

from bipareto.certificate import certificate
from bipareto.doctor.evidence import LOOKS, Case, Diagnosis, diagnosed, extreme_curvatures, look
from bipareto.errors import BiparetoWarning
from bipareto.methods.base import State
from bipareto.methods.parts import curvature, envelope, scalarization
from bipareto.methods.parts.coordinates import Coordinates
from bipareto.problem import tree
from bipareto.run.steppers import stepper

__all__ = ["LOOKS"]

#: moves that are looked at after the last state
PROBE_STEPS = 24
#: net displacement below this share of the path walked is going back and forth
RETURNING = 0.25
#: theta may be away from theta* by this share of ||y - theta*||
LAG = 0.5
#: negative curvature below this share of the largest counts
NEGATIVE = 0.01
#: a share that is visible
VISIBLE = 0.1
#: solving the lower level again may worsen an objective by this share of its span; the gap of a
#: penalty that works halves
WORSE, HALVES = 0.35, 0.5
#: a change below this share is standing still
STILL = 0.01
#: curvature of g in y below this share of the start's is lost
LOST = 0.01
#: an objective's share of the scalarization's weight below this is not being served
UNSERVED = 0.01
#: objectives of different preferences within this share of their size are one point
ONE_POINT = 1e-3


@look("steps-too-large")
def _left_the_numbers(case: Case) -> list[Diagnosis]:
    """A run left the finite numbers."""
    bad = {
        r: {"step": float(failure.step)}
        for r, failure in enumerate(case.failure)
        if failure is not None
    }
    terms = sorted({failure.term for failure in case.failure if failure is not None})
    # Fitted coordinates are those of `tuned`: what is in use already is no remedy.
    fitted = isinstance(getattr(case.state, "coordinates", None), Coordinates)
    remedy = "divide alpha_theta, alpha_x and alpha_y by ten, or " + (
        "write f and g so that they are defined and curve alike where x and y go"
        if fitted
        else "take the numbers of MOMEHA.tuned"
    )
    return diagnosed(
        "steps-too-large",
        bad,
        f"{', '.join(terms)} left the finite numbers (step {{step:.0f}})",
        remedy,
    )


@look("steps-too-large")
def _back_and_forth(case: Case) -> list[Diagnosis]:
    """Moves of x, y or theta turn back on themselves without becoming smaller.

    Walks on from the last state, on all the data, and compares the net displacement with the path.
    """
    if not hasattr(case.state, "theta") or not case.alive:
        # the others take their weights from small quadratic programs and zigzag by nature
        return []
    walk = _walk(case)
    found: dict[int, dict[str, float]] = {}
    blocks: dict[int, str] = {}
    for name in ("theta", "y", "x"):
        points = torch.stack(
            [tree.ravel(getattr(state, name), batch_dims=1).double() for state in walk]
        )
        moves = points.diff(dim=0).norm(dim=2)
        path, net = moves.sum(0), (points[-1] - points[0]).norm(dim=1)
        size = points[0].norm(dim=1) + 1e-12
        half = len(moves) // 2
        lasting = moves[half:].sum(0) > 0.9 * moves[:half].sum(0)
        wide = path / len(moves) > 1e-4 * size
        for r in case.alive:
            share = float(net[r] / path[r].clamp_min(1e-300))
            if (not math.isfinite(share)) or (
                share < RETURNING and bool(lasting[r]) and bool(wide[r])
            ):
                found[r] = {
                    name: float(value[r].nan_to_num(math.inf))
                    for name, value in (("path", path), ("net", net))
                }
                blocks[r] = name
    names = ", ".join(f"alpha_{name}" for name in sorted(set(blocks.values())))
    return diagnosed(
        "steps-too-large",
        found,
        f"{', '.join(sorted(set(blocks.values())))} goes back and forth: {PROBE_STEPS} more steps "
        f"walk {{path:.3g}} "
        "and end {net:.3g} away",
        f"divide {names} by four",
    )


def _walk(case: Case) -> list[State]:
    m = case.objectives.shape[1]
    batches = (
        {role: case.problem.batch(role.level, "full") for role in case.method.roles(m)}
        if case.problem.sampler is not None
        else {}
    )
    state, walk = case.state, [case.state]
    step = stepper(case.problem, case.method, batched=case.batched)
    for _ in range(PROBE_STEPS):
        each = (
            []
            if case.batched
            else [step(tree.select(state, r), batches)[0] for r in range(case.runs)]
        )
        state = step(state, batches)[0] if case.batched else tree.stack(each)
        walk.append(state)
    return walk


@look("theta-lags")
def _theta_lags(case: Case) -> list[Diagnosis]:
    """Theta is further from the proximal point theta*(x, y) than half the distance that it is there
    to measure.
    """
    theta, gamma = getattr(case.state, "theta", None), case.number("gamma")
    fitted = isinstance(getattr(case.state, "coordinates", None), Coordinates)
    if theta is None or gamma is None or not case.alive or fitted or case.network:
        # In fitted coordinates alpha_theta = alpha_y, and theta* is another point; on networks
        # theta lags by design, gamma being of the order of alpha_y T.
        return []
    found: dict[int, dict[str, float]] = {}
    for value in set(gamma.tolist()):
        target = envelope.proximal_point(
            case.problem, case.x, case.y, value, tol=1e-8, max_iter=50, batched=case.batched
        ).y
        lag, there = (
            tree.ravel(tree.sub(a, target), batch_dims=1).double().norm(dim=1)
            for a in (theta, case.y)
        )
        size = tree.ravel(case.y, batch_dims=1).double().norm(dim=1)
        for r in case.alive:
            if gamma[r] == value and lag[r] > LAG * there[r] and lag[r] > 0.02 * (1 + size[r]):
                found[r] = {"lag": float(lag[r]), "there": float(there[r])}
    return diagnosed(
        "theta-lags",
        found,
        "||theta - theta*|| = {lag:.3g}, while ||y - theta*|| = {there:.3g} is what theta is to "
        "measure",
        "raise alpha_theta to alpha_y (at most 1/(L + 1/gamma)), or lower alpha_x and alpha_y",
    )


def _curves_down(case: Case, r: int) -> bool:
    low, high = case.curvature[r]
    return low < -NEGATIVE * max(abs(low), abs(high))


@look("lower-maximum")
def _lower_maximum(case: Case) -> list[Diagnosis]:
    """y stands where g has negative curvature and hardly any slope; the envelope's constraint holds
    there too.
    """
    found: dict[int, dict[str, float]] = {}
    if case.network:  # y ends where a training ends
        return []
    batch = case.problem.batch("lower", "full")
    for r, (low, high) in case.curvature.items():
        scale = max(abs(low), abs(high))
        if not _curves_down(case, r):
            continue
        x, y = case.point(r)
        flat = tree.ravel(y)
        slope = torch.func.grad(curvature.lower_in_y(case.problem, x, y))(flat)
        # Solved again from a little beside y: where g is exactly level nothing would move.
        nudged = flat + 1e-3 * (1 + flat.abs()) * curvature.normal(
            flat, torch.Generator().manual_seed(0)
        )
        one = tree.expand((x, tree.unravel(nudged, y)), 1)
        left = tree.select(
            envelope.solve_lower(case.problem, *one, tol=1e-8, max_iter=50, batched=case.batched).y,
            0,
        )
        # Near stationary: a Newton step along the slope would move y by little of what leaving the
        # place moves it.
        solved = tree.ravel(left)
        with torch.no_grad():
            fall = float(case.problem.lower(x, y, batch) - case.problem.lower(x, left, batch))
        if float(slope.norm()) / scale < 0.25 * float((solved - flat).norm()) and fall > 0:
            found[r] = {"low": low, "high": high, "fall": fall, "slope": float(slope.norm())}
    return diagnosed(
        "lower-maximum",
        found,
        "g curves downwards at y (from {low:.3g} to {high:.3g}) with slope {slope:.3g}: a maximum "
        "or saddle of the lower "
        "level; g falls by {fall:.3g} when y leaves it",
        "keep alpha_theta = alpha_y, lower alpha_y or raise gamma (below 1/(2 rho_y)), start y "
        "elsewhere, or warm it up (warmup=300)",
    )


@look("penalty-too-weak")
def _penalty_too_weak(case: Case) -> list[Diagnosis]:
    """Solving the lower level again changes the objectives visibly, and the gap g - v_gamma has not
    been falling.
    """
    gap = case.history.get("gap")
    if gap is None or not case.alive or case.network:  # see `leak`
        return []
    gap, records = gap.double(), len(gap)
    early, late = (
        gap[: max(records // 4, 1)].median(0).values,
        gap[-max(records // 4, 1) :].median(0).values,
    )
    change = ((case.resolved - case.objectives) / case.span).amax(1)
    c = case.number("c")
    found = {
        r: {
            "change": 100 * float(change[r]),
            "early": float(early[r]),
            "late": float(late[r]),
            "c": float("nan") if c is None else float(c[r]),
        }
        for r in case.alive
        # At a lower maximum the gap is zero and solving again leaves for another basin: that is
        # another trouble.
        if change[r] > WORSE and late[r] > HALVES * early[r].abs() and not _curves_down(case, r)
    }
    return diagnosed(
        "penalty-too-weak",
        found,
        "an objective worsens by {change:.3g} % of its span when the lower level is solved again, "
        "and the gap "
        "g - v_gamma does not fall (median {early:.3g} in the first quarter of the run, {late:.3g} "
        "in the last; c = {c:.3g})",
        "raise c tenfold, or let it grow: c=Power(10 * c_0, 0.45)",
    )


@look("features-collapse")
def _features_collapse(case: Case) -> list[Diagnosis]:
    """g has lost its curvature in y since the start and the objectives have not gained: x makes y
    useless.
    """
    if case.start is None or not case.alive or case.network:
        return []
    x0, y0 = case.start
    begun = envelope.solve_one(case.problem, x0, y0, tol=1e-6, max_iter=30)
    with torch.no_grad():
        before = case.problem.upper(x0, begun, case.problem.batch("upper", "full")).double()
    first = extreme_curvatures(case.problem, x0, begun)[1]
    found: dict[int, dict[str, float]] = {}
    for r in case.alive:
        now = extreme_curvatures(case.problem, *case.point(r, case.solved.y))[1]
        # Not one objective better than before x was ever moved.
        if now < LOST * first and bool((case.resolved[r] > 0.99 * before).all()):
            found[r] = {"ratio": first / max(now, 1e-300), "now": now, "first": first}
    return diagnosed(
        "features-collapse",
        found,
        "g's curvature in y has fallen from {first:.3g} to {now:.3g} and no objective is better "
        "than at the start: x "
        "closes the gap by making y useless",
        "warm y up before x moves (warmup=300), lower c tenfold and alpha_x, or keep x from "
        "switching data off "
        "(softmax weights instead of sigmoids, say)",
    )


def _standing_still(case: Case) -> dict[int, float]:
    """Runs whose objectives moved by less than `STILL` of their size in the second half of the
    records, and by how much.
    """
    seen = case.history["objectives"].double()
    half = seen[len(seen) // 2 :]
    moved = ((half.amax(0) - half.amin(0)) / half.abs().amax(0).clamp_min(1e-12)).amax(1)
    return {r: float(moved[r]) for r in case.alive if moved[r] < STILL and len(half) > 1}


@look("penalty-too-strong")
def _penalty_too_strong(case: Case) -> list[Diagnosis]:
    """The objectives stand still although all of them could fall together."""
    c = case.number("c")
    if c is None or not case.alive or case.network:
        return []
    found: dict[int, dict[str, float]] = {}
    for r, moved in _standing_still(case).items():
        x, y = case.point(r, case.solved.y)
        with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
            seen = certificate.certify(case.problem, x, y)
        if seen.common_descent and seen.improvement > VISIBLE:
            found[r] = {"share": 100 * seen.improvement, "moved": 100 * moved, "c": float(c[r])}
    return diagnosed(
        "penalty-too-strong",
        found,
        "in the second half of the run the objectives moved by {moved:.2g} % only, although all of "
        "them could fall by {share:.3g} % of their ranges (c = {c:.3g})",
        "lower c tenfold, or raise alpha_x or the number of steps",
    )


@look("scale-drowns")
def _scale_drowns(case: Case) -> list[Diagnosis]:
    """One objective is so much larger that another is not served even where the preference asks for
    it most.
    """
    if not case.alive or bool(case.preference.isnan().any()) or case.objectives.shape[1] < 2:
        return []
    mu, ideal = case.number("mu"), getattr(case.state, "ideal", None)
    form = getattr(case.method, "scalarization", None)
    if mu is None or ideal is None or form is None:
        return []
    seen = case.history["objectives"].double()
    found: dict[int, dict[str, float]] = {}
    for i in range(seen.shape[-1]):
        # The run that asks for objective i most: if it is not served there, it is served nowhere.
        r = max(case.alive, key=lambda run: float(case.preference[run, i]))
        w, z = case.preference[r].to(seen), ideal[r].double()
        if w[i] < 0.9 / len(w):
            continue
        w = w / getattr(case.state, "extent", w.new_ones(case.runs, 1))[r].to(w)
        weights = torch.stack([scalarization.get(form).weights(f, w, z, mu[r]) for f in seen[:, r]])
        share = (weights[:, i] / weights.sum(1).clamp_min(1e-300)).max()
        above = seen[:, r] - z
        ratio = (above.amax(1) / above[:, i].clamp_min(1e-300)).min()
        if share < UNSERVED and ratio > 1 / VISIBLE:
            found[r] = {
                "ratio": float(ratio),
                "i": i + 1,
                "share": 100 * float(share),
                "large": float(above[-1].max()),
                "small": float(above[-1, i]),
            }
    return diagnosed(
        "scale-drowns",
        found,
        "objective {i:.0f} ({small:.3g} above the ideal point) carries at most {share:.2g} % of "
        "the weight even where it is "
        "preferred most, because another ({large:.3g}) is {ratio:.3g} times as large",
        "divide each objective by its size (the larger one by {ratio:.3g}), or give an ideal point "
        "per objective",
    )


@look("preference-without-effect")
def _no_effect(case: Case) -> list[Diagnosis]:
    """Different preferences end at one point."""
    w, runs = case.preference, case.alive
    if bool(w.isnan().any()) or len(runs) < 2 or w.shape[1] < 2:
        return []
    spread = float((w[runs].amax(0) - w[runs].amin(0)).max())
    values = case.resolved[runs]
    width = float(((values.amax(0) - values.amin(0)) / values.abs().amax(0).clamp_min(1e-12)).max())
    if spread < 0.2 or width > ONE_POINT:
        return []
    mu = case.number("mu")
    found = {
        r: {
            "width": 100 * width,
            "spread": spread,
            "mu": float("nan") if mu is None else float(mu[r]),
        }
        for r in runs
    }
    return diagnosed(
        "preference-without-effect",
        found,
        "preferences {spread:.2g} apart give objectives within {width:.2g} % of each other (mu = "
        "{mu:.3g})",
        "raise mu (4 m over the mean objective is a good start) and the steps; if that changes "
        "nothing, the objectives do not conflict",
    )
