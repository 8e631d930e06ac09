"""The problem: upper objectives f(x, y) in R^m and a scalar lower objective g(x, y), as plain functions on trees.

min_x [f_1, ..., f_m](x, y*(x))   with y*(x) a stationary point of g(x, .)
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bipareto import tree
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.tree import Tree

__all__ = ["Problem", "Sampler"]

#: `sampler(level, role, t, seed) -> batch` with level "upper" or "lower"; pure in all four.
Sampler = Callable[[str, str, int, int], Any]


class Problem:
    """Two functions on trees of tensors, and where their data comes from.

    Args:
        upper: f(x, y) -> (m,), or a sequence of m functions f_i(x, y) -> ().
        lower: g(x, y) -> ().
        sampler: where losses are taken on draws of data, `sampler(level, role, t, seed) -> batch`; the functions then take
            a third argument, the batch.  `level` is "upper" or "lower", `role` is a name that the method declares (see
            `bipareto.sampler`), and the answer must depend on nothing else, so that a run can be resumed and batched.  One with
            `per_objective` set draws {i: batch} where a role serves all objectives, and f_i takes its own.
        names: a label per objective for tables and pictures.

    What a problem may say of its structure, so that the same numbers cost less:

    - `lower_pair`, overridden where g at y and at theta share work.
    - `parts`, the part of y that each f_i depends on: (0, None) for two objectives, the second of which does not use y; nothing of
      it is differentiated through the lower level.  With several parts, as in (0, 1, 2), g is a sum of terms that hold one part each, which
      `lower_part` gives one by one; then no objective is differentiated through the terms of another's part.
    - `folded`, where its kernels take many runs in one launch (see `bipareto.replay`).

    >>> import torch
    >>> problem = Problem(upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]), lower=lambda x, y: (y - x)**2)
    >>> problem.check(torch.tensor(0.0), torch.tensor(0.0))
    2
    """

    #: For each objective the part of y that it depends on, a number, or None for none; () says nothing.
    parts: tuple[int | None, ...] = ()
    #: Whether its kernels take many runs in one launch.
    folded = False
    #: Whether every objective has data of its own; a draw for all of them is then {i: batch}.
    per_objective = False

    def __init__(
        self,
        upper: Callable[..., Tensor] | Sequence[Callable[..., Tensor]],
        lower: Callable[..., Tensor],
        *,
        sampler: Sampler | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        for name, value in (("upper", upper), ("lower", lower)):
            if not callable(value) and not (name == "upper" and isinstance(value, Sequence) and value and all(map(callable, value))):
                raise InvalidInput(f"{name} is {value!r}; pass a function {name}(x, y) of two trees of tensors")
        self._upper = upper
        self._lower = lower
        self.sampler = sampler
        self.per_objective = bool(getattr(sampler, "per_objective", False))
        self.names = tuple(names) if names is not None else None

    @classmethod
    def from_modules(
        cls, *, x: Any, y: Any, upper: Callable[..., Tensor] | Sequence[Callable[..., Tensor]], lower: Callable[..., Tensor], lower_data: Any = None,
        upper_data: Any = None, shared: Callable[..., Any] | None = None, autocast: torch.dtype | None = None, evaluate_batches: int | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[Problem, Tree, Tree]:  # fmt: skip
        """A problem whose variables are the parameters of modules, and its start (problem, x0, y0): what the modules hold now.

        Args:
            x, y: modules, or tensors (a weight per sample, say).  Their trained parameters are the variables; those with
                `requires_grad=False` stay as they are; parameters that are in both belong to x, so a shared trunk is declared by
                being in both.  The modules themselves are never changed: `front[i].write_back(x, y)` does that.
            upper: m functions f_i(x, y[, batch]) -> (), or one that returns (m,).  Inside, x and y are called like the modules
                that were given: `y(inputs)`, `y.head(features)`, `y.parameters()`.
            lower: g(x, y[, batch]) -> ().
            lower_data, upper_data: a `DataLoader`, or tensors that are used whole; `upper_data` may be a list with one for each
                objective.  Batches are moved to where the modules are.
            shared: what all losses of a draw have in common, `shared(x, batch) -> anything`, evaluated once for g at y and at theta;
                the losses then get its result in place of the batch.
            autocast: torch.bfloat16 evaluates the losses in mixed precision.
            evaluate_batches: how many batches of a loader stand for all the data where all the data is asked for.
            names: a label per objective.

        BatchNorm works on batch statistics while solving, and dropout masks are draws: see `bipareto.modules`.

        >>> import torch
        >>> weight, net, data = torch.zeros(3), torch.nn.Linear(2, 1), torch.ones(3, 2)
        >>> problem, x0, y0 = Problem.from_modules(
        ...     x=weight, y=net, lower=lambda x, y, rows: (x.sigmoid() * (y(rows).squeeze(-1) - 1) ** 2).mean(), lower_data=data,
        ...     upper=[lambda x, y, rows: y(rows).square().mean(), lambda x, y, rows: (y(rows) - 2).square().mean()], upper_data=data)
        >>> sorted(y0), problem.check(x0, y0)
        (['bias', 'weight'], 2)
        """
        from bipareto.modules import from_modules

        return from_modules(
            x=x, y=y, upper=upper, lower=lower, lower_data=lower_data, upper_data=upper_data, shared=shared, autocast=autocast,
            evaluate_batches=evaluate_batches, names=names,
        )  # fmt: skip

    def _arguments(self, batch: Any) -> tuple[Any, ...]:
        return () if self.sampler is None else (batch,)

    def upper(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f(x, y[; batch]), shape (m,)."""
        if callable(self._upper):
            return self._upper(x, y, *self._arguments(batch))
        return torch.stack([f(x, y, *self._arguments(self._of_objective(i, batch))) for i, f in enumerate(self._upper)])

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f_i(x, y[; batch]), shape ().  With `upper` given as one function the other components are computed and dropped."""
        if callable(self._upper):
            return self._upper(x, y, *self._arguments(batch))[i]
        return self._upper[i](x, y, *self._arguments(self._of_objective(i, batch)))

    def _of_objective(self, i: int, batch: Any) -> Any:
        """Objective i's part of a draw for all objectives, {i: batch}; a draw for it alone stays as it is."""
        whole = self.per_objective and not callable(self._upper) and isinstance(batch, dict) and batch.keys() == set(range(len(self._upper)))
        return batch[i] if whole else batch

    def lower(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """g(x, y[; batch]), shape ()."""
        return self._lower(x, y, *self._arguments(batch))

    def lower_part(self, part: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """The terms of g that hold that part of y, shape (): all of g, unless `parts` names several."""
        return self.lower(x, y, batch)

    def lower_pair(self, x: Tree, y: Tree, theta: Tree, batch: Any = None) -> tuple[Tensor, Tensor]:
        """(g(x, y), g(x, theta)) on one draw.  The seam for problems in which the two share work."""
        return self.lower(x, y, batch), self.lower(x, theta, batch)

    def batch(self, level: str, role: str, t: int = 0, seed: int = 0) -> Any:
        """The draw of one role, None for a problem without data."""
        return None if self.sampler is None else self.sampler(level, role, t, seed)

    def check(self, x0: Tree, y0: Tree) -> int:
        """Evaluate once at the start and return m; refuse what no method could work with, and say what to change."""
        if torch.is_inference_mode_enabled():
            raise InvalidInput("inside torch.inference_mode() nothing can be differentiated; leave it first (torch.no_grad() does no harm)")
        _check_leaves(x0, y0)
        self._check_arguments()
        # A little off the start, where a gradient that is exactly zero means that a variable is not used (y0 = 0 is a usual
        # start, and y^2 has gradient zero there).
        stream = torch.Generator().manual_seed(0)
        x, y = (tree.map_(lambda leaf: _nudged(leaf, stream).requires_grad_(), value) for value in (x0, y0))
        with torch.enable_grad():
            f = self.upper(x, y, self.batch("upper", "full"))
            batch = self.batch("lower", "full")
            g = self.lower(x, y, batch)
            _check_outputs(f, g, tree.first_leaf(x0))
            if not (torch.isfinite(f).all() and torch.isfinite(g)):
                # The start itself may be at the edge of where f and g are defined, so it has the last word.
                _check_finite(self.upper(x0, y0, self.batch("upper", "full")), self.lower(x0, y0, batch))
            _check_dependence(f, g, x, y, self.parts)
            several = sorted({part for part in self.parts if part is not None})
            if len(several) > 1:
                _check_terms(f, g, {part: self.lower_part(part, x, y, batch) for part in several}, y, self.parts)
        if self.names is not None and len(self.names) != f.shape[0]:
            raise InvalidInput(f"names has {len(self.names)} entries {self.names}, but upper returns m = {f.shape[0]} objectives")
        return f.shape[0]

    def _check_arguments(self) -> None:
        """Whether f and g take what they will be called with."""
        given = ("x", "y") if self.sampler is None else ("x", "y", "batch")
        functions = [self._upper] if callable(self._upper) else list(self._upper)
        for name, function in [*(("upper", f) for f in functions), ("lower", self._lower)]:
            try:
                inspect.signature(function).bind(*given)
            except TypeError:
                remedy = "pass sampler=... if it needs data, or let it take x and y" if self.sampler is None else "the last is the draw of data"
                raise InvalidInput(f"{name}{inspect.signature(function)} cannot be called as {name}({', '.join(given)}); {remedy}") from None
            except ValueError:  # built in, without a signature
                continue


def _check_leaves(x0: Tree, y0: Tree) -> None:
    found = tree.named_leaves(x0, "x0") + tree.named_leaves(y0, "y0")
    reference_path, reference = found[0]
    for path, leaf in found:
        for kind in ("device", "dtype"):
            if getattr(leaf, kind) != getattr(reference, kind):
                raise InvalidInput(
                    f"{path} has {kind} {getattr(leaf, kind)} but {reference_path} has {getattr(reference, kind)}; "
                    f"one run lives on one {kind}: use {path}.to({getattr(reference, kind)!r})"
                )
        if torch.finfo(leaf.dtype).bits < 32:
            raise InvalidInput(
                f"{path} has dtype {leaf.dtype}, in which a run cannot count its steps (256 + 1 is 256 in bfloat16); use {path}.float(), and let the "
                "losses work in half precision: Problem.from_modules(..., autocast=torch.bfloat16)"
            )
        if not torch.isfinite(leaf).all():
            raise InvalidInput(f"{path} holds NaN or infinity; start from finite values")


def _check_outputs(f: Any, g: Any, like: Tensor) -> None:
    if not isinstance(f, Tensor):
        raise InvalidInput(f"upper returned a {type(f).__name__}; return one tensor of shape (m,), e.g. torch.stack([f1, f2])")
    if f.dim() != 1 or not len(f):
        raise InvalidInput(
            f"upper returned shape {tuple(f.shape)}; it must be (m,), one number per objective: torch.stack([f1, f2]) of scalar losses"
        )
    if not isinstance(g, Tensor) or g.dim() != 0:
        shape = tuple(g.shape) if isinstance(g, Tensor) else type(g).__name__
        raise InvalidInput(f"lower returned {shape}; it must be a scalar of shape (): reduce it with .sum() or .mean()")
    for name, value in (("upper", f), ("lower", g)):
        for kind in ("device", "dtype"):
            if getattr(value, kind) != getattr(like, kind):
                raise InvalidInput(
                    f"{name} returned {kind} {getattr(value, kind)}, but x0 has {getattr(like, kind)}; one run lives on one {kind}: "
                    f"start from x0 and y0 on that one, or return the losses with .to({getattr(like, kind)!r})"
                )


def _check_finite(f: Tensor, g: Tensor) -> None:
    for name, value in [("lower", g), *((f"objective {i}", f_i) for i, f_i in enumerate(f))]:
        if not torch.isfinite(value):
            raise InvalidInput(
                f"{name} is {float(value)} at the start; look for NaN or infinity in the data, and for a log, sqrt or division of zero at x0, y0"
            )


def _nudged(leaf: Tensor, stream: torch.Generator) -> Tensor:
    noise = torch.randn(leaf.shape, generator=stream, dtype=torch.float64).to(leaf)
    return leaf.detach() + 1e-3 * (1 + leaf.detach().abs()) * noise


def _flat_gradient(value: Tensor, variable: Tree) -> Tensor:
    if not value.requires_grad:
        return tree.ravel(tree.zeros_like(variable))
    found = torch.autograd.grad(value, tree.leaves(variable), retain_graph=True, allow_unused=True, materialize_grads=True)
    return tree.ravel(list(found))


def _depends(value: Tensor, variable: Tree) -> bool:
    return bool((_flat_gradient(value, variable) != 0).any())


def _check_dependence(f: Tensor, g: Tensor, x: Tree, y: Tree, parts: tuple[int | None, ...]) -> None:
    if not _depends(g, y):
        raise InvalidInput("lower does not depend on y: there is nothing to solve at the lower level; check that g uses its second argument")
    m = f.shape[0]
    if parts and len(parts) != m:
        raise InvalidInput(f"parts is {parts}, but upper returns m = {m} objectives; give one entry for each, a part of y or None")
    for i in range(m):
        said_not_to = bool(parts) and parts[i] is None
        if _depends(f[i], y):
            if said_not_to:
                raise InvalidInput(f"parts is {parts}, but objective {i} depends on y; None stands for objectives that do not use y")
            continue
        if not _depends(f[i], x):
            raise InvalidInput(f"objective {i} depends neither on x nor on y; check that upper returns a differentiable function of them")
        if said_not_to:
            continue
        warnings.warn(
            f"objective {i} does not depend on y; if that is not meant, check that upper uses its second argument",
            BiparetoWarning,
            stacklevel=5,
        )
    if not _depends(g, x) and not _depends(f.sum(), x):
        raise InvalidInput("neither upper nor lower depends on x: there is nothing to choose; check that they use their first argument")


def _check_terms(f: Tensor, g: Tensor, terms: dict[int, Tensor], y: Tree, parts: tuple[int | None, ...]) -> None:
    """Look whether the terms of g and the objectives of different parts share no coordinate of y, and the terms make up g."""
    whole = _flat_gradient(g, y)
    slopes = {part: _flat_gradient(term, y) for part, term in terms.items()}
    touched = {part: slope != 0 for part, slope in slopes.items()}
    for i, part in enumerate(parts):
        if part is not None:
            touched[part] = touched[part] | (_flat_gradient(f[i], y) != 0)
    if bool((torch.stack(list(touched.values())).sum(0) > 1).any()):
        raise InvalidInput(f"parts is {parts}, but objectives or terms of different parts use the same coordinates of y; give these one part")
    if not torch.linalg.vector_norm(sum(slopes.values()) - whole) <= 1e-2 * torch.linalg.vector_norm(whole):
        raise InvalidInput(f"the terms that lower_part gives for parts {list(terms)} do not add up to lower; every term of g belongs to one part")
