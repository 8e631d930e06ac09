"""Tiny image sets in the public layouts, made on the spot."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def noise(n: int, size: int = 32, seed: int = 0) -> Pixels:
    """(n, size, size, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def write_container(path: Path, strips: dict[str, list[Pixels]], **meta: object) -> None:
    """`strips`: images (n, size, size, 3) of each strip by split; `meta`: arrays of meta.npz."""
    with zipfile.ZipFile(path, "w") as box:
        for split, parts in strips.items():
            for k, images in enumerate(parts):
                picture = io.BytesIO()
                Image.fromarray(images.reshape(-1, images.shape[2], 3)).save(
                    picture, "webp", lossless=True, exact=True
                )
                box.writestr(f"{split}_{k:03}.webp", picture.getvalue())
        arrays = io.BytesIO()
        np.savez(arrays, **{key: np.asarray(value) for key, value in meta.items()})
        box.writestr("meta.npz", arrays.getvalue())


def write_cifar100(folder: Path, pixels: Pixels, fine: list[int], coarse: list[int]) -> None:
    """The public pickles; the last image is the test split."""
    folder.mkdir(parents=True)
    rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    for name, part in (("train", slice(None, -1)), ("test", slice(-1, None))):
        data = {
            "data": rows[part],
            "fine_labels": fine[part],
            "coarse_labels": coarse[part],
            "filenames": ["x"],
        }
        (folder / name).write_bytes(pickle.dumps(data, protocol=2))
    meta = {"fine_label_names": ["apple", "bee", "cup"], "coarse_label_names": ["fruit", "rest"]}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))


def write_cifar10(folder: Path, pixels: Pixels, labels: list[int]) -> None:
    """Six batches of one image each."""
    folder.mkdir(parents=True)
    rows = pixels.transpose(0, 3, 1, 2).reshape(6, -1)
    for k, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        (folder / name).write_bytes(
            pickle.dumps({"data": rows[k : k + 1], "labels": labels[k : k + 1]}, protocol=2)
        )
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": ["plane", "car"]}, protocol=2)
    )


def write_picture(path: Path, pixels: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    data = head + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
