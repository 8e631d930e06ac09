"""FC100: CIFAR-100 for few-shot learning, split by superclass, so that training and test classes
are not even cousins (Oreshkin et al., 2018).
"""

from __future__ import annotations

import json
from pathlib import Path

from bipareto.errors import InvalidInput
from bipareto_experiments.data.images import DataError, ImageSet

#: the superclasses of each split
FC100 = {
    "train": (
        "fish",
        "flowers",
        "food_containers",
        "fruit_and_vegetables",
        "household_electrical_devices",
        "household_furniture",
        "large_man-made_outdoor_things",
        "large_natural_outdoor_scenes",
        "reptiles",
        "trees",
        "vehicles_1",
        "vehicles_2",
    ),
    "validation": (
        "large_carnivores",
        "large_omnivores_and_herbivores",
        "non-insect_invertebrates",
        "small_mammals",
    ),
    "test": ("aquatic_mammals", "insects", "medium_mammals", "people"),
}

#: lists the classes of the splits by name; used where the data folder has it
FC100_FILE = "fc100_cifarfs_splits.json"


def fc100_classes(images: ImageSet, folder: str | Path | None = None) -> dict[str, tuple[int, ...]]:
    """The classes of `train` (60), `validation` (20) and `test` (20) in CIFAR-100.

    Args:
        images: CIFAR-100.
        folder: where `fc100_cifarfs_splits.json` may lie; without it the superclasses of `FC100`
            decide, which gives the same.
    """
    listed = None if folder is None else Path(folder) / FC100_FILE
    if listed is not None and listed.exists():
        return _from_file(listed, images)
    missing = [
        group for groups in FC100.values() for group in groups if group not in images.group_names
    ]
    if missing:
        raise InvalidInput(
            f"{images.name} has no superclass {missing[0]!r}; FC100 is a split of CIFAR-100 with "
            "its 20 superclasses"
        )
    return {
        split: tuple(sorted(c for group in groups for c in images.members(group)))
        for split, groups in FC100.items()
    }


def _from_file(path: Path, images: ImageSet) -> dict[str, tuple[int, ...]]:
    number = {name: c for c, name in enumerate(images.class_names)}
    try:
        data = json.loads(path.read_text("utf-8"))["fc100"]
        names = {
            split: data[key]["fine_names"]
            for split, key in (("train", "train"), ("validation", "val"), ("test", "test"))
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a list of FC100's splits ({error!r}); remove it: the splits are known "
            "without it"
        ) from error
    unknown = [name for listed in names.values() for name in listed if name not in number]
    if unknown:
        raise InvalidInput(
            f"{images.name} has no class {unknown[0]!r}; FC100 is a split of CIFAR-100"
        )
    return {
        split: tuple(sorted(number[name] for name in listed)) for split, listed in names.items()
    }
