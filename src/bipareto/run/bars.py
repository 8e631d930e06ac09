"""Progress bars on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar"]


@contextmanager
def bar(
    label: str,
    total: int | None,
    progress: bool | None = None,
    *,
    of_bytes: bool = False,
    done: int = 0,
) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves the bar on by a count.

    Args:
        label: what is going on.
        total: the count at which it is finished, None where nobody knows.
        progress: whether to show it; None shows it on a terminal.
        of_bytes: counts are bytes, shown in MB with their speed.
        done: what was there before.
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as shown:
        task = shown.add_task(label, total=total, completed=done)
        yield lambda count: shown.advance(task, count)
