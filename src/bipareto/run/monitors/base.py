"""Watching a run through the eyes of the theory: callbacks for `solve` and `front`.

A monitor is given as a callback and keeps the states it sees; numbers are computed from them in
batches, all states side by side, when they are asked for or when `chunk` states have come together.
So a monitor costs little while the run goes on, and a proximal point is solved to a tolerance for
many iterates at once.

    gap = Gap(problem)
    solve(problem, x0, y0, method=method, callbacks=[gap], record_every=10)
# a list of steps, a tensor (records,) or (records, R) in a front
    gap.steps, gap.values

The loop calls back after every block of `record_every` steps; `see(method.init(...))` beforehand
adds the start.  Losses must be such that `torch.func.vmap` can batch them, and all runs of a front
must have one gamma.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.base import State
from bipareto.methods.momeha import MomehaState
from bipareto.methods.parts import envelope
from bipareto.methods.parts import scalarization as scalarizations
from bipareto.methods.parts.coordinates import Coordinates
from bipareto.methods.parts.scalarization import Scalarization
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.run.results import Record


class Monitor(ABC):
    """Steps and one number per state of a MOMEHA or MB-MOMEHA run.

    Args:
        problem: the problem that is run; a noisy or sampled one is evaluated on all its data.
        scalarization: the method's.
        tol: to which ||grad h|| proximal points are solved.
        chunk: states that are evaluated together at most.
    """

    #: how many of the last states of a chunk the next one needs again; one more are needed before
    #: anything can be said
    overlap = 0

    def __init__(
        self, problem: Problem, *, scalarization: str = "stch", tol: float = 1e-10, chunk: int = 256
    ) -> None:
        self.problem, self.tol, self.chunk = problem, tol, chunk
        self.form = scalarizations.get(scalarization)
        self._steps: list[int] = []
        self._waiting: list[MomehaState] = []
        self._carried: list[MomehaState] = []
        self._done: list[Tensor] = []

    def __call__(self, record: Record) -> None:
        """Take in what the loop hands to a callback."""
        self.see(record.state)

    def see(self, state: State) -> None:
        """Take in one state; its step is its own t."""
        if not isinstance(state, MomehaState):
            raise InvalidInput(
                f"{type(self).__name__} watches MOMEHA and MB-MOMEHA, whose states are "
                f"MomehaState; this one is a {type(state).__name__}"
            )
        self._steps.append(int(state.t.reshape(-1)[0]))
        self._waiting.append(state)
        if len(self._waiting) >= self.chunk:
            self._flush()

    @property
    def steps(self) -> list[int]:
        """t of every value."""
        return self._steps[: len(self.values)]

    @property
    def values(self) -> Tensor:
        """One number per state: shape (records,) for a single run, (records, R) for a front."""
        self._flush()
        return torch.cat(self._done) if self._done else torch.zeros(0, dtype=torch.float64)

    @property
    def pairs(self) -> list[tuple[int, Any]]:
        """(step, value) for every state; the value is a list over the runs of a front."""
        return list(zip(self.steps, self.values.tolist(), strict=True))

    def _flush(self) -> None:
        states = self._carried + self._waiting
        if not self._waiting or len(states) <= self.overlap:
            return
        self._done.append(self._evaluate(tree.stack(states), len(self._carried)))
        self._carried = states[len(states) - self.overlap :] if self.overlap else []
        self._waiting = []

    @abstractmethod
    def _evaluate(self, states: MomehaState, skip: int) -> Tensor:
        """Numbers for stacked states (K, ...) or (K, R, ...) but for the first `skip`."""

    def _rows(self, states: MomehaState) -> tuple[MomehaState, torch.Size]:
        """The same states with one flat axis, and the shape (K,) or (K, R) that it stands for."""
        shape = states.t.shape
        return tree.map_(lambda leaf: leaf.flatten(0, len(shape) - 1), states), shape

    def _look(self, rows: MomehaState) -> Look:
        if isinstance(rows.coordinates, Coordinates):
            raise InvalidInput(
                "these runs are in fitted coordinates, and the proofs speak of plain ones; watch "
                'dataclasses.replace(method, coordinates="plain") with steps of its own, or '
                "MOMEHA.admissible(problem, x0, y0)"
            )
        gamma = rows.knobs.gamma
        if not bool((gamma == gamma[0]).all()):
            raise InvalidInput(
                f"the runs have different gamma ({sorted(set(gamma.tolist()))}); watch them one by "
                "one"
            )
        theta = envelope.proximal_point(
            self.problem, rows.x, rows.y, float(gamma[0]), tol=self.tol
        ).y
        look: Look = torch.func.vmap(look_of(self.problem, self.form))(rows, theta)
        return look


class Look(NamedTuple):
    """At every row: gap, ||theta - theta*||, f (m,), F, grad g - grad v_gamma, grad F (d,)."""

    gap: Tensor
    lag: Tensor
    objectives: Tensor
    scalarized: Tensor
    normal: Tensor
    gradient: Tensor


def look_of(problem: Problem, form: Scalarization) -> Callable[[MomehaState, Tree], Look]:
    """The function that measures a state and its theta on all the data of a problem."""
    upper, lower = problem.batch("upper", "full"), problem.batch("lower", "full")

    def look(state: MomehaState, theta: Tree) -> Look:
        x, y, gamma = state.x, state.y, state.knobs.gamma

        def scalarized(v: Tree) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            f = problem.upper(v[0], v[1], upper)
            F = form.value(f, state.importance, state.ideal, state.knobs.mu)
            return F, (f, F)

        def difference(v: Tree) -> tuple[Tensor, Tensor]:
            at_y, at_theta = problem.lower_pair(v[0], v[1], theta, lower)
            value = at_y - at_theta - tree.squared_norm(tree.sub(theta, v[1])) / (2 * gamma)
            return value, value

        # theta* is stationary, so differentiating with theta held fixed gives the gradient of the
        # envelope.
        normal, gap = torch.func.grad(difference, has_aux=True)((x, y))
        gradient, (f, F) = torch.func.grad(scalarized, has_aux=True)((x, y))
        lag = tree.norm(tree.sub(state.theta, theta))
        return Look(gap, lag, f, F, tree.ravel(normal), tree.ravel(gradient))

    return look


class Gap(Monitor):
    """epsilon_t = g(x_t, y_t) - v_gamma(x_t, y_t)."""

    def _evaluate(self, states: MomehaState, skip: int) -> Tensor:
        rows, shape = self._rows(states)
        return self._look(rows).gap.reshape(shape)


class Tracking(Monitor):
    """||theta_t - theta*(x_t, y_t)||."""

    def _evaluate(self, states: MomehaState, skip: int) -> Tensor:
        rows, shape = self._rows(states)
        return self._look(rows).lag.reshape(shape)


class Stationarity(Monitor):
    """H_p(x_t, y_t) with the paper's multipliers: ||grad F + c_{t-1} (grad g - grad v_gamma)||/s, s
    = sum_i w_i tau_i.

    The penalty is that of the step that led here, as in the theorems.
    """

    def _evaluate(self, states: MomehaState, skip: int) -> Tensor:
        rows, shape = self._rows(states)
        look = self._look(rows)
        c = rows.knobs.c((rows.t - 1).clamp_min(0))
        s = torch.func.vmap(self.form.weights)(
            look.objectives, rows.importance, rows.ideal, rows.knobs.mu
        ).sum(-1)
        return ((look.gradient + c[:, None] * look.normal).norm(dim=1) / s).reshape(shape)


def squares(a: Tree, b: Tree, shape: torch.Size) -> Tensor:
    """||a - b||^2 for trees stacked along the axes of `shape`."""
    return (
        (tree.ravel(a, batch_dims=len(shape)) - tree.ravel(b, batch_dims=len(shape)))
        .square()
        .sum(-1)
    )
