"""The packed container: a whole image set in one small file.

An uncompressed zip with one `meta.npz` and strips `<split>_<nnn>.webp|.png|.jpg`.  A strip is a
picture as wide as one image, in which square images are stacked top to bottom; the strips of a
split follow each other by name.  `meta.npz` holds `<split>_y` (labels) and `class_names`, and where
there are groups `fine_to_coarse` and `coarse_names`; where it has `lut`, a pixel is `lut[value]`;
`note` says how true the pixels are.  Nothing in it is pickled.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bipareto.errors import InvalidInput
from bipareto.run.bars import bar
from bipareto_experiments.data.images import DataError, ImageSet, Summary, WrongSize

if TYPE_CHECKING:
    from numpy.typing import NDArray


_STRIP = re.compile(r"(?P<split>[A-Za-z0-9]+)_\d+\.(webp|png|jpg)")
_AGAIN = "copy or pack it again"
#: what a damaged zip, array or picture raises, depending on the byte that is wrong
_DAMAGE = (
    OSError,
    ValueError,
    RuntimeError,
    SyntaxError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
#: pixels; WebP allows no more
_TALLEST = 16383


class _Container:
    """An open container whose every failure names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise DataError(f"{path} is not a readable zip file ({error}); {_AGAIN}") from error
        self.strips: dict[str, list[str]] = {}
        for name in sorted(self.zip.namelist()):
            if found := _STRIP.fullmatch(name):
                self.strips.setdefault(found["split"], []).append(name)
        self.meta = self._meta()
        missing = [
            key
            for key in ("class_names", *(f"{split}_y" for split in self.strips))
            if key not in self.meta
        ]
        if missing or not self.strips:
            raise DataError(
                f"{path} is no packed image set: it has no "
                f"{' and no '.join(missing) or 'strips of images'}; {_AGAIN}"
            )

    def _read(self, name: str) -> bytes:
        try:
            return self.zip.read(name)
        except KeyError as error:
            raise DataError(
                f"{self.path} is no packed image set: it has no {name}; make one with: bipareto "
                "data pack FOLDER OUT.zip"
            ) from error
        except _DAMAGE as error:
            raise DataError(f"{self.path}: {name} is damaged ({error}); {_AGAIN}") from error

    def _meta(self) -> dict[str, NDArray[Any]]:
        import numpy as np

        data = self._read("meta.npz")
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except _DAMAGE as error:
            raise DataError(f"{self.path}: meta.npz is damaged ({error}); {_AGAIN}") from error

    def strip(self, name: str) -> NDArray[Any]:
        """The images of one strip, (n, side, side, 3) uint8, before `lut`."""
        import numpy as np
        from PIL import Image

        data = self._read(name)
        try:
            with Image.open(io.BytesIO(data)) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except _DAMAGE as error:
            raise DataError(
                f"{self.path}: {name} is not a readable picture ({error}); {_AGAIN}"
            ) from error
        height, width = pixels.shape[:2]
        if height % width:
            raise DataError(
                f"{self.path}: {name} is {width} wide and {height} high; square images stacked in "
                "it make the height a multiple of the width"
            )
        return pixels.reshape(-1, width, width, 3)

    @property
    def size(self) -> int:
        """The side of an image, read from the head of the first strip."""
        from PIL import Image

        first = next(iter(self.strips.values()))[0]
        try:
            with Image.open(io.BytesIO(self._read(first))) as picture:
                return picture.width
        except _DAMAGE as error:
            raise DataError(
                f"{self.path}: {first} is not a readable picture ({error}); {_AGAIN}"
            ) from error

    @property
    def splits(self) -> list[str]:
        """The splits, `test` last."""
        return sorted(self.strips, key=lambda split: (split == "test", split))

    @property
    def note(self) -> str:
        return str(self.meta["note"]) if "note" in self.meta else ""

    def __enter__(self) -> _Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.zip.close()


def summarize_packed(path: Path) -> Summary:
    """What a container holds, without decoding its images."""
    with _Container(path) as box:
        counts = {split: len(box.meta[f"{split}_y"]) for split in box.splits}
        return Summary(
            sum(counts.values()),
            counts.get("test", 0),
            len(box.meta["class_names"]),
            box.size,
            box.note,
        )


