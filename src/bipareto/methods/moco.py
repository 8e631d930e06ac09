"""MoCo: tracked gradients and tracked weights (Fernando, Shen, Liu, Chaudhury, Murugesan and Chen,
ICLR 2023, arXiv 2210.12624).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Limits, Start, Traits
from bipareto.methods.parts import simplex
from bipareto.methods.parts.hypergradient import CG, FiniteDifference, Hypergradient, Neumann
from bipareto.methods.parts.schedule import Power, Schedule
from bipareto.methods.tuning.hypergradient_methods import probe
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree


class MocoKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    alpha_x: Schedule
    beta: Schedule
    gamma: Schedule
    rho: Any
    lower_step: Schedule
    hypergradient: tuple[Any, ...]


class MocoState(NamedTuple):
    """x_k, y_k, tracked hypergradients Y (m, n_x) and weights (m,), t and the run's numbers."""

    x: Tree
    y: Tree
    tracked: Tensor
    weights: Tensor
    t: Tensor
    knobs: MocoKnobs


@dataclass(frozen=True)
class MoCo(common.Nested[MocoState]):
    """Nested, second order, stochastic, without preferences; theory for a strongly convex lower
    level.  Bilevel form RECONSTRUCTED.

    y    : D gradient steps on g(x_k, .) from y_k,
           then h_i = grad_x f_i - g_xy v_i, g_yy v_i = grad_y f_i
    Y_i <- Y_i - beta_k ( Y_i - h_i )
    lam <- P( lam - gamma_k ( Y^T Y + rho I ) lam ),  P the projection on the simplex
    x   <- x - alpha_x sum_i lam_i Y_i

    The three lines are certain at 96 %: the official single-level code was read; like it, lam uses
    the fresh Y and x the fresh lam (the paper, from memory, the old ones).  The bilevel form is
    RECONSTRUCTED (70 %): the paper's nested extension takes an implicit hypergradient, and others
    ran MoCo with an unrolled one; both are offered by `hypergradient`. lam follows the min-norm
    weights slowly, by design: that removes their bias under noise.

    Args:
        alpha_x: step of x.
        beta, gamma: beta_k and gamma_k; numbers or schedules.  The official defaults are 0.1 (1 +
            k)^(-1/2) for both.
        rho: regularisation of lam.
        lower_steps, lower_step: D and its step size, a number or a schedule.
        hypergradient: how h_i is estimated; `Unrolled` makes its own lower steps, so D may then be
            0.
    """

    uses_preference = False
    traits = Traits(
        "stochastic",
        "strongly convex",
        nested=True,
        certainty=70,
        reconstructed="the bilevel form; the single-level core is certain at 96 %",
    )
    limits: ClassVar[Limits] = {"rho": {"least": 0}}

    alpha_x: Schedule | float = 0.01
    beta: Schedule | float = Power(0.1, -0.5)
    gamma: Schedule | float = Power(0.1, -0.5)
    rho: float = 0.0
    lower_steps: int = 1
    lower_step: Schedule | float = 0.1
    hypergradient: Hypergradient = Neumann(10, 0.1)  # noqa: RUF009 - frozen, safe to share

    @classmethod
    def paper(cls) -> Self:
        """The MOMEHA paper's architecture search: alpha_x = 0.05, y step 0.025, momentum 0.9, and
        nothing else said of MoCo.

        Ours: D = 1, the one-step hypergradient by finite differences (eps = 0.01/||v||), gamma =
        0.1, 1 - beta = 0.9.
        """
        estimate = FiniteDifference(terms=1, eta=0.025, eps=0.01, relative=True)
        return cls(
            alpha_x=0.05,
            beta=0.1,
            gamma=0.1,
            lower_steps=1,
            lower_step=0.025,
            hypergradient=estimate,
        )

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """D and CG fit g's condition, gamma the gradients' size; sequences fall under noise."""
        steps, seed = cls.tuning_options(problem, steps, seed)
        found = probe(problem, x0, y0, seed=seed)
        noisy = problem.sampler is not None
        return cls(
            alpha_x=found.step(problem, 0.5),
            beta=Power(0.5, -0.5) if noisy else 0.5,
            gamma=Power(found.weight_step, -0.5) if noisy else found.weight_step,
            lower_steps=found.inner_steps(0.3, 10),
            lower_step=1 / found.largest,
            hypergradient=CG(found.solver_iterations()),
        )

    def begin(self, start: Start, preference: Any = None) -> MocoState:
        f = start.objectives
        self.checked_preference(preference, f)
        tracked = torch.zeros(
            f.shape[0], tree.ravel(start.x).numel(), dtype=f.dtype, device=f.device
        )
        knobs = common.knobs(MocoKnobs, self, start, hypergradient=self.hypergradient.numbers)
        return MocoState(start.x, start.y, tracked, common.uniform(f), common.zero(start), knobs)

    def step(
        self, problem: Problem, state: MocoState, draw: Draw | None = None
    ) -> tuple[MocoState, Info]:
        knobs, t = state.knobs, state.t
        found = self.hypergradients(problem, state, draw, knobs.lower_step(t))
        tracked = torch.lerp(state.tracked, found.gradients, knobs.beta(t))
        pull = tracked @ (state.weights @ tracked) + knobs.rho * state.weights
        weights = simplex.project(state.weights - knobs.gamma(t) * pull)
        x = common.toward(state.x, knobs.alpha_x(t), weights @ tracked)
        info = {"objectives": found.objectives, "weights": weights} | common.solver_residuals(found)
        return MocoState(x, found.y, tracked, weights, t + 1, knobs), info
