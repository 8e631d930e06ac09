"""MEHA, the single-objective ancestor of MOMEHA (Liu, Liu, Yao, Zeng and Zhang, ICML 2024, arXiv
2405.09927).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.base import Draw, Info, Method, Start, Traits
from bipareto.methods.common import moved
from bipareto.methods.parts.schedule import Power, Schedule, as_schedule
from bipareto.methods.tuning.envelope_methods import tune_momeha
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree


class MehaKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    gamma: Any
    eta: Schedule
    alpha: Schedule
    beta: Schedule
    c: Schedule


class MehaState(NamedTuple):
    """x_k, y_k, theta_k, the iteration and the run's numbers."""

    x: Tree
    y: Tree
    theta: Tree
    t: Tensor
    knobs: MehaKnobs


@dataclass(frozen=True)
class MEHA(Method[MehaState]):
    """One upper objective F, weakly convex lower level; the paper's form, in which 1/c_k multiplies
    F.

    theta+ = theta - eta [ grad_y g(x, theta) + (theta - y)/gamma ]
    x+     = x - alpha [ grad_x F(x, y)/c_k + grad_x g(x, y) - grad_x g(x, theta+) ]
    y+     = y - beta [ grad_y F(x+, y)/c_k + grad_y g(x+, y) - (y - theta+)/gamma ]

    (The authors' scripts multiply F by c_k instead; that is another algorithm.)

    Args:
        gamma: in (0, 1/(2 rho_y)).
        eta, alpha, beta: steps of theta, x and y, numbers or schedules.
        c: penalty c_k = c_0 (1 + k)^p with 0 < p < 1/2.
    """

    uses_preference = False
    traits = Traits("deterministic", "nonconvex", nested=False, certainty=95)

    gamma: float = 0.1
    eta: Schedule | float = 0.01
    alpha: Schedule | float = 0.01
    beta: Schedule | float = 0.01
    c: Schedule | float = Power(1.0, 0.25)

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """The numbers `MOMEHA.tuned` finds."""
        steps, seed = cls.tuning_options(problem, steps, seed)
        found = tune_momeha(problem, x0, y0, steps=steps, seed=seed)
        return cls(
            gamma=found["gamma"],
            eta=found["alpha_theta"],
            alpha=found["alpha_x"],
            beta=found["alpha_y"],
            c=found["c"],
        )

    def roles(self, m: int) -> tuple[Role, ...]:
        return (Role("lower"), Role("upper"))

    def oracles(self, m: int) -> dict[str, int]:
        return {"lower_gradients": 4, "upper_gradients": 2, "hessian_products": 0}

    def begin(self, start: Start, preference: Any = None) -> MehaState:
        f = start.objectives
        self.checked_preference(preference, f)
        if f.shape[0] != 1:
            raise InvalidInput(
                f"MEHA minimises one objective, but upper returns m = {f.shape[0]}; use MOMEHA "
                "with a preference"
            )
        eta, alpha, beta, c = (
            as_schedule(getattr(self, name), name) for name in ("eta", "alpha", "beta", "c")
        )
        knobs = tree.numbers(MehaKnobs(self.gamma, eta, alpha, beta, c), f.dtype, f.device)
        return MehaState(
            start.x, start.y, start.y, torch.zeros((), dtype=f.dtype, device=f.device), knobs
        )

    def step(
        self, problem: Problem, state: MehaState, draw: Draw | None = None
    ) -> tuple[MehaState, Info]:
        x, y, theta, t, knobs = state
        batches = draw or {}
        lower, upper = batches.get(Role("lower")), batches.get(Role("upper"))
        c, gamma = knobs.c(t), knobs.gamma

        pull = oracle.grad(lambda v: problem.lower(x, v, lower), theta)
        theta = tree.map_(lambda v, d, u: v - knobs.eta(t) * (d + (v - u) / gamma), theta, pull, y)

        def penalised(v: Tree) -> tuple[Tensor, tuple[Tensor, ...]]:
            F = problem.upper(v, y, upper)[0]
            g_y, g_theta = problem.lower_pair(v, y, theta, lower)
            return F / c + g_y - g_theta, (F,)

        d_x, (F,) = oracle.grad_and_aux(penalised, x)
        x = tree.add_scaled(x, -knobs.alpha(t), d_x)

        d_y = oracle.grad(
            lambda v: problem.upper(x, v, upper)[0] / c + problem.lower(x, v, lower), y
        )
        d_y = tree.map_(lambda d, v, u: d - (v - u) / gamma, d_y, y, theta)
        return MehaState(x, tree.add_scaled(y, -knobs.beta(t), d_y), theta, t + 1, knobs), {
            "objectives": F.reshape(1)
        }

    def report(
        self,
        problem: Problem,
        before: MehaState,
        after: MehaState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """The gap as theta sees it, c ||(d_x, d_y)|| read off the moves, and the larger of both."""
        knobs, t = before.knobs, before.t
        lower, lower_theta = problem.lower_pair(
            before.x, before.y, after.theta, (draw or {}).get(Role("lower"))
        )
        gap = (
            lower
            - lower_theta
            - tree.squared_norm(tree.sub(after.theta, before.y)) / (2 * knobs.gamma)
        )
        d_x = moved(before.x, after.x, knobs.alpha(t))
        d_y = moved(before.y, after.y, knobs.beta(t))
        stationarity = knobs.c(t) * torch.hypot(d_x, d_y)
        return info | {
            "lower": lower,
            "gap": gap,
            "stationarity": stationarity,
            "residual": torch.maximum(gap, stationarity),
        }
