"""Run folders that are damaged in one place, and what every command makes of them.

Of a trial comes one of

- *harmless*: the command says what it says of the folder as it was, or computes the same front;
- *noticed*: it names what is wrong, in an error or a warning;
- *traceback*: it ends in an error that is not ours;
- *silent*: it says something else than of the folder as it was, and does not say why.

Only the first two are good.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bipareto.cli import main
from bipareto.sweep import sweep
from bipareto.sweep.config import SweepConfig
from bipareto.sweep.store import SliceFolder
from bipareto.sweep.typed import parse

__all__ = ["COMMANDS", "Trial", "count", "make_runs", "said", "trials"]

#: Commands that read a run folder; `resume` alone may write to it.
COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "ls": lambda run: ["ls", str(run.parent)],
    "watch": lambda run: ["watch", str(run), "--once"],
    "report": lambda run: ["report", str(run), "--out", str(run.parent / "page.html")],
    "certify": lambda run: ["certify", str(run)],
    "doctor": lambda run: ["doctor", str(run)],
    "resume": lambda run: ["resume", str(run), "--quiet"],
}

_CONFIG: dict[str, Any] = {
    "problem": {"name": "quadratic", "options": {"dim": 2}},
    "method": {"hyperparameters": "plain"},
    "preferences": {"count": 3},
    "seeds": [0, 1],
    "steps": 24,
    "record_every": 4,
    "slice": 3,
    "compile": False,
    "checkpoint": {"seconds": 0},
}


#: command -> what it says of a folder as it is, and the digits after it
Truth = dict[str, tuple[str, dict[str, bytes]]]


class Trial(NamedTuple):
    folder: str
    file: str
    damage: str
    command: str
    kind: str
    words: str


class _Stop(Exception):
    pass


def make_runs(home: Path) -> dict[str, Path]:
    """A finished run, one of another seed to take files from, and one that was killed in its
    second slice.
    """
    for name, seeds in (("done", [0, 1]), ("other", [2, 3])):
        sweep.sweep(parse(SweepConfig, _CONFIG | {"seeds": seeds}), home / name / "run")
    save = SliceFolder._save

    def saving(self: SliceFolder, seen: Any, *rest: Any) -> None:
        save(self, seen, *rest)
        if self.path.name == "00001" and seen.step == 12:
            raise _Stop

    SliceFolder._save = saving  # type: ignore[method-assign]
    try:
        with contextlib.suppress(_Stop):
            sweep.sweep(parse(SweepConfig, _CONFIG), home / "stopped" / "run")
    finally:
        SliceFolder._save = save  # type: ignore[method-assign]
    return {name: home / name / "run" for name in ("done", "stopped", "other")}


def _damages(path: Path, other: Path, chance: random.Random) -> dict[str, Callable[[], object]]:
    """What can happen to a file; `other` is the file of the same name in another run."""
    data = path.read_bytes()
    place = chance.randrange(max(len(data), 1))
    flipped = bytes([data[place] ^ (1 << chance.randrange(8))]) if data else b"x"
    begin = chance.randrange(max(len(data), 1))
    end = min(len(data), begin + chance.randrange(1, 64))
    middle = chance.randrange(max(len(data), 1))

    def replace() -> None:
        path.unlink()
        path.mkdir()

    found: dict[str, Callable[[], object]] = {
        "truncate": lambda: path.write_bytes(data[:middle]),
        "empty": lambda: path.write_bytes(b""),
        "flip": lambda: path.write_bytes(data[:place] + flipped + data[place + 1 :]),
        "zero": lambda: path.write_bytes(data[:begin] + bytes(end - begin) + data[end:]),
        "delete": path.unlink,
        "append": lambda: path.write_bytes(data + b"\n{}garbage\xff"),
        "garbage": lambda: path.write_bytes(chance.randbytes(200)),
        "text": lambda: path.write_text("[1, 2"),
        "a folder": replace,
    }
    if other.is_file():
        found["of another run"] = lambda: shutil.copy(other, path)
    return found


def _swap(a: Path, b: Path) -> None:
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)


def said(words: Sequence[str]) -> tuple[str, str, str]:
    """(kind, what was said, its warnings and errors) of a command."""
    out, err = io.StringIO(), io.StringIO()
    kind = "finished"
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            main(list(words))
        except SystemExit as end:
            kind = "finished" if not end.code else "refused"
        except BaseException as error:  # noqa: BLE001 - a traceback, of whatever kind
            kind = f"traceback {type(error).__name__}: {error}"
    return kind, out.getvalue(), err.getvalue()


def _plain(text: str, run: Path) -> str:
    """What a command says, without paths, times and the spaces that align them."""
    text = text.replace(str(run), "RUN").replace(str(run.parent), "HOME")
    text = re.sub(" +", " ", text)
    return re.sub(r"(\d+ h )?(\d+ min )?\d+(\.\d+)? ?(s|ms|min)\b", "TIME", text)


def _answer(run: Path) -> dict[str, bytes]:
    """The digits that a run has come to and the records on its way; nothing before its end."""
    if not (run / "front.csv").is_file():
        return {}
    files = [run / "front.csv", *sorted(run.glob("slices/*/metrics.jsonl"))]
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.is_file()}


def trials(
    runs: dict[str, Path],
    home: Path,
    seed: int,
    rounds: int,
    share: int = 1,
    folders: Sequence[str] = ("done", "stopped"),
) -> Iterable[Trial]:
    """Every file of the runs, damaged in every way, `rounds` times at other places, and shown to
    every command; of these trials every `share`-th, by chance.
    """
    chance = random.Random(seed)
    for folder in folders:
        truth = _truth(runs[folder], home / "truth")
        files = sorted(p for p in runs[folder].rglob("*") if p.is_file() and p.name != "lock")
        jobs = [
            (path, name)
            for path in files
            for name in _damages(path, runs["other"] / path.relative_to(runs[folder]), chance)
            for _ in range(rounds if name in ("truncate", "flip", "zero") else 1)
        ]
        jobs += [(path, "swap") for path in files if "slices/00000" in str(path)]
        for path, name in jobs:
            inside = path.relative_to(runs[folder])
            for command in COMMANDS:
                if chance.randrange(share):
                    continue
                run = _copy(runs[folder], home / "trial")
                if name == "swap":
                    twin = run / str(inside).replace("00000", "00001")
                    if not twin.is_file():
                        continue
                    _swap(run / inside, twin)
                else:
                    _damages(run / inside, runs["other"] / inside, chance)[name]()
                kind, words = _judge(command, run, truth)
                yield Trial(folder, str(inside), name, command, kind, words)


def _copy(run: Path, home: Path) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return Path(shutil.copytree(run, home / "run"))


def _truth(run: Path, home: Path) -> Truth:
    """command -> what it says of the folder as it is, and the digits after it."""
    found = {}
    for command, words in COMMANDS.items():
        copy = _copy(run, home)
        kind, out, err = said(words(copy))
        assert not kind.startswith("traceback"), (command, kind)
        found[command] = (_plain(kind + out + err, copy), _answer(copy))
    return found


def _judge(
    command: str, run: Path, truth: dict[str, tuple[str, dict[str, bytes]]]
) -> tuple[str, str]:
    usual, digits = truth[command]
    before = _state(run)
    kind, out, err = said(COMMANDS[command](run))
    words = _plain(kind + out + err, run)
    if kind.startswith("traceback"):
        return "traceback", kind
    if command != "resume" and _state(run) != before:
        return "silent", "it wrote to the folder"
    if command == "resume" and kind == "finished" and _answer(run) != digits:
        return "silent", "other digits"
    if words == usual:
        return "harmless", ""
    if kind == "refused" or "warning" in err:
        return "noticed", err[-300:]
    return "silent", words[-300:]


def _state(run: Path) -> dict[str, int]:
    return {
        str(path.relative_to(run)): path.stat().st_size for path in run.rglob("*") if path.is_file()
    }


def count(outcomes: Iterable[Trial]) -> dict[str, int]:
    seen = Counter(trial.kind for trial in outcomes)
    return {kind: seen[kind] for kind in ("harmless", "noticed", "traceback", "silent")}
