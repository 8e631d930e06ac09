"""Every layout gives the pixels and labels that were put into it; what is damaged or absent gets a
message.
"""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bipareto.errors import BiparetoError, InvalidInput
from bipareto_experiments.data import (
    FC100,
    DataError,
    ImageSet,
    MissingData,
    WrongSize,
    fc100_classes,
    load,
)
from bipareto_experiments.data.idx import read_idx
from experiments.data.makers import (
    noise,
    write_cifar10,
    write_cifar100,
    write_container,
    write_idx,
    write_picture,
)

REAL = os.environ.get("BIPARETO_DATA")
real = pytest.mark.skipif(not REAL, reason="BIPARETO_DATA names no data folder")


def channels_first(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIPARETO_DATA", raising=False)


def test_container(tmp_path: Path) -> None:
    """Strips follow each other by name, `lut` maps the values, the test split comes last and is
    marked.
    """
    train, test = noise(5, 8), noise(2, 8, seed=1)
    lut = np.arange(256, dtype=np.uint8)[::-1]
    write_container(
        tmp_path / "toy.zip",
        {"test": [test], "train": [train[:3], train[3:]]},
        train_y=np.array([0, 0, 1, 1, 2], dtype=np.uint8),
        test_y=np.array([2, 0], dtype=np.uint8),
        class_names=["a", "b", "c"],
        lut=lut,
        fine_to_coarse=[1, 1, 0],
        coarse_names=["low", "high"],
        note="as made",
    )
    found = load("toy", tmp_path, size=8)
    assert torch.equal(found.images, 255 - channels_first(np.concatenate([train, test])))
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2, 0]
    assert found.test.tolist() == [False] * 5 + [True] * 2
    assert found.class_names == ("a", "b", "c")
    assert found.members("high") == (0, 1)
    assert found.counts().tolist() == [3, 2, 2]
    assert found.note == "as made"


def test_container_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_container(
        tmp_path / "toy_v2.zip", {"all": [noise(2)]}, all_y=[0, 1], class_names=["a", "b"]
    )
    monkeypatch.setenv("BIPARETO_DATA", str(tmp_path))
    assert len(load("toy")) == 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"all_y": [0, 1, 1]}, "split all has 2 images and 3 labels"),
        ({"all_y": [0]}, "split all has 2 images and 1 labels"),
        ({"all_y": [0, 7]}, "labels of toy go from 0 to 7; the 2 classes"),
        ({"class_names": ["a", "a"]}, "several classes of one name: a"),
        ({"fine_to_coarse": [0], "coarse_names": ["g"]}, r"group of toy has shape \(1,\)"),
        (
            {"fine_to_coarse": [0, 1], "coarse_names": ["g"]},
            "group of toy goes up to 1; the 1 groups count from 0",
        ),
    ],
)
def test_container_that_contradicts_itself(
    tmp_path: Path, spoil: dict[str, object], message: str
) -> None:
    write_container(
        tmp_path / "toy.zip",
        {"all": [noise(2)]},
        **{"all_y": [0, 1], "class_names": ["a", "b"], **spoil},
    )
    with pytest.raises((DataError, InvalidInput), match=message):
        load("toy", tmp_path)


def test_container_of_another_size(tmp_path: Path) -> None:
    write_container(
        tmp_path / "toy.zip", {"all": [noise(2, 16)]}, all_y=[0, 1], class_names=["a", "b"]
    )
    with pytest.raises(WrongSize, match=r"toy.zip holds 16x16 images, and 32x32 were asked for"):
        load("toy", tmp_path)
    write_container(
        tmp_path / "mixed.zip",
        {"all": [noise(1, 32), noise(1, 16)]},
        all_y=[0, 1],
        class_names=["a", "b"],
    )
    with pytest.raises(
        WrongSize, match=r"the images of all_001.webp are 16 wide, those before it 32"
    ):
        load("mixed", tmp_path)
    # Originals of any size are not hidden by it.
    for name in ("a", "b"):
        write_picture(tmp_path / "toy" / name / "1.png", noise(1, 40)[0])
    assert load("toy", tmp_path).images.shape == (2, 3, 32, 32)


