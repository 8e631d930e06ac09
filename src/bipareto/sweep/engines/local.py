"""One slice after the other, here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bipareto.sweep.engines.base import Engine

__all__ = ["Local"]

T = TypeVar("T")


class Local(Engine):
    """This process: each slice is one batch, so its runs are already side by side."""

    def run(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        for item in items:
            yield item, work(item)
