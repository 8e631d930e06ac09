"""Decoded pictures kept between runs.

Reading Caltech-256 from its 30,607 pictures takes over half a minute on two cores, and
Tiny-ImageNet longer; an array of their pixels is read in a moment.  The key of an array is a
checksum over name, length and time of change of every picture, so a changed folder is decoded anew.
A cache that cannot be written or read is done without.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Fewer pictures are decoded every time: that takes seconds.
LEAST = 5000


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/bipareto, else ~/.cache/bipareto."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bipareto"


def cached(files: Sequence[Path], size: int, decode: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """What `decode` gives for these pictures, (N, 3, size, size) uint8, from the cache where it is
    there.
    """
    import numpy as np

    if len(files) < LEAST:
        return decode()
    path = cache_folder() / f"{_key(files, size)}.npy"
    with suppress(OSError, ValueError, EOFError):
        kept = np.load(path, allow_pickle=False)
        if kept.shape == (len(files), 3, size, size) and kept.dtype == np.uint8:
            return kept
    pixels = decode()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.save(file, pixels)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return pixels


def _key(files: Sequence[Path], size: int) -> str:
    digest = hashlib.sha256(f"1 {size}\n".encode())  # the number changes when decoding does
    for file in files:
        with suppress(OSError):  # decoding will say what is wrong with it
            state = file.stat()
            digest.update(f"{file.resolve()} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
