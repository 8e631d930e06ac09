"""Hessians from what is known of them are those that are written down, in any units, with as few
products as their structure asks for; where a loss turns out to be another, they still are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.remaining import remaining
from bipareto.methods.tuning import functions, hessians, local
from bipareto.problem import tree

DOUBLE = torch.float64
N = 6
STREAM = torch.Generator().manual_seed(3)
A, B, R = (torch.randn(N, N, generator=STREAM, dtype=DOUBLE) for _ in range(3))
R = torch.linalg.qr(R).Q
S = A.T @ A + torch.eye(N, dtype=DOUBLE)
Lower = Callable[[Tensor, Tensor], Tensor]


def curved(u: Tensor) -> Tensor:
    """A sum of functions of one coordinate each."""
    return (u.square() + torch.cosh(0.3 * u)).sum()


def smooth(x: Tensor, y: Tensor) -> Tensor:
    """Nothing about its Hessian is constant or sparse."""
    return y @ S @ y + torch.cosh(0.2 * (y @ B @ x)) + (1 + y.square().sum()) ** 1.5


#: g of x and y in R^6, and with how many products its columns of y are found, the check among them
LOWERS: dict[str, tuple[Lower, int | None]] = {
    "quadratic": (lambda x, y: (y - x) @ S @ (y - x), 1),
    "weights": (lambda x, y: (A @ y - 1).square().sum() + (x.exp() * y.square()).sum(), 2),
    "separable": (lambda x, y: curved(y - x), 2),
    "of y - W x": (lambda x, y: curved(y - B @ x), 2),
    "in own coordinates": (lambda x, y: curved(R @ (y - B @ x)), 2),
    "skew coordinates": (lambda x, y: curved(S @ y + B @ x), 2),
    "one weight": (lambda x, y: (A @ y - 1).square().sum() + x[0].exp() * y.square().sum(), 3),
    "chain": (lambda x, y: curved(y - x) + curved(y[1:] - y[:-1]), 4),
    "smooth": (smooth, None),
}


def upper(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(x - 1).square().sum() + y.square().sum(), (x + 1).square().sum() - y[0]])


def places(count: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(7)
    x, y = (torch.randn(count, N, generator=stream, dtype=DOUBLE) for _ in range(2))
    return 0.5 * x, 0.5 * y


def learned(problem: bp.Problem) -> local.Kept:
    x = torch.full((1, N), 0.1, dtype=DOUBLE)
    return local.learn(problem, x, local.settle(problem, x, 0 * x))


@pytest.mark.parametrize("name", LOWERS)
def test_pictures_are_those_of_hessians_written_down(name: str) -> None:
    lower, products = LOWERS[name]
    problem = bp.Problem(upper, lower)
    kept = learned(problem)
    assert kept.upper is not None
    assert kept.upper.seeds.shape[1] == 1
    assert (kept.lower and kept.lower.seeds.shape[1]) == products
    fast, plain = local.look(problem, *places(4), kept), local.look(problem, *places(4))
    for a, b in zip(fast, plain, strict=True):
        if a is not fast.root:  # its columns may come with either sign
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("other", ["smooth", "chain", "of y - W x"])
@pytest.mark.parametrize("name", ["quadratic", "separable", "in own coordinates", "one weight"])
def test_what_is_not_as_foreseen_is_written_down(name: str, other: str) -> None:
    kept = learned(bp.Problem(upper, LOWERS[name][0]))
    problem = bp.Problem(lambda x, y: upper(x, y).exp(), LOWERS[other][0])
    fast, plain = local.look(problem, *places(3), kept), local.look(problem, *places(3))
    torch.testing.assert_close(fast.g_yy, plain.g_yy, rtol=1e-12, atol=0)
    torch.testing.assert_close(fast.g_yx, plain.g_yx, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(fast.f_yy, plain.f_yy, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", [name for name in LOWERS if name != "smooth"])
def test_units_do_not_hide_what_changes(name: str) -> None:
    lower, products = LOWERS[name]
    units = 10.0 ** torch.linspace(-5, 5, N, dtype=DOUBLE)

    def there(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * units, y / units

    scaled = bp.Problem(
        lambda x, y: upper(*there(x, y)) * 1e6, lambda x, y: lower(*there(x, y)) / 1e9
    )
    x = torch.full((1, N), 0.1, dtype=DOUBLE) / units
    kept = local.learn(scaled, x, local.settle(scaled, x, 0 * x))
    assert kept.lower is not None
    assert kept.lower.seeds.shape[1] == products
    x, y = places(3)
    fast = local.look(scaled, x / units, y * units, kept).g_yy
    plain = local.look(bp.Problem(upper, lower), x, y).g_yy / 1e9
    torch.testing.assert_close(fast * units[:, None] * units, plain, rtol=1e-7, atol=1e-16)


def test_columns_that_share_no_row_are_found_together() -> None:
    ring = torch.eye(9, dtype=torch.bool)
    assert hessians._colours(ring)[1] == 1
    assert hessians._colours(0 * ring.int() > 0)[1] == 0
    band = ring | ring.roll(1, 0) | ring.roll(-1, 0)
    colour, count = hessians._colours(band)
    assert count == 3
    for row in band:
        assert len(set(colour[row].tolist())) == int(row.sum())


@pytest.mark.parametrize("name", ["quadratic", "separable", "smooth"])
def test_what_is_left_to_gain_does_not_depend_on_what_is_remembered(name: str) -> None:
    lower = LOWERS[name][0]
    x, y = places(5)
    one = torch.ones(2, dtype=DOUBLE)
    plain = remaining(bp.Problem(upper, lower), x, y, one)
    told = bp.Problem(upper, lower)
    functions.survey(told, x[0], y[0])
    # What was learned is of another loss, as after a change of what a loss reads.
    misled = bp.Problem(upper, lower)
    functions._KNOWN[misled] = (
        torch.zeros(2 * N, dtype=DOUBLE),
        learned(bp.Problem(upper, LOWERS["weights"][0])),
    )
    assert float(plain.min()) > 0.1
    for problem in (told, misled):
        assert functions.known(problem, x, y).upper is not None
        torch.testing.assert_close(remaining(problem, x, y, one), plain, rtol=1e-8, atol=1e-10)


def test_a_run_begins_with_the_picture_that_tuning_took() -> None:
    """... unless a loss reads something else by then."""
    counts, scale = [0], [1.0]

    def lower(x: Tensor, y: Tensor) -> Tensor:
        counts[0] += 1
        return scale[0] * curved(y - x)

    problem, zero = bp.Problem(upper, lower), torch.zeros(N, dtype=DOUBLE)
    method = bp.MOMEHA.tuned(problem, zero, zero, steps=50)
    counts[0] = 0
    first = method.prepare(problem, zero, zero).coordinates
    kept = counts[0]
    functions._BEGUN.clear()
    counts[0] = 0
    again = method.prepare(problem, zero, zero).coordinates
    assert kept < counts[0]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    scale[0] = 9.0
    changed = method.prepare(problem, zero, zero).coordinates
    torch.testing.assert_close(changed.y, first.y / 9)


def test_renewed_coordinates_do_not_depend_on_what_is_remembered() -> None:
    """A run that goes on in another process meets the same bits."""
    problem = bp.Problem(upper, LOWERS["in own coordinates"][0])
    zero = torch.zeros(N, dtype=DOUBLE)
    method = bp.MOMEHA.tuned(problem, zero, zero, steps=50)
    start = method.prepare(problem, zero, zero)
    state = method.begin(start, [0.3, 0.7])
    state = tree.map_(lambda leaf: leaf[None], state)
    renewed = functions.renew(problem, state)
    functions._KNOWN.clear()
    functions._SEEN.clear()
    again = functions.renew(problem, state)
    for a, b in zip(renewed.coordinates, again.coordinates, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(renewed.coordinates.x, state.coordinates.x)