def test_damaged_containers(tmp_path: Path) -> None:
    whole = tmp_path / "toy.zip"
    write_container(whole, {"all": [noise(4)]}, all_y=[0, 0, 1, 1], class_names=["a", "b"])
    data = whole.read_bytes()
    whole.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"toy.zip is not a readable zip file"):
        load("toy", tmp_path)
    at = data.index(b"VP8L") + 100  # inside the picture: the zip's own checksum sees it
    whole.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    with pytest.raises(DataError, match=r"all_000.webp is damaged"):
        load("toy", tmp_path)
    with zipfile.ZipFile(whole, "w") as box:
        box.writestr("readme.txt", "photographs")
    with pytest.raises(DataError, match=r"has no meta.npz; make one with: bipareto data pack"):
        load("toy", tmp_path)
    with zipfile.ZipFile(whole, "w") as box:
        box.writestr("meta.npz", b"nonsense")
    with pytest.raises(DataError, match=r"meta.npz is damaged"):
        load("toy", tmp_path)
    write_container(whole, {}, class_names=["a"])
    with pytest.raises(DataError, match="no strips of images"):
        load("toy", tmp_path)


def test_a_container_is_never_unpickled(tmp_path: Path) -> None:
    write_container(
        tmp_path / "toy.zip",
        {"all": [noise(1)]},
        all_y=[0],
        class_names=np.array([_Trap()], dtype=object),
    )
    with pytest.raises(DataError, match=r"meta.npz is damaged"):
        load("toy", tmp_path)


def test_cifar_pickles(tmp_path: Path) -> None:
    pixels = noise(6)
    write_cifar10(tmp_path / "cifar-10-batches-py", pixels, [0, 1, 0, 1, 0, 1])
    found = load("cifar10", tmp_path)
    assert torch.equal(found.images, channels_first(pixels))
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert found.test.tolist() == [False] * 5 + [True]
    assert found.note == "exact"

    write_cifar100(tmp_path / "cifar-100-python", pixels, [0, 1, 2, 0, 1, 2], [0, 1, 1, 0, 1, 1])
    found = load("cifar100", tmp_path)
    assert torch.equal(found.images, channels_first(pixels))
    assert found.class_names == ("apple", "bee", "cup")
    assert found.members("rest") == (1, 2)
    with pytest.raises(WrongSize, match="holds 32x32 images, and 64x64"):
        load("cifar100", tmp_path, size=64)


