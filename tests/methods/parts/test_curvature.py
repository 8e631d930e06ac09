"""Extreme curvatures through products."""

from __future__ import annotations

import pytest
import torch

from bipareto.methods.parts import curvature


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_space_that_holds_every_eigenvalue_is_left_in_any_precision(dtype: torch.dtype) -> None:
    start = curvature.normal(torch.zeros(50, dtype=dtype), torch.Generator().manual_seed(0))
    assert curvature.lanczos(lambda v: 4 * v, start, 20) == pytest.approx((4, 4), rel=1e-5)
    values = torch.tensor([-1.0, 2.0, 5.0], dtype=dtype).repeat(20)[:50]
    assert curvature.lanczos(lambda v: values * v, start, 20) == pytest.approx((-1, 5), rel=1e-4)


def test_it_stays_inside_the_spectrum() -> None:
    values = torch.linspace(0.5, 7.0, 200)
    start = curvature.normal(values, torch.Generator().manual_seed(1))
    low, high = curvature.lanczos(lambda v: values * v, start, 40)
    assert 0.5 - 1e-4 <= low < 0.6
    assert 6.9 < high <= 7.0 + 1e-4
