"""The kernels of a DARTS cell against the same cell in plain operations, without a GPU.

Needs Triton and its interpreter, and some minutes:  TRITON_INTERPRET=1 pytest
tests/experiments/nas/test_kernels.py
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from bipareto.problem import tree
from bipareto_experiments.nas import fast
from bipareto_experiments.nas.spaces import DARTS
from bipareto_experiments.nas.supernet import Darts, NasBench201

pytest.importorskip("triton", reason="the kernels need Triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="set TRITON_INTERPRET=1 before Python starts"
)

N, C = 2, 16


def cell_weights(seed: int, strided: bool) -> dict[str, Any]:
    """Of a reduction or a normal cell with C channels."""
    return Darts(channels=C // 2, size=4, stack="RN").start(seed)[1][
        "cell0" if strided else "cell1"
    ]


def case(seed: int, strided: bool, side: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Inputs (2, n, C, S, S), mixture (14, 8) and weights of a cell."""
    stream = torch.Generator().manual_seed(seed)
    given = torch.randn(2, N, C, side, side, generator=stream)
    return given, torch.randn(14, 8, generator=stream).softmax(-1), cell_weights(seed, strided)


def plain(
    given: torch.Tensor, mixture: torch.Tensor, y: dict[str, Any], strided: bool
) -> torch.Tensor:
    place = fast.Place("reduction" if strided else "normal", C, 0)
    return torch.cat(fast._nodes(DARTS, place, mixture, y, list(given))[2:], 1)


def fused(
    given: torch.Tensor, mixture: torch.Tensor, y: dict[str, Any], strided: bool
) -> torch.Tensor:
    """The same through the kernels, from and to (n, channels, side, side)."""
    side = given.shape[-1] // (2 if strided else 1)
    rows = given.permute(0, 1, 3, 4, 2).reshape(1, 2, -1, C)
    out = fast._fused_cell(rows, mixture, y, N, side, strided)
    return out.view(N, side, side, 4 * C).permute(0, 3, 1, 2)


def slopes(function: Any, strided: bool) -> Any:
    """Gradients in inputs, mixture and weights, and the value, of a fixed functional of the
    output.
    """

    def value(given: torch.Tensor, mixture: torch.Tensor, y: dict[str, Any]) -> torch.Tensor:
        out = function(given, mixture, y, strided)
        return (
            out * torch.linspace(-1, 1, out.numel()).view(out.shape).cos()
        ).sum() + out.square().sum()

    return torch.func.grad_and_value(value, argnums=(0, 1, 2))


@pytest.mark.parametrize(
    ("strided", "side"), [(False, 8), (True, 6)]
)  # strips of eight pixels, and of one
def test_a_cell_and_two_of_them_side_by_side(strided: bool, side: int) -> None:
    cases = [case(seed, strided, side) for seed in (0, 1)]
    together = torch.func.vmap(slopes(fused, strided))(
        *(tree.stack(list(parts)) for parts in zip(*cases, strict=True))
    )
    for r, one in enumerate(cases):
        wanted = slopes(plain, strided)(*one)
        for a, b in zip(tree.leaves(wanted), tree.leaves(tree.select(together, r)), strict=True):
            assert (a - b).norm() <= 1e-4 * a.norm() + 1e-5


def test_nas_bench_201(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norms and blends in a whole network, one run and two."""
    monkeypatch.setattr(fast, "available", lambda *_: True)
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(3, 3, 4, 4, generator=stream)
    networks = (
        NasBench201(channels=C, size=4, classes=3),
        fast.FastNasBench201(channels=C, size=4, classes=3),
    )
    points = [networks[0].start(seed) for seed in (0, 1)]
    points = [(tree.map_(lambda leaf: 300 * leaf, x), y) for x, y in points]

    def judged(network: NasBench201) -> Any:
        return torch.func.grad_and_value(
            lambda x, y: network.logits(x, y, images).square().sum(), argnums=(0, 1)
        )

    together = torch.func.vmap(judged(networks[1]))(
        *(tree.stack(list(parts)) for parts in zip(*points, strict=True))
    )
    for r, point in enumerate(points):
        wanted, found = judged(networks[0])(*point), tree.select(together, r)
        assert tree.relative_distance(found, wanted) <= 1e-4
