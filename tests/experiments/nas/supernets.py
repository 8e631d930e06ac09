"""Supernets at a point and on images, and how far their gradients lie apart: for the plain
networks, the fast ones and those on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.problem import tree
from bipareto_experiments.nas.supernet import Supernet

__all__ = ["images", "judged", "start"]


def start(
    network: Supernet, dtype: torch.dtype = torch.float64, seed: int = 0, device: str = "cpu"
) -> tuple[dict, dict]:
    """Logits far from the equal mixture, so that every weight matters."""
    x, y = tree.map_(lambda leaf: leaf.to(device, dtype), network.start(seed))
    return tree.map_(lambda leaf: 300 * leaf, x), y


def images(
    network: Supernet, dtype: torch.dtype = torch.float64, n: int = 6, device: str = "cpu"
) -> Tensor:
    return torch.randn(n, 3, network.size, network.size, dtype=dtype).to(device)


def judged(network: Supernet, batch: Tensor) -> Any:
    """(gradients in x and y, value) of a loss, as a function of (x, y)."""
    labels = torch.arange(len(batch), device=batch.device) % network.classes

    def loss(x: dict, y: dict) -> Tensor:
        return torch.nn.functional.cross_entropy(network.logits(x, y, batch), labels)

    return torch.func.grad_and_value(loss, argnums=(0, 1))
