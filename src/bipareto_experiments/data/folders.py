"""Image folders: one folder per class, optionally one folder per group above it; and
Tiny-ImageNet's own layout.

Decoding tens of thousands of photographs takes a minute.  The result is kept (`data.cache`); and
`bipareto data pack` makes a container that loads in a second and travels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bipareto.run.bars import bar
from bipareto_experiments.data.cache import cached
from bipareto_experiments.data.images import DataError, ImageSet, Summary

if TYPE_CHECKING:
    from numpy.typing import NDArray


_PICTURES = "pictures, resized as they are read"
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff"}


def read_folder(path: Path, name: str, size: int) -> ImageSet:
    """`path`/CLASS/*.jpg, or `path`/GROUP/CLASS/*.jpg, where a class is then called GROUP/CLASS.

    The images are sorted by class and file name.
    """
    classes, grouped = _classes(path)
    groups = sorted({folder.parent.name for folder in classes}) if grouped else []
    files = [(c, file) for c, folder in enumerate(classes) for file in _pictures(folder)]
    return ImageSet(
        name=name,
        images=decode([file for _, file in files], size),
        labels=torch.tensor([c for c, _ in files]),
        test=torch.zeros(len(files), dtype=torch.bool),
        class_names=tuple(folder.relative_to(path).as_posix() for folder in classes),
        group=torch.tensor([groups.index(folder.parent.name) for folder in classes])
        if groups
        else None,
        group_names=tuple(groups),
        note=_resized(size),
    )


def summarize_folder(path: Path) -> Summary:
    """How many images an image folder has."""
    classes, _ = _classes(path)
    return Summary(
        sum(len(_pictures(folder)) for folder in classes), 0, len(classes), None, _PICTURES
    )


def _classes(path: Path) -> tuple[list[Path], bool]:
    """The folders of the classes, and whether they lie in folders of groups."""
    folders = _subfolders(path)
    classes = [folder for folder in folders if _pictures(folder)]
    # Only below folders without images: Caltech-256 has a stray folder inside a class.
    nested = [
        inner
        for folder in folders
        if folder not in classes
        for inner in _subfolders(folder)
        if _pictures(inner)
    ]
    if classes and nested:
        raise DataError(
            f"{path} has images in {classes[0].name}/ and in {nested[0].relative_to(path)}/; a "
            "class is a folder of images, at one depth throughout"
        )
    if not classes and not nested:
        raise DataError(
            f"{path} is no image folder: need one folder per class with images in it "
            f"({', '.join(sorted(_SUFFIXES))})"
        )
    return classes or nested, bool(nested)


def read_tiny_imagenet(path: Path, name: str, size: int) -> ImageSet:
    """The folder tiny-imagenet-200: `train`/ID/images/*.JPEG and `val`/images with
    val_annotations.txt; `val` is the test split.

    A class is called "ID words", such as "n01443537 goldfish".
    """
    ids = [folder.name for folder in _subfolders(path / "train")]
    train = [
        (c, file)
        for c, wnid in enumerate(ids)
        for file in _pictures(path / "train" / wnid / "images")
    ]
    if not train:
        raise DataError(
            f"{path} is not Tiny-ImageNet: no images in train/*/images; unpack "
            "tiny-imagenet-200.zip again"
        )
    test = []
    for row in _lines(path / "val" / "val_annotations.txt"):
        if len(row) < 2 or row[1] not in ids:
            raise DataError(
                f"{path}/val/val_annotations.txt: {' '.join(row)!r} names no class of train; "
                "unpack tiny-imagenet-200.zip again"
            )
        test.append((ids.index(row[1]), path / "val" / "images" / row[0]))
    words = {row[0]: row[1].split(",")[0] for row in _lines(path / "words.txt") if len(row) > 1}
    files = train + test
    return ImageSet(
        name=name,
        images=decode([file for _, file in files], size),
        labels=torch.tensor([c for c, _ in files]),
        test=torch.arange(len(files)) >= len(train),
        class_names=tuple(f"{wnid} {words[wnid]}" if wnid in words else wnid for wnid in ids),
        note="exact" if size == 64 else _resized(size),
    )


def summarize_tiny_imagenet(path: Path) -> Summary:
    """How many images Tiny-ImageNet has."""
    ids = _subfolders(path / "train")
    train, test = (
        sum(len(_pictures(folder)) for folder in folders)
        for folders in ([wnid / "images" for wnid in ids], [path / "val" / "images"])
    )
    return Summary(train + test, test, len(ids), None, _PICTURES)


def decode(files: Sequence[Path], size: int) -> Tensor:
    """Read pictures of any shape as (N, 3, size, size) uint8; a bar shows on a terminal, and many
    pictures are kept decoded.
    """
    return torch.from_numpy(cached(files, size, lambda: _decode(files, size)))


def _decode(files: Sequence[Path], size: int) -> NDArray[Any]:
    import numpy as np

    images = np.empty((len(files), 3, size, size), dtype=np.uint8)
    # Pillow lets go of the interpreter while it decodes, so threads are enough.
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
        bar("reading images", len(files), False if len(files) < 1000 else None) as advance,
    ):
        for n, pixels in enumerate(pool.map(lambda file: _picture(file, size), files)):
            images[n] = pixels
            advance(1)
    return images


def _picture(file: Path, size: int) -> NDArray[Any]:
    """One picture squeezed to (3, size, size)."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(file) as picture:
            picture.draft("RGB", (size, size))  # JPEG: decode no more detail than is wanted
            full = picture.convert("RGB")
        if full.size != (size, size):
            full = full.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return np.asarray(full).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(
            f"{file} is not a readable picture ({error}); replace or remove it"
        ) from error


def _resized(size: int) -> str:
    return f"resized to {size}x{size} without regard to the aspect ratio"


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); it must be a folder of folders"
        ) from error


def _pictures(path: Path) -> list[Path]:
    """The image files of one folder, by name; hidden ones are left by other systems and are no
    images.
    """
    if not path.is_dir():
        return []
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in _SUFFIXES and not entry.name.startswith(".")
    )


def _lines(path: Path) -> list[list[str]]:
    """Rows of a file with tabs between columns."""
    try:
        return [line.split("\t") for line in path.read_text("utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); unpack tiny-imagenet-200.zip again"
        ) from error
