from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem.sampler import Minibatches, Role, generator
from bipareto.run.stepping import draw

KEYS = st.tuples(
    st.sampled_from([Role("lower", "theta"), Role("lower", "x"), Role("upper", "x", 0)]),
    st.integers(0, 10**6),
    st.integers(0, 10**4),
)


@given(KEYS, KEYS)
def test_streams_are_functions_of_role_step_and_seed(
    a: tuple[Role, int, int], b: tuple[Role, int, int]
) -> None:
    first, again, other = (torch.rand(8, generator=generator(*key)) for key in (a, a, b))
    assert torch.equal(first, again)
    assert (a == b) == torch.equal(first, other)


def test_streams_of_neighbouring_keys_look_independent() -> None:
    rows = torch.stack(
        [
            torch.randn(500, generator=generator("theta", t, seed))
            for t in range(20)
            for seed in range(5)
        ]
    )
    correlation = torch.corrcoef(rows) - torch.eye(100)
    assert (
        correlation.abs().max() < 0.25
    )  # 4,950 pairs of 500 numbers: the largest of independent ones is about 0.18
    assert abs(float(rows.mean())) < 0.02


def test_minibatches_draw_rows_of_their_level() -> None:
    lower, first, second = (
        torch.arange(10.0),
        torch.arange(100.0, 110.0),
        torch.arange(200.0, 210.0),
    )
    sampler = Minibatches((lower, lower), {0: first, 1: second}, size=4)
    a, b = sampler(Role("lower", "theta"), 3, 0)
    assert torch.equal(a, b)
    assert len(set(a.tolist())) == 4
    assert set(a.tolist()) <= set(lower.tolist())
    assert set(sampler(Role("upper", "y", 1), 0, 0).tolist()) <= set(second.tolist())
    assert torch.equal(sampler(Role("lower", "full"), 0, 0)[0], lower)
    with pytest.raises(InvalidInput, match="size = 11"):
        Minibatches(lower, first, size=11)
    with pytest.raises(InvalidInput, match=r"data for objectives \[0, 2\]"):
        Minibatches(lower, {0: first, 2: second}, size=4)


