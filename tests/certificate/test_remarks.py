"""Which gamma a certificate takes, what it remarks on, and where the limits lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.certificate import Certificate
from bipareto.errors import InvalidInput
from certificate.points import quietly
from helpers import DOUBLE


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=DOUBLE)


def parabola(h: float, y: float = 0.0, center: float = 0.0, **options: Any) -> Certificate:
    """g = h (y - center)^2/2 in one dimension, with two objectives in x and y."""
    problem = bp.Problem(
        lambda x, y: torch.stack([(x - 1).square().sum() + y.sum(), (x + 1).square().sum()]),
        lambda x, y: 0.5 * h * (y - center).square().sum() + 0 * x.sum(),
    )
    return quietly(problem, number(0.3), number(y), **options)


@pytest.mark.parametrize(
    ("h", "gamma", "rho_y"), [(4.0, 0.25, 0.0), (-2.0, 0.225, 2.0), (-0.1, 4.5, 0.1), (0.0, 1.0, 0)]
)
def test_gamma_follows_the_curvature(h: float, gamma: float, rho_y: float) -> None:
    """1/L where g curves upwards, 0.45/rho_y where it curves downwards more."""
    found = parabola(h)
    assert found.gamma == pytest.approx(gamma)
    assert found.rho_y == pytest.approx(rho_y)
    assert found.lower_eigenvalues == pytest.approx((h, h))


def remarks(found: Certificate, words: str) -> int:
    return sum(words in note for note in found.notes)


def test_a_gamma_that_is_too_large_is_remarked_on() -> None:
    assert remarks(parabola(-2.0, gamma=0.24), "not below 1/(2 rho_y)") == 0
    assert remarks(parabola(-2.0, gamma=0.26), "rho_y >= 2 and gamma must be < 0.25") == 1
    assert remarks(parabola(2.0, gamma=5.0), "rho_y") == 0
    assert parabola(1.0, gamma=0.2, rho_y=2.4).rho_y == 2.4
    with pytest.raises(InvalidInput, match=r"gamma = 0.25 is not below.*take e.g. 0.225"):
        parabola(1.0, gamma=0.25, rho_y=2.0)
    with pytest.raises(InvalidInput, match="gamma = 5 is not below"):
        parabola(1.0, gamma=5.0, rho_y=0.1)
    assert parabola(1.0, gamma=0.25, rho_y=0.0).gamma == 0.25
    for wrong in ({"gamma": 0.0}, {"mu": 0.0}, {"c": 0.0}, {"rho_y": -1.0}, {"tol": -1.0}):
        with pytest.raises(InvalidInput):
            parabola(1.0, **wrong)


@pytest.mark.parametrize(
    ("y", "center", "far"),
    [(0.049, 0.0, False), (0.051, 0.0, True), (10.52, 10.0, False), (10.54, 10.0, True)],
)
def test_a_point_that_is_not_solved_is_remarked_on(y: float, center: float, far: bool) -> None:
    """Beyond a twentieth of the size of y, which counts as one at least."""
    for h in (4.0, 0.01):
        found = parabola(h, y, center)
        assert remarks(found, "not near lower stationarity") == far
        assert found.lower_residual == pytest.approx(h * (y - center))


def test_a_slope_without_curvature_is_never_near() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack([(x + y).sum(), -y.sum()]), lambda x, y: y.sum() + 0 * x.sum()
    )
    assert remarks(quietly(problem, number(0.3), number(0.0)), "not near lower stationarity") == 1
    assert remarks(parabola(0.0), "not near lower stationarity") == 0


def test_a_kink_is_told_from_curvature() -> None:
    def certified(lower: Any, y: float) -> Certificate:
        problem = bp.Problem(lambda x, y: torch.stack([(x + y).sum(), -y.sum()]), lower)
        return quietly(problem, number(0.3), number(y))

    kink = certified(lambda x, y: y.abs().sum() + y.square().sum() / 2 + 0 * x.sum(), 0.0)
    (note,) = [note for note in kink.notes if "twice differentiable" in note]
    assert "jumps by 1 over" in note
    small = certified(lambda x, y: 0.05 * y.abs().sum() + y.square().sum() / 2 + 0 * x.sum(), 0.0)
    assert remarks(small, "jumps by 0.05 over") == 1
    # A slope is no jump.
    assert not remarks(parabola(4.0, 0.3), "twice differentiable")
    for smooth in (
        lambda x, y: (y**4).sum() + y.square().sum() + 0 * x.sum(),
        lambda x, y: torch.cosh(3 * y).sum() + 0 * x.sum(),
    ):
        assert not remarks(certified(smooth, 0.0), "twice differentiable")


def test_the_paper_s_multipliers_need_all_three() -> None:
    given: dict[str, Any] = {"preference": [0.5, 0.5], "mu": 2.0, "c": 3.0, "ideal": -9.0}
    assert parabola(4.0, 0.01, **given).paper_stationarity is not None
    for left_out in ("preference", "mu", "c"):
        some = {name: value for name, value in given.items() if name != left_out}
        assert parabola(4.0, 0.01, **some).paper_stationarity is None
    with pytest.raises(InvalidInput, match=r"z_1 = 9 >= f_1 = .*z_2 = 9 >= f_2"):
        parabola(4.0, 0.01, **given | {"ideal": 9.0})


def test_common_descent_is_a_gain_above_the_tolerance() -> None:
    def at(x: float, tol: float) -> Certificate:
        problem = bp.Problem(
            lambda x, y: torch.stack([(y - 1).square().sum(), (y + 1).square().sum()]),
            lambda x, y: (y - x).square().sum(),
        )
        return quietly(problem, number(x), number(x), tol=tol)

    left = at(1.5, 1e-3).improvement
    # From y = 1.5 to the end at 1: f_1 falls by 1/4 of its range 4 (or a little more), f_2 more.
    assert 0.04 < left < 0.2
    assert at(1.5, 0.9 * left).common_descent is True
    assert at(1.5, 1.2 * left).common_descent is False
    inside = at(0.5, 1e-3)
    assert inside.common_descent is False
    assert inside.improvement == pytest.approx(0.0, abs=1e-9)
