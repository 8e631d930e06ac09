"""MOMEHA: single-loop, Hessian-free, preference-guided, for a nonconvex lower level.

Jiang and Huang, "Efficient Hessian-Free Methods for Multi-Objective Bilevel Optimization with
Nonconvex Lower Level", Algorithm 1.  The lower level is replaced by the constraint g(x, y) -
v_gamma(x, y) <= 0 with the Moreau envelope v_gamma(x, y) = min_theta g(x, theta) + ||theta - y||^2
/ (2 gamma), the objectives by their smooth Tchebycheff scalarization F, and F + c_t (g - v_gamma)
is descended by one step each in theta, x and y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bipareto.errors import InvalidInput
from bipareto.methods.base import Draw, Info, Limits, Method, Start, Traits
from bipareto.methods.common import warn_of_ideal
from bipareto.methods.momeha_state import Knobs, MomehaState, Momentum, towards
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.coordinates import Coordinates, Plain
from bipareto.methods.parts.scalarization import Fixed, Ideal, as_ideal
from bipareto.methods.parts.schedule import Power, Schedule, as_schedule
from bipareto.methods.theory import admissible
from bipareto.methods.theory.constants import Deterministic
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.methods.tuning import functions
from bipareto.problem import Problem, oracle, tree, validation
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree

#: No preference asks for an objective above its extent: one that rises by so many of them within a
#: block, or all that rise by so many, show steps that are too long.
THROWN, ALL_THROWN = 10.0, 1.0

__all__ = ["MOMEHA", "Knobs", "MomehaState", "Momentum", "towards"]


@dataclass(frozen=True)
class MOMEHA(Method[MomehaState]):
    """Algorithm 1: single-loop, Hessian-free, with preferences, for a nonconvex lower level.

    With the defaults this is the algorithm as it is written below; `MOMEHA.tuned(problem, x0, y0)`
    fits hyperparameters and coordinates to a problem.

    theta+ = theta - alpha_theta [ grad_y g(x, theta) + (theta - y)/gamma ]
    x+     = x - alpha_x [ grad_x F(x, y)/c_t + grad_x g(x, y) - grad_x g(x, theta+) ]
    y+     = y - alpha_y [ grad_y F(x+, y)/c_t + grad_y g(x+, y) + (theta+ - y)/gamma ]

    On a problem with a sampler each step sees one draw of each level.

    Args:
        gamma: regularity of the Moreau envelope; the theory needs gamma < 1/(2 rho_y), rho_y the
            weak convexity of g in y.
        mu: smoothing of the Tchebycheff scalarization; larger is sharper and stiffer.
        alpha_theta, alpha_x, alpha_y: step sizes, numbers or schedules.  Keep alpha_theta =
            alpha_y: much larger alpha_theta makes lower-level *maxima* attractive.
        c: penalty c_t, a number or a schedule.  Too weak and y leaves the lower level's basin; too
            strong and x stands still.
        ideal: z, below every objective; a number, m numbers, or `scalarization.Tracked(margin)`.
        scalarization: "stch" (the paper's), "tchebycheff" or "linear".
        warmup: gradient steps on g(x_0, .) from y_0 before the first joint step, none in the paper.
            A start outside the basin of a lower minimum can be held there by the envelope (its gap
            has spurious stationary points).
        extent: s, one number or m: F is taken of (f_i - z_i)/s_i.
        coordinates: "plain" runs in x and y as they are; "fitted" in linear `Coordinates`, fitted
            to the curvature at the start and again on the way (`tuning.functions`).  gamma,
            alpha_theta and alpha_y then speak of a g whose curvature in y is one where the run is,
            and alpha_x is the share of its way that x goes in one step.
    """

    traits = Traits("deterministic", "nonconvex", nested=False, certainty=100)
    limits: ClassVar[Limits] = {
        "warmup": {"most": 1_000_000, "instead": "a y0 that solves the lower level needs none"}
    }

    gamma: float = 0.1
    mu: float = 4.0
    alpha_theta: Schedule | float = 0.01
    alpha_x: Schedule | float = 0.01
    alpha_y: Schedule | float = 0.01
    c: Schedule | float = Power(1.0, 0.25)
    ideal: Ideal | float | tuple[float, ...] = 0.0
    scalarization: str = "stch"
    warmup: int = 0
    extent: float | tuple[float, ...] = 1.0
    coordinates: str = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.choice(self.coordinates, "coordinates", ["plain", "fitted"])
        for value in self.extent if isinstance(self.extent, tuple) else (self.extent,):
            validation.number(value, "extent", above=0)

    @classmethod
    def paper(cls, preset: str = "sensitivity") -> Self:
        """The paper's settings for few-shot learning: "sensitivity" (FC100) or "comparison"
        (Caltech-256).
        """
        presets: dict[str, dict[str, Any]] = {
            "sensitivity": {
                "alpha_theta": 0.01,
                "alpha_x": 0.01,
                "alpha_y": 0.01,
                "c": Power(1.0, 0.25),
            },
            "comparison": {"alpha_theta": 0.05, "alpha_x": 0.1, "alpha_y": 0.05, "c": 1.0},
        }
        return cls(gamma=8.0, mu=4.0, **presets[validation.choice(preset, "preset", presets)])

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """Hyperparameters that know no units: objectives are measured by their own range over the
        front, x and y run in coordinates fitted to the curvature met on the way
        (`bipareto.methods.tuning.functions`).

        Problems that are drawn from or too large to be looked at whole get plain coordinates and
        probes along single directions (`bipareto.methods.tuning.envelope_methods`).
        """
        steps, seed = cls.tuning_options(problem, steps, seed)
        return cls(**functions.tune_momeha(problem, x0, y0, steps=steps, seed=seed))

    @classmethod
    def admissible(
        cls,
        problem: Problem,
        x0: Any,
        y0: Any,
        *,
        constants: Any = None,
        gamma: float | None = None,
        mu: float | None = None,
        c: Schedule | float = Power(1.0, 0.25),
        ideal: Any = None,
        preference: Any = None,
        scalarization: str = "stch",
        fraction: float = 0.99,
    ) -> Self:
        """Steps for which Theorem 1 is proved: its merit V_t falls at every iteration, by the
        amount the proof says.

        Admissible is not good.  The bounds are tiny (1e-4 and less), so that 20,000 steps may
        hardly move x; and they make alpha_theta/alpha_y >= 8/gamma, far inside the regime in which
        lower-level *maxima* attract the run: the envelope's constraint holds there too, and V falls
        happily towards one.  `tuned` has no proof, keeps alpha_theta = alpha_y within the bound
        that repels maxima, and is what to use for answers; use this to check the theory, or where a
        guarantee is asked for.

        Args:
            problem, x0, y0: the start decides V_0, and with it the set on which F must be smooth.
            constants: anything with L_g, L_f (joint in x and y) and rho_y, such as a known
                problem's `constants`; None probes them.
            gamma: below 1/(2 rho_y); None is the one with the largest step of y.
            mu, ideal: None takes what `tuned` takes.
            c: c_0 (1 + t)^p with 0 <= p < 1/2; the theorem's joint rate has p = 1/4.
            preference: the preference to be run; None is equal weights.
            fraction: of the bounds u_theta, u_x, u_y.
        """
        asked = admissible.Asked(
            problem, x0, y0, constants, gamma, mu, ideal, preference, scalarization
        )
        return cls(**admissible.theorem1(asked, c, fraction))

    def bounds(
        self, problem: Problem, x0: Any, y0: Any, *, constants: Any = None, preference: Any = None
    ) -> Deterministic | Stochastic:
        """The constants of the proofs and the admissible steps, for this method's own gamma, mu, z
        and penalty.

        `method.bounds(...).outside(alpha_theta, alpha_x, alpha_y)` names the steps that are too
        large.  Of the method's steps alpha_theta alone has a say, where it is admissible: u_x and
        u_y depend on it.  Arguments as in `admissible`.  Runs in fitted coordinates are refused.
        """
        if self.coordinates != "plain":
            raise InvalidInput(
                "these hyperparameters are for fitted coordinates, and the proofs speak of plain "
                "ones; take MOMEHA.admissible(...), or MOMEHA(...) with numbers of your own"
            )
        own = self.gamma, self.mu, self.ideal, preference, self.scalarization
        asked = admissible.Asked(problem, x0, y0, constants, *own)
        return admissible.bounds(asked, self.alpha_theta, self.c, self._beta() or None)

    def roles(self, m: int) -> tuple[Role, ...]:
        return (Role("lower"), Role("upper"))

    def oracles(self, m: int) -> dict[str, int]:
        return {"lower_gradients": 4, "upper_gradients": 2 * m, "hessian_products": 0}

    def preparation(self, m: int) -> dict[str, int]:
        return {"lower_gradients": self.warmup}

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        start = super().prepare(problem, x0, y0)
        # A measured range goes with a measured ideal; y_0, which solves nothing, may lie below it.
        if self.coordinates == "plain" and not isinstance(self.extent, tuple):
            warn_of_ideal(self.ideal, self.scalarization, start.objectives)
        x, y, f = start.x, start.y, start.objectives
        frame: Coordinates | Plain = Plain()
        if self.coordinates == "fitted":
            frame = functions.begin(
                problem, x, y, extent=self._extent(f).double(), mu=self.mu, gamma=self.gamma,
                alpha=self._first("alpha_y"), penalty=self._first("c"), pace=self._first("alpha_x"),
            )  # fmt: skip
            frame = tree.numbers(frame, f.dtype, f.device)
        step, batch = self._first("alpha_theta"), problem.batch("lower", "full")
        rest = self._rest(frame, y)
        for _ in range(self.warmup):
            slope = oracle.grad(lambda v: problem.lower(x, v, batch), y)
            direction = frame.in_y(slope)
            y = tree.add_scaled(y, -step, direction)
            # In coordinates y comes to rest long before the last step.
            if rest is not None and step**2 * float(tree.dot(slope, direction)) <= rest:
                break
        with torch.no_grad():
            return Start(x, y, problem.upper(x, y, problem.batch("upper", "full")), frame)

    def _rest(self, frame: Coordinates | Plain, y: Tree) -> float | None:
        """The squared length of a move of y that is rounding, beside y* or the way there; None in
        plain coordinates, where y may be as slow as it likes, and in single precision, where what
        counts as rounding has left y short of y* for a run to fail by.
        """
        if not isinstance(frame, Coordinates) or frame.y.dtype != torch.float64:
            return None
        there = tree.unravel(frame.made_y, y)
        size = max(float(frame.squared_y(there)), float(frame.squared_y(tree.sub(there, y))))
        return (100 * torch.finfo(frame.y.dtype).eps) ** 2 * size

    def _first(self, name: str) -> float:
        """A schedule's value at t = 0."""
        return float(as_schedule(getattr(self, name), name)(torch.zeros((), dtype=torch.float64)))

    def _extent(self, f: Tensor) -> Tensor:
        extent = torch.as_tensor(self.extent, dtype=f.dtype, device=f.device)
        if extent.dim() and extent.shape != f.shape:
            raise InvalidInput(
                f"extent has {len(extent)} entries {self.extent}, but upper returns m = {len(f)} "
                "objectives; pass one number, or one for each"
            )
        return extent.expand(f.shape).clone()

    def begin(self, start: Start, preference: Any = None) -> MomehaState:
        f, ideal = start.objectives, as_ideal(self.ideal)
        knobs = Knobs(
            gamma=self.gamma,
            mu=self.mu,
            alpha_theta=as_schedule(self.alpha_theta, "alpha_theta"),
            alpha_x=as_schedule(self.alpha_x, "alpha_x"),
            alpha_y=as_schedule(self.alpha_y, "alpha_y"),
            c=as_schedule(self.c, "c"),
            # A fixed z lives in the state alone.
            ideal=Fixed(()) if isinstance(ideal, Fixed) else ideal,
            beta=self._beta(),
        )
        return MomehaState(
            x=start.x,
            y=start.y,
            theta=start.y,
            preference=self.checked_preference(preference, f),
            ideal=ideal.start(f),
            t=torch.zeros((), dtype=f.dtype, device=f.device),
            knobs=tree.numbers(knobs, f.dtype, f.device),
            momentum=self._momentum(start),
            extent=self._extent(f),
            coordinates=start.coordinates,
        )

    def relearned(self, state: MomehaState, y: Tree) -> MomehaState:
        momentum = state.momentum and Momentum(
            tree.zeros_like(y), state.momentum.x, tree.zeros_like(y)
        )
        return state._replace(y=y, theta=y, momentum=momentum)

    def step(
        self, problem: Problem, state: MomehaState, draw: Draw | None = None
    ) -> tuple[MomehaState, Info]:
        x, y, knobs, t, frame = state.x, state.y, state.knobs, state.t, state.coordinates
        upper, lower = ((draw or {}).get(Role(level)) for level in ("upper", "lower"))
        inverse_c, inverse_gamma = knobs.c(t).reciprocal(), knobs.gamma.reciprocal()

        # No name for this direction: it would be a copy of y that lives as long as the step.
        theta = tree.descend(
            state.theta,
            knobs.alpha_theta(t),
            towards(
                frame.in_y(oracle.grad(lambda v: problem.lower(x, v, lower), state.theta)),
                inverse_gamma, state.theta, y,
            ),
        )  # fmt: skip

        def x_terms(v: Tree) -> tuple[Tensor, tuple[Tensor, ...]]:
            y_, theta_ = frame.carried(y, x, v), frame.carried(theta, x, v)
            f = problem.upper(v, y_, upper)
            g_y, g_theta = problem.lower_pair(v, y_, theta_, lower)
            return inverse_c * (self.weights(f, state) @ f) + g_y - g_theta, (f,)

        d_x, (f,) = oracle.grad_and_aux(x_terms, x)
        x = tree.descend(x, knobs.alpha_x(t), frame.in_x(d_x))
        del d_x
        y, theta = frame.carried(y, state.x, x), frame.carried(theta, state.x, x)

        def y_terms(v: Tree) -> Tensor:
            f = problem.upper(x, v, upper)
            return inverse_c * (self.weights(f, state) @ f) + problem.lower(x, v, lower)

        d_y = towards(frame.in_y(oracle.grad(y_terms, y)), inverse_gamma, theta, y)
        y = tree.descend(y, knobs.alpha_y(t), d_y)
        ideal = knobs.ideal.update(state.ideal, f)
        return state._replace(x=x, y=y, theta=theta, ideal=ideal, t=t + 1), {"objectives": f}

    def renewals(self, steps: int) -> tuple[int, ...]:
        marks: list[int] = []
        first = functions.FIRST if steps < functions.SHORT else 1
        for share in functions.RENEWALS if self.coordinates == "fitted" else ():
            mark = max(int(share * steps), first)
            if not marks or mark >= marks[-1] + functions.APART:
                marks.append(mark)
        return tuple(marks)

    def renewed(self, problem: Problem, state: MomehaState) -> MomehaState:
        return functions.renew(problem, state)

    def shortened(self, state: MomehaState) -> MomehaState:
        frame = state.coordinates
        if isinstance(frame, Coordinates):
            frame = frame._replace(x=frame.x / 8, y=frame.y / 2)
        return state._replace(coordinates=frame)

    def thrown(self, state: MomehaState, before: Info, after: Info) -> Tensor:
        rise = (after["objectives"] - before["objectives"]) / state.extent
        return (rise.amax(-1) > THROWN) | (rise.amin(-1) > ALL_THROWN)

    def weights(self, f: Tensor, state: MomehaState) -> Tensor:
        """The constants (m,) that multiply the f_i: differentiating their sum gives grad F."""
        weigh = scalarization.get(self.scalarization).weights
        return weigh(f.detach(), state.importance, state.ideal, state.knobs.mu)

    def report(
        self,
        problem: Problem,
        before: MomehaState,
        after: MomehaState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """The gap g - v_gamma as theta sees it, and the residual H_p with the paper's multipliers
        lambda = weights/s, p = c/s.

        H_p = (c/s) ||(d_x, d_y)||, up to theta's lag; the directions are read off the moves
        (averages of them in Algorithm 2). `residual` is the larger of the two: the iterate is
        eps-eps-Pareto stationary for eps = residual.  Lengths are those of the run's coordinates.
        """
        knobs, t, frame = before.knobs, before.t, before.coordinates
        theta = frame.carried(after.theta, after.x, before.x)
        lower, lower_theta = problem.lower_pair(before.x, before.y, theta, self._lower_batch(draw))
        gap = lower - lower_theta - frame.squared_y(tree.sub(theta, before.y)) / (2 * knobs.gamma)
        d_x = frame.squared_x(tree.sub(before.x, after.x)).sqrt() / knobs.alpha_x(t)
        moved = tree.sub(frame.carried(before.y, before.x, after.x), after.y)
        d_y = frame.squared_y(moved).sqrt() / knobs.alpha_y(t)
        weigh = scalarization.get(self.scalarization).weights
        s = weigh(info["objectives"], before.importance, before.ideal, knobs.mu).sum()
        stationarity = knobs.c(t) / s * torch.hypot(d_x, d_y)
        return info | {
            "lower": lower,
            "gap": gap,
            "stationarity": stationarity,
            "residual": torch.maximum(gap, stationarity),
        }

    def _lower_batch(self, draw: Draw | None) -> Any:
        """The draw on which g is seen at y and at theta."""
        return (draw or {}).get(Role("lower"))

    def _beta(self) -> Schedule | tuple[()]:
        return ()

    def _momentum(self, start: Start) -> Momentum | tuple[()]:
        return ()
