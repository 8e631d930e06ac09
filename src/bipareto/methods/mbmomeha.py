"""MB-MOMEHA: MOMEHA for noisy gradients, with momentum.

Jiang and Huang, "Efficient Hessian-Free Methods for Multi-Objective Bilevel Optimization with
Nonconvex Lower Level", Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.base import Draw, Info, Limits, Start, Traits
from bipareto.methods.momeha import MOMEHA, MomehaState, Momentum, towards
from bipareto.methods.parts.schedule import Power, Schedule, as_schedule
from bipareto.methods.theory import admissible
from bipareto.methods.tuning import functions
from bipareto.problem import Problem, oracle, tree, validation
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree

#: The draws of Algorithm 2 on which g is seen, and all the data of f.
RHO_THETA, RHO_X, RHO_Y = Role("lower", "theta"), Role("lower", "x"), Role("lower", "y")
EVERYTHING = Role("upper", "full")


@dataclass(frozen=True)
class MBMOMEHA(MOMEHA):
    """Algorithm 2, for noisy gradients: MOMEHA's three directions on fresh draws, passed through
    exponential averages.

    m = beta_t m + (1 - beta_t) d,  v <- v - alpha m   for v = theta, x, y.

    Each step uses 2m + 3 draws: of g for theta, x and y, and of every objective i for x and y.  The
    draw of g for x serves g at y and at theta, the draw of an objective its
    value (in the weights) and its gradient.

    Args:
        beta: momentum beta_t.  This average has steps (1 - beta) times those of SGD's m = beta m +
            d.
        exact_weights: take the scalarization's weights from the objectives on all data (role
            "full", forward only), which removes the bias that the softmax of noisy values has.
        others: as in `MOMEHA`.
    """

    traits = Traits("stochastic", "nonconvex", nested=False, certainty=100)
    limits: ClassVar[Limits] = {**MOMEHA.limits, "beta": {"least": 0, "below": 1}}

    beta: Schedule | float = 0.9
    exact_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coordinates != "plain":
            raise InvalidInput(
                f"coordinates = {self.coordinates!r}; MB-MOMEHA runs in plain ones: fitted ones "
                "follow curvatures that a draw does not show"
            )

    @classmethod
    def paper(cls, preset: str = "nas") -> Self:
        """The paper's settings for architecture search: EMA momentum 0.9, c_t = (1 + t)^(1/16)."""
        validation.choice(preset, "preset", ["nas"])
        return cls(
            gamma=8.0,
            mu=4.0,
            alpha_theta=0.025,
            alpha_x=0.05,
            alpha_y=0.025,
            beta=0.9,
            c=Power(1.0, 1 / 16),
        )

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """As `MOMEHA.tuned`, in plain coordinates and with steps that fall as Theorem 2 asks for
        when gradients are noisy.
        """
        steps, seed = cls.tuning_options(problem, steps, seed)
        return cls(**functions.tune_mbmomeha(problem, x0, y0, steps=steps, seed=seed))

    @classmethod
    def admissible(  # type: ignore[override]
        cls,
        problem: Problem,
        x0: Any,
        y0: Any,
        *,
        constants: Any = None,
        gamma: float | None = None,
        mu: float | None = None,
        c0: float = 1.0,
        delta: float | None = None,
        ideal: Any = None,
        preference: Any = None,
        scalarization: str = "stch",
        fraction: float = 0.99,
    ) -> Self:
        """Schedules for which Theorem 2's merit falls in expectation, up to its noise term; the
        same warning as `MOMEHA.admissible`.

        Args:
            c0: the first penalty.
            delta: None for the joint rate with a growing penalty, or a number in (0, 1/8) for a
                constant one; see `schedule.theorem2`.
            others: as in `MOMEHA.admissible`.
        """
        asked = admissible.Asked(
            problem, x0, y0, constants, gamma, mu, ideal, preference, scalarization
        )
        return cls(**admissible.theorem2(asked, c0, delta, fraction))

    def roles(self, m: int) -> tuple[Role, ...]:
        upper = tuple(Role("upper", name, i) for name in ("x", "y") for i in range(m))
        return (RHO_THETA, RHO_X, RHO_Y, *upper, *((EVERYTHING,) if self.exact_weights else ()))

    def oracles(self, m: int) -> dict[str, int]:
        return super().oracles(m) | ({"upper_values": 2 * m} if self.exact_weights else {})

    def step(
        self, problem: Problem, state: MomehaState, draw: Draw | None = None
    ) -> tuple[MomehaState, Info]:
        x, y, knobs, t = state.x, state.y, state.knobs, state.t
        draws, m = draw or {}, state.preference.shape[-1]
        inverse_c, inverse_gamma = knobs.c(t).reciprocal(), knobs.gamma.reciprocal()
        beta, average = knobs.beta(t), state.momentum  # type: ignore[operator]
        assert isinstance(average, Momentum)

        d_theta = oracle.grad(lambda v: problem.lower(x, v, draws.get(RHO_THETA)), state.theta)
        d_theta = towards(d_theta, inverse_gamma, state.theta, y)
        m_theta = tree.interpolate(d_theta, average.theta, beta)
        theta = tree.descend(state.theta, knobs.alpha_theta(t), m_theta)

        def x_terms(v: Tree) -> tuple[Tensor, tuple[Tensor, ...]]:
            f = self._objectives(problem, v, y, draws, "x", m)
            weights = self._weights(problem, f, v, y, draws, state)
            g_y, g_theta = problem.lower_pair(v, y, theta, draws.get(RHO_X))
            return inverse_c * (weights @ f) + g_y - g_theta, (f,)

        d_x, (f,) = oracle.grad_and_aux(x_terms, x)
        m_x = tree.interpolate(d_x, average.x, beta)
        x = tree.descend(x, knobs.alpha_x(t), m_x)

        def y_terms(v: Tree) -> Tensor:
            f = self._objectives(problem, x, v, draws, "y", m)
            weights = self._weights(problem, f, x, v, draws, state)
            return inverse_c * (weights @ f) + problem.lower(x, v, draws.get(RHO_Y))

        d_y = towards(oracle.grad(y_terms, y), inverse_gamma, theta, y)
        m_y = tree.interpolate(d_y, average.y, beta)
        y = tree.descend(y, knobs.alpha_y(t), m_y)
        ideal = knobs.ideal.update(state.ideal, f)
        momentum = Momentum(m_theta, m_x, m_y)
        new = state._replace(x=x, y=y, theta=theta, ideal=ideal, t=t + 1, momentum=momentum)
        return new, {"objectives": f}

    def _objectives(
        self, problem: Problem, x: Tree, y: Tree, draws: Draw, variable: str, m: int
    ) -> Tensor:
        """f (m,), each component on the draw that the step of this variable has for it."""
        if not draws:
            return problem.upper(x, y)
        batches = [draws[Role("upper", variable, i)] for i in range(m)]
        return torch.stack([problem.objective(i, x, y, b) for i, b in enumerate(batches)])

    def _weights(
        self, problem: Problem, f: Tensor, x: Tree, y: Tree, draws: Draw, state: MomehaState
    ) -> Tensor:
        if self.exact_weights and draws:
            # Forward only.
            x, y = (tree.map_(lambda leaf: leaf.detach(), point) for point in (x, y))
            f = problem.upper(x, y, draws[EVERYTHING])
        return self.weights(f, state)

    def _lower_batch(self, draw: Draw | None) -> Any:
        return (draw or {}).get(RHO_X)

    def _beta(self) -> Schedule | tuple[()]:
        return as_schedule(self.beta, "beta")

    def _momentum(self, start: Start) -> Momentum | tuple[()]:
        return Momentum(
            tree.zeros_like(start.y), tree.zeros_like(start.x), tree.zeros_like(start.y)
        )
