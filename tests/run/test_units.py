"""Units of preferences: they know no scale and no offset, and say where a front is lopsided."""

from __future__ import annotations

import torch

import bipareto as bp
from bipareto.methods.base import Start
from bipareto.run.units import MARGIN, Units, value_of

F = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
SCALE, OFFSET = torch.tensor([1e-3, 1.0, 1e4]).double(), torch.tensor([0.005, -3.0, 1e5]).double()


def test_units_of_a_front_know_no_scale_and_no_offset() -> None:
    moved = SCALE * F + OFFSET
    units, other = Units.of_front(F), Units.of_front(moved)
    torch.testing.assert_close(other.extent, SCALE * units.extent, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(other.value(moved, W), units.value(F, W), rtol=1e-6, atol=0.0)


def test_units_of_a_front_are_those_of_its_best_rows() -> None:
    front = torch.tensor([[0.0, 4.0], [1.0, 2.0], [3.0, 1.0]])
    rest = torch.tensor([[3.5, 4.5], [100.0, 4.0], [torch.inf, torch.inf]])
    units = Units.of_front(torch.cat([front, rest]))
    assert units.extent.tolist() == [3.0, 3.0]
    assert units.ideal.tolist() == [-3 * MARGIN, 1 - 3 * MARGIN]
    point = Units.of_front(torch.tensor([[2.0, 0.0], [3.0, 1.0]]))  # one row is best in everything
    assert point.extent.tolist() == [0.002, 1.0]


def test_the_range_decides_where_the_level_of_one_objective_would() -> None:
    along = torch.linspace(0.0, 1.0, 21, dtype=torch.float64)
    front = torch.stack([(1 - along).square(), 100 + along.square()], 1)
    wanted = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    plain, measured = (
        [int(units.value(front, w).argmin()) for w in wanted]
        for units in (Units.plain(2), Units.of_front(front))
    )
    assert plain == [0, 0, 0]
    assert measured[1] == 10
    assert measured[0] > 12
    assert measured[0] + measured[2] == 20
    # Where everything failed nothing is known of a front.
    assert Units.of_front(front * torch.nan).extent.tolist() == [1.0, 1.0]


def test_f_is_the_smooth_largest_and_infinite_where_training_failed() -> None:
    units = Units(torch.tensor([1.0, 0.0]).double(), torch.tensor([2.0, 1.0]).double(), 8.0)
    w = torch.tensor([0.5, 0.5])
    exact = torch.tensor([[4.0 * 0.5, 8.0 * 0.25]]).double().logsumexp(1) / 8
    torch.testing.assert_close(units.value(torch.tensor([[2.0, 0.5]]), w), exact)
    assert units.value(torch.tensor([1.0, torch.nan]), w) == torch.inf
    assert value_of(torch.tensor([[9.0, 1.0]]), w, mu=1e4).item() == 4.5


def test_sizes_count_where_they_are_not_comparable() -> None:
    start = torch.tensor([1.0, 100.0])
    rows = torch.stack([start, torch.tensor([2.0, 300.0]), torch.tensor([torch.inf, 1.0])])
    units, w = Units.of_sizes(rows, start, few=True), torch.tensor([0.3, 0.7])
    assert units.extent.tolist() == [2.0, 300.0]
    f = rows[:2].double()
    torch.testing.assert_close(value_of(f, w / units.extent), units.value(f, w))
    alike, unknown = torch.tensor([1.0, 10.0]), torch.tensor([torch.inf, 1.0])
    for objectives, at in [
        (rows / alike, start / alike),
        (rows, start / alike),  # one that went astray
        (rows / alike, start),  # one that had to grow
        (rows / unknown, start / unknown),
        (rows[2:], start),
    ]:
        assert Units.of_sizes(objectives, at, few=True).extent.tolist() == [1.0, 1.0]
    between = torch.tensor([[1.0, 15.0]])
    assert Units.of_sizes(between, between[0], few=True).extent.tolist() == [1.0, 1.0]
    assert Units.of_sizes(between, between[0], few=False).extent.tolist() == [1.0, 15.0]


def test_the_ideal_point_lies_below_negative_objectives() -> None:
    """As far as zero lies below positive ones of their size; where training went astray or failed
    tells nothing of it.
    """
    start = torch.tensor([1.0, -2.0, 3.0, torch.nan])
    rows = torch.tensor([[2.0, 1e6, 1.0, -5.0], [4.0, -3.0, -0.5, 7.0]])
    units = Units.of_sizes(rows, start, few=True)
    assert units.ideal.tolist() == [0.0, -6.0, -3.5, -10.0]
    method, w = bp.Twin(), torch.tensor([0.1, 0.2, 0.3, 0.4])
    begun = method.begin(Start(torch.zeros(1), torch.zeros(1), rows[1]), w)
    state = Units.plain(4)._replace(ideal=units.ideal, extent=w.double()).asked(begun)
    torch.testing.assert_close(state.preference, torch.ones(4))
    torch.testing.assert_close(state.ideal, units.ideal.float())
