"""What every scalarization must pass, present and future: F falls with no objective, its weights
are its gradient, and what else it carries agrees with it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bipareto.methods.parts.scalarization import SCALARIZATIONS

pytestmark = pytest.mark.parametrize("name", SCALARIZATIONS)


def points(m: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Some (f, w, z, mu) with z below f and w inside the simplex."""
    stream = torch.Generator().manual_seed(m)
    drawn = []
    for mu in (0.5, 2.0, 8.0):
        f = torch.rand(m, generator=stream, dtype=torch.float64) * 3 + 0.1
        w = torch.rand(m, generator=stream, dtype=torch.float64) + 0.1
        drawn.append((f, w / w.sum(), torch.zeros(m).double(), torch.tensor(mu).double()))
    return drawn


@pytest.mark.parametrize("m", [1, 2, 5])
def test_weights_are_the_gradient(name: str, m: int) -> None:
    form = SCALARIZATIONS[name]
    for f, w, z, mu in points(m):
        expected = torch.func.grad(lambda v, w=w, z=z, mu=mu: form.value(v, w, z, mu))(f)
        torch.testing.assert_close(form.weights(f, w, z, mu), expected, rtol=1e-9, atol=1e-12)


def test_many_points_at_once_are_as_each_alone(name: str) -> None:
    """f (..., m) gives values (...) and weights (..., m): known fronts are computed so."""
    form = SCALARIZATIONS[name]
    f = torch.stack([point[0] for point in points(3)]).expand(2, 3, 3)
    _, w, z, mu = points(3)[1]
    together = form.value(f, w, z, mu), form.weights(f, w, z, mu)
    for i in range(3):
        torch.testing.assert_close(together[0][1, i], form.value(f[0, i], w, z, mu))
        torch.testing.assert_close(together[1].expand_as(f)[1, i], form.weights(f[0, i], w, z, mu))


@pytest.mark.parametrize("m", [2, 5])
def test_no_objective_is_better_when_it_is_larger(name: str, m: int) -> None:
    form = SCALARIZATIONS[name]
    for f, w, z, mu in points(m):
        value = form.value(f, w, z, mu)
        assert value.shape == ()
        assert (form.weights(f, w, z, mu) >= 0).all()
        for more in torch.eye(m, dtype=torch.float64):
            assert form.value(f + 0.3 * more, w, z, mu) >= value - 1e-12


@pytest.mark.parametrize("m", [2, 3])
def test_an_aim_finds_the_preference_again(name: str, m: int) -> None:
    form = SCALARIZATIONS[name]
    if form.aim is None:
        pytest.skip("it has no aim, so adaptive preferences refuse it")
    for f, w, z, mu in points(m):
        normal = form.weights(f, w, z, mu)
        if not (normal > 0).all():
            pytest.skip("it has kinks, where many preferences have one point")
        found = form.aim(f, normal, z, float(mu))
        torch.testing.assert_close(found, w, rtol=1e-6, atol=1e-9)


def test_a_lower_bound_holds(name: str) -> None:
    form = SCALARIZATIONS[name]
    if form.lower_bound is None:
        pytest.skip("it says no bound")
    for f, w, z, mu in points(3):
        assert form.value(f, w, z, mu) >= form.lower_bound(3, float(mu)) - 1e-12
