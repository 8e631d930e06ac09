"""Gradient noise: right mean and variance, exact values, a pure function of (role, t, seed)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bipareto import problems
from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problems import KnownProblem

STD = 0.5


def gradients(known: KnownProblem, draw: dict[str, Any]) -> Tensor:
    """All gradients at a fixed point: of g and of every f_i, in x and in y, in one vector."""
    x, y = known.x0 + 0.3, known.y0 - 0.2
    g = torch.func.grad(lambda x, y: known.lower(x, y, draw), argnums=(0, 1))(x, y)
    f = torch.func.jacrev(lambda x, y: known.upper(x, y, draw), argnums=(0, 1))(x, y)
    return torch.cat([part.flatten() for part in (*g, *f)])


@pytest.mark.parametrize("name", problems.names())
def test_noise_is_centred_with_the_given_variance_and_leaves_values_alone(name: str) -> None:
    plain, noisy = problems.get(name), problems.get(name, noise=STD)
    exact = gradients(plain, {})
    assert torch.equal(gradients(noisy, noisy.batch("lower", "full")), exact)
    draw = noisy.batch("upper", "x", 3, 1)
    assert torch.equal(noisy.upper(noisy.x0, noisy.y0, draw), plain.upper(plain.x0, plain.y0))
    assert torch.equal(noisy.lower(noisy.x0, noisy.y0, draw), plain.lower(plain.x0, plain.y0))
    assert torch.equal(noisy.objectives(noisy.x0), plain.objectives(plain.x0))

    draws = 400
    stacked = tree.stack([noisy.batch("lower", "theta", t, 0) for t in range(draws)])
    off = torch.func.vmap(lambda draw: gradients(noisy, draw))(stacked) - exact
    assert (off.mean(0).abs() <= 5 * STD / draws**0.5).all()
    assert ((off.var(0) / STD**2 - 1).abs() <= 5 * (2 / draws) ** 0.5).all()


def test_draws_depend_on_role_step_and_seed_alone() -> None:
    one, other = problems.get("quadratic", noise=STD), problems.get("quadratic", noise=STD)
    base = ("lower", "theta", 5, 2)
    first = one.batch(*base)
    one.batch("lower", "theta", 6, 2)
    for again in (one.batch(*base), other.batch(*base)):
        assert torch.equal(again["x"], first["x"])
        assert torch.equal(again["y"], first["y"])
    for changed in (("lower", "x", 5, 2), ("lower", "theta", 6, 2), ("lower", "theta", 5, 3)):
        assert not torch.equal(one.batch(*changed)["x"], first["x"])


def test_scale_of_noise() -> None:
    small, large = (
        problems.get("sin", noise=std).batch("lower", "theta", 0, 0) for std in (0.1, 0.2)
    )
    torch.testing.assert_close(2 * small["y"], large["y"])
    with pytest.raises(InvalidInput, match=r"noise = -1.0; it must be >= 0"):
        problems.get("sin", noise=-1)
