"""Networks as other people train them: eight problems on which no rule of this library was made.

Each maker takes a seed (of the data, the split and the starts) and gives the problem as a user
would write it, and what an independent judge needs: the modules, the plain functions, the tensors,
and data that neither level sees.  Objectives keep the units that their users think in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    mse_loss,
    multi_margin_loss,
)
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp

__all__ = ["NETWORKS", "Network", "Rows", "digits", "loader", "split"]

Rows = tuple[Tensor, ...]


@dataclass(frozen=True)
class Network:
    """A problem, its start, and what a judge needs.

    x, y: what was given to `from_modules`; losses: (x, y, batch) -> (), with the real modules.
    train, valid: the tensors of g and of every f_i, drawn in batches of `size`; unseen: of every
    f_i, whole.
    box: the range of each coordinate in which one would search x by hand; None if nobody would.
    """

    problem: bp.Problem
    x0: Any
    y0: Any
    x: Any
    y: nn.Module
    lower: Callable[[Any, Any, Any], Tensor]
    upper: Sequence[Callable[[Any, Any, Any], Tensor]]
    train: Rows
    valid: Sequence[Rows]
    unseen: Sequence[Rows]
    size: int
    box: tuple[float, float] | None = None


def loader(rows: Rows, size: int) -> DataLoader[Any]:
    """Batches of so many rows in random order."""
    return DataLoader(TensorDataset(*rows), batch_size=size, shuffle=True)


def split(rows: Rows, *counts: int) -> list[Rows]:
    """The rows in random order, cut into parts of so many and a rest."""
    order = torch.randperm(len(rows[0]))
    ends = [*torch.tensor(counts).cumsum(0), len(order)]
    starts = [0, *ends[:-1]]
    return [tuple(column[order[a:b]] for column in rows) for a, b in zip(starts, ends, strict=True)]


def digits() -> tuple[Tensor, Tensor]:
    """Pixels from 0 to 16 and labels of scikit-learn's 1,797 digits."""
    pixels, labels = datasets.load_digits(return_X_y=True)
    return torch.as_tensor(pixels, dtype=torch.float32), torch.as_tensor(labels)


def fair_credit(seed: int) -> Network:
    """One number, the strength of a fairness penalty: log loss of a credit score, against the
    difference between two groups' mean scores in per cent.
    """
    torch.manual_seed(seed)
    group = (torch.rand(3600) < 0.35).float()
    features = torch.randn(3600, 8) + 0.8 * group[:, None] * torch.tensor(
        [1.0, -1, 1, 0, 0, 0, 0, 0]
    )
    merit = features @ torch.tensor([0.5, -1.0, 0.3, 1.0, -0.7, 0.0, 0.4, 0.0])
    paid = (merit + 0.6 * features[:, 3] * features[:, 4] - group + torch.randn(3600) > 0).float()
    train, valid, unseen = split((torch.cat([features, group[:, None]], 1), paid), 1000, 600)

    strength = torch.tensor(0.0)
    net = nn.Sequential(
        nn.Linear(9, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
    )

    def log_loss(x: Any, y: Any, batch: Rows) -> Tensor:
        return binary_cross_entropy_with_logits(y(batch[0]).squeeze(-1), batch[1])

    def gap(x: Any, y: Any, batch: Rows) -> Tensor:
        score, member = y(batch[0]).squeeze(-1).sigmoid(), batch[0][:, -1] == 1
        return 100 * (score[member].mean() - score[~member].mean()).abs()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        return log_loss(x, y, batch) + x.exp() * (gap(x, y, batch) / 100) ** 2

    upper = [log_loss, gap]
    start = bp.Problem.from_modules(
        x=strength, y=net, lower=lower, lower_data=loader(train, 128),
        upper=upper, upper_data=loader(valid, 200), names=["log loss", "gap in %"],
    )  # fmt: skip
    return Network(
        *start, strength, net, lower, upper, train, [valid] * 2, [unseen] * 2, 128, (-4, 6)
    )


def diabetes(seed: int) -> Network:
    """Tilt of a quantile loss and decay of each layer: squared error of a disease's progression and
    pinball losses of its 90th and 10th percentile, all in the raw units of the target.
    """
    torch.manual_seed(seed)
    columns, target = datasets.load_diabetes(return_X_y=True)
    rows = (
        torch.as_tensor(columns, dtype=torch.float32),
        torch.as_tensor(target, dtype=torch.float32),
    )
    train, valid, unseen = split(rows, 180, 110)

    class Regressor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.BatchNorm1d(10), nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1)
            )
            self.register_buffer("mean", train[1].mean())
            self.register_buffer("std", train[1].std())

        def forward(self, columns: Tensor) -> Tensor:
            return self.layers(columns).squeeze(-1) * self.std + self.mean

    x, net = torch.tensor([0.0, -3.0, -3.0]), Regressor()

    def pinball(q: Any) -> Any:
        def loss(x: Any, y: Any, batch: Rows) -> Tensor:
            error = batch[1] - y(batch[0])
            return torch.maximum(q * error, (q - 1) * error).mean()

        return loss

    def squared(x: Any, y: Any, batch: Rows) -> Tensor:
        return mse_loss(y(batch[0]), batch[1])

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        tilt, *decay = x.unbind()
        weights = y.layers[1].weight, y.layers[3].weight
        penalty = sum(d.exp() * w.square().sum() for d, w in zip(decay, weights, strict=True))
        return pinball(tilt.sigmoid())(x, y, batch) + penalty

    upper = [squared, pinball(0.9), pinball(0.1)]
    start = bp.Problem.from_modules(
        x=x, y=net, lower=lower, lower_data=loader(train, 60),
        upper=upper, upper_data=loader(valid, 110),
    )  # fmt: skip
    return Network(*start, x, net, lower, upper, train, [valid] * 3, [unseen] * 3, 60, (-4, 4))


