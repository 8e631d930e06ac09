from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import (
    batch_norm,
    conv1d,
    dropout,
    max_pool1d,
    scaled_dot_product_attention,
)

from bipareto.methods import MBMOMEHA
from bipareto.problem import Problem, oracle, tree
from bipareto.problem.sampler import Role
from helpers import DICT_PROBLEM, DOUBLE, dict_start, nonconvex


def test_gradients_agree_with_finite_differences() -> None:
    problem, x, y = nonconvex(4)
    found = oracle.grad(lambda v: problem.lower(x, v), y)
    eps = 1e-6
    for i in range(4):
        e = torch.zeros_like(y)
        e[i] = eps
        assert (
            abs(
                float(found[i])
                - float(problem.lower(x, y + e) - problem.lower(x, y - e)) / (2 * eps)
            )
            < 1e-8
        )


def test_the_two_engines_give_the_same_numbers() -> None:
    problem, x, y = nonconvex(4)

    def fn(v: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        f = problem.upper(x, v)
        return f.sum() * problem.lower(x, v), (f,)

    plain, (f,) = oracle.grad_and_aux(fn, y)
    mapped, (g,) = torch.func.vmap(lambda v: oracle.grad_and_aux(fn, v))(y[None])
    torch.testing.assert_close(plain, mapped[0], rtol=1e-14, atol=0)
    assert torch.equal(f, g[0])
    assert not f.requires_grad


def test_rows_under_vmap_have_the_gradients_of_torch_func() -> None:
    """With a leaf that is unused, one batched along its second axis, and a neighbour's batch."""
    stream = torch.Generator().manual_seed(0)
    rows = {
        "a": torch.randn(5, 3, generator=stream, dtype=DOUBLE),
        "b": torch.randn(2, 5, generator=stream, dtype=DOUBLE),
        "unused": torch.ones(5, 1, dtype=DOUBLE),
    }
    other = torch.randn(5, 3, generator=stream, dtype=DOUBLE)

    def fn(v: dict[str, Tensor], w: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        f = torch.sin(v["a"] @ w) * v["b"].prod()
        return f, (f * w,)

    def ours(v: dict[str, Tensor], w: Tensor) -> object:
        return oracle.grad_and_aux(lambda u: fn(u, w), v)

    def theirs(v: dict[str, Tensor], w: Tensor) -> object:
        return torch.func.grad(lambda u: fn(u, w), has_aux=True)(v)

    axes = ({"a": 0, "b": 1, "unused": 0}, 0)
    mine, torchs = (torch.func.vmap(each, in_dims=axes)(rows, other) for each in (ours, theirs))
    for a, b in zip(tree.leaves(mine), tree.leaves(torchs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0)
        assert not a.requires_grad
    none = torch.func.vmap(lambda v: oracle.grad(lambda u: torch.ones((), dtype=DOUBLE), v))
    assert torch.equal(none(other), torch.zeros_like(other))


CONSTANTS = torch.linspace(-1, 1, 60).reshape(3, 5, 4).double()


class _Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * slope


def _in_place(v: Tensor) -> Tensor:
    own = v * 1
    own[0] = own[0] * 2
    return own.add_(v).square().sum()


def _shifted(v: Tensor) -> Tensor:
    with torch.no_grad():
        shift = 2 * v
    return (v * shift).sum() + (v * v.detach()).sum()


def _normalised(v: Tensor) -> Tensor:
    return batch_norm((CONSTANTS * v).flatten(0, 1), None, None, training=True).pow(3).sum()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "jvp": lambda v: torch.func.jvp(lambda u: (u.sin() * v).sum(), (v,), (v.cos(),))[1],
    "grad": lambda v: torch.func.grad(lambda u: (u**3 * v).sum())(2 * v).square().sum(),
    "hessian": lambda v: torch.func.hessian(lambda u: (u**4).sum())(v).sum(),
    "function": lambda v: _Square.apply(v).sum(),  # type: ignore[no-untyped-call]
    "in place": _in_place,
    "no_grad": _shifted,
    "sorted": lambda v: v.sort().values @ torch.arange(4.0).double() + v.max() + v.amin(),
    "branches": lambda v: torch.where(v > 0, v**2, v.exp()).sum() + v[[0, 0, 2]].prod(),
    "linear algebra": lambda v: torch.linalg.solve(torch.eye(4).double() + v * v[:, None], v).sum(),
    "spectrum": lambda v: torch.fft.rfft(v).abs().sum() + torch.linalg.svdvals(v.view(2, 2)).sum(),
    "convolution": lambda v: conv1d(CONSTANTS.mT, v.view(1, 4, 1).expand(2, -1, 1)).relu().sum(),
    "attention": lambda v: scaled_dot_product_attention(CONSTANTS * v, CONSTANTS, CONSTANTS).sum(),
    "normalised": _normalised,
    "pooled": lambda v: max_pool1d((CONSTANTS * v).mT, 2).sum(),
    "drawn": lambda v: dropout(v, 0.5).square().sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("opens", [True, False])
def test_whatever_a_loss_does_rows_have_the_gradients_of_torch_func(
    name: str, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where torch does not let its batches be opened, as a later one may not."""
    if not opens:
        monkeypatch.setattr(oracle, "OPENS", False)
        monkeypatch.setattr(oracle._Batch, "grad", None)
    loss, stream = LOSSES[name], torch.Generator().manual_seed(0)
    rows, other = torch.randn(2, 3, 4, generator=stream, dtype=DOUBLE)

    def slopes(grad: Callable[..., Tensor]) -> Tensor:
        torch.manual_seed(1)

        def one(v: Tensor, w: Tensor) -> Tensor:
            return grad(lambda u: loss(u * w) + (u * w).sum(), v)

        return torch.func.vmap(one, randomness="different")(rows, other)

    mine = slopes(oracle.grad)
    theirs = slopes(lambda fn, v: torch.func.grad(fn)(v))
    torch.testing.assert_close(mine, theirs)


def test_gradients_inside_other_transforms_and_of_variables_keep_their_graph() -> None:
    rows = torch.linspace(-1, 1, 6, dtype=DOUBLE).reshape(3, 2)

    def slope(v: Tensor) -> Tensor:
        return oracle.grad(lambda u: (u**4).sum(), v)

    def total(v: Tensor) -> Tensor:
        return torch.func.vmap(slope)(v).sum()

    torch.testing.assert_close(torch.func.grad(total)(rows), 12 * rows**2)
    twice = torch.func.vmap(torch.func.vmap(lambda v: oracle.grad(lambda u: u**4, v)))(rows)
    torch.testing.assert_close(twice, 4 * rows**3)
    (found,) = torch.autograd.grad(total(variable := rows.clone().requires_grad_()), variable)
    torch.testing.assert_close(found, 12 * rows**2)


def test_unused_leaves_have_gradient_zero() -> None:
    point = {"used": torch.ones(2, dtype=DOUBLE), "unused": torch.ones(3, dtype=DOUBLE)}
    found = oracle.grad(lambda v: v["used"].sum(), point)
    assert torch.equal(found["unused"], torch.zeros(3, dtype=DOUBLE))
    assert torch.equal(
        oracle.grad(lambda v: torch.zeros((), dtype=DOUBLE), point)["used"],
        torch.zeros(2, dtype=DOUBLE),
    )


def test_noise_is_on_every_gradient_coordinate_and_on_no_value() -> None:
    problem, (x, y) = DICT_PROBLEM, dict_start()
    loud = oracle.noisy(problem, 0.1, x, y)
    roles = MBMOMEHA().roles(2)
    samples = []
    for t in range(300):
        batches = {role: loud.sampler(role, t, 0) for role in roles}  # type: ignore[misc]
        assert torch.equal(loud.upper(x, y, batches[Role("upper", "x", 0)]), problem.upper(x, y))
        gradient = oracle.grad(lambda v, b=batches: loud.lower(x, v, b[Role("lower", "theta")]), y)
        exact = oracle.grad(lambda v: problem.lower(x, v), y)
        other = oracle.grad(
            lambda v, b=batches: loud.objective(1, v, y, b[Role("upper", "x", 1)]), x
        )
        exact_other = oracle.grad(lambda v: problem.objective(1, v, y), x)
        samples.append(
            torch.cat(
                [tree.ravel(tree.sub(gradient, exact)), tree.ravel(tree.sub(other, exact_other))]
            )
        )
    noise = torch.stack(samples)
    assert noise.std(0).sub(0.1).abs().max() < 0.02
    assert noise.mean(0).abs().max() < 0.02
    off = torch.corrcoef(noise.T) - torch.eye(noise.shape[1], dtype=DOUBLE)
    assert off.abs().max() < 0.25
    quiet = loud.sampler(Role("lower", "full"), 0, 0)  # type: ignore[misc]
    assert torch.equal(oracle.grad(lambda v: loud.lower(x, v, quiet), y)[0], exact[0])


def test_evaluations_are_counted() -> None:
    problem, x, y = nonconvex(m=3)
    counted = oracle.Counting(problem)
    torch.testing.assert_close(counted.upper(x, y), problem.upper(x, y))
    assert counted.counts == {"upper": 3}
    counted.objective(1, x, y)
    counted.lower(x, y)
    counted.lower(x, y)
    assert counted.counts == {"upper": 4, "lower": 2}


def test_noise_of_a_problem_with_data_keeps_its_draws() -> None:
    """The tilt adds std <xi, v - v0> to a term: nothing to its value, std xi to its gradient."""
    data = torch.arange(4, dtype=DOUBLE)
    inner = Problem(
        lambda x, y, b: torch.stack([(x - b).square().sum(), y.square().sum()]),
        lambda x, y, b: (y - b).square().sum(),
        sampler=lambda role, t, seed: data + t,
    )
    x, y = torch.ones(4, dtype=DOUBLE), torch.zeros(4, dtype=DOUBLE)
    loud = oracle.noisy(inner, 0.5, x, y)
    role = Role("lower", "y")
    drawn = loud.sampler(role, 2, 1)  # type: ignore[misc]
    assert torch.equal(drawn["batch"], data + 2)
    assert torch.equal(loud.lower(x, y, drawn), inner.lower(x, y, data + 2))
    found = oracle.grad(lambda v: loud.lower(x, v, drawn), y)
    torch.testing.assert_close(found, 2 * (y - data - 2) + drawn["y"])
    in_x = oracle.grad(lambda v: loud.lower(v, y, drawn), x)
    torch.testing.assert_close(in_x, drawn["x"])
    again = loud.sampler(role, 2, 1)  # type: ignore[misc]
    assert torch.equal(again["x"], drawn["x"])
    assert not torch.equal(loud.sampler(role, 3, 1)["x"], drawn["x"])  # type: ignore[misc]
