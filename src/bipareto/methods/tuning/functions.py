"""Hyperparameters of MOMEHA and MB-MOMEHA for a function.

Where the problem is small enough to be looked at whole, objectives are measured by their own range
over the front, and without noise x and y run in coordinates.  Else probes along single directions
serve, as told in `envelope_methods`.  The rules of the first, none of which knows units:

- *Objectives* are measured against their own range over the front: z is the ideal point, a fiftieth
  of the extent below the best values, and s the extent, both from the ends of the front
  (`local.extremes`).  In these units mu = 4 m.
- *x and y* run in `Coordinates` in which g_yy is the identity and y goes along with x, made at the
  start (`begin`) and made anew on the way from what each run meets (`renew`).
- gamma and the steps of y follow the rules of `envelope_methods`, with curvatures in these
  coordinates seen at the start, at the ends of the front and between them.
- c_0 keeps the tilt F/c below the peak of the envelope's restoring force, and F's curvature in y
  below a fifth of g's.  c grows like (1 + t)^0.4: x's bias is of order 1/c, the objectives' its
  square.
- alpha_x is the share of its way that x goes in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.parts.coordinates import Coordinates
from bipareto.methods.parts.scalarization import Fixed, Ideal
from bipareto.methods.parts.schedule import Power
from bipareto.methods.tuning import envelope_methods as rules
from bipareto.methods.tuning import local
from bipareto.methods.tuning.local import Local
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped

#: the ideal point's distance below the best values seen, as a share of the extent
MARGIN = 0.02
#: variables up to which Hessians are written down
MOST = 256
#: shares of a run after which coordinates are made anew: often while x travels, seldom later
RENEWALS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8)

#: the last picture of each problem's runs: the next renewal looks at it again
_SEEN: WeakKeyDictionary[Problem, Local] = WeakKeyDictionary()


def affordable(x: Tree, y: Tree) -> bool:
    """Whether Hessians of this size can be written down, on all the data."""
    return tree.ravel((x, y)).numel() <= MOST


class View(NamedTuple):
    """The problem as seen from one place.

    Attributes:
        at: the picture there, R = 1.
        problem: in (u, v), x = x_0 + u and y = y_0 + B v + W u with (x_0, y_0) the place: g_yy is
            the identity at (0, 0), and the objectives are (f - z)/s.
        given: a point v of interest: y as a user gave it, or 0.
        scale: how far y travels from place to place, root mean square per coordinate of v.
    """

    at: Local
    problem: Problem
    given: Tensor
    scale: float


class Survey(NamedTuple):
    """What was seen of a front from its start: views from the start and from between the ends, the
    ideal point z that stays, and the extent s (m,).  The ends themselves may lie at infinity.
    """

    views: list[View]
    ideal: Fixed
    extent: Tensor


def survey(problem: Problem, x: Tree, y: Tree) -> Survey:
    """Look at the start, find the ends of the front, and measure all by them."""
    lead = tree.map_(lambda leaf: leaf[None], x), tree.map_(lambda leaf: leaf[None], y)
    start = local.look(problem, lead[0], local.settle(problem, *lead))
    ends, ideal, extent = local.extremes(problem, start, (x, y))
    middle_x = local.as_trees(ends.x.mean(0, keepdim=True), x)
    middle_y = local.as_trees(ends.y.mean(0, keepdim=True), y)
    middle = local.look(problem, middle_x, local.settle(problem, middle_x, middle_y))
    z = ideal - MARGIN * extent
    given = tree.ravel(y).double() - start.y[0]
    views = [
        _view(problem, x, y, start, z, extent, given, middle),
        _view(problem, x, y, middle, z, extent, 0 * given, start),
    ]
    return Survey(views, Fixed(tuple(z.tolist())), extent)


def _view(
    problem: Problem, x: Tree, y: Tree, at: Local, z: Tensor, extent: Tensor, given: Tensor,
    other: Local,
) -> View:  # fmt: skip
    like = tree.ravel(x)
    root = local.inverse(at.g_yy[0], local.FLOOR[like.dtype], flat=True)[1]
    at_x, at_y, B, W, z, extent = (
        value.to(like) for value in (at.x[0], at.y[0], root, at.follow[0], z, extent)
    )
    lower, upper = problem.batch("lower", "full"), problem.batch("upper", "full")

    def back(u: Tensor, v: Tensor) -> tuple[Tree, Tree]:
        return tree.unravel(at_x + u, x), tree.unravel(at_y + B @ v + W @ u, y)

    turned = torch.linalg.solve(root, torch.stack([other.y[0] - at.y[0], given], 1))
    return View(
        at,
        Problem(
            upper=lambda u, v: (problem.upper(*back(u, v), upper) - z) / extent,
            lower=lambda u, v: problem.lower(*back(u, v), lower),
        ),
        torch.linalg.solve(root, given).to(like),
        float(turned.square().mean(0).sqrt().max()) or 1.0,
    )


def largest(alpha: float | Tensor, gamma: float | Tensor) -> Any:
    """The curvature of g that steps alpha of theta and y allow for: alpha (L + 1/gamma) = 0.8."""
    return 0.8 / alpha - 1 / gamma


def begin(
    problem: Problem, x: Tree, y: Tree, *, extent: Tensor, mu: float, gamma: float, alpha: float,
    penalty: float, pace: float,
) -> Coordinates:  # fmt: skip
    """Coordinates for runs that start at (x, y), with an eye on where equal weights would lead."""
    floor = local.FLOOR[tree.first_leaf(x).dtype]
    lead = tree.map_(lambda leaf: leaf[None], x), tree.map_(lambda leaf: leaf[None], y)
    own = local.look(problem, lead[0], local.settle(problem, *lead))
    ahead = local.minimise(problem, 1 / extent[None], own, (x, y), iterations=1)
    found = local.fit(
        own, [ahead], extent=extent, mu=mu, gamma=gamma, largest=largest(alpha, gamma),
        penalty=own.f.new_tensor([penalty]), pace=pace, floor=floor,
    )  # fmt: skip
    return Coordinates(found.x[0], found.y[0], found.follow[0], own.x[0], own.y[0])


def renew(problem: Problem, state: Any) -> Any:
    """States of MOMEHA, with a first axis R, whose coordinates are made anew where each run is,
    with an eye on where it was last time.  A run whose picture is not finite, or shows another
    valley of g than the one it is in, keeps what it has.
    """
    frame, knobs, like = state.coordinates, state.knobs, tree.select((state.x, state.y), 0)
    # A penalty that is no power of t was somebody's choice, and is left alone.
    power = isinstance(knobs.c, Power)
    penalty = knobs.c(state.t).double().expand(state.t.shape)
    zero = torch.zeros_like(state.t)
    try:
        solved = local.settle(problem, state.x, state.y)
        own = local.look(problem, state.x, solved)
        last = _seen_before(problem, frame, like)
        _SEEN[problem] = own
        alike = local.same_valley(problem, state.x, state.y, solved)
        good = (_finite(own) & _finite(last) & alike).nonzero().flatten()
        if not len(good):
            return state
        # One method, so one set of hyperparameters but for the penalty.
        first = int(good[0])
        gamma, alpha = float(knobs.gamma[first]), float(knobs.alpha_y(zero)[first])
        # Where g is not convex (gamma L is not 4, see `envelope_steps`) the steps of y are bounded
        # so that they leave lower maxima; a metric from a place where g happens to be flat would
        # stretch them beyond that.
        convex = abs(gamma * largest(alpha, gamma) - 4) < 0.01
        found = local.fit(
            local.rows(own, good),
            [local.rows(last, good)],
            extent=state.extent[first].double(),
            mu=float(knobs.mu[first]),
            gamma=gamma,
            largest=largest(alpha, gamma),
            penalty=penalty[good],
            pace=float(knobs.alpha_x(zero)[first]),
            floor=local.FLOOR[tree.first_leaf(like).dtype],
            kept=None if convex else frame.y.double()[good],
        )
    except RuntimeError:  # a decomposition that does not converge
        return state
    made = Coordinates(found.x, found.y, found.follow, own.x[good], own.y[good])
    frame = Coordinates(
        *(old.index_copy(0, good, new.to(old)) for old, new in zip(frame, made, strict=True))
    )
    state = state._replace(coordinates=frame)
    if not power:
        return state
    scale = knobs.c.scale * (penalty.index_copy(0, good, found.penalty) / penalty).to(knobs.c.scale)
    return state._replace(knobs=knobs._replace(c=knobs.c._replace(scale=scale)))


def _seen_before(problem: Problem, frame: Coordinates, like: tuple[Tree, Tree]) -> Local:
    """The picture where the coordinates were made."""
    kept = _SEEN.get(problem)
    made = frame.made_x.double(), frame.made_y.double()
    if kept is not None and torch.equal(kept.x, made[0]) and torch.equal(kept.y, made[1]):
        return kept
    return local.look(
        problem, *(local.as_trees(at, part) for at, part in zip(made, like, strict=True))
    )


def _finite(at: Local) -> Tensor:
    return torch.stack([torch.isfinite(value).flatten(1).all(1) for value in at]).all(0)


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
        try:
            return rule(problem, x, y, steps=steps, seed=seed)
        except RuntimeError as error:
            numerical = isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
            if numerical or "memory" in str(error):
                raise
            raise InvalidInput(
                "the default method reads its steps off second derivatives of the losses, and "
                f"torch has none ({shorten(str(error), 120, placeholder=' ...')}); pass a method "
                "with hyperparameters of your own, such as bp.MOMEHA(gamma=1.0, alpha_x=0.1, "
                "alpha_y=0.1, alpha_theta=0.1, c=5.0), which needs gradients only, or give the "
                "data in DataLoaders, where the default needs no more either"
            ) from error
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
    if not affordable(x, y):
        return None
    try:
        found = survey(problem, x, y)
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
            view.at, [], extent=extent, mu=mu, gamma=gamma, largest=largest(alpha, gamma),
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
