"""Progress bars, on stderr and in notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from time import monotonic

from bipareto.problem.notebook import in_notebook


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
        progress: whether to show it; None shows it on a terminal and in a notebook.
        of_bytes: counts are bytes, shown in MB with their speed.
        done: what was there before.
    """
    notebook = in_notebook()
    if not (notebook or sys.stderr.isatty() if progress is None else progress):
        yield lambda count: None
        return
    if notebook:
        yield _cell(label, total, done)
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


def _cell(label: str, total: int | None, done: int) -> Callable[[int], None]:
    """A bar in the output of a cell, redrawn at most five times a second; no widgets are needed."""
    from IPython.display import HTML, display

    began = drawn = monotonic()
    first = done

    def drawing() -> HTML:
        left = "" if total is None else f" of {total}"
        seconds = monotonic() - began
        if total and first < done < total:
            left += f", {seconds * (total - done) / (done - first):.0f} s left"
        elif done == total:
            left += f" in {seconds:.1f} s"
        most = "" if total is None else f' max="{max(total, 1)}"'
        return HTML(f'{escape(label)} <progress value="{done}"{most}></progress> {done}{left}')

    shown = display(drawing(), display_id=True)

    def advance(count: int) -> None:
        nonlocal done, drawn
        done += count
        if done == total or monotonic() - drawn > 0.2:
            drawn = monotonic()
            shown.update(drawing())

    return advance
