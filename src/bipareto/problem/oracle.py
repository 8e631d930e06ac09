"""Gradients, their counting, and noise: the only door to a problem's derivatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.problem import tree
from bipareto.problem.base import Problem
from bipareto.problem.sampler import Role, generator
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped

try:
    from torch._C._functorch import (
        _add_batch_dim,
        get_dynamic_layer_stack_depth,
        get_unwrapped,
        is_batchedtensor,
        maybe_get_bdim,
        maybe_get_level,
    )
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

    OPENS = True
except ImportError:  # torch's own, and not public: without it `torch.func.grad` does, more slowly
    OPENS = False

__all__ = ["Counting", "grad", "grad_and_aux", "noisy"]


def grad_and_aux(
    fn: Callable[[Tree], tuple[Tensor, tuple[Tensor, ...]]], point: Tree
) -> tuple[Tree, tuple[Tensor, ...]]:
    """The gradient of `fn` at `point` (a tree like it), and the tensors that `fn` returns beside
    its value.

    `torch.func.grad` is what transforms and `torch.compile` understand; in a plain single run and
    under a single `vmap` `torch.autograd.grad` gives the same numbers at about half the overhead.
    """
    if torch.compiler.is_compiling():
        return torch.func.grad(fn, has_aux=True)(point)
    if torch._C._functorch.is_functorch_wrapped_tensor(tree.first_leaf(point)):
        batch = _batch(point)
        return torch.func.grad(fn, has_aux=True)(point) if batch is None else batch.grad(fn, point)
    # Entering a context costs as much as three small operations.
    with nullcontext() if torch.is_grad_enabled() else torch.enable_grad():
        variable = tree.map_(lambda leaf: leaf.detach().requires_grad_(), point)
        value, aux = fn(variable)
        if not value.requires_grad:
            return tree.zeros_like(point), aux
        # A constant of its own, not one made "like" the value: a traced step then computes no value
        # that nobody reads.
        one = torch.ones(value.shape, dtype=value.dtype, device=value.device)
        # A leaf that a term does not use (an unused bias, say) has gradient zero.
        leaves = tree.leaves(variable)
        found = torch.autograd.grad(value, leaves, one, allow_unused=True)
    slopes = [torch.zeros_like(v) if d is None else d for v, d in zip(leaves, found, strict=True)]
    return tree.rebuild(point, slopes), tuple([tensor.detach() for tensor in aux])


class _Batch(NamedTuple):
    """The rows of a point under `vmap`, each leaf as the tensor of all rows with its row axis, and
    the level of `vmap`.
    """

    rows: list[Tensor]
    axes: list[int]
    level: int

    def grad(
        self, fn: Callable[[Tree], tuple[Tensor, tuple[Tensor, ...]]], point: Tree
    ) -> tuple[Tree, tuple[Tensor, ...]]:
        """As `grad_and_aux`, by one backward pass for all rows that knows of no batch."""
        with torch.enable_grad():
            with temporarily_pop_interpreter_stack():  # inside `vmap` nothing may become a variable
                rows = [leaf.detach().requires_grad_() for leaf in self.rows]
            value, aux = fn(self._wrapped(point, rows))
        aux = tuple([tensor.detach() for tensor in aux])
        total = get_unwrapped(value) if is_batchedtensor(value) else value
        if not total.requires_grad:
            return tree.zeros_like(point), aux
        with temporarily_pop_interpreter_stack():
            one = torch.ones(total.shape, dtype=total.dtype, device=total.device)
            found = torch.autograd.grad(total, rows, one, allow_unused=True)
        slopes = [torch.zeros_like(v) if d is None else d for v, d in zip(rows, found, strict=True)]
        return self._wrapped(point, slopes), aux

    def _wrapped(self, point: Tree, rows: Sequence[Tensor]) -> Tree:
        pairs = zip(rows, self.axes, strict=True)
        leaves = [_add_batch_dim(leaf, axis, self.level) for leaf, axis in pairs]
        return tree.rebuild(point, leaves)


def _batch(point: Tree) -> _Batch | None:
    """The rows of a point on a processor under `vmap` and no other transform; None where it is
    elsewhere, where not all leaves are batched, or where this torch cannot say.
    """
    leaves = tree.leaves(point)
    if not OPENS or get_dynamic_layer_stack_depth() != 1:
        return None
    if not all([is_batchedtensor(leaf) for leaf in leaves]):
        return None
    rows = [get_unwrapped(leaf) for leaf in leaves]
    # Variables are differentiated from outside, and `torch.func.grad` keeps their graph.
    if any([leaf.requires_grad or not leaf.is_cpu for leaf in rows]):
        return None
    axes = [maybe_get_bdim(leaf) for leaf in leaves]
    return _Batch(rows, axes, maybe_get_level(leaves[0]))


def grad(fn: Callable[[Tree], Tensor], point: Tree) -> Tree:
    """The gradient of a scalar function of a tree."""
    return grad_and_aux(lambda p: (fn(p), ()), point)[0]


class Counting(Wrapped):
    """A problem that counts what is evaluated: `counts["lower"]` calls of g, `counts["upper"]`
    components f_i, `counts["lower_part"]` parts of g.

    For checking a method's declared oracle counts in a plain eager run, where each evaluation is
    differentiated once.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.counts: Counter[str] = Counter()

    def upper(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        f = super().upper(x, y, batch)
        self.counts["upper"] += f.shape[0]
        return f

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        self.counts["upper"] += 1
        return super().objective(i, x, y, batch)

    def lower(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        self.counts["lower"] += 1
        return super().lower(x, y, batch)

    def lower_part(self, part: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        self.counts["lower_part"] += 1
        return super().lower_part(part, x, y, batch)


def noisy(problem: Problem, std: float, x0: Tree, y0: Tree) -> Problem:
    """The same problem with independent N(0, std^2) noise on every coordinate of every gradient,
    values left exact.

    A draw xi adds std <xi, v - stop(v)> to each term, v = (x, y): nothing to the value, std xi to
    the gradient.  Terms that share a draw share its noise, as samples do: Algorithm 2 evaluates g
    at y and at theta on one draw rho_x, so in the x-direction that part of the noise cancels, while
    theta, y and every objective keep theirs. The role "full" draws no noise.
    """
    inner = problem.sampler

    def sampler(role: Role, t: int, seed: int) -> dict[str, Any]:
        batch = () if inner is None else inner(role, t, seed)
        if role.full:
            return {"batch": batch, "x": tree.zeros_like(x0), "y": tree.zeros_like(y0)}
        stream = generator(f"noise-{role}", t, seed, tree.first_leaf(x0).device)

        def normal(leaf: Tensor) -> Tensor:
            return std * torch.randn(
                leaf.shape, dtype=leaf.dtype, device=leaf.device, generator=stream
            )

        return {"batch": batch, "x": tree.map_(normal, x0), "y": tree.map_(normal, y0)}

    def tilt(x: Tree, y: Tree, draw: dict[str, Any]) -> Tensor:
        still = tree.map_(lambda leaf: leaf.detach(), (x, y))
        return tree.dot((draw["x"], draw["y"]), tree.sub((x, y), still))

    def batch_of(draw: dict[str, Any]) -> Any:
        return None if inner is None else draw["batch"]

    return Problem(
        upper=lambda x, y, draw: problem.upper(x, y, batch_of(draw)) + tilt(x, y, draw),
        lower=lambda x, y, draw: problem.lower(x, y, batch_of(draw)) + tilt(x, y, draw),
        sampler=sampler,
        names=problem.names,
    )
