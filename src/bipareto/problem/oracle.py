"""Gradients, their counting, and noise: the only door to a problem's derivatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from bipareto.problem import tree
from bipareto.problem.base import Problem
from bipareto.problem.sampler import Role, generator
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped

__all__ = ["Counting", "grad", "grad_and_aux", "noisy"]


def grad_and_aux(
    fn: Callable[[Tree], tuple[Tensor, tuple[Tensor, ...]]], point: Tree
) -> tuple[Tree, tuple[Tensor, ...]]:
    """The gradient of `fn` at `point` (a tree like it), and the tensors that `fn` returns beside
    its value.

    `torch.func.grad` is what `vmap` and `torch.compile` understand; in a plain single run
    `torch.autograd.grad` gives the same numbers at about half the overhead.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(
        tree.first_leaf(point)
    ):
        return torch.func.grad(fn, has_aux=True)(point)
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