def read_packed(path: Path, name: str, size: int) -> ImageSet:
    """Decode a container whose images are `size` x `size`."""
    import numpy as np

    with _Container(path) as box:
        if box.size != size:
            raise WrongSize(
                f"{path} holds {box.size}x{box.size} images, and {size}x{size} were asked for; ask "
                f"for that size, or pack the originals at {size}"
            )
        labels = np.concatenate([box.meta[f"{split}_y"] for split in box.splits]).astype(np.int64)
        images = np.empty((len(labels), 3, size, size), dtype=np.uint8)
        begin = 0
        for split in box.splits:
            end = begin + len(box.meta[f"{split}_y"])
            for strip in _strips(box, split, size):
                if begin + len(strip) <= end:
                    images[begin : begin + len(strip)] = strip.transpose(0, 3, 1, 2)
                begin += len(strip)
            if begin != end:
                count = len(box.meta[f"{split}_y"])
                raise DataError(
                    f"{path}: split {split} has {count + begin - end} images and {count} labels; "
                    f"{_AGAIN}"
                )
        grouped = "fine_to_coarse" in box.meta and "coarse_names" in box.meta
        return ImageSet(
            name=name,
            images=torch.from_numpy(images),
            labels=torch.from_numpy(labels),
            test=torch.cat(
                [
                    torch.full((len(box.meta[f"{split}_y"]),), split == "test")
                    for split in box.splits
                ]
            ),
            class_names=tuple(map(str, box.meta["class_names"])),
            group=torch.from_numpy(box.meta["fine_to_coarse"].astype(np.int64))
            if grouped
            else None,
            group_names=tuple(map(str, box.meta["coarse_names"])) if grouped else (),
            note=box.note,
        )


def _strips(box: _Container, split: str, size: int) -> Iterator[NDArray[Any]]:
    lut = box.meta.get("lut")
    for name in box.strips[split]:
        pixels = box.strip(name)
        if pixels.shape[1] != size:
            raise WrongSize(
                f"{box.path}: the images of {name} are {pixels.shape[1]} wide, those before it "
                f"{size}; {_AGAIN}"
            )
        yield pixels if lut is None else lut[pixels]


def write_packed(images: ImageSet, path: Path, progress: bool | None = None) -> None:
    """Write a container that `read_packed` reads back pixel for pixel: lossless WebP, training
    images before test images.

    Args:
        images: the set.
        path: a new file; it appears whole or not at all.
        progress: whether to show a bar; None shows it on a terminal.
    """
    if path.exists():
        raise InvalidInput(f"{path} exists; choose another name, or move it away")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with (
            zipfile.ZipFile(partial, "x") as box,
            bar("packing images", len(images), progress) as advance,
        ):
            _write(images, box, advance)
        partial.replace(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror or error}); choose another place"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _write(images: ImageSet, box: zipfile.ZipFile, advance: Callable[[int], None]) -> None:
    import numpy as np
    from PIL import Image

    side = images.images.shape[-1]
    if images.images.shape[-2] != side:
        raise InvalidInput(
            f"images of {images.name} are {side} wide and {images.images.shape[-2]} high; a "
            "container holds square ones"
        )
    meta: dict[str, Any] = {
        "class_names": np.array(images.class_names),
        "note": np.array(images.note),
    }
    if images.group is not None:
        meta |= {
            "fine_to_coarse": images.group.numpy(),
            "coarse_names": np.array(images.group_names),
        }
    splits = (
        {"train": ~images.test, "test": images.test}
        if bool(images.test.any())
        else {"all": ~images.test}
    )
    for split, mask in splits.items():
        rows = mask.nonzero().flatten()
        meta[f"{split}_y"] = images.labels[rows].numpy()
        for k, part in enumerate(rows.split(max(1, _TALLEST // side))):
            pixels = images.images[part].permute(0, 2, 3, 1).reshape(-1, side, 3).numpy()
            strip = io.BytesIO()
            Image.fromarray(pixels).save(strip, "webp", lossless=True)
            box.writestr(f"{split}_{k:05}.webp", strip.getvalue())
            advance(len(part))
    arrays = io.BytesIO()
    np.savez_compressed(arrays, **meta)
    box.writestr("meta.npz", arrays.getvalue())
