"""Curvature seen through products: what the tuning rules, the constants and the certificate ask of
a loss.

Functions here take a scalar function of one flat vector; `lower_in_y` and its like make one of a
problem's levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

#: v -> H v for a symmetric matrix H
Product: TypeAlias = Callable[[Tensor], Tensor]
Flat: TypeAlias = Callable[[Tensor], Tensor]


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in shape, dtype and device of `like`; the same on every device."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def lower_in_y(problem: Problem, x: Tree, y: Tree) -> Flat:
    """g(x, .) as a function of the flat y, on all data; y gives the shapes."""
    batch = problem.batch("lower", "full")
    return lambda v: problem.lower(x, tree.unravel(v, y), batch)


def lower_in_both(problem: Problem, x: Tree, y: Tree) -> Flat:
    """g as a function of the flat (x, y), on all data; x and y give the shapes."""
    batch = problem.batch("lower", "full")

    def value(v: Tensor) -> Tensor:
        x_, y_ = tree.unravel(v, (x, y))
        return problem.lower(x_, y_, batch)

    return value


def objective_in_both(problem: Problem, i: int, x: Tree, y: Tree) -> Flat:
    """f_i as a function of the flat (x, y), on all data; x and y give the shapes."""
    batch = problem.batch("upper", "full")

    def value(v: Tensor) -> Tensor:
        x_, y_ = tree.unravel(v, (x, y))
        return problem.objective(i, x_, y_, batch)

    return value


def hessian(fn: Flat, at: Tensor) -> Product:
    """Products with the Hessian of `fn` at a point; one forward pass serves all of them."""
    pull = torch.func.vjp(torch.func.grad(fn), at)[1]
    return lambda v: pull(v)[0]


def extremes(fn: Flat, at: Tensor, stream: torch.Generator, count: int) -> tuple[float, float]:
    """Extreme Ritz values of the Hessian of `fn` at a point, after `count` products."""
    return lanczos(hessian(fn, at), normal(at, stream), count)


def lanczos(product: Product, start: Tensor, count: int) -> tuple[float, float]:
    """Extreme Ritz values after `count` products, fully re-orthogonalised: inside the spectrum."""
    low, high = lanczos_rows(lambda v: product(v[0])[None], start[None], count)
    return float(low), float(high)


def lanczos_rows(product: Product, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`lanczos` for R matrices side by side: start (R, n), Ritz values (R,)."""
    tiny = max(1e-10, 100 * torch.finfo(start.dtype).eps)
    basis = start[:, None] / start.norm(dim=1)[:, None, None]
    diagonal: list[Tensor] = []
    off: list[Tensor] = []
    for _ in range(min(count, start.shape[1])):
        q = basis[:, -1]
        w = product(q)
        here = (w * q).sum(1)
        if not bool(here.isfinite().all()):
            worst = here[~here.isfinite()][0]
            raise InvalidInput(
                f"a Hessian product is not finite (<v, H v> = {float(worst)}): the loss has no "
                "curvature at a probed point; use a twice "
                "differentiable one there (sqrt(v + 1e-8) for sqrt(v), say), or give the numbers "
                "that would be probed"
            )
        # A space that holds every eigenvalue already has gone on with 0; a value that is known
        # stands in.
        diagonal.append(torch.where(q.any(1), here, diagonal[0] if diagonal else here))
        for _ in range(2):
            w = w - (basis.mT @ (basis @ w[..., None]))[..., 0]
        size = w.norm(dim=1)
        # What is left is rounding of the products.
        done = size <= tiny * torch.stack(diagonal).abs().amax(0)
        if bool(done.all()):
            break
        off.append(torch.where(done, 0.0, size))
        following = torch.where(
            done[:, None], 0.0, w / size.clamp_min(torch.finfo(size.dtype).tiny)[:, None]
        )
        basis = torch.cat([basis, following[:, None]], 1)
    T = torch.diag_embed(torch.stack(diagonal, 1).double())
    for i, value in enumerate(off[: len(diagonal) - 1]):
        T[:, i, i + 1] = T[:, i + 1, i] = value
    values = torch.linalg.eigvalsh(T.cpu())
    return values[:, 0], values[:, -1]


def coupling(problem: Problem, x: Tree, y: Tree, seed: int, count: int = 8) -> float:
    """||g_xy|| at (x, y), by power iteration on g_yx g_xy."""
    product = hessian(lower_in_both(problem, x, y), tree.ravel((x, y)))
    split = tree.ravel(x).numel()
    v = normal(tree.ravel(y), torch.Generator().manual_seed(seed))
    size = 0.0
    for _ in range(count):
        v = v / v.norm()
        to_x = product(torch.cat([v.new_zeros(split), v]))[:split]
        v = product(torch.cat([to_x, torch.zeros_like(v)]))[split:]
        size = float(v.norm())
        if size == 0:
            return 0.0
    return math.sqrt(size)
