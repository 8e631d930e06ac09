"""Few coordinates of x: a model of the objectives over x, learned from trainings, proposes more.

Where x has up to a score of coordinates, every training of y tells f at one x, and so do the runs'
answers.  A Gaussian process per objective (Matérn 5/2, one length per coordinate, noise fitted)
is drawn from, and for each preference the best point of the draw is trained next: Thompson sampling
of the scalarized front.  In the end the model's mean takes the place of draws: what is trained last
is to be the answer, and no later point will profit from what a draw explores.

Points are proposed in the units of runs; which of them answers a preference is decided in units of
the front's range (`Units.of_front`).  Proposals in those units were no better.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.run.units import Units

#: points that a draw of the model is looked at
CLOUD = 300
#: sizes of the moves around good points, in standard deviations of what was tried
MOVES = (0.05, 0.15, 0.4, 1.0)
#: good points of a preference that moves start from
GOOD = 5


class Model(NamedTuple):
    """A Gaussian process per objective over standardised points (n, d) and values (n, m).

    lengths (m, d), noise (m,), factor (m, n, n) the Cholesky factor of the covariance, solved
    (m, n) its solution for the values; centre and scale of points (d,) and of values (m,).
    """

    points: Tensor
    lengths: Tensor
    noise: Tensor
    factor: Tensor
    solved: Tensor
    centre: Tensor
    scale: Tensor
    mean: Tensor
    spread: Tensor

    def expected(self, at: Tensor | None = None) -> Tensor:
        """The mean of the objectives (N, m) at standardised points (N, d); None is the model's own
        points, freed from noise.
        """
        across = _covariance(self.points if at is None else at, self.points, self.lengths)
        return (across @ self.solved[..., None])[..., 0].T * self.spread + self.mean

    def drawn(self, cloud: Tensor, stream: torch.Generator) -> Tensor:
        """One draw of the objectives (N, m) at a cloud of standardised points (N, d)."""
        across = _covariance(cloud, self.points, self.lengths)
        mean = (across @ self.solved[..., None])[..., 0]
        inside = _covariance(cloud, cloud, self.lengths) - across @ torch.cholesky_solve(
            across.transpose(1, 2), self.factor
        )
        # A ridge, since neighbours in the cloud are nearly dependent.
        root, failed = torch.linalg.cholesky_ex(
            inside + 1e-5 * torch.eye(len(cloud), dtype=cloud.dtype)
        )
        if failed.any():
            root = torch.diag_embed(torch.diagonal(inside, dim1=1, dim2=2).clamp_min(1e-9).sqrt())
        noise = torch.randn(*mean.shape, 1, generator=stream, dtype=cloud.dtype)
        return (mean + (root @ noise)[..., 0]).T * self.spread + self.mean


def fit(x: Tensor, objectives: Tensor, before: Model | None = None) -> Model:
    """The model of n points x (n, d) with objectives (n, m), lengths and noise by marginal
    likelihood with a broad prior; from a model of fewer points on, where there is one.

    Values far above the median count as that far only: a diverged training says "bad", not how bad.
    """
    x, f = x.detach().cpu().double(), objectives.detach().cpu().double()
    middle = f.median(0).values
    f = torch.minimum(f, middle + 3 * (middle - f.min(0).values) + 1e-9)
    centre, scale, mean, spread = x.mean(0), x.std(0) + 1e-9, f.mean(0), f.std(0) + 1e-9
    points, values = (x - centre) / scale, (f - mean) / spread
    n, d = points.shape
    m = values.shape[1]
    usual_length, usual_noise = 0.5 * math.log(d), math.log(0.05)
    lengths = torch.full((m, d), usual_length, dtype=x.dtype)
    noise = torch.full((m,), usual_noise, dtype=x.dtype)
    if before is not None:
        # In units of the points, which have grown.
        lengths = (before.lengths * before.scale / scale).log()
        noise = (before.noise - 1e-4).clamp_min(1e-6).log()
    lengths, noise = lengths.requires_grad_(), noise.requires_grad_()
    identity = torch.eye(n, dtype=x.dtype)

    def factorised() -> tuple[Tensor, Tensor]:
        jitter = (noise.exp() + 1e-4)[:, None, None] * identity
        factor = torch.linalg.cholesky(_covariance(points, points, lengths.exp()) + jitter)
        return factor, torch.cholesky_solve(values.T[..., None], factor)[..., 0]

    optimizer = torch.optim.Adam([lengths, noise], lr=0.1)
    with torch.enable_grad():
        for _ in range(60 if before is None else 15):
            factor, solved = factorised()
            fit_term = 0.5 * (values.T * solved).sum()
            volume = torch.diagonal(factor, dim1=1, dim2=2).log().sum()
            prior = (lengths - usual_length).square().sum() + (noise - usual_noise).square().sum()
            optimizer.zero_grad()
            (fit_term + volume + 0.5 * prior).backward()
            optimizer.step()
    with torch.no_grad():
        factor, solved = factorised()
        return Model(
            points, lengths.exp().detach(), (noise.exp() + 1e-4).detach(), factor, solved, centre,
            scale, mean, spread,
        )  # fmt: skip


def propose(
    model: Model, preferences: Tensor, units: Units, stream: torch.Generator, greedy: bool = False
) -> Tensor:
    """The next point to train for each preference (P, m) in these units: (P, d), in x's own.

    It is the best of a cloud around good points, by a draw of the model, or, where `greedy`, by its
    mean.
    """
    expected, (n, d) = model.expected(), model.points.shape
    chosen = []
    for w in preferences:
        good = units.value(expected, w).argsort()[:GOOD]
        base = model.points[good[torch.randint(len(good), (CLOUD,), generator=stream)]]
        sizes = torch.tensor(MOVES, dtype=base.dtype)
        size = sizes[torch.randint(len(sizes), (CLOUD, 1), generator=stream)]
        moved = torch.rand(CLOUD, d, generator=stream) < max(0.5, min(1.0, 3 / d))
        noise = torch.randn(CLOUD, d, generator=stream, dtype=base.dtype)
        cloud = base + size * moved * noise
        # A quarter lies on lines between a good point and any other, and a little beyond.
        count = CLOUD // 4
        other = model.points[torch.randint(n, (count,), generator=stream)]
        share = torch.rand(count, 1, generator=stream, dtype=base.dtype) * 0.8 - 0.15
        cloud[:count] = base[:count] + share * (other - base[:count])
        f = model.expected(cloud) if greedy else model.drawn(cloud, stream)
        chosen.append(cloud[int(units.value(f, w).argmin())] * model.scale + model.centre)
    return torch.stack(chosen)


def best_for(expected: Tensor, preferences: Tensor, units: Units) -> list[int]:
    """For each preference (P, m) the row of the objectives (n, m) that is best in these units."""
    return [int(units.value(expected, w).argmin()) for w in preferences]


def _covariance(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    """Matérn 5/2 between (n, d) and (k, d) under lengths (m, d): (m, n, k)."""
    scaled = torch.cdist(a / lengths[:, None], b / lengths[:, None]).clamp_min(1e-9) * 5**0.5
    return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)
