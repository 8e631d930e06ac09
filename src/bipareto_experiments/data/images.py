"""Labelled images in memory, and the errors of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bipareto.errors import BiparetoError, InvalidInput


class DataError(BiparetoError, RuntimeError):
    """A data file cannot be used; the message names the file, what is wrong with it and the
    remedy.
    """


class MissingData(DataError):
    """A set is not in the data folder; the message says what to put where."""


class WrongSize(DataError):
    """The images of a file have another size than was asked for."""


@dataclass(frozen=True)
class Summary:
    """What can be said of a set without decoding it.

    images, test: how many there are, and how many of them are the set's own test split.
    classes: how many, those included that are dropped as clutter.
    side: of the images in pixels, None where they are pictures of any shape.
    note: how true the pixels are.
    """

    images: int
    test: int
    classes: int
    side: int | None
    note: str


@dataclass(frozen=True)
class ImageSet:
    """N labelled colour images of C classes.

    name: what the set is called.
    images (N, 3, H, W) uint8 and labels (N,) int64 into class_names, on the CPU.
    test (N,) bool: belongs to the set's own test split; all False where there is none.
    class_names: C names.
    group (C,) int64 into group_names: the superclass or domain of each class, None where the set
        names none.
    note: how true the pixels are to the original; to be said wherever a result is reported.
    """

    name: str
    images: Tensor
    labels: Tensor
    test: Tensor
    class_names: tuple[str, ...]
    group: Tensor | None = None
    group_names: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        n, classes = len(self.images), len(self.class_names)
        if self.images.dim() != 4 or self.images.shape[1] != 3 or self.images.dtype != torch.uint8:
            raise InvalidInput(
                f"images of {self.name} have shape {tuple(self.images.shape)} and "
                f"{self.images.dtype}; need (N, 3, H, W) in uint8"
            )
        if self.labels.shape != (n,) or self.test.shape != (n,):
            found = f"{tuple(self.labels.shape)} labels and {tuple(self.test.shape)} test flags"
            raise InvalidInput(
                f"{self.name} has {n} images but {found}; need one of each per image"
            )
        if n and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < classes:
            raise InvalidInput(
                f"labels of {self.name} go from {int(self.labels.min())} to "
                f"{int(self.labels.max())}; the {classes} classes are 0 to {classes - 1}"
            )
        if len(set(self.class_names)) < classes:
            twice = sorted({name for name in self.class_names if self.class_names.count(name) > 1})
            raise InvalidInput(f"{self.name} has several classes of one name: {', '.join(twice)}")
        if self.group is not None and self.group.shape != (classes,):
            raise InvalidInput(
                f"group of {self.name} has shape {tuple(self.group.shape)}; need one entry for "
                f"each of the {classes} classes"
            )
        if (
            self.group is not None
            and classes
            and not 0 <= int(self.group.min()) <= int(self.group.max()) < len(self.group_names)
        ):
            raise InvalidInput(
                f"group of {self.name} goes up to {int(self.group.max())}; the "
                f"{len(self.group_names)} groups count from 0"
            )

    def __len__(self) -> int:
        return len(self.images)

    def counts(self) -> Tensor:
        """How many images each class has, shape (C,)."""
        return torch.bincount(self.labels, minlength=len(self.class_names))

    def members(self, group: str) -> tuple[int, ...]:
        """The classes of one group."""
        if self.group is None or group not in self.group_names:
            raise InvalidInput(
                f"{self.name} has no group {group!r}; its groups: "
                f"{', '.join(self.group_names) or 'none'}"
            )
        return tuple(
            int(c) for c in (self.group == self.group_names.index(group)).nonzero().flatten()
        )

    def select(self, classes: Sequence[int]) -> ImageSet:
        """Only these classes, renumbered in the order given; groups stay as they are."""
        wanted = torch.as_tensor(list(classes), dtype=torch.int64)
        number = torch.full((len(self.class_names),), -1)
        number[wanted] = torch.arange(len(wanted))
        kept = (number[self.labels] >= 0).nonzero().flatten()
        return replace(
            self,
            images=self.images[kept],
            labels=number[self.labels[kept]],
            test=self.test[kept],
            class_names=tuple(self.class_names[c] for c in classes),
            group=None if self.group is None else self.group[wanted],
        )

    def without(self, names: Sequence[str]) -> ImageSet:
        """All classes but those of these names; names that are not there are nothing to drop."""
        kept = [c for c, name in enumerate(self.class_names) if name not in names]
        return self if len(kept) == len(self.class_names) else self.select(kept)

    @classmethod
    def joined(cls, sets: Sequence[ImageSet]) -> ImageSet:
        """Several sets as one: each a group under its name, a class then called SET/CLASS."""
        if len({one.name for one in sets}) < len(sets):
            raise InvalidInput(
                f"sets to join are {', '.join(one.name for one in sets)}; name each once"
            )
        shapes = {one.name: tuple(one.images.shape[1:]) for one in sets}
        if len(set(shapes.values())) > 1:
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise InvalidInput(
                f"sets to join have images of different shapes: {found}; load all at one size"
            )
        begin = [0]
        for one in sets:
            begin.append(begin[-1] + len(one.class_names))
        return cls(
            name=" + ".join(one.name for one in sets),
            images=torch.cat([one.images for one in sets]),
            labels=torch.cat([one.labels + b for one, b in zip(sets, begin, strict=False)]),
            test=torch.cat([one.test for one in sets]),
            class_names=tuple(f"{one.name}/{label}" for one in sets for label in one.class_names),
            group=torch.cat([torch.full((len(one.class_names),), k) for k, one in enumerate(sets)]),
            group_names=tuple(one.name for one in sets),
            note="; ".join(f"{one.name}: {one.note}" for one in sets),
        )
