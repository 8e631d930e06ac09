"""Problems of other people's kind, each with its true front, on which no rule of this library was
made.

A case is a problem as a user would write it, a start, and the truth by independent means: `reduced`
gives the objectives at x with the lower level solved in closed form or by a dense method, `truth` a
dense sample of the front.  Nothing here uses the library's solvers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bipareto as bp

__all__ = ["CASES", "Case", "coverage", "distance"]

F64 = torch.float64


@dataclass(frozen=True)
class Case:
    """A problem, its start, and what is true of it.

    reduced: x -> f(x, y*(x)) in float64, shape (m,).
    truth: points of the front (n, m), dense; its ends are the front's ends.
    supported: for convex problems, weights (m,) -> f at the minimiser of their sum, exact: more
        than two objectives have fronts that no sample is dense on.
    """

    problem: bp.Problem
    x0: Any
    y0: Any
    reduced: Callable[[Any], Tensor]
    truth: Tensor
    supported: Callable[[Any], Any] | None = None

    def distance(self, objectives: Tensor) -> Tensor:
        """As `distance`; with more than two objectives to the front itself, not to a sample."""
        if self.supported is None or self.truth.shape[1] == 2:
            return distance(objectives, self.truth)
        extent = (self.truth.amax(0) - self.truth.amin(0)).numpy()
        return _tensor([_dominated(row, extent, self.supported) for row in objectives.numpy()])


def distance(objectives: Tensor, truth: Tensor) -> Tensor:
    """By how much each point (R, m) is dominated by the front, in units of the front's extent,
    shape (R,).

    The additive epsilon indicator min over the front of max_i (f_i - front_i)/extent_i, never below
    zero.
    """
    extent = truth.amax(0) - truth.amin(0)
    gaps = (objectives[:, None] - truth[None]) / extent
    return gaps.amax(-1).amin(-1).clamp_min(0).nan_to_num(nan=math.inf)


def _dominated(f: Any, extent: Any, supported: Callable[[Any], Any]) -> float:
    """max over x of min_i (f_i - phi_i(x))/extent_i, by its dual: the maximum over weights v of
    min_x sum_i v_i (phi_i(x) - f_i)/extent_i is minus that.
    """
    from scipy.optimize import minimize

    if not np.isfinite(f).all():
        return math.inf

    def fun(v: Any) -> Any:
        gaps = (supported(np.maximum(v, 1e-9) / extent) - f) / extent
        return -float(v @ gaps), -gaps

    m = len(f)
    found = minimize(
        fun,
        np.full(m, 1 / m),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1, "jac": lambda v: np.ones(m)},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    return max(float(found.fun), 0.0)


def coverage(objectives: Tensor, truth: Tensor) -> Tensor:
    """The share of the front's extent that the points (R, m) span, objective by objective,
    shape (m,).
    """
    low, high = truth.amin(0), truth.amax(0)
    finite = objectives[torch.isfinite(objectives).all(1)]
    if not len(finite):
        return torch.zeros_like(low)
    inside = torch.minimum(torch.maximum(finite, low), high)
    return (inside.amax(0) - inside.amin(0)) / (high - low)


def _stream(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _tensor(values: Any, dtype: torch.dtype = F64) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=dtype)


def _rotation(n: int, seed: int) -> np.ndarray[Any, Any]:
    return np.linalg.qr(_stream(seed).normal(size=(n, n)))[0]


def _weights(m: int, n: int) -> np.ndarray[Any, Any]:
    """Rows on the simplex, corners and edges included."""
    if m == 2:
        # Dense near the corners, where a weighted sum of curved objectives moves fastest.
        s = np.sin(np.linspace(0, np.pi / 2, n)) ** 2
        return np.stack([1 - s, s], 1)
    rows = _stream(0).dirichlet([0.5] * m, size=n)
    return np.concatenate([np.eye(m), rows])


# -- quadratics


def _quadratic(
    A: Any,
    b: Any,
    H: Any,
    centres_x: Any,
    centres_y: Any,
    weights_x: Any,
    scales: Any,
    offsets: Any,
    x0: Any,
    y0: Any,
    lower_scale: float = 1.0,
    dtype: torch.dtype = F64,
) -> Case:
    """g = s (y - A x - b)' H (y - A x - b)/2, f_i = a_i (sum_j d_j (x - p_i)_j^2 + |y - q_i|^2)/2 +
    o_i, all convex.

    The minimisers of sum_i lambda_i f_i(x, A x + b) over the simplex are the whole front.
    """
    A, b, H, P, Q, d = (
        np.asarray(v, dtype=float) for v in (A, b, H, centres_x, centres_y, weights_x)
    )
    scales, offsets = np.asarray(scales, dtype=float), np.asarray(offsets, dtype=float)
    m = len(scales)
    tA, tb, tH, tP, tQ, td, ts, to = (
        _tensor(v, dtype) for v in (A, b, H, P, Q, d, scales, offsets)
    )

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return ts * ((td * (x - tP) ** 2).sum(1) + ((y - tQ) ** 2).sum(1)) / 2 + to

    def lower(x: Tensor, y: Tensor) -> Tensor:
        r = y - tA @ x - tb
        return lower_scale * (r @ (tH @ r)) / 2

    def values(x: Any) -> Any:
        y = A @ x + b
        return scales * ((d * (x - P) ** 2).sum(1) + ((y - Q) ** 2).sum(1)) / 2 + offsets

    def best(v: Any) -> Any:
        left = v.sum() * (np.diag(d) + A.T @ A)
        right = (v[:, None] * (d * P + (Q - b) @ A)).sum(0)
        return np.linalg.solve(left, right)

    truth = np.stack([values(best(w)) for w in _weights(m, 2001 if m == 2 else 20_000)])
    return Case(
        bp.Problem(upper=upper, lower=lower),
        _tensor(x0, dtype),
        _tensor(y0, dtype),
        lambda x: _tensor(values(np.asarray(x, dtype=float))),
        _tensor(truth),
        lambda v: values(best(np.asarray(v, dtype=float))),
    )


def _random_quadratic(n_x: int, n_y: int, m: int, seed: int, **changes: Any) -> Case:
    draw = _stream(seed)
    R = _rotation(n_y, seed + 1)
    condition = changes.pop("condition", 10.0)
    arguments = {
        "A": draw.normal(size=(n_y, n_x)) / math.sqrt(n_x),
        "b": draw.normal(size=n_y),
        "H": R @ np.diag(np.logspace(0, math.log10(condition), n_y)) @ R.T,
        "centres_x": draw.normal(size=(m, n_x)),
        "centres_y": draw.normal(size=(m, n_y)),
        "weights_x": np.ones(n_x),
        "scales": np.ones(m),
        "offsets": np.ones(m),
        "x0": np.zeros(n_x),
        "y0": np.zeros(n_y),
    } | changes
    return _quadratic(**arguments)


def units_of_x() -> Case:
    """x measured in units that differ by 10 : 1 : 1 : 0.1."""
    return _in_units(_random_quadratic(4, 5, 2, 31), np.array([10.0, 1.0, 1.0, 0.1]), None)


def units_of_y() -> Case:
    """y measured in units that differ by 1e3 : 1 : 1e-3, x in millions."""
    return _in_units(_random_quadratic(2, 3, 2, 32), np.full(2, 1e6), np.array([1e3, 1.0, 1e-3]))


def _in_units(case: Case, unit_x: Any, unit_y: Any) -> Case:
    """The same problem in x' = unit_x x, y' = unit_y y."""
    ux = _tensor(unit_x)
    uy = torch.ones_like(case.y0) if unit_y is None else _tensor(unit_y)
    problem = bp.Problem(
        upper=lambda x, y: case.problem.upper(x / ux, y / uy),
        lower=lambda x, y: case.problem.lower(x / ux, y / uy),
    )
    return Case(problem, case.x0 * ux, case.y0 * uy, lambda x: case.reduced(x / ux), case.truth)


def units_of_objectives() -> Case:
    """Objectives whose units differ by 100 : 1, one of them with a large offset."""
    return _random_quadratic(5, 4, 2, 33, scales=[100.0, 1.0], offsets=[3.0, 40.0])


def negative_objectives() -> Case:
    """Objectives below zero (log-likelihoods, gains): scales 1e-3 and 1e3."""
    return _random_quadratic(3, 3, 2, 34, scales=[1e-3, 1e3], offsets=[-0.5, -2e4])


def far_start() -> Case:
    """A start a hundred front lengths away."""
    return _random_quadratic(4, 4, 2, 35, x0=np.full(4, 60.0), y0=np.full(4, -80.0))


def condition_1e4() -> Case:
    """A lower level of condition number 1e4, not along the axes."""
    return _random_quadratic(6, 8, 2, 36, condition=1e4)


def condition_1e6() -> Case:
    """A lower level of condition number 1e6, not along the axes."""
    return _random_quadratic(6, 8, 2, 37, condition=1e6)


def soft_upper() -> Case:
    """Upper objectives that hardly care for some combinations of x: condition 1e4 seen through
    the lower level.
    """
    R = _rotation(6, 5)
    draw = _stream(38)
    return _quadratic(
        A=np.diag(np.logspace(0, -2, 6)) @ R,
        b=np.zeros(6),
        H=np.eye(6) + 0.3 * np.ones((6, 6)),
        centres_x=draw.normal(size=(2, 6)),
        centres_y=draw.normal(size=(2, 6)) * np.logspace(0, -2, 6),
        weights_x=np.full(6, 1e-4),
        scales=[1.0, 1.0],
        offsets=[0.0, 0.0],
        x0=np.zeros(6),
        y0=np.zeros(6),
    )


def faint_lower() -> Case:
    """g in units of 1e-8."""
    return _random_quadratic(3, 4, 2, 39, lower_scale=1e-8)


def single_precision() -> Case:
    """float32 throughout, with a constant of 300 on both objectives."""
    return _random_quadratic(5, 5, 2, 40, dtype=torch.float32, offsets=[300.0, 300.0])


def one_dimension() -> Case:
    """x and y are single numbers (0-d tensors)."""

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(x - 3) ** 2 + y**2, (y - 2) ** 2 / 7])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return torch.cosh(y - x / 2 + 1) + 0.1 * (y - x / 2 + 1) ** 2

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, x / 2 - 1)

    # phi_1 = (x - 3)^2 + (x/2 - 1)^2 is least at x = 2.8; phi_2 = (x/2 - 3)^2/7 at x = 6
    grid = torch.linspace(2.8, 6.0, 4001, dtype=F64)
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros((), dtype=F64),
        torch.zeros((), dtype=F64),
        values,
        values(grid).T,
    )


def ten_thousand() -> Case:
    """10,000 variables at each level, curvatures of g from 1 to 100."""
    n = 10_000
    h = torch.logspace(0, 2, n, dtype=F64)
    draw = _stream(41)
    p, q = _tensor(draw.normal(size=n)), _tensor(draw.normal(size=n))

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [
                (x - p).square().mean() + y.square().mean(),
                (x - q).square().mean() + (y - 1).square().mean(),
            ]
        )

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (h * (y - x).square()).sum()

    # y* = x: the minimiser of (1 - s) phi_1 + s phi_2 is ((1 - s) p + s (q + 1))/2
    def values(x: Tensor) -> Tensor:
        return upper(x.to(F64), x.to(F64))

    truth = torch.stack(
        [values(((1 - s) * p + s * (q + 1)) / 2) for s in torch.linspace(0, 1, 1001, dtype=F64)]
    )
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros(n, dtype=F64),
        torch.zeros(n, dtype=F64),
        values,
        truth,
    )


def three_objectives() -> Case:
    """Three quadratics of different sizes."""
    return _random_quadratic(3, 4, 3, 42, scales=[1.0, 5.0, 0.2])


def four_objectives() -> Case:
    """Four quadratics."""
    return _random_quadratic(4, 4, 4, 43)


def six_objectives() -> Case:
    """Six quadratics in six dimensions."""
    return _random_quadratic(6, 4, 6, 44)


# -- not convex


def concave_front() -> Case:
    """Fonseca and Fleming's concave front through a lower level, with 5 added to both
    objectives.
    """
    n = 3
    a = 1 / math.sqrt(n)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [6 - torch.exp(-((y - a) ** 2).sum()), 6 - torch.exp(-((y + a) ** 2).sum())]
        )

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return ((y - torch.tanh(x)) ** 2).sum() + 0.25 * ((y - torch.tanh(x)) ** 4).sum()

    def values(x: Any) -> Tensor:
        y = torch.tanh(torch.as_tensor(x, dtype=F64))
        return upper(y, y)

    grid = torch.linspace(-a, a, 2001, dtype=F64)
    truth = torch.stack([upper(v, v) for v in grid[:, None].expand(-1, n)])
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.full((n,), 0.3, dtype=F64),
        torch.zeros(n, dtype=F64),
        values,
        truth,
    )


def many_minima() -> Case:
    """A lower level with a valley at every multiple of 1.2 (Rastrigin's), started in that of
    the best one.
    """
    n = 4
    A = _tensor(_stream(45).normal(size=(n, n)) / 2)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [
                x.square().sum() + (y - 1).square().sum(),
                (x - 1).square().sum() + (y + 1).square().sum(),
            ]
        )

    def lower(x: Tensor, y: Tensor) -> Tensor:
        r = y - A @ x
        return (r.square() + 2 * (1 - torch.cos(2 * math.pi * r / 1.2))).sum()

    M = (torch.eye(n, dtype=F64) + A.T @ A).numpy()
    first, second = (
        np.linalg.solve(M, A.T.numpy() @ np.ones(n)),
        np.linalg.solve(M, np.ones(n) - A.T.numpy() @ np.ones(n)),
    )

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, A @ x)

    truth = torch.stack([values(first + s * (second - first)) for s in np.linspace(0, 1, 2001)])
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros(n, dtype=F64),
        torch.full((n,), 0.2, dtype=F64),
        values,
        truth,
    )


def quartic_valley() -> Case:
    """g = sum (y - x)^4: no curvature at the lower solution."""

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [
                (x - 1).square().sum() + y.square().sum(),
                (x + 1).square().sum() + (y - 1).square().sum(),
            ]
        )

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, x)

    # per coordinate (x - 1)^2 + x^2 and (x + 1)^2 + (x - 1)^2: least at 1/2 and at 0
    truth = torch.stack([values(s.expand(2)) for s in torch.linspace(0, 0.5, 2001, dtype=F64)])
    problem = bp.Problem(upper=upper, lower=lambda x, y: ((y - x) ** 4).sum())
    return Case(problem, torch.zeros(2, dtype=F64), torch.full((2,), 0.5, dtype=F64), values, truth)


def kink() -> Case:
    """The lasso's penalty as hyperparameter: g = |y - b|^2/2 + e^x |y|_1, whose answer is soft
    thresholding.
    """
    draw = _stream(46)
    b = _tensor(draw.normal(size=30) * np.where(np.arange(30) < 8, 3.0, 0.3))
    clean = torch.where(torch.arange(30) < 8, b, torch.zeros(()).double())

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(y - clean).square().mean(), (y - b).square().mean()])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - b).square().sum() + torch.exp(x) * y.abs().sum()

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, b.sign() * (b.abs() - torch.exp(x)).clamp_min(0))

    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros((), dtype=F64),
        b.clone(),
        values,
        _swept(values, -8, 2),
    )


def _swept(values: Callable[[Any], Tensor], low: float, high: float, n: int = 20_001) -> Tensor:
    """The front over a single variable: the points of a dense sweep that no other dominates,
    and is not a lone end of it.
    """
    rows = torch.stack([values(s) for s in torch.linspace(low, high, n, dtype=F64)])
    order = rows[:, 0].argsort()
    kept, best = [], math.inf
    for i in order.tolist():
        if float(rows[i, 1]) < best:
            kept.append(i)
            best = float(rows[i, 1])
    return rows[kept]


# -- hyperparameters of models


def _newton_minimum(value: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """argmin over y of a smooth convex function of (x, y), row by row of x, by damped Newton
    steps to rounding.
    """
    values = torch.func.vmap(value)
    gradients = torch.func.vmap(torch.func.grad(value, argnums=1))
    hessians = torch.func.vmap(torch.func.hessian(value, argnums=1))
    y = y.expand(len(x), *y.shape).clone()
    for _ in range(60):
        step = torch.linalg.solve(hessians(x, y), gradients(x, y))
        length = torch.ones(len(x), 1, dtype=F64)
        while bool(
            (worse := (values(x, y - length * step) > values(x, y)) & (length[:, 0] > 1e-9)).any()
        ):
            length = torch.where(worse[:, None], length / 2, length)
        y = y - length * step
        if float(step.abs().max()) < 1e-12:
            break
    return y


def _regression(seed: int, rows: int, features: int, shift: float) -> list[tuple[Tensor, Tensor]]:
    """Training data and two validation sets of different populations."""
    draw = _stream(seed)
    truth = draw.normal(size=features) * (np.arange(features) < features // 2)
    sets = []
    for change in (0.5, 0.0, 1.0):
        coefficients = truth + shift * change * draw.normal(size=features)
        inputs = draw.normal(size=(rows, features)) * np.logspace(-0.3, 0.3, features)
        sets.append(
            (_tensor(inputs), _tensor(inputs @ coefficients + 0.5 * draw.normal(size=rows)))
        )
    return sets


def ridge_strength() -> Case:
    """One log-strength of ridge regression, judged on two populations."""
    (X, t), (X1, t1), (X2, t2) = _regression(47, 25, 12, 0.8)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [(X1 @ y - t1).square().mean(), (X2 @ y - t2).square().mean() + 0.05 * y.square().sum()]
        )

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return (X @ y - t).square().mean() + torch.exp(x).sum() * y.square().sum()

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(
            x,
            torch.linalg.solve(
                X.T @ X / len(t) + torch.exp(x).sum() * torch.eye(12, dtype=F64), X.T @ t / len(t)
            ),
        )

    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros(1, dtype=F64),
        torch.zeros(12, dtype=F64),
        values,
        _swept(values, -12, 20),
    )


def ridge_per_feature() -> Case:
    """A log-strength for each of 20 features: g's curvature in y grows like e^x on the way."""
    (X, t), (X1, t1), (X2, t2) = _regression(48, 60, 20, 0.5)
    n = len(t)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        keep = 1e-3 * x.square().sum()
        return torch.stack(
            [(X1 @ y - t1).square().mean() + keep, (X2 @ y - t2).square().mean() + keep]
        )

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (X @ y - t).square().mean() + 0.5 * (torch.exp(x) * y.square()).sum()

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, torch.linalg.solve(X.T @ X / n + torch.diag(torch.exp(x)), X.T @ t / n))

    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros(20, dtype=F64),
        torch.zeros(20, dtype=F64),
        values,
        _descended(values, 20),
    )


