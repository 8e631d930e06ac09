"""A plain function: three lines of problem, and its front against the exact one.

python examples/plain_function.py [OUT] [--small]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import bipareto as bp

small = "--small" in sys.argv
out = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "."))

problem = bp.Problem(
    upper=lambda x, y: torch.stack(
        [(x - 1).square().sum() + y.square().sum(), x.square().sum() + (y - 2).square().sum()]
    ),
    lower=lambda x, y: (
        (y - x).square() / 2 + 1.5 * torch.sin(y - x).square()
    ).sum(),  # nonconvex; its only solution is y = x
)
x0, y0 = torch.full((2, 3), 0.2, dtype=torch.float64)
front = bp.front(
    problem,
    x0,
    y0,
    preferences=bp.preferences.grid(2, 3 if small else 11),
    steps=300 if small else 3000,
).resolve_lower()

# At y = x both objectives are quadratic in x, and the front is the segment from x = 1/2 to x = 1.
exact = torch.linspace(0.5, 1, 100, dtype=torch.float64)
curve = torch.stack([3 * ((exact - 1) ** 2 + exact**2), 3 * (exact**2 + (exact - 2) ** 2)])
figure = Figure(figsize=(5, 4), layout="constrained")
axes = figure.subplots()
axes.plot(*curve, color="0.7", label="exact front")
axes.scatter(
    *front.objectives.T,
    c=front.preference[:, 0],
    cmap="viridis",
    edgecolors="black",
    zorder=2,
    label="found, by preference",
)
axes.set(xlabel="$f_1$", ylabel="$f_2$", title="A plain function")
axes.legend()
figure.savefig(out / "plain_function.png", dpi=120)
print(
    "objectives, one row per preference, drawn in "
    f"{out / 'plain_function.png'}:\n{front.objectives}"
)
