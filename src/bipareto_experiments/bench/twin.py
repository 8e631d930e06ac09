"""`Twin`'s step written out on vectors, with no tree, no record and no info."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bipareto.methods import Twin
from bipareto.problem import Problem


def twin_by_hand(
    problem: Problem, method: Twin, w: Tensor
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`Twin`'s step for this problem, on flat vectors: eager, and for `compile`.

    The state is (x, y, v, m_x, m_y, m_v, square_x, square_y, source, t).
    """
    f, g = problem.upper, problem.lower
    mu, beta, rho = method.mu, method.beta, method.rho
    alpha_x, alpha_y = (float(s.value) for s in (method.alpha_x, method.alpha_y))  # type: ignore[union-attr]

    def step(grads: Callable[..., Any], *state: Tensor) -> tuple[Tensor, ...]:
        x, y, v, m_x, m_y, m_v, square_x, square_y, source, t = state

        def scalarized(x: Tensor, y: Tensor) -> Tensor:
            values = f(x, y)
            return (w * torch.softmax(mu * w * values.detach(), 0)) @ values

        g_x, g_y = grads(g, x, y)
        first = 1 - beta ** (t + 1)
        square_y = 0.999 * square_y + 0.001 * g_y * g_y
        metric = (square_y / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
        f_x, f_y = grads(scalarized, x, y - alpha_y * g_y / metric)
        push = alpha_y * f_y / metric
        source = torch.maximum(0.99 * source, push.norm())
        v = push + (1 - rho) * (v - alpha_y * m_v / metric)
        length = v.norm().clamp_min(1e-32)
        shorten = (source / rho / length).clamp(max=1.0)
        v = shorten * v
        e = method.epsilon * y.norm().clamp_min(1e-8) / (shorten * length).clamp_min(1e-32)
        t_x, t_y = grads(g, x, y + e * v)
        h_x, h_v = f_x - (t_x - g_x) / e, (t_y - g_y) / e
        m_y = beta * m_y + (1 - beta) * g_y
        m_v = beta * m_v + (1 - beta) * h_v
        y = y - alpha_y / first * m_y / metric
        square_x = 0.99 * square_x + 0.01 * h_x * h_x
        m_x = beta * m_x + (1 - beta) * h_x
        root = (square_x / (1 - 0.99 ** (t + 1))).sqrt()
        least = 1e-6 * root.norm() / x.numel() ** 0.5 + 1e-32
        x = x - alpha_x / first * m_x / (root + least)
        return x, y, v, m_x, m_y, m_v, square_x, square_y, source, t + 1

    def autograd(fn: Callable[..., Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        return torch.autograd.grad(fn(x, y), (x, y))

    def functional(fn: Callable[..., Tensor], x: Tensor, y: Tensor) -> Any:
        return torch.func.grad(fn, argnums=(0, 1))(x, y)

    return lambda *state: step(autograd, *state), lambda *state: step(functional, *state)


def twin_start(x0: Tensor, y0: Tensor) -> tuple[Tensor, ...]:
    """The first state of `twin_by_hand`, every tensor with memory of its own."""
    zeros = (torch.zeros_like(v) for v in (y0, x0, y0, y0, x0, y0))
    return (x0.clone(), y0.clone(), *zeros, x0.new_zeros(()), x0.new_zeros(()))
