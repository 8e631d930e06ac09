"""Work for engines: importable by worker processes, and light, so that these start fast."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from bipareto.errors import InvalidInput

__all__ = ["die_once", "double", "linger", "refuse", "vanish"]


def double(item: int) -> int:
    return 2 * item


def refuse(item: int) -> int:
    raise InvalidInput(f"item {item} is refused")


def vanish(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def die_once(folder: str, item: int) -> int:
    """The first worker that takes up item 1 dies."""
    marker = Path(folder) / "died"
    if item == 1 and not marker.exists():
        marker.touch()
        vanish(item)
    return 2 * item


def linger(folder: str, item: int) -> int:
    (Path(folder) / f"{item}").write_text(str(os.getpid()))
    time.sleep(60)
    return item