def horizons(seed: int) -> Network:
    """A weight for each of twelve forecast horizons of a GRU over six weather stations: squared
    error of the next hour in square degrees, absolute error of the last six hours in degrees.
    """
    torch.manual_seed(seed)
    hours, stations = torch.arange(420.0), 6
    base, swing = 8 + 4 * torch.randn(stations, 1), 5 + 3 * torch.rand(stations, 1)
    drift = torch.zeros(stations, len(hours))
    for t in range(1, len(hours)):
        drift[:, t] = 0.95 * drift[:, t - 1] + 0.7 * torch.randn(stations)
    degrees = base + swing * torch.sin(2 * torch.pi * (hours + 2 * torch.randn(stations, 1)) / 24)
    degrees = degrees + drift + 0.5 * torch.randn_like(drift)
    windows = degrees.unfold(1, 28, 2)  # 16 hours seen, 12 to come
    windows = windows.reshape(-1, 28)
    where = torch.arange(stations).repeat_interleave(len(windows) // stations)
    train, valid, unseen = split((windows[:, :16], where, windows[:, 16:]), 400, 240)

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.station = nn.Embedding(stations, 3)
            self.gru = nn.GRU(4, 10, batch_first=True)
            self.head = nn.Linear(10, 12)

        def forward(self, seen: Tensor, where: Tensor) -> Tensor:
            place = self.station(where)[:, None].expand(-1, seen.shape[1], -1)
            states, _ = self.gru(torch.cat([(seen[..., None] - 8) / 8, place], -1))
            return self.head(states[:, -1]) * 8 + 8

    weights, net = torch.zeros(12), Forecaster()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        seen, where, coming = batch
        errors = huber_loss(y(seen, where), coming, reduction="none", delta=2.0)
        return (errors * x.softmax(0)).sum(1).mean()

    def soon(x: Any, y: Any, batch: Rows) -> Tensor:
        return mse_loss(y(*batch[:2])[:, 0], batch[2][:, 0])

    def late(x: Any, y: Any, batch: Rows) -> Tensor:
        return (y(*batch[:2])[:, 6:] - batch[2][:, 6:]).abs().mean()

    upper = [soon, late]
    start = bp.Problem.from_modules(
        x=weights, y=net, lower=lower, lower_data=loader(train, 40),
        upper=upper, upper_data=loader(valid, 60),
    )  # fmt: skip
    return Network(
        *start, weights, net, lower, upper, train, [valid] * 2, [unseen] * 2, 40, (-3, 3)
    )


class _Adjustment(nn.Module):
    """Per class a log-weight and a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(10))
        self.margin = nn.Parameter(torch.zeros(10))


def longtail(seed: int) -> Network:
    """Weights and margins of ten classes for a convolutional network on long-tailed digits: cross
    entropy of the frequent classes, hinge loss of the rare ones.
    """
    torch.manual_seed(seed)
    pixels, labels = digits()
    pool, valid, unseen = split((pixels.view(-1, 1, 8, 8) / 16, labels), 800, 400)
    rank = torch.stack([(pool[1][:i] == pool[1][i]).sum() for i in range(800)])
    kept = rank < (60 * 0.62 ** pool[1].float()).ceil()  # 60 zeros, and one nine
    train = pool[0][kept], pool[1][kept]
    frequent, rare = (
        [tuple(column[(part[1] >= 5) == late] for column in part) for part in (valid, unseen)]
        for late in (False, True)
    )

    adjustment = _Adjustment()
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        images, wanted = batch
        losses = cross_entropy(y(images) + x.margin, wanted, reduction="none")
        return (x.log_weight[wanted].exp() * losses).mean()

    upper = [
        lambda x, y, batch: cross_entropy(y(batch[0]), batch[1]),
        lambda x, y, batch: multi_margin_loss(y(batch[0]), batch[1]),
    ]
    start = bp.Problem.from_modules(
        x=adjustment, y=net, lower=lower, lower_data=loader(train, 50),
        upper=upper, upper_data=[loader(frequent[0], 64), loader(rare[0], 64)],
    )  # fmt: skip
    return Network(
        *start, adjustment, net, lower, upper, train,
        [frequent[0], rare[0]], [frequent[1], rare[1]], 50, (-3, 3),
    )  # fmt: skip


def sensors(seed: int) -> Network:
    """How well to measure each of 64 pixels for a denoising autoencoder: its squared error per
    image in grey levels, against the price of the sensors.
    """
    torch.manual_seed(seed)
    pixels, _ = digits()
    train, valid, unseen = split((pixels, torch.randn_like(pixels)), 700, 400)
    quality = nn.Parameter(torch.zeros(64))
    net = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 64))

    def error(x: Any, y: Any, batch: Rows) -> Tensor:
        clean, noise = batch[0] / 16, batch[1]
        return (
            256
            * mse_loss(y(x.sigmoid() * clean + 0.3 * noise), clean, reduction="sum")
            / len(clean)
        )

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        return error(x, y, batch) / 64

    def price(x: Any, y: Any, batch: Rows) -> Tensor:
        return x.sigmoid().sum()

    upper = [error, price]
    start = bp.Problem.from_modules(
        x=quality, y=net, lower=lower, lower_data=loader(train, 100),
        upper=upper, upper_data=loader(valid, 100),
    )  # fmt: skip
    return Network(*start, quality, net, lower, upper, train, [valid] * 2, [unseen] * 2, 100)


class _Prompt(nn.Module):
    """Learned vectors in front of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.1 * torch.randn(4, 16))

    def forward(self, embedded: Tensor) -> Tensor:
        return torch.cat([self.vectors.expand(len(embedded), -1, -1), embedded], 1)


