"""The run folder: everything a sweep has to remember, so that it survives a crash at any moment.

    RUN/config.yaml              what was asked for
    RUN/manifest.json            what was decided: the method's numbers, slice size, threads,
                                 compile flag, versions
    RUN/checksums.json           of the files of the run, see `checksums`
    RUN/lock                     held by the process that runs the sweep; it dies with it
    RUN/slices/00000/            one slice of runs that are stepped side by side
        attempts.jsonl           a line whenever somebody begins or goes on with the slice, and
                                 for each checkpoint
        owner.json               what it is for, where no manifest says so
        metrics.jsonl            a line per record, for all its runs
        step-000000000500.safetensors   checkpoints, the last few
        result.safetensors       present when the slice is done
    RUN/front.csv, front.npz, measures.json   present when the sweep is done

Files appear whole or not at all (written beside, synced, renamed) and carry a checksum.  Metrics
are appended to in constant time; a checkpoint says how many of their bytes belong to it, and what
follows is cut off when a run goes on. Nothing here unpickles: see `durable`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bipareto.errors import InvalidInput
from bipareto.sweep import checksums
from bipareto.sweep.durable import Damaged, RunLocked, is_locked, lock, reporting, write_text
from bipareto.sweep.slices import SliceFolder

__all__ = ["RunFolder", "SliceFolder"]


@dataclass(frozen=True)
class RunFolder:
    """A run on disk.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.path / "config.yaml"

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "manifest.json").exists()

    def create(self, config: str, manifest: Mapping[str, Any]) -> None:
        """Begin a run; the manifest is written last and makes it one."""
        with reporting(self.path / "config.yaml"):
            self.path.mkdir(parents=True, exist_ok=True)
        self.write_text("config.yaml", config)
        text = json.dumps(manifest, indent=2) + "\n"
        # The checksums come before the manifest, which makes the folder a run.
        checksums.write_sums(
            self.path, {"config.yaml": config.encode(), "manifest.json": text.encode()}
        )
        self.write_text("manifest.json", text)

    def check(self) -> None:
        """Refuse a folder with damaged files: for commands that read it and can mend nothing."""
        self.manifest()
        checksums.check(self.path)

    def reopen(self, done: Iterable[int]) -> None:
        """Say that the run is worked on: only its configuration, its manifest and the results of
        these slices are as they were.
        """
        results = [str(self.slice(index).result.relative_to(self.path)) for index in done]
        checksums.seal(self.path, ["config.yaml", "manifest.json", *results])

    def note_result(self, index: int) -> None:
        """Write down that a slice has its result, so that it will be missed when it is gone."""
        checksums.add(self.path, str(self.slice(index).result.relative_to(self.path)))

    def had_result(self, index: int) -> bool:
        """Whether that was written down."""
        try:
            name = str(self.slice(index).result.relative_to(self.path))
            return name in checksums.named(self.path)
        except checksums.Unknown:
            return False

    def seal(self) -> None:
        """Say that the run is done: write down the checksums of all its files."""
        checksums.seal(self.path)

    def manifest(self) -> dict[str, Any]:
        """What `create` was given, of a folder whose configuration and manifest are whole."""
        try:
            found = json.loads((self.path / "manifest.json").read_text("utf-8"))
            if not isinstance(found, dict):
                raise ValueError("no object")
            with suppress(checksums.Unknown):
                checksums.check(self.path, ["config.yaml", "manifest.json"])
            return found
        except (NotADirectoryError, IsADirectoryError) as error:
            raise InvalidInput(f"{self.path} is no run folder ({error.strerror})") from error
        except FileNotFoundError as error:
            raise InvalidInput(
                f"{self.path} holds no run (there is no manifest.json); begin one with: bipareto "
                "front PROBLEM --out FOLDER"
            ) from error
        except ValueError as error:
            raise Damaged(
                f"{self.path / 'manifest.json'} is damaged ({error}); begin the run anew in "
                "another folder"
            ) from error

    def write_text(self, name: str, text: str) -> None:
        """A file of the run, atomically."""
        write_text(self.path / name, text)

    def slice(self, index: int) -> SliceFolder:
        """The folder of one slice."""
        return SliceFolder(self.path / "slices" / f"{index:05d}")

    def running(self) -> bool:
        """Whether a process is at work on this run; looked at without writing anything."""
        return is_locked(self.path / "lock")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that runs this; another is refused, with the name of the first."""
        with reporting(self.path / "lock"):
            self.path.mkdir(parents=True, exist_ok=True)
        # `running` holds the lock for a moment, so one refusal means little.
        for _ in range(5):
            descriptor = lock(self.path / "lock")
            if descriptor is not None:
                break
            time.sleep(0.05)
        if descriptor is None:
            holder = (self.path / "lock").read_text("utf-8").strip() or "another process"
            raise RunLocked(f"{self.path} is being run by {holder}; wait for it, or stop it first")
        try:
            with reporting(self.path / "lock"):
                os.truncate(descriptor, 0)
                os.pwrite(
                    descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0
                )
            yield
        finally:
            os.close(descriptor)
