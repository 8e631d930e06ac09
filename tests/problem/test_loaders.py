"""DataLoaders as draws: pure in (role, step, seed), whatever order they are asked in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem.loaders import LoaderDraws
from bipareto.problem.sampler import Role

ROWS = 10
ALL = Role("lower", "full")


class Jittered(Dataset[Tensor]):
    """Row numbers with a random augmentation, as data sets have."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Tensor:
        return index + 0.5 * torch.rand(())


class Stream(IterableDataset[Tensor]):
    """Rows that come one after the other, in an order that is shuffled anew each time, with no
    length.
    """

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.randperm(6).float()


def draws(loader: Any, **options: Any) -> LoaderDraws:
    return LoaderDraws(loader, loader, per_objective=False, like=torch.zeros(1), **options)


def sequence(
    source: LoaderDraws, order: range | list[int], role: str = "", seed: int = 0
) -> dict[int, list[float]]:
    return {t: source(Role("lower", role), t, seed).tolist() for t in order}


LOADERS = {
    "shuffled": lambda: DataLoader(Jittered(), 3, shuffle=True),
    "with a generator": lambda: DataLoader(
        Jittered(), 3, shuffle=True, generator=torch.Generator()
    ),
    "with replacement": lambda: DataLoader(
        Jittered(), 3, sampler=torch.utils.data.RandomSampler(Jittered(), replacement=True)
    ),
    "by epoch": lambda: DataLoader(
        Jittered(), 2, sampler=DistributedSampler(Jittered(), 2, 0, shuffle=True)
    ),
    "a worker": lambda: DataLoader(Jittered(), 3, shuffle=True, num_workers=1),
    "a stream": lambda: DataLoader(Stream(), 2),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_any_order_gives_the_same_batches(kind: str) -> None:
    make = LOADERS[kind]
    straight = sequence(draws(make()), range(9))
    torch.manual_seed(77)  # the caller's random numbers decide nothing
    other = draws(make())
    assert sequence(other, [7, 2, 2, 3, 8, 0, 1, 4, 6, 5]) == straight
    assert len({tuple(v) for v in straight.values()}) > 6
    assert sequence(draws(make()), range(9), role="theta") != straight
    if kind != "by epoch":  # a DistributedSampler has a seed of its own
        assert sequence(draws(make()), range(9), seed=1) != straight


def test_roles_do_not_disturb_each_other() -> None:
    source = draws(LOADERS["with a generator"]())
    both = {
        t: (source(Role("lower", "a"), t, 0).tolist(), source(Role("lower", "b"), t, 0).tolist())
        for t in range(9)
    }
    assert {t: a for t, (a, _) in both.items()} == sequence(
        draws(LOADERS["with a generator"]()), range(9), role="a"
    )
    assert {t: b for t, (_, b) in both.items()} == sequence(
        draws(LOADERS["with a generator"]()), range(9), role="b"
    )


def test_drawing_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sequence(draws(LOADERS["shuffled"]()), range(5))
    assert torch.equal(torch.rand(3), expected)


def test_an_epoch_sees_every_row_once() -> None:
    source = draws(DataLoader(TensorDataset(torch.arange(12.0)), 3, shuffle=True))
    epochs = [
        torch.cat([source(Role("lower"), t, 0)[0] for t in range(4 * e, 4 * e + 4)])
        for e in range(3)
    ]
    for rows in epochs:
        assert sorted(rows.tolist()) == list(range(12))
    assert not torch.equal(epochs[0], epochs[1])


def test_a_smaller_last_batch_is_left_out_of_draws_but_not_of_the_whole() -> None:
    source = draws(DataLoader(TensorDataset(torch.arange(10.0)), 4, shuffle=True))
    assert {source(Role("lower"), t, 0)[0].shape[0] for t in range(6)} == {4}
    assert sorted(source(Role("lower", "full"), 0, 0)[0].tolist()) == list(range(10))
    few = draws(DataLoader(TensorDataset(torch.arange(10.0)), 4), evaluate_batches=2)
    assert few(Role("lower", "full"), 0, 0)[0].tolist() == list(range(8))
    one = draws(DataLoader(TensorDataset(torch.arange(3.0)), 4))
    assert one(Role("lower"), 5, 0)[0].shape == (3,)


@pytest.mark.parametrize("kind", LOADERS)
def test_epoch_and_position_are_stored(kind: str) -> None:
    make = LOADERS[kind]
    source = draws(make())
    straight = sequence(source, range(9))
    (entry,) = source.state_dict()
    length = 2 if kind == "by epoch" else 3
    assert (entry["t"], entry["epoch"], entry["position"]) == (8, *divmod(8, length))
    half = draws(make())
    sequence(half, range(5))
    resumed = draws(make())
    resumed.load_state_dict(half.state_dict())
    # The loop asks for the last batch again before it goes on.
    assert sequence(resumed, range(4, 9)) == {t: straight[t] for t in range(4, 9)}


def test_objectives_may_have_loaders_of_their_own() -> None:
    loaders = [DataLoader(TensorDataset(torch.arange(4.0) + 10 * i), 2) for i in range(2)]
    source = LoaderDraws(loaders[0], loaders, per_objective=True, like=torch.zeros(1))
    assert set(source(Role("upper", "y", 1), 0, 0)[0].tolist()) <= {10.0, 11.0, 12.0, 13.0}
    drawn = source(Role("upper"), 0, 0)
    assert drawn.keys() == {0, 1}
    assert drawn[1][0].min() >= 10
    assert source(Role("upper", "full"), 0, 0)[0][0].tolist() == [0, 1, 2, 3]


def test_batches_get_the_runs_dtype_and_labels_keep_theirs() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4, 2), torch.arange(4)), 2)
    source = LoaderDraws(
        loader, loader, per_objective=False, like=torch.zeros(1, dtype=torch.float64)
    )
    for name in ("", "full"):
        inputs, labels = source(Role("lower", name), 0, 0)
        assert inputs.dtype == torch.float64
        assert labels.dtype == torch.int64


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(InvalidInput, match="holds a str"):
        draws(DataLoader(["a", "b"], 1))(Role("lower"), 0, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has no batches"):
        draws(DataLoader(TensorDataset(torch.zeros(2)), 4, drop_last=True))(Role("lower"), 0, 0)
    with pytest.raises(InvalidInput, match=r"lower_data is empty \(\[\]\)"):
        bp.Problem.from_modules(
            x=torch.zeros(1),
            y=torch.zeros(1),
            lower=lambda x, y, rows: rows.sum(),
            upper=lambda x, y, rows: rows,
            lower_data=[],
            upper_data=torch.zeros(1),
        )


class Reused(IterableDataset[Tensor]):
    """A stream that writes every batch into the memory of the one before."""

    def __iter__(self) -> Iterator[Tensor]:
        memory = torch.zeros(2)
        for i in range(4):
            yield memory.fill_(i)


def test_a_loader_may_reuse_the_memory_of_its_batches() -> None:
    source = draws(DataLoader(Reused(), batch_size=None))
    assert source(ALL, 0, 0).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    first = source(Role("lower", "a"), 0, 0)
    source(Role("lower", "b"), 2, 0)
    source(Role("lower", "a"), 1, 0)
    assert first.tolist() == [0, 0]


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.zeros(1)


def test_a_stream_without_an_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bipareto.problem.loaders.MOST_BATCHES", 20)
    with pytest.raises(InvalidInput, match=r"given 20 batches and no end.*evaluate_batches=10"):
        draws(DataLoader(Endless(), 2))(ALL, 0, 0)
    assert draws(DataLoader(Endless(), 2), evaluate_batches=3)(ALL, 0, 0).shape == (6, 1)


def collated(make: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(6.0)), 2, collate_fn=make)