def _descended(values: Callable[[Any], Tensor], n: int) -> Tensor:
    """The front by weighted sums, each minimised by SciPy's L-BFGS along a chain of weights,
    both ways.
    """
    from scipy.optimize import minimize

    def found(w: Any, start: Any) -> Any:
        def fun(x: Any) -> Any:
            point = torch.tensor(x, dtype=F64, requires_grad=True)
            value = values(point) @ _tensor(w)
            return float(value.detach()), torch.autograd.grad(value, point)[0].numpy()

        return minimize(
            fun,
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
        ).x

    rows, x = [], np.zeros(n)
    weights = _weights(2, 121)
    for w in [*weights, *weights[::-1]]:
        x = found(w, x)
        rows.append(values(x))
    points = torch.stack(rows)
    order = points[:, 0].argsort()
    kept, best = [], math.inf
    for i in order.tolist():
        if float(points[i, 1]) < best:
            kept.append(i)
            best = float(points[i, 1])
    return points[kept].detach()


def logistic_strength() -> Case:
    """Logistic regression: a log-strength of the penalty and a log-weight of the rarer class;
    recall against precision.
    """
    draw = _stream(49)
    X = _tensor(draw.normal(size=(80, 4)))
    label = _tensor(
        (X.numpy() @ np.array([1.5, -1.0, 0.5, 0.0]) + draw.logistic(size=80) > 1.2).astype(float)
    )
    V = _tensor(draw.normal(size=(80, 4)))
    held = _tensor(
        (V.numpy() @ np.array([1.0, -1.5, 0.0, 0.5]) + draw.logistic(size=80) > 1.0).astype(float)
    )
    X, V = (torch.cat([data, torch.ones(80, 1, dtype=F64)], 1) for data in (X, V))

    def loss(logit: Tensor, truth: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(logit, truth, reduction="none")

    def lower(x: Tensor, y: Tensor) -> Tensor:
        weight = torch.where(label > 0, torch.exp(x[1]), 1.0)
        return (weight * loss(X @ y, label)).mean() + torch.exp(x[0]) * y.square().sum()

    def upper(x: Tensor, y: Tensor) -> Tensor:
        each = loss(V @ y, held)
        # A faint pull: without it the front has no ends, since a class of weight zero is simply
        # given up.
        keep = 0.02 * ((x[0] + 3) ** 2 + x[1] ** 2)
        return torch.stack(
            [
                (each * held).sum() / held.sum() + keep,
                (each * (1 - held)).sum() / (1 - held).sum() + keep,
            ]
        )

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, _newton_minimum(lower, x[None], torch.zeros(5, dtype=F64))[0])

    # The front of two variables: a grid around where both objectives are least, refined by its own
    # envelope.
    grid = torch.cartesian_prod(
        torch.linspace(-6, 1, 22, dtype=F64), torch.linspace(-6, 6, 97, dtype=F64)
    )
    rows = torch.func.vmap(upper)(grid, _newton_minimum(lower, grid, torch.zeros(5, dtype=F64)))
    best = rows[[not bool(((rows <= row).all(1) & (rows < row).any(1)).any()) for row in rows]]
    order = best[:, 0].argsort()
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros(2, dtype=F64),
        torch.zeros(5, dtype=F64),
        values,
        _joined(best[order]),
    )


