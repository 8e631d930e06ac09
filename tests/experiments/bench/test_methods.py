"""How the suite `methods` counts gradients."""

from __future__ import annotations

import torch
from torch.func import grad, jacrev, vjp, vmap

from bipareto_experiments.bench.methods import Counted


def test_a_gradient_is_one_pass_and_a_hessian_two_for_each_variable():
    rows, n, k, m = 7, 3, 4, 2
    x, y = torch.randn(rows, n), torch.randn(rows, k)
    upper = Counted(lambda a, b: torch.stack([(a**2).sum() + b.sum(), (b**2).sum()]))
    lower = Counted(lambda a, b: (a.sum() - b).pow(2).sum())
    vmap(lower)(x, y)
    assert (lower.values, lower.gradients) == (rows, 0)
    slope = vmap(grad(lower, argnums=1))(x, y)
    assert torch.equal(slope, 2 * (y - x.sum(1, keepdim=True)))
    assert (lower.values, lower.gradients) == (rows, rows)

    lower.gradients = 0
    hessian = vmap(jacrev(grad(lower, argnums=1), argnums=1))(x, y)
    assert torch.equal(hessian, (2 * torch.eye(k)).expand(rows, k, k))
    assert lower.gradients == rows * (1 + 2 * k)

    lower.gradients = 0
    pull = vjp(grad(lambda v: lower(x[0], v)), y[0])[1]
    for _ in range(5):
        assert torch.equal(pull(y[1])[0], 2 * y[1])
    assert lower.gradients == 1 + 2 * 5

    jacobian = vmap(jacrev(upper, argnums=1))(x, y)
    assert torch.equal(jacobian[:, 1], 2 * y)
    assert upper.gradients == m * rows