@pytest.mark.parametrize(
    "method", [bp.MOMEHA(), bp.MBMOMEHA(exact_weights=True), bp.MoCo(), bp.WCPenalty()]
)
def test_every_objective_may_have_data_of_its_own(method: bp.methods.Method) -> None:
    """Of the mean of its rows alone; on batches that are all the rows, a run is that on the means
    themselves.
    """
    data = {
        0: torch.tensor([[1.0, 3.0], [2.0, 4.0]], dtype=torch.float64),
        1: torch.tensor([[-1.0, 0.0], [-3.0, 0.0], [-2.0, 0.0]], dtype=torch.float64),
    }
    start = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def off(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (y - batch.mean(0)).square().sum() + x.square().sum() + 1

    def lower(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (y - x - batch.mean(0)).square().sum()

    drawn = bp.Problem([off, off], lower, sampler=Minibatches(lower=data[0], upper=data, size=2))
    full = drawn.batch("upper", "full")
    assert torch.equal(
        drawn.upper(*start, full), torch.stack([off(*start, data[i]) for i in (0, 1)])
    )
    assert torch.equal(drawn.objective(1, *start, full), off(*start, data[1]))
    assert {i: len(rows) for i, rows in drawn.batch("upper", "").items()} == {0: 2, 1: 2}
    whole = {0: data[0], 1: data[1][[2, 2]]}  # batches of all rows, in any order
    runs = bp.front(
        bp.Problem([off, off], lower, sampler=Minibatches(lower=data[0], upper=whole, size=2)),
        *start,
        method=method,
        steps=20,
        seeds=[0, 1],
    )
    means = bp.Problem(
        lambda x, y: torch.stack([off(x, y, data[i]) for i in (0, 1)]),
        lambda x, y: lower(x, y, data[0]),
    )
    torch.testing.assert_close(
        runs.x, bp.front(means, *start, method=method, steps=20, seeds=[0, 1]).x
    )


def test_the_roles_of_algorithm_2_are_2m_plus_3() -> None:
    for m in (1, 2, 4):
        roles = bp.MBMOMEHA().roles(m)
        assert len(roles) == len(set(roles)) == 2 * m + 3
        assert sum(role.level == "upper" for role in roles) == 2 * m
    # Random streams are keyed by these texts: another text is another run.
    assert list(map(str, bp.MBMOMEHA(exact_weights=True).roles(1))) == [
        *("theta", "x-lower", "y-lower", "x-upper-0", "y-upper-0"),
        "full",
    ]
    assert list(map(str, bp.MoCo(lower_steps=2).roles(1))) == [
        *("y-lower-0", "y-lower-1", "x-lower", "x-upper-0")
    ]
    assert list(map(str, bp.MOMEHA().roles(2))) == ["lower", "upper"]


def test_seeds_get_draws_of_their_own() -> None:
    problem = bp.Problem(
        lambda x, y, b: b,
        lambda x, y, b: b,
        sampler=lambda role, t, seed: torch.tensor([float(t), float(seed)]),
    )
    drawn = draw(problem, [Role("lower")], 7, [3, 5])
    assert torch.equal(drawn[Role("lower")], torch.tensor([[7.0, 3.0], [7.0, 5.0]]))


def test_objectives_with_data_of_their_own_draw_rows_of_their_own() -> None:
    rows = torch.arange(50)
    draws = Minibatches(lower=rows, upper={0: rows, 1: rows}, size=10)
    together = draws(Role("upper"), 3, 0)
    assert not torch.equal(together[0], together[1])
    # A role of one objective draws what it has in the role of all.
    assert torch.equal(draws(Role("upper", "", 1), 3, 0), together[1])


def test_streams_stay_what_they_are() -> None:
    """Runs go on from files: a key must lead to the stream that it led to before."""
    seeds = {
        ("theta", 7, 3): 2112609145520458219,
        (Role("upper", "x", 1), 0, 0): 4097346422104359245,
        ("lower", 123456, 10**6): 3278724496054057979,
    }
    for key, seed in seeds.items():
        assert generator(*key).initial_seed() == seed


def test_data_that_cannot_be_drawn_from_is_named() -> None:
    rows = torch.arange(6.0)
    with pytest.raises(InvalidInput, match=r"the tensors of lower have \[5, 6\] rows"):
        Minibatches((rows, rows[:5]), rows, size=2)
    for wrong in (torch.tensor(1.0), [1.0]):
        with pytest.raises(InvalidInput, match="share their first axis"):
            Minibatches(rows, wrong, size=2)
    for size in (0, 7):
        with pytest.raises(InvalidInput, match="size = "):
            Minibatches(rows, {0: rows, 1: rows}, size=size)
    with pytest.raises(InvalidInput, match="role is 3"):
        generator(3, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="device is 'moon'"):
        generator("theta", 0, 0, device="moon")
    whole = Minibatches(rows, {"a": rows, "b": 2 * rows}, size=6)
    assert not whole.per_objective  # names are no objectives: one tree for all of them
    drawn = whole(Role("upper", "x", 1), 0, 0)
    torch.testing.assert_close(drawn["b"], 2 * drawn["a"])
    assert sorted(drawn["a"].tolist()) == rows.tolist()
    assert torch.equal(whole(Role("upper", "full"), 0, 0)["a"], rows)


def test_the_smallest_set_bounds_the_size_of_a_batch() -> None:
    few, many = torch.ones(4, 1), torch.ones(10, 1)
    for lower, upper in ((few, many), (many, few)):
        with pytest.raises(InvalidInput, match="the smallest data set has 4 rows"):
            bp.sampler.Minibatches(lower=(lower,), upper=(upper,), size=5)
