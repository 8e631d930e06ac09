"""MB-MOMEHA whose three steps are one: half the passes through the network.

With the scalarized objectives F and the paper's penalised gap of the Moreau envelope,

    L(x, y, theta) = F(x, y)/c + g(x, y) - g(x, theta) - ||y - theta||^2 / (2 gamma),

Algorithm 2 descends L in x and y and ascends it in theta, one variable after the other, with draws
of its own for each: six passes through the network.  Here one gradient of L serves all three, on
one draw of each level: three passes.  The steps differ from Algorithm 2's by terms of second order
in the step sizes; its theorem is proved for steps one after the other and does not cover these.

Between two such steps the weights can be trained alone, as nested methods do: theta makes D steps
on g, one pass each, and y is carried along, so that y - theta, from which x reads its
hypergradient, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bipareto.methods import MBMOMEHA, common
from bipareto.methods.base import Draw, Info, Limits
from bipareto.methods.momeha import MomehaState, Momentum, towards
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree


@dataclass(frozen=True)
class JointMBMOMEHA(MBMOMEHA):
    """Simultaneous descent of L in (x, y) and ascent in theta, each through an average of weight
    beta.

    Args:
        lower_steps: D, steps on g alone before x moves; each gradient, taken at theta, enters the
            averages of theta and of y alike.
        others: as in `MBMOMEHA`.
    """

    limits: ClassVar[Limits] = {**MBMOMEHA.limits, "lower_steps": {"least": 0}}

    lower_steps: int = 0

    def roles(self, m: int) -> tuple[Role, ...]:
        return common.roles(m, self.lower_steps)

    def oracles(self, m: int) -> dict[str, int]:
        return {
            "lower_gradients": 2 + self.lower_steps,
            "upper_gradients": m,
            "hessian_products": 0,
        }

    def step(
        self, problem: Problem, state: MomehaState, draw: Draw | None = None
    ) -> tuple[MomehaState, Info]:
        knobs, t, average = state.knobs, state.t, state.momentum
        draws, m = draw or {}, state.preference.shape[-1]
        inverse_c, inverse_gamma = knobs.c(t).reciprocal(), knobs.gamma.reciprocal()
        beta = knobs.beta(t)  # type: ignore[operator]
        assert isinstance(average, Momentum)
        y, theta = state.y, state.theta
        for j in range(self.lower_steps):
            g = common.lower_of(problem, draw, Role("lower", "y", j))
            d = oracle.grad(lambda v, g=g: g(state.x, v), theta)  # type: ignore[misc]
            average = average._replace(
                theta=tree.interpolate(d, average.theta, beta),
                y=tree.interpolate(d, average.y, beta),
            )
            theta = tree.descend(theta, knobs.alpha_theta(t), average.theta)
            y = tree.descend(y, knobs.alpha_y(t), average.y)

        def gap(point: tuple[Tree, Tree, Tree]) -> tuple[Tensor, tuple[Tensor, ...]]:
            x, y, theta = point
            f = self._objectives(problem, x, y, draws, "x", m)
            weights = self._weights(problem, f, x, y, draws, state)
            g_y, g_theta = problem.lower_pair(x, y, theta, draws.get(common.LOWER_X))
            return inverse_c * (weights @ f) + g_y - g_theta, (f,)

        (d_x, d_y, ascent), (f,) = oracle.grad_and_aux(gap, (state.x, y, theta))
        d_theta = towards(tree.map_(lambda d: -d, ascent), inverse_gamma, theta, y)
        d_y = towards(d_y, inverse_gamma, theta, y)
        momentum = Momentum(
            *(
                tree.interpolate(d, old, beta)
                for d, old in zip(
                    (d_theta, d_x, d_y), (average.theta, average.x, average.y), strict=True
                )
            )
        )
        new = state._replace(
            x=tree.descend(state.x, knobs.alpha_x(t), momentum.x),
            y=tree.descend(y, knobs.alpha_y(t), momentum.y),
            theta=tree.descend(theta, knobs.alpha_theta(t), momentum.theta),
            ideal=knobs.ideal.update(state.ideal, f),
            t=t + 1,
            momentum=momentum,
        )
        return new, {"objectives": f}
