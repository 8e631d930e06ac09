"""Quadratic programs on the simplex against their optimality conditions, closed forms and brute
force.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bipareto.methods.parts import simplex
from helpers import DOUBLE


def rows(m: int, d: int, batch: int = 32, seed: int = 0) -> Tensor:
    """Gradients (batch, m, d) of very different lengths that mostly point one way, so that the
    weights are not trivial.
    """
    stream = torch.Generator().manual_seed(seed)
    lengths = 10 ** (2 * torch.rand(batch, m, 1, generator=stream, dtype=DOUBLE) - 1)
    return lengths * (torch.randn(batch, m, d, generator=stream, dtype=DOUBLE) + 0.3)


def slack(gradient: Tensor, lam: Tensor) -> Tensor:
    """KKT by hand: on the support all partial derivatives equal the smallest one; the largest
    excess, weighted, per problem.
    """
    return ((gradient - gradient.amin(-1, keepdim=True)) * lam).amax(-1)


def assert_on_simplex(lam: Tensor) -> None:
    assert (lam >= 0).all()
    torch.testing.assert_close(lam.sum(-1), torch.ones_like(lam[..., 0]))


@given(st.integers(0, 1000), st.integers(1, 12), st.floats(-3, 3))
def test_projection(seed: int, m: int, shift: float) -> None:
    v = 2 * torch.randn(m, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) + shift
    lam = simplex.project(v)
    assert_on_simplex(lam)
    assert slack(lam - v, lam) < 1e-12
    torch.testing.assert_close(simplex.project(lam), lam)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 6, 8, 9, 20])
@pytest.mark.parametrize("d", [1, 2, 50])
@pytest.mark.parametrize("linear", [False, True])
def test_quadratic_satisfies_kkt(m: int, d: int, scale: float, linear: bool) -> None:
    """Also with fewer coordinates than objectives, where the Gram matrix is singular."""
    g = rows(m, d)
    gram = scale * g @ g.mT
    b = (
        scale * torch.randn(32, m, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
        if linear
        else None
    )
    found = simplex.quadratic(gram, b)
    assert_on_simplex(found.weights)
    gradient = 2 * (gram @ found.weights.unsqueeze(-1)).squeeze(-1) - (0 if b is None else b)
    size = gram.abs().amax((-2, -1))
    assert (slack(gradient, found.weights) <= 1e-9 * size).all()
    assert (found.slack <= 1e-9).all()
    if d >= m:
        # One minimiser: whatever the scale, the same question has the same answer.
        torch.testing.assert_close(
            found.weights,
            simplex.quadratic(gram / scale, None if b is None else b / scale).weights,
            rtol=1e-6,
            atol=1e-8,
        )


@pytest.mark.parametrize(
    "kind", ["equal", "opposite", "zero", "one zero", "nearly equal", "parallel"]
)
@pytest.mark.parametrize("m", [2, 5, 9])
def test_degenerate_gradients(kind: str, m: int) -> None:
    g = rows(1, 10)[0].expand(m, -1).clone()
    noise = torch.randn(m, 10, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    g = {
        "equal": g,
        "opposite": torch.cat([g[:1], -g[1:]]),
        "zero": 0 * g,
        "one zero": torch.cat([noise[1:], 0 * noise[:1]]),
        "nearly equal": g + 1e-9 * noise,
        "parallel": torch.arange(1, m + 1, dtype=DOUBLE)[:, None] * g,
    }[kind]
    found = simplex.quadratic(g @ g.T)
    assert_on_simplex(found.weights)
    size = max(float(g.square().sum(1).max()), 1e-300)
    assert slack(2 * g @ (found.weights @ g), found.weights) <= 1e-9 * size
    if kind in ("opposite", "one zero", "zero"):
        assert (found.weights @ g).norm() <= 1e-6 * size**0.5


def test_two_gradients_have_a_closed_form() -> None:
    g = rows(2, 5)
    a, b = g.unbind(1)
    first = (((b - a) * b).sum(-1) / (a - b).square().sum(-1)).clamp(0, 1)
    torch.testing.assert_close(
        simplex.quadratic(g @ g.mT).weights,
        torch.stack([first, 1 - first], dim=-1),
        rtol=1e-10,
        atol=1e-12,
    )


def test_tiny_weights_of_long_gradients_are_kept() -> None:
    g = torch.diag(torch.tensor([1e5, 1.0, 1e5], dtype=DOUBLE))
    inverse = 1 / g.diagonal().square()
    torch.testing.assert_close(
        simplex.quadratic(g @ g.T).weights, inverse / inverse.sum(), rtol=1e-5, atol=1e-15
    )


def test_batches_vmap_and_compilation_agree() -> None:
    g = rows(4, 7)
    gram, along, level = g @ g.mT, g[..., 0], g[..., 1].abs().amax(-1)
    for fn, arguments in ((simplex.quadratic, (gram,)), (simplex.kinked, (gram, along, level))):
        expected = fn(*arguments)
        torch._dynamo.reset()
        for other in (torch.func.vmap(fn), torch.compile(fn, backend="aot_eager", fullgraph=True)):
            torch.testing.assert_close(other(*arguments), expected, rtol=1e-12, atol=1e-14)


def test_single_precision_is_as_good_as_its_rounding() -> None:
    for m in (3, 8, 12):
        g = rows(m, 20).float()
        found = simplex.quadratic(g @ g.mT)
        assert (found.slack < 1e-5 * m).all()
        assert_on_simplex(found.weights)


def test_projected_steps_approach_the_exact_weights_and_report_how_near() -> None:
    g = rows(3, 5)[0]
    g = g / g.norm(dim=1, keepdim=True)
    start, zero = torch.full((3,), 1 / 3, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE)
    one_step = simplex.projected_steps(g @ g.T, zero, start, 1, 0.1).weights
    torch.testing.assert_close(one_step, simplex.project(start - 0.2 * g @ (start @ g)))
    few, many = (simplex.projected_steps(g @ g.T, zero, start, steps, 0.1) for steps in (4, 2000))
    assert few.slack > 1e-3
    assert many.slack < 1e-9
    torch.testing.assert_close(
        many.weights, simplex.quadratic(g @ g.T).weights, rtol=1e-6, atol=1e-6
    )


def forum_objective(lam: Tensor, F: Tensor, q: Tensor, rho: float) -> Tensor:
    """FORUM's objective as its paper writes it, with nu at its bound; lam (..., m)."""
    qq = q @ q
    nu = (lam @ (rho - F @ q / qq)).clamp_min(0)
    return 0.5 * (lam @ F + nu.unsqueeze(-1) * q).square().sum(-1) - 0.5 * nu * rho * qq


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_kinked_is_forum_s_problem(size: float) -> None:
    """Against a grid, in cases above, below and on the kink."""
    share = torch.linspace(0, 1, 101, dtype=DOUBLE)
    grid = torch.cartesian_prod(share, share)
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], dim=1)
    grid = grid[grid[:, 2] >= -1e-12]
    seen = set()
    for seed in range(250):
        stream = torch.Generator().manual_seed(seed)
        F = torch.randn(3, 4, generator=stream, dtype=DOUBLE)
        q = size * torch.randn(4, generator=stream, dtype=DOUBLE)
        # Small violations come with a large rho here, so that all three cases occur.
        rho = float(torch.rand((), generator=stream, dtype=DOUBLE)) / size
        along, level = F @ q / q.norm(), rho * q.norm()
        found = simplex.kinked(F @ F.T, along, level)
        assert found.slack < 1e-9
        best = forum_objective(found.weights, F, q, rho)
        assert best <= forum_objective(grid, F, q, rho).min() + 1e-10
        position = float(found.weights @ along - level)
        seen.add("on" if abs(position) < 1e-9 else "above" if position > 0 else "below")
    assert seen == {"on", "above", "below"}