def _joined(points: Tensor, between: int = 20) -> Tensor:
    """Points along the straight lines between neighbours: the front of a coarse grid, made
    dense.
    """
    share = torch.arange(between, dtype=F64)[:, None] / between
    parts = [a + share * (b - a) for a, b in itertools.pairwise(points)]
    return torch.cat([*parts, points[-1:]])


def group_weights() -> Case:
    """Log-weights of two groups in a weighted least-squares fit, each group's own error an
    objective; x as a dict.
    """
    draw = _stream(50)
    X = _tensor(draw.normal(size=(2, 30, 3)))
    t = torch.stack(
        [X[0] @ _tensor([1.0, 2.0, 0.0]), X[1] @ _tensor([-1.0, 1.0, 1.0])]
    ) + 0.1 * _tensor(draw.normal(size=(2, 30)))

    def errors(y: Tensor) -> Tensor:
        return ((X @ y - t) ** 2).mean(1)

    def upper(x: Any, y: Tensor) -> Tensor:
        return errors(y) + 1e-3 * (x["a"] + x["b"]).square().sum()

    def lower(x: Any, y: Tensor) -> Tensor:
        return (
            torch.stack([torch.exp(x["a"]), torch.exp(x["b"])]).squeeze() @ errors(y)
            + 1e-3 * y.square().sum()
        )

    def solved(w: Tensor) -> Tensor:
        gram = (w[:, None, None] * (X.transpose(1, 2) @ X)).sum(0) / 30
        return torch.linalg.solve(
            gram + 1e-3 * torch.eye(3, dtype=F64),
            (w[:, None] * torch.einsum("gij,gi->gj", X, t)).sum(0) / 30,
        )

    def values(x: Any) -> Tensor:
        a, b = (torch.as_tensor(x[name], dtype=F64).reshape(()) for name in ("a", "b"))
        return errors(solved(torch.stack([a, b]).exp())) + 1e-3 * (a + b) ** 2

    # With a + b = 0 the pull costs nothing; |a| up to 7 is where the front's ends are flat to four
    # digits.
    truth = torch.stack(
        [errors(solved(torch.tensor([s, -s], dtype=F64).exp())) for s in np.linspace(-7, 7, 2001)]
    )
    x0 = {"a": torch.zeros(1, dtype=F64), "b": torch.zeros(1, dtype=F64)}
    return Case(bp.Problem(upper=upper, lower=lower), x0, torch.zeros(3, dtype=F64), values, truth)


