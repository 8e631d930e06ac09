"""Episodes: in every domain a few classes, with some images to learn from and others to be judged
by.

An episode is rows of the image tensor, not images: (domains, ways * shots), class by class, so that
labels are known by place and a step gathers the images itself.  Episodes are pure in (step, seed)
and made on the device, many at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.problem.sampler import Role, generator

#: Episodes that are drawn together: a draw costs the same for one as for many.
_BLOCK = 256


class Episode(NamedTuple):
    """Rows of images: `support` (..., domains, ways * shots), `query` (..., domains, ways *
    queries); `*_flip` mirrors an image.
    """

    support: Tensor
    query: Tensor
    support_flip: Tensor
    query_flip: Tensor


class Episodes:
    """Draws of episodes; call it as a problem's sampler: level "lower" gives support sets, "upper"
    query sets.

    Args:
        labels: (N,) class of every image.
        classes: for each domain the classes to draw from.
        ways, shots, queries: classes per domain, and images per class to learn from and to be
            judged by.
        flip: mirror every image with probability 1/2.
        name: names the stream; draws for training and testing must not be the same.
        device: where episodes are made.
    """

    def __init__(
        self,
        labels: Tensor,
        classes: tuple[tuple[int, ...], ...],
        *,
        ways: int = 5,
        shots: int = 5,
        queries: int = 15,
        flip: bool = False,
        name: str = "train",
        device: torch.device | str = "cpu",
    ) -> None:
        self.ways, self.shots, self.queries, self.flip, self.name, self.device = (
            ways,
            shots,
            queries,
            flip,
            name,
            device,
        )
        domains = len(classes)
        _check(labels, classes, ways, shots + queries)
        most = max(len(own) for own in classes)
        largest = int(torch.bincount(labels).max())
        #: (domains, most): which places hold a class
        self._real = torch.zeros(domains, most, dtype=torch.bool)
        #: (domains, most, largest): rows of each class
        self._rows = torch.zeros(domains, most, largest, dtype=torch.int64)
        self._count = torch.ones(domains, most, dtype=torch.int64)
        for d, own in enumerate(classes):
            for k, label in enumerate(own):
                rows = (labels == label).nonzero().flatten()
                self._real[d, k], self._count[d, k] = True, len(rows)
                self._rows[d, k, : len(rows)] = rows
        self._real, self._rows, self._count = (
            value.to(device) for value in (self._real, self._rows, self._count)
        )
        self._kept: dict[int, tuple[int, Episode]] = {}
        self._last: dict[int, tuple[int, dict[str, tuple[Tensor, Tensor]]]] = {}

    def block(self, index: int, seed: int, count: int = _BLOCK) -> Episode:
        """`count` episodes at once, pure in (index, seed)."""
        stream = generator(f"episodes-{self.name}", index, seed, self.device)
        domains, most, largest = self._rows.shape

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=stream, device=self.device)

        # The smallest of independent uniform numbers are a draw without replacement; what is not
        # there is never small.
        chosen = (
            uniform(count, domains, most)
            .masked_fill(~self._real, 2.0)
            .argsort(-1)[..., : self.ways]
        )
        domain = torch.arange(domains, device=self.device)[:, None]
        rows, sizes = self._rows[domain, chosen], self._count[domain, chosen]
        absent = torch.arange(largest, device=self.device) >= sizes[..., None]
        order = (
            uniform(count, domains, self.ways, largest)
            .masked_fill(absent, 2.0)
            .topk(self.shots + self.queries, largest=False)
            .indices
        )
        images = rows.gather(-1, order)
        support, query = (
            part.flatten(-2) for part in images.split([self.shots, self.queries], dim=-1)
        )
        flips = [
            (uniform(*part.shape) < 0.5) if self.flip else torch.zeros_like(part, dtype=torch.bool)
            for part in (support, query)
        ]
        return Episode(support, query, *flips)

    def __call__(self, role: Role, t: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows and flips of one level in the episode of step t; every role of a level is given the
        very same ones.
        """
        if self._last.get(seed, (None,))[0] != t:
            index = t // _BLOCK
            if self._kept.get(seed, (None,))[0] != index:
                self._kept[seed] = (index, self.block(index, seed))
            rows, judged, flip, judged_flip = (part[t % _BLOCK] for part in self._kept[seed][1])
            self._last[seed] = t, {"lower": (rows, flip), "upper": (judged, judged_flip)}
        return self._last[seed][1][role.level]


def _check(labels: Tensor, classes: tuple[tuple[int, ...], ...], ways: int, images: int) -> None:
    seen: dict[int, int] = {}
    counts = torch.bincount(labels)
    for d, own in enumerate(classes):
        if len(own) < ways:
            raise InvalidInput(
                f"domain {d + 1} has {len(own)} classes, too few for {ways}-way episodes; use "
                "fewer ways or larger domains"
            )
        for label in own:
            if label in seen:
                raise InvalidInput(
                    f"class {label} is in domains {seen[label] + 1} and {d + 1}; a class belongs "
                    "to one domain"
                )
            seen[label] = d
            found = int(counts[label]) if label < len(counts) else 0
            if found < images:
                raise InvalidInput(
                    f"class {label} has {found} images, too few for {images} per episode (to learn "
                    "from and to be judged by)"
                )
