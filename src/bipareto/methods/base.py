"""What every method is: a small value with a pure `init` and a pure `step`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.coordinates import Coordinates, Plain
from bipareto.methods.parts.hypergradient import MOST_REPEATS, Hypergradient
from bipareto.methods.parts.preferences import as_preference
from bipareto.methods.parts.schedule import as_schedule
from bipareto.problem import Problem, tree, validation
from bipareto.problem.base import as_problem
from bipareto.problem.purity import check_draws
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree

#: role -> batch; empty for a problem without data.
Draw = Mapping[Role, Any]
#: what a step saw: `objectives` (m,) at (x_t, y_t), and what else the method has at hand, as
#: tensors.
Info = dict[str, Tensor]
#: field -> keyword arguments of `validation.number` or `validation.count`.
Limits = Mapping[str, Mapping[str, Any]]


class State(Protocol):
    """What every method's state has: x_t, y_t and the step t, 0-d.

    A state is a named tuple of tensors; `vmap` gives each of them a first run axis.  Methods with
    preferences also have `preference` (m,), and `knobs`, their hyperparameters as 0-d tensors.
    """

    @property
    def x(self) -> Tree:
        """x_t."""

    @property
    def y(self) -> Tree:
        """y_t."""

    @property
    def t(self) -> Tensor:
        """t."""


class WeightedState(State, Protocol):
    """The state of a method whose direction weighs the objectives, with a nested lower level."""

    @property
    def weights(self) -> Tensor:
        """lambda_t (m,)."""

    @property
    def knobs(self) -> Any:
        """The hyperparameters as 0-d tensors; `alpha_x` is called with t."""


class PreferredState(State, Protocol):
    """The state of a run that has a preference."""

    @property
    def preference(self) -> Tensor:
        """w (m,)."""


#: the state of a method; `Method` without one stands for any
S = TypeVar("S", bound=State, default=Any)


class Start(NamedTuple):
    """A checked start, the same for every preference: x_0, y_0, the objectives f(x_0, y_0), shape
    (m,), and the coordinates in which a run begins.
    """

    x: Tree
    y: Tree
    objectives: Tensor
    coordinates: Coordinates | Plain = Plain()


class Traits(NamedTuple):
    """What a method's own paper says of it, and how faithful this code is.

    scenario: the setting in which its convergence is analysed.
    lower_level: what that asks of g(x, .).
    nested: whether every iteration has an inner loop on the lower level.
    certainty: how sure we are that this code is the published method, in per cent.
    reconstructed: what neither its paper nor its authors' code could tell us and was inferred; ""
        for nothing.
    """

    scenario: Literal["deterministic", "stochastic", "both"]
    lower_level: Literal["one minimiser", "strongly convex", "convex", "nonconvex"]
    nested: bool
    certainty: int
    reconstructed: str = ""


@dataclass(frozen=True)
class Method(ABC, Generic[S]):
    """A method: structure in its class and fields, numbers in the state it makes.

    `step` is written for one run and is pure: no host sync, no branch on a tensor, no randomness of
    its own.  A batch of runs is `vmap(step)`, a fast one `torch.compile(vmap(step))`.
    """

    #: whether `init` takes a preference
    uses_preference: ClassVar[bool] = True
    #: what its paper says of it
    traits: ClassVar[Traits]
    #: bounds of hyperparameters, as `validation.number` and `validation.count` take them, where
    #: they are not the usual ones:
    #: real numbers and schedules > 0, counts from 0 to `MOST_REPEATS`
    limits: ClassVar[Limits] = {}

    def __post_init__(self) -> None:
        for field in fields(self):
            bounds = dict(self.limits.get(field.name, {}))
            object.__setattr__(
                self,
                field.name,
                _checked(field.name, str(field.type), getattr(self, field.name), bounds),
            )

    def init(
        self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module, preference: Any = None
    ) -> S:
        """The state before the first step.

        Args:
            problem: the problem.
            x0, y0: where x and y start, trees of tensors or modules; device and dtype of the run
                come from x0.
            preference: w, m numbers > 0 that sum to 1; None stands for equal weights.  Not for
                methods without preferences.
        """
        return self.begin(self.prepare(problem, x0, y0), preference)

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        """Check the start once for all preferences."""
        x, y = tree.as_tree(x0, "x0"), tree.as_tree(y0, "y0")
        m = as_problem(problem).check(x, y)
        check_draws(problem, self.roles(m))
        with torch.no_grad():
            return Start(x, y, problem.upper(x, y, problem.batch("upper", "full")))

    def checked_preference(self, preference: Any, objectives: Tensor) -> Tensor:
        """w as a tensor like the objectives; equal weights for None."""
        m = objectives.shape[0]
        if preference is not None and not self.uses_preference:
            raise InvalidInput(
                f"{type(self).__name__} has no preferences but was given {preference!r}; call it "
                "without, or use MOMEHA, which has"
            )
        w = (
            torch.full((m,), 1 / m, dtype=torch.float64)
            if preference is None
            else as_preference(preference, m)
        )
        if w.dim() != 1:
            raise InvalidInput(
                f"preference has shape {tuple(w.shape)}, but one run has one, m = {m} numbers; "
                "bipareto.front takes several"
            )
        return w.to(objectives)

    @abstractmethod
    def begin(self, start: Start, preference: Any = None) -> S:
        """The state of one preference from a checked start."""

    def relearned(self, state: S, y: Tree) -> S:
        """The state with y replaced, and all that follows y put there with it."""
        return cast("Any", state)._replace(y=y)

    @abstractmethod
    def step(self, problem: Problem, state: S, draw: Draw | None = None) -> tuple[S, Info]:
        """One iteration of one run: the next state and what was seen on the way."""

    def report(
        self, problem: Problem, before: S, after: S, info: Info, draw: Draw | None = None
    ) -> Info:
        """What the loop records of a step from `before` to `after`: its info, with `lower` (g) and
        `residual`.

        The smallest residual marks the best iterate.  Called now and then, so what need not be
        computed at every step belongs here and not in the step.  Written for one run, pure.
        """
        return info

    def renewals(self, steps: int) -> tuple[int, ...]:
        """After which of `steps` steps the loop calls `renewed`; never, for most methods."""
        return ()

    def renewed(self, problem: Problem, state: S) -> S:
        """States of runs, with a first axis R, fitted again to where the runs are."""
        return state

    def shortened(self, state: S) -> S:
        """The state with shorter steps, for a run that was lost from here."""
        return state

    def thrown(self, state: S, before: Info, after: Info) -> Tensor:
        """The runs, a mask like t, that a block of steps has thrown off their way, though to finite
        numbers, judged by what its first and its last step saw; for most methods none.
        """
        return torch.zeros_like(cast("Any", state).t, dtype=torch.bool)

    @abstractmethod
    def roles(self, m: int) -> tuple[Role, ...]:
        """The draws that one step needs for m objectives."""

    @abstractmethod
    def oracles(self, m: int) -> dict[str, int]:
        """What one step costs: gradients of g (`lower_gradients`), of f_i (`upper_gradients`),
        `hessian_products`.
        """

    def preparation(self, m: int) -> dict[str, int]:
        """What `prepare` costs beside the check of the start, in the terms of `oracles`."""
        return {}

    def cost(self, m: int, steps: int, starts: int = 1) -> dict[str, int]:
        """What `steps` steps cost, with that many preparations."""
        before = self.preparation(m)
        return {
            name: count * steps + starts * before.get(name, 0)
            for name, count in self.oracles(m).items()
        }

    def structure(self) -> tuple[Any, ...]:
        """What decides the compiled graph: the class, and its fields less their numbers (those
        travel in the state).
        """
        return (type(self), *(_shape_of(getattr(self, f.name)) for f in fields(self)))

    @staticmethod
    def tuning_options(problem: Any, steps: Any, seed: Any) -> tuple[int | None, int]:
        """The step budget and the seed of `tuned`; they and the problem are checked."""
        as_problem(problem)
        budget = (
            None
            if steps is None
            else validation.count(steps, "steps", least=1, most=validation.MOST_STEPS)
        )
        return budget, validation.seed(seed)

    @classmethod
    def tuned(
        cls, problem: Problem, x0: Any, y0: Any, steps: int | None = None, seed: int = 0
    ) -> Self:
        """This method with numbers that suit the problem, its start and the step budget."""
        raise InvalidInput(
            f"{cls.__name__} has no tuning rule; give its numbers, e.g. "
            f"{cls.__name__}({', '.join(f.name + '=...' for f in fields(cls))})"
        )


def _checked(name: str, kind: str, value: Any, bounds: dict[str, Any]) -> Any:
    """A hyperparameter in the form that its annotation promises."""
    if value is None and "None" in kind:
        return None
    kind = kind.removesuffix(" | None")
    real = bounds or {"above": 0}
    if kind == "float":
        return validation.number(value, name, **real)
    if kind == "Schedule | float":
        return as_schedule(value, name, **real)
    if kind == "int":
        return validation.count(value, name, **{"most": MOST_REPEATS} | bounds)
    if kind == "bool":
        return validation.flag(value, name)
    if kind == "Hypergradient":
        return validation.instance(
            value, name, Hypergradient, "pass a way to estimate them, such as hypergradient.CG(10)"
        )
    if kind.startswith("Ideal"):
        return scalarization.as_ideal(value)
    if name == "scalarization":
        scalarization.get(value)
    return value


def _shape_of(value: Any) -> Any:
    """A field without its numbers: a float becomes its type, a schedule or an ideal point its
    class, structure stays.

    What consists of both, such as a way to estimate hypergradients, is a dataclass and is looked at
    field by field.
    """
    if isinstance(value, float):
        return float
    if is_dataclass(value):
        return (type(value), *(_shape_of(getattr(value, f.name)) for f in fields(value)))
    return type(value) if isinstance(value, tuple) else value
