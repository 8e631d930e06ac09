"""What every engine is, and the one that needs nothing: this process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bipareto.sweep.config import EngineConfig

T = TypeVar("T")


class Engine(ABC):
    """Applies a function to slice numbers.

    Args:
        config: how large it may be.
        threads: what each slice uses.
    """

    def __init__(self, config: EngineConfig, threads: int = 1) -> None:
        self.config, self.threads = config, threads

    @abstractmethod
    def run(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        """(item, work(item)) for every item, in the order in which they are done.

        Args:
            work: a function that can be sent to another process; doing an item again must give the
                same.
            items: slice numbers.
        """

    def workers(self, items: int) -> int:
        """How many slices are worked on at a time."""
        return min(items, self.config.workers or max(1, (os.cpu_count() or 1) // self.threads))


class Local(Engine):
    """This process: each slice is one batch, so its runs are already side by side."""

    def run(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        for item in items:
            yield item, work(item)
