"""Eight more networks, written after the rules for them, before any default was run on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn import datasets
from tests.foreign.networks import Network, Rows, digits, loader, split
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    gaussian_nll_loss,
    mse_loss,
    one_hot,
)

import bipareto as bp

__all__ = ["LATE"]


def _floats(*arrays: Any) -> tuple[Tensor, ...]:
    return tuple(torch.as_tensor(array, dtype=torch.float32) for array in arrays)


def pendulum(seed: int) -> Network:
    """How much a network of a swing's angle should obey the textbook's equation in each of three
    stretches of time, and the start at rest: squared error of the angle in square degrees, and what
    is left of the equation in rad/s^2.  The equation holds for small angles only.
    """
    torch.manual_seed(seed)
    stiffness, drag, step, end = 9.0, 0.6, 1e-3, 6.0
    angle, speed, path = torch.tensor(1.6 + 0.2 * torch.rand(()).item()), torch.tensor(0.0), []
    for _ in range(int(end / step) + 1):
        path.append(angle)
        speed = speed - step * (drag * speed + stiffness * angle.sin())
        angle = angle + step * speed
    place = torch.randperm(len(path))[:600]
    measured = torch.rad2deg(torch.stack(path)[place]) + 5 * torch.randn(600)
    train, valid, unseen = split((place * step, measured, end * torch.rand(600)), 96, 160)

    class Swing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.waves = nn.Linear(1, 32)
            nn.init.normal_(self.waves.weight, std=3.0)
            self.layers = nn.Sequential(nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 1))

        def forward(self, seconds: Tensor) -> Tensor:
            return self.layers(self.waves(seconds[:, None]).sin()).squeeze(-1)

    trust, net = nn.Parameter(torch.tensor([-5.0, -5.0, -5.0, -2.0])), Swing()

    def equation(y: Any, seconds: Tensor) -> tuple[Tensor, Tensor]:
        """What is left of it, and the speed."""
        one = torch.ones_like(seconds)
        (angle, speed), (_, acceleration) = jvp(
            lambda at: jvp(y, (at,), (one,)), (seconds,), (one,)
        )
        return acceleration + drag * speed + stiffness * angle, speed

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        seconds, degrees, anywhere = batch
        left, speed = equation(y, torch.cat([anywhere, torch.zeros(1)]))
        trust = x[(anywhere / 2).long().clamp(max=2)].exp()
        rest = x[3].exp() * speed[-1] ** 2
        return mse_loss(y(seconds), torch.deg2rad(degrees)) + (trust * left[:-1] ** 2).mean() + rest

    upper = [
        lambda x, y, batch: mse_loss(torch.rad2deg(y(batch[0])), batch[1]),
        lambda x, y, batch: equation(y, batch[2])[0].abs().mean(),
    ]
    start = bp.Problem.from_modules(
        x=trust, y=net, lower=lower, lower_data=loader(train, 32),
        upper=upper, upper_data=loader(valid, 80), names=["angle", "equation"],
    )  # fmt: skip
    return Network(*start, trust, net, lower, upper, train, [valid] * 2, [unseen] * 2, 32, (-9, 1))


def deliveries(seed: int) -> Network:
    """One number, how much a forecast of delivery times with its own spread is to look at absolute
    errors: negative log-likelihood of the hours, and absolute error in minutes.
    """
    torch.manual_seed(seed)
    features, score = _floats(*datasets.make_friedman1(1500, n_features=8, random_state=seed))
    spread = 0.03 + 0.25 * features[:, 5] ** 2
    breakdown = (torch.rand(1500) < 0.06 * (features[:, 6] > 0.3)) * (0.5 + torch.rand(1500))
    hours = 0.3 + score / 40 + spread * torch.randn(1500) + breakdown
    train, valid, unseen = split((features, hours), 400, 400)
    share = nn.Parameter(torch.zeros(1))
    net = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 2)
    )

    def likelihood(x: Any, y: Any, batch: Rows) -> Tensor:
        mean, log_spread = y(batch[0]).unbind(1)
        return gaussian_nll_loss(mean, batch[1], (2 * log_spread).exp(), full=True, eps=1e-4)

    def minutes(x: Any, y: Any, batch: Rows) -> Tensor:
        return 60 * (y(batch[0])[:, 0] - batch[1]).abs().mean()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        share = x.sigmoid()[0]
        return (1 - share) * likelihood(x, y, batch) + share * minutes(x, y, batch) / 10

    upper = [likelihood, minutes]
    start = bp.Problem.from_modules(
        x=share, y=net, lower=lower, lower_data=loader(train, 50),
        upper=upper, upper_data=loader(valid, 100), names=["log-likelihood", "minutes"],
    )  # fmt: skip
    return Network(*start, share, net, lower, upper, train, [valid] * 2, [unseen] * 2, 50, (-5, 5))


def machines(seed: int) -> Network:
    """Weights of four auxiliary tasks and two main ones for a network that attends to vibrations:
    log loss of a fault, and absolute error of the remaining life in hours.  Of the auxiliary tasks
    (load, speed, heat, and the shift's number) the last cannot be learned.
    """
    torch.manual_seed(seed)
    count, time = 1500, torch.arange(24.0)
    wear, load, pace, heat = torch.rand(4, count, 1)
    beat = torch.sin((0.5 + pace) * time + 6 * torch.rand(count, 1))
    knock = (wear * load) * (torch.sin(2.2 * time + 6 * torch.rand(count, 1)) > 0.8)
    hum = 0.5 * load + 0.3 * heat * wear + 0.1 * time / 24 * heat
    vibration = torch.stack([beat * (0.5 + load), beat + 2 * knock, hum.expand(-1, 24)], -1)
    vibration = vibration + 0.2 * torch.randn(count, 24, 3)
    fault = ((wear * (0.5 + heat))[:, 0] + 0.1 * torch.randn(count) > 0.6).float()
    life = 200 * (1 - wear[:, 0]) * (1.3 - 0.6 * load[:, 0]) + 8 * torch.randn(count)
    others = torch.cat([load, pace, heat], 1) * 3.5 - 1.75
    rows = vibration, fault, life, torch.cat([others, torch.randn(count, 1)], 1)
    train, valid, unseen = split(rows, 200, 400)

    class Monitor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.Conv1d(3, 16, 5, padding=2)
            self.norm = nn.LayerNorm(16)
            self.questions = nn.Parameter(torch.randn(6, 16))
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.answers = nn.ModuleList(nn.Linear(16, 1) for _ in range(6))

        def forward(self, vibration: Tensor) -> Tensor:
            states = self.norm(self.filters(vibration.mT).mT.relu())
            questions = self.questions.expand(len(states), -1, -1)
            found, _ = self.attention(questions, states, states)
            return torch.cat([head(found[:, i]) for i, head in enumerate(self.answers)], 1)

    weights = nn.ParameterDict({"main": torch.zeros(2), "auxiliary": torch.zeros(4)})
    net = Monitor()

    def fault_missed(x: Any, y: Any, batch: Rows) -> Tensor:
        return binary_cross_entropy_with_logits(y(batch[0])[:, 0], batch[1])

    def hours_off(x: Any, y: Any, batch: Rows) -> Tensor:
        return (100 + 60 * y(batch[0])[:, 1] - batch[2]).abs().mean()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        answers = y(batch[0])
        main = torch.stack([
            binary_cross_entropy_with_logits(answers[:, 0], batch[1]),
            mse_loss(answers[:, 1], (batch[2] - 100) / 60),
        ])  # fmt: skip
        auxiliary = (answers[:, 2:] - batch[3]).square().mean(0)
        return x["main"].exp() @ main + x["auxiliary"].exp() @ auxiliary

    upper = [fault_missed, hours_off]
    start = bp.Problem.from_modules(
        x=weights, y=net, lower=lower, lower_data=loader(train, 40),
        upper=upper, upper_data=loader(valid, 100), names=["fault", "hours"],
    )  # fmt: skip
    return Network(
        *start, weights, net, lower, upper, train, [valid] * 2, [unseen] * 2, 40, (-4, 3)
    )


def scanners(seed: int) -> Network:
    """How strongly the two layers of a network that finds tumours are aligned between the scanner
    that has labels and three that have none: log loss of patients at each of the four.  The third
    is used for screening, so that few of its patients are ill.
    """
    torch.manual_seed(seed)
    columns, labels = _floats(*datasets.load_breast_cancer(return_X_y=True))
    columns = (columns - columns.mean(0)) / columns.std(0)
    scans = [columns]
    for shift, noise in ((0.6, 0.2), (1.2, 0.5), (0.8, 0.3)):
        gain = (0.3 * torch.randn(30)).exp()
        scans.append(gain * columns + shift * torch.randn(30) + noise * torch.randn_like(columns))
    known, volunteers, valid, unseen = split((*scans, 1 - labels), 130, 130, 150)
    chance = torch.where(volunteers[4] == 1, 0.1, 1.0)
    screened = torch.multinomial(chance, 130, replacement=True)
    train = known[0], known[4], volunteers[1], volunteers[2], volunteers[3][screened]

    def at(part: Rows, scanner: int) -> Rows:
        kept = torch.ones(len(part[4]), dtype=torch.bool)
        if scanner == 3:
            kept = (part[4] == 0) | (part[4].cumsum(0) % 4 == 0)
        return part[scanner][kept], part[4][kept]

    class Finder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (
                nn.Linear(30, 20),
                nn.Linear(20, 8),
                nn.Linear(8, 1),
            )
            self.norm = nn.LayerNorm(20)

        def layers(self, scan: Tensor) -> tuple[Tensor, Tensor]:
            first = self.norm(self.first(scan)).tanh()
            return first, self.second(first).tanh()

        def forward(self, scan: Tensor) -> Tensor:
            return self.head(self.layers(scan)[1]).squeeze(-1)

    strength, net = torch.full((3, 2), -2.0), Finder()

    def ill(x: Any, y: Any, batch: Rows) -> Tensor:
        return binary_cross_entropy_with_logits(y(batch[0]), batch[1])

    def distance(here: Tensor, there: Tensor) -> Tensor:
        means = (here.mean(0) - there.mean(0)).square().sum()
        return means + (here.T.cov() - there.T.cov()).square().sum()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        scan, label, *others = batch
        here = y.layers(scan)
        total = ill(x, y, (scan, label))
        for strengths, other in zip(x.exp(), others, strict=True):
            for weight, a, b in zip(strengths, here, y.layers(other), strict=True):
                total = total + weight * distance(a, b)
        return total

    upper = [ill] * 4
    seen, kept = ([at(part, i) for i in range(4)] for part in (valid, unseen))
    start = bp.Problem.from_modules(
        x=strength, y=net, lower=lower, lower_data=loader(train, 65),
        upper=upper, upper_data=[loader(rows, 75) for rows in seen],
        names=["own", "first", "second", "screening"],
    )  # fmt: skip
    return Network(*start, strength, net, lower, upper, train, seen, kept, 65, (-7, 3))


def shop(seed: int) -> Network:
    """What each of 50 goods is taken to be worth before anybody has rated it, and how sure that is,
    for embeddings of customers and goods: squared error in stars, and by how many per cent small
    sellers fall short of half of what is recommended.  Train ratings are of what customers chose.
    """
    torch.manual_seed(seed)
    customers, goods = 80, 50
    taste, kind = torch.randn(customers, 3), torch.randn(goods, 3)
    small = torch.arange(goods) >= 25
    worth = taste @ kind.T * 0.5 + 0.5 * torch.randn(goods) - 0.2 * small
    stars = (3.2 + worth + 0.5 * torch.randn_like(worth)).clamp(1, 5).flatten()
    pairs = torch.cartesian_prod(torch.arange(customers), torch.arange(goods))
    asked, offered = split((pairs, stars), 1600)
    valid, unseen = split(asked, 600)
    known = 2 * (offered[1] - 4) - 2.0 * small[offered[0][:, 1]]
    chosen = torch.rand(len(known)) < known.sigmoid()
    train = offered[0][chosen], offered[1][chosen]

    class Ratings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.customer, self.good = nn.Embedding(customers, 5), nn.Embedding(goods, 5)
            self.mood, self.worth = nn.Embedding(customers, 1), nn.Embedding(goods, 1)
            self.register_buffer("every", torch.arange(goods))

        def forward(self, who: Tensor, what: Tensor) -> Tensor:
            match = (self.customer(who) * self.good(what)).sum(-1)
            return 3.5 + match / 2 + (self.mood(who) + self.worth(what)).squeeze(-1)

        def recommended(self, who: Tensor) -> Tensor:
            return (2 * self(who[:, None], self.every)).softmax(1)

    prior = nn.ModuleDict({"worth": nn.Embedding(goods, 1), "sure": nn.Embedding(goods, 1)})
    for table, value in zip(prior.values(), (0.0, -3.0), strict=True):
        nn.init.constant_(table.weight, value)
    net = Ratings()

    def squared(x: Any, y: Any, batch: Rows) -> Tensor:
        return mse_loss(y(*batch[0].unbind(1)), batch[1])

    def short(x: Any, y: Any, batch: Rows) -> Tensor:
        share = y.recommended(batch[0][:, 0])[:, small].sum(1).mean()
        return (50 - 100 * share).relu()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        sure = x["sure"].weight.exp()
        pull = (y.worth.weight - x["worth"].weight).square() + y.good.weight.square()
        size = y.customer.weight.square().mean() + y.mood.weight.square().mean()
        return squared(x, y, batch) + (sure * pull).mean() + 0.1 * size

    upper = [squared, short]
    start = bp.Problem.from_modules(
        x=prior, y=net, lower=lower, lower_data=loader(train, 128),
        upper=upper, upper_data=loader(valid, 128), names=["stars", "small sellers"],
    )  # fmt: skip
    return Network(*start, prior, net, lower, upper, train, [valid] * 2, [unseen] * 2, 128)


def papers(seed: int) -> Network:
    """217 weights of a network that says how much a paper's topic is told by each of its links, for
    a graph network that knows few labels: log loss of old papers and of new ones, whose links of
    the four kinds mean different things.
    """
    torch.manual_seed(seed)
    count, topics, links = 500, 5, 2600
    topic, new = torch.randint(topics, (count,)), torch.rand(count) < 0.4
    words = 0.9 * torch.randn(topics, 12)[topic] + torch.randn(count, 12)
    source, kind = torch.randint(count, (links,)), torch.randint(4, (links,))
    # how often links of a kind stay within a topic, for old papers and for new ones
    within = torch.tensor([[0.8, 0.2, 0.6, 0.2], [0.2, 0.8, 0.6, 0.2]])[new[source].long(), kind]
    alike = torch.rand(links) < within
    match = topic[source][:, None] == topic
    target = torch.where(alike[:, None], match, ~match).float().multinomial(1)[:, 0]
    differ = (words[source] - words[target]).abs()
    about = torch.cat([differ, one_hot(kind, 4).float()], 1)
    train, valid, unseen = split((torch.arange(count), topic, new), 120, 180)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(24, 16), nn.Linear(32, topics)
            self.drop = nn.Dropout(0.2)

        def beside(self, states: Tensor, trust: Tensor) -> Tensor:
            """The states, and the mean of those at the ends of their links."""
            sums = torch.zeros_like(states).index_add(0, source, trust * states[target])
            total = torch.full_like(states[:, :1], 0.1).index_add(0, source, trust)
            return torch.cat([states, sums / total], 1)

        def forward(self, trust: Tensor) -> Tensor:
            states = self.drop(self.first(self.beside(words, trust)).relu())
            return self.second(self.beside(states, trust))

    scorer = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 1), nn.Sigmoid())
    net = Reader()

    def wrong(x: Any, y: Any, batch: Rows) -> Tensor:
        return cross_entropy(y(x(about))[batch[0]], batch[1])

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        decay = y.first.weight.square().sum() + y.second.weight.square().sum()
        return wrong(x, y, batch) + 2e-3 * decay

    old, recent = (
        [tuple(column[part[2] == late] for column in part) for part in (valid, unseen)]
        for late in (False, True)
    )
    upper = [wrong, wrong]
    start = bp.Problem.from_modules(
        x=scorer, y=net, lower=lower, lower_data=loader(train, 40), upper=upper,
        upper_data=[loader(old[0], 64), loader(recent[0], 64)], names=["old", "new"],
    )  # fmt: skip
    return Network(
        *start, scorer, net, lower, upper, train, [old[0], recent[0]], [old[1], recent[1]], 40
    )


def mailroom(seed: int) -> Network:
    """How often the one who labelled digits took one for another, a 10 x 10 table, for a
    convolutional network: Brier score, log loss, and what letters to wrong places cost in cents.
    """
    torch.manual_seed(seed)
    pixels, labels = digits()
    train, valid, unseen = split((pixels.view(-1, 1, 8, 8) / 16, labels), 600, 400)
    taken = torch.tensor([0, 7, 2, 8, 9, 5, 0, 7, 8, 4])  # for what a digit was taken, if wrongly
    doubt = torch.tensor([0.0, 0.4, 0.1, 0.45, 0.3, 0.1, 0.4, 0.1, 0.1, 0.3])
    mistaken = torch.rand(600) < doubt[train[1]]
    train = train[0], torch.where(mistaken, taken[train[1]], train[1])
    cents = 90 * torch.rand(10, 10) ** 3 + 10
    cents = cents * (1 - torch.eye(10))

    table = nn.Parameter(4 * torch.eye(10))
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 10),
    )  # fmt: skip

    def brier(x: Any, y: Any, batch: Rows) -> Tensor:
        truth = one_hot(batch[1], 10)
        return (y(batch[0]).softmax(1) - truth).square().sum(1).mean()

    def log_loss(x: Any, y: Any, batch: Rows) -> Tensor:
        return cross_entropy(y(batch[0]), batch[1])

    def postage(x: Any, y: Any, batch: Rows) -> Tensor:
        return ((3 * y(batch[0])).softmax(1) * cents[batch[1]]).sum(1).mean()

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        said = y(batch[0]).softmax(1) @ x.softmax(1)
        return -said.gather(1, batch[1][:, None]).clamp(min=1e-6).log().mean()

    upper = [brier, log_loss, postage]
    start = bp.Problem.from_modules(
        x=table, y=net, lower=lower, lower_data=loader(train, 60),
        upper=upper, upper_data=loader(valid, 100), names=["Brier", "log loss", "cents"],
    )  # fmt: skip
    return Network(*start, table, net, lower, upper, train, [valid] * 3, [unseen] * 3, 60)


def phrases(seed: int) -> Network:
    """Vectors of 200 words, 3,200 numbers, that a recurrent network with two heads reads: log loss
    of a phrase's mood and of its topic, and the kilobytes that the vectors need.
    """
    torch.manual_seed(seed)
    often = 1 / (3 + torch.arange(200.0))
    mood, topic = torch.randn(200), torch.randint(6, (200,))
    mood[:3] = 0.0  # not, never, hardly: they turn the word that follows
    tokens = often.expand(2200, -1).multinomial(9, replacement=True)
    turned = torch.cat([torch.zeros(2200, 1), (tokens[:, :-1] < 3).float()], 1)
    good = ((mood[tokens] * (1 - 2 * turned)).sum(1) + torch.randn(2200) > 0).float()
    about = (one_hot(topic[tokens], 6).float() * torch.rand(2200, 9, 1)).sum(1).argmax(1)
    train, valid, unseen = split((tokens, good, about), 700, 700)

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = nn.GRU(16, 16, batch_first=True)
            self.mood, self.topic = nn.Linear(16, 1), nn.Linear(16, 6)

        def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
            heard = self.read(vectors)[0].mean(1)
            return self.mood(heard).squeeze(-1), self.topic(heard)

    words, net = nn.Embedding(200, 16), Listener()
    nn.init.normal_(words.weight, std=0.5)

    def moods(x: Any, y: Any, batch: Rows) -> Tensor:
        return binary_cross_entropy_with_logits(y(x(batch[0]))[0], batch[1])

    def topics(x: Any, y: Any, batch: Rows) -> Tensor:
        return cross_entropy(y(x(batch[0]))[1], batch[2])

    def kilobytes(x: Any, y: Any, batch: Rows) -> Tensor:
        return (1 + x.weight.abs() / 0.1).log2().sum() / 8192

    def lower(x: Any, y: Any, batch: Rows) -> Tensor:
        decay = sum(p.square().sum() for p in y.parameters())
        return moods(x, y, batch) + topics(x, y, batch) + 1e-3 * decay

    upper = [moods, topics, kilobytes]
    start = bp.Problem.from_modules(
        x=words, y=net, lower=lower, lower_data=loader(train, 64),
        upper=upper, upper_data=loader(valid, 100), names=["mood", "topic", "kB"],
    )  # fmt: skip
    return Network(*start, words, net, lower, upper, train, [valid] * 3, [unseen] * 3, 64)


#: name -> maker
LATE: dict[str, Callable[[int], Network]] = {
    maker.__name__: maker
    for maker in (pendulum, deliveries, machines, scanners, shop, papers, mailroom, phrases)
}
