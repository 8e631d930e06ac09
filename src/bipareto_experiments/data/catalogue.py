"""Which sets are known, where each may lie, and how it is then read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from bipareto.errors import InvalidInput
from bipareto_experiments.data.cifar import (
    read_cifar10,
    read_cifar100,
    summarize_cifar10,
    summarize_cifar100,
)
from bipareto_experiments.data.folders import (
    read_folder,
    read_tiny_imagenet,
    summarize_folder,
    summarize_tiny_imagenet,
)
from bipareto_experiments.data.idx import read_mnist, summarize_mnist
from bipareto_experiments.data.images import DataError, ImageSet, MissingData, Summary, WrongSize
from bipareto_experiments.data.packed import read_packed, summarize_packed
from bipareto_experiments.data.remotes import REMOTES

#: the environment variable that names the data folder
VARIABLE = "BIPARETO_DATA"


class Layout(NamedTuple):
    """One way in which a set may lie in the data folder: a glob, what reads it, and what counts
    it.
    """

    glob: str
    read: Callable[[Path, str, int], ImageSet]
    summarize: Callable[[Path], Summary]


@dataclass(frozen=True)
class Known:
    """A public set.

    title: its name in words.
    layouts: originals that are exact and quick to read come first, then containers, then pictures.
    drop: classes that are clutter, not classes.
    numbered: whether class folders are called "001.name".
    """

    title: str
    layouts: tuple[Layout, ...]
    drop: tuple[str, ...] = ()
    numbered: bool = False


def _packed(name: str) -> tuple[Layout, ...]:
    return tuple(
        Layout(glob, read_packed, summarize_packed) for glob in (f"{name}.zip", f"{name}_*.zip")
    )


def _folders(*globs: str) -> tuple[Layout, ...]:
    return tuple(Layout(glob, read_folder, summarize_folder) for glob in globs)


def _idx(*globs: str) -> tuple[Layout, ...]:
    return tuple(Layout(glob, read_mnist, summarize_mnist) for glob in globs)


KNOWN: dict[str, Known] = {
    "cifar10": Known(
        "CIFAR-10",
        (Layout("cifar-10-batches-py", read_cifar10, summarize_cifar10), *_packed("cifar10")),
    ),
    "cifar100": Known(
        "CIFAR-100, FC100",
        (Layout("cifar-100-python", read_cifar100, summarize_cifar100), *_packed("cifar100")),
    ),
    "caltech101": Known(
        "Caltech-101; BACKGROUND_Google is dropped",
        (
            *_packed("caltech101"),
            *_folders(
                "caltech101/101_ObjectCategories",
                "caltech-101/101_ObjectCategories",
                "101_ObjectCategories",
            ),
        ),
        drop=("BACKGROUND_Google",),
    ),
    "caltech256": Known(
        "Caltech-256; clutter is dropped",
        (
            *_packed("caltech256"),
            *_folders("caltech256/256_ObjectCategories", "256_ObjectCategories"),
        ),
        drop=("clutter",),
        numbered=True,
    ),
    "tiny-imagenet": Known(
        "Tiny-ImageNet",
        (
            *_packed("tiny-imagenet"),
            Layout("tiny-imagenet-200", read_tiny_imagenet, summarize_tiny_imagenet),
        ),
    ),
    "mnist": Known("MNIST", _idx("mnist", "MNIST/raw")),
    # The last is where Debian's package dataset-fashion-mnist puts it.
    "fashion-mnist": Known(
        "Fashion-MNIST",
        _idx("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    ),
}

#: how true containers are that do not say it themselves, by file name
_FIDELITY = {
    "cifar10_pm2.zip": "every pixel within ±2 of 255 of the original (RMSE 1.4)",
    "cifar100_pm2.zip": "every pixel within ±2 of 255 of the original (RMSE 1.4)",
    "caltech101_32px.zip": "resized to 32x32, then lossless",
}


class Place(NamedTuple):
    """Where a set was found, and how it lies there."""

    path: Path
    layout: Layout

    def summary(self) -> Summary:
        """What is there, without decoding it."""
        found = self.layout.summarize(self.path)
        return replace(found, note=found.note or _fidelity(self.path))


def data_folder(folder: str | Path | None = None) -> Path | None:
    """The data folder: the one given, else that of BIPARETO_DATA, else None."""
    chosen = folder if folder is not None else os.environ.get(VARIABLE) or None
    if chosen is None:
        return None
    path = Path(chosen).expanduser()
    if not path.is_dir():
        source = "the data folder" if folder is not None else VARIABLE
        raise InvalidInput(
            f"{source} is {path}, which is not a folder; name the one that holds your image sets"
        )
    return path


def layouts(name: str) -> tuple[Layout, ...]:
    """Where a set may lie; one that is not known is a container or an image folder of its name."""
    if name in KNOWN:
        return KNOWN[name].layouts
    if not name or Path(name).name != name or name.startswith("."):
        raise InvalidInput(
            f"{name!r} is no name of a set; known are {', '.join(KNOWN)}, and any image folder in "
            "the data folder by its name"
        )
    return (*_packed(name), *_folders(name))


def places(name: str, folder: Path | None) -> Iterator[Place]:
    """Every place where a set lies, the best first."""
    for layout in layouts(name):
        if Path(layout.glob).is_absolute():
            if Path(layout.glob).exists():
                yield Place(Path(layout.glob), layout)
        elif folder is not None:
            yield from (Place(path, layout) for path in sorted(folder.glob(layout.glob)))


def load(name: str, folder: str | Path | None = None, size: int = 32) -> ImageSet:
    """Read an image set from the data folder, in whichever layout is there.

    Args:
        name: one of `KNOWN`, or the name of a packed container or of an image folder by class in
            the data folder.
        folder: the data folder; None for the one that BIPARETO_DATA names.
        size: the side of the images in pixels.  Folders of pictures are resized to it, MNIST gets a
            border of zeros, and a packed container must have it.
    """
    if size < 1:
        raise InvalidInput(f"size = {size}; images need at least one pixel")
    where = data_folder(folder)
    refused: WrongSize | None = None
    for path, layout in places(name, where):
        try:
            found = layout.read(path, name, size)
        except WrongSize as error:
            # A container of another size must not hide the originals beside it.
            refused = refused or error
            continue
        return _tidy(found, path)
    raise refused or MissingData(missing(name, where))


def missing(name: str, folder: Path | None) -> str:
    """What to do when a set is not there."""
    looked = (
        f"not in {folder}"
        if folder is not None
        else f"not found: no data folder is named by {VARIABLE} or --data"
    )
    public = f", or: bipareto data fetch {name}" if name in REMOTES else ""
    near = [] if name in KNOWN else get_close_matches(name, KNOWN, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    ways = ", ".join(wanted(name))
    return f"{name}{meant} is {looked}; put one of these into the data folder: {ways}{public}"


def wanted(name: str) -> list[str]:
    """Files and folders below the data folder that would be found as this set."""
    return [layout.glob for layout in layouts(name) if not Path(layout.glob).is_absolute()]


def _tidy(found: ImageSet, path: Path) -> ImageSet:
    """Drop what is no class, take numbers off names, and say how true the pixels are."""
    known = KNOWN.get(found.name)
    if known and known.numbered:
        found = replace(found, class_names=tuple(_unnumbered(name) for name in found.class_names))
    if known:
        found = found.without(known.drop)
    return replace(found, note=found.note or _fidelity(path))


def _fidelity(path: Path) -> str:
    return _FIDELITY.get(path.name, "not stated by the container")


def _unnumbered(name: str) -> str:
    """ "001.ak47" -> "ak47"."""
    number, _, rest = name.partition(".")
    return rest if number.isdigit() and rest else name


def others(folder: Path) -> list[str]:
    """Names of containers and image folders in the data folder that are none of `KNOWN`."""
    known = {place.path for name in KNOWN for place in places(name, folder)}
    # A set that lies deeper takes the folder above it along.
    taken = known | {parent for path in known for parent in path.parents}
    names = []
    for path in sorted(folder.iterdir()):
        if path in taken or path.name.startswith("."):
            continue
        reader = (
            summarize_packed
            if path.suffix == ".zip"
            else summarize_folder
            if path.is_dir()
            else None
        )
        if reader is None:
            continue
        try:
            reader(path)
        except DataError:
            continue  # archives and folders of other things are none of ours
        names.append(path.stem if path.suffix == ".zip" else path.name)
    return names
