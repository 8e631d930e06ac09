from __future__ import annotations

import json
from math import comb
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods.parts.preferences import as_preference, covering, grid, named


@given(st.integers(1, 4), st.integers(2, 7), st.booleans())
def test_the_grid_is_on_the_simplex_and_complete(m: int, n: int, boundary: bool) -> None:
    w = grid(m, n, boundary=boundary)
    assert w.shape == (comb(n + m - 2, m - 1), m)
    torch.testing.assert_close(w.sum(1), torch.ones(len(w), dtype=torch.float64))
    assert len(torch.unique(w, dim=0)) == len(w)
    assert bool((w >= 0).all()) if boundary else bool((w > 0).all())
    # The set is symmetric: permuting objectives permutes preferences.
    assert torch.allclose(torch.unique(w, dim=0), torch.unique(w.flip(1), dim=0))


def test_eleven_preferences_of_two_objectives() -> None:
    assert torch.allclose(grid(2, 11)[:, 0], torch.arange(11, 0, -1, dtype=torch.float64) / 12)
    assert torch.allclose(
        grid(2, 3, boundary=True)[:, 0], torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0.5, 0.6], "sums to 1.1"),
        ([0.5, 0.3, 0.2], "3 entries.*m = 2"),
        ([-0.5, 1.5], "negative"),
        ([float("nan"), 1.0], "non-finite"),
        (5, r"one number, 5;.*preferences\.grid\(2, 11\)"),
        ("ab", "m numbers"),
        ([], "is empty"),
        (torch.zeros(0, 2), r"is empty \(shape \(0, 2\)\)"),
        ([[0.5, 0.5], [0.9, 0.2]], "sums to 1.1"),
    ],
)
def test_bad_preferences_are_named(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        as_preference(value, 2)


def test_a_zero_is_warned_of() -> None:
    with pytest.warns(BiparetoWarning, match="zero"):
        as_preference([0.0, 1.0], 2)


@pytest.mark.parametrize(
    ("strength", "m", "first"),
    [
        ("weak", 4, [0.31, 0.23, 0.23, 0.23]),
        ("moderate", 4, [0.4, 0.2, 0.2, 0.2]),
        ("strong", 4, [0.52, 0.16, 0.16, 0.16]),
        ("extreme", 4, [0.97, 0.01, 0.01, 0.01]),
        ("weak", 2, [0.5, 0.5]),
        ("moderate", 2, [0.6, 0.4]),
        ("strong", 2, [0.75, 0.25]),
        ("extreme", 2, [0.9, 0.1]),
    ],
)
def test_the_papers_families(strength: str, m: int, first: list[float]) -> None:
    found = named(strength, m)
    assert found[0].tolist() == pytest.approx(first)
    assert len(found) == (1 if (strength, m) == ("weak", 2) else m)
    assert sorted(found.argmax(1).tolist()) == list(range(len(found)))


@pytest.mark.parametrize("m", [3, 5, 9])
def test_families_for_any_number_of_objectives_grow_in_strength(m: int) -> None:
    tops = [
        float(named(strength, m).amax()) for strength in ("weak", "moderate", "strong", "extreme")
    ]
    assert tops == sorted(tops)
    assert 1 / m < tops[0]
    assert tops[-1] < 1
    for strength in ("weak", "extreme"):
        torch.testing.assert_close(named(strength, m).sum(1), torch.ones(m, dtype=torch.float64))


def test_random_preferences_are_uniform_on_the_simplex() -> None:
    w = named("random:4000", 3, seed=1)
    assert w.shape == (4000, 3)
    assert bool((w > 0).all())
    # A uniform point has mean 1/3 and P(w_1 > 1/2) = 1/4; four standard errors.
    assert w.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.015)
    assert float((w[:, 0] > 0.5).double().mean()) == pytest.approx(0.25, abs=0.028)
    assert torch.equal(w, named("random:4000", 3, seed=1))
    assert not torch.equal(w, named("random:4000", 3, seed=2))


def test_preferences_from_files(tmp_path: Path) -> None:
    wanted = torch.tensor([[0.7, 0.3], [0.25, 0.75]], dtype=torch.float64)
    files = {
        "a.csv": "w1,w2\n0.7,0.3\n0.25, 0.75\n",
        "b.txt": "# two\n.7 .3\n\n.25 .75\n",
        "c.json": "[[0.7, 0.3], [0.25, 0.75]]",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        torch.testing.assert_close(named(str(tmp_path / name), 2), wanted)
    for text, message in (
        ("0.7,0.4\n", "sums to 1.1"),
        ("", "holds no preferences"),
        ("0.7,x\n", "holds no preferences"),
        ("1\n", "1 entries"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(InvalidInput, match=f"bad.csv.*{message}"):
            named(str(tmp_path / "bad.csv"), 2)


def test_counts_and_unknown_names() -> None:
    assert torch.equal(named("7", 2), grid(2, 7))
    assert torch.equal(named("das-dennis:4", 3), grid(3, 4))
    assert torch.equal(named("das-dennis", 2), grid(2, 11))
    with pytest.raises(InvalidInput, match="'x' is no count"):
        named("random:x", 2)
    with pytest.raises(
        InvalidInput, match="not known; give a count, one of das-dennis, random, weak"
    ):
        named("simplex", 2)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 8, 9, 12, 30])
def test_a_covering_set_is_small_and_has_every_corner(m: int) -> None:
    w = covering(m)
    assert len(w) <= max(36, m + 1)
    assert bool((w > 0).all())
    torch.testing.assert_close(w.sum(1), torch.ones(len(w), dtype=torch.float64))
    assert torch.equal(w.amax(0) > 0.98, torch.ones(m, dtype=torch.bool))
    assert len(torch.unique(w, dim=0)) == len(w)


def test_sizes_that_nobody_can_run_are_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"635,745,396 points.*covering\(30\)"):
        grid(30, 11)
    with pytest.raises(InvalidInput, match=r"99,999,999 points"):
        named("das-dennis:99999999", 2)
    with pytest.raises(InvalidInput, match=r"at most 1,000,000"):
        named("random:99999999", 2)


