"""Problems whose Pareto front is known: the ruler by which methods are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.oracle import noisy
from bipareto.problem import Problem, Sampler
from bipareto.scalarization import as_ideal
from bipareto.tree import Tree

__all__ = ["Constants", "KnownProblem", "Point"]


class Point(NamedTuple):
    """An exact answer: x, y*(x), the objectives there (m,), and its coordinates on the Pareto set (see `coordinates`)."""

    x: Tree
    y: Tree
    objectives: Tensor
    coordinates: Tensor


class Constants(NamedTuple):
    """What the theory asks for: joint Lipschitz constants of grad g and of every grad f_i, weak convexity of g in y."""

    L_g: float
    L_f: float
    rho_y: float

    @property
    def gamma_max(self) -> float:
        """1/(2 rho_y), infinite for a convex lower level."""
        return 1 / (2 * self.rho_y) if self.rho_y > 0 else float("inf")


class KnownProblem(Problem, ABC):
    """A problem with its starts, its exact front, the exact point of every preference, and its constants.

    All tensors are float64 on the CPU; distances are relative to the extent of the front, the diagonal of its bounding box.

    Args:
        noise: standard deviation of N(0, noise^2) added to every gradient coordinate, 0 for none (see `oracle.noisy`).
    """

    #: name on the command line
    name: str
    #: one line for `bipareto list`
    summary: str
    x0: Tree
    y0: Tree
    constants: Constants

    def __init__(self, upper: Any, lower: Any, x0: Tree, y0: Tree, constants: Constants, *, noise: float = 0.0) -> None:
        plain = Problem(upper, lower)
        source = noisy(plain, noise, x0, y0) if noise else plain
        sampler: Sampler | None = source.sampler
        super().__init__(source.upper if noise else upper, source.lower if noise else lower, sampler=sampler)
        self.x0, self.y0, self.constants, self.noise = x0, y0, constants, noise
        with torch.no_grad():
            self.m = int(plain.upper(x0, y0).shape[0])

    @abstractmethod
    def start(self, seed: int) -> tuple[Tree, Tree]:
        """A random start (x0, y0)."""

    @abstractmethod
    def front(self, n: int = 201) -> Tensor:
        """At least n points of the exact Pareto front, shape (count, m); for m = 2 in order along the front."""

    @abstractmethod
    def distance_to_front(self, objectives: Tensor) -> Tensor:
        """Euclidean distance (R,) of each row of `objectives` (R, m) to the exact front, divided by `extent`."""

    @abstractmethod
    def exact(self, preference: Tensor, scalarization: str, ideal: Tensor, mu: float) -> Point:
        """The minimiser over x of the scalarized f(x, y*(x)): what a perfect method returns for that preference."""

    @abstractmethod
    def coordinates(self, x: Tree) -> Tensor:
        """Where x (stacked over R runs) lies on the Pareto set, in [0, 1] along each direction, shape (R, k)."""

    @property
    def extent(self) -> float:
        """The diagonal of the front's bounding box."""
        points = self.front()
        return float((points.amax(0) - points.amin(0)).norm())

    @property
    def reference(self) -> Tensor:
        """A reference point (m,) for hypervolumes: the front's worst values plus a tenth of its ranges."""
        points = self.front()
        return points.amax(0) + 0.1 * (points.amax(0) - points.amin(0))

    def solution(self, preference: Any, *, scalarization: str = "stch", mu: float | None = None, ideal: Any = None) -> Point:
        """The exact point of a preference.

        Without `mu` and `ideal` these are what `MOMEHA.tuned` takes at this problem's own start, so that
        `front(problem, problem.x0, problem.y0)` and this agree on the question.
        """
        from bipareto.methods.tuning import smoothing

        default_mu, default_ideal = smoothing(self, self.x0, self.y0)
        rule = default_ideal if ideal is None else as_ideal(ideal)
        w = torch.as_tensor(preference, dtype=torch.float64)
        z = rule.start(torch.zeros(self.m, dtype=torch.float64))
        return self.exact(w, scalarization, z, default_mu if mu is None else float(mu))

    def position_error(self, x: Tree, preference: Tensor, **question: Any) -> Tensor:
        """max |coordinates(x) - coordinates of the exact point| for each run, shape (R,).

        Args:
            x: stacked over R runs.
            preference: (R, m).
            question: `scalarization`, `mu`, `ideal`, as in `solution`.
        """
        wanted = torch.stack([self.solution(w, **question).coordinates for w in preference])
        return (self.coordinates(x) - wanted).abs().amax(-1)
