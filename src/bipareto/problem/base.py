"""The problem: upper objectives f(x, y) in R^m and a scalar lower objective g(x, y), as plain
functions on trees.

min_x [f_1, ..., f_m](x, y*(x))   with y*(x) a stationary point of g(x, .)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import purity, reach, tree, validation
from bipareto.problem.calls import Calls, calls_of, objectives
from bipareto.problem.checks import (
    check_dependence,
    check_entries,
    check_finite,
    check_leaves,
    check_outputs,
    check_terms,
    labels,
    nudged,
    warn_without_minimum,
)
from bipareto.problem.loaders import draws_of
from bipareto.problem.modules import copy_into
from bipareto.problem.sampler import Role, Sampler
from bipareto.problem.tree import Tree

__all__ = ["Problem", "Sampler", "as_problem"]

#: What a sampler is called with.
_DRAW = ("role", "t", "seed")


class Problem:
    """Two functions on trees of tensors, and where their data comes from.

    Args:
        upper: f(x, y) -> (m,), or a sequence of m functions f_i(x, y) -> ().
        lower: g(x, y) -> ().
        sampler: where losses are taken on draws of data, `sampler(role, t, seed) -> batch`;
            the functions then take a third argument, the batch.  `level` is "upper" or "lower",
            `role` is a name that the method declares (see `bipareto.problem.sampler`), and the
            answer must depend on nothing else, so that a run can be resumed and batched.  One with
            `per_objective` set draws {i: batch} where a role serves all objectives, and f_i takes
            its own.
        names: a label per objective for tables and pictures.
        calls: how the losses are called; `from_modules` has them called with modules in place of
            trees.

    What a problem may say of its structure, so that the same numbers cost less:

    - `lower_pair`, overridden where g at y and at theta share work.
    - `parts`, the part of y that each f_i depends on: (0, None) for two objectives, the second of
      which does not use y; nothing of it is differentiated through the lower level.  With several
      parts, as in (0, 1, 2), g is a sum of terms that hold one part each, which `lower_part` gives
      one by one; then no objective is differentiated through the terms of another's part.
    - `folded`, where its kernels take many runs in one launch (see `bipareto.run.graph.replay`).

    >>> import torch
    >>> problem = Problem(
    ...     upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]),
    ...     lower=lambda x, y: (y - x)**2,
    ... )
    >>> problem.check(torch.tensor(0.0), torch.tensor(0.0))
    2
    """

    #: For each objective the part of y that it depends on, a number, or None for none; () says
    #: nothing.
    parts: tuple[int | None, ...] = ()
    #: Whether its kernels take many runs in one launch.
    folded = False
    #: Whether every objective has data of its own; a draw for all of them is then {i: batch}.
    per_objective = False
    #: Whether there is data of the level "test", which no step sees.
    has_test = False
    #: Whether losses are evaluated in a coarser precision than that of x and y.
    mixed = False

    def __init__(
        self,
        upper: Callable[..., Tensor] | Sequence[Callable[..., Tensor]],
        lower: Callable[..., Tensor],
        *,
        sampler: Sampler | None = None,
        names: Sequence[str] | None = None,
        calls: Calls | None = None,
    ) -> None:
        for name, value in (("upper", upper), ("lower", lower)):
            _check_functions(name, value)
        if sampler is not None:
            validation.function(sampler, "sampler", _DRAW, "see bipareto.sampler")
        self._upper = upper
        self._lower = lower
        self.sampler = sampler
        self._calls: Calls = Calls(takes_batch=sampler is not None) if calls is None else calls
        #: where the data of `from_modules` comes from, with its epochs and positions
        self.draws: Any = None
        self.per_objective = bool(getattr(sampler, "per_objective", False))
        self.names = None if names is None else labels(names)

    @classmethod
    def from_modules(
        cls,
        *,
        x: Any,
        y: Any,
        upper: Callable[..., Tensor] | Sequence[Callable[..., Tensor]],
        lower: Callable[..., Tensor],
        lower_data: Any = None,
        upper_data: Any = None,
        test_data: Any = None,
        shared: Callable[..., Any] | None = None,
        autocast: torch.dtype | None = None,
        evaluate_batches: int | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[Problem, Tree, Tree]:
        """A problem whose variables are the parameters of modules, and its start (problem, x0, y0):
        what the modules hold now.

        Args:
            x, y: modules, or tensors (a weight per sample, say).  Their trained parameters are the
                variables; those with `requires_grad=False` stay as they are; parameters that are in
                both belong to x, so a shared trunk is declared by being in both.  The modules
                themselves are never changed: `front[i].write_back(x, y)` does that.
            upper: m functions f_i(x, y[, batch]) -> (), or one that returns (m,).  Inside, x and y
                are called like the modules that were given: `y(inputs)`, `y.head(features)`,
                `y.parameters()`.
            lower: g(x, y[, batch]) -> ().
            lower_data, upper_data: a `DataLoader`, or tensors that are used whole; `upper_data` may
                be a list with one for each objective.  Batches are moved to where the modules are.
            test_data: shaped as `upper_data`, data that no step sees: the objectives of the answers
                on it are in `front.test`.
            shared: what all losses of a draw have in common, `shared(x, batch) -> anything`,
                evaluated once for g at y and at theta; the losses then get its result in place of
                the batch.
            autocast: torch.bfloat16 evaluates the losses in mixed precision.
            evaluate_batches: how many batches of a loader stand for all the data where all the data
                is asked for.
            names: a label per objective.

        BatchNorm works on batch statistics while solving, and dropout masks are draws: see
        `bipareto.problem.modules`.

        >>> import torch
        >>> weight, net, data = torch.zeros(3), torch.nn.Linear(2, 1), torch.ones(3, 2)
        >>> problem, x0, y0 = Problem.from_modules(
        ...     x=weight,
        ...     y=net,
        ...     lower=lambda x, y, rows: (x.sigmoid() * (y(rows).squeeze(-1) - 1) ** 2).mean(),
        ...     lower_data=data,
        ...     upper=[
        ...         lambda x, y, rows: y(rows).square().mean(),
        ...         lambda x, y, rows: (y(rows) - 2).square().mean(),
        ...     ],
        ...     upper_data=data,
        ... )
        >>> sorted(y0), problem.check(x0, y0)
        (['bias', 'weight'], 2)
        """
        per_objective = isinstance(upper_data, list) and not callable(upper)
        if (lower_data is None) != (upper_data is None):
            given, missing = (
                ("lower_data", "upper_data") if upper_data is None else ("upper_data", "lower_data")
            )
            raise InvalidInput(
                f"{given} was given but not {missing}; losses take a batch at both levels or at "
                "none: pass both"
            )
        if per_objective and len(upper_data) != len(upper):  # type: ignore[arg-type]
            raise InvalidInput(
                f"upper_data has {len(upper_data)} entries, but upper has {len(upper)} objectives; "  # type: ignore[arg-type]
                "give one per objective, or one for all"
            )
        if test_data is not None and upper_data is None:
            raise InvalidInput("test_data was given but not upper_data; give both, shaped alike")
        if test_data is not None and per_objective and len(test_data) != len(upper_data):
            raise InvalidInput(
                f"test_data has {len(test_data)} entries, but upper_data has {len(upper_data)}; "
                "give one per objective as there"
            )
        for name, value in (("upper", upper), ("lower", lower)):
            _check_functions(name, value)
        calls, x0, y0 = calls_of(
            x, y, has_data=lower_data is not None, shared=shared, autocast=autocast
        )
        first = tree.first_leaf(x0)
        draws = (
            None
            if lower_data is None
            else draws_of(lower_data, upper_data, per_objective, first, evaluate_batches, test_data)
        )
        problem = cls(upper, lower, sampler=calls.keyed(draws), names=names, calls=calls)
        problem.per_objective, problem.draws = per_objective, draws
        problem.has_test, problem.mixed = test_data is not None, autocast is not None
        return problem, x0, y0

    def upper(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f(x, y[; batch]), shape (m,)."""
        if callable(self._upper):
            return self._calls.one(self._upper, x, y, batch)
        if self.per_objective:
            return objectives(
                [
                    self._calls.one(f, x, y, self._of_objective(i, batch))
                    for i, f in enumerate(self._upper)
                ]
            )
        return self._calls.together(self._upper, x, y, batch)

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f_i(x, y[; batch]), shape ().  With `upper` given as one function the other components
        are computed and dropped.
        """
        if callable(self._upper):
            return self._calls.one(self._upper, x, y, batch)[i]
        return self._calls.one(self._upper[i], x, y, self._of_objective(i, batch))

    def _of_objective(self, i: int, batch: Any) -> Any:
        """Objective i's part of a draw for all, {i: batch}; a draw for it alone stays as it is."""
        if not self.per_objective or callable(self._upper):
            return batch
        every = set(range(len(self._upper)))
        return self._calls.within(
            lambda data: data[i] if isinstance(data, dict) and data.keys() == every else data, batch
        )

    def lower(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """g(x, y[; batch]), shape ()."""
        return self._calls.one(self._lower, x, y, batch)

    def lower_part(self, part: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """The terms of g that hold that part of y, shape (): all, unless `parts` names several."""
        return self.lower(x, y, batch)

    def lower_pair(self, x: Tree, y: Tree, theta: Tree, batch: Any = None) -> tuple[Tensor, Tensor]:
        """(g(x, y), g(x, theta)) on one draw: the seam for problems in which the two share work."""
        if self._calls.shares:
            return self._calls.pair(self._lower, x, y, theta, batch)
        return self.lower(x, y, batch), self.lower(x, theta, batch)

    def batch(self, level: str, name: str, t: int = 0, seed: int = 0) -> Any:
        """The draw of one role of all objectives, None for a problem without data."""
        return None if self.sampler is None else self.sampler(Role(level, name), t, seed)

    def check(self, x0: Tree, y0: Tree) -> int:
        """Evaluate once at the start and return m; refuse what no method could work with."""
        if torch.is_inference_mode_enabled():
            raise InvalidInput(
                "inside torch.inference_mode() nothing can be differentiated; leave it first "
                "(torch.no_grad() does no harm)"
            )
        check_leaves(x0, y0)
        self._check_arguments()
        # A little off the start, where a gradient that is exactly zero means that a variable is not
        # used (y0 = 0 is a usual start, and y^2 has gradient zero there).
        stream = torch.Generator().manual_seed(0)
        x, y = (tree.map_(lambda leaf: nudged(leaf, stream), value) for value in (x0, y0))
        with torch.enable_grad(), self._watching():
            upper_batch, batch = self.batch("upper", "full"), self.batch("lower", "full")
            if isinstance(upper_batch, dict) and self.per_objective and not callable(self._upper):
                check_entries(upper_batch, len(self._upper))
            f = purity.once_twice(self, "upper", self.upper, x, y, upper_batch)
            g = purity.once_twice(self, "lower", self.lower, x, y, batch)
            check_outputs(f, g, tree.first_leaf(x0))
            self._check_reach(f, g, (x, y, upper_batch, batch))
            if not (torch.isfinite(f).all() and torch.isfinite(g)):
                # The start itself may be at the edge of where f and g are defined, so it has the
                # last word.
                check_finite(self.upper(x0, y0, upper_batch), self.lower(x0, y0, batch))
            check_dependence(f, g, x, y, self.parts, lambda u, v: self.upper(u, v, upper_batch))
            warn_without_minimum(lambda y_: self.lower(x, y_, batch), g, y)
            several = sorted({part for part in self.parts if part is not None})
            if len(several) > 1:
                check_terms(
                    f,
                    g,
                    {part: self.lower_part(part, x, y, batch) for part in several},
                    y,
                    self.parts,
                )
        if self.names is not None and len(self.names) != f.shape[0]:
            raise InvalidInput(
                f"names has {len(self.names)} entries {self.names}, but upper returns m = "
                f"{f.shape[0]} objectives"
            )
        return f.shape[0]

    def _check_arguments(self) -> None:
        """Whether f and g take what they will be called with."""
        given = ("x", "y") if self.sampler is None else ("x", "y", "batch")
        functions = [self._upper] if callable(self._upper) else list(self._upper)
        remedy = (
            "pass sampler=... if it needs data, or let it take x and y"
            if self.sampler is None
            else "the last is the draw of data"
        )
        for name, function in [*(("upper", f) for f in functions), ("lower", self._lower)]:
            validation.function(function, name, given, remedy)

    def check_pure(self, x: Tree, y: Tree, roles: Sequence[Role] = ()) -> None:
        """Refuse points that cannot be x and y, losses that are no functions of them, and a sampler
        whose draws for the roles of a method are not the same twice.
        """
        check_leaves(x, y)
        self._check_arguments()
        x, y = tree.map_(lambda leaf: leaf.detach().requires_grad_(), (x, y))
        upper_batch, batch = self.batch("upper", "full"), self.batch("lower", "full")
        with torch.enable_grad(), self._watching():
            f = purity.once_twice(self, "upper", self.upper, x, y, upper_batch)
            g = purity.once_twice(self, "lower", self.lower, x, y, batch)
        self._check_reach(f, g, (x, y, upper_batch, batch))
        purity.check_draws(self, roles)

    def _watching(self) -> AbstractContextManager[object]:
        return self._calls.watching()

    def _check_reach(self, f: Any, g: Any, known: Any) -> None:
        """Look for parameters that the losses reach past their arguments."""
        uppers = [self._upper] if callable(self._upper) else list(self._upper)
        leaves = tree.leaves(known)
        reach.check_leaves("upper", f, leaves, self._calls.origin, uppers)
        reach.check_leaves("lower", g, leaves, self._calls.origin, [self._lower])

    def estimate_statistics(self, module_x: Any, module_y: Any) -> None:
        """Running statistics of the norm layers of two modules, from one pass over all the data.

        The lower level's data comes first, which is what y was trained on; layers it does not reach
        see the upper level's.
        """
        losses = [self._upper] if callable(self._upper) else list(self._upper)
        upper = self.batch("upper", "full")
        self._calls.estimate_statistics(
            module_x,
            module_y,
            (
                [(self._lower, self.batch("lower", "full"))],
                [(f, self._of_objective(i, upper)) for i, f in enumerate(losses)],
            ),
        )

    def write_back(self, x: Tree, y: Tree, module_x: Any, module_y: Any) -> None:
        """Copy x and y into modules (or tensors) of the same make, and estimate the running
        statistics of their norm layers.

        Args:
            module_x, module_y: those that were given to `from_modules`, or others with the same
                parameters; None leaves one out.
        """
        copy_into("x", x, module_x)
        copy_into("y", self._calls.whole_y(x, y), module_y)
        if module_x is not None and module_y is not None:
            self.estimate_statistics(module_x, module_y)

    def with_key(self, role: Role, t: int, seed: int, batch: Any) -> Any:
        """A batch from elsewhere in the form of a draw: with the dropout key of that role and step,
        where there is dropout.
        """
        return self._calls.with_key(role, t, seed, batch)


def _check_functions(name: str, value: Any) -> None:
    """Refuse what is no function; the upper objectives may be a sequence of them."""
    several = name == "upper" and isinstance(value, Sequence) and bool(value)
    if not callable(value) and not (several and all(map(callable, value))):
        raise InvalidInput(
            f"{name} is {validation.shown(value)}; pass a function {name}(x, y) of two trees of "
            "tensors"
        )


def as_problem(value: Any) -> Problem:
    """A problem, not its name, its class or one of its functions."""
    found: Problem = validation.instance(
        value,
        "problem",
        Problem,
        "pass bipareto.Problem(upper=..., lower=...), or bipareto.problems.get(name)",
    )
    return found
