from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.scalarization import (
    SCALARIZATIONS,
    Fixed,
    Scalarization,
    Tracked,
    aim,
    as_ideal,
)

VECTORS = st.lists(st.floats(0.1, 20.0), min_size=2, max_size=4)


def setting(values: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    f = torch.tensor(values, dtype=torch.float64)
    w = torch.arange(1, len(values) + 1, dtype=torch.float64)
    return f, w / w.sum(), torch.full_like(f, 0.05)


@given(VECTORS, st.sampled_from(sorted(SCALARIZATIONS)), st.floats(0.01, 50))
def test_weights_are_the_gradient_of_the_value(
    values: list[float], name: str, smoothing: float
) -> None:
    f, w, z = setting(values)
    mu = torch.tensor(smoothing, dtype=torch.float64)
    top = (w * (f - z)).sort().values
    if name == "tchebycheff" and top[-1] - top[-2] < 1e-9:
        return  # at a tie any subgradient will do
    form = scalarization.get(name)
    torch.testing.assert_close(form.weights(f, w, z, mu), torch.func.grad(form.value)(f, w, z, mu))


@given(VECTORS, st.floats(0.01, 1e6))
def test_smooth_tchebycheff_lies_above_the_maximum_by_at_most_log_m_over_mu(
    values: list[float], smoothing: float
) -> None:
    f, w, z = setting(values)
    mu = torch.tensor(smoothing, dtype=torch.float64)
    excess = float(
        scalarization.get("stch").value(f, w, z, mu)
        - scalarization.get("tchebycheff").value(f, w, z, mu)
    )
    assert -1e-9 <= excess <= math.log(len(values)) / smoothing + 1e-9
    assert math.isfinite(excess)


def test_a_tracked_ideal_point_stays_a_margin_below() -> None:
    rule = Tracked(0.5)
    z = rule.start(torch.tensor([2.0, 3.0]))
    for f in (torch.tensor([1.0, 4.0]), torch.tensor([5.0, 0.0]), torch.tensor([1.5, 1.0])):
        z = rule.update(z, f)
        assert bool((z <= f - 0.5).all())
    assert torch.equal(z, torch.tensor([0.5, -0.5]))


def test_ideal_points_are_checked() -> None:
    assert as_ideal(0.5) == Fixed(0.5)
    assert as_ideal([0.0, 1.0]) == Fixed((0.0, 1.0))
    with pytest.raises(InvalidInput, match="margin"):
        as_ideal(Tracked(0.0))
    with pytest.raises(InvalidInput, match=r"3 entries.*m = 2"):
        Fixed((0.0, 1.0, 2.0)).start(torch.ones(2))
    with pytest.raises(InvalidInput, match="ideal is 'low'"):
        as_ideal("low")  # type: ignore[arg-type]


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InvalidInput, match="stch, tchebycheff, linear"):
        scalarization.get("sum")


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6), st.floats(0.01, 300.0))
def test_aim_gives_back_the_preference_that_leads_to_a_point(
    weights: list[float], smoothing: float
) -> None:
    # Weights from 1e-4 to nearly one, and smoothings from linear to sharp: the bracket of the root
    # must hold it in all of them.
    w = torch.tensor(weights, dtype=torch.float64)
    w, z = w / w.sum(), torch.zeros(len(weights), dtype=torch.float64)
    f = 0.2 + torch.arange(len(weights), dtype=torch.float64)
    mu = torch.tensor(smoothing, dtype=torch.float64)
    normal = w * torch.softmax(mu * w * f, 0)
    if float((normal / normal.sum()).min()) < 1e-11:
        return  # an objective that carries no weight leaves no trace of its preference
    found = scalarization.aim("stch", f, normal, z, smoothing)
    torch.testing.assert_close(found, w, rtol=1e-6, atol=1e-9)


