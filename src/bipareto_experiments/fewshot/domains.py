"""Domains: which classes belong together, and which of them are for training, validation and test.

Three ways to them: FC100's superclasses, clusters of classes that look alike to a pretrained
network, and groups that a set names itself.  All are decided by a seed, and saved with a run by the
names of their classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto_experiments.data import FC100, ImageSet, MissingData
from bipareto_experiments.fewshot.clustering import cluster

if TYPE_CHECKING:
    pass


PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Domains:
    """The classes of D domains, as ids of an image set.

    names: D names.
    train, validation, test: the classes of each domain, D tuples each; all of `validation` may be
        empty.
    """

    names: tuple[str, ...]
    train: tuple[tuple[int, ...], ...]
    validation: tuple[tuple[int, ...], ...]
    test: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.names)

    def check(self, images: ImageSet, *, ways: int = 5, shots: int = 5, queries: int = 15) -> None:
        """Raise InvalidInput unless episodes of `ways` classes with `shots` + `queries` images each
        can be drawn everywhere.

        Args:
            images: the set that the classes are ids of.
            ways, shots, queries: the form of an episode.
        """
        for part in PARTS:
            if len(getattr(self, part)) != len(self):
                raise InvalidInput(
                    f"{len(self)} domains are named and {part} has {len(getattr(self, part))}; "
                    "need one tuple of classes per domain"
                )
        seen: dict[int, str] = {}
        counts = images.counts().tolist()
        for name, part, classes in self._entries():
            here = f"{part} of domain {name!r}"
            for c in classes:
                if not 0 <= c < len(counts):
                    raise InvalidInput(
                        f"{here} has class {c}; {images.name} has the classes 0 to "
                        f"{len(counts) - 1}"
                    )
                label = images.class_names[c]
                if c in seen:
                    raise InvalidInput(
                        f"class {label!r} is in {seen[c]} and in {here}; a class belongs to one "
                        "part of one domain"
                    )
                seen[c] = here
                if counts[c] < shots + queries:
                    need = f"{shots} shots and {queries} queries need {shots + queries}"
                    raise InvalidInput(
                        f"class {label!r} in {here} has {counts[c]} images; {need}: leave it out, "
                        "or ask for fewer"
                    )
            if len(classes) < ways and (classes or part != "validation"):
                listed = ", ".join(images.class_names[c] for c in classes) or "none"
                raise InvalidInput(
                    f"{here} has {len(classes)} classes ({listed}); {ways}-way episodes need "
                    f"{ways}: use fewer domains or fewer ways"
                )

    def _entries(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(domain, part, classes), all of them."""
        return [
            (name, part, getattr(self, part)[d])
            for d, name in enumerate(self.names)
            for part in PARTS
        ]

    def to_json(self, images: ImageSet) -> dict[str, Any]:
        """What `from_json` reads: classes by name, so that the table can be read and outlives a
        renumbering.
        """

        def by_name(classes: Sequence[int]) -> list[str]:
            return [images.class_names[c] for c in classes]

        domains = [
            {"name": name, **{part: by_name(getattr(self, part)[d]) for part in PARTS}}
            for d, name in enumerate(self.names)
        ]
        return {"set": images.name, "domains": domains}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], images: ImageSet) -> Domains:
        """The domains that `to_json` wrote.

        Args:
            data: its result.
            images: the same set, or one with all these classes.
        """
        number = {name: c for c, name in enumerate(images.class_names)}
        try:
            names = tuple(str(domain["name"]) for domain in data["domains"])
            parts = {
                part: tuple(
                    tuple(number[label] for label in domain[part]) for domain in data["domains"]
                )
                for part in PARTS
            }
        except KeyError as error:
            raise InvalidInput(
                f"the saved domains are of {data.get('set')!r} and need {error}, which "
                f"{images.name} does not have"
            ) from error
        except TypeError as error:
            raise InvalidInput(
                f"these are no saved domains ({error}); pass what to_json returned"
            ) from error
        return cls(names, parts["train"], parts["validation"], parts["test"])


def superclass_domains(images: ImageSet, seed: int, count: int = 4) -> Domains:
    """FC100's 12 training superclasses as 4 domains of 3 superclasses, 9 classes for training and 6
    for test each.

    The seed deals the superclasses to the domains.  Every superclass gives 3 of its 5 classes to
    training and 2 to test, so a test class is new but not of a new kind.

    Args:
        images: CIFAR-100 with its superclasses as groups.
        seed: decides everything.
        count: how many domains; must divide 12.
    """
    missing = [group for group in FC100["train"] if group not in images.group_names]
    if missing:
        raise InvalidInput(
            f"{images.name} has no superclass {missing[0]!r}; FC100 is made of CIFAR-100 with its "
            "superclasses as groups"
        )
    if count < 1 or len(FC100["train"]) % count:
        raise InvalidInput(
            f"count = {count}; the {len(FC100['train'])} superclasses are dealt to 1, 2, 3, 4, 6 "
            "or 12 domains"
        )
    generator = torch.Generator().manual_seed(seed)
    order = [
        FC100["train"][k] for k in torch.randperm(len(FC100["train"]), generator=generator).tolist()
    ]
    each = len(order) // count
    dealt = [sorted(order[d * each : (d + 1) * each]) for d in range(count)]
    halves = [
        [_split(images.members(group), (3, 0, 2), 0, generator) for group in groups]
        for groups in dealt
    ]
    train, _, test = (
        tuple(tuple(sorted(chain.from_iterable(half[k] for half in groups))) for groups in halves)
        for k in range(3)
    )
    return Domains(tuple(" + ".join(groups) for groups in dealt), train, ((),) * count, test)


