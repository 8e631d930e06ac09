"""The images of a search, on their device, with the problem to be searched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bipareto.errors import InvalidInput
from bipareto.problem.sampler import generator
from bipareto_experiments.data import ImageSet, load
from bipareto_experiments.devices import device_of
from bipareto_experiments.nas.problem import Cooling, Halves, Search
from bipareto_experiments.nas.settings import Settings


@dataclass(frozen=True)
class Task:
    """What a search runs on.

    Args:
        settings: of the search.
        images: the data set; its own test split takes no part in a search.  Where it has none, a
            fifth of the validation images are set aside to judge by: `judged_on` says which.
        device: where everything happens.
        full: images of each half by which a supernet is judged.
    """

    settings: Settings
    images: ImageSet
    device: torch.device
    full: int = 1024
    problem: Search = field(init=False)

    def __post_init__(self) -> None:
        chosen, count = self.settings, int((~self.images.test).sum())
        order = self.images.test.int().argsort(stable=True)  # the test images last
        pixels, labels = (
            _sized(self.images, chosen.side)[order].to(self.device),
            self.images.labels[order].to(self.device),
        )
        network = chosen.network(pixels.shape[-1], len(self.images.class_names))
        drawn: dict[str, Any] = {"twin": chosen.twin}
        if chosen.sampled:
            drawn |= {
                "numbers": network.space.numbers,
                "cooling": Cooling(chosen.sampled, chosen.cooled or chosen.sampled, chosen.steps),
            }
        # Test images may stand class by class, but batch norm wants batches of all classes.
        halves = Halves(
            count,
            chosen.batch,
            margin=chosen.margin,
            flip=chosen.flip,
            cutout=chosen.cutout,
            full=self.full,
            device=self.device,
            test=count + torch.randperm(len(pixels) - count, generator=generator("test", 0, 0))
            if count < len(pixels)
            else None,
            **drawn,
        )
        kept = {name: getattr(chosen, name) for name in ("objectives", "reading", "decay", "clip")}
        problem = Search(network, pixels, labels, halves, **kept)
        object.__setattr__(self, "problem", problem)

    @property
    def judged_on(self) -> str:
        """Which images, that neither level saw, a supernet is judged by."""
        if bool(self.images.test.any()):
            return f"the test images of {self.images.name}"
        return f"a fifth of the validation images, set aside: {self.images.name} has no test split"

    def key(self) -> dict[str, object]:
        """What decides the result of a search beside method, preference and seed, as JSON."""
        return {"data": self.images.name, "settings": self.settings.to_json()}

    def lasting(self, steps: int, method: str) -> Task:
        """The same task with so many steps and a method's kind of draws, and a problem of its own:
        what is recorded for that goes when it goes.
        """
        changed = replace(self.settings, steps=steps, twin=self.settings.twins(method))
        return replace(self, settings=changed)


def _sized(images: ImageSet, side: int | None) -> Tensor:
    """The images, each square of pixels that becomes one averaged, (N, 3, side, side) uint8; as
    they are with None.
    """
    pixels = images.images
    height, width = pixels.shape[-2:]
    if height != width:
        raise InvalidInput(
            f"images of {images.name} are {height} x {width}; a supernet needs squares"
        )
    if side is None or side == width:
        return pixels
    if side < 1 or width % side:
        raise InvalidInput(
            f"side = {side}, but images of {images.name} have {width} pixels; choose a divisor of "
            "that"
        )
    parts = [
        avg_pool2d(part.float(), width // side).round().to(torch.uint8)
        for part in pixels.split(4096)
    ]
    return torch.cat(parts)


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