def minibatches() -> Case:
    """A regression on draws of 32 of 256 rows; nobody says which method."""
    draw = _stream(51)
    data = _tensor(draw.normal(size=(256, 6)))
    target = data @ _tensor(draw.normal(size=6)) + 0.3 * _tensor(draw.normal(size=256))
    goal = _tensor(draw.normal(size=(2, 6)))

    def lower(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        rows, wanted = batch
        return 0.5 * (rows @ y - wanted).square().mean() + 0.5 * (y - x).square().sum()

    def upper(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        rows, _ = batch
        return (
            torch.stack([(rows @ (y - q)).square().mean() for q in goal]) + 0.1 * x.square().sum()
        )

    gram, moment = (data.T @ data / 256).numpy(), (data.T @ target / 256).numpy()
    response = np.linalg.inv(gram + np.eye(6))
    goals = goal.numpy()

    def values(x: Any) -> Tensor:
        x = np.asarray(x, dtype=float)
        y = response @ (moment + x)
        return _tensor([(y - q) @ gram @ (y - q) + 0.1 * x @ x for q in goals])

    def best(w: Any) -> Any:
        left = response @ gram @ response + 0.1 * np.eye(6)
        right = response @ gram @ (w @ goals - response @ moment)
        return np.linalg.solve(left, right)

    truth = torch.stack([values(best(w)) for w in _weights(2, 1001)])
    sampler = bp.sampler.Minibatches(lower=(data, target), upper=(data, target), size=32)
    return Case(
        bp.Problem(upper=upper, lower=lower, sampler=sampler),
        torch.zeros(6, dtype=F64),
        torch.zeros(6, dtype=F64),
        values,
        truth,
    )


def numpy_closure() -> Case:
    """Losses with a NumPy scalar and a NumPy index array in their closures."""
    root, half = np.sqrt(2), np.array([0, 2])

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [
                (y - root).square().sum() + x[half].square().sum(),
                y.square().sum() + (x[half] + 1).square().sum(),
            ]
        )

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return root * (y - x).square().sum()

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, x)

    free, kept = np.linspace(0, float(root), 2001), np.linspace(-0.5, float(root) / 2, 2001)
    truth = torch.stack([values(_tensor([k, f, k, f])) for k, f in zip(kept, free, strict=True)])
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.zeros(4, dtype=F64),
        torch.zeros(4, dtype=F64),
        values,
        truth,
    )


