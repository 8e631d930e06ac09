from __future__ import annotations

from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.preferences import as_preference, grid


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
    assert torch.allclose(grid(2, 3, boundary=True)[:, 0], torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0.5, 0.6], "sums to 1.1"),
        ([0.5, 0.3, 0.2], "3 entries.*m = 2"),
        ([-0.5, 1.5], "negative"),
        ([float("nan"), 1.0], "non-finite"),
        (0.5, "one number"),
        ("ab", "m numbers"),
        ([[0.5, 0.5], [0.9, 0.2]], "sums to 1.1"),
    ],
)
def test_bad_preferences_are_named(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        as_preference(value, 2)


def test_a_zero_is_warned_of() -> None:
    with pytest.warns(BiparetoWarning, match="zero"):
        as_preference([0.0, 1.0], 2)
