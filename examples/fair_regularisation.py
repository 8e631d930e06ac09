"""Regularisation per feature under a fairness trade-off: scikit-learn's diabetes data, women and
men.

x holds one log-penalty per feature, y a linear predictor of disease progression fitted with them,
and the two objectives are the error on validation patients and how differently the errors of the
two sexes come out.

python examples/fair_regularisation.py [OUT] [--small]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes

import bipareto as bp

small = "--small" in sys.argv
out = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "."))

features, target = (torch.as_tensor(array) for array in load_diabetes(return_X_y=True, scaled=True))
features = features / features.std(0)
target = (target - target.mean()) / target.std()
order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
train, validation = order[:200], order[200:]
sex = features[:, 1] > 0  # the data set codes it as one of two numbers


def errors(y, rows):  # squared error of each patient
    return (features[rows] @ y["w"] + y["b"] - target[rows]).square()


def lower(x, y):
    return errors(y, train).mean() + (x.exp() * y["w"].square()).mean()


def upper(x, y):
    seen = errors(y, validation)
    group = sex[validation].double()
    first, second = (
        (seen * group).sum() / group.sum(),
        (seen * (1 - group)).sum() / (1 - group).sum(),
    )
    return torch.stack(
        [seen.mean(), 10 * (first - second).square() + 0.05]
    )  # scaled alike, and above zero


problem = bp.Problem(upper, lower, names=["error", "unfairness"])
x0 = torch.full((10,), -2.0, dtype=torch.float64)
y0 = {"w": torch.zeros(10, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
# One penalty's gradient is a tenth of a squared weight: x takes large steps.
method = bp.MOMEHA(
    gamma=1.0,
    alpha_theta=0.08,
    alpha_y=0.08,
    alpha_x=1000.0,
    c=bp.schedule.Power(20.0, 0.2),
    mu=8.0,
    warmup=300,
)
preferences = bp.preferences.grid(2, 3 if small else 9)
front = bp.front(
    problem,
    x0,
    y0,
    preferences=preferences,
    method=method,
    steps=200 if small else 1500,
    compile=False,
).resolve_lower()

figure = Figure(figsize=(9, 4), layout="constrained")
left, right = figure.subplots(1, 2)
dots = left.scatter(
    *front.objectives.T, c=front.preference[:, 0], cmap="viridis", edgecolors="black"
)
left.set(
    xlabel="validation error",
    ylabel="10 (error of one sex - error of the other)$^2$ + 0.05",
    title="Error against fairness",
)
figure.colorbar(dots, ax=left, label="preference for a small error")
image = right.imshow(front.x.T.numpy(), aspect="auto", cmap="coolwarm")
right.set(
    xlabel="point of the front",
    ylabel="feature",
    yticks=range(10),
    yticklabels=load_diabetes().feature_names,
    title="log-penalty per feature",
)
figure.colorbar(image, ax=right)
figure.savefig(out / "fair_regularisation.png", dpi=120)
print(
    "objectives, one row per preference, drawn in "
    f"{out / 'fair_regularisation.png'}:\n{front.objectives}"
)
