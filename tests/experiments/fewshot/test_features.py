"""Pretrained trunks: torchvision's names, its counts, and files that are refused for what they
lack.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bipareto_experiments.data import DataError, ImageSet, MissingData, load
from bipareto_experiments.fewshot.features import (
    MobileNetV2,
    ResNet18,
    class_features,
    load_weights,
    pretrained,
)

REAL = os.environ.get("BIPARETO_DATA")


def save(trunk: nn.Module, file: Path, **changes: torch.Tensor | None) -> None:
    state = {key.replace("__", "."): value for key, value in changes.items()}
    whole = {
        key: value for key, value in {**trunk.state_dict(), **state}.items() if value is not None
    }
    if file.suffix == ".npz":
        np.savez(file, **{key: value.numpy() for key, value in whole.items()})
    else:
        torch.save(whole, file)


@pytest.mark.parametrize(
    ("kind", "weights", "width"), [(MobileNetV2, 2_223_872, 1280), (ResNet18, 11_176_512, 512)]
)
def test_trunks_have_the_published_size(kind: type[nn.Module], weights: int, width: int) -> None:
    """torchvision's counts, less the classifier: 3,504,872 - 1,281,000 and 11,689,512 - 513,000."""
    trunk = kind().eval()
    assert sum(p.numel() for p in trunk.parameters()) == weights
    with torch.no_grad():
        assert trunk(torch.randn(2, 3, 64, 64)).shape == (2, width)


def test_resolution_falls_by_32() -> None:
    with torch.no_grad():
        assert MobileNetV2().eval().features(torch.randn(1, 3, 64, 96)).shape == (1, 1280, 2, 3)


def test_the_better_trunk_is_taken_and_its_classifier_ignored(tmp_path: Path) -> None:
    torch.manual_seed(1)
    small, paper = MobileNetV2().eval(), ResNet18().eval()
    images = torch.randn(1, 3, 32, 32)
    save(small, tmp_path / "mobilenetv2_imagenet_features.npz")
    found = pretrained(tmp_path)
    assert found.name == "MobileNetV2"
    with torch.no_grad():
        assert torch.equal(found.trunk(images), small(images))
    save(
        paper,
        tmp_path / "resnet18-f37072fd.pth",
        fc__weight=torch.zeros(1000, 512),
        fc__bias=torch.zeros(1000),
    )
    found = pretrained(tmp_path)
    assert found.name == "ResNet18"
    with torch.no_grad():
        assert torch.equal(found.trunk(images), paper(images))


def test_other_weights_are_refused(tmp_path: Path) -> None:
    trunk, file = MobileNetV2(), tmp_path / "w.pth"
    save(trunk, file, features__0__0__weight=None)
    with pytest.raises(
        DataError, match=r"is not a MobileNetV2: it lacks 1 tensors, such as features\.0\.0\.weight"
    ):
        load_weights(trunk, file)
    save(trunk, file, features__19__weight=torch.zeros(1))
    with pytest.raises(DataError, match=r"has besides 1 tensors, such as features\.19\.weight"):
        load_weights(trunk, file)
    save(trunk, file, features__0__0__weight=torch.zeros(32, 1, 3, 3))
    with pytest.raises(DataError, match="in another shape"):
        load_weights(trunk, file)
    file.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="holds no readable weights"):
        load_weights(trunk, file)
    torch.save([torch.zeros(1)], file)
    with pytest.raises(DataError, match="no state_dict"):
        load_weights(trunk, file)
    with pytest.raises(MissingData, match="no pretrained weights in"):
        pretrained(tmp_path)


class _Means(nn.Module):
    """A trunk that can be followed by hand: the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[-2:] == (8, 8)
        return self.scale * images.mean((2, 3))


def test_class_features_are_means_of_unit_features() -> None:
    values = torch.tensor([[255, 0, 0], [255, 0, 0], [0, 0, 255], [0, 255, 0]], dtype=torch.uint8)
    images = ImageSet(
        "t",
        values[:, :, None, None].expand(4, 3, 2, 2),
        torch.tensor([0, 0, 1, 1]),
        torch.zeros(4, dtype=torch.bool),
        ("a", "b"),
    )
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    unit = nn.functional.normalize((values / 255 - mean) / std)
    expected = nn.functional.normalize(torch.stack([unit[0], (unit[2] + unit[3]) / 2]))
    found = class_features(images, _Means(), side=8, batch=3)
    assert torch.allclose(found, expected, atol=1e-6)
    one = class_features(images, _Means(), side=8, per_class=1, seed=0)[1]
    assert any(torch.allclose(one, unit[k], atol=1e-6) for k in (2, 3))
    assert torch.equal(one, class_features(images, _Means(), side=8, per_class=1, seed=0)[1])


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="BIPARETO_DATA names no data folder")
@pytest.mark.parametrize(("side", "right"), [(32, 0.27), (64, 0.47), (96, 0.60), (128, 0.65)])
def test_enlarged_images_are_told_apart(side: int, right: float) -> None:
    """Of 5 unseen images per class of Caltech-101, the share whose nearest class mean is their own:
    the figures of docs/data.md.
    """
    images, network = load("caltech101", REAL), pretrained(REAL)
    if network.name != "MobileNetV2":
        pytest.skip(f"the figures are those of MobileNetV2; the data folder has {network.name}")
    means = class_features(images, network.trunk, side=side, seed=0, progress=False)
    generator = torch.Generator().manual_seed(0)
    owned = [(images.labels == c).nonzero().flatten() for c in range(101)]
    # The first 20 of the same shuffles are those of the means.
    unseen = torch.cat([own[torch.randperm(len(own), generator=generator)[20:25]] for own in owned])
    # Each image as a class of its own.
    alone = ImageSet(
        "alone",
        images.images[unseen],
        torch.arange(505),
        torch.zeros(505, dtype=torch.bool),
        tuple(map(str, range(505))),
    )
    single = class_features(alone, network.trunk, side=side, progress=False)
    found = (single @ means.T).argmax(1)
    assert float((found == images.labels[unseen]).double().mean()) == pytest.approx(right, abs=0.01)