def test_grids_of_known_size() -> None:
    assert grid(1, 5).tolist() == [[1.0]]
    assert grid(3, 2).tolist() == [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
    assert grid(3, 2, boundary=True).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert grid(2, 1).tolist() == [[0.5, 0.5]]
    with pytest.raises(InvalidInput, match="n = 1"):
        grid(2, 1, boundary=True)
    # a million points and no more: comb(n + 1, 2) with m = 3
    with pytest.raises(InvalidInput, match=r"has 1,000,405 points"):
        grid(3, 1414)
    with pytest.raises(InvalidInput, match="points; at most 1,000,000"):
        grid(40, 10**9)


def test_covering_sets_stay_one_per_cent_inside() -> None:
    two = covering(2)
    assert two[:, 0].tolist() == pytest.approx([0.99 * (1 - i / 10) + 0.005 for i in range(11)])
    assert covering(1).tolist() == [[1.0]]
    twelve = covering(12)
    assert float(twelve[0, 0]) == pytest.approx(0.99 + 0.01 / 12)
    assert twelve[-1].tolist() == pytest.approx([1 / 12] * 12)
    with pytest.raises(InvalidInput, match="m must be at least 1"):
        covering(0)


def test_shapes_of_preferences() -> None:
    assert as_preference([[0.5, 0.5], [0.25, 0.75]], 2).shape == (2, 2)
    assert as_preference([0.25, 0.75], 2).dtype == torch.float64
    near = [0.5, 0.5 + 5e-7]
    assert as_preference(near, 2).tolist() == near  # as given, not rescaled
    with pytest.raises(InvalidInput, match=r"shape \(1, 1, 2\)"):
        as_preference([[[0.5, 0.5]]], 2)
    with pytest.raises(InvalidInput, match="sums to"):
        as_preference([0.5, 0.5 + 5e-6], 2)
    assert named("random", 3).shape == (11, 3)
    with pytest.raises(InvalidInput, match="not known"):
        named("weak:3", 2)
    with pytest.raises(InvalidInput, match="not known"):
        named("no\0file", 2)


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"w": [0.5, 0.5]}')
    with pytest.raises(InvalidInput, match=r"one.json: it holds .*a JSON list"):
        named(str(tmp_path / "one.json"), 2)
    (tmp_path / "row.csv").write_text("-0.5,1.5\n")
    with pytest.raises(InvalidInput, match="negative"):  # a number, not a line of names
        named(str(tmp_path / "row.csv"), 2)
    (tmp_path / "single.txt").write_text("0.5 0.5\n")
    assert named(str(tmp_path / "single.txt"), 2).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("m", range(2, 9))
def test_the_example_in_a_refusal_is_a_preference(m: int) -> None:
    with pytest.raises(InvalidInput, match=r"e\.g\. \[") as refused:
        as_preference([1.0], m)
    example = json.loads(str(refused.value).split("e.g. ")[1])
    torch.testing.assert_close(
        as_preference(example, m), torch.full((m,), 1 / m).double(), rtol=3e-3, atol=0
    )


@pytest.mark.parametrize("boundary", [False, True])
def test_a_grid_falls_in_its_first_weight_then_its_second(boundary: bool) -> None:
    rows = grid(3, 5, boundary=boundary).tolist()
    assert rows == sorted(rows, reverse=True)


def test_refusals_show_one_preference_whole_and_many_by_the_first() -> None:
    with pytest.raises(InvalidInput, match=r"preference \[0.2, 0.9\] sums"):
        as_preference([[0.2, 0.9]], 2)
    with pytest.raises(InvalidInput, match=r"\(2 vectors, the first \[0.2, 0.9\]\)"):
        as_preference([[0.2, 0.9], [0.5, 0.5]], 2)
    with pytest.raises(InvalidInput, match="at most 1,000,000"):
        named("random:1000000", 11)


def test_zeros_are_warned_of_and_ones_are_not() -> None:
    with pytest.warns(BiparetoWarning, match="has a zero"):
        as_preference([0.0, 0.5, 0.5], 3)
    assert as_preference([1.0], 1).tolist() == [1.0]  # no warning
    with pytest.raises(InvalidInput, match="favouring"):
        named("weak", 4000)
