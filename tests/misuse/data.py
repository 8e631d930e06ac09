"""Samplers, loaders and data sets."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bipareto as bp
from bipareto.problem.sampler import Role
from misuse.harness import Case
from misuse.setting import same_twice
from misuse.values import NEGATIVE, NONE, NOT_A_NUMBER, NOT_WHOLE, ZERO, few, over


def rows(count: int = 12) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, generator=stream), torch.randn(count, generator=stream)


def loss(x: Any, y: Any, batch: Any) -> Tensor:
    inputs, wanted = batch
    return (
        (inputs @ y - wanted).square() * (inputs @ x).sigmoid()
    ).mean() + 0.01 * y.square().sum()


def criteria(x: Any, y: Any, batch: Any) -> Tensor:
    inputs, wanted = batch
    return torch.stack(
        [
            (inputs @ y - wanted).square().mean() + 0.1 * x.square().sum(),
            y.square().sum() + (x - 1).square().sum(),
        ]
    )


def minibatches(**others: Any) -> Any:
    return bp.sampler.Minibatches(**{"lower": rows(), "upper": rows(), "size": 4} | others)


def data_problem(sampler: Any = None) -> bp.Problem:
    return bp.Problem(criteria, loss, sampler=sampler or minibatches())


def stochastic(**others: Any) -> bp.MBMOMEHA:
    return bp.MBMOMEHA(gamma=0.2, c=5.0, **others)


def of_data(sampler: Any = None, seed: Any = 0, how: Any = None) -> Any:
    return bp.solve(
        data_problem(sampler),
        torch.zeros(3),
        torch.zeros(3),
        method=how or stochastic(),
        steps=4,
        seed=seed,
        progress=False,
    )


class _Noisy(Dataset[Any]):
    """Rows with an augmentation of some sort."""

    def __init__(self, noise: Callable[[], float]) -> None:
        self.noise, self.rows = noise, rows()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.rows[0][i] + self.noise(), self.rows[1][i]


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        inputs, wanted = rows()
        yield from zip(inputs, wanted, strict=True)


def _torch_noise() -> float:
    return float(torch.rand(()))


def _numpy_noise() -> float:
    return float(np.random.rand())  # noqa: NPY002


def _python_noise() -> float:
    return random.random()


def _time_noise() -> float:
    return time.perf_counter() % 1


def of_loader(data: Any = None, workers: int = 0, **others: Any) -> Any:
    def make() -> Any:
        return DataLoader(
            data if data is not None else TensorDataset(*rows()),
            batch_size=4,
            num_workers=workers,
            **({"shuffle": True} | others),
        )

    of, x0, y0 = bp.Problem.from_modules(
        x=torch.zeros(3),
        y=torch.zeros(3),
        upper=criteria,
        lower=loss,
        lower_data=make(),
        upper_data=make(),
    )
    return bp.solve(of, x0, y0, method=stochastic(), steps=4, progress=False)


def _workers_agree(data: Any, **others: Any) -> bool:
    return bool(torch.equal(of_loader(data, 0, **others).x, of_loader(data, 2, **others).x))


def data_cases() -> Iterator[Case]:
    yield from over(
        "Minibatches",
        lambda size: of_data(minibatches(size=size)),
        "size",
        NOT_A_NUMBER | NOT_WHOLE | NEGATIVE | ZERO | NONE | {"100": 100},
    )
    trees: dict[str, Any] = {
        "None": None,
        "text": "a",
        "number": 3,
        "empty": [],
        "array": np.zeros((12, 3)),
        "list of numbers": [1.0, 2.0],
        "other lengths": (torch.zeros(12, 3), torch.zeros(7)),
        "no axis": torch.tensor(1.0),
        "no rows": torch.zeros(0, 3),
        "loader": DataLoader(TensorDataset(*rows()), 4),
        "dict of text": {"a": "b"},
        "objective 1 only": {1: rows()},
        "objective names": {"a": 1},
    }
    yield from over("Minibatches", lambda lower: of_data(minibatches(lower=lower)), "lower", trees)
    yield from over("Minibatches", lambda upper: of_data(minibatches(upper=upper)), "upper", trees)
    yield from over(
        "Minibatches per objective",
        lambda upper: bp.solve(
            bp.Problem(
                [lambda x, y, b: criteria(x, y, b)[0], lambda x, y, b: criteria(x, y, b)[1]],
                loss,
                sampler=minibatches(upper=upper),
            ),
            torch.zeros(3),
            torch.zeros(3),
            method=stochastic(),
            steps=2,
        ),
        "upper",
        {"one": {0: rows()}, "three": {0: rows(), 1: rows(), 2: rows()}, "texts": {0: "a", 1: "b"}},
    )
    generator = bp.sampler.generator
    yield from over(
        "generator",
        lambda role: generator(role, 0, 0),
        "role",
        {"None": None, "number": 3, "bytes": b"a", "list": [], "a tuple": ("lower", "x")},
    )
    yield from over(
        "generator",
        lambda t: generator("a", t, 0),
        "t",
        few(NOT_A_NUMBER) | NOT_WHOLE | NONE | NEGATIVE,
    )
    yield from over(
        "generator",
        lambda seed: generator("a", 0, seed),
        "seed",
        few(NOT_A_NUMBER) | NOT_WHOLE | NONE,
    )
    yield from over(
        "generator",
        lambda device: generator("a", 0, 0, device),
        "device",
        {"unknown": "tpu9", "number": 3.5, "list": []},
    )

    # Samplers that are not functions of their arguments.
    inputs, wanted = rows()

    def sampler_of(index: Callable[[], Tensor], full: bool = True) -> Callable[..., Any]:
        def draw(role: Role, t: int, seed: int) -> Any:
            if role.full and full:
                return inputs, wanted
            chosen = index()
            return inputs[chosen], wanted[chosen]

        return draw

    stream = torch.Generator().manual_seed(0)
    impure: dict[str, Callable[[], Tensor]] = {
        "torch.randint": lambda: torch.randint(12, (4,)),
        "torch.randperm": lambda: torch.randperm(12)[:4],
        "np.random": lambda: torch.from_numpy(np.random.permutation(12)[:4]),  # noqa: NPY002
        "random.sample": lambda: torch.tensor(random.sample(range(12), 4)),
        "a generator of its own": lambda: torch.randperm(12, generator=stream)[:4],
        "a counter": lambda c=iter(range(10**9)): torch.tensor(
            [(next(c) + i) % 12 for i in range(4)]
        ),
    }
    for label, index in impure.items():
        for name, full in (("draws", True), ("all data too", False)):
            yield Case(
                f"sampler: {label}, {name}",
                lambda i=index, f=full: (
                    same_twice(lambda: of_data(sampler_of(i, f))) and _pure(index=i)
                ),
                right=bool,
            )
        yield Case(
            f"sampler in a front: {label}",
            lambda i=index: (
                same_twice(
                    lambda: bp.front(
                        data_problem(sampler_of(i)),
                        torch.zeros(3),
                        torch.zeros(3),
                        method=stochastic(),
                        preferences=bp.preferences.grid(2, 2),
                        steps=4,
                        progress=False,
                    )
                )
                and _pure(index=i)
            ),
            right=bool,
        )
        yield Case(
            f"sampler in an optimizer: {label}",
            lambda i=index: same_twice(lambda: _step_data(sampler_of(i))) and _pure(index=i),
            right=bool,
        )
    returned: dict[str, Any] = {
        "None": None,
        "text": "a",
        "a number": 3.0,
        "arrays": (inputs.numpy(), wanted.numpy()),
        "one tensor": inputs,
        "three tensors": (inputs, wanted, wanted),
        "texts inside": (inputs, "a"),
        "a generator": (v for v in rows()),
        "nan": (inputs * math.nan, wanted),
        "a loader": DataLoader(TensorDataset(*rows()), 4),
    }
    for label, value in returned.items():
        yield Case(f"sampler returns {label}", lambda v=value: of_data(lambda role, t, seed: v))
    yield Case(
        "sampler: another shape at every step, front of two seeds",
        lambda: bp.front(
            data_problem(lambda role, t, seed: (inputs[: 4 + seed], wanted[: 4 + seed])),
            torch.zeros(3),
            torch.zeros(3),
            method=stochastic(),
            seeds=[0, 1],
            preferences=bp.preferences.grid(2, 2),
            steps=3,
            progress=False,
        ),
    )
    yield Case(
        "sampler raises", lambda: of_data(lambda role, t, seed: 1 / 0), raises=(ZeroDivisionError,)
    )
    yield Case(
        "sampler writes to its data",
        lambda: of_data(lambda role, t, seed, data=rows(): (data[0].add_(0.1), data[1])),
    )

    # Data sets behind loaders.
    for label, noise in {
        "torch": _torch_noise,
        "NumPy": _numpy_noise,
        "Python": _python_noise,
    }.items():
        yield Case(
            f"data set with {label} augmentation",
            lambda n=noise: same_twice(lambda: of_loader(_Noisy(n))),
            right=bool,
        )
        yield Case(
            f"data set with {label} augmentation, 2 workers",
            lambda n=noise: same_twice(lambda: of_loader(_Noisy(n), 2)),
            right=bool,
        )
        yield Case(
            f"data set with {label} augmentation, workers or none",
            lambda n=noise: _workers_agree(_Noisy(n)),
            right=bool,
        )
    yield Case(
        "data set with the time in it",
        lambda: same_twice(lambda: of_loader(_Noisy(_time_noise))),
        right=bool,
    )
    yield Case(
        "loader: workers or none", lambda: _workers_agree(TensorDataset(*rows())), right=bool
    )
    yield Case(
        "loader: workers or none, in order",
        lambda: _workers_agree(TensorDataset(*rows()), shuffle=False),
        right=bool,
    )
    yield Case(
        "loader: iterable, workers or none",
        lambda: _workers_agree(_Stream(), shuffle=None),
        right=bool,
    )
    yield Case(
        "loader: persistent workers",
        lambda: bool(torch.equal(of_loader().x, of_loader(workers=1, persistent_workers=True).x)),
        right=bool,
    )


def _pure(index: Any) -> bool:
    """Same answers by luck of a seed would not do: an impure sampler that went through is wrong."""
    return False


def _step_data(sampler: Any) -> Any:
    optimizer = bp.Optimizer(data_problem(sampler), torch.zeros(3), torch.zeros(3), stochastic())
    optimizer.step(), optimizer.step()
    return optimizer