def test_a_scalarization_without_an_aim_is_refused_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adaptive preferences need to know which preference leads to a point of the front."""

    def value(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        return (w * (f - z)).pow(mu).sum(-1).pow(1 / mu)

    def weights(f: Tensor, w: Tensor, z: Tensor, mu: Tensor) -> Tensor:
        return w * (w * (f - z) / value(f, w, z, mu).unsqueeze(-1)).pow(mu - 1)

    monkeypatch.setitem(SCALARIZATIONS, "p-norm", Scalarization("p-norm", value, weights))
    point = torch.tensor([1.0, 3.0], dtype=torch.float64)
    with pytest.raises(InvalidInput, match=r"'p-norm' has no 'aim'.*stch, tchebycheff, linear"):
        aim("p-norm", point, torch.ones(2), torch.zeros(2), 2.0)
    known = bp.problems.get("quadratic", dim=2)
    method = bp.MOMEHA(gamma=0.2, c=5.0, mu=4.0, scalarization="p-norm")
    with pytest.raises(InvalidInput, match="'p-norm' has no 'aim'"):
        bp.front(
            known, known.x0, known.y0, preferences="adaptive", budget=6, method=method, steps=20
        )


F, W, Z = (
    torch.tensor(v, dtype=torch.float64)
    for v in ([2.0, 5.0, 3.5], [0.5, 0.2, 0.3], [1.0, -1.0, 0.5])
)
MU = torch.tensor(1.7, dtype=torch.float64)
#: a page's example may have added its own by now
OURS = ("stch", "tchebycheff", "linear")


def test_values_are_the_printed_ones() -> None:
    gaps = [0.5 * 1, 0.2 * 6, 0.3 * 3]
    smooth = math.log(sum(math.exp(1.7 * gap) for gap in gaps)) / 1.7
    values = {name: float(SCALARIZATIONS[name].value(F, W, Z, MU)) for name in OURS}
    assert values == pytest.approx({"stch": smooth, "tchebycheff": 1.2, "linear": 2.6})
    tie = scalarization.get("tchebycheff").weights(Z + 1 / W, W, Z, MU)
    assert tie.tolist() == [0.5, 0.0, 0.0]  # the first of equal ones


def test_what_else_a_scalarization_carries() -> None:
    """Aim, lower bound and smoothness of each, in closed form."""
    normal = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    assert aim("linear", F, normal, Z, 1.7).tolist() == pytest.approx([0.5, 0.25, 0.25])
    inverse = [1 / 1, 1 / 6, 1 / 3]
    wanted = [v / sum(inverse) for v in inverse]
    assert aim("tchebycheff", F, normal, Z, 1.7).tolist() == pytest.approx(wanted)
    bounds = {name: SCALARIZATIONS[name].part("lower_bound")(3, 2.0) for name in OURS}
    assert bounds == pytest.approx({"stch": math.log(3) / 2, "tchebycheff": 0, "linear": 0})
    linear, stch = (scalarization.get(name).part("smoothness") for name in ("linear", "stch"))
    assert linear(3.0, [0.5, 0.4], 2.0, 1.0, 1.0) == pytest.approx(2.7)
    assert stch(3.0, [0.5], 2.0, 1.0, 1.0) == pytest.approx(1.5)
    with pytest.raises(InvalidInput, match=r"'tchebycheff' has no 'smoothness'.*stch, linear"):
        scalarization.get("tchebycheff").part("smoothness")


def test_a_fixed_ideal_point_is_spread_and_stays() -> None:
    f = torch.tensor([2.0, 3.0])
    assert Fixed(0.5).start(f).tolist() == [0.5, 0.5]
    assert Fixed((0.5, 1.5)).start(f).tolist() == [0.5, 1.5]
    z = torch.tensor([9.0, 9.0])
    assert Fixed(0.5).update(z, f) is z
    assert as_ideal(Tracked(2)) == Tracked(2.0)
    assert as_ideal(Fixed(torch.tensor([1.0, 2.0]))) == Fixed((1.0, 2.0))  # type: ignore[arg-type]
    for wrong in ([[0.0, 1.0]], [], [math.nan, 0.0]):
        with pytest.raises(InvalidInput, match="pass a finite number, m finite numbers"):
            as_ideal(wrong)


def test_the_largest_gap_above_the_ideal_point_carries_the_weight() -> None:
    """Without z the third objective would be the largest."""
    assert scalarization.get("tchebycheff").weights(F, W, Z, MU).tolist() == [0.0, 0.2, 0.0]


@pytest.mark.parametrize("heights", [(2.0, 2.0), (1.0, 2.0, 4.0), (0.01, 0.01), (1e-3, 2e-3, 5e-3)])
def test_the_root_is_in_its_bracket_where_the_scalarization_is_sharp_or_linear(
    heights: tuple[float, ...],
) -> None:
    """Weights with w_i f_i alike: the softmax is even, and the normal is w itself."""
    f, z = torch.tensor(heights, dtype=torch.float64), torch.zeros(len(heights)).double()
    w = f.reciprocal() / f.reciprocal().sum()
    for mu in (0.01, 1.0, 300.0):
        torch.testing.assert_close(aim("stch", f, w, z, mu), w, rtol=1e-6, atol=1e-9)


def test_a_tracked_ideal_stays_its_margin_below_the_least_seen() -> None:
    rule = scalarization.Tracked(0.5)
    assert rule.start(F).tolist() == [1.5, 4.5, 3.0]
    z = rule.update(rule.start(F), torch.tensor([3.0, 1.0, 3.0], dtype=torch.float64))
    assert z.tolist() == [1.5, 0.5, 2.5]
