"""WC-penalty: weighted Chebyshev under the constraint grad_y g = 0, by penalties.

Zhang, Oh, Qin, Li, Zhang and Liu, "A Tale of Two Problems: Multi-Task Bilevel Learning Meets
Equality Constrained Multi-Objective Optimization", ICML 2026, arXiv 2605.09094.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Limits, Method, Start, Traits
from bipareto.methods.parts import simplex
from bipareto.methods.parts.differentiation import difference_pair, lower_pullback, pullback
from bipareto.methods.parts.schedule import Schedule
from bipareto.methods.tuning.hypergradient_methods import probe_penalty
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree


class WcpenaltyKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    u: Schedule
    v: Schedule
    alpha_x: Schedule
    alpha_y: Schedule
    eta: Schedule
    difference: Any


class WcpenaltyState(NamedTuple):
    """x_t, y_t, epigraph variable rho, slacks delta (m,), preference (m,), t, the run's numbers."""

    x: Tree
    y: Tree
    rho: Tensor
    delta: Tensor
    preference: Tensor
    t: Tensor
    knobs: WcpenaltyKnobs


@dataclass(frozen=True)
class WCPenalty(Method[WcpenaltyState]):
    """Single loop, second order, with preferences; for a convex lower level and f_i > 0.
    RECONSTRUCTED.

    Projected gradient descent, all blocks at once, on

    P = rho + (u/2) sum_i ( w_i f_i + delta_i - rho )^2 + (v/2) || grad_y g ||^2
    over x, y, rho and delta >= 0:

    omega_i = u ( w_i f_i + delta_i - rho )
    x     <- x - alpha_x ( sum_i omega_i w_i grad_x f_i + v g_xy grad_y g )
    y     <- y - alpha_y ( sum_i omega_i w_i grad_y f_i + v g_yy grad_y g )
    rho   <- rho - eta ( 1 - sum_i omega_i ),    delta <- max( delta - eta omega, 0 )

    Certain at 70 %: the abstract and public reviews were read, not the method's section.  Epigraph,
    slacks, single loop, second derivatives and projected gradients are as published (80 %); the
    places of u, v and eta and the form of the slacks are inferred (65 %).  The theory takes u = v
    of order T^(1/4) and one step of order T^(-1/4) for all blocks. Small u makes it a *linear*
    scalarization: omega_i = 1/m + u (w_i f_i - mean).  Small v leaves the lower level unsolved.

    Args:
        u, v: penalties of the epigraph and of the lower level; numbers or schedules.  A constant v
            leaves y off its solution by a distance of order 1/v; one that grows, with steps that
            fall as fast, comes nearer within the same budget (`tuned`).
        alpha_x, alpha_y, eta: steps of x, of y, and of rho and delta; numbers or schedules.
        rho_init: the first rho, with delta = 0; None for the (rho, delta) that minimise P at the
            start, so that the weights omega begin where they belong instead of growing over 1/(u m
            eta) steps.  The paper's start is not known.
        difference: g_xy grad_y g and g_yy grad_y g are taken from two gradients of g, at y shifted
            by that length either way along grad_y g (`hypergradient.difference_pair`), for losses
            that cannot be differentiated twice; None takes them exactly.
    """

    traits = Traits(
        "both",
        "convex",
        nested=False,
        certainty=70,
        reconstructed="places of u, v and eta, form of the slacks",
    )
    limits: ClassVar[Limits] = {"rho_init": {"above": -math.inf}}

    u: Schedule | float = 10.0
    v: Schedule | float = 10.0
    alpha_x: Schedule | float = 1e-3
    alpha_y: Schedule | float = 1e-3
    eta: Schedule | float = 1e-3
    rho_init: float | None = None
    difference: float | None = None

    @classmethod
    def paper(cls) -> Self:
        """The MOMEHA paper's settings: u = 0.01, v = 0.2, eta = 0.01, steps 0.1 and 0.05.

        With this u the weights stay equal: in effect a linear scalarization.  The first rho is not
        given and is ours.
        """
        return cls(u=0.01, v=0.2, alpha_x=0.1, alpha_y=0.05, eta=0.01)

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """u and v from the sizes of f and g and from how far x can travel within the budget, steps
        from the curvature of P: see `tuning.hypergradient_methods`.
        """
        steps, seed = cls.tuning_options(problem, steps, seed)
        return cls(**probe_penalty(problem, x0, y0, steps=steps, seed=seed))

    def roles(self, m: int) -> tuple[Role, ...]:
        return common.roles(m)

    def oracles(self, m: int) -> dict[str, int]:
        exact = self.difference is None
        return {
            "lower_gradients": 1 if exact else 3,
            "upper_gradients": m,
            "hessian_products": 2 if exact else 0,
        }

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        start = super().prepare(problem, x0, y0)
        common.require_positive("WCPenalty", start.objectives)
        return start

    def begin(self, start: Start, preference: Any = None) -> WcpenaltyState:
        f = start.objectives
        w = self.checked_preference(preference, f)
        knobs = common.knobs(WcpenaltyKnobs, self, start, difference=self.difference or 0.0)
        u = knobs.u(common.zero(start))
        if self.rho_init is None:
            # The minimiser has omega_i = max(u w_i f_i - u rho, 0) with sum 1: a projection on the
            # simplex.
            omega = simplex.project(u * w * f)
            rho = (w * f - omega / u)[omega.argmax()]
            delta = (rho - w * f).clamp_min(0)
        else:
            rho, delta = torch.full_like(common.zero(start), self.rho_init), torch.zeros_like(f)
        return WcpenaltyState(start.x, start.y, rho, delta, w, common.zero(start), knobs)

    def step(
        self, problem: Problem, state: WcpenaltyState, draw: Draw | None = None
    ) -> tuple[WcpenaltyState, Info]:
        x, y, rho, delta, w, t, knobs = state
        f, pull = pullback(common.upper_of(problem, draw, w.shape[-1]), x, y)
        omega = knobs.u(t) * (w * f + delta - rho)
        f_x, f_y = pull(omega * w)
        lower = common.lower_of(problem, draw)
        if self.difference is None:
            g_y, pair = lower_pullback(lower, x, y)
        else:
            g_y = tree.ravel(oracle.grad(lambda y_: lower(x, y_), y))
            pair = difference_pair(lower, x, y, knobs.difference)
        in_x, in_y = pair(g_y.unsqueeze(0))
        eta, v = knobs.eta(t), knobs.v(t)
        new = WcpenaltyState(
            x=common.toward(x, knobs.alpha_x(t), f_x + v * in_x[0]),
            y=common.toward(y, knobs.alpha_y(t), f_y + v * in_y[0]),
            rho=rho - eta * (1 - omega.sum()),
            delta=(delta - eta * omega).clamp_min(0),
            preference=w,
            t=t + 1,
            knobs=knobs,
        )
        return new, {"objectives": f, "weights": omega, "lower_residual": g_y.norm()}

    def report(
        self,
        problem: Problem,
        before: WcpenaltyState,
        after: WcpenaltyState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """Adds g, the norm of P's projected gradient read off the moves (`stationarity`), and the
        larger of it and ||grad_y g||.
        """
        knobs, t = before.knobs, before.t
        moves = [
            common.moved(before.x, after.x, knobs.alpha_x(t)),
            common.moved(before.y, after.y, knobs.alpha_y(t)),
            (before.rho - after.rho).abs() / knobs.eta(t),
            (before.delta - after.delta).norm() / knobs.eta(t),
        ]
        stationarity = torch.stack(moves).norm()
        return info | {
            "lower": common.lower_of(problem, draw)(before.x, before.y),
            "stationarity": stationarity,
            "residual": torch.maximum(stationarity, info["lower_residual"]),
        }
