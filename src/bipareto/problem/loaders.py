"""DataLoaders as draws by role.

A `DataLoader` is a stream, a draw must be a function of (role, step, seed).  So every role and seed
walks through the loader on its own: its shuffles, and whatever random numbers its data set takes
from the global streams of torch, NumPy and Python, are seeded by (role, epoch, position, seed), and
where it stands (epoch and position) is kept, stored with a checkpoint, and found again for any
step.  Asking for the step after the last one costs one batch; going back, or far ahead, walks
through the epoch in question.

The order of an epoch is drawn here and every batch carries its own seed, so worker processes,
however many, give the same draws.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree, validation
from bipareto.problem.epochs import KeyedOrder, batch_seed, fetch_twice, keyed
from bipareto.problem.purity import kept_random_state, seed_everything
from bipareto.problem.sampler import Role, generator

#: batches of a stream without a length that are read at most where all its data is asked for
MOST_BATCHES = 10_000


class LoaderDraws:
    """A sampler over `DataLoader`s, or tensors that are used whole.

    Args:
        lower: the lower level's data: a loader, or a tree of tensors.
        upper: the upper level's: the same, or one such per objective; the role "upper" then draws
            {i: batch}, one of each, and "...-upper-i" a batch of objective i.
        like: a tensor whose device the batches are moved to, and whose dtype their floating-point
            leaves get.
        evaluate_batches: how many batches of a loader stand for "all the data" (role "full"); None
            takes all of them.  They are read once and kept.
        test: data on which objectives are looked at afterwards, level "test", shaped as `upper`.

    A last batch that is smaller than the others is left out of the draws (not of "full"), so that
    batches of all seeds and steps have one shape.  Loaders without a length are walked as far as
    they go, epoch after epoch.
    """

    def __init__(
        self,
        lower: Any,
        upper: Any,
        *,
        per_objective: bool,
        like: Tensor,
        evaluate_batches: int | None = None,
        test: Any = None,
    ) -> None:
        self._sources = {"lower": [lower], "upper": list(upper) if per_objective else [upper]}
        if test is not None:
            self._sources["test"] = list(test) if per_objective else [test]
        self._per_objective, self._like = per_objective, like
        self._evaluate_batches = evaluate_batches
        self._streams: dict[tuple[Role, int, int], _Stream] = {}
        #: the keys of a draw for all objectives
        self._every = set(range(len(self._sources["upper"]))) if per_objective else set()
        self._full: dict[tuple[str, int], Any] = {}

    def __call__(self, role: Role, t: int, seed: int) -> Any:
        if role.level == "lower" or not self._per_objective:
            return self._batch(role, 0, t, seed)
        if role.objective is not None:
            return self._batch(role, role.objective, t, seed)
        return {i: self._batch(role, i, t, seed) for i in range(len(self._sources[role.level]))}

    def _batch(self, role: Role, i: int, t: int, seed: int) -> Any:
        source = self._sources[role.level][i]
        if role.full or not isinstance(source, DataLoader):
            batch = self._whole(role.level, i)
        else:
            key = (role, i, seed)
            if key not in self._streams:
                self._streams[key] = _Stream(source, f"{role}-{i}", seed, self._like)
            batch = self._streams[key].at(t)
        if self._every and isinstance(batch, dict) and batch.keys() == self._every:
            raise InvalidInput(
                f"a batch is a dict with the keys {sorted(batch)}, which looks like one batch for "
                'each objective; use texts as keys, such as "inputs", or a tuple'
            )
        return batch

    def _whole(self, level: str, i: int) -> Any:
        if (level, i) not in self._full:
            source = self._sources[level][i]
            if isinstance(source, DataLoader):
                # An order of its own, so that looking at everything does not disturb any stream.
                walk = _Stream(source, "full", 0, self._like)
                source = walk.gather(self._evaluate_batches)
            self._full[level, i] = _placed(source, self._like)
        return self._full[level, i]

    def draw_twice(self) -> None:
        """Refuse data sets whose rows differ when fetched twice with the same random numbers."""
        for sources in self._sources.values():
            for source in sources:
                if isinstance(source, DataLoader):
                    fetch_twice(source)

    def state_dict(self) -> list[dict[str, Any]]:
        """Where every stream stands: role, which data of its level, seed, and epoch and position of
        the step t drawn last.
        """
        return [
            {
                "role": tuple(role),
                "objective": i,
                "seed": seed,
                "t": s.t,
                "epoch": s.epoch,
                "position": s.position,
            }
            for (role, i, seed), s in self._streams.items()
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Stand where `state_dict` said; the batches are fetched when they are asked for."""
        self._streams = {}
        for entry in state:
            role, i, seed = Role(*entry["role"]), entry["objective"], entry["seed"]
            stream = _Stream(self._sources[role.level][i], f"{role}-{i}", seed, self._like)
            stream.stand(entry["t"], entry["epoch"], entry["position"])
            self._streams[role, i, seed] = stream


