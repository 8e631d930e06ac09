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
    Damaged,
    MetricsLog,
    Position,
    lock,
    read_tensors,
    reporting,
    write_tensors,
    write_text,
)

__all__ = ["SliceFolder"]


class SliceFolder:
    """One slice of a run: its checkpoints, metrics and result.

    Args:
        path: RUN/slices/NNNNN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        """Whether the slice has a result."""
        return (self.path / "result.safetensors").exists()

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

    def check(self) -> None:
        """Refuse a result or a newest checkpoint that is damaged; a run at work may have just
        removed what was there.
        """
        with suppress(FileNotFoundError):
            if self.done:
                self.read_result()
            elif found := self.checkpoints():
                self._own(found[-1], *read_tensors(found[-1]))

    def note_attempt(self, step: int) -> None:
        """Write down that this process takes up the slice at that step."""
        line = json.dumps(
            {"step": step, "pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        )
        with (
            reporting(self.path / "attempts.jsonl"),
            (self.path / "attempts.jsonl").open("a", encoding="utf-8") as file,
        ):
            file.write(line + "\n")

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
            write_text(path, text)
            return
        try:
            found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        except ValueError as error:
            raise Damaged(f"{path} is damaged ({error}); use another folder") from error
        if differ := list(_differences(found, json.loads(text))):
            raise InvalidInput(
                f"{self.path} holds another {what} ({'; '.join(differ)}); use another folder, or "
                "the same settings to go on with it"
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
        path = self.path / "metrics.jsonl"
        data = path.read_bytes()[: at.size] if path.exists() else b""
        if len(data) != at.size or zlib.crc32(data) != at.crc:
            raise Damaged(
                f"{path} is damaged: its first {at.size} bytes are not those of the checkpoint"
            )
        rows = [json.loads(line) for line in data.splitlines()]
        history = {
            name: torch.tensor(
                [row[name] for row in rows], dtype=getattr(torch, dtype), device=device
            )
            for name, dtype in dtypes.items()
        }
        history["step"] = torch.tensor([row["step"] for row in rows])
        return history

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
        for old in self.checkpoints()[:-keep]:
            old.unlink(missing_ok=True)

    def write_result(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The end of the slice."""
        write_tensors(self.path / "result.safetensors", tensors, {**meta, "of": self.identity})

    def read_result(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `write_result` wrote; `Damaged` for the result of another slice or run."""
        path = self.path / "result.safetensors"
        return self._own(path, *read_tensors(path))

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
    """What is wanted and was not found, as "batch = 6, not 8"; of what would fill lines the name
    alone.
    """
    for name, value in wanted.items():
        held = found.get(name)
        if isinstance(held, dict) and isinstance(value, dict):
            yield from _differences(held, value)
        elif held != value:
            said = f"{name} = {held!r}, not {value!r}"
            yield said if name in found and len(said) <= 100 else name


def _name_of(step: int) -> str:
    return f"step-{step:012d}.safetensors"


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-").removesuffix(".safetensors"))


def _leaves(name: str, value: Any) -> dict[str, Tensor]:
    return {f"{name}.{i}": leaf for i, leaf in enumerate(tree.leaves(value))}


def _failure(failure: Failure | None) -> list[Any] | None:
    return None if failure is None else [failure.step, failure.term]
