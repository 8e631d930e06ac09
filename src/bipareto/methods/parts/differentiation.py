"""Jacobian products of the two levels, exact and by differences of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bipareto.problem import oracle, tree
from bipareto.problem.tree import Tree

#: f(x, y) -> (m,) or g(x, y) -> (), draws already chosen
Level: TypeAlias = Callable[[Tree, Tree], Tensor]


#: rows v (m, n_y) -> g_xy v (m, n_x) and g_yy v (m, n_y)
Pair: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


def descend(lower: Level, x: Tree, y: Tree, eta: Any) -> Tree:
    """One gradient step on the lower level, y - eta grad_y g(x, y)."""
    return tree.add_scaled(y, -eta, oracle.grad(lambda y_: lower(x, y_), y))


def pullback(
    upper: Level, x: Tree, y: Tree
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """f (m,), and weights (m,) -> the gradients of the weighted sum in x (n_x,) and in y (n_y,), at
    one evaluation of f.
    """
    f, _, pull = pullback_of(lambda x_, y_: (upper(x_, y_), ()), x, y)
    return f, pull


def jacobian(upper: Level, x: Tree, y: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """f (m,) and its gradients in x (m, n_x) and y (m, n_y): one forward, m backward passes."""
    f, pull = pullback(upper, x, y)
    rows = [pull(e) for e in unit_rows(f)]
    return f, torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def lower_pullback(lower: Level, x: Tree, y: Tree) -> tuple[Tensor, Pair]:
    """grad_y g (n_y,), and rows v (m, n_y) -> g_xy v (m, n_x), g_yy v (m, n_y), g taken once."""
    gradient, _, pull = pullback_of(
        lambda x_, y_: (tree.ravel(gradient_in_y(lower, x_, y_)), ()), x, y
    )

    def pair(rows: Tensor) -> tuple[Tensor, Tensor]:
        found = [pull(v) for v in rows.unbind()]
        return torch.stack([u for u, _ in found]), torch.stack([v for _, v in found])

    return gradient, pair


def difference_pair(lower: Level, x: Tree, y: Tree, eps: Any, relative: bool = True) -> Pair:
    """rows v (m, n_y) -> g_xy v (m, n_x), g_yy v (m, n_y) from two gradients of g each, y shifted
    by +-e v: see `FiniteDifference`.

    Args:
        eps, relative: e = eps/||v||, or e = eps if not `relative`.
    """

    def gradient(point: Tensor) -> Tensor:
        return tree.ravel(oracle.grad(lambda both: lower(*both), (x, tree.unravel(point, y))))

    def pair(rows: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.stack([difference(gradient, y, v, eps, relative) for v in rows.unbind()])
        split = both.shape[1] - rows.shape[1]
        return both[:, :split], both[:, split:]

    return pair


def difference(
    gradient: Callable[[Tensor], Tensor], y: Tree, v: Tensor, eps: Any, relative: bool
) -> Tensor:
    """A derivative of a gradient along v by a central difference."""
    e = eps / v.norm().clamp_min(torch.finfo(v.dtype).tiny) if relative else eps
    at = tree.ravel(y)
    return (gradient(at + e * v) - gradient(at - e * v)) / (2 * e)


def functional(point: Tree) -> bool:
    """Whether `torch.func` must differentiate: inside `vmap` or a transform, or compiled."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(
        tree.first_leaf(point)
    )


def gradient_in_y(lower: Level, x: Tree, y: Tree) -> Tree:
    """grad_y g(x, y), differentiable again; outside `torch.func` y must carry a graph."""
    if functional(y):
        return torch.func.grad(lambda y_: lower(x, y_))(y)
    found = torch.autograd.grad(
        lower(x, y), tree.leaves(y), create_graph=True, allow_unused=True, materialize_grads=True
    )
    return tree.rebuild(y, list(found))


def pullback_of(
    fn: Callable[..., tuple[Tensor, Tree]], *points: Tree
) -> tuple[Tensor, Tree, Callable[[Tensor], tuple[Tensor, ...]]]:
    """fn(*points) -> (value, aux) and the map from cotangents of the value to flat cotangents of
    the points, reusable.

    By `torch.func.vjp` where it must be, else by `torch.autograd`, which takes losses that
    `torch.func` does not and costs half.
    """
    if any(functional(point) for point in points):
        value, pull, aux = torch.func.vjp(fn, *points, has_aux=True)  # type: ignore[misc]
        return value, aux, lambda cotangent: tuple(tree.ravel(part) for part in pull(cotangent))
    variables = [tree.map_(lambda leaf: leaf.detach().requires_grad_(), point) for point in points]
    with torch.enable_grad():
        value, aux = fn(*variables)
    inputs = [tree.leaves(variable) for variable in variables]

    def pull_back(cotangent: Tensor) -> tuple[Tensor, ...]:
        if not value.requires_grad:
            return tuple(torch.zeros_like(tree.ravel(point)) for point in points)
        flat = [leaf for leaves in inputs for leaf in leaves]
        found = iter(
            torch.autograd.grad(
                value, flat, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        )
        return tuple(torch.cat([next(found).flatten() for _ in leaves]) for leaves in inputs)

    return value.detach(), tree.map_(lambda leaf: leaf.detach(), aux), pull_back


def slopes(values: Tensor, at: Tensor, *, again: bool = False) -> Tensor:
    """The gradients (R, n) of values (R,), each of which depends on its own row of `at` (R, n), a
    variable.

    Values that are batched by `vmap` and differentiated outside of it, as here, take a fifth of the
    time of `vmap` over a gradient: their backward pass knows of no batch.

    Args:
        again: they are to be differentiated again.
    """
    if not values.requires_grad:
        return torch.zeros_like(at)
    return torch.autograd.grad(
        values, at, torch.ones_like(values), create_graph=again, materialize_grads=True
    )[0]


def products(slope: Tensor, at: Tensor, vectors: Tensor) -> Tensor:
    """The products (q, R, n) of the Hessians of each row with vectors (q, R, n), by their `slopes`,
    which depend on `at`; as often as one likes.
    """
    if not slope.requires_grad:
        return torch.zeros_like(vectors)

    def product(v: Tensor) -> Tensor:
        return torch.autograd.grad(slope, at, v, retain_graph=True, materialize_grads=True)[0]

    # Not by `is_grads_batched`, whose `vmap` is an older one that knows fewer operators.
    return product(vectors[0])[None] if len(vectors) == 1 else torch.func.vmap(product)(vectors)


def unit_rows(f: Tensor) -> list[Tensor]:
    """The rows of the identity (m, m), one per objective."""
    return list(torch.eye(f.shape[0], dtype=f.dtype, device=f.device).unbind())
