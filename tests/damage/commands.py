"""Random command lines and configurations: refused by name or run, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from damage.harness import said
from limits import limited

__all__ = ["command_lines", "configurations", "try_configuration", "try_line"]

#: Words that options may be given, good and bad.
VALUES = (
    "3",
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e400",
    "abc",
    "",
    " ",
    "quadratic",
    "pl-sin2",
    "0.5,0.5",
    "0.5,0.6",
    "a,b",
    "momeha",
    "nonsense",
    "power(1,0.25)",
    "power(",
    "c=3",
    "c=",
    "=3",
    "gamma=-1",
    "random:3",
    "das-dennis:99999999",
    "strong",
    "0,1",
    "0,0",
    "[]",
    "{}",
    "null",
    "true",
    "äöü",
    "../..",
    "/proc/none",
    "/etc/passwd",
    "/dev/null",
    "99999999999999999999",
    "--",
    "-",
    "%s",
    "$HOME",
)
#: A command with arguments that make it quick.
STARTS: dict[str, tuple[str, ...]] = {
    "list": (),
    "solve": ("quadratic", "--dim", "2", "--steps", "3"),
    "front": ("quadratic", "--dim", "2", "--steps", "3", "--preferences", "2"),
    "compare": ("quadratic", "--dim", "2", "--amount", "60", "--methods", "momeha"),
    "certify": (),
    "doctor": (),
    "ls": (),
    "watch": ("--once",),
    "report": (),
    "resume": (),
    "sweep": (),
}
OPTIONS = (
    "--dim",
    "--steps",
    "--preferences",
    "--preference",
    "-p",
    "--seeds",
    "--seed",
    "--method",
    "--set",
    "-o",
    "--hyperparameters",
    "--tol",
    "--record-every",
    "--noise",
    "--out",
    "--json",
    "--quiet",
    "--every",
    "--engine",
    "--workers",
    "--budget",
    "--figures",
    "--nonsense",
    "--compile",
    "--scalarization",
    "--help",
    "--reference",
)


def command_lines(seed: int, runs: list[Path], home: Path) -> Iterator[list[str]]:
    """Words in the order that a hurried hand might type them; folders of `runs` among them."""
    chance = random.Random(seed)
    places = [
        *map(str, runs),
        *(str(run / "front.npz") for run in runs),
        str(home),
        str(home / "no"),
    ]
    while True:
        command = chance.choice([*STARTS, "nonsense"])
        words = [command, *STARTS.get(command, ())]
        if command in ("certify", "doctor", "ls", "watch", "report", "resume", "sweep"):
            words.insert(1, chance.choice([*places, *VALUES]))
        for _ in range(chance.randrange(4)):
            option = chance.choice(OPTIONS)
            value = chance.choice([*VALUES, *places])
            # What a command writes goes where nothing is lost.
            if option in ("--out", "--figures"):
                value = chance.choice([str(home / "out"), *places, "/proc/none", "/dev/null/x"])
            words += [option] if chance.random() < 0.2 else [option, value]
        if command == "report" and "--out" not in words:
            words += ["--out", str(home / "page.html")]
        yield words


#: A configuration that is quick, and what may be put in place of any of its parts.
GOOD: dict[str, Any] = {
    "problem": {"name": "quadratic", "options": {"dim": 2}},
    "method": {"name": "momeha", "hyperparameters": "plain", "set": {"c": 2.0}},
    "preferences": {"count": 2},
    "seeds": [0],
    "steps": 3,
    "record_every": 1,
    "slice": 2,
    "compile": False,
    "checkpoint": {"seconds": 0, "keep": 2},
}
ODD: tuple[Any, ...] = (
    None,
    0,
    -1,
    2.5,
    float("nan"),
    "abc",
    "",
    [],
    {},
    [1, "a"],
    {"a": 1},
    True,
    10**30,
    [[]],
    "quadratic",
    {"name": "nonsense"},
    {"dim": -3},
    ["0"],
    "1e400",
    [0, 0],
    {"count": 10**9},
)


def configurations(seed: int) -> Iterator[Any]:
    """The good configuration with some of its parts replaced, left out or added to."""
    chance = random.Random(seed)
    while True:
        data = yaml.safe_load(yaml.safe_dump(GOOD))
        for _ in range(chance.randrange(1, 4)):
            target = chance.choice([data, *(v for v in data.values() if isinstance(v, dict))])
            keys = [*target, "nonsense"]
            key = chance.choice(keys)
            # Without its steps a configuration has 20,000 of them: an honest long run, not a hang.
            if chance.random() < 0.15 and key != "steps":
                target.pop(key, None)
            else:
                target[key] = chance.choice(ODD)
        yield chance.choice([data] * 40 + list(ODD))


def try_line(words: list[str]) -> str | None:
    """The traceback of a command line, an alarm's where it does not end within a minute; else
    None.
    """
    with limited(60.0, TimeoutError("nothing within a minute")):
        kind, _, _ = said(words)
    return kind if kind.startswith("traceback") else None


def try_configuration(data: Any, home: Path) -> str | None:
    """The same of `bipareto sweep` on a configuration."""
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), "utf-8")
    return try_line(["sweep", str(path), "--out", str(home / "sweep"), "--quiet"])
