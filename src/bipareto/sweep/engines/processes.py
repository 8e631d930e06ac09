"""Slices side by side in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from bipareto.errors import BiparetoError
from bipareto.sweep.engines.base import Engine

T = TypeVar("T")

#: Pools in a row that may die without finishing a slice before we stop asking.
PATIENCE = 3


class Processes(Engine):
    """Fresh processes, one per core unless told otherwise; a worker that dies is replaced and its
    slice goes on from its checkpoint.
    """

    def run(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        waiting, barren = list(items), 0
        while waiting:
            before = len(waiting)
            try:
                for item, result in self._pool(work, tuple(waiting)):
                    waiting.remove(item)
                    yield item, result
            except BrokenProcessPool as error:
                barren = barren + 1 if len(waiting) == before else 0
                if barren == PATIENCE:
                    raise BiparetoError(
                        f"worker processes died {PATIENCE} times without finishing a slice (killed "
                        "for memory?); "
                        "use fewer with engine.workers, or smaller slices in a new run"
                    ) from error

    def _pool(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        # Forked children would inherit the threads' locks of torch, but not the threads.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            self.workers(len(items)), mp_context=context, initializer=_die_with_parent
        )
        try:
            futures = {pool.submit(work, item): item for item in items}
            while futures:
                finished, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield futures.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _die_with_parent() -> None:
    """Workers of a killed sweep must not work on beside the one that resumes it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
