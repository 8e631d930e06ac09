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
- alpha_x is the share of its way that x goes in one step: more where steps are few.
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
from bipareto.methods.tuning import local, views
from bipareto.methods.tuning.fitting import fit, strong
from bipareto.methods.tuning.local import Kept, Local
from bipareto.methods.tuning.views import View
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped

#: the ideal point's distance below the best values seen, as a share of the extent
MARGIN = 0.02
#: shares of a run after which coordinates are made anew: often while x travels, seldom later
RENEWALS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8)
#: steps between two renewals at least, for one takes about as long as ten steps
APART = 5
#: a run of fewer steps than SHORT goes faster, so that LEFT of x's way is left at its end, and at
#: most FASTEST of it in one step; its coordinates are first made anew after FIRST steps, when x has
#: gone most of its way
SHORT, LEFT, FASTEST, FIRST = 25, 1e-3, 0.7, 3

#: the last picture of each problem's runs: the next renewal looks at it again
_SEEN: WeakKeyDictionary[Problem, Local] = WeakKeyDictionary()
#: the last place from which Hessians were learned, and what was
_KNOWN: WeakKeyDictionary[Problem, tuple[Tensor, Kept]] = WeakKeyDictionary()
#: the last start that was looked at, and its picture: a run begins where it was tuned
_BEGUN: WeakKeyDictionary[Problem, _Begun] = WeakKeyDictionary()


class _Begun(NamedTuple):
    """A start (x, y) as it was given, flat, the lower solution near it, what the losses were there
    (m + 1,), and its picture.
    """

    given: Tensor
    solved: Tree
    losses: Tensor
    seen: Local


def affordable(x: Tree, y: Tree) -> bool:
    """Whether Hessians of this size can be written down, on all the data."""
    return tree.ravel((x, y)).numel() <= local.DENSE


class Survey(NamedTuple):
    """What was seen of a front from its start: views from the start and from between the ends, the
    ideal point z that stays, and the extent s (m,).  The ends themselves may lie at infinity.
    `kept` is what was learned of Hessians.
    """

    views: list[View]
    ideal: Fixed
    extent: Tensor
    kept: Kept


def survey(problem: Problem, x: Tree, y: Tree) -> Survey:
    """Look at the start, find the ends of the front, and measure all by them."""
    start, kept = _start(problem, x, y)
    ends, ideal, extent = local.extremes(problem, start, (x, y), kept)
    middle_x = local.as_trees(ends.x.mean(0, keepdim=True), x)
    middle_y = local.as_trees(ends.y.mean(0, keepdim=True), y)
    middle = local.look(problem, middle_x, local.settle(problem, middle_x, middle_y), kept)
    z = ideal - MARGIN * extent
    given = tree.ravel(y).double() - start.y[0]
    pair = [
        views.view(problem, (x, y), start, given, middle),
        views.view(problem, (x, y), middle, 0 * given, start),
    ]
    return Survey(pair, Fixed(tuple(z.tolist())), extent, kept)


def _start(problem: Problem, x: Tree, y: Tree) -> tuple[Local, Kept]:
    """The picture at the lower solution near a start, and what is known of Hessians from there."""
    given, last = tree.ravel((x, y)), _BEGUN.get(problem)
    x, y = tree.expand((x, y), 1)
    # What the losses read may have been changed in the meantime.
    if (
        last is not None
        and local.same(last.given, given)
        and local.same(last.losses, _losses(problem, x, last.solved))
    ):
        return last.seen, _learned(problem, x, last.solved)
    y = local.settle(problem, x, y)
    kept = _learned(problem, x, y)
    # Seen as any other place is, so that it makes no difference in bits who learned it.
    seen = local.look(problem, x, y, kept)
    _BEGUN[problem] = _Begun(given, y, _losses(problem, x, y), seen)
    return seen, kept


def _losses(problem: Problem, x: Tree, y: Tree) -> Tensor:
    """f and g at one place, trees with a first axis of 1, (m + 1,)."""
    x, y = tree.select((x, y), 0)
    upper, lower = (problem.batch(level, "full") for level in ("upper", "lower"))
    with torch.no_grad():
        return torch.cat([problem.upper(x, y, upper), problem.lower(x, y, lower)[None]])


def _learned(problem: Problem, x: Tree, y: Tree) -> Kept:
    """What is known of Hessians from one point, trees with a first axis of 1."""
    at = tree.ravel((x, y))
    last = _KNOWN.get(problem)
    if last is None or not local.same(last[0], at):
        last = _KNOWN[problem] = at, local.learn(problem, x, y)
    return last[1]


def known(problem: Problem, x: Tree, y: Tree) -> Kept:
    """What was learned last of the Hessians of a problem in variables like (x, y), trees with a
    first axis R; nothing where none was.
    """
    at, kept = _KNOWN.get(problem, (None, local.NOTHING))
    here = tree.ravel(tree.select((x, y), 0))
    alike = at is not None and (at.shape, at.device) == (here.shape, here.device)
    return kept if alike else local.NOTHING


