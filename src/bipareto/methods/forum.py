"""FORUM: first-order multi-gradient descent under a value-function constraint.

Ye, Lin, Cao, Zhang and Tsang, ECAI 2024, arXiv 2401.09257.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Limits, Method, Start, Traits
from bipareto.methods.parts import simplex
from bipareto.methods.parts.differentiation import descend
from bipareto.methods.parts.schedule import Power, Schedule
from bipareto.methods.tuning.hypergradient_methods import probe
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree


class ForumKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    alpha_x: Schedule
    alpha_y: Schedule
    eta: Any
    rho: Any
    beta: Schedule


class ForumState(NamedTuple):
    """x_k, y_k, the averaged weights (m,), the iteration and the run's numbers."""

    x: Tree
    y: Tree
    weights: Tensor
    t: Tensor
    knobs: ForumKnobs


@dataclass(frozen=True)
class FORUM(Method[ForumState]):
    """First order, without preferences; theory for a strongly convex lower level.

    With z = (x, y):

    y~ : T steps y~ <- y~ - eta grad_y g(x, y~) from y_k
    q  = grad_z [ g(x, y) - g(x, y~) ]  with y~ constant,   F_i = grad_z f_i(x, y)
    pi_i = rho - <q, F_i>/||q||^2,   nu(lam) = max(sum_i lam_i pi_i, 0)
    lam  = argmin over the simplex of
           || sum_i lam_i F_i + nu(lam) q ||^2 / 2 - nu(lam) rho ||q||^2 / 2
    lam~ <- (1 - beta_k) lam~ + beta_k lam
    z <- z - alpha ( sum_i lam~_i F_i + nu(lam~) q )

    The paper solves a quadratic program in (lam, nu). Its nu always sits at its bound, so the
    program is the one above: on the simplex, quadratic on either side of the kink nu = 0, and
    solved exactly. Certain at 97 % (paper and code read); the paper's equations 7 and 9 differ by a
    factor of two in rho ||q||^2, and its code, like this, follows 9.

    Args:
        alpha_x, alpha_y: steps of x and y, numbers or schedules (one number in the paper).
        inner_steps: T.
        eta: step of y~.
        rho: how fast the constraint is to fall: <q, d> = -rho ||q||^2.
        beta: beta_k of the weights' average, a number or a schedule; (1 + k)^(-3/4) in the paper.
        normalize: scale every F_i to length one first, as the authors' code does and the paper does
            not.
    """

    uses_preference = False
    traits = Traits("deterministic", "strongly convex", nested=True, certainty=97)
    limits: ClassVar[Limits] = {"inner_steps": {"least": 1}}

    alpha_x: Schedule | float = 1e-3
    alpha_y: Schedule | float = 1e-3
    inner_steps: int = 5
    eta: float = 0.1
    rho: float = 0.1
    beta: Schedule | float = Power(1.0, -0.75)
    normalize: bool = False

    @classmethod
    def paper(cls) -> Self:
        """The MOMEHA paper's settings: T = 4 (its K), rho = 0.5, steps 0.1 and 0.05; eta is not
        given and is taken as 0.05.
        """
        return cls(alpha_x=0.1, alpha_y=0.05, inner_steps=4, eta=0.05, rho=0.5)

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """eta = 1/L, T for y~ within a tenth, rho = 0.5, and steps that fall like k^(-1/2).

        With constant steps the violation stays at the size of a step, because the constraint's
        normal turns as it vanishes.
        """
        steps, seed = cls.tuning_options(problem, steps, seed)
        found = probe(problem, x0, y0, seed=seed)
        alpha = Power(0.5 / max(found.slope, found.largest), -0.5)
        return cls(
            alpha_x=alpha,
            alpha_y=alpha,
            inner_steps=found.inner_steps(0.1, 20),
            eta=1 / found.largest,
            rho=0.5,
        )

    def roles(self, m: int) -> tuple[Role, ...]:
        return common.roles(m)

    def oracles(self, m: int) -> dict[str, int]:
        return {
            "lower_gradients": self.inner_steps + 2,
            "upper_gradients": m,
            "hessian_products": 0,
        }

    def begin(self, start: Start, preference: Any = None) -> ForumState:
        f = start.objectives
        self.checked_preference(preference, f)
        # The paper's average starts from zero, which beta_0 = 1 forgets at once; equal weights keep
        # other beta on the simplex.
        return ForumState(
            start.x,
            start.y,
            common.uniform(f),
            common.zero(start),
            common.knobs(ForumKnobs, self, start),
        )

    def step(
        self, problem: Problem, state: ForumState, draw: Draw | None = None
    ) -> tuple[ForumState, Info]:
        x, y, average, t, knobs = state
        lower = common.lower_of(problem, draw)
        follower = y
        for _ in range(self.inner_steps):
            follower = descend(lower, x, follower, knobs.eta)

        def violation(both: tuple[Tree, Tree]) -> tuple[Tensor, tuple[Tensor, ...]]:
            at_y, at_follower = problem.lower_pair(
                *both, follower, (draw or {}).get(common.LOWER_X)
            )
            return at_y - at_follower, (at_y, at_y - at_follower)

        q, (g, gap) = oracle.grad_and_aux(violation, (x, y))
        f, f_x, f_y = common.upper_jacobian(problem, draw, x, y, average.shape[-1])
        tiny = torch.finfo(f.dtype).tiny
        rows = torch.cat([f_x, f_y], dim=1)
        if self.normalize:
            rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(tiny)
        # With q = ||q|| e every quantity stays of the size of the F_i, however small the violation.
        flat = tree.ravel(q)
        size = flat.norm()
        e = flat / size.clamp_min(tiny)
        along, level = rows @ e, knobs.rho * size
        found = simplex.kinked(rows @ rows.T, along, level)
        average = torch.lerp(average, found.weights, knobs.beta(t))
        direction = average @ rows + (level - average @ along).clamp_min(0) * e
        d_x, d_y = tree.unravel(direction, (x, y))
        new = ForumState(
            tree.add_scaled(x, -knobs.alpha_x(t), d_x),
            tree.add_scaled(y, -knobs.alpha_y(t), d_y),
            average,
            t + 1,
            knobs,
        )
        return new, {
            "objectives": f,
            "lower": g,
            "gap": gap,
            "weights": average,
            "weights_slack": found.slack,
        }

    def report(
        self,
        problem: Problem,
        before: ForumState,
        after: ForumState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """Adds the direction's norm read off the moves (`stationarity`) and the larger of it and
        the gap g(x, y) - g(x, y~).
        """
        knobs, t = before.knobs, before.t
        stationarity = torch.hypot(
            common.moved(before.x, after.x, knobs.alpha_x(t)),
            common.moved(before.y, after.y, knobs.alpha_y(t)),
        )
        return info | {
            "stationarity": stationarity,
            "residual": torch.maximum(stationarity, info["gap"]),
        }
