"""Why MB-MOMEHA drifts on networks, and what one draw for y and theta does: a picture.

    python benchmarks/drift.py [--out docs/images/networks-drift.png]

Left, a direction in which g is flat: y and theta have noisy gradients without a mean, and pull each
other by 1/gamma.  Right, a direction of curvature one in which F pulls y: x is led by c (y -
theta), whose mean is the signal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

ALPHA, STEPS, RUNS = 0.2, 4000, 400


def walk(
    gamma: float, kappa: float, *, twin: bool, curvature: float = 0.0, pull: float = 0.0
) -> tuple[Tensor, Tensor]:
    """y and y - theta at every step, (STEPS, RUNS)."""
    stream = torch.Generator().manual_seed(0)
    y = theta = torch.zeros(RUNS, dtype=torch.float64)
    path, apart = [], []
    for _ in range(STEPS):
        own = torch.randn(RUNS, generator=stream, dtype=torch.float64)
        other = own if twin else torch.randn(RUNS, generator=stream, dtype=torch.float64)
        between = (y - theta) / gamma
        theta_next = theta - kappa * ALPHA * (curvature * theta + other - between)
        y = y - ALPHA * (curvature * y + own - between + pull)
        theta = theta_next
        path.append(y)
        apart.append(y - theta)
    return torch.stack(path), torch.stack(apart)


def main() -> None:
    """Draw both panels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images/networks-drift.png"))
    options = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    far = ALPHA * STEPS
    for label, gamma, kappa, twin, style in (
        ("own draws, γ = 8, κ = 1", 8.0, 1.0, False, "C3-"),
        ("own draws, γ = 8, κ = 1.5", 8.0, 1.5, False, "C1-"),
        ("own draws, γ = α T, κ = 1", far, 1.0, False, "C0-"),
        ("one draw, γ = 8, κ = 1", 8.0, 1.0, True, "C2-"),
        ("SGD alone", 1e12, 1.0, True, "k:"),
    ):
        path, _ = walk(gamma, kappa, twin=twin)
        left.loglog(range(1, STEPS + 1), path.square().mean(1).sqrt(), style, label=label)
    left.set(xlabel="step", ylabel="root mean square of y", title="g is flat: how far noise leads")
    left.legend(fontsize=8)
    penalties = [1, 3, 10, 30, 100, 300, 1000]
    for label, twin, style in (
        ("own draws", False, "C3o-"),
        ("one draw (no noise at all on a quadratic)", True, "C2o-"),
    ):
        ratios = []
        for c in penalties:
            _, apart = walk(far, 1.0, twin=twin, curvature=1.0, pull=1 / c)
            late = apart[STEPS // 2 :]
            ratios.append(float(late.mean().abs() / late.std().clamp_min(1e-9)))
        right.loglog(penalties, [min(r, 1e4) for r in ratios], style, label=label)
    right.axhline(1, color="0.7", lw=0.8)
    right.set(
        xlabel="penalty c",
        ylabel="|mean| / deviation of y − θ",
        title="what leads x: signal to noise",
    )
    right.legend(fontsize=8)
    figure.savefig(options.out, dpi=120)


if __name__ == "__main__":
    main()
