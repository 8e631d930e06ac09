from __future__ import annotations

import pytest
import torch

from bipareto.errors import InvalidInput
from bipareto.methods.parts.schedule import (
    Complement,
    Constant,
    Cosine,
    Delayed,
    Power,
    as_schedule,
    lemma12,
    theorem1,
    theorem2,
)

T = torch.tensor([0.0, 1.0, 255.0, 65535.0], dtype=torch.float64)


def test_theorem_1() -> None:
    torch.testing.assert_close(theorem1(2.0)["c"](T), 2 * (1 + T) ** 0.25)
    assert theorem1(2.0, growing=False)["c"] == Constant(2.0)


@pytest.mark.parametrize("delta", [None, 0.05])
def test_theorem_2_ties_its_sequences_together(delta: float | None) -> None:
    s = theorem2(0.1, 0.01, 0.005, c0=3.0, k=2.0, delta=delta)
    q = 3 / 8 + (delta or 0)
    theta = s["alpha_theta"](T)
    torch.testing.assert_close(theta, 0.1 * (1 + T) ** -q)
    # alpha_y = O(alpha_theta^2), alpha_x <= alpha_y, 1 - beta = k alpha_theta^(2/3)
    torch.testing.assert_close(s["alpha_y"](T) / theta**2, torch.full_like(T, 1.0))
    assert bool((s["alpha_x"](T) <= s["alpha_y"](T)).all())
    torch.testing.assert_close(1 - s["beta"](T), 2.0 * theta ** (2 / 3))
    c = s["c"](T) if delta is None else torch.full_like(T, s["c"][0])
    torch.testing.assert_close(
        c, 3 * (1 + T) ** (1 / 16) if delta is None else torch.full_like(T, 3.0)
    )


def test_theorem_2_refuses_what_it_does_not_cover() -> None:
    with pytest.raises(InvalidInput, match=r"alpha_x = 0.2 exceeds alpha_y = 0.1"):
        theorem2(0.1, 0.1, 0.2)
    with pytest.raises(InvalidInput, match=r"delta = 0.2"):
        theorem2(0.1, 0.1, 0.1, delta=0.2)


def test_numbers_stand_for_constants() -> None:
    assert as_schedule(2, "c") == Constant(2.0)
    assert as_schedule(Power(1.0, 0.5), "c") == Power(1.0, 0.5)
    assert float(Complement(0.5, 0.0)(T[0])) == 0.5
    with pytest.raises(InvalidInput, match="alpha_x is 'fast'"):
        as_schedule("fast", "alpha_x")  # type: ignore[arg-type]


def test_a_cosine_falls_from_its_scale_to_its_floor_and_stays_there() -> None:
    s = Cosine(0.5, 100.0, 0.1)
    torch.testing.assert_close(
        s(torch.tensor([0.0, 50.0, 100.0, 1000.0])), torch.tensor([0.5, 0.3, 0.1, 0.1])
    )
    assert as_schedule(s, "alpha_y") == s
    late = s._replace(first=50.0)
    torch.testing.assert_close(
        late(torch.tensor([0.0, 49.0, 50.0, 100.0])), torch.tensor([0.1, 0.1, 0.3, 0.1])
    )


def test_a_delayed_step_waits() -> None:
    s = Delayed(torch.tensor(2.0), torch.tensor(3.0), torch.tensor(0.5))
    assert s(torch.arange(5.0)).tolist() == [0.5, 0.5, 0.5, 2.0, 2.0]


@pytest.mark.parametrize("bad", [Cosine(0.5, 0.0), Cosine(0.5, -3.0), Cosine(0.5, 10.0, -0.1)])
def test_a_cosine_without_an_end_or_with_steps_below_zero_is_refused(bad: Cosine) -> None:
    with pytest.raises(
        InvalidInput, match=r"alpha_x = Cosine: (period.* must be > 0|floor.* must be >= 0)"
    ):
        as_schedule(bad, "alpha_x")


def test_what_is_not_said_is_one_or_none() -> None:
    assert theorem1() == {"c": Power(1.0, 0.25)}
    plain = theorem2(0.1, 0.01, 0.005)
    assert plain == theorem2(0.1, 0.01, 0.005, c0=1.0, k=1.0)
    assert plain == lemma12(0.1, 0.01, 0.005, q=3 / 8, p=1 / 16)
    assert plain["c"] == Power(1.0, 1 / 16)
    assert Cosine(0.5, 100.0) == (0.5, 100.0, 0.0, 0.0)


@pytest.mark.parametrize(("q", "most"), [(0.3, 0.1), (0.375, 0.125), (0.45, 0.05)])
def test_lemma_12_bounds_the_penalty_s_exponent(q: float, most: float) -> None:
    """p < q/3 up to q = 3/8 and p < 1/2 - q beyond; no growth is a constant."""
    assert lemma12(0.1, 0.01, 0.01, q=q, p=most - 1e-6)["c"] == Power(1.0, most - 1e-6)
    assert lemma12(0.1, 0.01, 0.01, q=q, p=0.0)["c"] == Constant(1.0)
    with pytest.raises(InvalidInput, match=f"needs 0 <= p < {most:g}"):
        lemma12(0.1, 0.01, 0.01, q=q, p=most + 1e-6)
    for wrong in (0.0, 0.5):
        with pytest.raises(InvalidInput, match="q = "):
            lemma12(0.1, 0.01, 0.01, q=wrong, p=0.0)


def test_the_first_momentum_is_never_negative() -> None:
    assert lemma12(8.0, 1.0, 1.0, q=0.3, p=0.0)["beta"] == Complement(1.0, pytest.approx(-0.2))
    assert lemma12(0.001, 1.0, 1.0, q=0.3, p=0.0, k=50.0)["beta"].scale == pytest.approx(0.5)


def test_what_a_sequence_waits_or_ends_at_is_checked() -> None:
    """It may reach an open bound, which the sequence itself may not."""
    for ends_at_the_bound in (Delayed(0.5, 3.0, 0.0), Cosine(0.5, 10.0, 0.0)):
        assert as_schedule(ends_at_the_bound, "a", above=0) == ends_at_the_bound
    for wrong, bounds in (
        (Delayed(0.5, 3.0, -0.1), {"above": 0.0}),
        (Delayed(0.5, 3.0, 0.2), {"least": 0.3}),
        (Delayed(0.5, 3.0, 1.2), {"below": 1.0}),
        (Cosine(0.5, 10.0, 0.1), {"least": 0.3}),
        (Constant(0.0), {"above": 0.0}),
        (Power(1.5, -1.0), {"below": 1.0}),
        (Complement(1.5, -1.0), {"least": 0.0}),
    ):
        with pytest.raises(InvalidInput, match="a = "):
            as_schedule(wrong, "a", **bounds)
    assert as_schedule(Complement(1.0, -1.0), "a", least=0.0, below=1.0).scale == 1.0
