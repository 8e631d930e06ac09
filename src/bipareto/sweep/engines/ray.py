"""Slices as Ray tasks, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from bipareto.errors import InvalidInput, installed
from bipareto.sweep.engines.base import Engine

__all__ = ["Ray"]

T = TypeVar("T")

#: How often a slice is asked for again when its worker or its machine dies.
RETRIES = 10


class Ray(Engine):
    """Ray Core: one task per slice; `address` joins a cluster, otherwise one is started here for
    the time of the sweep.

    All nodes must see the run folder under the same path.
    """

    def run(self, work: Callable[[int], T], items: Sequence[int]) -> Iterator[tuple[int, T]]:
        ray = _require_ray()
        ours = not ray.is_initialized()
        if ours:
            self._start(ray, len(items))
        try:
            self._check_gpus(ray)
            yield from self._collect(ray, work, items)
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

    def _check_gpus(self, ray: Any) -> None:
        """Refuse a share that no node can give: Ray would wait for it without a word."""
        most = max(
            (node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]), default=0
        )
        if self.config.gpus > most:
            raise InvalidInput(
                f"engine.gpus is {self.config.gpus:g}, but Ray knows of no node with more than "
                f"{most:g}; ask for less, or start nodes with: ray start --num-gpus N"
            )

    def _collect(
        self, ray: Any, work: Callable[[int], T], items: Sequence[int]
    ) -> Iterator[tuple[int, T]]:
        task = ray.remote(num_cpus=self.threads, num_gpus=self.config.gpus, max_retries=RETRIES)(
            work_of
        )
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