def clustered_domains(
    images: ImageSet,
    features: Tensor,
    seed: int,
    *,
    count: int = 4,
    ways: int = 5,
    parts: tuple[int, int, int] = (2, 1, 1),
) -> Domains:
    """Classes that look alike form a domain; each is split 2:1:1 into training, validation and
    test.

    Args:
        images: the set; classes that repeat another one (`REPEATED`) are left out.
        features: (C, F), a mean feature per class, as of `features.class_features`.
        seed: decides the start of the clustering, and the split.
        count: domains.
        ways: every part of every domain gets at least so many classes.
        parts: shares of training, validation and test.
    """
    least = max(-(-ways * sum(parts) // part) for part in parts if part)  # 20 at 5 ways and 2:1:1
    return split_domains(
        images,
        cluster(images, features, seed, count=count, least=least),
        seed,
        ways=ways,
        parts=parts,
    )


def named_domains(
    images: ImageSet,
    seed: int,
    *,
    groups: Sequence[str] | None = None,
    ways: int = 5,
    parts: tuple[int, int, int] = (2, 1, 1),
) -> Domains:
    """The groups that a set names itself, each split 2:1:1.

    Where groups show the same things (art/dog and photo/dog), a thing is in the same part of every
    group, so that what is tested was trained on in no domain.

    Args:
        images: a set with groups, such as an image folder GROUP/CLASS.
        seed: decides the split.
        groups: which of them, in this order; None for all.
        ways, parts: as in `clustered_domains`.
    """
    if images.group is None:
        raise InvalidInput(
            f"{images.name} names no groups; arrange its folders as GROUP/CLASS, or cluster its "
            "classes"
        )
    chosen = {
        group: images.members(group) for group in (images.group_names if groups is None else groups)
    }
    things = [
        images.class_names[c].rpartition("/")[2] for members in chosen.values() for c in members
    ]
    shared = sorted(set(things))
    if len(shared) == len(things):
        return split_domains(images, chosen, seed, ways=ways, parts=parts)
    split = [
        {shared[k] for k in part}
        for part in _split(range(len(shared)), parts, ways, torch.Generator().manual_seed(seed))
    ]
    return Domains(
        tuple(chosen),
        *(
            tuple(
                tuple(c for c in members if images.class_names[c].rpartition("/")[2] in part)
                for members in chosen.values()
            )
            for part in split
        ),
    )


def split_domains(
    images: ImageSet,
    clusters: Mapping[str, Sequence[int]],
    seed: int,
    *,
    ways: int = 5,
    parts: tuple[int, int, int] = (2, 1, 1),
) -> Domains:
    """Split the classes of each cluster into training, validation and test, in shares of `parts`
    and at least `ways` each.
    """
    generator = torch.Generator().manual_seed(seed)
    need = ways * sum(part > 0 for part in parts)
    for name, classes in clusters.items():
        if len(classes) < need:
            raise InvalidInput(
                f"domain {name!r} of {images.name} has {len(classes)} classes; {ways}-way episodes "
                f"in each of its parts need {need}"
            )
    split = [_split(sorted(classes), parts, ways, generator) for classes in clusters.values()]
    return Domains(tuple(clusters), *(tuple(halves[k] for halves in split) for k in range(3)))


def stored_domains(images: ImageSet, seed: int = 42) -> Domains:
    """The domains of a set whose clustering is kept with the package, split by `seed`; raises
    MissingData for any other set.

    The file says by which command and from which features it was made.
    """
    file = Path(__file__).with_name(f"{images.name}_domains.json")
    if not file.exists():
        raise MissingData(
            f"no clustering of {images.name} is kept with the package; make one with: bipareto "
            f"data domains {images.name}"
        )
    number = {name: c for c, name in enumerate(images.class_names)}
    try:
        clusters = {
            name: [number[label] for label in labels]
            for name, labels in json.loads(file.read_text("utf-8"))["domains"].items()
        }
    except KeyError as error:
        raise InvalidInput(
            f"{images.name} has no class {error}, which {file.name} lists; is it the whole set?"
        ) from error
    return split_domains(images, clusters, seed)


def _split(
    classes: Sequence[int], parts: tuple[int, int, int], ways: int, generator: torch.Generator
) -> tuple[tuple[int, ...], ...]:
    """Shuffle and cut: validation and test get their share, rounded down but at least `ways`,
    training the rest.  A share of 0 is empty.
    """
    order = [classes[k] for k in torch.randperm(len(classes), generator=generator).tolist()]
    validation, test = (
        max(ways, len(classes) * part // sum(parts)) if part else 0 for part in parts[1:]
    )
    train = len(order) - validation - test
    return tuple(
        tuple(sorted(piece))
        for piece in (order[:train], order[train : train + validation], order[train + validation :])
    )
