"""One slice of a run on disk: its checkpoints, metrics and result."""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods.base import State
from bipareto.problem import tree
from bipareto.run.results import Ended, Failure, Record, Snapshot
from bipareto.sweep import checksums
from bipareto.sweep.durable import (
    AGAIN,
    Damaged,
    MetricsLog,
    Position,
    last_record,
    lock,
    read_tensors,
    reporting,
    version_of,
    write_tensors,
    write_text,
)

_ATTEMPTS = "attempts.jsonl"


class SliceFolder:
    """One slice of a run: its checkpoints, metrics and result.

    Args:
        path: RUN/slices/NNNNN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._attempt: dict[str, Any] = {}

    @property
    def result(self) -> Path:
        """The file that ends the slice."""
        return self.path / "result.safetensors"

    @property
    def done(self) -> bool:
        """Whether the slice has a result."""
        return self.result.exists()

    @property
    def step(self) -> int:
        """The step of the newest checkpoint, 0 without one."""
        found = self.checkpoints()
        return _step_of(found[-1]) if found else 0

    def checkpoints(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(self.path.glob("step-*.safetensors"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other workers off this slice; waits for one that is still dying."""
        with reporting(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        while (descriptor := lock(self.path / "lock")) is None:
            time.sleep(0.05)
        try:
            yield
        finally:
            os.close(descriptor)

    def check(self, *, at_work: bool = False) -> Position | None:
        """Refuse a slice with files that are damaged or gone; returns how much of its records
        belongs to its newest checkpoint, None without one.

        Args:
            at_work: whether the run goes on meanwhile: what is looked at may be replaced, and
                records are not read through.
        """
        if self.done:
            self.read_result()
            return None
        # In this order: a run at work saves a checkpoint, then says so, then removes old ones.
        begun, found = self.attempt(), self.checkpoints()
        newest = _step_of(found[-1]) if found else 0
        if begun is None and found:
            raise Damaged(f"{self.path / _ATTEMPTS} is empty or gone; {AGAIN}")
        if begun is not None and begun.get("saved", begun["step"]) > newest and not self.done:
            raise Damaged(f"{self.path} had a newer checkpoint than that of step {newest}; {AGAIN}")
        with suppress(*[FileNotFoundError] if at_work else []):
            if found:
                _, meta = self._own(found[-1], *read_tensors(found[-1]))
                at = Position(*meta["metrics"])
                if not at_work:
                    self._records(at)
                return at
        return None

    def note_attempt(self, step: int) -> None:
        """Write down that this process takes up the slice at that step."""
        self._attempt = {
            "step": step,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "time": time.time(),
        }
        self._note(self._attempt)

    def _note(self, attempt: Mapping[str, Any]) -> None:
        path = self.path / _ATTEMPTS
        line = json.dumps({**attempt, "crc": _crc(attempt)}).encode() + b"\n"
        with reporting(path), path.open("a+b") as file:
            # A line that a crash cut short ends here.
            if (size := file.seek(0, 2)) and (file.seek(size - 1), file.read(1))[1] != b"\n":
                line = b"\n" + line
            file.write(line)

    def attempt(self) -> dict[str, Any] | None:
        """Who has taken up the slice last, at which step and when; "saved" is the step of the
        newest checkpoint since.
        """
        found = last_record(self.path / _ATTEMPTS)
        # Lines of earlier versions have no checksum.
        if found is not None and "crc" in found and found.pop("crc") != _crc(found):
            raise Damaged(f"{self.path / _ATTEMPTS} is damaged: its checksum does not fit; {AGAIN}")
        return found

    def claim(self, owner: Mapping[str, Any], what: str) -> None:
        """Write down what a slice is for before its first checkpoint; refuse one that holds
        something else.

        A checkpoint carries the numbers of its method, so going on from another's would silently
        keep those.  A slice that is not done must be `held` meanwhile.

        Args:
            owner: all that decides the result, as JSON.
            what: is kept here, for the message, e.g. "search".
        """
        path, text = self.path / "owner.json", json.dumps(owner)
        if not self.done and not self.checkpoints():
            write_text(path, json.dumps({**owner, "version": version_of("bipareto")}))
            return
        try:
            found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        except ValueError as error:
            raise Damaged(f"{path} is damaged ({error}); use another folder") from error
        if differ := list(_differences(found, json.loads(text))):
            version = found.get("version", "before 0.1.0, which noted no version")
            raise InvalidInput(
                f"{self.path} holds another {what} ({'; '.join(differ)}), begun with bipareto "
                f"{version} (this is {version_of('bipareto')}); use another folder, or the same "
                "settings to go on with it"
            )

    def restore(self, template: State) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that is whole, its history included, and what was found wrong with
        newer ones.

        Args:
            template: a state of the slice, for the structure of its tree.
        """
        complaints: list[str] = []
        for path in reversed(self.checkpoints()):
            try:
                return self._load(path, template), complaints
            except Damaged as error:
                complaints.append(str(error))
                path.unlink(missing_ok=True)
        return None, complaints

    def _load(self, path: Path, template: State) -> Snapshot:
        tensors, meta = self._own(path, *read_tensors(path))
        device = tree.first_leaf(template).device
        tensors = {name: value.to(device) for name, value in tensors.items()}
        held = sum(name.startswith("state.") for name in tensors)
        shapes = [leaf.shape for leaf in tree.leaves(template)]
        if held != len(shapes) or any(
            tensors[f"state.{i}"].shape != shape for i, shape in enumerate(shapes)
        ):
            raise Damaged(
                f"{path} is of a version of bipareto whose states are others ({held} tensors, "
                f"{len(shapes)} here); {AGAIN}"
            )

        def rebuilt(name: str, like: Any) -> Any:
            return tree.rebuild(
                like, [tensors[f"{name}.{i}"] for i in range(len(tree.leaves(like)))]
            )

        best = {
            name: rebuilt(f"best.{name}", getattr(template, name))
            if name in ("x", "y")
            else tensors[f"best.{name}.0"]
            for name in meta["best"]
        }
        ended = {}
        if meta["ended"]:
            states = rebuilt("ended", template)
            for i, (run, steps, reason, failure) in enumerate(meta["ended"]):
                ended[run] = Ended(
                    tree.select(states, i),
                    steps,
                    reason,
                    None if failure is None else Failure(*failure),
                )
        history = self._history(Position(*meta["metrics"]), meta["dtypes"], device)
        return Snapshot(meta["step"], rebuilt("state", template), best, ended, history)

    def _history(
        self, at: Position, dtypes: dict[str, str], device: torch.device
    ) -> dict[str, Tensor]:
        rows = [json.loads(line) for line in self._records(at).splitlines()]
        history = {
            name: torch.tensor(
                [row[name] for row in rows], dtype=getattr(torch, dtype), device=device
            )
            for name, dtype in dtypes.items()
        }
        history["step"] = torch.tensor([row["step"] for row in rows])
        return history

    def _records(self, at: Position, *, whole: bool = False) -> bytes:
        path = self.path / "metrics.jsonl"
        data = path.read_bytes() if path.is_file() else b""
        data = data if whole else data[: at.size]
        if len(data) != at.size or zlib.crc32(data) != at.crc:
            raise Damaged(
                f"{path} is damaged: its first {at.size} bytes are not those of the checkpoint or "
                f"result; {AGAIN}"
            )
        return data

    @contextmanager
    def recording(
        self, snapshot: Snapshot | None, seconds: float, keep: int
    ) -> Iterator[Callable[[Record], None]]:
        """A callback for `drive` that appends metrics and saves checkpoints.

        Args:
            snapshot: where the run goes on; None begins anew.
            seconds: between checkpoints.
            keep: how many are kept.
        """
        metrics = MetricsLog(
            self.path / "metrics.jsonl",
            Position(0, 0) if snapshot is None else self._position(snapshot),
        )
        last = time.monotonic()

        def record(seen: Record) -> None:
            nonlocal last
            metrics.append(
                {"step": seen.step, **{name: value.tolist() for name, value in seen.info.items()}}
            )
            if time.monotonic() - last >= seconds:
                self._save(seen, metrics.sync(), keep)
                last = time.monotonic()

        try:
            yield record
        finally:
            metrics.close()

    def _position(self, snapshot: Snapshot) -> Position:
        return Position(*read_tensors(self.path / _name_of(snapshot.step))[1]["metrics"])

    def _save(self, seen: Record, position: Position, keep: int) -> None:
        tensors = _leaves("state", seen.state)
        for name, value in seen.best.items():
            tensors |= _leaves(f"best.{name}", value)
        if seen.ended:
            tensors |= _leaves("ended", tree.stack([item.state for item in seen.ended.values()]))
        meta = {
            "step": seen.step,
            "best": list(seen.best),
            "ended": [
                [run, item.steps, item.reason, _failure(item.failure)]
                for run, item in seen.ended.items()
            ],
            "dtypes": {
                name: str(value.dtype).removeprefix("torch.") for name, value in seen.info.items()
            },
            "metrics": list(position),
            "of": self.identity,
        }
        write_tensors(self.path / _name_of(seen.step), tensors, meta)
        if self._attempt:
            self._note({**self._attempt, "saved": seen.step})
        for old in self.checkpoints()[:-keep]:
            old.unlink(missing_ok=True)

    def write_result(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The end of the slice; it vouches for the records."""
        path = self.path / "metrics.jsonl"
        records = path.read_bytes() if path.is_file() else b""
        at = [len(records), zlib.crc32(records)]
        write_tensors(self.result, tensors, {**meta, "metrics": at, "of": self.identity})

    def read_result(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `write_result` wrote; `Damaged` for the result of another slice or run, or where the
        records are not those it was written with.
        """
        tensors, meta = self._own(self.result, *read_tensors(self.result))
        # Results of earlier versions do not vouch for their records.
        if "metrics" in meta:
            self._records(Position(*meta["metrics"]), whole=True)
        return tensors, meta

    @property
    def identity(self) -> str:
        """The run and the slice that files belong to; "" where no manifest says so."""
        manifest = self.path.parent.parent / "manifest.json"
        if self.path.parent.name != "slices" or not manifest.exists():
            return ""
        return f"{checksums.digest(manifest)}/{self.path.name}"

    def _own(
        self, path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        # Files of earlier versions do not say what they belong to.
        if meta.get("of", self.identity) != self.identity:
            raise Damaged(f"{path} belongs to another run or slice")
        return tensors, meta


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """What is wanted and was not found, as "batch = 6, not 8"; the name alone if long."""
    for name, value in wanted.items():
        held = found.get(name)
        if isinstance(held, dict) and isinstance(value, dict):
            yield from _differences(held, value)
        elif held != value:
            said = f"{name} = {held!r}, not {value!r}"
            yield said if name in found and len(said) <= 100 else name


def _crc(attempt: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(attempt, sort_keys=True).encode())


def _name_of(step: int) -> str:
    return f"step-{step:012d}.safetensors"


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-").removesuffix(".safetensors"))


def _leaves(name: str, value: Any) -> dict[str, Tensor]:
    return {f"{name}.{i}": leaf for i, leaf in enumerate(tree.leaves(value))}


def _failure(failure: Failure | None) -> list[Any] | None:
    return None if failure is None else [failure.step, failure.term]
