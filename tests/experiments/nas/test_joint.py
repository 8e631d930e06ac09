"""The joint form of MB-MOMEHA: one gradient for three steps."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.methods.base import Start
from bipareto_experiments.nas.joint import JointMBMOMEHA

X = torch.tensor([0.3, -0.7], dtype=torch.float64)
Y = torch.tensor([0.5, 0.2], dtype=torch.float64)
TARGETS = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
OPTIONS = {"gamma": 3.0, "mu": 0.5, "c": 2.0, "ideal": 0.0}


def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((y - TARGETS) ** 2).sum(-1) + 0.1 * (x**2).sum()


def lower(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((y - x.sin()) ** 2).sum() + 0.1 * (y**4).sum()


def moved(
    kind: type[bp.MBMOMEHA], alpha: float, steps: int = 1, **more: float
) -> dict[str, torch.Tensor]:
    """(v_0 - v_1) / alpha of each variable, theta started apart from y."""
    problem = bp.Problem(upper, lower)
    options = {**OPTIONS, "beta": 0.0, **more}
    method = kind(**options, alpha_theta=alpha, alpha_x=alpha, alpha_y=alpha)  # type: ignore[arg-type]
    state = method.begin(Start(X, Y, upper(X, Y)), [0.3, 0.7])
    state = state._replace(theta=Y + 0.4)
    first = state
    for _ in range(steps):
        state, _ = method.step(problem, state)
    return {
        name: (getattr(first, name) - getattr(state, name)) / alpha for name in ("x", "y", "theta")
    }


def test_one_gradient_is_that_of_the_penalised_gap() -> None:
    point = [v.clone().requires_grad_() for v in (X, Y, Y + 0.4)]
    x, y, theta = point
    f = upper(x, y)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    stch = torch.logsumexp(0.5 * weights * f, 0) / 0.5
    gap = stch / 2.0 + lower(x, y) - lower(x, theta) - ((y - theta) ** 2).sum() / (2 * 3.0)
    d_x, d_y, d_theta = torch.autograd.grad(gap, point)
    found = moved(JointMBMOMEHA, 1e-3)
    torch.testing.assert_close(found["x"], d_x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["y"], d_y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["theta"], -d_theta, rtol=1e-9, atol=1e-9)


def test_it_departs_from_algorithm_2_by_first_order_terms_of_the_step() -> None:
    def distance(alpha: float) -> float:
        ours, theirs = moved(JointMBMOMEHA, alpha), moved(bp.MBMOMEHA, alpha)
        return max(float((ours[name] - theirs[name]).norm()) for name in ours)

    assert distance(1e-2) > 0
    assert distance(1e-3) / distance(1e-2) == pytest.approx(0.1, rel=0.05)


def test_it_halves_the_gradients_and_takes_one_draw_of_each_level() -> None:
    joint = JointMBMOMEHA(**OPTIONS, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1)  # type: ignore[arg-type]
    assert list(map(str, joint.roles(2))) == ["x-lower", "x-upper-0", "x-upper-1"]
    assert joint.oracles(2)["upper_gradients"] == 2


def test_between_steps_of_x_theta_is_trained_and_y_carried_along() -> None:
    alpha, beta, depth = 0.05, 0.6, 2

    def slope(theta: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lower, argnums=1)(X, theta)

    y, theta, average = Y, Y + 0.4, torch.zeros_like(Y)
    for _ in range(depth):
        average = beta * average + (1 - beta) * slope(theta)
        y, theta = y - alpha * average, theta - alpha * average
    torch.testing.assert_close(theta - y, torch.full_like(Y, 0.4))

    def gap(x: torch.Tensor, y: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
        stch = torch.logsumexp(0.5 * weights * upper(x, y), 0) / 0.5
        apart = ((y - theta) ** 2).sum() / (2 * 3.0)
        return stch / 2.0 + lower(x, y) - lower(x, theta) - apart

    d_x, d_y, d_theta = torch.func.grad(gap, argnums=(0, 1, 2))(X, y, theta)
    y = y - alpha * (beta * average + (1 - beta) * d_y)
    theta = theta - alpha * (beta * average - (1 - beta) * d_theta)
    found = moved(JointMBMOMEHA, alpha, beta=beta, lower_steps=depth)
    torch.testing.assert_close(found["x"], (1 - beta) * d_x)
    torch.testing.assert_close(found["y"], (Y - y) / alpha)
    torch.testing.assert_close(found["theta"], (Y + 0.4 - theta) / alpha)


def test_each_step_of_the_weights_alone_has_a_draw_and_a_gradient() -> None:
    joint = JointMBMOMEHA(**OPTIONS, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, lower_steps=2)  # type: ignore[arg-type]
    assert list(map(str, joint.roles(1))) == ["y-lower-0", "y-lower-1", "x-lower", "x-upper-0"]
    assert joint.oracles(2)["lower_gradients"] == 4
    with pytest.raises(InvalidInput, match="lower_steps"):
        JointMBMOMEHA(**OPTIONS, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, lower_steps=-1)  # type: ignore[arg-type]