#: batches that cannot be put together to all the data, or are none, and words of the error
ODD = {
    "edges": (
        lambda rows: (torch.zeros(2, 3), torch.zeros(4, 5)),
        r"batch\[1\] has 4 rows, batch\[0\] has 2 rows.*evaluate_batches=1",
    ),
    "a number": (lambda rows: {"a": torch.zeros(2), "n": torch.tensor(2)}, "no rows"),
    "padded": (
        lambda rows: torch.zeros(2, 1 + int(rows[0][0])),
        r"pad them to one shape.*evaluate_batches=1",
    ),
    "other keys": (lambda rows: {str(rows[0][0]): torch.zeros(2)}, "put together"),
    "text": (lambda rows: ("text", torch.zeros(2)), r"a batch holds a str \('text'\)"),
    "None": (lambda rows: {"a": torch.zeros(2), "b": None}, "a batch holds a NoneType"),
}


@pytest.mark.parametrize("kind", ODD)
def test_batches_that_make_no_whole_are_named(kind: str) -> None:
    make, words = ODD[kind]
    with pytest.raises(InvalidInput, match=words):
        draws(collated(make))(ALL, 0, 0)


def test_one_batch_may_hold_what_are_no_rows() -> None:
    batch = draws(collated(ODD["edges"][0]), evaluate_batches=1)(ALL, 0, 0)
    assert [part.shape for part in batch] == [(2, 3), (4, 5)]


class Pair(NamedTuple):
    inputs: Tensor
    more: dict[str, Tensor]


def test_batches_keep_their_nesting() -> None:
    loader = collated(lambda rows: Pair(torch.stack([r[0] for r in rows]), {"n": torch.ones(2)}))
    whole = draws(loader)(ALL, 0, 0)
    assert isinstance(whole, Pair)
    assert whole.inputs.tolist() == [0, 1, 2, 3, 4, 5]
    assert whole.more["n"].tolist() == [1] * 6


def test_a_dict_that_looks_like_one_batch_per_objective_is_refused() -> None:
    loader = collated(lambda rows: {0: torch.zeros(2), 1: torch.zeros(2)})
    source = LoaderDraws(loader, [loader, loader], per_objective=True, like=torch.zeros(1))
    with pytest.raises(InvalidInput, match="use texts as keys"):
        source(Role("upper", "train", 1), 0, 0)


def test_data_is_no_part_of_a_graph() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert not draws(weight)(ALL, 0, 0).requires_grad
    assert not draws(collated(lambda rows: weight))(ALL, 0, 0).requires_grad
    with pytest.warns(BiparetoWarning, match=r"computed from parameters.*\.detach\(\)"):
        batch = draws(collated(lambda rows: weight * torch.ones(2)))(ALL, 0, 0)
    assert not batch.requires_grad
