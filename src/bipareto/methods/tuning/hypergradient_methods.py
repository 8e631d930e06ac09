"""Numbers for the methods that follow hypergradients, from a few probes of a problem at its start.

The rules, each with its reason:

- L and h: extreme curvatures of g in y, by Lanczos at the start and at the lower solution near it.
  Steps on g are 1/L; the number of inner steps is what (1 - h/L)^K needs for a given accuracy.
- the slope of the hypergradients: power iteration on their differences, with y re-solved at every
  point.  1/slope is the longest step for which plain descent on each f_i(x, y*(x)) cannot fail near
  the start.
- under noise (a problem with a sampler) x's steps fall like (1 + t)^(-1/2).
- penalties grow with the budget, in the units of the problem: u beside 1/(w f), v beside the
  curvature of f over the squared one of g.  The theory's T^(1/4) belongs to steps that no probe has
  measured; with these, T^(1/2)/4 still converges within the budget and leaves less bias.
- without noise, and where g bends in every direction, they also grow along the run, as (1 +
  t)^(3/4), with steps that fall as fast: x travels while the valley is wide, and v ends as high as
  the softest way that x must go allows, TRAVEL e-foldings of it in all.  The bias, of order 1/v,
  ends several times smaller.
- steps of a penalised function are inverses of its curvature u sum_i w_i^2 grad f_i grad f_i^T +
  sum_i omega_i w_i hess f_i + ..., which is convex in w and so largest at a corner of the simplex:
  w = omega = e_i.  One step serves all preferences, so it is taken there, at the start and at the
  lower solution near it; that of equal weights is up to m^2 times too long near a corner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import curvature, envelope
from bipareto.methods.parts.hypergradient import hypergradients_of
from bipareto.methods.parts.schedule import Power, Schedule
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: budget assumed when none is given
STEPS = 20_000
#: products of the linear solves: what a well-conditioned lower level needs at most
SOLVER_ITERATIONS = 20
#: how penalties grow along a run, and e-foldings that x must be able to travel meanwhile
GROWTH, TRAVEL = 0.75, 7.0


class Scales(NamedTuple):
    """What was seen at the start.

    largest, smallest: L and h, the latter at least L/1000.
    slope: Lipschitz constant of the hypergradients.
    gradient: the longest of them.
    n_y: coordinates of y.
    """

    largest: float
    smallest: float
    slope: float
    gradient: float
    n_y: int

    def inner_steps(self, accuracy: float, most: int) -> int:
        """K with (1 - h/L)^K <= accuracy, between 1 and `most`."""
        ratio = 1 - self.smallest / self.largest
        return (
            most
            if ratio >= 1
            else min(most, max(1, math.ceil(math.log(accuracy) / math.log(max(ratio, 1e-6)))))
        )

    def solver_iterations(self) -> int:
        """Conjugate gradients end after n_y products at the latest."""
        return min(self.n_y, SOLVER_ITERATIONS)

    @property
    def pace(self) -> float:
        """The part of 1/slope that lets a single step on g per step of x follow its slowest
        direction.
        """
        return min(0.5, self.smallest / self.largest)

    @property
    def weight_step(self) -> float:
        """A step for weights that descend lam^T G lam, G the hypergradients' Gram matrix."""
        return 0.5 / max(self.gradient**2, 1e-12)

    def step(self, problem: Problem, factor: float = 1.0) -> Schedule | float:
        """factor/slope, falling where gradients are noisy."""
        return factor / self.slope if problem.sampler is None else Power(factor / self.slope, -0.5)


def probe(problem: Problem, x0: Any, y0: Any, *, seed: int = 0) -> Scales:
    """Look at a problem's start."""
    x, y0 = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    problem.check(x, y0)
    y = _settle(problem, x, y0)
    stream = torch.Generator().manual_seed(seed)
    lower = curvature.lower_in_y(problem, x, y)
    extremes = [
        curvature.extremes(lower, tree.ravel(point), stream, SOLVER_ITERATIONS) for point in (y0, y)
    ]
    largest = max(max(abs(low), abs(high)) for low, high in extremes) or 1.0
    smallest = max(min(low for low, _ in extremes), largest / 1000)

    rows = _hypergradients(problem, x, y)
    flat = tree.ravel(x)
    # A shift that is small beside x and large beside rounding.
    shift = torch.finfo(flat.dtype).eps ** (1 / 4) * max(1.0, float(flat.norm()))
    direction, slope = curvature.normal(flat, stream), 0.0
    for _ in range(4):
        direction = direction / direction.norm().clamp_min(torch.finfo(flat.dtype).tiny)
        moved = tree.unravel(flat + shift * direction, x)
        change = (_hypergradients(problem, moved, _settle(problem, moved, y)) - rows) / shift
        steepest = change[change.norm(dim=1).argmax()]
        slope, direction = max(slope, float(steepest.norm())), steepest
    return Scales(
        largest, smallest, slope or 1.0, float(rows.norm(dim=1).max()), tree.ravel(y).numel()
    )


