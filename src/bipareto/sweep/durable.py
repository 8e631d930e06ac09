"""Files that survive a crash: whole or not there, with checksums; a log that grows; a lock that
dies with its process.

Nothing here unpickles.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import BufferedWriter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.errors import BiparetoError, installed

_CHECKSUM = "sha256"

#: What mends a damaged file of a slice.
AGAIN = "bipareto resume RUN computes what is missing again"

#: A line of records is read from the end of its file in pieces of this size.
_PIECE = 1 << 16


class StoreError(BiparetoError, RuntimeError):
    """The run folder cannot be written or read; it stays resumable, the message says how."""


class RunLocked(StoreError):
    """Another process is at work on this run."""


class Interrupted(StoreError):
    """Somebody stopped the run on purpose."""


class Damaged(StoreError):
    """A file is not what was written: truncated, or changed."""


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn failures of the disk into one error that names the remedy."""
    try:
        yield
    except OSError as error:
        run = next(
            (parent.parent for parent in path.parents if parent.name == "slices"), path.parent
        )
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "make room"
            what = (
                "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
            )
        else:
            remedy, what = "repair that", f"{error.strerror or error}"
        raise StoreError(
            f"{path} could not be written: {what}. Nothing finished is lost; {remedy}, then: "
            f"bipareto resume {run}"
        ) from error


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, sync it and put it in place: a reader sees the old
    file or the new one.

    Args:
        path: the file to be.
        write: makes the file it is given.
    """
    # The process is part of the name, so that an orphan of a dead run cannot disturb us.
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
    with reporting(path):
        try:
            write(partial)
            _sync(partial)
            partial.replace(path)
            _sync(path.parent)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """A text file in UTF-8, atomically."""
    write_atomic(path, lambda partial: partial.write_bytes(text.encode()))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _safetensors() -> ModuleType:
    """The library of the files; a run without a folder does not need it."""
    installed(
        "safetensors.torch",
        "run folders keep tensors in safetensors files; get what reads them with: pip install "
        "safetensors",
    )
    return import_module("safetensors")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Named tensors and JSON data as one safetensors file with a checksum over all of it,
    atomically.

    Strides are kept: a step may sum in another order over memory that is laid out differently.
    """
    library = _safetensors()
    host = {name: value.detach().to("cpu") for name, value in tensors.items()}
    strides = {name: list(value.stride()) for name, value in host.items()}
    flat = {name: value.contiguous().clone() for name, value in host.items()}
    text = json.dumps({"meta": dict(meta), "strides": strides}, sort_keys=True)
    data = library.torch.save(flat, {"data": text, _CHECKSUM: _digest(flat, text)})
    write_atomic(path, lambda partial: partial.write_bytes(data))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; `Damaged` when a bit of it is not as it was."""
    library = _safetensors()
    try:
        with library.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise
    except (library.SafetensorError, OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} is damaged ({error})") from error
    text = header.get("data", "")
    if header.get(_CHECKSUM) != _digest(tensors, text):
        raise Damaged(f"{path} is damaged: its checksum does not fit")
    data = json.loads(text)
    return {name: _laid_out(value, data["strides"][name]) for name, value in tensors.items()}, data[
        "meta"
    ]


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _laid_out(value: Tensor, strides: list[int]) -> Tensor:
    """The same values in fresh memory of the given strides; axes of stride 0 (expanded ones) share
    memory as before.
    """
    sizes = [1 if stride == 0 else size for size, stride in zip(value.shape, strides, strict=True)]
    fresh = torch.empty_strided(sizes, strides, dtype=value.dtype)
    fresh.copy_(value[tuple(slice(size) for size in sizes)])
    return fresh.expand(value.shape)


class Position(NamedTuple):
    """How much of metrics.jsonl belongs to a checkpoint: its bytes, and their CRC-32."""

    size: int
    crc: int


class MetricsLog:
    """An append-only file of JSON lines; each costs what it weighs, however many there are.

    Args:
        path: the file.
        at: where to go on; what follows is cut off.
    """

    def __init__(self, path: Path, at: Position) -> None:
        self.path, self.size, self.crc = path, at.size, at.crc
        self.flushed = time.monotonic()
        with reporting(path):
            self.file: BufferedWriter = path.open("ab")
            self.file.truncate(at.size)
            self.file.seek(at.size)

    def append(self, data: Mapping[str, Any]) -> None:
        """One more line; it reaches the file within about a second."""
        line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
        with reporting(self.path):
            self.file.write(line)
            if time.monotonic() - self.flushed > 1:
                self.file.flush()
                self.flushed = time.monotonic()
        self.size += len(line)
        self.crc = zlib.crc32(line, self.crc)

    def sync(self) -> Position:
        """Put all lines on the disk, and say how far that is."""
        with reporting(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return Position(self.size, self.crc)

    def close(self) -> None:
        """No more lines."""
        # What cannot be flushed was reported when it was written, or lies behind the last
        # checkpoint.
        with suppress(OSError):
            self.file.close()


def last_record(path: Path, size: int | None = None) -> dict[str, Any] | None:
    """The last whole line of a file of records, however long the file is; None where there is
    none.

    Args:
        path: the file.
        size: of its first so many bytes; None of all.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2) if size is None else size
            tail = b""
            while end > 0:
                begin = max(0, end - _PIECE)
                file.seek(begin)
                tail = file.read(end - begin) + tail
                end = begin
                if b"\0" in tail:
                    raise ValueError("zeros in place of text")
                lines = tail[: tail.rfind(b"\n") + 1].splitlines()
                # The first line of a piece may be cut; a second one is whole.
                if len(lines) > 1 or (lines and begin == 0):
                    return json.loads(lines[-1])
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise Damaged(f"{path} is damaged ({error}); {AGAIN}") from error
    return None


def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def lock(path: Path) -> int | None:
    """Take an exclusive lock that dies with this process; None when another holds it."""
    import fcntl

    with reporting(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock; nothing is written, so that a folder may be read-only."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
