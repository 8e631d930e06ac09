"""MNIST and its kin: four idx files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from bipareto_experiments.data.images import DataError, ImageSet, Summary, WrongSize

_DIGITS = tuple(str(d) for d in range(10))
_CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read_idx(path: Path) -> Tensor:
    """One idx file of unsigned bytes as a uint8 tensor of the shape it declares.

    The file begins with 0, 0, the type (8: unsigned byte), the number of dimensions, and each of
    them as four bytes, big end first.
    """
    remedy = "download it again"
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); {remedy}") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); {remedy}") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
        raise DataError(
            f"{path} is not an idx file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}, "
            f"not 00 00 08; {remedy}"
        )
    body = 4 + 4 * data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, body, 4)]
    if len(data) - body != math.prod(shape):
        raise DataError(
            f"{path} declares {' x '.join(map(str, shape))} bytes and has {len(data) - body}; "
            f"{remedy}"
        )
    return (
        torch.frombuffer(bytearray(data[body:]), dtype=torch.uint8).reshape(shape)
        if math.prod(shape)
        else torch.zeros(shape, dtype=torch.uint8)
    )


def read_mnist(path: Path, name: str, size: int) -> ImageSet:
    """A folder with the four files; grey becomes three equal channels, and a border of zeros makes
    up the size.
    """
    parts = [
        (_one(path, f"{split}-images-idx3-ubyte"), _one(path, f"{split}-labels-idx1-ubyte"))
        for split in ("train", "t10k")
    ]
    for split, (images, labels) in zip(("train", "t10k"), parts, strict=True):
        if images.dim() != 3 or labels.shape != images.shape[:1]:
            raise DataError(
                f"{path}: {split} has images of shape {tuple(images.shape)} and labels of shape "
                f"{tuple(labels.shape)}; download them again"
            )
    pixels = torch.cat([images for images, _ in parts])
    side = pixels.shape[1]
    if size < side:
        raise WrongSize(
            f"{path} holds {side}x{side} images, and {size}x{size} were asked for; ask for "
            f"size={side} or more"
        )
    border = size - side
    pixels = torch.nn.functional.pad(pixels, [border // 2, border - border // 2] * 2)
    return ImageSet(
        name=name,
        images=pixels[:, None].expand(-1, 3, -1, -1).contiguous(),
        labels=torch.cat([labels for _, labels in parts]).long(),
        test=torch.arange(len(pixels)) >= len(parts[0][0]),
        class_names=_CLOTHES if name == "fashion-mnist" else _DIGITS,
        note="exact"
        if not border
        else f"exact, with a border of zeros from {side}x{side} to {size}x{size}",
    )


def summarize_mnist(path: Path) -> Summary:
    """What the four files hold."""
    images, labels = (
        [_one(path, f"{split}-{kind}") for split in ("train", "t10k")]
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    return Summary(
        sum(map(len, labels)), len(labels[1]), len(_DIGITS), images[0].shape[-1], "exact"
    )


def _one(path: Path, name: str) -> Tensor:
    found = next((file for file in (path / name, path / f"{name}.gz") if file.exists()), None)
    if found is None:
        raise DataError(f"{path} has neither {name} nor {name}.gz; all four idx files are needed")
    return read_idx(found)
