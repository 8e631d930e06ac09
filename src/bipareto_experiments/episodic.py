"""Any method on a stream of episodes: the lower level is learned anew in each before x moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bipareto.methods import common
from bipareto.methods.base import Draw, Info, Limits, Method, Start, State
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree


class EpisodicState(NamedTuple):
    """The inner method's state between two episodes (its y stands at `start`), y_0, the numbers,
    and the count of episodes.
    """

    inner: State
    start: Tree
    eta: Tensor
    t: Tensor

    @property
    def x(self) -> Tree:
        """What is carried from episode to episode."""
        return self.inner.x

    @property
    def y(self) -> Tree:
        """y_0: what was learned in an episode ends with it."""
        return self.inner.y


@dataclass(frozen=True)
class Episodic(Method[EpisodicState]):
    """In every episode: forget y, learn it anew on the lower level alone, then step jointly.

    y = y_0;   y <- y - eta grad_y g(x, y)   `warmup` times;
    then `joint` steps of `method` from (x, y) on the same draw.

    Where each draw is a task of its own (few-shot learning), a y that is carried over is far from
    the lower solution of the next task.  The gap g(x, y) - g(x, theta) is then large, and its
    gradient in x is smallest where y does not matter at all: x learns to be useless.  A y that has
    been learned first has a small gap, and x is led by the objectives.

    Args:
        method: what steps jointly; any other method.
        warmup: steps on g before x moves, from the y_0 that the run was begun with.
        eta: their step size.
        joint: steps of `method` per episode.
    """

    limits: ClassVar[Limits] = {"joint": {"least": 1}}

    method: Method
    warmup: int = 8
    eta: float = 1.0
    joint: int = 2

    @property
    def uses_preference(self) -> bool:  # type: ignore[override]
        """As the inner method."""
        return self.method.uses_preference

    def roles(self, m: int) -> tuple[Role, ...]:
        return tuple(dict.fromkeys((Role("lower"), *self.method.roles(m))))

    def oracles(self, m: int) -> dict[str, int]:
        cost = {name: self.joint * count for name, count in self.method.oracles(m).items()}
        return cost | {"lower_gradients": cost["lower_gradients"] + self.warmup}

    def structure(self) -> tuple[Any, ...]:
        return (type(self), self.method.structure(), self.warmup, self.joint)

    def prepare(self, problem: Problem, x0: Tree | nn.Module, y0: Tree | nn.Module) -> Start:
        return self.method.prepare(problem, x0, y0)

    def begin(self, start: Start, preference: Any = None) -> EpisodicState:
        inner = self.method.begin(start, preference)
        return EpisodicState(
            inner, start.y, torch.full_like(common.zero(start), self.eta), common.zero(start)
        )

    def learn(self, problem: Problem, x: Tree, y: Tree, eta: Tensor, draw: Draw | None) -> Tree:
        """y after `warmup` steps of size eta on g(x, .)."""
        lower = common.lower_of(problem, draw, Role("lower"))
        for _ in range(self.warmup):
            y = tree.descend(y, eta, oracle.grad(lambda v: lower(x, v), y))
        return y

    def step(
        self, problem: Problem, state: EpisodicState, draw: Draw | None = None
    ) -> tuple[EpisodicState, Info]:
        inner = self.method.relearned(
            state.inner, self.learn(problem, state.x, state.start, state.eta, draw)
        )
        for _ in range(self.joint):
            inner, info = self.method.step(problem, inner, draw)
        return EpisodicState(
            self.method.relearned(inner, state.start), state.start, state.eta, state.t + 1
        ), info

    def report(
        self,
        problem: Problem,
        before: EpisodicState,
        after: EpisodicState,
        info: Info,
        draw: Draw | None = None,
    ) -> Info:
        """Adds how far x moved in the episode (`residual`); y and its loss begin anew in the next
        one.
        """
        return info | {"residual": tree.norm(tree.sub(after.x, before.x))}
