"""A problem of your own: two levels, several objectives.  Change what you need.

x weighs two kinds of training images, upright and upside-down digits; y is a small network that is
trained on the weighted images; the objectives are its losses on new images of either kind.  A small
network cannot have both.

    bipareto front problem:digits --steps 300 --preferences 5 --out runs/first
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp


def digits(hidden: int = 8, size: int = 128) -> tuple[bp.Problem, Any, Any]:
    """Return (problem, x0, y0).  Commands call this with what `-o hidden=16` says, and once more to
    resume a run: it must return the same each time.

    Args:
        hidden: units of the network.
        size: images in a batch.
    """
    torch.manual_seed(0)  # the same network at every call
    pixels, label = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    kinds = [pixels.float() / 16, pixels.flip(1).float() / 16]

    def images(kind: int, rows: slice) -> TensorDataset:
        return TensorDataset(kinds[kind][rows], label[rows], torch.full_like(label[rows], kind))

    seen, new, unseen = slice(900), slice(900, 1400), slice(1400, None)
    training = DataLoader(images(0, seen) + images(1, seen), size, shuffle=True)
    judging = [DataLoader(images(kind, new), size, shuffle=True) for kind in (0, 1)]
    testing = [DataLoader(images(kind, unseen), size) for kind in (0, 1)]

    net = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))

    def lower(x: Tensor, y: Any, batch: Any) -> Tensor:
        """g: what training minimises over y."""
        image, target, kind = batch
        weight = x.softmax(0)[kind]
        return weight @ cross_entropy(y(image), target, reduction="none") / len(target)

    def loss(x: Tensor, y: Any, batch: Any) -> Tensor:
        """f_i: what you want to be small, one for each of `judging`."""
        return cross_entropy(y(batch[0]), batch[1])

    return bp.Problem.from_modules(
        x=torch.zeros(2),
        y=net,
        lower=lower,
        lower_data=training,
        upper=[loss, loss],
        upper_data=judging,
        test_data=testing,
        names=["upright", "upside down"],
    )
