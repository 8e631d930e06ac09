"""How the suite `methods` counts gradients."""

from __future__ import annotations

import torch
from torch.func import grad, jacrev, vmap

from bipareto_experiments.bench.methods import _Counted


def test_every_row_of_a_batch_is_a_gradient_and_a_hessian_two_for_each_variable():
    rows, n, k, m = 7, 3, 4, 2
    x, y = torch.randn(rows, n), torch.randn(rows, k)
    upper = _Counted(lambda a, b: torch.stack([(a**2).sum() + b.sum(), (b**2).sum()]), m)
    lower = _Counted(lambda a, b: (a.sum() - b).pow(2).sum(), 1)
    vmap(lower)(x, y)
    assert (lower.values, lower.gradients) == (rows, 0)
    vmap(grad(lower, argnums=1))(x, y)
    assert (lower.values, lower.gradients) == (rows, rows)
    vmap(jacrev(grad(lower, argnums=1), argnums=1))(x, y)
    assert lower.gradients == rows + 2 * k * rows
    vmap(jacrev(upper))(x, y)
    assert upper.gradients == m * rows
    both = torch.cat([x, y], 1)
    vmap(jacrev(jacrev(lambda v: upper(v[:n], v[n:]))))(both)
    assert upper.gradients == m * rows + 2 * (n + k) * m * rows
