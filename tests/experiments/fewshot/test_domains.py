"""Domains: whole, apart, seeded, and refused with the class and the count when episodes cannot be
drawn.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bipareto.cli import app
from bipareto.errors import InvalidInput
from bipareto_experiments.data import FC100, ImageSet, MissingData, load
from bipareto_experiments.fewshot import clustering, studies
from bipareto_experiments.fewshot import domains as module
from bipareto_experiments.fewshot.clustering import cluster
from bipareto_experiments.fewshot.domains import (
    Domains,
    clustered_domains,
    named_domains,
    split_domains,
    stored_domains,
    superclass_domains,
)
from bipareto_experiments.fewshot.features import class_features, pretrained
from bipareto_experiments.fewshot.task import build
from experiments.data.makers import noise, write_container

REAL = os.environ.get("BIPARETO_DATA")


def toy(
    classes: int,
    per_class: int = 20,
    *,
    name: str = "toy",
    groups: list[int] | None = None,
    class_names: list[str] | None = None,
) -> ImageSet:
    """One-pixel images."""
    n = classes * per_class
    return ImageSet(
        name,
        torch.zeros(n, 3, 1, 1, dtype=torch.uint8),
        torch.arange(classes).repeat_interleave(per_class),
        torch.zeros(n, dtype=torch.bool),
        tuple(class_names or [f"c{k}" for k in range(classes)]),
        None if groups is None else torch.tensor(groups),
        () if groups is None else tuple(f"g{k}" for k in range(max(groups) + 1)),
    )


def cifar_like() -> ImageSet:
    """100 classes in CIFAR-100's 20 superclasses."""
    names = tuple(itertools.chain.from_iterable(FC100.values()))
    return replace(toy(100, groups=[k // 5 for k in range(100)]), group_names=names)


def everything(domains: Domains) -> list[int]:
    return [
        c
        for part in (domains.train, domains.validation, domains.test)
        for classes in part
        for c in classes
    ]


def test_superclass_domains() -> None:
    images = cifar_like()
    found = superclass_domains(images, seed=0)
    found.check(images)
    assert [len(c) for c in found.train] == [9] * 4
    assert [len(c) for c in found.test] == [6] * 4
    assert found.validation == ((),) * 4
    assert sorted(everything(found)) == list(range(60))  # FC100's training classes, each once
    groups = [
        sorted({int(images.group[c]) for c in (*found.train[d], *found.test[d])}) for d in range(4)
    ]
    assert sorted(itertools.chain.from_iterable(groups)) == list(
        range(12)
    )  # 3 whole superclasses each
    for d, name in enumerate(found.names):
        assert name.split(" + ") == [images.group_names[g] for g in groups[d]] or sorted(
            name.split(" + ")
        ) == sorted(images.group_names[g] for g in groups[d])
        assert all(sum(int(images.group[c]) == g for c in found.test[d]) == 2 for g in groups[d])
    assert superclass_domains(images, seed=0) == found
    assert superclass_domains(images, seed=1) != found
    assert len(superclass_domains(images, seed=0, count=2)) == 2


def test_superclass_domains_need_cifar100() -> None:
    with pytest.raises(InvalidInput, match="toy has no superclass 'fish'"):
        superclass_domains(toy(100), seed=0)
    with pytest.raises(InvalidInput, match="count = 5"):
        superclass_domains(cifar_like(), seed=0, count=5)


def test_assignment_is_the_cheapest_one() -> None:
    """Against all assignments of 7 rows to 3 columns that give each column at least 2."""
    distances = np.random.default_rng(0).random((7, 3))
    allowed = [
        a for a in itertools.product(range(3), repeat=7) if min(a.count(k) for k in range(3)) >= 2
    ]
    best = min(allowed, key=lambda a: sum(distances[i, k] for i, k in enumerate(a)))
    assert tuple(clustering._assign(distances, 2)) == best


def blobs(sizes: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 10 * torch.eye(len(sizes), 6)
    return torch.cat(
        [
            centre + torch.randn(n, 6, generator=generator)
            for centre, n in zip(centres, sizes, strict=True)
        ]
    )


def test_clusters_are_the_blobs_where_these_are_large_enough() -> None:
    found = cluster(toy(100), blobs([20, 25, 30, 25]), seed=0)
    assert list(found.values()) == [
        tuple(range(20)),
        tuple(range(20, 45)),
        tuple(range(45, 75)),
        tuple(range(75, 100)),
    ]


def test_small_clusters_are_filled_from_their_neighbours() -> None:
    images = toy(100)
    found = clustered_domains(images, blobs([4, 36, 30, 30]), seed=0)
    found.check(images)
    assert sorted(everything(found)) == list(range(100))
    sizes = [
        sum(len(part[d]) for part in (found.train, found.validation, found.test)) for d in range(4)
    ]
    assert min(sizes) == 20
    first = {*found.train[0], *found.validation[0], *found.test[0]}
    assert set(range(4)) <= first
    for d, n in enumerate(sizes):
        assert len(found.validation[d]) == len(found.test[d]) == n // 4
    again = clustered_domains(images, blobs([4, 36, 30, 30]), seed=0)
    assert again == found
    assert clustered_domains(images, blobs([4, 36, 30, 30]), seed=1).train != found.train


def test_cluster_names_are_the_classes_nearest_to_the_centre() -> None:
    features = torch.tensor([[0.0], [1.0], [1.1], [3.0], [10.0], [11.0], [11.1], [13.0]])
    found = cluster(toy(8), features, seed=0, count=2, least=3)
    assert set(found) == {"c2, c1, c0", "c6, c5, c4"}


def test_too_few_classes_for_clusters() -> None:
    with pytest.raises(InvalidInput, match="toy has 79 classes; 4 domains of at least 20 need 80"):
        clustered_domains(toy(79), torch.randn(79, 2), seed=0)
    with pytest.raises(InvalidInput, match="5 features for the 80 classes"):
        clustered_domains(toy(80), torch.randn(5, 2), seed=0)


def test_a_class_that_repeats_another_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clustering.REPEATED, "toy", ("c3",))
    found = clustered_domains(toy(81), torch.randn(81, 3), seed=0)
    assert sorted(everything(found)) == [c for c in range(81) if c != 3]


def test_named_domains() -> None:
    images = toy(40, groups=[0] * 20 + [1] * 20)
    found = named_domains(images, seed=0)
    found.check(images)
    assert found.names == ("g0", "g1")
    assert {*found.train[0], *found.validation[0], *found.test[0]} == set(range(20))
    assert named_domains(images, seed=0, groups=["g1"]).names == ("g1",)
    with pytest.raises(InvalidInput, match="has no group 'g7'; its groups: g0, g1"):
        named_domains(images, seed=0, groups=["g7"])
    with pytest.raises(InvalidInput, match="toy names no groups"):
        named_domains(toy(40), seed=0)
    with pytest.raises(
        InvalidInput,
        match="domain 'fish' of toy has 5 classes; 5-way episodes in each of its parts need 15",
    ):
        named_domains(cifar_like(), seed=0, groups=["fish"])


def test_a_thing_in_two_groups_is_in_one_part() -> None:
    things = [f"t{k}" for k in range(20)]
    images = toy(
        40,
        groups=[0] * 20 + [1] * 20,
        class_names=[f"art/{t}" for t in things] + [f"photo/{t}" for t in things],
    )
    found = named_domains(images, seed=0)
    found.check(images)
    for part in (found.train, found.validation, found.test):
        first, second = ({images.class_names[c].split("/")[1] for c in classes} for classes in part)
        assert first == second


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (
            Domains(("a",), ((0, 1, 2, 3, 4),), ((),), ((5, 6, 7, 8),)),
            r"test of domain 'a' has 4 classes \(c5, c6, c7, c8\); 5-way episodes need 5",
        ),
        (
            Domains(("a",), ((0, 1, 2, 3, 4),), ((5,),), ((6, 7, 8, 9, 10),)),
            "validation of domain 'a' has 1 classes",
        ),
        (
            Domains(("a",), ((0, 1, 2, 3, 4),), ((),), ((4, 5, 6, 7, 8),)),
            "class 'c4' is in train of domain 'a' and in test of domain 'a'",
        ),
        (
            Domains(("a",), ((0, 1, 2, 3, 99),), ((),), ((5, 6, 7, 8, 9),)),
            "has class 99; toy has the classes 0 to 19",
        ),
        (
            Domains(("a", "b"), ((0, 1, 2, 3, 4),), ((), ()), ((), ())),
            "2 domains are named and train has 1",
        ),
    ],
)
def test_impossible_episodes(domains: Domains, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        domains.check(toy(20))


def test_too_few_images() -> None:
    images = toy(20, per_class=19)
    domains = split_domains(images, {"a": range(20)}, seed=0)
    with pytest.raises(InvalidInput, match="has 19 images; 5 shots and 15 queries need 20"):
        domains.check(images)
    domains.check(images, queries=14)


def test_json_survives_a_renumbering() -> None:
    images = cifar_like()
    found = superclass_domains(images, seed=3)
    text = json.dumps(found.to_json(images))
    assert Domains.from_json(json.loads(text), images) == found
    turned = images.select(range(99, -1, -1))
    moved = Domains.from_json(json.loads(text), turned)
    for name, part in (("train", moved.train), ("test", moved.test)):
        assert [[turned.class_names[c] for c in classes] for classes in part] == [
            [images.class_names[c] for c in d] for d in getattr(found, name)
        ]
    with pytest.raises(InvalidInput, match="saved domains are of 'toy' and need"):
        Domains.from_json(json.loads(text), toy(3))
    with pytest.raises(InvalidInput, match="no saved domains"):
        Domains.from_json({"domains": [None]}, images)


def table() -> dict[str, list[str]]:
    file = Path(module.__file__).with_name("caltech101_domains.json")
    return json.loads(file.read_text("utf-8"))["domains"]


def test_stored_domains() -> None:
    labels = sorted({label for labels in table().values() for label in labels})
    images = toy(len(labels), per_class=31, name="caltech101", class_names=labels)
    assert len(labels) == 100  # all of the 101 but the repeated one
    found = stored_domains(images)
    found.check(images)
    assert found.names == tuple(table())
    assert sorted(everything(found)) == list(range(100))
    assert stored_domains(images, seed=1).train != found.train
    with pytest.raises(MissingData, match="make one with: bipareto data domains toy"):
        stored_domains(toy(3))
    with pytest.raises(InvalidInput, match=r"which caltech101_domains\.json lists"):
        stored_domains(toy(3, name="caltech101"))


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="BIPARETO_DATA names no data folder")
def test_stored_domains_can_be_computed_again() -> None:
    """`bipareto data domains caltech101 --seed 42`; and images are told apart by what the clusters
    are made of.
    """
    images, network = load("caltech101", REAL), pretrained(REAL)
    features = class_features(images, network.trunk, seed=42)
    found = {
        name: [images.class_names[c] for c in classes]
        for name, classes in cluster(images, features, seed=42).items()
    }
    assert found == table()
    other = class_features(images, network.trunk, seed=43, per_class=5)
    nearest = (other @ features.T).argmax(1)
    assert float((nearest == torch.arange(101)).double().mean()) > 0.9


def _container(folder: Path, name: str, classes: int, seed: int) -> None:
    labels = [c for c in range(classes) for _ in range(20)]
    write_container(
        folder / f"{name}.zip",
        {"train": [noise(len(labels), seed=seed)]},
        train_y=labels,
        class_names=[f"thing {c}" for c in range(classes)],
    )


def test_sets_become_domains_and_a_thing_is_in_one_part_of_all(tmp_path: Path) -> None:
    for seed, name in enumerate(("art", "photo")):
        _container(tmp_path, name, 16, seed)
    task = build("", "block", sets=["art", "photo"], folder=tmp_path, device="cpu")
    assert task.domains.names == ("art", "photo")
    assert len(task.images) == 2 * 16 * 20
    things = [
        {
            tuple(task.images.class_names[c].partition("/")[2] for c in classes)
            for classes in getattr(task.domains, part)
        }
        for part in module.PARTS
    ]
    assert [len(same) for same in things] == [1, 1, 1]
    torch.testing.assert_close(
        task.images.images[task.images.labels == 16],
        load("photo", tmp_path).images[:20],
        rtol=0,
        atol=0,
    )


def test_sets_that_cannot_be_domains(tmp_path: Path) -> None:
    _container(tmp_path, "art", 16, 0)
    _container(tmp_path, "few", 9, 1)
    with pytest.raises(InvalidInput, match="at least two sets"):
        build("", "block", sets=["art"], folder=tmp_path, device="cpu")
    with pytest.raises(InvalidInput, match="domain 'few'"):
        build("", "block", sets=["art", "few"], folder=tmp_path, device="cpu")
    with pytest.raises(InvalidInput, match=r"art \(3, 32, 32\), small \(3, 8, 8\)"):
        ImageSet.joined(
            [
                load("art", tmp_path),
                replace(
                    load("art", tmp_path),
                    name="small",
                    images=torch.zeros(320, 3, 8, 8, dtype=torch.uint8),
                ),
            ]
        )


def test_a_command_takes_sets_as_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, name in enumerate(("art", "photo")):
        _container(tmp_path, name, 16, seed)
    seen: list[studies.Study] = []

    def stop(study: studies.Study, *_: object) -> None:
        seen.append(study)
        raise InvalidInput("seen")

    monkeypatch.setattr(studies, "sensitivity", stop)
    asked = ["experiment", "fewshot", "sensitivity", "--preset", "paper-sensitivity"]
    asked += ["--domains", "art,photo", "--data", str(tmp_path), "--device", "cpu"]
    assert isinstance(CliRunner().invoke(app, asked).exception, InvalidInput)
    assert seen[0].task.domains.names == ("art", "photo")
    assert seen[0].steps == 5000
