"""FORUM against its equations written out with a general solver, and on the quadratic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods import FORUM
from helpers import nonconvex
from methods.quadratic import QUADRATIC, run


def paper_weights(F: Tensor, q: Tensor, rho: float) -> Tensor:
    """The quadratic program in (lam, nu) as the paper states it, by a general-purpose solver."""
    phi, qq = 0.5 * rho * float(q @ q), float(q @ q)
    pi = ((2 * phi - F @ q) / qq).numpy()
    f, normal, m = F.numpy(), q.numpy(), F.shape[0]

    def objective(z: np.ndarray) -> float:
        return 0.5 * float(np.square(z[:m] @ f + z[m] * normal).sum()) - z[m] * phi

    def gradient(z: np.ndarray) -> np.ndarray:
        r = z[:m] @ f + z[m] * normal
        return np.append(f @ r, normal @ r - phi)

    best = minimize(
        objective,
        np.append(np.full(m, 1 / m), max(pi.max(), 0.0)),
        jac=gradient,
        method="SLSQP",
        bounds=[(0, None)] * (m + 1),
        constraints=[
            {"type": "eq", "fun": lambda z: z[:m].sum() - 1},
            {"type": "ineq", "fun": lambda z: z[m] - z[:m] @ pi},
        ],
        options={"ftol": 1e-16, "maxiter": 500},
    )
    return torch.from_numpy(best.x[:m])


@pytest.mark.parametrize("normalize", [False, True])
def test_equations_line_by_line(normalize: bool) -> None:
    problem, x, y = nonconvex(m=3)
    method = FORUM(alpha_x=0.05, alpha_y=0.03, inner_steps=4, eta=0.1, rho=0.4, normalize=normalize)
    state = method.init(problem, x, y)
    average = torch.zeros(3, dtype=x.dtype)
    for k in range(6):
        state, info = method.step(problem, state)
        follower = y
        for _ in range(4):
            follower = follower - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, follower)
        g_x, g_y = torch.func.grad(problem.lower, argnums=(0, 1))(x, y)
        q = torch.cat([g_x - torch.func.grad(problem.lower)(x, follower), g_y])
        F = torch.cat(torch.func.jacrev(problem.upper, argnums=(0, 1))(x, y), dim=1)
        F = F / F.norm(dim=1, keepdim=True) if normalize else F
        beta = (1 + k) ** -0.75
        average = (1 - beta) * average + beta * paper_weights(F, q, 0.4)
        torch.testing.assert_close(info["weights"], average, rtol=1e-4, atol=1e-5)
        average = info["weights"]
        nu = (average @ (0.4 - F @ q / (q @ q))).clamp_min(0)
        direction = average @ F + nu * q
        torch.testing.assert_close(info["gap"], problem.lower(x, y) - problem.lower(x, follower))
        x, y = x - 0.05 * direction[:3], y - 0.03 * direction[3:]
        torch.testing.assert_close((state.x, state.y), (x, y), rtol=1e-9, atol=1e-10)


def test_the_violation_falls_at_the_rate_rho() -> None:
    """<q, d> = -rho ||q||^2 wherever nu > 0, with the weights of this step alone."""
    problem, x, y = nonconvex(m=3)
    method = FORUM(alpha_x=1.0, alpha_y=1.0, inner_steps=5, eta=0.1, rho=0.4, beta=1.0)
    state, _ = method.step(problem, method.init(problem, x, y))
    follower = y
    for _ in range(5):
        follower = follower - 0.1 * torch.func.grad(problem.lower, argnums=1)(x, follower)
    g_x, g_y = torch.func.grad(problem.lower, argnums=(0, 1))(x, y)
    q = torch.cat([g_x - torch.func.grad(problem.lower)(x, follower), g_y])
    d = torch.cat([state.x - x, state.y - y])
    assert q @ d <= -0.4 * q @ q + 1e-10


def test_it_reaches_the_front_of_the_quadratic() -> None:
    found = run(FORUM.tuned(QUADRATIC, QUADRATIC.x0, QUADRATIC.y0), 300)
    assert found.distance < 1e-2
    assert found.info["gap"] < 1e-3
    assert (
        run(FORUM(alpha_x=0.05, alpha_y=0.05, inner_steps=10, eta=0.3, rho=0.5), 200).distance
        < 1e-2
    )


def test_a_solved_lower_level_is_no_division_by_zero() -> None:
    x = QUADRATIC.x0
    state, info = FORUM().step(QUADRATIC, FORUM().init(QUADRATIC, x, QUADRATIC.lower_solution(x)))
    assert torch.isfinite(state.x).all()
    assert torch.isfinite(state.y).all()
    assert info["weights_slack"] < 1e-9


def test_bad_numbers_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"rho = 0"):
        FORUM(rho=0.0)
