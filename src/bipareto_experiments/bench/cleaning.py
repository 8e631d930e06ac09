"""Hyper-cleaning with a linear classifier, 784 -> 10, and its Moreau-envelope step by hand.

Digits of scikit-learn, enlarged to 28 x 28; half of the training labels are wrong, and half of the
images are transposed.  x has one logit per training image, y (10, 785) holds weights
and biases as `nn.Linear` lays them out, f_1 and f_2 are
the losses on upright and on transposed validation images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate, linear

from bipareto.methods import MOMEHA
from bipareto.problem import Problem

DECAY = 1e-3
#: upright and transposed images, and their labels
Images = tuple[tuple[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Cleaning:
    """The problem, its start, its parts as functions, and data that neither level sees.

    g(x, y) and f(x, y) are the losses; `test(y)` (2,) is f on unseen images.  `seen` (N, 785) and
    `target` (N,) are the training images and labels, `valid` those of f: two sets of images for one
    set of labels.
    """

    problem: Problem
    x0: Tensor
    y0: Tensor
    f: Callable[[Tensor, Tensor], Tensor]
    g: Callable[[Tensor, Tensor], Tensor]
    test: Callable[[Tensor], Tensor]
    seen: Tensor
    target: Tensor
    valid: Images


def cleaning(seed: int = 0, train: int = 1000) -> Cleaning:
    """1,000 training images (or fewer) and 500 validation images of each kind, drawn by `seed`."""
    from sklearn.datasets import load_digits

    stream = torch.Generator().manual_seed(seed)
    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    images = interpolate(small, (28, 28), mode="bilinear")[:, 0]
    images = images - images.mean(0)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=stream)
    rows = order[:train], order[1000:1500], order[1500:]

    def flat(pixels: Tensor) -> Tensor:
        return torch.cat([pixels.flatten(1), torch.ones(len(pixels), 1)], 1)

    half = train // 2
    own = images[rows[0]]
    seen = flat(torch.cat([own[:half], own[half:].mT]))
    target = labels[rows[0]].clone()
    wrong = torch.randperm(train, generator=stream)[:half]
    target[wrong] = (target[wrong] + torch.randint(1, 10, (half,), generator=stream)) % 10
    valid, test = (((flat(images[part]), flat(images[part].mT)), labels[part]) for part in rows[1:])

    def losses(y: Tensor, data: Images) -> Tensor:
        return torch.stack([cross_entropy(linear(pixels, y), data[1]) for pixels in data[0]])

    def f(x: Tensor, y: Tensor) -> Tensor:
        return losses(y, valid)

    def g(x: Tensor, y: Tensor) -> Tensor:
        each = cross_entropy(linear(seen, y), target, reduction="none")
        return (torch.sigmoid(x) * each).mean() + DECAY * y.square().sum()

    return Cleaning(
        Problem(f, g), torch.zeros(train), torch.zeros(10, 785), f, g,
        lambda y: losses(y, test), seen, target, valid,
    )  # fmt: skip


def in_jax(case: Cleaning, scalarized: Callable[[Any], Any]) -> tuple[Any, Any]:
    """g(x, y) and scalarized(f(x, y)) on JAX's arrays."""
    import jax
    import jax.numpy as jnp

    seen, target, labels = (jnp.asarray(t.numpy()) for t in (case.seen, case.target, case.valid[1]))
    kinds = [jnp.asarray(pixels.numpy()) for pixels in case.valid[0]]

    def each(y: Any, pixels: Any, wanted: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(pixels @ y.T), wanted[:, None], 1)[:, 0]

    def g(x: Any, y: Any) -> Any:
        return (jax.nn.sigmoid(x) * each(y, seen, target)).mean() + DECAY * jnp.square(y).sum()

    def upper(x: Any, y: Any) -> Any:
        return scalarized(jnp.stack([each(y, pixels, labels).mean() for pixels in kinds]))

    return g, upper


def plain_method() -> MOMEHA:
    """Algorithm 1 with numbers at which this problem converges; a step costs the same with any."""
    return MOMEHA(gamma=1.0, mu=10.0, alpha_theta=0.1, alpha_x=100.0, alpha_y=0.1, c=2.0)


def by_hand(
    f: Callable[[Tensor, Tensor], Tensor], g: Callable[[Tensor, Tensor], Tensor], method: MOMEHA
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Algorithm 1 written out, with no tree, no record and no info: eager (x, y, theta, t, w) with
    `torch.autograd.grad`, and for `vmap` and `compile` with `torch.func.grad`.
    """
    at = torch.zeros((), dtype=torch.float64)
    alphas = (method.alpha_theta, method.alpha_x, method.alpha_y, method.c)
    alpha_theta, alpha_x, alpha_y, c = (
        float(value(at)) if callable(value) else float(value) for value in alphas
    )
    mu, gamma = float(method.mu), float(method.gamma)

    def scalarized(values: Tensor, w: Tensor) -> Tensor:
        return torch.logsumexp(mu * w * values, 0) / mu

    def eager(
        x: Tensor, y: Tensor, theta: Tensor, t: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        theta = theta.detach().requires_grad_()
        (d,) = torch.autograd.grad(g(x, theta), theta)
        theta = (theta - alpha_theta * (d + (theta - y) / gamma)).detach()
        x = x.detach().requires_grad_()
        (d,) = torch.autograd.grad(scalarized(f(x, y), w) / c + g(x, y) - g(x, theta), x)
        x = (x - alpha_x * d).detach()
        y = y.detach().requires_grad_()
        (d,) = torch.autograd.grad(scalarized(f(x, y), w) / c + g(x, y), y)
        return x, (y - alpha_y * (d + (theta - y) / gamma)).detach(), theta, t + 1

    def functional(
        x: Tensor, y: Tensor, theta: Tensor, t: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        theta = theta - alpha_theta * (
            torch.func.grad(lambda v: g(x, v))(theta) + (theta - y) / gamma
        )
        x = x - alpha_x * torch.func.grad(
            lambda v: scalarized(f(v, y), w) / c + g(v, y) - g(v, theta)
        )(x)
        d = torch.func.grad(lambda v: scalarized(f(x, v), w) / c + g(x, v))(y)
        return x, y - alpha_y * (d + (theta - y) / gamma), theta, t + 1

    return eager, functional
