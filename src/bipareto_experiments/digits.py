"""The demo: handwritten digits, wrong training labels, and two domains that compete for one small
network.

Domain 1 shows digits upright, domain 2 shows other digits upside down.  One network must read both
and is not told which is which; an upside-down 6 looks like a 9, and eight hidden units are few, so
it cannot please both.  Half of the training labels are wrong.

- x: one logit per training sample; the sample counts with weight sigmoid(x_j).
- y: the network, 64 pixels -> 8 tanh units -> 10 classes.
- g(x, y): the weighted training loss, wrong labels included, plus a small weight decay; nonconvex
  in y.
- f_1, f_2: the losses on small clean validation sets of the two domains.

So each preference asks which training samples to trust, given how much each domain matters.  The
data is scikit-learn's copy of 1797 images of 8x8 pixels; no image is in two domains or in two of
training, validation and test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree

if TYPE_CHECKING:
    pass

__all__ = [
    "DOMAINS",
    "HIDDEN",
    "NEWTON_STEPS",
    "NOISE",
    "REFERENCE",
    "STEPS",
    "SUPPRESSED",
    "TOLERANCE",
    "TRAIN",
    "DigitsTask",
    "digits_problem",
]

DOMAINS = ("upright", "upside-down")
CLASSES = 10
HIDDEN = 8
#: images per domain
TRAIN, VALIDATION, TEST = 300, 200, 398
#: share of the training labels of each domain that are replaced by another class
NOISE = 0.5
#: factor of ||y||^2 in g
DECAY = 2e-3
#: twice as many steps gain about one percent of hypervolume
STEPS = 3000
#: ||grad_y g|| at which the network counts as trained, and the Newton steps allowed for it
TOLERANCE, NEWTON_STEPS = 1e-4, 200
#: a sample is suppressed when it has lost half of the weight sigmoid(0) = 0.5 that it starts with
SUPPRESSED = 0.25
#: the loss of guessing all classes alike, in both domains: the corner of the hypervolume
REFERENCE = (math.log(CLASSES), math.log(CLASSES))


@dataclass(frozen=True)
class DigitsTask:
    """The problem with its start, and what is needed to judge an answer.

    problem, x0 (600,), y0: as `bipareto.front` takes them; y0 = {"W1": (8, 64), "b1": (8, 1), "W2":
        (10, 8), "b2": (10, 1)}.
    train (2, 300), validation (2, 200), test (2, 398): which images of the data set each domain
        uses, domain by domain.
    labels, noisy, domain (600,): the label each training sample was given, whether it is wrong, and
        its domain, in the order of x.
    test_images (2, 64, 398), test_labels (2, 398): for `accuracy`.
    """

    problem: Problem
    x0: Tensor
    y0: dict[str, Tensor]
    train: Tensor
    validation: Tensor
    test: Tensor
    labels: Tensor
    noisy: Tensor
    domain: Tensor
    test_images: Tensor
    test_labels: Tensor

    def accuracy(self, y: Tree) -> Tensor:
        """Share of test images read correctly by networks stacked over R runs, shape (R, 2)."""

        def one(v: Tree) -> Tensor:
            return (_network(v, self.test_images).argmax(-2) == self.test_labels).double().mean(-1)

        return torch.func.vmap(one)(y)

    def mean_weight(self, x: Tensor, noisy: bool) -> Tensor:
        """Mean weight of the samples with wrong (`noisy`) or right labels, per run and domain: (R,
        600) -> (R, 2).
        """
        weight = torch.sigmoid(x.double())
        return torch.stack(
            [
                weight[:, (self.domain == d) & (self.noisy == noisy)].mean(1)
                for d in range(len(DOMAINS))
            ],
            dim=1,
        )

    def suppressed(self, x: Tensor, noisy: bool) -> Tensor:
        """Share of the samples with wrong (`noisy`) or right labels whose weight fell below
        `SUPPRESSED`: (R, 600) -> (R,).
        """
        return (torch.sigmoid(x) < SUPPRESSED)[:, self.noisy == noisy].double().mean(1)


def digits_problem(seed: int = 0) -> DigitsTask:
    """Split the images, turn the second domain upside down, spoil half of the training labels: all
    decided by `seed`.

    >>> task = digits_problem(seed=0)
    >>> task.problem.check(task.x0, task.y0)
    2
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.as_tensor(data.images, dtype=torch.float32) / 16
    labels = torch.as_tensor(data.target, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    size = TRAIN + VALIDATION + TEST
    chosen = torch.randperm(len(images), generator=generator)[: len(DOMAINS) * size].reshape(
        len(DOMAINS), size
    )
    train, validation, test = chosen.split([TRAIN, VALIDATION, TEST], dim=1)

    pixels = images[chosen]
    pixels[1] = pixels[1].flip(-2, -1)
    # Images are columns: the classes then lie along the slow axis, which makes the compiled step
    # three times as fast.
    pixels = pixels.flatten(2).transpose(1, 2)
    # Without their mean the pixels lose one stiff direction that all images share, and the network
    # trains in a fifth of the steps.
    pixels = pixels - pixels[:, :, :TRAIN].mean((0, 2), keepdim=True)
    train_images, validation_images, test_images = pixels.split([TRAIN, VALIDATION, TEST], dim=2)

    noisy = torch.zeros(len(DOMAINS), TRAIN, dtype=torch.bool)
    for row in noisy:
        row[torch.randperm(TRAIN, generator=generator)[: round(NOISE * TRAIN)]] = True
    other = (labels[train] + torch.randint(1, CLASSES, train.shape, generator=generator)) % CLASSES
    given = torch.where(noisy, other, labels[train]).flatten()

    lower_images, lower_targets = _columns(train_images), _one_hot(given)
    upper_images, upper_targets = (
        _columns(validation_images),
        _one_hot(labels[validation].flatten()),
    )

    def upper(x: Tensor, y: Tree) -> Tensor:
        return _losses(y, upper_images, upper_targets).reshape(len(DOMAINS), VALIDATION).mean(1)

    def lower(x: Tensor, y: Tree) -> Tensor:
        return (
            torch.sigmoid(x) * _losses(y, lower_images, lower_targets)
        ).mean() + DECAY * tree.squared_norm(y)

    return DigitsTask(
        problem=Problem(upper, lower, names=[f"{name} digits" for name in DOMAINS]),
        x0=torch.zeros(len(DOMAINS) * TRAIN),
        y0={
            "W1": torch.randn(HIDDEN, 64, generator=generator) / math.sqrt(64),
            "b1": torch.zeros(HIDDEN, 1),
            "W2": torch.randn(CLASSES, HIDDEN, generator=generator) / math.sqrt(HIDDEN),
            "b2": torch.zeros(CLASSES, 1),
        },
        train=train,
        validation=validation,
        test=test,
        labels=given,
        noisy=noisy.flatten(),
        domain=torch.arange(len(DOMAINS)).repeat_interleave(TRAIN),
        test_images=test_images.contiguous(),
        test_labels=labels[test],
    )


def _columns(images: Tensor) -> Tensor:
    """(domains, 64, n) -> (64, domains * n)."""
    return images.transpose(0, 1).flatten(1).contiguous()


def _one_hot(labels: Tensor) -> Tensor:
    """(n,) -> (10, n).  Products with these columns batch and compile better than a gather by
    label.
    """
    return torch.nn.functional.one_hot(labels, CLASSES).T.float().contiguous()


def _network(y: Tree, images: Tensor) -> Tensor:
    """Logits (..., 10, n) of images (..., 64, n)."""
    return y["W2"] @ torch.tanh(y["W1"] @ images + y["b1"]) + y["b2"]


def _losses(y: Tree, images: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each image (64, n) with its one-hot target (10, n), shape (n,)."""
    logits = _network(y, images)
    return torch.logsumexp(logits, 0) - (logits * targets).sum(0)
