"""Which sets are known, where each may lie, and how it is then read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bipareto.data.cifar import read_cifar10, read_cifar100
from bipareto.data.folders import read_folder, read_tiny_imagenet
from bipareto.data.idx import read_mnist
from bipareto.data.images import ImageSet, MissingData, WrongSize
from bipareto.data.packed import read_packed
from bipareto.errors import InvalidInput

__all__ = ["KNOWN", "VARIABLE", "Known", "Place", "data_folder", "load", "places"]

#: the environment variable that names the data folder
VARIABLE = "BIPARETO_DATA"

Reader = Callable[[Path, str, int], ImageSet]


@dataclass(frozen=True)
class Known:
    """A public set.

    title: its name in words.
    layouts: (glob below the data folder, reader); originals that are exact and quick to read come first, then containers.
    drop: classes that are clutter, not classes.
    number: whether class folders are called "001.name".
    """

    title: str
    layouts: tuple[tuple[str, Reader], ...]
    drop: tuple[str, ...] = ()
    numbered: bool = False


def _packed(name: str) -> tuple[tuple[str, Reader], ...]:
    return ((f"{name}.zip", read_packed), (f"{name}_*.zip", read_packed))


def _folders(*globs: str) -> tuple[tuple[str, Reader], ...]:
    return tuple((glob, read_folder) for glob in globs)


KNOWN: dict[str, Known] = {
    "cifar10": Known("CIFAR-10", (("cifar-10-batches-py", read_cifar10), *_packed("cifar10"))),
    "cifar100": Known("CIFAR-100", (("cifar-100-python", read_cifar100), *_packed("cifar100"))),
    "caltech101": Known(
        "Caltech-101",
        (*_packed("caltech101"), *_folders("caltech101/101_ObjectCategories", "caltech-101/101_ObjectCategories", "101_ObjectCategories")),
        drop=("BACKGROUND_Google",),
    ),
    "caltech256": Known(
        "Caltech-256",
        (*_packed("caltech256"), *_folders("caltech256/256_ObjectCategories", "256_ObjectCategories")),
        drop=("clutter",),
        numbered=True,
    ),
    "tiny-imagenet": Known("Tiny-ImageNet", (*_packed("tiny-imagenet"), ("tiny-imagenet-200", read_tiny_imagenet))),
    "mnist": Known("MNIST", (("mnist", read_mnist), ("MNIST/raw", read_mnist))),
    "fashion-mnist": Known(
        "Fashion-MNIST",
        # The last is where Debian's package dataset-fashion-mnist puts it.
        (("fashion-mnist", read_mnist), ("FashionMNIST/raw", read_mnist), ("/usr/share/datasets/fashion-mnist", read_mnist)),
    ),
}

#: how true containers are that do not say it themselves, by file name
_FIDELITY = {
    "cifar10_pm2.zip": "every pixel within ±2 of 255 of the original (RMSE 1.4)",
    "cifar100_pm2.zip": "every pixel within ±2 of 255 of the original (RMSE 1.4)",
    "caltech101_32px.zip": "resized to 32x32, then lossless",
}


class Place(NamedTuple):
    """Where a set was found, and what reads it."""

    path: Path
    read: Reader


def data_folder(folder: str | Path | None = None) -> Path | None:
    """The data folder: the one given, else that of BIPARETO_DATA, else None."""
    chosen = folder if folder is not None else os.environ.get(VARIABLE) or None
    if chosen is None:
        return None
    path = Path(chosen).expanduser()
    if not path.is_dir():
        source = "the data folder" if folder is not None else VARIABLE
        raise InvalidInput(f"{source} is {path}, which is not a folder; name the one that holds your image sets")
    return path


def layouts(name: str) -> tuple[tuple[str, Reader], ...]:
    """Where a set may lie; one that is not known is a container or an image folder of its name."""
    if name in KNOWN:
        return KNOWN[name].layouts
    if not name or Path(name).name != name or name.startswith("."):
        raise InvalidInput(f"{name!r} is no name of a set; known are {', '.join(KNOWN)}, and any image folder in the data folder by its name")
    return (*_packed(name), (name, read_folder))


def places(name: str, folder: Path | None) -> Iterator[Place]:
    """Every place where a set lies, the best first."""
    for glob, read in layouts(name):
        if Path(glob).is_absolute():
            if Path(glob).exists():
                yield Place(Path(glob), read)
        elif folder is not None:
            yield from (Place(path, read) for path in sorted(folder.glob(glob)))


def load(name: str, folder: str | Path | None = None, size: int = 32) -> ImageSet:
    """Read an image set from the data folder, in whichever layout is there.

    Args:
        name: one of `KNOWN`, or the name of a packed container or of an image folder by class in the data folder.
        folder: the data folder; None for the one that BIPARETO_DATA names.
        size: the side of the images in pixels.  Folders of pictures are resized to it, MNIST gets a border of zeros, and a packed
            container must have it.
    """
    if size < 1:
        raise InvalidInput(f"size = {size}; images need at least one pixel")
    where = data_folder(folder)
    refused: WrongSize | None = None
    for path, read in places(name, where):
        try:
            found = read(path, name, size)
        except WrongSize as error:
            # A container of another size must not hide the originals beside it.
            refused = refused or error
            continue
        return _tidy(found, path)
    raise refused or MissingData(missing(name, where))


def missing(name: str, folder: Path | None) -> str:
    """What to do when a set is not there."""
    wanted = [glob for glob, _ in layouts(name)]
    looked = f"not in {folder}" if folder is not None else f"not found: no data folder is named by {VARIABLE} or --data"
    return f"{name} is {looked}; put one of these into the data folder: {', '.join(wanted)}"


def _tidy(found: ImageSet, path: Path) -> ImageSet:
    """Drop what is no class, take numbers off names, and say how true the pixels are."""
    known = KNOWN.get(found.name)
    if known and known.numbered:
        found = replace(found, class_names=tuple(_unnumbered(name) for name in found.class_names))
    if known:
        found = found.without(known.drop)
    return replace(found, note=found.note or _FIDELITY.get(path.name, "not stated by the container"))


def _unnumbered(name: str) -> str:
    """ "001.ak47" -> "ak47"."""
    number, _, rest = name.partition(".")
    return rest if number.isdigit() and rest else name