class _Trap:
    """A pickle that would leave a file behind if it were obeyed."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (Path("trapped"),)


def test_cifar_pickles_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cifar-100-python"
    write_cifar100(folder, noise(3), [0, 1, 2], [0, 1, 1])
    whole = (folder / "train").read_bytes()
    (folder / "train").write_bytes(
        pickle.dumps({"data": _Trap(), "fine_labels": [], "coarse_labels": []})
    )
    with pytest.raises(DataError, match="which image data never needs"):
        load("cifar100", tmp_path)
    assert not Path("trapped").exists()
    (folder / "train").write_bytes(whole[:200])
    with pytest.raises(DataError, match="train is not a CIFAR file"):
        load("cifar100", tmp_path)
    (folder / "train").write_bytes(pickle.dumps([1]))
    with pytest.raises(DataError, match="no data, fine_labels, coarse_labels in it"):
        load("cifar100", tmp_path)
    (folder / "train").write_bytes(
        pickle.dumps(
            {"data": np.zeros((2, 5), np.uint8), "fine_labels": [0, 1], "coarse_labels": [0, 0]}
        )
    )
    with pytest.raises(DataError, match=r"2 labels has image data of shape \(2, 5\)"):
        load("cifar100", tmp_path)
    (folder / "train").write_bytes(
        pickle.dumps(
            {"data": np.zeros((1, 3072), np.uint8), "fine_labels": ["x"], "coarse_labels": [0]}
        )
    )
    with pytest.raises(DataError, match="fine_labels is no list of int"):
        load("cifar100", tmp_path)
    (folder / "train").unlink()
    with pytest.raises(DataError, match="train cannot be read"):
        load("cifar100", tmp_path)


def test_folder_by_class(tmp_path: Path) -> None:
    pixels = noise(3, 32)
    for file, image in zip(("ant/2.png", "ant/1.png", "bat/1.png"), pixels, strict=True):
        write_picture(tmp_path / "zoo" / file, image)
    (tmp_path / "zoo" / "ant" / "._1.png").write_bytes(b"left by another system")
    (tmp_path / "zoo" / "readme.txt").write_text("animals")
    found = load("zoo", tmp_path)
    assert found.class_names == ("ant", "bat")
    assert found.labels.tolist() == [0, 0, 1]
    assert torch.equal(found.images, channels_first(pixels[[1, 0, 2]]))
    assert found.group is None
    assert load("zoo", tmp_path, size=16).images.shape == (3, 3, 16, 16)
    (tmp_path / "zoo" / "bat" / "2.jpg").write_bytes(b"no picture")
    with pytest.raises(
        DataError, match=r"bat/2.jpg is not a readable picture .*; replace or remove it"
    ):
        load("zoo", tmp_path)


def test_folder_by_group_and_class(tmp_path: Path) -> None:
    """One class name in two domains: two classes, each with its domain as group."""
    for file in ("art/dog/1.png", "photo/cat/1.png", "photo/dog/1.png"):
        write_picture(tmp_path / "styles" / file, noise(1)[0])
    found = load("styles", tmp_path)
    assert found.class_names == ("art/dog", "photo/cat", "photo/dog")
    assert found.group_names == ("art", "photo")
    assert found.members("photo") == (1, 2)
    write_picture(tmp_path / "styles" / "stray" / "1.png", noise(1)[0])
    with pytest.raises(DataError, match="at one depth throughout"):
        load("styles", tmp_path)


def test_caltech_clutter_is_dropped(tmp_path: Path) -> None:
    for name in ("001.ak47", "002.american-flag", "257.clutter"):
        write_picture(
            tmp_path / "caltech256" / "256_ObjectCategories" / name / "1.jpg", noise(1, 50)[0]
        )
    found = load("caltech256", tmp_path)
    assert found.class_names == ("ak47", "american-flag")
    assert found.labels.tolist() == [0, 1]
    for name in ("BACKGROUND_Google", "accordion", "ant"):
        write_picture(
            tmp_path / "caltech101" / "101_ObjectCategories" / name / "1.jpg", noise(1, 50)[0]
        )
    assert load("caltech101", tmp_path).class_names == ("accordion", "ant")


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    pixels = noise(3, 64)
    write_picture(root / "train" / "n01" / "images" / "n01_0.png", pixels[0])
    write_picture(root / "train" / "n02" / "images" / "n02_0.png", pixels[1])
    write_picture(root / "val" / "images" / "val_0.png", pixels[2])
    (root / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t9\t9\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn99\tother\n")
    found = load("tiny-imagenet", tmp_path, size=64)
    assert torch.equal(found.images, channels_first(pixels))
    assert found.labels.tolist() == [0, 1, 1]
    assert found.test.tolist() == [False, False, True]
    assert found.class_names == ("n01 goldfish", "n02")
    (root / "val" / "val_annotations.txt").write_text("val_0.png\tn77\n")
    with pytest.raises(DataError, match="names no class of train"):
        load("tiny-imagenet", tmp_path)


def test_idx(tmp_path: Path) -> None:
    images = noise(5, 28)[..., 0].copy()
    labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    folder = tmp_path / "mnist"
    for split, part, suffix in (("train", slice(0, 3), ".gz"), ("t10k", slice(3, 5), "")):
        write_idx(folder / f"{split}-images-idx3-ubyte{suffix}", images[part])
        write_idx(folder / f"{split}-labels-idx1-ubyte{suffix}", labels[part])
    found = load("mnist", tmp_path)
    assert found.images.shape == (5, 3, 32, 32)
    assert torch.equal(found.images[:, 1, 2:-2, 2:-2], torch.from_numpy(images))
    assert int(found.images.sum()) == 3 * int(images.sum())  # the border is zero
    assert found.labels.tolist() == labels.tolist()
    assert found.test.tolist() == [False] * 3 + [True] * 2
    assert load("mnist", tmp_path, size=28).note == "exact"
    with pytest.raises(WrongSize, match="28x28"):
        load("mnist", tmp_path, size=16)

    plain = folder / "t10k-images-idx3-ubyte"
    plain.write_bytes(plain.read_bytes()[:-1])
    with pytest.raises(DataError, match="declares 2 x 28 x 28 bytes and has 1567"):
        load("mnist", tmp_path)
    plain.write_bytes(b"<html>")
    with pytest.raises(DataError, match="begins with 3c 68 74 6d"):
        load("mnist", tmp_path)
    zipped = folder / "train-images-idx3-ubyte.gz"
    zipped.write_bytes(zipped.read_bytes()[:100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is damaged"):
        load("mnist", tmp_path)
    zipped.unlink()
    with pytest.raises(DataError, match="neither train-images-idx3-ubyte nor"):
        load("mnist", tmp_path)


def test_no_damage_escapes_as_another_error(tmp_path: Path) -> None:
    """Bytes changed anywhere, or the end cut off: the file is read or refused, never a stray
    error.
    """
    write_container(
        tmp_path / "toy.zip",
        {"train": [noise(2, 8)], "test": [noise(1, 8)]},
        train_y=[0, 1],
        test_y=[1],
        class_names=["a", "b"],
    )
    write_cifar100(tmp_path / "cifar-100-python", noise(3), [0, 1, 2], [0, 1, 1])
    write_picture(tmp_path / "zoo" / "a" / "1.jpg", noise(1)[0])
    rng = random.Random(0)
    for name, file, size in (
        ("toy", "toy.zip", 8),
        ("cifar100", "cifar-100-python/train", 32),
        ("zoo", "zoo/a/1.jpg", 32),
    ):
        whole = (tmp_path / file).read_bytes()
        refused = 0
        for k in range(150):
            data = bytearray(whole[: rng.randrange(len(whole))] if k % 5 == 0 else whole)
            for _ in range(0 if k % 5 == 0 else rng.choice([1, 3, 30])):
                ends = rng.choice(
                    [rng.randrange(len(data)), rng.randrange(100), -1 - rng.randrange(300)]
                )
                data[ends] = rng.randrange(256)
            (tmp_path / file).write_bytes(data)
            try:
                load(name, tmp_path, size=size)
            except BiparetoError:
                refused += 1
        assert refused > 30


def test_what_is_absent_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"cifar100 is not in .*cifar-100-python, cifar100.zip"):
        load("cifar100", tmp_path)
    with pytest.raises(MissingData, match=r"cifra10 \(did you mean cifar10\?\) is not in"):
        load("cifra10", tmp_path)
    with pytest.raises(MissingData, match="no data folder is named by BIPARETO_DATA or --data"):
        load("cifar100")
    with pytest.raises(InvalidInput, match="which is not a folder"):
        load("cifar100", tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="is no name of a set"):
        load("../etc", tmp_path)
    with pytest.raises(InvalidInput, match="size = 0"):
        load("cifar100", tmp_path, size=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is no image folder"):
        load("empty", tmp_path)


def test_select_renumbers() -> None:
    images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 1, 1)
    whole = ImageSet(
        "t",
        images,
        torch.tensor([0, 1, 2, 1]),
        torch.zeros(4, dtype=torch.bool),
        ("a", "b", "c"),
        torch.tensor([0, 0, 1]),
        ("g", "h"),
    )
    part = whole.select([2, 1])
    assert part.class_names == ("c", "b")
    assert part.labels.tolist() == [1, 0, 1]
    assert part.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert part.members("h") == (0,)
    assert whole.without(["b", "absent"]).class_names == ("a", "c")


@real
def test_real_cifar100_and_fc100() -> None:
    found = load("cifar100", REAL)
    assert found.images.shape == (60000, 3, 32, 32)
    assert set(found.counts().tolist()) == {600}
    assert int(found.test.sum()) == 10000
    # The published mean of CIFAR-100's training images, per channel.
    means = found.images[~found.test].sum((0, 2, 3), dtype=torch.int64) / (255 * 50000 * 32 * 32)
    assert means.tolist() == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-3)
    by_rule = fc100_classes(found)
    assert [len(by_rule[split]) for split in ("train", "validation", "test")] == [60, 20, 20]
    assert fc100_classes(found, REAL) == by_rule
    assert sorted(c for classes in by_rule.values() for c in classes) == list(range(100))
    assert {found.group_names[int(found.group[c])] for c in by_rule["test"]} == set(FC100["test"])


@real
def test_real_caltech101() -> None:
    found = load("caltech101", REAL)
    assert len(found.class_names) == 101
    assert "BACKGROUND_Google" not in found.class_names
    assert len(found) == 8677
    counts = dict(zip(found.class_names, found.counts().tolist(), strict=True))
    assert counts["airplanes"] == 800
    assert min(counts.values()) == counts["inline_skate"] == 31
    assert "lossless" in found.note


def test_an_idx_file_of_other_numbers_than_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "floats"
    path.write_bytes(bytes([0, 0, 0x0D, 1, 0, 0, 0, 4, 1, 2, 3, 4]))
    with pytest.raises(DataError, match="is not an idx file of bytes: it begins with 00 00 0d 01"):
        read_idx(path)
    path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]))
    assert read_idx(path).tolist() == [1, 2, 3, 4]
