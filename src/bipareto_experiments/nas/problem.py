"""Architecture search as a bilevel problem: logits x of the architecture, weights y of the
supernet.

f(x, y) = the chosen of (validation loss, FLOPs, skip density, pooling density),
g(x, y) = training loss + (decay / 2) |y|^2.

The images are split 1:1; the lower level sees one half, the upper level the other.  Test images,
which neither sees, are for judging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import Problem, tree
from bipareto.problem.sampler import Role, generator
from bipareto.problem.tree import Tree
from bipareto_experiments.nas.objectives import (
    Reading,
    flops_ratios,
    mean_over_edges,
    pooling_table,
    skip_table,
)
from bipareto_experiments.nas.pixels import Augmentation, Draw, Pixels
from bipareto_experiments.nas.sections import Layout
from bipareto_experiments.nas.supernet import Supernet

#: The paper's four, in its order.
OBJECTIVES = ("loss", "flops", "skip", "pooling")


_NONE = torch.empty(0, dtype=torch.int64)
#: Of the upper half: what is set aside for judging where a data set has no test images.
ASIDE = 0.2


class Cooling(NamedTuple):
    """The temperature of drawn architectures, first (last/first)^(t/steps) at step t."""

    first: float
    last: float
    steps: int

    def at(self, t: Tensor) -> Tensor:
        """At steps t (n,)."""
        return self.first * (self.last / self.first) ** (t / self.steps).clamp(max=1.0)


_EVEN = Cooling(1.0, 1.0, 1)


class Halves:
    """The sampler: the data split 1:1 at random; every role goes through its half in epochs, each
    in an order of its own.

    What role, step and seed draw depends on nothing else.  The order of an epoch is kept while it
    lasts, so a draw is a slice of it and costs nothing on a GPU.

    Args:
        count: images in all, the first rows of the data; an odd one is left out.
        batch: rows of a draw.
        margin, flip, cutout: see `Augmentation`.
        full: rows that stand for all of a half where all the data is asked for (role "full": first
            check, evaluation); None takes the whole half, which a large supernet may not hold in
            memory at once.
        numbers: random numbers that a draw brings beside its images, with a temperature behind
            them; none with "full".
        cooling: the temperature by step; with `numbers` only.
        twin: all roles of the lower level are given the same draw, one for each of several steps
            on g.  Two weights that follow g then follow the same noise, which cancels in their
            difference.
        test: rows that neither level sees, for judging; None sets a fifth of the upper half aside
            for it, an empty tensor nothing.
        seed: of the split; runs of all seeds share it.
        device: where draws are made.
    """

    def __init__(
        self,
        count: int,
        batch: int = 64,
        *,
        margin: int = 0,
        flip: bool = False,
        cutout: int = 0,
        full: int | None = 1024,
        numbers: int = 0,
        cooling: Cooling = _EVEN,
        twin: bool = False,
        test: Tensor | None = _NONE,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        half = count // 2
        if batch < 2:
            raise InvalidInput(
                f"batch = {batch} is too small: batch norm takes its statistics from the batch; "
                "use at least 2"
            )
        least = half - (int(ASIDE * half) if test is None else 0)
        if batch > least:
            aside = (
                ""
                if test is not None
                else f" (a fifth of one is set aside for judging: {least} are left)"
            )
            raise InvalidInput(
                f"batch = {batch}, but each half of {count} images has {half}{aside}; use a batch "
                f"of at most {least}"
            )
        if full is not None and full < 2:
            raise InvalidInput(f"full = {full}; batch norm needs at least 2 rows, or None for all")
        self.augmentation = Augmentation(margin, flip, cutout)
        self.augmentation.check()
        if min(cooling) <= 0:
            raise InvalidInput(f"{cooling}: temperatures and the number of steps must be above 0")
        self.batch, self.full, self.numbers, self.cooling, self.device = (
            batch,
            full,
            numbers,
            cooling,
            device,
        )
        self.twin = twin
        order = torch.randperm(count, generator=generator("split", 0, seed)).to(device)
        unseen = order[half + least : 2 * half] if test is None else test.to(device)
        self.rows = {"lower": order[:half], "upper": order[half : half + least], "test": unseen}
        self._epochs: dict[tuple[Role, int], tuple[int, Draw]] = {}

    def __call__(self, role: Role, t: int, seed: int) -> Draw:
        """The draw of one role; the images of "full" are as they are."""
        level = role.level
        if role.full:
            return self.augmentation.plain(self.rows[level][: self.full])
        if self.twin and level == "lower":
            role = Role("lower", "", role.objective)
        draws = len(self.rows[level]) // self.batch
        epoch, place = divmod(t, draws)
        kept = self._epochs.get((role, seed))
        if kept is None or kept[0] != epoch:
            stream = generator(role, epoch, seed, self.device)
            shuffled = self.augmentation.shuffled(self.rows[level], stream)
            noise = torch.rand(draws, self.numbers, generator=stream, device=self.device)
            if self.numbers:
                steps = torch.arange(epoch * draws, (epoch + 1) * draws, device=self.device)
                noise = torch.cat([noise, self.cooling.at(steps)[:, None]], 1)
            kept = self._epochs[role, seed] = (epoch, shuffled._replace(noise=noise))
        rows, corner, flip, hole = (
            leaf[place * self.batch : (place + 1) * self.batch] for leaf in kept[1][:-1]
        )
        return Draw(rows, corner, flip, hole, kept[1].noise[place])


class Search(Problem):
    """The problem on images that lie on the device.

    Args:
        network: the supernet.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        halves: draws of rows of `images`, on the same device.
        objectives: which of `OBJECTIVES`, in this order; the paper's smaller form is ("loss",
            "flops").
        reading: of FLOPs, "paper" or "real".
        decay: weight decay of the lower level, 3e-4 in the paper.
        clip: bound on the norm of a loss's gradient in the weights, 5 in DARTS; None for none.

    Where draws bring numbers (`Halves`), each judges an architecture of its own, softmax((x + G) /
    T) with Gumbel noise G (Maddison, Mnih and Teh 2017) and the draw's temperature T; else the
    mixture softmax(x) is judged.  An edge that mostly draws "none" then costs accuracy, where in a
    mixture batch norm undoes the scaling.

    y is the supernet's tree of weights, or all of them in one vector (`start`): then a step moves
    them in one operation.

    >>> from bipareto_experiments.nas.supernet import NasBench201
    >>> images, labels = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8), torch.arange(16) % 10
    >>> problem = Search(NasBench201(channels=2, size=8), images, labels, Halves(16, batch=4))
    >>> problem.check(*problem.network.start(seed=0))
    4
    """

    def __init__(
        self,
        network: Supernet,
        images: Tensor,
        labels: Tensor,
        halves: Halves,
        *,
        objectives: Sequence[str] = OBJECTIVES,
        reading: Reading = "real",
        decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        self._check(network, images, labels, halves, objectives)
        if halves.numbers not in (0, network.space.numbers):
            raise InvalidInput(
                f"draws bring {halves.numbers} numbers; to draw architectures of "
                f"{network.space.name} they need "
                f"Halves(..., numbers={network.space.numbers})"
            )
        if decay < 0 or (clip is not None and not clip > 0):
            raise InvalidInput(
                f"decay = {decay}, clip = {clip}; the decay is at least 0, and the bound above 0 "
                "or None"
            )
        super().__init__(self._objectives, self._training, sampler=halves, names=objectives)
        self.parts = tuple(0 if name == "loss" else None for name in objectives)
        self.folded = network.folded
        self.network, self.labels, self.halves, self.objectives, self.decay, self.clip = (
            network,
            labels,
            halves,
            tuple(objectives),
            decay,
            clip,
        )
        weights = tree.map_(lambda leaf: leaf.to("meta"), network.start(0)[1])
        # A vector's weights: for kernels that take a cell's in one piece as sections, else leaf by
        # leaf, cut at once.
        self._parted: Callable[[Tensor], Tree] = (
            Layout.of(weights).split if self.folded else partial(tree.unravel, like=weights)
        )
        self.pixels = Pixels(
            images, halves.augmentation, torch.cat([halves.rows["lower"], halves.rows["upper"]])
        )
        tables = {
            "flops": flops_ratios(network, reading),
            "skip": skip_table(network.space),
            "pooling": pooling_table(network.space),
        }
        self._tables = tree.map_(lambda table: table.to(images.device), tables)

    @staticmethod
    def _check(
        network: Supernet, images: Tensor, labels: Tensor, halves: Halves, objectives: Sequence[str]
    ) -> None:
        if images.dtype != torch.uint8 or images.shape[1:] != (3, network.size, network.size):
            raise InvalidInput(
                f"images are {tuple(images.shape)} in {images.dtype}; need uint8 of (N, 3, "
                f"{network.size}, {network.size})"
            )
        if (
            labels.shape != images.shape[:1]
            or int(labels.min()) < 0
            or int(labels.max()) >= network.classes
        ):
            raise InvalidInput(
                f"labels have shape {tuple(labels.shape)}; give every image a class from 0 to "
                f"{network.classes - 1}"
            )
        if max(int(rows.max()) for rows in halves.rows.values() if len(rows)) >= len(images):
            raise InvalidInput(
                f"the split is of more rows than the {len(images)} images; make it with "
                f"Halves({len(images)})"
            )
        if not labels.device == images.device == halves.rows["lower"].device:
            raise InvalidInput(
                f"images are on {images.device}, labels on {labels.device}, draws on "
                f"{halves.rows['lower'].device}; "
                "put all on one: labels.to(images.device), Halves(..., device=images.device)"
            )
        unknown = [name for name in objectives if name not in OBJECTIVES]
        if unknown or not objectives or len(set(objectives)) != len(objectives):
            raise InvalidInput(
                f"objectives are {list(objectives)}; choose some of {', '.join(OBJECTIVES)}, each "
                "once"
            )

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """x_0, and y_0 as one vector, where the images are."""
        x, y = self.network.start(seed)
        return tree.map_(lambda leaf: leaf.to(self.labels.device), (x, tree.ravel(y)))

    def loss(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        """Mean cross entropy of a draw, shape ()."""
        return self._judged(x, y, self.pixels(draw), draw)

    def accuracy(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        """The share of a draw's images that are told right, shape ()."""
        scores = self._scores(x, y, self.pixels(draw), draw)
        return (scores.argmax(-1) == self.labels[draw.rows]).to(scores.dtype).mean()

    def _judged(self, x: Tree, y: Tree, pixels: Tensor, draw: Draw) -> Tensor:
        return _cross_entropy(self._scores(x, y, pixels, draw), self.labels[draw.rows])

    def _scores(self, x: Tree, y: Tree, pixels: Tensor, draw: Draw) -> Tensor:
        if self.clip is not None:
            y = _Clipped.apply(y if isinstance(y, Tensor) else tree.ravel(y), self.clip)  # type: ignore[no-untyped-call]
        if draw.noise.shape[
            -1
        ]:  # none where all the data is asked for: the mixture itself is evaluated
            x = _drawn(x, draw.noise)
        weights = self._parted(y) if isinstance(y, Tensor) else y
        return self.network.logits(x, weights, pixels.to(tree.first_leaf(y).dtype))

    def _value(self, name: str, x: Tree, y: Tree, draw: Draw) -> Tensor:
        if name == "loss":
            return self.loss(x, y, draw)
        kind = next(iter(x.values())).dtype
        return mean_over_edges(
            x, {cell: table.to(kind) for cell, table in self._tables[name].items()}
        )

    def _objectives(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        return torch.stack([self._value(name, x, y, draw) for name in self.objectives])

    def _decayed(self, loss: Tensor, y: Tree) -> Tensor:
        return loss + 0.5 * self.decay * tree.squared_norm(y) if self.decay else loss

    def _training(self, x: Tree, y: Tree, draw: Draw) -> Tensor:
        return self._decayed(self.loss(x, y, draw), y)

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        """f_i alone: only the loss runs the network."""
        return self._value(self.objectives[i], x, y, batch)

    def lower_pair(self, x: Tree, y: Tree, theta: Tree, batch: Any = None) -> tuple[Tensor, Tensor]:
        """Both on the same pixels, which are gathered once; in one pass where the network takes
        several runs.
        """
        pixels = self.pixels(batch)

        def value(weights: Tree) -> Tensor:
            return self._decayed(self._judged(x, weights, pixels, batch), weights)

        if not self.folded:
            return value(y), value(theta)
        both = torch.func.vmap(value)(tree.stack([y, theta]))
        return both[0], both[1]


def _drawn(x: Tree, noise: Tensor) -> Tree:
    """Logits of an architecture near x: (x + G) / T, G = -log(-log(u)) by Gumbel's
    distribution; T is the last number, u the others.
    """
    temperature = noise[-1]
    gumbel = -torch.log(-torch.log(noise[:-1].clamp(1e-6, 1 - 1e-6)))
    parts = gumbel.split([table.numel() for table in x.values()])
    return {
        kind: (table + part.view_as(table)) / temperature
        for (kind, table), part in zip(x.items(), parts, strict=True)
    }


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over a batch: scores (n, classes), labels (n,).  Torch's own, with `vmap`, looks in
    several passes for labels to ignore.
    """
    own = labels[:, None] == torch.arange(scores.shape[-1], device=labels.device)
    return torch.where(own, scores.log_softmax(-1), 0.0).sum() / -len(labels)


class _Clipped(torch.autograd.Function):
    """The identity, whose gradient is scaled down to a norm."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, bound: float) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        norm = torch.linalg.vector_norm(gradient)
        return gradient * (ctx.bound / norm.clamp_min(ctx.bound)), None
