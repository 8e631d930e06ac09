"""Where slices are executed: in this process, in worker processes, or on Ray.

An engine applies one function to many slice numbers and hands back results as they come.  The
function writes what must last to the run folder, so an engine may lose a worker and simply ask
again.  An engine changes no number: what a slice computes depends on the slice alone.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

from bipareto.errors import BiparetoError, InvalidInput, installed
from bipareto.problem.plugins import Registry
from bipareto.sweep.config import EngineConfig

T = TypeVar("T")

#: Pools in a row that may die without finishing a slice before we stop asking.
PATIENCE = 3

#: How often Ray is asked for a slice again when its worker or its machine dies.
RETRIES = 10


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


class Ray(Engine):
    """Ray Core: one task per slice; `address` joins a cluster, otherwise one is started here for
    the time of the sweep.

    All nodes must see the run folder under the same path.
    """

    def workers(self, items: int) -> int:
        """How many slices are worked on at a time: where the cluster is this machine, no more than
        its GPUs have shares for.
        """
        most = super().workers(items)
        share = self.config.gpus
        if share == 0 or self.config.address is not None:
            return most
        here = torch.cuda.device_count()
        # A share below one lies on one GPU.  Where there is not even one, the sweep is refused.
        shares = here * int(1 / share) if share < 1 else int(here / share)
        return min(most, shares) or most

    def run(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        ray = _require_ray()
        ours = not ray.is_initialized()
        if ours:
            self._start(ray, len(items))
        try:
            yield from self._collect(ray, work, items, self._check_gpus(ray))
        finally:
            if ours:
                ray.shutdown()

    def _start(self, ray: Any, items: int) -> None:
        options: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": "warning",
            "configure_logging": True,
        }
        if self.config.address is None:
            options |= {"num_cpus": self.workers(items) * self.threads, "include_dashboard": False}
        try:
            # Without an address Ray would join any cluster that has left its traces on this
            # machine.
            ray.init(address=self.config.address or "local", **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InvalidInput(
                f"engine.address {self.config.address!r} cannot be reached ({error}); start a "
                "cluster with: ray start --head"
            ) from error

    def _check_gpus(self, ray: Any) -> float:
        """Refuse a share that no node can give: Ray would wait for it without a word.  Returns the
        most GPUs that a node has.
        """
        most = max(
            (node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]), default=0
        )
        if self.config.gpus > most:
            raise InvalidInput(
                f"engine.gpus is {self.config.gpus:g}, but Ray knows of no node with more than "
                f"{most:g}; ask for less, or start nodes with: ray start --num-gpus N"
            )
        return float(most)

    def _collect(
        self, ray: Any, work: Callable[[int], T], items: Sequence[int], most: float
    ) -> Iterator[tuple[int, T]]:
        options = {"num_cpus": self.threads, "num_gpus": self.config.gpus, "max_retries": RETRIES}
        # Ray takes a new process for every task with a share of a GPU, which would load torch and
        # record or compile its step anew.  Where nodes have one GPU a process may go on to the
        # next slice; among several it could not change to the GPU that slice is given.
        if self.config.gpus and most <= 1:
            options["max_calls"] = 0  # as many as there are
        task = ray.remote(**options)(work_of)
        pending = {task.remote(work, item): item for item in items}
        while pending:
            (finished, *_), _ = ray.wait(list(pending), num_returns=1)
            item = pending.pop(finished)
            try:
                yield item, ray.get(finished)
            except ray.exceptions.RayTaskError as error:
                # Ray wraps what a task raised; the reader wants the error itself.
                raise (error.cause or error) from error


def work_of(work: Callable[[int], T], item: int) -> T:
    """What a task does: Ray needs a plain function, and `work` may be a partial one."""
    return work(item)


def _require_ray() -> Any:
    return installed(
        "ray",
        "the ray engine needs Ray; get it with: pip install 'bipareto[ray]', or use --engine "
        "processes",
    )


#: every engine by its name
ENGINES: Registry[type[Engine]] = Registry(
    "engines", {"local": Local, "processes": Processes, "ray": Ray}
)


def get(config: EngineConfig, threads: int = 1) -> Engine:
    """The engine of a configuration.

    Args:
        config: its name and size.
        threads: what each slice will use.
    """
    return ENGINES[config.name](config, threads)