class _Stream:
    """One role's walk through a loader; `batch` is the one of step t, at `position` in `epoch`."""

    def __init__(self, loader: DataLoader[Any], role: str, seed: int, like: Tensor) -> None:
        self.loader, self.role, self.seed, self.like = loader, role, seed, like
        self.length = _full_batches(loader)
        self.t, self.epoch, self.position = -1, 0, -1
        self.batch: Any = None
        # A stream of rows has no order that could be drawn for it.
        iterable = isinstance(loader.dataset, IterableDataset)
        self._order: KeyedOrder | None = None
        self._walked = loader
        if not iterable:
            self._walked, self._order = keyed(loader)
        self._iterator: Iterator[Any] | None = None
        self._close: Callable[[], Any] = _nothing

    def at(self, t: int) -> Any:
        """The batch of step t."""
        if t == self.t and self.batch is not None:
            return self.batch
        if (
            self.length is not None
            and t != self.t + 1
            and not (self._iterator is not None and self.t < t and t // self.length == self.epoch)
        ):
            self._enter(*divmod(t, self.length), t)
        elif t == self.t:  # restored from a checkpoint, and asked for the batch drawn last
            self._enter(self.epoch, self.position, t)
        else:
            if t < self.t:  # without a length there is only the way from the start
                self.stand(-1, 0, -1)
            while self.t < t:
                self._advance()
        return self.batch

    def stand(self, t: int, epoch: int, position: int) -> None:
        """Be at a step without having fetched its batch."""
        self.t, self.epoch, self.position = t, epoch, position
        self.batch = self._iterator = None

    def gather(self, count: int | None) -> Any:
        """The first `count` batches of an epoch, or all, as one."""
        found: list[Any] = []
        self._begin(0)
        while (count is None or len(found) < count) and (batch := self._fetch()) is not None:
            found.append(_placed(batch, self.like, own=True))
            self.position += 1
            if count is None and self.length is None and len(found) > MOST_BATCHES:
                raise InvalidInput(
                    f"a stream of rows has given {MOST_BATCHES:,} batches and no end, but "
                    "evaluations ask for all the data; pass evaluate_batches=10, say, which takes "
                    "ten of them"
                )
        if not found:
            raise InvalidInput(
                "a loader gave no batches; is its data set empty, or smaller than a batch with "
                "drop_last=True?"
            )
        return _joined(found) if len(found) > 1 else found[0]

    def _enter(self, epoch: int, position: int, t: int) -> None:
        """Walk to a position of an epoch."""
        self._begin(epoch)
        for self.position in range(position + 1):
            batch = self._fetch()
            if batch is None:
                raise InvalidInput(
                    f"epoch {epoch} of a loader ended at batch {self.position}; it must give the "
                    "same number of batches in every epoch"
                )
        self.t, self.batch = t, _placed(batch, self.like, own=True)

    def _advance(self) -> None:
        if self._iterator is None:
            # Fresh, or restored: walk to where the stream stands.
            standing = self.position
            self._begin(self.epoch)
            for self.position in range(standing + 1):
                self._fetch()
            self.position = standing
        self.position += 1
        batch = None if self.length is not None and self.position >= self.length else self._fetch()
        if batch is None:
            self._begin(self.epoch + 1)
            self.position = 0
            batch = self._fetch()
            if batch is None:
                raise InvalidInput(
                    "a loader gave no batches in an epoch; an iterable data set must start anew "
                    "each time it is iterated"
                )
        self.t, self.batch = self.t + 1, _placed(batch, self.like, own=True)

    def _begin(self, epoch: int) -> None:
        self._close()
        self.epoch, self.position = epoch, 0
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(epoch)
        if self._order is not None:
            self._order.seed = self._epoch_seed()
        with kept_random_state():
            seed_everything(self._epoch_seed())
            iterator = iter(self._walked)
        # Workers are told to end by the stream's finalizer: in an iterator that the garbage
        # collector finds in a cycle the queues are closed first, and each worker is then waited for
        # in vain for five seconds.
        shut = getattr(iterator, "_shutdown_workers", None)
        if shut is not None and not self.loader.persistent_workers:
            self._close = weakref.finalize(self, shut)
        self._iterator = iterator

    def _fetch(self) -> Any:
        assert self._iterator is not None
        with kept_random_state():
            # Batches of a map-style data set carry their own seed; an iterable one draws as it
            # goes.
            seed_everything(batch_seed(self._epoch_seed(), self.position))
            return next(self._iterator, None)

    def _epoch_seed(self) -> int:
        return generator(self.role, self.epoch, self.seed).initial_seed()


def _nothing() -> None:
    """Where there is nothing to close."""


def _placed(batch: Any, like: Tensor, own: bool = False) -> Any:
    """A batch on the device of `like`, floating-point leaves in its dtype; data, and no part of a
    graph.

    Args:
        own: with memory of its own: a loader may write its next batch into that of this one.
    """

    def move(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise InvalidInput(
                f"a batch holds a {type(leaf).__name__} ({leaf!r}); return tensors only, e.g. by a "
                "collate_fn of the loader"
            )
        if leaf.grad_fn is not None:
            warnings.warn(
                "a batch holds a tensor that was computed from parameters; it is data here, and "
                "no gradient reaches them: .detach() says so; what is to be trained belongs into "
                "x or y",
                BiparetoWarning,
                stacklevel=2,
            )
        bare = leaf.detach()
        moved = bare.to(
            like.device, like.dtype if leaf.is_floating_point() else None, non_blocking=True
        )
        return bare.clone() if own and moved is bare else moved

    return tree.map_(move, batch)


def _joined(batches: list[Any]) -> Any:
    """Batches as one, row after row."""
    for batch in batches:
        rows = [(path, leaf.shape[:1]) for path, leaf in tree.named_leaves(batch, "batch")]
        odd = [path for path, count in rows if count != rows[0][1] or not count]
        if odd:
            raise InvalidInput(
                f"all the data cannot be put together of batches: {odd[0]} has "
                f"{_rows_of(dict(rows)[odd[0]])}, {rows[0][0]} has {_rows_of(rows[0][1])}, and "
                f"what is no row of {rows[0][0]} (edges, offsets, places in the batch) means "
                "something else in a larger batch; pass evaluate_batches=1, or a loader of one "
                "batch, or tensors that are used whole"
            )
    try:
        return tree.map_(lambda *leaves: torch.cat(leaves), *batches)
    except (RuntimeError, ValueError) as error:
        raise InvalidInput(
            f"all the data cannot be put together of batches ({str(error).splitlines()[0]}); pad "
            "them to one shape in the data set or the collate_fn, or pass evaluate_batches=1"
        ) from error


def _rows_of(shape: torch.Size) -> str:
    return f"{shape[0]} rows" if shape else "no rows"


def _full_batches(loader: DataLoader[Any]) -> int | None:
    """Batches of equal size in an epoch, None where the loader does not know its length."""
    try:
        count, rows = len(loader), len(loader.sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
    if count == 0:
        raise InvalidInput(
            "a loader has no batches; is its data set empty, or smaller than a batch with "
            "drop_last=True?"
        )
    ragged = loader.batch_size is not None and not loader.drop_last and rows % loader.batch_size
    return count - 1 if ragged and count > 1 else count


def draws_of(
    lower: Any,
    upper: Any,
    per_objective: bool,
    like: Tensor,
    evaluate_batches: int | None,
    test: Any = None,
) -> LoaderDraws:
    """The sampler of `Problem.from_modules`, its data checked."""
    if evaluate_batches is not None:
        evaluate_batches = validation.count(
            evaluate_batches, "evaluate_batches", least=1, most=validation.MOST_STEPS
        )
    for name, sources in (
        ("lower_data", [lower]),
        ("upper_data", upper if per_objective else [upper]),
        ("test_data", [] if test is None else test if per_objective else [test]),
    ):
        for source in sources:
            if (
                isinstance(source, DataLoader)
                and isinstance(source.dataset, IterableDataset)
                and source.num_workers
            ):
                raise InvalidInput(
                    f"{name} is a DataLoader of an iterable data set with num_workers = "
                    f"{source.num_workers}: which rows come when depends "
                    "on how many workers there are and how they share the stream; use "
                    "num_workers=0, or a map-style data set"
                )
            if not isinstance(source, DataLoader) and not tree.leaves(source):
                raise InvalidInput(
                    f"{name} is empty ({source!r}); pass a torch.utils.data.DataLoader, or tensors "
                    "that are used whole"
                )
            if not isinstance(source, DataLoader) and not all(
                isinstance(leaf, Tensor) for leaf in tree.leaves(source)
            ):
                several = (
                    "; data of its own for each objective is a list, and upper a list of functions"
                    if isinstance(source, (list, tuple)) and name != "lower_data"
                    else ""
                )
                raise InvalidInput(
                    f"{name} is a {type(source).__name__}; pass a torch.utils.data.DataLoader, or "
                    f"tensors that are used whole{several}"
                )
    return LoaderDraws(
        lower,
        upper,
        per_objective=per_objective,
        like=like,
        evaluate_batches=evaluate_batches,
        test=test,
    )