def curved_valley() -> Case:
    """Upper objectives with a bent valley (Rosenbrock's), lower level y* = (x_1, x_2 + x_1^2)."""

    def upper(x: Tensor, y: Tensor) -> Tensor:
        valley = 20 * (y[1] - y[0] ** 2 - 0.5 * y[0]) ** 2
        return torch.stack([(1 - y[0]) ** 2 + valley, (1 + y[0]) ** 2 + valley])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return (y[0] - x[0]) ** 2 + 3 * (y[1] - x[1] - x[0] ** 2) ** 2

    def values(x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=F64)
        return upper(x, torch.stack([x[0], x[1] + x[0] ** 2]))

    # The valley x_2 = x_1/2 costs nothing; along it (1 - x_1)^2 against (1 + x_1)^2.
    truth = torch.stack([values([s, 0.5 * s]) for s in np.linspace(-1, 1, 2001)])
    return Case(
        bp.Problem(upper=upper, lower=lower),
        torch.tensor([0.3, -1.0], dtype=F64),
        torch.zeros(2, dtype=F64),
        values,
        truth,
    )


#: name -> maker
CASES: dict[str, Callable[[], Case]] = {
    maker.__name__: maker
    for maker in (
        units_of_x,
        units_of_y,
        units_of_objectives,
        negative_objectives,
        far_start,
        condition_1e4,
        condition_1e6,
        soft_upper,
        faint_lower,
        single_precision,
        one_dimension,
        ten_thousand,
        three_objectives,
        four_objectives,
        six_objectives,
        concave_front,
        many_minima,
        quartic_valley,
        kink,
        ridge_strength,
        ridge_per_feature,
        logistic_strength,
        group_weights,
        minibatches,
        numpy_closure,
        curved_valley,
    )
}
