"""One's own loop gives what the library's gives, and goes on after a checkpoint as if nothing had
happened.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem.sampler import Role

METHOD = bp.MBMOMEHA(gamma=0.5, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, c=3.0)
WANTED = [[0.3, 0.7], [0.7, 0.3]]


def lower(x: Any, y: Any, batch: Any) -> Tensor:
    return x(batch[0]).flatten().softmax(0) @ cross_entropy(y(batch[0]), batch[1], reduction="none")


def upper(x: Any, y: Any, batch: Any) -> Tensor:
    return cross_entropy(y(batch[0]), batch[1])


def problem(dropout: float = 0.2) -> tuple[Any, Any, Any]:
    stream = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    loaders = [
        DataLoader(
            TensorDataset(
                torch.randn(20, 3, generator=stream), torch.randint(2, (20,), generator=stream)
            ),
            4,
            shuffle=True,
        )
        for _ in range(3)
    ]
    y = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(dropout), nn.Linear(5, 2))
    return bp.Problem.from_modules(
        x=nn.Linear(3, 1),
        y=y,
        lower=lower,
        upper=[upper, upper],
        lower_data=loaders[0],
        upper_data=loaders[1:],
    )


def test_its_steps_are_the_loops() -> None:
    made = problem()
    found = bp.front(*made, preferences=WANTED, method=METHOD, steps=7)
    optimizer = bp.Optimizer(*problem(), METHOD, preferences=WANTED)
    for _ in range(7):
        optimizer.step()
    for name, value in found.y.items():
        assert torch.equal(optimizer.y[name], value)
    torch.testing.assert_close(optimizer.objectives(), found.objectives)


def test_a_checkpoint_goes_on_bit_for_bit() -> None:
    straight, first, second = (
        bp.Optimizer(*problem(), METHOD, preferences=WANTED) for _ in range(3)
    )
    for _ in range(9):
        straight.step()
    for _ in range(4):
        first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(5):
        second.step()
    assert second.steps == 9
    for name, value in straight.y.items():
        assert torch.equal(second.y[name], value)
    positions = {
        Role(*entry["role"]): (entry["epoch"], entry["position"])
        for entry in second.state_dict()["data"]
    }
    assert positions[Role("lower", "theta")] == (1, 3)  # five batches an epoch, nine drawn


def test_batches_of_ones_own() -> None:
    made = problem(dropout=0.0)
    batch = torch.ones(6, 3), torch.tensor([0, 1] * 3)
    other = -torch.ones(6, 3), torch.tensor([1, 0] * 3)
    optimizer = bp.Optimizer(*made, METHOD, preferences=WANTED)
    seen = optimizer.step({"lower": batch, "upper": [batch, other]})
    assert seen["objectives"].shape == (2, 2)
    by_hand = made[0].objective(1, *made[1:], other)
    torch.testing.assert_close(seen["objectives"][0, 1], by_hand)
    named = bp.Optimizer(*made, METHOD, preferences=WANTED)
    named.step({"lower": batch, "upper": [batch, other], "theta": batch})
    assert torch.equal(named.y["0.weight"], optimizer.y["0.weight"])
    with pytest.raises(InvalidInput, match="no batch for role 'x-upper-0'; pass 'upper'"):
        optimizer.step({"lower": batch})


def test_an_answer_is_written_back() -> None:
    x, y = (
        nn.Linear(3, 1),
        nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2)),
    )
    optimizer = bp.Optimizer(*problem(), METHOD, preferences=WANTED)
    optimizer.step()
    optimizer.write_back(x, y, run=1)
    assert torch.equal(y[0].weight, optimizer.y["0.weight"][1])
    assert int(y[1].num_batches_tracked) == 1


def test_objectives_with_rows_of_their_own_take_a_list_of_batches() -> None:
    rows = {0: torch.ones(4, 2, dtype=torch.float64), 1: -torch.ones(4, 2, dtype=torch.float64)}
    start = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)

    def off(x: torch.Tensor, y: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return (y - batch.mean(0)).square().sum() + x.square().sum()

    own = bp.Problem(
        [off, off],
        lambda x, y, batch: (y - x).square().sum(),
        sampler=bp.sampler.Minibatches(rows[0], rows, size=4),
    )
    for method in (bp.MOMEHA(), bp.MBMOMEHA()):
        given, drawn = (
            bp.Optimizer(own, *start, method, preferences=[[0.3, 0.7]]) for _ in range(2)
        )
        given.step({"lower": rows[0], "upper": [rows[0], rows[1]]})
        drawn.step()  # batches of all rows
        torch.testing.assert_close(given.y, drawn.y)
        assert bool((given.y != 0).any())


def test_another_checkpoint_is_refused() -> None:
    optimizer = bp.Optimizer(*problem(), METHOD, preferences=WANTED)
    saved = optimizer.state_dict()
    with pytest.raises(InvalidInput, match="make it with the same method"):
        bp.Optimizer(*problem(), bp.MOMEHA(), preferences=WANTED).load_state_dict(saved)
    with pytest.raises(InvalidInput, match="has no seed; pass what"):
        optimizer.load_state_dict({key: value for key, value in saved.items() if key != "seed"})
    with pytest.raises(InvalidInput, match="other shapes"):
        bp.Optimizer(*problem(), METHOD).load_state_dict(saved)


def test_problems_without_data_take_no_batches() -> None:
    plain = bp.Problem(lambda x, y: torch.stack([x + y, x * y]), lambda x, y: (y - x) ** 2)
    one = torch.ones((), dtype=torch.float64)
    with pytest.raises(InvalidInput, match="the losses take none"):
        bp.Optimizer(plain, one, one, bp.MOMEHA()).step({"lower": 1, "upper": 1})
