"""Extreme curvatures through products."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
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


def test_few_products_are_those_of_the_krylov_space() -> None:
    """Ritz values are the eigenvalues of H within span{v, H v, ...}."""
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, -3.0], dtype=torch.float64)
    v = torch.tensor([1.0, -1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    for count in (1, 2, 3):
        space = torch.stack([values**i * v for i in range(count)], 1)
        Q = torch.linalg.qr(space).Q
        ritz = torch.linalg.eigvalsh(Q.T @ (values[:, None] * Q))
        found = curvature.lanczos(lambda u: values * u, v, count)
        assert found == pytest.approx((float(ritz[0]), float(ritz[-1])))


def test_the_coupling_is_the_norm_of_the_mixed_block() -> None:
    M = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], dtype=torch.float64)
    problem = bp.Problem(
        lambda x, y: y.sum()[None], lambda x, y: x @ M @ y + 5 * y.square().sum() + x.square().sum()
    )
    x, y = torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    size = float(torch.linalg.matrix_norm(M, 2))
    assert curvature.coupling(problem, x, y, 0, 30) == pytest.approx(size, rel=1e-6)
    assert curvature.coupling(problem, x, y, 0) == pytest.approx(size, rel=1e-2)
    flat = bp.Problem(problem.upper, lambda x, y: y.square().sum() + x.square().sum())
    assert curvature.coupling(flat, x, y, 0) == 0
    both = torch.cat([x, y])
    v = torch.arange(5, dtype=torch.float64)
    H = torch.func.hessian(lambda p: problem.lower(p[:2], p[2:]))(both)
    product = curvature.hessian(curvature.lower_in_both(problem, x, y), both)
    torch.testing.assert_close(product(v), H @ v)
    in_y = curvature.hessian(curvature.lower_in_y(problem, x, y), y)
    torch.testing.assert_close(in_y(v[2:]), H[2:, 2:] @ v[2:])


def test_rows_of_lanczos_are_each_their_own() -> None:
    """Also where one of them has found its space long before the others."""
    stream = torch.Generator().manual_seed(5)
    A = torch.randn(3, 7, 7, generator=stream, dtype=torch.float64)
    A = torch.cat([A + A.mT, 4 * torch.eye(7, dtype=torch.float64)[None]])
    A[1, 2:], A[1, :, 2:] = 0, 0
    start = torch.randn(4, 7, generator=stream, dtype=torch.float64)
    low, high = curvature.lanczos_rows(lambda v: (A @ v[..., None])[..., 0], start, 7)
    values = torch.linalg.eigvalsh(A)
    torch.testing.assert_close(low, values[:, 0])
    torch.testing.assert_close(high, values[:, -1])
    low, high = curvature.lanczos_rows(lambda v: (A @ v[..., None])[..., 0], start, 3)
    alone = [curvature.lanczos(lambda v, H=H: H @ v, q, 3) for H, q in zip(A, start, strict=True)]
    torch.testing.assert_close(low, torch.tensor([a for a, _ in alone], dtype=torch.float64))
    torch.testing.assert_close(high, torch.tensor([b for _, b in alone], dtype=torch.float64))
