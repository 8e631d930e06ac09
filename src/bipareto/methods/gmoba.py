"""gMOBA: a single loop over y, the adjoints v_i and x (Yang, Yao, Yin, Zeng and Zhang, Sci. China
Math. 2024, arXiv 2406.05455).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Method, Start, Traits
from bipareto.methods.parts import simplex
from bipareto.methods.parts.differentiation import lower_pullback
from bipareto.methods.parts.hypergradient import warn_if_singular
from bipareto.methods.parts.schedule import Schedule
from bipareto.methods.tuning.hypergradient_methods import probe
from bipareto.problem import Problem
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree, first_leaf, ravel


class GmobaKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    alpha_x: Schedule
    beta: Schedule
    eta: Schedule


class GmobaState(NamedTuple):
    """x_t, y_t, the adjoints v (m, n_y), the last weights (m,), t and the run's numbers."""

    x: Tree
    y: Tree
    v: Tensor
    weights: Tensor
    t: Tensor
    knobs: GmobaKnobs


@dataclass(frozen=True)
class GMOBA(Method[GmobaState]):
    """Single loop, second order, without preferences; theory for a strongly convex lower level.
    RECONSTRUCTED.

    y+   = y - beta grad_y g(x, y)
    v_i+ = v_i - eta ( g_yy v_i - grad_y f_i )
    d_i  = grad_x f_i - g_xy v_i
    x+   = x - alpha_x sum_i lam_i d_i,   lam = argmin over the simplex of || sum_i lam_i d_i ||^2

    all at (x, y), simultaneously, from v = 0.  Certain at 65 %: only the abstract and its first
    lines could be read.  Open are the order of the updates, whether lam is exact at each step, and
    the rule for the steps.  The paper also treats a closed convex set for x and nonsmooth convex
    terms in the objectives, which are left out here.

    Args:
        alpha_x, beta, eta: steps of x, y and the adjoints, numbers or schedules; beta and eta below
            2/L, L the largest curvature of g in y, and alpha_x small enough for y and v to follow.
    """

    uses_preference = False
    traits = Traits(
        "deterministic",
        "strongly convex",
        nested=False,
        certainty=65,
        reconstructed="order of the updates, exactness of the weights, rule for the steps",
    )

    alpha_x: Schedule | float = 0.01
    beta: Schedule | float = 0.1
    eta: Schedule | float = 0.1

    @classmethod
    def paper(cls) -> Self:
        """The steps that the MOMEHA paper fixes for every method, 0.1 and 0.05; it lists gMOBA in
        its table and does not run it.
        """
        return cls(alpha_x=0.1, beta=0.05, eta=0.05)

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """beta = eta = 1/L, and an alpha_x at which the slowest lower direction can follow."""
        steps, seed = cls.tuning_options(problem, steps, seed)
        found = probe(problem, x0, y0, seed=seed)
        return cls(
            alpha_x=found.step(problem, found.pace), beta=1 / found.largest, eta=1 / found.largest
        )

    def roles(self, m: int) -> tuple[Role, ...]:
        return common.roles(m)

    def oracles(self, m: int) -> dict[str, int]:
        return {"lower_gradients": 1, "upper_gradients": m, "hessian_products": 2 * m}

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        start = super().prepare(problem, x0, y0)
        warn_if_singular("GMOBA", problem, start.x, start.y)
        return start

    def begin(self, start: Start, preference: Any = None) -> GmobaState:
        f = start.objectives
        self.checked_preference(preference, f)
        v = torch.zeros(
            f.shape[0], ravel(start.y).numel(), dtype=f.dtype, device=first_leaf(start.y).device
        )
        return GmobaState(
            start.x,
            start.y,
            v,
            common.uniform(f),
            common.zero(start),
            common.knobs(GmobaKnobs, self, start),
        )

    def step(
        self, problem: Problem, state: GmobaState, draw: Draw | None = None
    ) -> tuple[GmobaState, Info]:
        x, y, v, _, t, knobs = state
        f, f_x, f_y = common.upper_jacobian(problem, draw, x, y, v.shape[0])
        g_y, pair = lower_pullback(common.lower_of(problem, draw), x, y)
        in_x, in_y = pair(v)
        d = f_x - in_x
        weights = simplex.quadratic(d @ d.T)
        new = GmobaState(
            x=common.toward(x, knobs.alpha_x(t), weights.weights @ d),
            y=common.toward(y, knobs.beta(t), g_y),
            v=v - knobs.eta(t) * (in_y - f_y),
            weights=weights.weights,
            t=t + 1,
            knobs=knobs,
        )
        tiny = torch.finfo(f.dtype).tiny
        return new, {
            "objectives": f,
            "weights": weights.weights,
            "weights_slack": weights.slack,
            "solver_residual": ((in_y - f_y).norm(dim=1) / f_y.norm(dim=1).clamp_min(tiny)).amax(),
        }

    def report(
        self,
        problem: Problem,
        before: GmobaState,
        after: GmobaState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """Adds g, the three directions' norms read off the moves, and the largest (`residual`)."""
        knobs, t = before.knobs, before.t
        stationarity = common.moved(before.x, after.x, knobs.alpha_x(t))
        lower_residual = common.moved(before.y, after.y, knobs.beta(t))
        adjoint = ((before.v - after.v).norm(dim=1) / knobs.eta(t)).amax()
        return info | {
            "lower": common.lower_of(problem, draw)(before.x, before.y),
            "lower_residual": lower_residual,
            "stationarity": stationarity,
            "residual": torch.maximum(torch.maximum(stationarity, lower_residual), adjoint),
        }