def largest(alpha: float | Tensor, gamma: float | Tensor) -> Any:
    """The curvature of g that steps alpha of theta and y allow for: alpha (L + 1/gamma) = 0.8."""
    return 0.8 / alpha - 1 / gamma


def begin(
    problem: Problem, x: Tree, y: Tree, *, extent: Tensor, mu: float, gamma: float, alpha: float,
    penalty: float, pace: float,
) -> Coordinates:  # fmt: skip
    """Coordinates for runs that start at (x, y), with an eye on where equal weights would lead."""
    own, kept = _start(problem, x, y)
    ahead = local.minimise(problem, 1 / extent[None], own, (x, y), kept, iterations=1)
    found = fit(
        own, [ahead], extent=extent, mu=mu, gamma=gamma, largest=largest(alpha, gamma),
        penalty=own.f.new_tensor([penalty]), pace=pace,
    )  # fmt: skip
    _SEEN[problem], place = own, (own.x[0], own.y[0])
    return Coordinates(found.x[0], found.y[0], found.follow[0], *place, *place)


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
        kept = _learned(problem, *_places(frame.first_x[:1], frame.first_y[:1], like))
        own = local.look(problem, state.x, solved, kept)
        last = _seen_before(problem, frame, like, kept)
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
        found = fit(
            local.rows(own, good),
            [local.rows(last, good)],
            extent=state.extent[first].double(),
            mu=float(knobs.mu[first]),
            gamma=gamma,
            largest=largest(alpha, gamma),
            penalty=penalty[good],
            pace=float(knobs.alpha_x(zero)[first]),
            metric=None if convex else frame.y.double()[good],
        )
    except RuntimeError:  # a decomposition that does not converge
        return state
    parts = {
        "x": found.x, "y": found.y, "follow": found.follow,
        "made_x": own.x[good], "made_y": own.y[good],
    }  # fmt: skip
    made = {
        name: old.index_copy(0, good, parts[name].to(old))
        for name, old in frame._asdict().items()
        if name in parts
    }
    frame = frame._replace(**made)
    state = state._replace(coordinates=frame)
    if not power:
        return state
    scale = knobs.c.scale * (penalty.index_copy(0, good, found.penalty) / penalty).to(knobs.c.scale)
    return state._replace(knobs=knobs._replace(c=knobs.c._replace(scale=scale)))


def _seen_before(
    problem: Problem, frame: Coordinates, like: tuple[Tree, Tree], kept: Kept
) -> Local:
    """The picture where the coordinates were made."""
    x, y = frame.made_x, frame.made_y
    count = len(x)
    if bool((x == x[:1]).all()) and bool((y == y[:1]).all()):  # runs that have begun together
        x, y = x[:1], y[:1]
    at = _SEEN.get(problem)
    if at is None or not local.same(at.x, x.double()) or not local.same(at.y, y.double()):
        at = local.look(problem, *_places(x, y, like), kept)
    return local.rows(at, [0] * count) if len(x) < count else at


def _places(x: Tensor, y: Tensor, like: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Rows of flat points as trees."""
    return local.as_trees(x, like[0]), local.as_trees(y, like[1])


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
        return _in_coordinates(problem, found, steps, seed)
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


def _in_coordinates(problem: Problem, found: Survey, steps: int, seed: int) -> dict[str, Any]:
    seen_from, start = found.views, views.curvatures(problem, found.views[0], found.kept, seed)
    curvatures = [start]
    if start[0] >= -0.01:
        curvatures += [views.curvatures(problem, view, found.kept, seed) for view in seen_from[1:]]
    if min(low for low, _ in curvatures) < -0.01:
        # Not convex: y keeps the metric of the start, so that alone counts.
        curvatures, seen_from = [start], seen_from[:1]
    L = max(high for _, high in curvatures)
    rho = max(-min(low for low, _ in curvatures), 0.0)
    gamma, alpha = rules.envelope_steps(L, rho, unit=1.0)
    c0 = max(views.first_penalty(view, gamma, found.extent, seed) for view in seen_from)
    mu, ideal, extent = _measured(found)
    # As fast as y can follow well, and not slower than the budget asks for.
    pace = min(0.25, max(200 / steps, 0.02))
    if steps < SHORT:
        pace = min(1 - LEFT ** (1 / steps), FASTEST)
    # Runs that come where a stronger penalty is asked for raise it there.
    penalties = [
        strong(
            view.at, extent=extent, mu=mu, largest=largest(alpha, gamma),
            penalty=extent.new_tensor([c0]),
        )
        for view in found.views
    ]  # fmt: skip
    return {
        "gamma": gamma,
        "mu": mu,
        "alpha_theta": alpha,
        "alpha_x": pace,
        "alpha_y": alpha,
        "c": Power(max(map(float, penalties)), POWER),
        "ideal": ideal,
        "extent": tuple(extent.tolist()),
        "coordinates": "fitted",
        "warmup": rules.WARMUP,
    }
