"""The problem of both loops: how much upright and turned digits count in the training of a net."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp

torch.manual_seed(0)
pixels, label = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
kinds = [pixels.float() / 16, pixels.flip(1).float() / 16]


def images(kind, rows):
    return TensorDataset(kinds[kind][rows], label[rows], torch.full_like(label[rows], kind))


def loaders():
    """Name -> loader of training images, of new upright and of new turned ones."""
    train, new = images(0, slice(900)) + images(1, slice(900)), slice(900, None)
    parts = {"train": train, "upright": images(0, new), "turned": images(1, new)}
    return {
        name: DataLoader(part, 64, shuffle=True, drop_last=True) for name, part in parts.items()
    }


def lower(x, y, batch):
    image, target, kind = batch
    return x.softmax(0)[kind] @ cross_entropy(y(image), target, reduction="none") / len(target)


def loss(x, y, batch):
    return cross_entropy(y(batch[0]), batch[1])


def problem_of(net):
    train, *new = loaders().values()
    return bp.Problem.from_modules(
        x=torch.zeros(2), y=net, lower=lower, lower_data=train, upper=[loss, loss], upper_data=new
    )


def method():
    return bp.Twin(alpha_x=0.05, alpha_y=0.01)
