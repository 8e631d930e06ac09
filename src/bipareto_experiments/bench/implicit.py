"""Implicit gradients of other libraries: TorchOpt's on two functions of tensors, JAXopt's on two
functions of JAX's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def hypergradient(
    torchopt: Any, g: Loss, upper: Loss, *, inner: int, rate: float, iterations: int
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(x, y) -> d upper(x, y*(x))/dx and the new y, by `torchopt.diff.implicit.custom_root`.

    Args:
        g: lower(x, y).
        inner, rate: gradient steps on g before the implicit gradient is taken.
        iterations: of the conjugate gradients.
    """
    solve = torchopt.linear_solve.solve_cg(maxiter=iterations, atol=0.0)

    def stationarity(y: Tensor, x: Tensor) -> Tensor:
        return torch.func.grad(g, 1)(x, y)

    @torchopt.diff.implicit.custom_root(stationarity, argnums=1, solve=solve)  # type: ignore[untyped-decorator]
    def solved(y: Tensor, x: Tensor) -> Tensor:
        with torch.enable_grad():
            for _ in range(inner):
                y = y.detach().requires_grad_()
                (d,) = torch.autograd.grad(g(x.detach(), y), y)
                y = y - rate * d
        return y.detach().requires_grad_()

    def along(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        new = solved(y, x)
        (d,) = torch.autograd.grad(upper(x, new), x)
        return d, new.detach()

    return along


def jax_hypergradient(
    jax: Any, jaxopt: Any, g: Loss, upper: Loss, *, inner: int, rate: float, iterations: int
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The same by `jaxopt.GradientDescent` with its implicit differentiation, compiled by JAX; g
    and upper are functions of JAX's arrays.
    """

    def solve(matvec: Any, b: Any, **given: Any) -> Any:
        return jaxopt.linear_solve.solve_cg(matvec, b, maxiter=iterations, tol=0.0, **given)

    solver = jaxopt.GradientDescent(
        lambda y, x: g(x, y), maxiter=inner, stepsize=rate, acceleration=False, tol=0.0,
        implicit_diff_solve=solve,
    )  # fmt: skip

    def value(x: Any, y: Any) -> tuple[Any, Any]:
        new = solver.run(y, x).params
        return upper(x, new), new

    along = jax.jit(jax.grad(value, has_aux=True))
    return lambda x, y: jax.block_until_ready(along(x, y))