def probe_penalty(
    problem: Problem, x0: Any, y0: Any, *, steps: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Keyword arguments for `WCPenalty`; the module's text gives the rules."""
    x, y0 = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
    problem.check(x, y0)
    y = _settle(problem, x, y0)
    stream = torch.Generator().manual_seed(seed)
    flat = tree.ravel(y)
    low, high = curvature.extremes(
        curvature.lower_in_y(problem, x, y), flat, stream, SOLVER_ITERATIONS
    )
    largest = max(abs(low), abs(high)) or 1.0
    start, both = tree.ravel((x, y0)), tree.ravel((x, y))
    with torch.no_grad():
        f = problem.upper(x, y, problem.batch("upper", "full"))
    m = f.shape[0]
    objectives = [curvature.objective_in_both(problem, i, x, y) for i in range(m)]
    steepest = max(
        abs(end)
        for objective in objectives
        for end in curvature.extremes(objective, both, stream, 8)
    )
    growth = 0.25 * (steps or STEPS) ** 0.5
    u = growth * m / max(float(f.abs().mean()), 1e-12)
    v = growth * steepest / (m * largest * max(low, largest / 3))
    lower = curvature.lower_in_both(problem, x, y)

    def half_square(point: Tensor) -> Tensor:
        """||grad_y g||^2/2, the penalty's second term but for v."""
        return 0.5 * torch.func.grad(lower)(point)[-flat.numel() :].square().sum()

    def corner(objective: Callable[[Tensor], Tensor], here: Tensor) -> float:
        """The curvature of P at a point, in the corner of the simplex of that objective."""
        level = objective(here) - 1 / u  # rho, so that omega = 1

        def penalised(point: Tensor) -> Tensor:
            return 0.5 * u * (objective(point) - level).square() + v * half_square(point)

        return max(map(abs, curvature.extremes(penalised, here, stream, SOLVER_ITERATIONS)))

    def steps_of() -> tuple[float, float]:
        # The blocks z and (rho, delta) each take half of the room that a step has.
        corners = [corner(objective, here) for objective in objectives for here in (start, both)]
        return 0.9 / max(1e-12, *corners), 0.9 / (u * (m + 1))

    if problem.sampler is not None or low < largest / 1000:
        # A weak penalty would let noise, or a direction in which g is flat, carry y away.
        alpha, eta = steps_of()
        names = {"alpha_x": alpha, "alpha_y": alpha, "eta": eta}
        power = -0.5 if problem.sampler is not None else 0.0
        return {"u": u, "v": v} | {name: Power(value, power) for name, value in names.items()}
    budget = steps or STEPS
    scale = (1 + budget) ** -GROWTH
    u, v = scale * u, scale * v
    # sum_t alpha (1 + t)^-GROWTH e-foldings per curvature, and weights omega_i w_i of about 1/m^2
    way = (1 + budget) ** (1 - GROWTH) / (1 - GROWTH) * _softest(problem, x, y) / m**2
    alpha, eta = steps_of()
    if alpha * way > TRAVEL:
        stiff = curvature.extremes(half_square, both, stream, SOLVER_ITERATIONS)[1]
        v += max(0.0, (0.9 * way / TRAVEL - 0.9 / alpha) / max(stiff, 1e-12))
        alpha, eta = steps_of()
    return {"u": Power(u, GROWTH), "v": Power(v, GROWTH)} | {
        name: Power(value, -GROWTH)
        for name, value in (("alpha_x", alpha), ("alpha_y", alpha), ("eta", eta))
    }


def _softest(problem: Problem, x: Tree, y: Tree) -> float:
    """The smallest curvature of an x -> f_i(x, y*(x)) along the hypergradient of one of them; 0
    where one is not positive.
    """
    rows, flat = _hypergradients(problem, x, y), tree.ravel(x)
    shift = torch.finfo(flat.dtype).eps ** (1 / 4) * max(1.0, float(flat.norm()))
    seen = []
    for row in rows:
        if float(row.norm()) > 0:
            d = row / row.norm()
            moved = tree.unravel(flat + shift * d, x)
            change = _hypergradients(problem, moved, _settle(problem, moved, y)) - rows
            seen += ((change @ d) / shift).tolist()
    return max(min(seen, default=0.0), 0.0)


def _settle(problem: Problem, x: Tree, y: Tree) -> Tree:
    """y moved to the lower solution near it."""
    return envelope.solve_one(problem, x, y, tol=1e-8, max_iter=20)


def _hypergradients(problem: Problem, x: Tree, y: Tree) -> Tensor:
    return hypergradients_of(problem, y, SOLVER_ITERATIONS)(x, y)
