"""What the methods built on several gradients share: their draws, the nested lower level, and
reports read off the moves.

Draws are those of MB-MOMEHA: of g and of every f_i for x; and of g for y, one for each of several
steps on g alone.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.base import Draw, Info, Method, Start, WeightedState
from bipareto.methods.parts import simplex
from bipareto.methods.parts.differentiation import Level, descend, jacobian
from bipareto.methods.parts.hypergradient import Hypergradient, Hypergradients, warn_if_singular
from bipareto.methods.parts.scalarization import as_ideal
from bipareto.methods.parts.simplex import Weights
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree

W = TypeVar("W", bound=WeightedState)

#: The draw on which x sees g.
LOWER_X = Role("lower", "x")


def roles(m: int, lower_steps: int = 0) -> tuple[Role, ...]:
    """The draws of one step with `lower_steps` steps on g before x moves."""
    return (
        *(Role("lower", "y", j) for j in range(lower_steps)),
        LOWER_X,
        *(Role("upper", "x", i) for i in range(m)),
    )


def lower_of(problem: Problem, draw: Draw | None, role: Role = LOWER_X) -> Level:
    """g on the draw of a role."""
    batch = (draw or {}).get(role)
    return lambda x, y: problem.lower(x, y, batch)


def upper_of(
    problem: Problem, draw: Draw | None, m: int, chosen: Sequence[int] | None = None
) -> Level:
    """f, or the chosen of its m components, every objective on its own draw."""
    if not draw:
        return (
            problem.upper
            if chosen is None
            else lambda x, y: torch.stack([problem.upper(x, y)[i] for i in chosen])
        )
    batches = {i: draw[Role("upper", "x", i)] for i in (range(m) if chosen is None else chosen)}
    return lambda x, y: torch.stack(
        [problem.objective(i, x, y, batch) for i, batch in batches.items()]
    )


class Nested(Method[W], ABC):
    """A method that follows hypergradients at the y of D gradient steps on g from y_t."""

    @property
    @abstractmethod
    def lower_steps(self) -> int:
        """D."""

    @property
    @abstractmethod
    def hypergradient(self) -> Hypergradient:
        """How they are estimated."""

    def roles(self, m: int) -> tuple[Role, ...]:
        return roles(m, self.lower_steps)

    def oracles(self, m: int) -> dict[str, int]:
        cost = self.hypergradient.oracles(m)
        return cost | {"lower_gradients": cost["lower_gradients"] + self.lower_steps}

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        start = super().prepare(problem, x0, y0)
        warn_if_singular(type(self).__name__, problem, start.x, start.y)
        return start

    def hypergradients(
        self, problem: Problem, state: W, draw: Draw | None, lower_step: Any = None
    ) -> Hypergradients:
        """y^D by D steps of that size, and the hypergradients at (x_t, y^D).

        Objectives that depend on one part of y (`Problem.parts`) are estimated together, with the
        terms of g that hold it.  The hypergradient of an objective without y is its gradient: no
        linear system is solved for it.
        """
        x, y, m = state.x, state.y, state.weights.shape[-1]
        for j in range(self.lower_steps):
            y = descend(lower_of(problem, draw, Role("lower", "y", j)), x, y, lower_step)
        estimate, numbers = self.hypergradient, state.knobs.hypergradient
        if not any(part is not None for part in problem.parts):
            return estimate(upper_of(problem, draw, m), lower_of(problem, draw), x, y, numbers)
        groups = {part: [i for i in range(m) if problem.parts[i] == part] for part in problem.parts}
        batch = (draw or {}).get(LOWER_X)

        def estimated(part: int | None, chosen: Sequence[int]) -> Hypergradients:
            upper = upper_of(problem, draw, m, chosen)
            if part is None:
                f, f_x, _ = jacobian(upper, x, y)
                return Hypergradients(f, f_x, y, None, None)
            return estimate(
                upper, lambda x_, y_: problem.lower_part(part, x_, y_, batch), x, y, numbers
            )

        return _together(
            [estimated(*group) for group in groups.items()],
            [i for chosen in groups.values() for i in chosen],
            y,
        )

    def report(
        self, problem: Problem, before: W, after: W, info: Info, draw: Draw | None = None
    ) -> Info:
        """Adds g and ||grad_y g|| at (x_t, y_(t+1)), where the objectives were taken, the norm of
        x's direction read off its move (`stationarity`), and the larger of the two (`residual`).
        """
        lower = lower_of(problem, draw)
        residual = tree.norm(oracle.grad(lambda y: lower(before.x, y), after.y))
        direction = moved(before.x, after.x, before.knobs.alpha_x(before.t))
        return info | {
            "lower": lower(before.x, after.y),
            "lower_residual": residual,
            "stationarity": direction,
            "residual": torch.maximum(direction, residual),
        }


def _together(found: Sequence[Hypergradients], places: Sequence[int], y: Tree) -> Hypergradients:
    """Estimates of groups of objectives as one; `places` are those of their rows, and each has
    moved its own part of y at most.
    """

    def rows(values: list[Tensor]) -> Tensor:
        joined = torch.cat(values)
        return (
            joined
            if list(places) == sorted(places)
            else torch.stack([joined[places.index(i)] for i in range(len(places))])
        )

    moved = [part.y for part in found if part.y is not y]
    end = (
        moved[0]
        if len(moved) == 1
        else reduce(lambda end, own: tree.add_scaled(end, 1.0, tree.sub(own, y)), moved, y)
    )
    residuals, curvatures = (
        [value for value in values if value is not None]
        for values in zip(*(part[3:] for part in found), strict=True)
    )
    return Hypergradients(
        rows([part.objectives for part in found]),
        rows([part.gradients for part in found]),
        end,
        reduce(torch.maximum, residuals) if residuals else None,
        reduce(torch.minimum, curvatures) if curvatures else None,
    )


def upper_jacobian(
    problem: Problem, draw: Draw | None, x: Tree, y: Tree, m: int
) -> tuple[Tensor, Tensor, Tensor]:
    """f (m,) and the gradients of all objectives, in x (m, n_x) and in y (m, n_y); with draws each
    objective is differentiated by itself.
    """
    if not draw:
        return jacobian(problem.upper, x, y)
    f, f_x, f_y = zip(
        *(jacobian(upper_of(problem, draw, m, [i]), x, y) for i in range(m)), strict=True
    )
    return torch.cat(f), torch.cat(f_x), torch.cat(f_y)


def moved(before: Tree, after: Tree, step: Tensor) -> Tensor:
    """||direction|| read off a move of that step size; NaN, not known, where the step is zero."""
    return tree.norm(tree.sub(before, after)) / step


def solver_info(found: Hypergradients, weights: Weights) -> Info:
    """What a step saw: f, the weights and their slack, and what the linear solver left undone."""
    return {
        "objectives": found.objectives,
        "weights": weights.weights,
        "weights_slack": weights.slack,
    } | solver_residuals(found)


def solver_residuals(found: Hypergradients) -> Info:
    """What the linear solver left undone, nothing where none was used."""
    if found.solver_residual is None or found.curvature is None:
        return {}
    return {"solver_residual": found.solver_residual, "curvature": found.curvature}


def toward(x: Tree, step: Any, direction: Tensor) -> Tree:
    """x - step * direction, the direction flat."""
    return tree.add_scaled(x, -step, tree.unravel(direction, x))


def weigh(gram: Tensor, linear: Tensor, start: Tensor, steps: int | None, lr: Any) -> Weights:
    """argmin over the simplex of lam^T G lam - b^T lam: exactly, or by a given number of projected
    steps from `start`.
    """
    return (
        simplex.quadratic(gram, linear)
        if steps is None
        else simplex.projected_steps(gram, linear, start, steps, lr)
    )


def uniform(f: Tensor) -> Tensor:
    """Equal weights like the objectives f (m,)."""
    return torch.full_like(f, 1 / f.shape[0])


def zero(start: Start) -> Tensor:
    """t = 0, like the objectives."""
    return torch.zeros((), dtype=start.objectives.dtype, device=start.objectives.device)


def warn_of_ideal(rule: Any, scalarization: str, f: Tensor) -> None:
    """Warn where z is above f at the start: a larger w_i then makes w_i (f_i - z_i) smaller, and
    the preferred objective is served last.
    """
    z = as_ideal(rule).start(f)
    wrong = [
        f"z_{i + 1} = {a:g} with f_{i + 1} = {b:g}"
        for i, (a, b) in enumerate(zip(z.tolist(), f.tolist(), strict=True))
        if a > b
    ]
    if wrong and scalarization != "linear":
        warnings.warn(
            f"the ideal point is above the objectives at the start ({', '.join(wrong)}), where "
            "preferences work the wrong way round; add a constant to these objectives, pass a "
            "smaller ideal, or scalarization.Tracked(margin), which stays below",
            BiparetoWarning,
            stacklevel=5,
        )


def require_positive(name: str, f: Tensor) -> None:
    """Weighted Chebyshev with the ideal point at zero makes sense for f_i > 0 only."""
    bad = [f"f_{i + 1} = {value:.4g}" for i, value in enumerate(f.tolist()) if not value > 0]
    if bad:
        raise InvalidInput(
            f"{name} minimises max_i w_i f_i and needs every f_i > 0, but {', '.join(bad)} at the "
            "start; add a constant to that objective, "
            "or use MOMEHA, which takes an ideal point (MOMEHA(ideal=...))"
        )


K = TypeVar("K", bound=NamedTuple)


def knobs(kind: type[K], method: Method, start: Start, **others: Any) -> K:
    """The numbers of a run as 0-d tensors like its objectives: the method's fields of those names,
    and the others as given.
    """
    found = kind._make(
        others[name] if name in others else getattr(method, name) for name in kind._fields
    )
    return tree.numbers(found, start.objectives.dtype, start.objectives.device)
