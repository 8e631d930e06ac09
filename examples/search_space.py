"""A search space of one's own: which operation in which layer, accuracy against cost.

x holds logits over three operations in each of two layers, y the weights of all of them, and the
two objectives are the validation loss and the expected cost of the operations chosen.

python examples/search_space.py [OUT] [--small]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import bipareto as bp

small = "--small" in sys.argv
out = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "."))

OPERATIONS, COST = ["full", "low rank", "skip"], torch.tensor([1.0, 0.25, 0.0])


class Choice(nn.Module):
    """Three ways from 16 features to 16, mixed by weights that are given from outside."""

    def __init__(self):
        super().__init__()
        self.full = nn.Linear(16, 16)
        self.low_rank = nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 16))
        self.norm = nn.BatchNorm1d(16)

    def forward(self, features, weights):
        ways = torch.stack([self.full(features), self.low_rank(features), features])
        return torch.tanh(self.norm(torch.einsum("w,wnd->nd", weights, ways)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        self.layers = nn.ModuleList([Choice(), Choice()])

    def forward(self, images, architecture):
        features = self.stem(images)
        for layer, logits in zip(self.layers, architecture, strict=True):
            features = layer(features, logits.softmax(0))
        return self.head(features)


def loss(x, y, batch):
    return cross_entropy(y(batch[0], x), batch[1])


def cost(x, y, batch):  # the head's decay keeps the lower level in sight
    return 0.1 + (x.softmax(1) @ COST.to(x)).sum() + 1e-4 * y.head.weight.square().sum()


def training(x, y, batch):
    return loss(x, y, batch) + 1e-3 * sum(p.square().sum() for p in y.parameters())


torch.manual_seed(0)
pixels, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = pixels.float() / 16 - 0.3
problem, x0, y0 = bp.Problem.from_modules(
    x=1e-3 * torch.randn(2, 3),
    y=Net(),
    lower=training,
    lower_data=(images[:400], labels[:400]),
    upper=[loss, cost],
    upper_data=(images[1000:1400], labels[1000:1400]),
    names=["validation loss", "cost"],
)
method = bp.MOMEHA(
    gamma=2.0,
    alpha_theta=0.2,
    alpha_y=0.2,
    alpha_x=1.0,
    c=bp.schedule.Power(5.0, 0.2),
    mu=6.0,
    warmup=100,
)
preferences = bp.preferences.grid(2, 3 if small else 7)
front = bp.front(
    problem,
    x0,
    y0,
    preferences=preferences,
    method=method,
    steps=40 if small else 500,
    compile=False,
)

figure = Figure(figsize=(9, 4), layout="constrained")
left, right = figure.subplots(1, 2)
left.scatter(*front.objectives.T, c=front.preference[:, 0], cmap="viridis", edgecolors="black")
left.set(xlabel="validation loss", ylabel="expected cost", title="Accuracy against cost")
shares = front.x.softmax(2).mean(1)
bottom = torch.zeros(len(front))
for operation, name in enumerate(OPERATIONS):
    right.bar(range(len(front)), shares[:, operation], bottom=bottom, label=name)
    bottom += shares[:, operation]
right.set(
    xlabel="point of the front (first: accuracy preferred)",
    ylabel="share of each operation",
    title="What is chosen",
)
right.legend(loc="lower left")
figure.savefig(out / "search_space.png", dpi=120)
print(
    f"objectives, one row per preference, drawn in {out / 'search_space.png'}:\n{front.objectives}"
)
