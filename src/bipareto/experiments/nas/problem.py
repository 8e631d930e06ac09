"""Architecture search as a bilevel problem: logits x of the architecture, weights y of the supernet.

f(x, y) = the chosen of (validation loss, FLOPs, skip density, pooling density),   g(x, y) = training loss + (decay / 2) |y|^2.

The images are split 1:1; the lower level sees one half, the upper level the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from bipareto import tree
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.experiments.nas.objectives import Reading, flops_ratios, mean_over_edges, pooling_table, skip_table
from bipareto.experiments.nas.supernet import Supernet
from bipareto.problem import Problem
from bipareto.sampler import generator
from bipareto.tree import Tree

__all__ = ["OBJECTIVES", "Draw", "Halves", "Search"]

#: The paper's four, in its order.
OBJECTIVES = ("loss", "flops", "skip", "pooling")


class Draw(NamedTuple):
    """Images as rows (n,) of the data, where each is cut from its padded picture (n, 2) as (top, left), and whether it is mirrored (n,)."""

    rows: Tensor
    corner: Tensor
    flip: Tensor


class Halves:
    """The sampler: the data split 1:1 at random, a batch of rows afresh for every (role, step, seed).

    Args:
        count: images in all; an odd one is left out.
        batch: rows of a draw.
        margin: pixels by which an image may be shifted in each direction, 4 in DARTS; 0 for none.
        flip: mirror every image with probability 1/2.
        full: rows that stand for all of a half where all the data is asked for (role "full": first check, evaluation); None takes
            the whole half, which a large supernet may not hold in memory at once.
        seed: of the split; runs of all seeds share it.
        device: where draws are made.
    """

    def __init__(
        self, count: int, batch: int = 64, *, margin: int = 0, flip: bool = False, full: int | None = 1024, seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        half = count // 2
        if batch < 2:
            raise InvalidInput(f"batch = {batch} is too small: batch norm takes its statistics from the batch; use at least 2")
        if batch > half:
            raise InvalidInput(f"batch = {batch}, but each half of {count} images has {half}; use a batch of at most {half}")
        if margin < 0 or (full is not None and full < 2):
            raise InvalidInput(f"margin = {margin}, full = {full}; the margin is at least 0 and `full` at least 2 rows, or None for all")
        self.batch, self.margin, self.flip, self.full, self.device = batch, margin, flip, full, device
        order = torch.randperm(count, generator=generator("split", 0, seed)).to(device)
        self.rows = {"lower": order[:half], "upper": order[half : 2 * half]}

    def __call__(self, level: str, role: str, t: int, seed: int) -> Draw:
        """The draw of one role; "full" is neither shifted nor mirrored."""
        rows = self.rows[level]
        if role == "full":
            rows = rows[: self.full]
            corner = torch.full((len(rows), 2), self.margin, device=self.device)
            return Draw(rows, corner, torch.zeros_like(rows, dtype=torch.bool))
        stream = generator(role, t, seed, self.device)
        rows = rows[torch.randperm(len(rows), generator=stream, device=self.device)[: self.batch]]
        corner = torch.randint(2 * self.margin + 1, (self.batch, 2), generator=stream, device=self.device)
        mirrored = torch.rand(self.batch, generator=stream, device=self.device) < 0.5
        return Draw(rows, corner, mirrored if self.flip else torch.zeros_like(mirrored))


class Search(Problem):
    """The problem on images that lie on the device.

    Args:
        network: the supernet.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        halves: draws of rows of `images`, on the same device.
        objectives: which of `OBJECTIVES`, in this order; the paper's smaller form is ("loss", "flops").
        reading: of FLOPs, "paper" or "real".
        decay: weight decay of the lower level, 3e-4 in the paper.

    >>> from bipareto.experiments.nas.supernet import NasBench201
    >>> images, labels = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8), torch.arange(16) % 10
    >>> problem = Search(NasBench201(channels=2, size=8), images, labels, Halves(16, batch=4))
    >>> problem.check(*problem.network.start(seed=0))
    4
    """

    def __init__(
        self, network: Supernet, images: Tensor, labels: Tensor, halves: Halves, *, objectives: Sequence[str] = OBJECTIVES,
        reading: Reading = "real", decay: float = 0.0,
    ) -> None:  # fmt: skip
        self._check(network, images, labels, halves, objectives)
        super().__init__(self._objectives, self._training, sampler=halves, names=objectives)
        self.joined, self.folded = network.joined, network.folded
        self.network, self.labels, self.halves, self.objectives, self.decay = network, labels, halves, tuple(objectives), decay
        sample = images[:: max(1, len(images) // 4096)].float() / 255
        spread, mean = torch.std_mean(sample, (0, 2, 3))
        self._scale, self._shift = (1 / (255 * spread))[:, None, None], (mean / spread)[:, None, None]
        self._padded = pad(images, (halves.margin,) * 4)
        tables = {"flops": flops_ratios(network, reading), "skip": skip_table(network.space), "pooling": pooling_table(network.space)}
        self._tables = tree.map_(lambda table: table.to(images.device), tables)

    @staticmethod
    def _check(network: Supernet, images: Tensor, labels: Tensor, halves: Halves, objectives: Sequence[str]) -> None:
        if images.dtype != torch.uint8 or images.shape[1:] != (3, network.size, network.size):
            raise InvalidInput(f"images are {tuple(images.shape)} in {images.dtype}; need uint8 of (N, 3, {network.size}, {network.size})")
        if labels.shape != images.shape[:1] or int(labels.min()) < 0 or int(labels.max()) >= network.classes:
            raise InvalidInput(f"labels have shape {tuple(labels.shape)}; give every image a class from 0 to {network.classes - 1}")
        if max(int(rows.max()) for rows in halves.rows.values()) >= len(images):
            raise InvalidInput(f"the split is of more rows than the {len(images)} images; make it with Halves({len(images)})")
        if not labels.device == images.device == halves.rows["lower"].device:
            raise InvalidInput(
                f"images are on {images.device}, labels on {labels.device}, draws on {halves.rows['lower'].device}; "
                "put all on one: labels.to(images.device), Halves(..., device=images.device)"
            )
        unknown = [name for name in objectives if name not in OBJECTIVES]
        if unknown or not objectives or len(set(objectives)) != len(objectives):
            raise InvalidInput(f"objectives are {list(objectives)}; choose some of {', '.join(OBJECTIVES)}, each once")

    def pixels(self, draw: Draw) -> Tensor:
        """The images of a draw, (n, 3, H, W): shifted and mirrored by one gather, each channel with mean 0 and variance 1 over the data."""
        side = torch.arange(self.network.size, device=draw.rows.device)
        across = torch.where(draw.flip[:, None], side.flip(0), side) + draw.corner[:, 1:]
        down = side + draw.corner[:, :1]
        channel = torch.arange(3, device=draw.rows.device)
        chosen = self._padded[draw.rows[:, None, None, None], channel[:, None, None], down[:, None, :, None], across[:, None, None, :]]
        return chosen * self._scale - self._shift

    def loss(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        """Mean cross entropy of a draw, shape ()."""
        return self._judged(x, y, self.pixels(draw), draw)

    def _judged(self, x: Tree, y: Tree, pixels: Tensor, draw: Draw) -> Tensor:
        return cross_entropy(self.network.logits(x, y, pixels.to(y["head"]["bias"].dtype)), self.labels[draw.rows])

    def _value(self, name: str, x: Tree, y: Tree, draw: Draw) -> Tensor:
        if name == "loss":
            return self.loss(x, y, draw)
        kind = next(iter(x.values())).dtype
        return mean_over_edges(x, {cell: table.to(kind) for cell, table in self._tables[name].items()})

    def _objectives(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        return torch.stack([self._value(name, x, y, draw) for name in self.objectives])

    def _decayed(self, loss: Tensor, y: Tree) -> Tensor:
        return loss + 0.5 * self.decay * tree.squared_norm(y) if self.decay else loss

    def _training(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        return self._decayed(self.loss(x, y, draw), y)

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f_i alone: only the loss runs the network."""
        return self._value(self.objectives[i], x, y, batch)

    def lower_joined(self, x: Tree, vector: Tensor, split: Callable[[Tensor], Tree], batch: Any = None) -> Tensor:
        """The decay is taken on the vector."""
        return self._decayed(self.loss(x, split(vector), batch), vector)

    def lower_pair(self, x: Tree, y: Tree, theta: Tree, batch: Any = None) -> tuple[Tensor, Tensor]:
        """Both on the same pixels, which are gathered once."""
        pixels = self.pixels(batch)
        at_y, at_theta = (self._decayed(self._judged(x, weights, pixels, batch), weights) for weights in (y, theta))
        return at_y, at_theta

    def check(self, x0: Tree, y0: Tree) -> int:
        """As for any problem; that FLOPs and densities do not depend on y is meant, and no reason to warn."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="objective . does not depend on y", category=BiparetoWarning)
            return super().check(x0, y0)
