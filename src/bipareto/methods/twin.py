"""Twin: y trained as a network is trained, and beside it a twin that shows where x should go.

A method of this library for networks, after SOBA's simultaneous steps of y, v and x (Dagréou,
Ablin, Vaiter and Moreau, "A framework for bilevel optimization that enables stochastic and global
variance reduction algorithms", 2022), DARTS's differences of gradients in place of Hessian products
(Liu, Simonyan and Yang, 2019), Adam's metric (Kingma and Ba, 2015) and MOMEHA's preferences (Jiang
and Huang).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from bipareto.errors import BiparetoWarning
from bipareto.methods.base import Draw, Info, Limits, Method, Start, Traits
from bipareto.methods.common import warn_of_ideal
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.scalarization import Fixed, Ideal, as_ideal
from bipareto.methods.parts.schedule import Cosine, Schedule
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree

__all__ = ["Twin", "TwinState"]

#: decay of the second moments of y's and of x's gradients; x's is shorter, because the
#: hypergradient changes its size by orders of magnitude while y learns
SECOND_MOMENT_Y, SECOND_MOMENT_X = 0.999, 0.99
#: what keeps a coordinate that never had a gradient from being divided by zero
TINY = 1e-8


class TwinKnobs(NamedTuple):
    """The hyperparameters of a run as 0-d tensors; schedules are called with t."""

    rho: Any
    alpha_x: Schedule
    alpha_y: Schedule
    mu: Any
    beta: Any
    epsilon: Any
    shared: Any
    ideal: Ideal


class Moments(NamedTuple):
    """First moments of x's, y's and v's directions, second moments of x's and y's, and the size (a
    number) that v's source has had.
    """

    x: Tree
    y: Tree
    v: Tree
    square_x: Tree
    square_y: Tree
    source: Tensor


class TwinState(NamedTuple):
    """x_t, y_t, the adjoint v_t (like y), the preference w (m,), the ideal point z (m,), t, the
    run's hyperparameters and its moments.
    """

    x: Tree
    y: Tree
    v: Tree
    preference: Tensor
    ideal: Tensor
    t: Tensor
    knobs: TwinKnobs
    moments: Moments


@dataclass(frozen=True)
class Twin(Method):
    """Single-loop, Hessian-free, with preferences; y learns from g alone, by Adam.

    With e a small number, D Adam's diagonal metric (the root of the mean square of grad_y g) and F
    the scalarized objectives, all gradients of g on one draw:

    y'  = y - alpha_y D^-1 grad_y g(x, y)
    v+  = (1 - rho) (v - alpha_y D^-1 H v) + alpha_y D^-1 grad_y F(x, y'),   no longer than
          (alpha_y/rho) ||D^-1 grad_y F|| has been: where H is positive it never is
    H v = [ grad_y g(x, y + e v) - grad_y g(x, y) ] / e
    h   = grad_x F(x, y') - [ grad_x g(x, y + e v+) - grad_x g(x, y) ] / e
    y+  = y - alpha_y D^-1 grad_y g(x, y)
    x+  = x - alpha_x h / (root of the mean square of h, coordinate by coordinate; or over all of
          them where `shared` is 1)

    with grad_y g in y+, H v and h passed through averages of weight beta.  At rest
    ((1 - rho) H + rho D/alpha_y) v = grad_y F, so h is the implicit hypergradient of a lower level
    regularised by 1/gamma = rho/alpha_y in the metric D: the same role as MOMEHA's gamma.  y + e v
    is the twin: y and theta of MB-MOMEHA with kappa = 1, one draw for both and c = 1/e obey the
    same recursion as gamma grows, but there F's pull stays in y, here it does not: y never sees the
    upper level's data.  A small rho looks 1/rho steps ahead.  rho = 1 forgets v at every step: h is
    the derivative of F(x, y'), the one-step unrolled hypergradient.  F is taken at y', not at y: a
    step that goes too far is seen there, where at y every weight on g that trains y faster, and
    with it all of them, would seem good.

    What is proved: with exact Hessian products, D = 1 and a strongly convex g, SOBA's rate
    O(T^-1/2); for a nonconvex g nothing, as for every method that differentiates a training.
    Preferences, metric and differences are as measured in docs/networks.md.

    Args:
        rho: share of v that is forgotten at a step, in (0, 1].
        alpha_x: how far a coordinate of x moves at a step at most, about; a number or a schedule.
        alpha_y: Adam's step of y, the same.
        mu, ideal, scalarization: as in `MOMEHA`.
        shared: 0 gives every coordinate of x its own scale, as Adam does; 1 gives all the same one,
            so that those with little to say move little; what lies between, a mean of the two.
        beta: weight of the averages.
        epsilon: distance of the twin, ||e v|| = epsilon ||y||.
    """

    traits = Traits("stochastic", "strongly convex", nested=False, certainty=100)
    limits: ClassVar[Limits] = {
        "rho": {"above": 0, "most": 1},  # a share
        "beta": {"least": 0, "below": 1},
        "shared": {"least": 0, "most": 1},
    }

    rho: float = 0.01
    alpha_x: Schedule | float = 0.01
    alpha_y: Schedule | float = 0.003
    mu: float = 4.0
    ideal: Ideal | float | tuple[float, ...] = 0.0
    scalarization: str = "stch"
    beta: float = 0.9
    epsilon: float = 3e-3
    shared: float = 0.0

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """Steps that fall to zero at the end of the budget, of the sizes that suit most networks,
        and an ideal point below objectives that are negative at the start.

        `front` and `solve` do better: without a method they race candidates on the problem itself.
        """
        steps, seed = cls.tuning_options(problem, steps, seed)
        steps = steps or 2000
        with warnings.catch_warnings(action="ignore", category=BiparetoWarning):  # said by prepare
            start = Method.prepare(cls(), problem, x0, y0)
        ideal = scalarization.ideal_below(start.objectives[None])
        return cls(
            rho=0.03,
            alpha_x=Cosine(0.03, float(steps)),
            alpha_y=Cosine(0.03, float(steps)),
            ideal=tuple(ideal.tolist()) if bool(ideal.any()) else 0.0,
        )

    def roles(self, m: int) -> tuple[Role, ...]:
        return (Role("lower"), Role("upper"))

    def oracles(self, m: int) -> dict[str, int]:
        return {"lower_gradients": 2, "upper_gradients": m, "hessian_products": 0}

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        start = super().prepare(problem, x0, y0)
        warn_of_ideal(self.ideal, self.scalarization, start.objectives)
        return start

    def begin(self, start: Start, preference: Any = None) -> TwinState:
        f, ideal = start.objectives, as_ideal(self.ideal)
        knobs = TwinKnobs(
            rho=self.rho,
            alpha_x=self.alpha_x,  # type: ignore[arg-type]
            alpha_y=self.alpha_y,  # type: ignore[arg-type]
            mu=self.mu,
            beta=self.beta,
            epsilon=self.epsilon,
            shared=self.shared,
            ideal=Fixed(()) if isinstance(ideal, Fixed) else ideal,
        )
        zero_x, zero_y = tree.zeros_like(start.x), tree.zeros_like(start.y)
        return TwinState(
            x=start.x,
            y=start.y,
            v=zero_y,
            preference=self.checked_preference(preference, f),
            ideal=ideal.start(f),
            t=f.new_zeros(()),
            knobs=tree.numbers(knobs, f.dtype, f.device),
            moments=Moments(zero_x, zero_y, zero_y, zero_x, zero_y, f.new_zeros(())),
        )

    def relearned(self, state: TwinState, y: Tree) -> TwinState:
        zero = tree.zeros_like(y)
        moments = state.moments._replace(y=zero, v=zero, source=torch.zeros_like(state.t))
        return state._replace(y=y, v=zero, moments=moments)

    def step(
        self, problem: Problem, state: TwinState, draw: Draw | None = None
    ) -> tuple[TwinState, Info]:
        x, y, knobs, t, old = state.x, state.y, state.knobs, state.t, state.moments
        upper, lower = ((draw or {}).get(Role(level)) for level in ("upper", "lower"))
        weigh = scalarization.get(self.scalarization).weights

        def training(point: tuple[Tree, Tree]) -> Tensor:
            return problem.lower(*point, lower)

        g_x, g_y = oracle.grad(training, (x, y))
        beta, count = knobs.beta, t + 1
        first, second = 1 - beta**count, 1 - SECOND_MOMENT_Y**count
        square_y = _squares(old.square_y, g_y, SECOND_MOMENT_Y)
        alpha = knobs.alpha_y(t)
        # alpha_y D^-1
        rate = tree.map_(lambda s: alpha / ((s / second).sqrt() + TINY), square_y)

        def objective(point: tuple[Tree, Tree]) -> tuple[Tensor, tuple[Tensor, ...]]:
            f = problem.upper(*point, upper)
            return weigh(f.detach(), state.preference, state.ideal, knobs.mu) @ f, (f,)

        ahead = _descended(y, rate, g_y)
        (upper_x, upper_y), (f,) = oracle.grad_and_aux(objective, (x, ahead))
        push = tree.map_(torch.mul, rate, upper_y)
        source = torch.maximum(SECOND_MOMENT_X * old.source, tree.norm(push))
        v = tree.add_scaled(push, 1 - knobs.rho, _descended(state.v, rate, old.v))
        length = tree.norm(v).clamp_min(TINY**4)
        shorten = (source / knobs.rho / length).clamp(max=1.0)
        v = tree.map_(lambda a: shorten * a, v)

        e = knobs.epsilon * tree.norm(y).clamp_min(TINY) / (shorten * length).clamp_min(TINY**4)
        twin_x, twin_y = oracle.grad(training, (x, tree.add_scaled(y, e, v)))
        curved_x, curved_y = (
            tree.map_(lambda a, b: (a - b) / e, twin, own)
            for twin, own in ((twin_x, g_x), (twin_y, g_y))
        )
        h = tree.sub(upper_x, curved_x)

        m_y = tree.interpolate(g_y, old.y, beta)
        new_y = _descended(y, tree.map_(lambda r: r / first, rate), m_y)
        m_v = tree.interpolate(curved_y, old.v, beta)

        square_x = _squares(old.square_x, h, SECOND_MOMENT_X)
        second = 1 - SECOND_MOMENT_X**count
        m_x = tree.interpolate(h, old.x, beta)
        root = tree.map_(lambda s: (s / second).sqrt(), square_x)
        typical = tree.norm(root) / tree.numel(x) ** 0.5
        # A millionth of the typical coordinate: one that has no gradient stands still.
        least = 1e-6 * typical + TINY**4
        scaled = tree.map_(
            lambda m, r: m / torch.lerp(r, typical, knobs.shared).add(least), m_x, root
        )
        new_x = tree.descend(x, knobs.alpha_x(t) / first, scaled)

        new = state._replace(
            x=new_x,
            y=new_y,
            v=v,
            ideal=knobs.ideal.update(state.ideal, f),
            t=count,
            moments=Moments(m_x, m_y, m_v, square_x, square_y, source),
        )
        return new, {"objectives": f}

    def report(
        self,
        problem: Problem,
        before: TwinState,
        after: TwinState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """Adds g, ||grad_y g|| and ||h|| as averaged (`lower_residual`, `stationarity`), the larger
        of them (`residual`), and ||y|| (`y_norm`) and ||v|| (`adjoint`), which must not drift.
        """
        first = 1 - before.knobs.beta**after.t
        lower_residual = tree.norm(after.moments.y) / first
        stationarity = tree.norm(after.moments.x) / first
        return info | {
            "lower": problem.lower(before.x, before.y, (draw or {}).get(Role("lower"))),
            "lower_residual": lower_residual,
            "stationarity": stationarity,
            "residual": torch.maximum(lower_residual, stationarity),
            "y_norm": tree.norm(after.y),
            "adjoint": tree.norm(after.v),
        }


def _descended(point: Tree, rate: Tree, direction: Tree) -> Tree:
    """point - rate * direction, coordinate by coordinate."""
    return tree.map_(lambda a, r, d: torch.addcmul(a, r, d, value=-1), point, rate, direction)


def _squares(average: Tree, direction: Tree, decay: float) -> Tree:
    return tree.map_(lambda s, d: torch.lerp(d * d, s, decay), average, direction)
