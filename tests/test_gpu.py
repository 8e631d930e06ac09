"""The same numbers on a GPU: run with `pytest -m gpu` where there is one."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.oracle import noisy
from helpers import nonconvex

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

METHOD = bp.MOMEHA(gamma=0.2, alpha_theta=0.05, alpha_x=0.05, alpha_y=0.05, c=5.0)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", [METHOD, bp.MBMOMEHA(gamma=0.2, c=5.0)])
def test_a_front_on_the_gpu_is_the_front_on_the_cpu(compile: bool, method: bp.MOMEHA) -> None:
    plain, x, y = nonconvex()
    twin, *_ = nonconvex(device="cuda")
    found = bp.front(twin, x.cuda(), y.cuda(), preferences=bp.preferences.grid(2, 5), method=method, steps=300, compile=compile)
    wanted = bp.front(plain, x, y, preferences=bp.preferences.grid(2, 5), method=method, steps=300, compile=False)
    assert found.x.is_cuda
    torch.testing.assert_close(found.x.cpu(), wanted.x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.resolve_lower().objectives.cpu(), wanted.resolve_lower().objectives, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[2].best.objectives.cpu(), wanted[2].best.objectives, rtol=1e-8, atol=1e-8)


def test_noise_seeds_and_tuning_work_on_the_gpu() -> None:
    twin, x, y = nonconvex(device="cuda")
    loud = noisy(twin, 0.1, x, y)
    method = bp.MBMOMEHA.tuned(loud, x, y, steps=500)
    found = bp.front(loud, x, y, preferences=bp.preferences.grid(2, 3), seeds=[0, 1], method=method, steps=500)
    assert found.reason == ("steps",) * 6
    assert not torch.allclose(found.x[0], found.x[3])
    found.subset(torch.tensor([0, 2]))
