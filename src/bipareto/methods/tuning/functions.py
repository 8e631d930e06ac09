"""Hyperparameters of MOMEHA and MB-MOMEHA for a function.

Where the problem is small enough to be looked at whole, objectives are measured by their own range
over the front, and without noise x and y run in coordinates; the rules are told in `units`.  Else
probes along single directions serve, as told in `envelope_methods`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts.scalarization import Ideal
from bipareto.methods.parts.schedule import Power
from bipareto.methods.tuning import envelope_methods as rules
from bipareto.methods.tuning import local, units
from bipareto.methods.tuning.units import Survey
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped

#: p in c_t = c_0 (1 + t)^p of runs in coordinates
POWER = 0.4


class Question(NamedTuple):
    """What a preference asks for: mu, the ideal point z, and the objectives' extent s (m,)."""

    mu: float
    ideal: Ideal
    extent: Tensor


def question(problem: Problem, x0: Any, y0: Any) -> Question:
    """The question that `MOMEHA.tuned` puts to a problem from this start."""
    x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    if found := _surveyed(problem, x, y):
        return _measured(found)
    mu, ideal = rules.smoothing(problem, x, y)
    f = problem.upper(x, y, problem.batch("upper", "full"))
    return Question(mu, ideal, torch.ones_like(f, dtype=torch.float64))


def tune_momeha(
    problem: Problem, x0: Any, y0: Any, *, steps: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Keyword arguments for `MOMEHA`."""
    x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    problem.check(x, y)
    steps = steps or rules.STEPS
    found = _surveyed(problem, x, y)
    if found and problem.sampler is None:
        return _in_coordinates(found, steps, seed, local.FLOOR[tree.first_leaf(x).dtype])
    return _in_plain_ones(rules.tune_momeha, problem, found, x, y, steps, seed)


def tune_mbmomeha(
    problem: Problem, x0: Any, y0: Any, *, steps: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Keyword arguments for `MBMOMEHA`, which runs in plain coordinates: a draw does not show the
    curvatures that fitted ones follow.
    """
    x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    problem.check(x, y)
    found = _surveyed(problem, x, y)
    return _in_plain_ones(rules.tune_mbmomeha, problem, found, x, y, steps, seed)


def _in_plain_ones(
    rule: Callable[..., dict[str, Any]],
    problem: Problem,
    found: Survey | None,
    x: Tree,
    y: Tree,
    steps: int | None,
    seed: int,
) -> dict[str, Any]:
    """A rule for plain coordinates, with objectives in units of their extent where it is known."""
    if found is None:
        return rule(problem, x, y, steps=steps, seed=seed)
    mu, ideal, extent = _measured(found)
    tuned = rule(_InUnits(problem, ideal.start(extent), extent), x, y, steps=steps, seed=seed)
    return tuned | {"mu": mu, "ideal": ideal, "extent": tuple(extent.tolist())}


class _InUnits(Wrapped):
    """A problem with the objectives (f - z)/s."""

    def __init__(self, problem: Problem, z: Tensor, s: Tensor) -> None:
        super().__init__(problem)
        self.z, self.s = z, s

    def upper(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        f = self.inner.upper(x, y, batch)
        return (f - self.z.to(f)) / self.s.to(f)

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        f = self.inner.objective(i, x, y, batch)
        return (f - self.z[i].to(f)) / self.s[i].to(f)


def _surveyed(problem: Problem, x: Any, y: Any) -> Survey | None:
    if not units.affordable(x, y):
        return None
    try:
        found = units.survey(problem, x, y)
    except RuntimeError:  # losses that vmap cannot batch or autograd cannot differentiate twice
        return None
    seen = [value for view in found.views for value in view.at]
    seen += [found.extent, torch.tensor(found.ideal.value)]
    if not all(bool(torch.isfinite(value).all()) for value in seen):
        return None  # an objective without a least value, or a point where one is undefined
    # A lower level that curves downwards in all directions is at a maximum, or has no minimum.
    highest = [float(torch.linalg.eigvalsh(view.at.g_yy).max()) for view in found.views]
    return found if min(highest) > 0 else None


def _measured(found: Survey) -> Question:
    return Question(4.0 * len(found.extent), found.ideal, found.extent)


def _in_coordinates(found: Survey, steps: int, seed: int, floor: float) -> dict[str, Any]:
    spots = [
        (view.problem, view.given.new_zeros(view.at.x.shape[1]), torch.zeros_like(view.given), view)
        for view in found.views
    ]
    # Curvatures around y* as far as y travels (the rule looks three times as far), and where y was
    # given.
    curvatures = [
        rules._curvature(problem, u, [view.given, v], seed, view.scale / 3)
        for problem, u, v, view in spots
    ]
    L = max(seen.largest for seen in curvatures)
    rho = max(-min(seen.smallest for seen in curvatures), 0.0)
    if rho > 0.01:
        # Not convex: y keeps the metric of the start, so that alone counts.
        L, rho = curvatures[0].largest, max(-curvatures[0].smallest, 0.0)
        spots = spots[:1]
    gamma, alpha = rules.envelope_steps(L, rho, unit=1.0)
    c0 = 0.0
    for problem, u, v, view in spots:
        alone = rules._separability(problem, u, v, seed)
        for row in rules._gradients(problem, u, v):
            tilt = row[u.numel() :]
            force = rules._restoring_force(
                problem, u, v, gamma, view.scale, tilt, seed, batched=True
            )
            c0 = max(c0, rules._size(tilt, alone) / force)
    mu, ideal, extent = _measured(found)
    # As fast as y can follow, and not slower than the budget asks for.
    pace = min(0.25, max(200 / steps, 0.02))
    # Runs that come where a stronger penalty is asked for raise it there.
    fits = [
        local.fit(
            view.at, [], extent=extent, mu=mu, gamma=gamma, largest=units.largest(alpha, gamma),
            penalty=extent.new_tensor([c0]), pace=pace, floor=floor,
        )
        for view in found.views
    ]  # fmt: skip
    return {
        "gamma": gamma,
        "mu": mu,
        "alpha_theta": alpha,
        "alpha_x": pace,
        "alpha_y": alpha,
        "c": Power(max(float(fit.penalty) for fit in fits), POWER),
        "ideal": ideal,
        "extent": tuple(extent.tolist()),
        "coordinates": "fitted",
        "warmup": rules.WARMUP,
    }
