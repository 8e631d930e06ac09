"""A data set cut into domains, with the problem to train on and the episodes to be judged by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problem.sampler import generator
from bipareto.problem.tree import Tree
from bipareto_experiments.data import ImageSet, fc100_classes, load
from bipareto_experiments.devices import device_of
from bipareto_experiments.fewshot.domains import (
    Domains,
    clustered_domains,
    named_domains,
    stored_domains,
    superclass_domains,
)
from bipareto_experiments.fewshot.episodes import Episodes
from bipareto_experiments.fewshot.network import Learner, Network
from bipareto_experiments.fewshot.problem import FewShot

#: Tasks whose images go through the backbone at once: a few GiB.
_AT_ONCE = 128


class Judged(NamedTuple):
    """Accuracy and cross entropy on query images after adaptation, (episodes, domains) each."""

    accuracy: Tensor
    loss: Tensor

    def mean(self) -> Tensor:
        """Accuracy per domain, (domains,)."""
        return self.accuracy.mean(0)


@dataclass(frozen=True)
class Task:
    """What an experiment runs on.

    Args:
        images: the data set; its pixels lie on `device`.
        domains: which classes train, validate and test.
        network: where x ends and y begins.
        device: where everything happens.
        flip: mirror training images at random.
        queries: images per class that an episode is judged by.
    """

    images: ImageSet
    domains: Domains
    network: Network
    device: torch.device
    flip: bool = True
    queries: int = 15
    problem: FewShot = field(init=False)

    def __post_init__(self) -> None:
        pixels = self.images.images.to(self.device)
        object.__setattr__(
            self,
            "problem",
            FewShot(
                self.network,
                pixels,
                self._episodes("train", self.domains.train),
                self.domains.names,
            ),
        )

    def _episodes(self, part: str, classes: tuple[tuple[int, ...], ...]) -> Episodes:
        return Episodes(
            self.images.labels,
            classes,
            queries=self.queries,
            flip=self.flip and part == "train",
            name=part,
            device=self.device,
        )

    def alone(self, i: int) -> Task:
        """The same with the i-th domain alone."""
        own = self.domains
        parts = {part: (getattr(own, part)[i],) for part in ("train", "validation", "test")}
        return replace(self, domains=replace(own, names=(own.names[i],), **parts))

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """x_0 and y_0 of a seed."""
        x, y = self.network.start(len(self.domains), seed)
        return tree.map_(lambda leaf: leaf.to(self.device), x), tree.map_(
            lambda leaf: leaf.to(self.device), y
        )

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """While it lasts, float32 products run in TF32 if the network is `half`: learners then use
        the tensor cores too.
        """
        products = torch.backends.cuda.matmul
        before = products.allow_tf32
        products.allow_tf32 = before or self.network.half
        try:
            yield
        finally:
            products.allow_tf32 = before

    def judge(
        self,
        x: Tree,
        y0: Tree,
        *,
        part: str = "test",
        episodes: int = 192,
        steps: int = 8,
        eta: float = 1.0,
        seed: int = 0,
    ) -> Judged:
        """Adapt to episodes of unseen classes from y_0, and look at their query images.

        Args:
            x: the backbone.
            y0: where learners start.
            part: "test" or "validation" (where the domains have it).
            episodes: how many per domain; the same ones for every x.
            steps, eta: of the adaptation.
        """
        classes = getattr(self.domains, part)
        if not all(classes):
            raise InvalidInput(
                f"the domains of {self.images.name} have no {part} classes; judge on test"
            )
        support, query, *flips = (
            rows.flatten(0, 1) for rows in self._episodes(part, classes).block(0, seed, episodes)
        )
        ways = self.network.ways
        right = torch.arange(ways, device=self.device).repeat_interleave(query.shape[1] // ways)
        with torch.no_grad(), self.arithmetic():
            learned, judged = (
                self._features(x, rows, flip)
                for rows, flip in zip((support, query), flips, strict=True)
            )
            y = self.problem.adapted(learned, y0, steps, eta)
            accuracy = (self.network.logits(y, judged).argmax(-1) == right).double().mean(1)
            loss = self.network.losses(y, judged)
        return Judged(accuracy.reshape(episodes, -1).cpu(), loss.reshape(episodes, -1).cpu())

    def _features(self, x: Tree, rows: Tensor, flip: Tensor) -> Tensor:
        """Of many tasks, a part of them after the other."""
        parts = zip(rows.split(_AT_ONCE), flip.split(_AT_ONCE), strict=True)
        return torch.cat([self.problem.features(x, part) for part in parts])


def build(
    dataset: str,
    learner: Learner,
    *,
    sets: Sequence[str] = (),
    folder: str | Path | None = None,
    device: str | None = None,
    seed: int = 42,
    half: bool | None = None,
) -> Task:
    """The task on real images.

    Args:
        sets: image sets or folders of class folders, each a domain, in place of `dataset`; classes
            of one name (four styles of the same things) are in the same part of every domain.
        dataset: "fc100" (superclasses as domains), "caltech101" (stored clusters), or another set's
            name (clustered here).
        learner: see `Network`.
        folder: of the data; None is BIPARETO_DATA.
        device: None is the GPU where there is one.
        seed: decides domains and splits.
        half: bfloat16 convolutions; None is where there is a GPU.
    """
    where = device_of(device)
    images, domains = _named(sets, folder, seed) if sets else _known(dataset, folder, seed)
    domains.check(images)
    on_gpu = where.type == "cuda"
    network = Network(
        learner, half=on_gpu if half is None else half, fused=on_gpu, size=images.images.shape[-1]
    )
    return Task(images, domains, network, where)


def _named(sets: Sequence[str], folder: str | Path | None, seed: int) -> tuple[ImageSet, Domains]:
    """Each set a domain."""
    if len(sets) < 2:
        raise InvalidInput(f"domains are {', '.join(sets)}; a trade-off needs at least two sets")
    images = ImageSet.joined([load(name, folder) for name in sets])
    return images, named_domains(images, seed)


def _known(dataset: str, folder: str | Path | None, seed: int) -> tuple[ImageSet, Domains]:
    """FC100 by its superclasses, Caltech-101 by stored clusters, any other set by clusters made
    here.
    """
    images = load("cifar100" if dataset == "fc100" else dataset, folder)
    if dataset == "caltech101":
        return images, stored_domains(images, seed)
    if dataset != "fc100":
        from bipareto_experiments.fewshot.features import class_features, pretrained

        features = class_features(images, pretrained(folder).trunk)
        return images, clustered_domains(images, features, seed)
    # The superclasses that FC100 keeps for validation are four as well: numbers are chosen on
    # classes nobody trains or tests on.
    held = sorted(fc100_classes(images, folder)["validation"])
    domains = superclass_domains(images, seed)
    assert images.group is not None
    group = images.group.tolist()
    validation = tuple(
        tuple(k for k in held if group[k] == g) for g in sorted({group[k] for k in held})
    )
    return images, replace(domains, validation=validation)


def generated(learner: Learner = "block", seed: int = 0, device: str | None = "cpu") -> Task:
    """A small task on generated images, for tests and a first try: a class is a coarse pattern, a
    domain its colour.

    8 x 8 pixels under strong noise, four domains of eight training and five test classes with 20
    images each, two blocks of eight channels, episodes of 5 + 3 images a class.
    """
    stream = generator("generated images", 0, seed)
    domains, classes, count, side = 4, 13, 20, 8

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream)

    pattern = torch.nn.functional.interpolate(
        normal(domains * classes, 1, 3, 3), side, mode="bilinear"
    ).unflatten(0, (domains, classes))
    colour = normal(domains, 1, 3, 1, 1)
    clean = pattern * colour / colour.norm(dim=2, keepdim=True)
    noisy = clean.unsqueeze(2) + 1.5 * normal(domains, classes, count, 3, side, side)
    pixels = (128 + 25 * noisy).clamp(0, 255).to(torch.uint8).flatten(0, 2)
    labels = torch.arange(domains * classes).repeat_interleave(count)
    names = tuple(f"domain {d + 1}" for d in range(domains))
    images = ImageSet(
        name="generated",
        images=pixels,
        labels=labels,
        test=torch.zeros(len(labels), dtype=torch.bool),
        class_names=tuple(f"class {k}" for k in range(domains * classes)),
        group=torch.arange(domains).repeat_interleave(classes),
        group_names=names,
        note="generated",
    )
    ids = torch.arange(domains * classes).reshape(domains, classes)
    cut: dict[str, Any] = {"train": ids[:, :8], "validation": ids[:, :0], "test": ids[:, 8:]}
    cut = {part: tuple(map(tuple, rows.tolist())) for part, rows in cut.items()}
    return Task(
        images,
        Domains(names, **cut),
        Network(learner, channels=8, blocks=2, size=side, hidden=16),
        device_of(device),
        queries=3,
    )
