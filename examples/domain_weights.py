"""Domain-weighted fine-tuning: a network that reads upright digits is to learn upside-down ones
without forgetting.

x holds a weight for each of three sources of training images (upright, upside down, mirrored), y
the fine-tuned network, and the two objectives are its losses on new upright and on new upside-down
digits.

python examples/domain_weights.py [OUT] [--small]
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

torch.manual_seed(0)
data = load_digits()
images, labels = (
    torch.as_tensor(data.images, dtype=torch.float32) / 16 - 0.3,
    torch.as_tensor(data.target),
)
sources = torch.stack([images, images.flip(1, 2), images.flip(2)]).flatten(2)  # (3, n, 64)
train, validation = slice(0, 300), slice(1000, 1300)

net = nn.Sequential(nn.Linear(64, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, 10))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(100):  # the network that is to be fine-tuned has seen upright digits only
    optimizer.zero_grad()
    cross_entropy(net(sources[0, train]), labels[train]).backward()
    optimizer.step()


def lower(x, y, batch):
    losses = torch.stack([cross_entropy(y(source), batch["labels"]) for source in batch["images"]])
    return x.softmax(0) @ losses + 1e-3 * sum(p.square().sum() for p in y.parameters())


def upper(x, y, batch):
    return torch.stack([cross_entropy(y(batch["images"][i]), batch["labels"]) for i in (0, 1)])


problem, x0, y0 = bp.Problem.from_modules(
    x=torch.zeros(3),
    y=net,
    lower=lower,
    lower_data={"images": sources[:, train], "labels": labels[train]},
    upper=upper,
    upper_data={"images": sources[:, validation], "labels": labels[validation]},
    names=["upright", "upside down"],
)
method = bp.MOMEHA(
    gamma=5.0,
    alpha_theta=0.1,
    alpha_y=0.1,
    alpha_x=1.0,
    c=bp.schedule.Power(5.0, 0.2),
    mu=4.0,
    warmup=200,
)
preferences = bp.preferences.grid(2, 3 if small else 7)
front = bp.front(
    problem,
    x0,
    y0,
    preferences=preferences,
    method=method,
    steps=60 if small else 600,
    compile=False,
)

figure = Figure(figsize=(9, 4), layout="constrained")
left, right = figure.subplots(1, 2)
left.scatter(*front.objectives.T, c=front.preference[:, 0], cmap="viridis", edgecolors="black")
left.set(xlabel="loss on upright digits", ylabel="loss on upside-down digits", title="Fine-tuning")
for source, name in enumerate(["upright", "upside down", "mirrored"]):
    right.plot(front.preference[:, 0], front.x.softmax(1)[:, source], "o-", label=name)
right.set(
    xlabel="preference for upright digits",
    ylabel="weight of the source",
    ylim=(0, 1),
    title="Which images it is trained on",
)
right.legend()
figure.savefig(out / "domain_weights.png", dpi=120)
print(
    "objectives, one row per preference, drawn in "
    f"{out / 'domain_weights.png'}:\n{front.objectives}"
)
print(f"weights of the sources:\n{front.x.softmax(1)}")
