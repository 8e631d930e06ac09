"""The images of a search, on their device, with the problem to be searched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bipareto.errors import InvalidInput
from bipareto.problem.sampler import generator
from bipareto_experiments.data import ImageSet, load
from bipareto_experiments.devices import device_of
from bipareto_experiments.nas.problem import Halves, Search
from bipareto_experiments.nas.settings import Settings

__all__ = ["Task", "build", "generated"]


@dataclass(frozen=True)
class Task:
    """What a search runs on.

    Args:
        settings: of the search.
        images: the data set; its own test split takes no part in a search.
        device: where everything happens.
        full: images of each half by which a supernet is judged.
    """

    settings: Settings
    images: ImageSet
    device: torch.device
    full: int = 1024
    problem: Search = field(init=False)

    def __post_init__(self) -> None:
        own, chosen = ~self.images.test, self.settings
        pixels, labels = (
            self.images.images[own].to(self.device),
            self.images.labels[own].to(self.device),
        )
        if pixels.shape[-1] != pixels.shape[-2]:
            raise InvalidInput(
                f"images of {self.images.name} are {pixels.shape[-2]} x {pixels.shape[-1]}; a "
                "supernet needs squares"
            )
        network = chosen.network(pixels.shape[-1], len(self.images.class_names))
        numbers = network.space.numbers if chosen.sampled else 0
        halves = Halves(
            len(pixels),
            chosen.batch,
            margin=chosen.margin,
            flip=chosen.flip,
            cutout=chosen.cutout,
            full=self.full,
            numbers=numbers,
            device=self.device,
        )
        kept = {
            name: getattr(chosen, name)
            for name in ("objectives", "reading", "decay", "clip", "sampled")
        }
        problem = Search(network, pixels, labels, halves, **kept)
        object.__setattr__(self, "problem", problem)

    def key(self) -> dict[str, object]:
        """What decides the result of a search beside method, preference and seed, as JSON."""
        return {"data": self.images.name, "settings": self.settings.to_json()}

    def lasting(self, factor: int) -> Task:
        """The same task with so many times the steps, and a problem of its own: what is recorded
        for that goes when it goes.
        """
        return replace(self, settings=replace(self.settings, steps=factor * self.settings.steps))


def build(
    settings: Settings,
    dataset: str = "cifar10",
    *,
    folder: str | Path | None = None,
    device: str | None = None,
) -> Task:
    """The task on real images.

    Args:
        settings: of the search.
        dataset: "cifar10", or another image set.
        folder: of the data; None is BIPARETO_DATA.
        device: None is the GPU where there is one.
    """
    where = device_of(device)
    return Task(settings, load(dataset, folder), where)


def generated(settings: Settings, seed: int = 0, device: str | None = "cpu") -> Task:
    """A small task on generated images, for tests and a first try: four classes of coarse coloured
    patterns, 8 x 8 pixels under noise.
    """
    stream, classes, count, side = generator("generated images", 0, seed), 4, 60, 8
    coarse = torch.randn(classes, 3, 4, 4, generator=stream)
    pattern = torch.nn.functional.interpolate(coarse, side, mode="bilinear")
    noisy = pattern.unsqueeze(1) + torch.randn(classes, count, 3, side, side, generator=stream)
    labels = torch.arange(classes).repeat_interleave(count)
    images = ImageSet(
        name="generated",
        images=(128 + 40 * noisy).clamp(0, 255).to(torch.uint8).flatten(0, 1),
        labels=labels,
        test=torch.zeros(len(labels), dtype=torch.bool),
        class_names=tuple(f"class {k}" for k in range(classes)),
        note="generated",
    )
    return Task(settings, images, device_of(device), full=64)
