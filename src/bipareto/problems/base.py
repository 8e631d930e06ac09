"""Problems whose Pareto front is known: the ruler by which methods are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Generator, Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization as scalarizations
from bipareto.methods.parts.scalarization import Scalarization, as_ideal
from bipareto.methods.tuning.functions import Question, question
from bipareto.problem import Problem, tree, validation
from bipareto.problem.oracle import noisy
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree

#: Points of an exact front at most.
MOST_POINTS = 10_000_000


class Point(NamedTuple):
    """An exact answer: x, y*(x), the objectives there (m,), and its coordinates on the Pareto set
    (see `coordinates`).
    """

    x: Tree
    y: Tree
    objectives: Tensor
    coordinates: Tensor


class Constants(NamedTuple):
    """What the theory asks for: joint Lipschitz constants of grad g and of every grad f_i, weak
    convexity of g in y.

    L_g and L_f are constants in (x, y) together, infinite where no global constant exists.
    """

    L_g: float
    L_f: float
    rho_y: float

    @property
    def gamma_max(self) -> float:
        """1/(2 rho_y), infinite for a convex lower level."""
        return 1 / (2 * self.rho_y) if self.rho_y > 0 else float("inf")


class Front(Protocol):
    """A front in objective space, its points named by coordinates t (k,)."""

    def points(self, n: int) -> Tensor:
        """At least n points, shape (count, m)."""

    def distance(self, objectives: Tensor) -> Tensor:
        """Euclidean distance of each row of (R, m), shape (R,)."""

    def minimise(self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """t of the point of the front with the smallest scalarized value."""


class Single:
    """The front of one objective: the number F*.  Its only point has t = 0."""

    def __init__(self, value: float) -> None:
        self._value = torch.tensor([[value]], dtype=torch.float64)

    def points(self, n: int) -> Tensor:
        """F*, shape (1, 1), whatever n is."""
        return self._value

    def distance(self, objectives: Tensor) -> Tensor:
        """|F - F*|, shape (R,)."""
        return (objectives - self._value).abs()[:, 0]

    def minimise(self, form: Scalarization, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        """t = 0, shape (1,)."""
        return torch.zeros(1, dtype=torch.float64)


class KnownProblem(Problem, ABC):
    """A problem with its starts, its exact front, the exact point of every preference, and its
    constants.

    All tensors are float64 on the CPU; distances are relative to the extent of the front.  A known
    problem can be pickled: it is rebuilt from its arguments.

    A subclass gives the objectives, a `Front`, and four maps: `pareto_point` and `coordinates`
    between the Pareto set and t, `lower_solution` for y*(x), and `start` where standard normal
    starts will not do.

    Args:
        upper, lower: f and g as in `Problem`.
        x0, y0: the default start.
        constants: see `Constants`.
        geometry: the front.
        noise: standard deviation of N(0, noise^2) added to every gradient coordinate, 0 for none
            (see `oracle.noisy`).
    """

    #: name on the command line
    name: ClassVar[str]
    #: one line for `bipareto list`
    summary: ClassVar[str]
    _arguments_given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        problem = super().__new__(cls)
        problem._arguments_given = (args, kwargs)
        return problem

    def __reduce__(self) -> tuple[Any, ...]:
        args, kwargs = self._arguments_given
        return partial(type(self), *args, **kwargs), ()

    def __init__(
        self,
        upper: Callable[[Tree, Tree], Tensor],
        lower: Callable[[Tree, Tree], Tensor],
        x0: Tree,
        y0: Tree,
        constants: Constants,
        geometry: Front,
        *,
        noise: float = 0.0,
    ) -> None:
        at_least("noise", noise, 0)
        plain = Problem(upper, lower)
        if noise:
            source = noisy(plain, noise, x0, y0)
            super().__init__(source.upper, source.lower, sampler=source.sampler)
        else:
            super().__init__(upper, lower)
        self.x0, self.y0, self.constants, self.geometry, self.noise = (
            x0,
            y0,
            constants,
            geometry,
            noise,
        )
        with torch.no_grad():
            self.m = int(plain.upper(x0, y0).shape[0])

    @abstractmethod
    def lower_solution(self, x: Tree) -> Tree:
        """y*(x) for one x: the global minimiser of g(x, .), of several the one that f prefers."""

    @abstractmethod
    def pareto_point(self, t: Tensor) -> Tree:
        """x at the coordinates t (k,) of the Pareto set."""

    @abstractmethod
    def coordinates(self, x: Tree) -> Tensor:
        """Where x (R runs) lies along the Pareto set, shape (R, k); on the set in [0, 1]."""

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """A random start (x0, y0), standard normal unless the problem says otherwise."""
        stream = generator("start", 0, seed)

        def draw(like: Tensor) -> Tensor:
            return normal(stream, *like.shape)

        return tree.map_(draw, self.x0), tree.map_(draw, self.y0)

    def objectives(self, x: Tree, y: Tree | None = None) -> Tensor:
        """f(x, y) without noise for one x, shape (m,); y defaults to y*(x)."""
        return self.upper(
            x, self.lower_solution(x) if y is None else y, self.batch("upper", "full")
        )

    def front(self, n: int = 201) -> Tensor:
        """At least n points of the exact Pareto front, shape (count, m); for m = 2 in order along
        the front, for m = 1 the one point.
        """
        return self.geometry.points(validation.count(n, "n", least=2, most=MOST_POINTS))

    def distance_to_front(self, objectives: Tensor) -> Tensor:
        """Euclidean distance (R,) of `objectives` (R, m) to the exact front, over `extent`."""
        rows = torch.as_tensor(objectives).detach().to("cpu", torch.float64)
        if rows.dim() != 2 or rows.shape[1] != self.m:
            raise InvalidInput(
                f"objectives has shape {tuple(rows.shape)}; pass one row per run, shape (R, "
                f"{self.m})"
            )
        return self.geometry.distance(rows) / self.extent

    def exact(self, preference: Tensor, scalarization: str, ideal: Tensor, mu: float) -> Point:
        """The minimiser over x of the scalarized f(x, y*(x)): what a perfect method returns for
        that preference.

        Where the front has several branches this is the best of all of them; a local method may end
        on another.

        Args:
            preference: w, shape (m,).
            scalarization: "stch", "tchebycheff" or "linear".
            ideal: z, shape (m,).
            mu: smoothing of "stch".
        """
        w, z = (torch.as_tensor(value, dtype=torch.float64) for value in (preference, ideal))
        t = self.geometry.minimise(
            scalarizations.get(scalarization), w, z, torch.tensor(mu, dtype=torch.float64)
        )
        x = self.pareto_point(t)
        y = self.lower_solution(x)
        return Point(x, y, self.objectives(x, y), t)

    @cached_property
    def _box(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest values on the front, each (m,)."""
        points = self.front()
        return points.amin(0), points.amax(0)

    @property
    def extent(self) -> float:
        """The diagonal of the front's bounding box; for one objective max(|F*|, 1)."""
        low, high = self._box
        return float((high - low).norm()) if self.m > 1 else max(float(high.abs()), 1.0)

    @property
    def reference(self) -> Tensor:
        """A reference point (m,) for hypervolumes: the front's worst plus a tenth of its ranges."""
        low, high = self._box
        return high + 0.1 * (high - low if self.m > 1 else self.extent)

    def solution(
        self,
        preference: Any,
        *,
        scalarization: str = "stch",
        mu: float | None = None,
        ideal: Any = None,
        extent: Any = None,
    ) -> Point:
        """The exact point of a preference.

        Args:
            preference: w (m,).
            scalarization: "stch", "tchebycheff" or "linear".
            mu, ideal: smoothing and the ideal point z.
            extent: s, one number or m; F is taken of (f_i - z_i)/s_i.

        Without mu, ideal and extent these are what `MOMEHA.tuned` takes at this problem's own
        start, so that `front(problem, problem.x0, problem.y0)` and this agree on the question; an
        extent that is left out beside a given ideal point is 1.
        """
        asked = self._question(mu, ideal, extent)
        w = torch.as_tensor(preference, dtype=torch.float64)
        return self._answer(w, scalarization, asked)

    def position_error(
        self,
        x: Tree,
        preference: Tensor,
        *,
        scalarization: str = "stch",
        mu: float | None = None,
        ideal: Any = None,
        extent: Any = None,
    ) -> Tensor:
        """max |coordinates(x) - coordinates of the exact point| for each run, shape (R,).

        Args:
            x: stacked over R runs.
            preference: (R, m).
            scalarization, mu, ideal, extent: as in `solution`.
        """
        asked = self._question(mu, ideal, extent)
        wanted = torch.stack(
            [self._answer(w, scalarization, asked).coordinates for w in preference]
        )
        return (self.coordinates(x) - wanted).abs().amax(-1)

    def _answer(self, w: Tensor, scalarization: str, asked: Question) -> Point:
        z = as_ideal(asked.ideal).start(torch.zeros(self.m, dtype=torch.float64))
        return self.exact(w / asked.extent, scalarization, z, asked.mu)

    def _question(self, mu: float | None, ideal: Any, extent: Any) -> Question:
        """mu, z and s, as they were given or as `MOMEHA.tuned` has them."""
        if mu is None or ideal is None:
            tuned = self._tuned_question
            if ideal is None and extent is None:
                extent = tuned.extent
            mu = tuned.mu if mu is None else mu
            ideal = tuned.ideal if ideal is None else ideal
        s = torch.as_tensor(1.0 if extent is None else extent, dtype=torch.float64)
        return Question(float(mu), as_ideal(ideal), s.expand(self.m))

    @cached_property
    def _tuned_question(self) -> Question:
        return question(self, self.x0, self.y0)


def at_least(name: str, value: float, least: float) -> None:
    """Refuse an option below its least value."""
    validation.number(value, name, least=least)


def normal(stream: Generator, *shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


def uniform(stream: Generator, low: float, high: float, *shape: int) -> Tensor:
    """Numbers uniform in [low, high]."""
    return low + (high - low) * torch.rand(*shape, generator=stream, dtype=torch.float64)


def orthogonal(stream: Generator, dim: int) -> Tensor:
    """An orthogonal matrix (dim, dim)."""
    return torch.linalg.qr(normal(stream, dim, dim)).Q


def scattered(stream: Generator, m: int, hessian: Tensor) -> Tensor:
    """m points of R^d, normal, with mean ||p_i - p_j||_M^2 = 2d, M the Hessian; shape (m, d)."""
    dim = hessian.shape[0]
    points = normal(stream, m, dim)
    spread = torch.pdist(points @ torch.linalg.cholesky(hessian)).square().mean()
    return points * (2 * dim / spread).sqrt()
