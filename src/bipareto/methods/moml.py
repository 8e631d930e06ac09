"""MOML: multi-gradient descent on unrolled hypergradients (Ye, Lin, Yue, Guo, Xiao and Zhang,
NeurIPS 2021; AIJ 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Limits, Start, Traits
from bipareto.methods.parts.hypergradient import Unrolled
from bipareto.methods.parts.schedule import Schedule
from bipareto.methods.tuning.hypergradient_methods import probe
from bipareto.problem import Problem
from bipareto.problem.tree import Tree


class MomlKnobs(NamedTuple):
    """The numbers of a run as 0-d tensors."""

    alpha_x: Schedule
    hypergradient: tuple[Any, ...]
    weight_lr: Any


class MomlState(NamedTuple):
    """x_t, y_t, the last weights (m,), the iteration and the run's numbers."""

    x: Tree
    y: Tree
    weights: Tensor
    t: Tensor
    knobs: MomlKnobs


@dataclass(frozen=True)
class MOML(common.Nested[MomlState]):
    """Nested, second order, without preferences; theory for a lower level with one minimiser.

    y^0 = y_t,  y^(j+1) = y^j - eta grad_y g(x_t, y^j)  for j < K
    h_i = d f_i(x_t, y^K(x_t)) / dx  through the K steps
    lam = argmin over the simplex of || sum_i lam_i h_i ||^2
    x_(t+1) = x_t - alpha_x sum_i lam_i h_i,   y_(t+1) = y^K

    Certain at 90 %: the authors' code was read, the paper's text was not.  That code takes K = 1,
    Adam for both levels and another optimiser step for y; what stands here is the paper-level form
    with plain steps, y^K carried over. With K steps the hypergradient is biased by about (1 - eta
    h)^K, h the smallest curvature of g in y, and so is the answer.

    Args:
        inner_steps: K.
        eta: step on g.
        alpha_x: step of x, a number or a schedule.
        normalize: take lam from h_i/||h_i|| (the authors' code) while the step uses h_i themselves.
        weight_steps: None for the exact lam; a number for that many projected gradient steps from
            equal weights.
        weight_lr: their step size.
    """

    uses_preference = False
    traits = Traits(
        "deterministic",
        "one minimiser",
        nested=True,
        certainty=90,
        reconstructed="plain steps in place of the authors' optimisers",
    )
    limits: ClassVar[Limits] = {"inner_steps": {"least": 1}}

    inner_steps: int = 4
    eta: float = 0.1
    alpha_x: Schedule | float = 0.01
    normalize: bool = False
    weight_steps: int | None = None
    weight_lr: float = 0.05

    @classmethod
    def paper(cls) -> Self:
        """The MOMEHA paper's settings: K = 4 and lam by 4 projected steps of 0.05, which leaves it
        near equal weights.

        alpha_x = 0.1 as for all methods there; eta is not given and is taken as its step of y,
        0.05.
        """
        return cls(inner_steps=4, eta=0.05, alpha_x=0.1, weight_steps=4, weight_lr=0.05)

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """eta = 1/L, K for a truncation of a few percent, alpha_x from the slope of the h_i."""
        steps, seed = cls.tuning_options(problem, steps, seed)
        found = probe(problem, x0, y0, seed=seed)
        return cls(
            inner_steps=found.inner_steps(0.01, 30),
            eta=1 / found.largest,
            alpha_x=found.step(problem),
        )

    @property
    def lower_steps(self) -> int:
        return 0  # the K steps are those of the hypergradient

    @property
    def hypergradient(self) -> Unrolled:
        return Unrolled(self.inner_steps, self.eta)

    def begin(self, start: Start, preference: Any = None) -> MomlState:
        f = start.objectives
        self.checked_preference(preference, f)
        knobs = common.knobs(MomlKnobs, self, start, hypergradient=self.hypergradient.numbers)
        return MomlState(start.x, start.y, common.uniform(f), common.zero(start), knobs)

    def step(
        self, problem: Problem, state: MomlState, draw: Draw | None = None
    ) -> tuple[MomlState, Info]:
        knobs = state.knobs
        found = self.hypergradients(problem, state, draw)
        h = found.gradients
        rows = (
            h / h.norm(dim=1, keepdim=True).clamp_min(torch.finfo(h.dtype).tiny)
            if self.normalize
            else h
        )
        equal = common.uniform(found.objectives)
        weights = common.weigh(
            rows @ rows.T, torch.zeros_like(equal), equal, self.weight_steps, knobs.weight_lr
        )
        x = common.toward(state.x, knobs.alpha_x(state.t), weights.weights @ h)
        return MomlState(x, found.y, weights.weights, state.t + 1, knobs), common.solver_info(
            found, weights
        )
