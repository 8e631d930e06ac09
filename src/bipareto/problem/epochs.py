"""One epoch of a `DataLoader`, decided by a seed: its order, and the random numbers of its rows.

A loader draws its order, and a data set its augmentations, from global random streams, at a time
that depends on how far workers have fetched ahead.  Here the order is drawn from streams that
belong to the epoch alone, and every batch carries a seed of its own to wherever it is fetched, so
that the same batches come whoever fetches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bipareto.errors import InvalidInput
from bipareto.problem import sampler
from bipareto.problem.purity import (
    kept_random_state,
    random_streams,
    same,
    seed_everything,
    set_random_streams,
)


def batch_seed(seed: int, position: int) -> int:
    """The seed of a batch, from that of its epoch and its position."""
    return sampler.generator("batch", position, seed).initial_seed()


class _SeededRows(Dataset[Any]):
    """A map-style data set that is asked for (seed, index or indices), and seeds the random
    streams before it answers.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __getitem__(self, asked: tuple[int, Any]) -> Any:
        seed_everything(asked[0])
        return self.rows[asked[1]]

    def __getitems__(self, asked: tuple[int, Sequence[Any]]) -> Any:
        seed_everything(asked[0])
        together = getattr(self.rows, "__getitems__", None)
        return together(asked[1]) if together is not None else [self.rows[i] for i in asked[1]]

    def __getattr__(self, name: str) -> Any:
        """Everything else is the data set's own: a worker_init_fn may ask for it."""
        if name == "rows":  # not yet there, while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.rows, name)


class KeyedOrder:
    """The order of an epoch as (seed, index or indices), drawn from random streams that belong to
    it alone.

    However early the batches are asked for (workers fetch ahead), and whatever is drawn in between,
    the order is the same.
    """

    def __init__(self, order: Iterable[Any]) -> None:
        self.order = order
        #: of the epoch that is iterated next
        self.seed = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        epoch, order = self.seed, self.order
        # A sampler may hold a generator of its own; it is left as it was found.
        held = (getattr(one, "generator", None) for one in (order, getattr(order, "sampler", None)))
        own = [found for found in held if isinstance(found, torch.Generator)]
        walk: Iterator[Any] | None = None
        states: Any = None
        for position in count():
            outer = [generator.get_state() for generator in own]
            with kept_random_state():
                if walk is None:
                    seed_everything(epoch)
                    for generator in own:
                        generator.manual_seed(epoch)
                    walk = iter(order)
                else:
                    set_random_streams(states[0])
                    for generator, state in zip(own, states[1], strict=True):
                        generator.set_state(state)
                asked = next(walk, _END)
                states = random_streams(), [generator.get_state() for generator in own]
            for generator, state in zip(own, outer, strict=True):
                generator.set_state(state)
            if asked is _END:
                return
            yield batch_seed(epoch, position), asked


_END = object()


def _order_of(loader: DataLoader[Any]) -> Iterable[Any]:
    """What says in which order rows or batches come; an order without batches is still one."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def keyed(loader: DataLoader[Any]) -> tuple[DataLoader[Any], KeyedOrder]:
    """The same loader of a map-style data set, and the order that it will ask for its rows in; an
    epoch is decided by the order's seed.
    """
    single = loader.batch_sampler is None
    order = KeyedOrder(_order_of(loader))
    options: dict[str, Any] = (
        {"sampler": order, "batch_size": None} if single else {"batch_sampler": order}
    )
    walked: DataLoader[Any] = DataLoader(
        _SeededRows(loader.dataset),
        **options,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        generator=torch.Generator(),  # of the workers' own seeds, which decide nothing here
    )
    return walked, order


def fetch_twice(loader: DataLoader[Any]) -> None:
    """Fetch the first batch twice, in this process, and refuse rows that differ."""

    def first() -> Any:
        with kept_random_state():
            seed_everything(0)
            if isinstance(loader.dataset, IterableDataset):
                return next(iter(loader), None)
            asked = next(iter(KeyedOrder(_order_of(loader))), None)
            if asked is None:
                return None
            rows = _SeededRows(loader.dataset)
            single = loader.batch_sampler is None
            return loader.collate_fn(rows[asked] if single else rows.__getitems__(asked))

    if not same(first(), first()):
        raise InvalidInput(
            "a data set gave two different batches for the same indices and the same random "
            "numbers of torch, NumPy and Python: its rows depend on something else, such as a "
            "counter, the time or a random stream of their own; draw augmentations from "
            "torch.rand, numpy.random or random, which are seeded for every batch"
        )
