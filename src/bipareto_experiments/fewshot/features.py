"""Features of networks trained on ImageNet, to tell which classes look alike.

The networks are written here with torchvision's names of their weights, so that its files load,
without needing torchvision.
"""

from __future__ import annotations

import zipfile
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bipareto.run.bars import bar
from bipareto_experiments.data import DataError, ImageSet, MissingData, data_folder

#: mean and standard deviation of ImageNet's channels, with which both networks were trained
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: Side to which images are enlarged.  Of 505 unseen 32-pixel images of Caltech-101, the nearest of
#: 101 class means (MobileNetV2, 20
#: images per class) is the right one for 27 %, 47 %, 60 % and 65 % at 32, 64, 96 and 128.
SIDE = 128


def _conv(
    inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Convolution and batch norm."""
    return [
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    ]


class _Inverted(nn.Module):
    """MobileNetV2's block: widen, convolve each channel alone, narrow; a skip where the shapes
    allow it.
    """

    def __init__(self, inside: int, outside: int, stride: int, widen: int) -> None:
        super().__init__()
        hidden = inside * widen
        first = [nn.Sequential(*_conv(inside, hidden, 1), nn.ReLU6())] if widen > 1 else []
        self.conv = nn.Sequential(
            *first,
            nn.Sequential(*_conv(hidden, hidden, 3, stride, hidden), nn.ReLU6()),
            *_conv(hidden, outside, 1),
        )
        self.skip = stride == 1 and inside == outside

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.conv(images)
        return images + out if self.skip else out


class MobileNetV2(nn.Module):
    """The trunk of MobileNetV2 (Sandler et al., 2018): (N, 3, H, W) -> (N, 1280)."""

    #: (widen, channels, blocks, stride of the first)
    plan = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    #: what a file of the whole network has besides
    classifier = "classifier."

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [nn.Sequential(*_conv(3, 32, 3, 2), nn.ReLU6())]
        inside = 32
        for widen, channels, count, stride in self.plan:
            for k in range(count):
                blocks.append(_Inverted(inside, channels, stride if k == 0 else 1, widen))
                inside = channels
        self.features = nn.Sequential(*blocks, nn.Sequential(*_conv(inside, 1280, 1), nn.ReLU6()))

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images).mean((2, 3))


class _Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inside, outside, 3, stride)
        self.conv2, self.bn2 = _conv(outside, outside, 3)
        self.downsample = (
            nn.Sequential(*_conv(inside, outside, 1, stride)) if stride > 1 else nn.Sequential()
        )

    def forward(self, images: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(images)))))
        return torch.relu(out + self.downsample(images))


class ResNet18(nn.Module):
    """The trunk of ResNet-18 (He et al., 2016): (N, 3, H, W) -> (N, 512)."""

    classifier = "fc."

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, 64, 7, 2)
        widths = (64, 64, 128, 256, 512)
        for k, (inside, outside) in enumerate(pairwise(widths), start=1):
            stride = 1 if k == 1 else 2
            setattr(
                self,
                f"layer{k}",
                nn.Sequential(_Residual(inside, outside, stride), _Residual(outside, outside, 1)),
            )

    def forward(self, images: Tensor) -> Tensor:
        out = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        for k in range(1, 5):
            out = getattr(self, f"layer{k}")(out)
        return out.mean((2, 3))


class Pretrained(NamedTuple):
    """A trunk in evaluation mode and the file its weights came from."""

    name: str
    trunk: nn.Module
    file: Path


def find_weights(folder: Path | None) -> tuple[type[MobileNetV2 | ResNet18], Path] | None:
    """The best weights in the data folder: ResNet-18's as in the paper, else MobileNetV2's."""
    wanted: tuple[tuple[str, type[MobileNetV2 | ResNet18]], ...] = (
        ("resnet18*.pth", ResNet18),
        ("mobilenet_v2*.pth", MobileNetV2),
        ("mobilenetv2*.npz", MobileNetV2),
    )
    found = (
        (kind, file)
        for glob, kind in wanted
        for file in (sorted(folder.glob(glob)) if folder is not None else [])
    )
    return next(found, None)


def pretrained(folder: str | Path | None = None) -> Pretrained:
    """The trunk whose weights `find_weights` finds.

    Args:
        folder: the data folder; None for the one that BIPARETO_DATA names.
    """
    where = data_folder(folder)
    found = find_weights(where)
    if found is None:
        looked = where or "a data folder (BIPARETO_DATA names none)"
        raise MissingData(
            f"no pretrained weights in {looked}; put torchvision's resnet18-*.pth or "
            "mobilenet_v2-*.pth there, or: bipareto data fetch resnet18"
        )
    kind, file = found
    trunk = kind()
    load_weights(trunk, file)
    return Pretrained(kind.__name__, trunk.eval(), file)


def load_weights(trunk: MobileNetV2 | ResNet18, file: Path) -> None:
    """Fill a trunk from a file with torchvision's names; only the classifier may be in one and not
    in the other.
    """
    state = _read_weights(file)
    own = trunk.state_dict()
    missing = sorted(own.keys() - state.keys())
    strange = sorted(
        key for key in state.keys() - own.keys() if not key.startswith(trunk.classifier)
    )
    shapes = sorted(key for key in own.keys() & state.keys() if own[key].shape != state[key].shape)
    for what, keys in (
        ("lacks", missing),
        ("has besides", strange),
        ("has in another shape", shapes),
    ):
        if keys:
            raise DataError(
                f"{file} is not a {type(trunk).__name__}: it {what} {len(keys)} tensors, such as "
                f"{keys[0]}; take torchvision's weights"
            )
    trunk.load_state_dict({key: state[key] for key in own})


def _read_weights(file: Path) -> dict[str, Tensor]:
    import numpy as np

    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return {key: torch.from_numpy(arrays[key]) for key in arrays.files}
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        UnpicklingError,
        zipfile.BadZipFile,
    ) as error:
        raise DataError(
            f"{file} holds no readable weights ({str(error).splitlines()[0]}); download it again"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise DataError(f"{file} holds no state_dict of tensors; take torchvision's weights")
    return dict(state)


@torch.no_grad()
def class_features(
    images: ImageSet,
    trunk: nn.Module,
    *,
    per_class: int = 20,
    side: int = SIDE,
    seed: int = 0,
    batch: int = 100,
    progress: bool | None = None,
) -> Tensor:
    """The mean feature of each class, shape (C, F), of length one.

    Every image's feature is scaled to length one first, so that all count alike.

    Args:
        images: the set.
        trunk: maps (N, 3, H, W), normalised as for ImageNet, to (N, F); its device is used.
        per_class: images per class, drawn with `seed`; a class with fewer gives all.
        side: images are enlarged or reduced to this many pixels; trunks made for 224 see little in
            32.
        seed: decides the draw.
        batch: images at a time.
        progress: False for no bar; None for one on a terminal.
    """
    device = next(trunk.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        own[torch.randperm(len(own), generator=generator)[:per_class]]
        for own in (_of_class(images, c) for c in range(len(images.class_names)))
    ]
    chosen = torch.cat(drawn)
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (_MEAN, _STD))
    parts = []
    with bar("pretrained features", len(chosen), progress) as advance:
        for rows in chosen.split(batch):
            pixels = (images.images[rows].to(device).float() / 255 - mean) / std
            if pixels.shape[-2:] != (side, side):
                pixels = nn.functional.interpolate(
                    pixels, size=(side, side), mode="bilinear", align_corners=False, antialias=True
                )
            parts.append(nn.functional.normalize(trunk(pixels)).cpu())
            advance(len(rows))
    features = torch.cat(parts)
    return nn.functional.normalize(
        torch.stack([part.mean(0) for part in features.split([len(rows) for rows in drawn])])
    )


def _of_class(images: ImageSet, c: int) -> Tensor:
    return (images.labels == c).nonzero().flatten()
