"""Fetching public files: resumed where they broke off, checked, and in place whole or not at all.

A file grows beside its place as `.NAME.part`.  It is moved there when its checksum is right; an
archive is unpacked beside its place and moved there as a whole.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from bipareto.errors import InvalidInput
from bipareto.run.bars import bar
from bipareto_experiments.data.images import DataError
from bipareto_experiments.data.remotes import REMOTES, Remote

_BLOCK = 1 << 18
#: attempts in a row that may bring nothing new, and the seconds between the first two; they double
#: each time
_ATTEMPTS, _PAUSE = 4, 1.0
_TIMEOUT = 30.0


class FetchError(DataError):
    """A file could not be fetched; what has come is kept and the next attempt goes on from
    there.
    """


class _BrokenOff(Exception):
    """The connection ended before the file did."""


def fetch(
    name: str,
    folder: Path,
    *,
    mirror: str | None = None,
    progress: bool | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Fetch a public set, or the weights `resnet18` or `mobilenetv2`, into the data folder; what is
    there already is left alone.

    Args:
        name: one of `REMOTES`.
        folder: the data folder; made if it is missing.
        mirror: take the files of the same names from below this address instead; they must have the
            same checksums.
        progress: whether to show a bar; None shows it on a terminal.
        told: is told what happens, in words.

    Returns:
        the files and folders of the set.
    """
    if name not in REMOTES:
        raise InvalidInput(
            f"{name!r} is not public, or not known; what can be fetched: {', '.join(REMOTES)}"
        )
    for remote in REMOTES[name]:
        target = folder / remote.target
        if target.exists():
            told(f"{target} is there already")
            continue
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        file = urlsplit(remote.url).path.rpartition("/")[2]
        url = f"{mirror.rstrip('/')}/{file}" if mirror else remote.url
        told(f"fetching {url} (about {remote.megabytes:g} MB)")
        if not remote.members:
            download(url, target, remote.checksum, progress=progress)
            continue
        archive = folder / file
        download(url, archive, remote.checksum, progress=progress)
        told(f"unpacking {archive.name}")
        _unpack(archive, remote, target)
        archive.unlink()
    return [folder / remote.target for remote in REMOTES[name]]


def download(
    url: str,
    path: Path,
    checksum: str,
    *,
    progress: bool | None = None,
    pause: float = _PAUSE,
    timeout: float = _TIMEOUT,
) -> None:
    """Fetch one file to `path`, going on from `.NAME.part` where an earlier attempt left it.

    Args:
        url: http or https.
        path: the file to be; if it is there and right, nothing is done.
        checksum: "md5:..." or "sha256:...", of which the beginning is enough.
        progress: whether to show a bar; None shows it on a terminal.
        pause: seconds before the first repetition; they double as long as nothing new comes.
        timeout: seconds without a byte after which the connection counts as broken.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"{url} is no http or https address")
    if path.exists():
        _verify(
            path,
            checksum,
            f"{path} is there, but it is another file",
            "move it away, then fetch again",
        )
        return
    partial = path.with_name(f".{path.name}.part")
    with _writing(path), partial.open("ab") as file, _alone(file, path):
        failures = 0
        while True:
            before = file.tell()
            try:
                _receive(url, file, timeout, progress)
                break
            except HTTPError as error:
                error.close()
                if error.code < 500 and error.code not in (408, 429):
                    raise FetchError(
                        f"{url} answers {error.code} {error.reason}; is there a newer address, or "
                        "a mirror?"
                    ) from error
                problem: Exception = error
            except (_BrokenOff, URLError, HTTPException, ConnectionError, TimeoutError) as error:
                problem = error
            failures = 0 if file.tell() > before else failures + 1
            if failures >= _ATTEMPTS:
                raise FetchError(
                    f"{url} broke off after {file.tell()} bytes ({_reason(problem)}); what has "
                    "come is kept: the same command goes on from there"
                ) from problem
            time.sleep(pause * 2**failures)
    try:
        _verify(
            partial,
            checksum,
            f"{url} gave another file than expected",
            "it was removed; fetch again, or from a mirror",
        )
    except DataError:
        partial.unlink()
        raise
    with _writing(path):
        partial.replace(path)


def _receive(url: str, file: IO[bytes], timeout: float, progress: bool | None) -> None:
    """Append to `file` what it lacks; raises _BrokenOff where that ends early."""
    have = file.tell()
    headers = {
        "User-Agent": "bipareto",
        "Accept-Encoding": "identity",
        **({"Range": f"bytes={have}-"} if have else {}),
    }
    try:
        response = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        # 416: nothing lies beyond what we have.  Whether that is the whole file, the checksum says.
        if error.code == 416 and have:
            error.close()
            return
        raise
    with response:
        # A server that knows no ranges, or mends the range asked for, begins elsewhere: follow it.
        start = _first_byte(response.headers.get("Content-Range")) if response.status == 206 else 0
        if start != have:
            file.seek(start)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        with bar(
            urlsplit(url).path.rpartition("/")[2], total, progress, of_bytes=True, done=start
        ) as advance:
            while block := response.read(_BLOCK):
                file.write(block)
                file.flush()
                advance(len(block))
        if total is not None and file.tell() < total:
            raise _BrokenOff(f"{total} bytes were announced")


def _first_byte(header: str | None) -> int:
    """The start in "bytes 100-199/200"; 0 where there is none, so that the file begins again."""
    unit, _, span = (header or "").partition(" ")
    first = span.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdigit() else 0


def _verify(path: Path, checksum: str, problem: str, remedy: str) -> None:
    algorithm, _, wanted = checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if not wanted or not found.startswith(wanted):
        raise DataError(f"{problem}: its {algorithm} is {found}, not {wanted}; {remedy}")


@contextmanager
def _alone(file: IO[Any], path: Path) -> Iterator[None]:
    """Hold a lock that dies with this process, so that no two write one file."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise FetchError(f"another process is fetching {path}; wait for it") from error
    file.seek(0, 2)  # it may have grown before the lock was ours
    yield


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn failures of the disk into one error."""
    try:
        yield
    except (DataError, InvalidInput):
        raise
    except OSError as error:
        raise FetchError(
            f"{path} cannot be written ({error.strerror or error}); make room or choose another "
            "folder, then fetch again"
        ) from error


def _unpack(archive: Path, remote: Remote, target: Path) -> None:
    """Unpack beside the target, then move the wanted folder there in one step."""
    with (
        _writing(target),
        tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as room,
    ):
        source, where = archive, Path(room)
        for depth, member in enumerate(remote.members):
            where = where / str(depth)
            try:
                _extract(source, where)
            except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise DataError(
                    f"{source.name} cannot be unpacked ({error}); remove {archive} and fetch again"
                ) from error
            source = where / member
            if not source.exists():
                raise DataError(
                    f"{archive} holds no {member}; remove it and look for a newer address"
                )
        shutil.move(source, target)


def _extract(archive: Path, where: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as box:
            box.extractall(where)
    else:
        with tarfile.open(archive) as box:
            box.extractall(where, filter="data")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__
