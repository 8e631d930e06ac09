"""Checksums of the files of a run folder, which every command that reads one looks at first.

RUN/checksums.json names the configuration and the manifest from the beginning, the result of a
slice as soon as that is done (it vouches for the slice's records), and every other file of the run
once all are.  It carries a checksum of itself.  What is not named (a page, a picture) is not looked
at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bipareto.sweep.durable import AGAIN, Damaged, write_text


class Unknown(Damaged):
    """The checksums themselves are missing or damaged: nothing is known of the other files."""


NAME = "checksums.json"
#: Files that belong to a process, or that are looked at otherwise.
_LEFT_OUT = ("lock", NAME)

#: file -> (its modification time and size when it was read last, its checksum): a folder that is
#: watched is not read anew every second.
_SEEN: dict[Path, tuple[tuple[int, int], str]] = {}


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    about = path.stat()
    stamp = (about.st_mtime_ns, about.st_size)
    if path not in _SEEN or _SEEN[path][0] != stamp:
        with path.open("rb") as file:
            _SEEN[path] = stamp, hashlib.file_digest(file, "sha256").hexdigest()
    return _SEEN[path][1]


def seal(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write down the checksums of the named files; None takes all that belong to the run."""
    if names is None:
        files = [path for path in folder.rglob("*") if path.is_file() and _belongs(folder, path)]
        names = [str(path.relative_to(folder)) for path in files]
    _SEEN.clear()
    _write(folder, {name: digest(folder / name) for name in sorted(names)})


def add(folder: Path, name: str) -> None:
    """Write down one more file's checksum; lost checksums stay so until the run is resumed."""
    with suppress(Unknown):
        _write(folder, {**named(folder), name: digest(folder / name)})


def write_sums(folder: Path, contents: Mapping[str, bytes]) -> None:
    """The same for files that are about to be written, name -> bytes."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    _write(folder, sums)


def _write(folder: Path, sums: dict[str, str]) -> None:
    write_text(folder / NAME, json.dumps({"files": sums, "self": _of(sums)}, indent=1) + "\n")


def _belongs(folder: Path, path: Path) -> bool:
    inside = path.relative_to(folder)
    known = inside.parts[0] == "slices" or str(inside) in (
        "config.yaml",
        "manifest.json",
        "front.csv",
        "front.npz",
        "measures.json",
    )
    return known and path.name not in _LEFT_OUT and not path.name.startswith(".")


def _of(sums: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def named(folder: Path) -> dict[str, str]:
    """file -> checksum, as `seal` wrote it; `Unknown` where that is missing or not whole."""
    path = folder / NAME
    remedy = f"bipareto resume {folder} looks at all files and writes it anew"
    try:
        data: Any = json.loads(path.read_text("utf-8"))
        sums = dict(data["files"])
        whole = data["self"] == _of(sums)
    except FileNotFoundError as error:
        raise Unknown(f"{path} is missing; {remedy}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unknown(f"{path} is damaged ({type(error).__name__}); {remedy}") from error
    if not whole:
        raise Unknown(f"{path} is damaged: its checksum does not fit; {remedy}")
    return sums


def check(folder: Path, only: Iterable[str] | None = None) -> None:
    """Refuse files that are missing or not what was written, by name.

    Args:
        only: these alone, where they are named.
    """
    sums = named(folder)
    for name in sums if only is None else [name for name in only if name in sums]:
        path = folder / name
        try:
            fits = digest(path) == sums[name]
        except OSError as error:
            raise Damaged(
                f"{path} cannot be read ({error.strerror}), but belongs to the run; {_remedy(name)}"
            ) from error
        if not fits:
            raise Damaged(f"{path} is damaged: its checksum does not fit; {_remedy(name)}")


def _remedy(name: str) -> str:
    if name in ("config.yaml", "manifest.json"):
        return "bring it back from a copy, or begin the run anew in another folder"
    return AGAIN
