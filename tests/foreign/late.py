"""Problems that were written after the rules, and on which none was made since; their figures are
reported apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.foreign.problems import F64, Case, _joined, _newton_minimum, _stream, _swept, _tensor
from torch import Tensor

import bipareto as bp

__all__ = ["LATE"]


def _on_a_grid(values: Callable[[Tensor], Tensor], low: Any, high: Any, n: int) -> Tensor:
    """The points of a grid over two variables that no other dominates (count, m); `values` takes
    all of it at once.
    """
    sides = [torch.linspace(a, b, n, dtype=F64) for a, b in zip(low, high, strict=True)]
    f = values(torch.cartesian_prod(*sides))
    f = f[f.sum(1).argsort()]  # what dominates a point has the smaller sum, so it comes before it
    kept = f[:1]
    for row in f[1:]:
        if not bool((kept <= row).all(1).any()):
            kept = torch.cat([kept, row[None]])
    return kept


def kernel_width() -> Case:
    """The log-width of kernel ridge regression in its dual form, judged on a smooth and on a rough
    half of the line, from a start in the valley that holds the front (f_1 has another).
    """
    draw = _stream(71)
    s = _tensor(draw.uniform(-1, 1, size=24))
    held = [_tensor(draw.uniform(-1, 0, size=20)), _tensor(draw.uniform(0, 1, size=20))]

    def curve(v: Tensor) -> Tensor:
        return torch.sin(2 * v) + torch.where(v > 0, torch.sin(12 * v), torch.zeros_like(v))

    t = curve(s) + 0.2 * _tensor(draw.normal(size=24))

    def kernel(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((a[:, None] - b[None]) * torch.exp(-x[0])) ** 2)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(kernel(v, s, x) @ y - curve(v)).square().mean() for v in held])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * y @ (kernel(s, s, x) @ y) + 0.05 * y.square().sum() - t @ y

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64).reshape(1)
        return upper(x, torch.linalg.solve(kernel(s, s, x) + 0.1 * torch.eye(24, dtype=F64), t))

    start = torch.tensor([-1.6], dtype=F64)
    truth = _swept(values, -4, 1, 5001)
    return Case(bp.Problem(upper, lower), start, torch.zeros(24, dtype=F64), values, truth)


def shared_weights() -> Case:
    """Log cosh regression of three groups; x weighs two of them against the third, and each group's
    error is an objective: three objectives, a lower level without a closed form.
    """
    draw = _stream(72)
    X = _tensor(draw.normal(size=(3, 20, 2)))
    slopes = _tensor(draw.normal(size=(3, 2)))
    t = torch.einsum("gij,gj->gi", X, slopes) + 0.2 * _tensor(draw.normal(size=(3, 20)))

    def losses(y: Tensor) -> Tensor:
        r = torch.einsum("gij,...j->...gi", X, y) - t
        return (r + torch.nn.functional.softplus(-2 * r)).mean(-1)  # log cosh r + log 2

    def weights(x: Tensor) -> Tensor:
        return torch.softmax(torch.cat([x, torch.zeros_like(x[..., :1])], -1), -1)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return losses(y) + 1e-3 * x.square().sum(-1, keepdim=True)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return weights(x) @ losses(y) + 1e-3 * y.square().sum()

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        w, y = weights(x) / 20, torch.zeros_like(x)
        eye = torch.eye(2, dtype=F64)
        for _ in range(60):  # damped: the curvature of log cosh lies between 0 and 1
            r = torch.tanh(torch.einsum("gij,...j->...gi", X, y) - t)
            slope = torch.einsum("...g,gij,...gi->...j", w, X, r) + 2e-3 * y
            bend = torch.einsum("...g,gij,gik,...gi->...jk", w, X, X, 1 - r * r) + 2e-3 * eye
            step = torch.linalg.solve(bend, slope)
            y = y - step / (1 + step.norm(dim=-1, keepdim=True))
        for _ in range(5):
            r = torch.tanh(torch.einsum("gij,...j->...gi", X, y) - t)
            slope = torch.einsum("...g,gij,...gi->...j", w, X, r) + 2e-3 * y
            bend = torch.einsum("...g,gij,gik,...gi->...jk", w, X, X, 1 - r * r) + 2e-3 * eye
            y = y - torch.linalg.solve(bend, slope)
        return upper(x, y)

    truth = _on_a_grid(values, (-6.0, -6.0), (6.0, 6.0), 61)
    zero = torch.zeros(2, dtype=F64)
    return Case(bp.Problem(upper, lower), zero, zero.clone(), values, truth)


def thermostat() -> Case:
    """A heater's two settings in watts and in seconds, a room that answers in kelvin; cost in cents
    against discomfort, units as they come, and a large constant in one objective.
    """

    outside = torch.tensor([275.0, 281.0], dtype=F64)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        watts, seconds = x[..., 0], x[..., 1]
        cost = 2e-3 * watts + 1e-3 * (seconds - 600).square() / 600 + 5e4
        return torch.stack([cost, (y - 293).square().sum(-1) / 2], -1)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        # Radiation and a wall: gain minus loss is the slope of a convex potential of y.
        heat = x[0] * torch.tanh(x[1] / 600)
        radiated = 5.67e-8 * (y**5 / 5 - outside**4 * y)
        return (radiated + 20 * (y - outside).square() - heat * y).sum()

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        heat = (x[..., 0] * torch.tanh(x[..., 1] / 600))[..., None]
        y = outside.expand_as(x).clone()
        for _ in range(30):
            slope = 5.67e-8 * (y**4 - outside**4) + 40 * (y - outside) - heat
            y = y - slope / (5.67e-8 * 4 * y**3 + 40)
        return upper(x, y)

    # Cost alone would fall without end: a little of the discomfort in it ends the front.
    def both(x: Tensor, y: Tensor) -> Tensor:
        return _mixed(upper(x, y))

    # Discomfort depends on the heat w tanh(s/600) alone: for each heat the cheapest s is taken.
    heat = torch.linspace(0, 1000, 4001, dtype=F64)
    seconds = torch.linspace(300, 2000, 6801, dtype=F64)
    share = torch.tanh(seconds / 600)
    cheapest = (2e-3 * heat[:, None] / share + 1e-3 * (seconds - 600).square() / 600).argmin(1)
    rows = _mixed(values(torch.stack([heat / share[cheapest], seconds[cheapest]], 1)))
    truth = rows[int(rows[:, 0].argmin()) : int(rows[:, 1].argmin()) + 1]
    return Case(
        bp.Problem(both, lower),
        torch.tensor([300.0, 400.0], dtype=F64),
        torch.tensor([280.0, 285.0], dtype=F64),
        lambda x: _mixed(values(x)),
        truth,
    )


def counts() -> Case:
    """Poisson regression: a log-strength of the penalty and a log-weight of one of two sites, each
    site's own deviance an objective; g's curvature in y grows like e^x and like e^y.
    """
    draw = _stream(73)
    X = _tensor(draw.normal(size=(2, 30, 3)))
    slopes = _tensor([[1.0, 0.5, 0.0], [-0.5, 1.0, 0.8]])
    t, held = (
        _tensor(draw.poisson(torch.einsum("gij,gj->gi", X, slopes).exp().numpy())) for _ in range(2)
    )

    def deviance(y: Tensor, seen: Tensor) -> Tensor:
        rate = X @ y
        return (rate.exp() - seen * rate).mean(-1)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return deviance(y, held) + 1e-3 * x.square().sum()

    def lower(x: Tensor, y: Tensor) -> Tensor:
        weight = torch.stack([torch.exp(x[1]), torch.ones_like(x[1])])
        return weight @ deviance(y, t) + torch.exp(x[0]) * y.square().sum()

    def solved(x: Tensor) -> Tensor:
        return torch.func.vmap(upper)(x, _newton_minimum(lower, x, torch.zeros(3, dtype=F64)))

    truth = _on_a_grid(solved, (-9.0, -5.0), (0.0, 5.0), 51)
    zero = torch.zeros(2, dtype=F64)

    def values(x: Any) -> Tensor:
        return solved(torch.as_tensor(x, dtype=F64)[None])[0]

    return Case(
        bp.Problem(upper, lower), zero, torch.zeros(3, dtype=F64), values,
        _joined(truth[truth[:, 0].argsort()]),
    )  # fmt: skip


def _mixed(f: Tensor) -> Tensor:
    return torch.stack([f[..., 0] + 0.02 * f[..., 1], f[..., 1]], -1)


#: name -> maker
LATE: dict[str, Callable[[], Case]] = {
    maker.__name__: maker for maker in (kernel_width, shared_weights, thermostat, counts)
}