def prompt(seed: int) -> Network:
    """A prompt of four vectors that three tasks share, before a frozen transformer with a trained
    head for each: counting a token, whether two tokens are alike, and the largest token.
    """
    torch.manual_seed(seed)
    tokens = torch.randint(12, (1800, 8))
    answers = (
        (tokens < 3).sum(1).float(),
        (tokens[:, 0] // 4 == tokens[:, -1] // 4).float(),
        tokens.amax(1),
    )
    train, valid, unseen = split((tokens, *answers), 600, 400)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.position = nn.Parameter(0.3 * torch.randn(8, 16))
            self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.heads = nn.ModuleDict(
                {"count": nn.Linear(16, 1), "alike": nn.Linear(16, 1), "largest": nn.Linear(16, 12)}
            )

        def forward(self, tokens: Tensor, prompt: Any) -> dict[str, Tensor]:
            read = self.body(prompt(self.embed(tokens) + self.position)).mean(1)
            return {name: head(read) for name, head in self.heads.items()}

    vectors, net = _Prompt(), Reader()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(
        200
    ):  # the body has learned something else: how many tokens differ from the first
        batch = tokens[torch.randint(600, (64,))]
        differ = (batch != batch[:, :1]).sum(1).float()
        optimizer.zero_grad()
        mse_loss(net(batch, nn.Identity())["count"].squeeze(-1), differ).backward()
        optimizer.step()
    net.requires_grad_(False)
    net.heads.requires_grad_(True)

    def count(x: Any, y: Any, batch: Rows) -> Tensor:
        return mse_loss(y(batch[0], x)["count"].squeeze(-1), batch[1])

    def alike(x: Any, y: Any, batch: Rows) -> Tensor:
        return binary_cross_entropy_with_logits(y(batch[0], x)["alike"].squeeze(-1), batch[2])

    def largest(x: Any, y: Any, batch: Rows) -> Tensor:
        return cross_entropy(y(batch[0], x)["largest"], batch[3])

    upper = [count, alike, largest]

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        return sum(task(x, y, batch) for task in upper)

    start = bp.Problem.from_modules(
        x=vectors, y=net, lower=lower, lower_data=loader(train, 64),
        upper=upper, upper_data=loader(valid, 64), names=["count", "alike", "largest"],
    )  # fmt: skip
    return Network(*start, vectors, net, lower, upper, train, [valid] * 3, [unseen] * 3, 64)


def trunk(seed: int) -> Network:
    """A trunk of 2,208 weights that four tasks on digits share, and their heads: the digit, whether
    it is even, the ink in grey levels, and whether it leans to the right (hinge).
    """
    torch.manual_seed(seed)
    pixels, labels = digits()
    ink = pixels.sum(1)
    right = pixels.view(-1, 8, 8)[:, :, 4:].sum((1, 2)) / ink
    side = torch.where(right > right.median(), 1.0, -1.0)
    rows = pixels, labels, (labels % 2 == 0).float(), ink, side
    train, valid, unseen = split(rows, 400, 500)

    body = nn.Sequential(
        nn.Linear(64, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 24), nn.Tanh()
    )

    class Tasks(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body
            self.digit, self.even = nn.Linear(24, 10), nn.Linear(24, 1)
            self.ink, self.side = nn.Linear(24, 1), nn.Linear(24, 1)

        def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
            features = self.body(pixels / 16)
            even, ink, side = (
                head(features).squeeze(-1) for head in (self.even, self.ink, self.side)
            )
            return self.digit(features), even, 60 * ink + 310, side

    net = Tasks(body)

    def losses(y: Any, batch: Rows) -> tuple[Tensor, ...]:
        digit, even, ink, side = y(batch[0])
        return (
            cross_entropy(digit, batch[1]),
            binary_cross_entropy_with_logits(even, batch[2]),
            huber_loss(ink, batch[3], delta=20.0),
            (1 - batch[4] * side).relu().mean(),
        )

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        digit, even, ink, side = losses(y, batch)
        heads = y.digit, y.even, y.ink, y.side
        decay = sum(head.weight.square().sum() for head in heads)
        return digit + even + ink / 1000 + side + 1e-3 * decay

    def upper(x: Any, y: Any, batch: Rows) -> Tensor:
        return torch.stack(losses(y, batch))

    start = bp.Problem.from_modules(
        x=body, y=net, lower=lower, lower_data=loader(train, 80),
        upper=upper, upper_data=loader(valid, 100), names=["digit", "even", "ink", "side"],
    )  # fmt: skip
    each = [lambda x, y, batch, i=i: losses(y, batch)[i] for i in range(4)]
    return Network(*start, body, net, lower, each, train, [valid] * 4, [unseen] * 4, 80)


def distil(seed: int) -> Network:
    """Sixteen learned points as the whole training set of a small network, so that g needs no
    data: log loss on two moons at one site, hinge loss on those of another, turned by a quarter.
    """
    torch.manual_seed(seed)

    def site(turned: bool) -> list[Rows]:
        points, labels = datasets.make_moons(900, noise=0.15, random_state=2 * seed + turned)
        rows = torch.as_tensor(points, dtype=torch.float32) - torch.tensor([0.5, 0.25])
        rows = torch.stack([-rows[:, 1], rows[:, 0]], 1) if turned else rows
        return split((rows, torch.as_tensor(labels, dtype=torch.float32)), 300)

    sites = [site(False), site(True)]
    points, labels = torch.randn(16, 2), torch.arange(16.0) % 2
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0))

    def lower(x: Any, y: Any, batch: Any) -> Tensor:
        decay = sum(p.square().sum() for p in y.parameters())
        return binary_cross_entropy_with_logits(y(x), labels) + 1e-3 * decay

    upper = [
        lambda x, y, batch: binary_cross_entropy_with_logits(y(batch[0]), batch[1]),
        lambda x, y, batch: (1 - (2 * batch[1] - 1) * y(batch[0])).relu().mean(),
    ]
    start = bp.Problem.from_modules(
        x=points, y=net, lower=lower, lower_data=labels, upper=upper,
        upper_data=[loader(valid, 100) for valid, _ in sites],
    )  # fmt: skip
    valid, unseen = zip(*sites, strict=True)
    return Network(*start, points, net, lower, upper, (labels,), valid, unseen, 16)


#: name -> maker
NETWORKS: dict[str, Callable[[int], Network]] = {
    maker.__name__: maker
    for maker in (fair_credit, diabetes, horizons, longtail, sensors, prompt, trunk, distil)
}
