"""Thirteen small networks with three sets of data each: for g, for f, and to judge by.

All are made of scikit-learn's digits.  x and y are flat vectors, so that every rival can take them.
Those of `DEVELOPMENT` were used while the default was developed, the others were not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

__all__ = ["DEVELOPMENT", "PROBLEMS", "UNTOUCHED", "NetworkProblem"]

Batch = tuple[Tensor, ...]
Rows = Tensor
Loss = Callable[[Tensor, Tensor, Batch], Tensor]


@dataclass
class NetworkProblem:
    """f (m,) and g on batches; x0, y0; the box that searches get, where x has few coordinates."""

    name: str
    m: int
    x0: Tensor
    y0: Tensor
    g: Loss
    f: Loss
    lower: Batch
    upper: Batch
    test: Batch
    box: tuple[Tensor, Tensor] | None = None
    size: int = 64


class Layout:
    """Names the shapes of a network's parameters inside a flat vector."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.shapes = shapes
        self.sizes = [math.prod(shape) for shape in shapes]

    def __call__(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def start(self, stream: torch.Generator, ones: tuple[int, ...] = ()) -> Tensor:
        parts = []
        for i, shape in enumerate(self.shapes):
            if i in ones:
                part = torch.ones(shape)
            elif len(shape) > 1:
                part = torch.randn(shape, generator=stream) / math.sqrt(math.prod(shape[1:]))
            else:
                part = torch.zeros(shape)
            parts.append(part.flatten())
        return torch.cat(parts)


@cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def split(seed: int, number: int, *counts: int) -> tuple[list[Rows], torch.Generator]:
    """Disjoint rows for g, f and the test, and the stream that goes on from there."""
    stream = torch.Generator().manual_seed(1000 * number + seed)
    order = torch.randperm(len(digits()[0]), generator=stream)
    return list(order[: sum(counts)].split(list(counts))), stream


def flipped(images: Tensor) -> Tensor:
    return images.view(-1, 8, 8).flip(1).flatten(1)


def transposed(images: Tensor) -> Tensor:
    return images.view(-1, 8, 8).transpose(1, 2).flatten(1)


def noise_like(images: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(images.shape, generator=stream)


def mislabel(target: Tensor, chosen: Tensor, stream: torch.Generator) -> None:
    """Draw the chosen labels anew, in place."""
    target[chosen] = torch.randint(10, (int(chosen.sum()),), generator=stream)


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def smoothed(logits: Tensor, labels: Tensor, smoothing: Tensor) -> Tensor:
    logs = logits.log_softmax(1)
    return -(1 - smoothing) * logs.gather(1, labels[:, None])[:, 0] - smoothing * logs.mean(1)


def by_group(values: Tensor, group: Tensor, m: int) -> Tensor:
    """The mean of the values in each of m groups."""
    return torch.stack(
        [(values * (group == i)).sum() / ((group == i).sum() + 1e-6) for i in range(m)]
    )


def batch_norm(z: Tensor, scale: Tensor, shift: Tensor, dims: tuple[int, ...] = (0,)) -> Tensor:
    shape = [1] * z.dim()
    shape[1] = -1
    centred = z - z.mean(dims, keepdim=True)
    root = torch.sqrt(z.var(dims, keepdim=True, unbiased=False) + 1e-5)
    return centred / root * scale.view(shape) + shift.view(shape)


def layer_norm(z: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    centred = z - z.mean(-1, keepdim=True)
    return centred / torch.sqrt(z.var(-1, keepdim=True, unbiased=False) + 1e-5) * scale + shift


Network = Callable[[Tensor, Tensor], Tensor]


def perceptron(hidden: int, norm: bool = False) -> tuple[Layout, Network]:
    if norm:
        layout = Layout((hidden, 64), (hidden,), (hidden,), (hidden,), (10, hidden), (10,))
    else:
        layout = Layout((hidden, 64), (hidden,), (10, hidden), (10,))

    def network(y: Tensor, images: Tensor) -> Tensor:
        weight, bias, *between, head, offset = layout(y)
        z = images @ weight.T + bias
        return (batch_norm(z, *between) if norm else z).relu() @ head.T + offset

    return layout, network


def groups_of(network: Network, m: int) -> Loss:
    def f(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return by_group(losses(network(y, batch[0]), batch[1]), batch[2], m)

    return f


def samples_weighed(network: Network) -> Loss:
    """g with a weight for each sample, whose place in x is the last of a batch."""

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        weight = x[batch[3]].sigmoid() * 2
        return (weight * losses(network(y, batch[0]), batch[1])).mean() + 1e-4 * y.square().sum()

    return g


def domains_weighed(network: Network) -> Loss:
    """g with a logit for each domain of a mixture."""

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        weight = x.softmax(0) * len(x)
        return (weight[batch[2]] * losses(network(y, batch[0]), batch[1])).mean()

    return g


def box(low: Any, high: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(low) * torch.ones_like(like), torch.as_tensor(high) * torch.ones_like(
        like
    )


def two_kinds(
    rows: Rows,
    stream: torch.Generator,
    turn: Callable[[Tensor], Tensor],
    wrong: float = 0.0,
    blur: float = 0.0,
) -> Batch:
    """Half of the rows as they are and half turned, with a share of wrong labels and noise."""
    images, labels = digits()
    half = len(rows) // 2
    pixels = torch.cat([images[rows[:half]], turn(images[rows[half:]])])
    if blur:
        pixels = pixels + blur * noise_like(pixels, stream)
    target, kind = labels[rows].clone(), (torch.arange(len(rows)) >= half).long()
    if wrong:
        mislabel(target, torch.rand(len(target), generator=stream) < wrong, stream)
    return pixels, target, kind


def mixture(seed: int) -> NetworkProblem:
    """4 logits of a mixture of four domains, one with random labels; losses on the other three."""
    (train, valid, test), stream = split(seed, 1, 500, 500, 700)
    layout, network = perceptron(24)
    images, labels = digits()

    def made(rows: Rows, count: int) -> Batch:
        own = images[rows]
        every = [
            own,
            flipped(own),
            own + 0.6 * noise_like(own, stream),
            (1 - own.view(-1, 8, 8)).transpose(1, 2).flatten(1),
        ]
        target = [labels[rows]] * 3 + [
            torch.randint(10, rows.shape, generator=stream) if count == 4 else labels[rows]
        ]
        kind = [torch.full_like(labels[rows], i) for i in range(count)]
        return torch.cat(every[:count]), torch.cat(target[:count]), torch.cat(kind)

    data = [made(train, 4), made(valid, 3), made(test, 3)]
    g, x0 = domains_weighed(network), torch.zeros(4)
    return NetworkProblem(
        "mixture", 3, x0, layout.start(stream), g, groups_of(network, 3), *data,
        box(-4.0, 4.0, x0), 96,
    )  # fmt: skip


def decay(seed: int) -> NetworkProblem:
    """Two log decays, a label smoothing, two group logits; BatchNorm, a fifth of labels wrong."""
    (train, valid, test), stream = split(seed, 2, 240, 500, 900)
    layout, network = perceptron(32, norm=True)
    data = [
        two_kinds(rows, stream, flipped, wrong, 0.2)
        for rows, wrong in ((train, 0.2), (valid, 0.0), (test, 0.0))
    ]

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        parts, rate, weight = layout(y), x[:2].exp(), x[3:5].softmax(0) * 2
        value = smoothed(network(y, batch[0]), batch[1], x[2].sigmoid())
        penalty = rate[0] * parts[0].square().sum() + rate[1] * parts[4].square().sum()
        return (weight[batch[2]] * value).mean() + penalty

    x0 = torch.tensor([-7.0, -7.0, -3.0, 0.0, 0.0])
    limits = box([-12.0, -12.0, -5.0, -2.0, -2.0], [0.0, 0.0, 2.0, 2.0, 2.0], x0)
    start = layout.start(stream, ones=(2,))
    return NetworkProblem("decay", 2, x0, start, g, groups_of(network, 2), *data, limits)


def cleaning(seed: int) -> NetworkProblem:
    """A weight for each of 600 samples, half of whose labels are wrong."""
    (train, valid, test), stream = split(seed, 3, 600, 400, 750)
    layout, network = perceptron(24)
    data = [
        two_kinds(rows, stream, flipped, wrong)
        for rows, wrong in ((train, 0.5), (valid, 0.0), (test, 0.0))
    ]
    data[0] = (*data[0], torch.arange(600))

    start, g = layout.start(stream), samples_weighed(network)
    return NetworkProblem("cleaning", 2, torch.zeros(600), start, g, groups_of(network, 2), *data)


def features(seed: int) -> NetworkProblem:
    """780 weights of a layer of features; y are two linear heads, for digits and for another
    labelling.
    """
    (train, valid, test), stream = split(seed, 4, 300, 600, 800)
    images, labels = digits()
    width = 12
    trunk, heads = Layout((width, 64), (width,)), Layout((10, width), (10,), (5, width), (5,))
    first = torch.randn(64, 20, generator=stream) / 8
    second = torch.randn(20, 5, generator=stream)
    other = (torch.tanh((images - 0.3) @ first * 2) @ second).argmax(1)
    data = [
        (images[rows] + 0.2 * noise_like(images[rows], stream), labels[rows], other[rows])
        for rows in (train, valid, test)
    ]

    def f(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        weight, bias = trunk(x)
        a, a0, b, b0 = heads(y)
        z = torch.tanh(batch[0] @ weight.T + bias)
        return torch.stack(
            [F.cross_entropy(z @ a.T + a0, batch[1]), F.cross_entropy(z @ b.T + b0, batch[2])]
        )

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return f(x, y, batch).sum() + 1e-3 * y.square().sum()

    return NetworkProblem("features", 2, trunk.start(stream), torch.zeros(195), g, f, *data)


def turned(images: Tensor, way: Tensor) -> Tensor:
    """Each image in its own of four ways."""
    ways = torch.stack([images, flipped(images), transposed(images), 1 - images], 1)
    return ways[torch.arange(len(images)), way]


def groups(seed: int) -> NetworkProblem:
    """Weights and temperatures of four groups of unequal size, one loss each."""
    (train, valid, test), stream = split(seed, 5, 600, 500, 690)
    layout, network = perceptron(32)
    images, labels = digits()

    def made(rows: Rows, balanced: bool) -> Batch:
        count = len(rows)
        group = (
            torch.randint(4, (count,), generator=stream)
            if balanced
            else torch.multinomial(
                torch.tensor([0.4, 0.3, 0.2, 0.1]), count, True, generator=stream
            )
        )
        pixels = turned(images[rows], group)
        return pixels + 0.2 * noise_like(pixels, stream), labels[rows], group

    data = [made(train, False), made(valid, True), made(test, True)]

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        weight, heat = x[:4].softmax(0) * 4, x[4:8].exp()
        logits = network(y, batch[0]) * heat[batch[2]][:, None]
        return (weight[batch[2]] * losses(logits, batch[1])).mean() + 1e-3 * y.square().sum()

    x0 = torch.zeros(8)
    return NetworkProblem(
        "groups", 4, x0, layout.start(stream), g, groups_of(network, 4), *data,
        box(-2.5, 2.5, x0), 96,
    )  # fmt: skip


def cnnmix(seed: int) -> NetworkProblem:
    """4 logits of a mixture of four domains, one systematically mislabelled; a CNN with
    BatchNorm.
    """
    (train, valid, test), stream = split(seed, 6, 300, 400, 800)
    images, labels = digits()
    c = 6
    layout = Layout(
        (c, 1, 3, 3), (c,), (c,), (2 * c, c, 3, 3), (2 * c,), (2 * c,), (10, 8 * c), (10,)
    )

    def network(y: Tensor, pixels: Tensor) -> Tensor:
        first, s, o, second, s2, o2, head, bias = layout(y)
        z = F.conv2d(pixels.view(-1, 1, 8, 8), first, padding=1)
        z = F.avg_pool2d(batch_norm(z, s, o, (0, 2, 3)).relu(), 2)
        z = batch_norm(F.conv2d(z, second, padding=1), s2, o2, (0, 2, 3)).relu()
        return F.avg_pool2d(z, 2).flatten(1) @ head.T + bias

    def made(rows: Rows, count: int) -> Batch:
        own = images[rows]
        square = own.view(-1, 8, 8)
        every = [
            own,
            square.rot90(1, (1, 2)).flatten(1),
            square.roll(2, 2).flatten(1) + 0.5 * noise_like(own, stream),
            square.flip(2).flatten(1),
        ]
        target = [labels[rows]] * 3 + [(labels[rows] + 1) % 10]
        kind = [torch.full_like(labels[rows], i) for i in range(count)]
        return torch.cat(every[:count]), torch.cat(target[:count]), torch.cat(kind)

    data = [made(train, 4), made(valid, 3), made(test, 3)]
    g, x0 = domains_weighed(network), torch.zeros(4)
    start = layout.start(stream, ones=(1, 4))
    return NetworkProblem(
        "cnnmix", 3, x0, start, g, groups_of(network, 3), *data, box(-4.0, 4.0, x0)
    )


def augment(seed: int) -> NetworkProblem:
    """Strengths of noise, masking, fading and label smoothing; clean, noisy and occluded digits."""
    (train, valid, test), stream = split(seed, 7, 250, 600, 900)
    layout, network = perceptron(32)
    images, labels = digits()

    def made(rows: Rows) -> Batch:
        count = len(rows)
        kind = torch.randint(3, (count,), generator=stream)
        own = images[rows]
        noisy = own + 0.7 * noise_like(own, stream)
        mask = torch.ones(count, 8, 8)
        first = torch.randint(0, 5, (count,), generator=stream)
        for i, row in enumerate(first.tolist()):
            mask[i, row : row + 3] = 0
        every = torch.stack([own, noisy, own * mask.flatten(1)], 1)
        return every[torch.arange(count), kind], labels[rows], kind

    copies = 8
    count = copies * len(train)
    lower = (
        images[train].repeat(copies, 1),
        labels[train].repeat(copies),
        torch.randn(count, 64, generator=stream),
        torch.rand(count, 64, generator=stream),
        torch.rand(count, generator=stream),
    )
    data = [lower, made(valid), made(test)]

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        pixels, target, noise, chance, fade = batch
        z = pixels + x[0].exp() * noise
        z = z * ((chance - x[1].sigmoid() * 0.8) * 10).sigmoid()
        share = x[2].sigmoid() * fade[:, None]
        z = (1 - share) * z + share * z.mean(1, keepdim=True)
        return smoothed(network(y, z), target, x[3].sigmoid() * 0.5).mean()

    x0 = torch.full((4,), -4.0)
    return NetworkProblem(
        "augment", 3, x0, layout.start(stream), g, groups_of(network, 3), *data,
        box(-5.0, [1.0, 3.0, 3.0, 3.0], x0),
    )  # fmt: skip


def initialisation(seed: int) -> NetworkProblem:
    """9,610 weights towards which a network is pulled while it learns from 120 images; four
    domains.
    """
    (train, valid, test), stream = split(seed, 8, 120, 900, 700)
    images, labels = digits()
    width = 128
    layout = Layout((width, 64), (width,), (10, width), (10,))

    def network(y: Tensor, pixels: Tensor) -> Tensor:
        weight, bias, head, offset = layout(y)
        return torch.tanh(pixels @ weight.T + bias) @ head.T + offset

    def made(rows: Rows) -> Batch:
        group = torch.randint(4, (len(rows),), generator=stream)
        return turned(images[rows], group), labels[rows], group

    data = [made(rows) for rows in (train, valid, test)]

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return losses(network(y, batch[0]), batch[1]).mean() + 0.02 * (y - x).square().sum()

    start = layout.start(stream)
    return NetworkProblem(
        "initialisation", 4, start.clone(), start, g, groups_of(network, 4), *data, None, 96
    )


def transformer(seed: int) -> NetworkProblem:
    """Ten class weights and two log decays of a small transformer with LayerNorm; half of the
    classes are rare.
    """
    (train, valid, test), stream = split(seed, 9, 500, 500, 750)
    images, labels = digits()
    d = 16
    layout = Layout(
        (d, 8), (8, d), (3 * d, d), (d, d), (d,), (d,), (2 * d, d), (2 * d,), (d, 2 * d), (d,),
        (d,), (d,), (10, d), (10,),
    )  # fmt: skip
    train = train[(labels[train] < 5) | (torch.rand(len(train), generator=stream) < 0.2)]
    data = [
        (
            images[rows] + 0.25 * noise_like(images[rows], stream),
            labels[rows],
            (labels[rows] >= 5).long(),
        )
        for rows in (train, valid, test)
    ]
    target = data[0][1].clone()
    mislabel(target, torch.rand(len(target), generator=stream) < 0.15, stream)
    data[0] = (data[0][0], target, data[0][2])

    def network(y: Tensor, pixels: Tensor) -> Tensor:
        embed, place, mix, out, s, o, up, up0, down, down0, s2, o2, head, bias = layout(y)
        z = pixels.view(-1, 8, 8) @ embed.T + place
        n = len(z)
        q, k, v = (layer_norm(z, s, o) @ mix.T).view(n, 8, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-1, -2) / math.sqrt(d // 2)).softmax(-1) @ v
        z = z + attention.permute(0, 2, 1, 3).reshape(n, 8, d) @ out.T
        z = z + (layer_norm(z, s2, o2) @ up.T + up0).relu() @ down.T + down0
        return z.mean(1) @ head.T + bias

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        parts, rate, weight = layout(y), x[10:12].exp(), x[:10].softmax(0) * 10
        first = sum(parts[i].square().sum() for i in (0, 2, 3))
        second = sum(parts[i].square().sum() for i in (6, 8, 12))
        value = (weight[batch[1]] * losses(network(y, batch[0]), batch[1])).mean()
        return value + rate[0] * first + rate[1] * second

    x0 = torch.cat([torch.zeros(10), torch.full((2,), -8.0)])
    limits = box([-2.0] * 10 + [-11.0] * 2, [2.0] * 10 + [-2.0] * 2, x0)
    start = layout.start(stream, ones=(4, 10))
    return NetworkProblem("transformer", 2, x0, start, g, groups_of(network, 2), *data, limits)


def weigher(seed: int) -> NetworkProblem:
    """913 weights of a network that looks at image and label and weighs the sample; BatchNorm."""
    (train, valid, test), stream = split(seed, 10, 500, 400, 850)
    layout, network = perceptron(24, norm=True)
    judge = Layout((12, 74), (12,), (1, 12), (1,))
    data = [two_kinds(rows, stream, transposed) for rows in (train,)]
    pixels, target, _ = data[0]
    bright = pixels.mean(1) > pixels.mean(1).median()
    mislabel(target, (torch.rand(len(target), generator=stream) < 0.6) & bright, stream)
    data += [two_kinds(rows, stream, transposed) for rows in (valid, test)]

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        a, a0, b, b0 = judge(x)
        seen = torch.cat([batch[0], F.one_hot(batch[1], 10).float()], 1)
        weight = (torch.tanh(seen @ a.T + a0) @ b.T + b0).sigmoid()[:, 0] * 2
        return (weight * losses(network(y, batch[0]), batch[1])).mean() + 1e-4 * y.square().sum()

    judge.start(stream)  # one draw of the stream that nothing uses
    x0 = torch.cat(
        [
            judge.start(stream)[: 12 * 74],
            torch.zeros(12),
            0.1 * torch.randn(12, generator=stream),
            torch.zeros(1),
        ]
    )
    start = layout.start(stream, ones=(2,))
    return NetworkProblem("weigher", 2, x0, start, g, groups_of(network, 2), *data)


def scorer(seed: int) -> NetworkProblem:
    """75 weights of a linear score of image and label that weighs the sample; two domains, and half
    of the labels of images with a bright upper half are wrong.
    """
    (train, valid, test), stream = split(seed, 11, 400, 400, 900)
    layout, network = perceptron(20)
    pixels, target, kind = two_kinds(train, stream, flipped)
    bright = pixels[:, :32].mean(1) > pixels[:, :32].mean(1).median()
    mislabel(target, (torch.rand(len(target), generator=stream) < 0.5) & bright, stream)
    data = [(pixels, target, kind), *(two_kinds(rows, stream, flipped) for rows in (valid, test))]

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        seen = torch.cat([batch[0], F.one_hot(batch[1], 10).float()], 1)
        weight = (seen @ x[:74] + x[74]).sigmoid() * 2
        return (weight * losses(network(y, batch[0]), batch[1])).mean() + 1e-4 * y.square().sum()

    x0 = 0.05 * torch.randn(75, generator=stream)
    return NetworkProblem("scorer", 2, x0, layout.start(stream), g, groups_of(network, 2), *data)


def shortmix(seed: int) -> NetworkProblem:
    """3 logits of a mixture of plain, turned and mislabelled digits under a small budget; a
    perceptron with BatchNorm.
    """
    (train, valid, test), stream = split(seed, 12, 250, 400, 900)
    layout, network = perceptron(32, norm=True)
    images, labels = digits()

    def made(rows: Rows, count: int) -> Batch:
        own = images[rows] + 0.3 * noise_like(images[rows], stream)
        every = [own, transposed(own).flip(1), own.flip(1)]
        target = [labels[rows], labels[rows], (labels[rows] + 3) % 10]
        kind = [torch.full_like(labels[rows], i) for i in range(count)]
        return torch.cat(every[:count]), torch.cat(target[:count]), torch.cat(kind)

    data = [made(train, 3), made(valid, 2), made(test, 2)]

    g = domains_weighed(network)
    x0, start = torch.zeros(3), layout.start(stream, ones=(2,))
    return NetworkProblem(
        "shortmix", 2, x0, start, g, groups_of(network, 2), *data, box(-4.0, 4.0, x0)
    )


def quarters(seed: int) -> NetworkProblem:
    """A weight for each of 600 samples of four domains, of which 0, 20, 40 and 60 % have wrong
    labels; a loss for each domain.
    """
    (train, valid, test), stream = split(seed, 13, 600, 480, 700)
    layout, network = perceptron(24)
    images, labels = digits()

    def made(rows: Rows, wrong: float) -> Batch:
        kind = torch.arange(len(rows)) % 4
        target = labels[rows].clone()
        mislabel(target, torch.rand(len(rows), generator=stream) < wrong * kind, stream)
        return turned(images[rows], kind), target, kind

    data = [made(train, 0.2), made(valid, 0.0), made(test, 0.0)]
    data[0] = (*data[0], torch.arange(600))

    start, g = layout.start(stream), samples_weighed(network)
    return NetworkProblem("quarters", 4, torch.zeros(600), start, g, groups_of(network, 4), *data)


DEVELOPMENT = {
    f.__name__: f for f in (mixture, decay, cleaning, features, groups, scorer, shortmix, quarters)
}
UNTOUCHED = {f.__name__: f for f in (augment, weigher, initialisation, transformer, cnnmix)}
PROBLEMS = DEVELOPMENT | UNTOUCHED