@pytest.mark.parametrize("d", [1, 2, 12])
@pytest.mark.parametrize("m", [2, 4, 8, 9, 15])
def test_kinked_is_solved_for_any_shape(m: int, d: int) -> None:
    F = rows(m, d, batch=16)
    q = torch.randn(16, d, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    along = (F @ (q / q.norm(dim=-1, keepdim=True)).unsqueeze(-1)).squeeze(-1)
    found = simplex.kinked(F @ F.mT, along, q.norm(dim=-1))
    assert_on_simplex(found.weights)
    assert (found.slack < 1e-9).all()


def test_kinked_without_violation_is_min_norm() -> None:
    F = rows(3, 6)
    zero = torch.zeros(32, dtype=DOUBLE)
    torch.testing.assert_close(
        simplex.kinked(F @ F.mT, zero.unsqueeze(-1).expand(32, 3), zero).weights,
        simplex.quadratic(F @ F.mT).weights,
    )


def newton_path(
    Q: Tensor, q: Tensor, E: Tensor, e: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """The interior-point iteration as one dense system per step: complementarity aims at a tenth of
    its mean, steps end 5 % before the boundary.
    """
    scale = max(float(Q.abs().max()), float(q.abs().max()))
    Q, q, n, k = Q / scale, q / scale, len(q), len(e)
    z, s, dual = torch.full_like(q, 1 / n), torch.ones_like(q), torch.zeros_like(e)
    for _ in range(iterations):
        zero = torch.zeros(k, k, dtype=DOUBLE), torch.zeros(k, n, dtype=DOUBLE)
        system = torch.cat(
            [
                torch.cat([Q, -E.T, -torch.eye(n, dtype=DOUBLE)], 1),
                torch.cat([E, *zero], 1),
                torch.cat([torch.diag(s), zero[1].T, torch.diag(z)], 1),
            ]
        )
        off = torch.cat([s + E.T @ dual - q - Q @ z, e - E @ z, 0.1 * (z @ s / n) - z * s])
        d_z, d_dual, d_s = torch.linalg.solve(system, off).split([n, k, n])
        room = [-v / d for v, d in zip((*z, *s), (*d_z, *d_s), strict=True) if d < 0]
        step = min(1.0, 0.95 * float(min(room))) if room else 1.0
        z, s, dual = z + step * d_z, s + step * d_s, dual + step * d_dual
    return z / z.sum(), dual * scale


@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize("size", [0.01, 100.0])
def test_interior_points_follow_newton_s_path(
    monkeypatch: pytest.MonkeyPatch, iterations: int, size: float
) -> None:
    monkeypatch.setattr(simplex, "INTERIOR_ITERATIONS", iterations)
    stream = torch.Generator().manual_seed(7)
    G = torch.randn(2, 5, 6, generator=stream, dtype=DOUBLE)
    Q = size * G @ G.mT
    q = torch.randn(2, 5, generator=stream, dtype=DOUBLE)
    E = torch.stack([torch.ones(2, 5, dtype=DOUBLE), torch.rand(2, 5, generator=stream).double()])
    E = E.transpose(0, 1)
    e = torch.tensor([[1.0, 0.4], [1.0, 0.6]], dtype=DOUBLE)
    found = simplex._interior_point(Q, q, E, e)
    for i in range(2):
        wanted = newton_path(Q[i], q[i], E[i], e[i], iterations)
        torch.testing.assert_close((found[0][i], found[1][i]), wanted, rtol=1e-8, atol=1e-10)


def test_a_point_that_has_converged_stays() -> None:
    """More iterations than are needed change nothing."""
    G = rows(9, 9, batch=1)[0]
    ones = torch.ones(1, 9, dtype=DOUBLE)
    zero = torch.zeros(9, dtype=DOUBLE)
    z, dual = simplex._interior_point(G @ G.T, zero, ones, ones[:, 0])
    exact = simplex.quadratic(G @ G.T / 2).weights
    torch.testing.assert_close(z, exact, rtol=1e-6, atol=1e-9)
    # min z'Qz/2 has the multiplier z'Qz of sum z = 1.
    assert float(dual[0]) == pytest.approx(float(z @ G @ G.T @ z), rel=1e-6)


def test_the_slack_is_the_gap_over_the_size_of_the_problem() -> None:
    G, b = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=DOUBLE), torch.tensor([0.5, 9.0])
    lam = torch.tensor([0.25, 0.75], dtype=DOUBLE)
    gradient = 2 * G @ lam - b
    gap = float(lam @ gradient - gradient.min())
    # The size: G's largest entry, or the linear term's once a shift is taken out.
    assert float(simplex.quadratic_slack(G, b.double(), lam)) == pytest.approx(gap / 8.5)
    small = torch.tensor([0.5, 1.0], dtype=DOUBLE)
    gradient = 2 * G @ lam - small
    gap = float(lam @ gradient - gradient.min())
    assert float(simplex.quadratic_slack(G, small, lam)) == pytest.approx(gap / 4)
    steps = simplex.projected_steps(G, small, lam, 0, 0.1)
    assert float(steps.slack) == pytest.approx(gap / 4)
    assert torch.equal(steps.weights, lam)


def test_weights_with_a_linear_term_in_closed_form() -> None:
    """Two weights: lam = (t, 1 - t) minimises a parabola in t, cut to [0, 1]."""
    stream = torch.Generator().manual_seed(3)
    for _ in range(20):
        g = torch.randn(2, 3, generator=stream, dtype=DOUBLE)
        b = 2 * torch.randn(2, generator=stream, dtype=DOUBLE)
        G = g @ g.T
        bend = 2 * (G[0, 0] - 2 * G[0, 1] + G[1, 1])
        t = (2 * (G[1, 1] - G[0, 1]) + b[0] - b[1]) / bend
        found = simplex.quadratic(G, b + 5).weights
        assert float(found[0]) == pytest.approx(float(t.clamp(0, 1)), abs=1e-9)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_faces_are_all_subsets_with_their_first_member_apart(m: int) -> None:
    faces = simplex._build_faces(m, DOUBLE, torch.device("cpu"))
    seen = set()
    for reference, inner, member, outside in zip(
        faces.reference, faces.inner, faces.member, faces.outside, strict=True
    ):
        first = int(reference.argmax())
        assert reference.tolist() == [float(i == first) for i in range(m)]
        others = [i + 1 for i in range(m - 1) if inner[i]]
        assert set(inner.tolist()) <= {0.0, 1.0}
        assert all(i > first for i in others)
        torch.testing.assert_close(member, torch.outer(inner, inner))
        torch.testing.assert_close(outside, torch.diag(1 - inner))
        seen.add((first, *others))
    assert len(seen) == 2**m - 1
