"""The lower level of a network is trained on, not solved: g falls, and Newton never starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp
from bipareto.methods.parts import envelope


def test_the_lower_level_of_loaders_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    loader = DataLoader(data, 8, shuffle=True)

    def fit(x, y, batch):
        return (y(batch[0]) - x.exp() * batch[1]).square().mean()

    def scaled(size):
        return lambda x, y, batch: (y(batch[0]) - size * batch[1]).square().mean()

    problem, x0, y0 = bp.Problem.from_modules(
        x=torch.zeros(1),
        y=nn.Linear(3, 1),
        lower=fit,
        lower_data=loader,
        upper=[scaled(0.5), scaled(2.0)],
        upper_data=loader,
        test_data=loader,
    )
    front = bp.front(
        problem, x0, y0, preferences=[[0.7, 0.3], [0.3, 0.7]], method=bp.Twin(), steps=4
    )
    monkeypatch.setattr(envelope, "solve_lower", lambda *_: pytest.fail("Newton on a network"))
    solved = front.resolve_lower()
    full = problem.batch("lower", "full")
    before, after = (
        torch.func.vmap(lambda x, y: problem.lower(x, y, full))(f.x, f.y) for f in (front, solved)
    )
    assert bool((after < 0.2 * before).all())  # least squares that four steps had hardly begun
    assert solved.lower_residual is None
    assert solved.test is not None
