"""The measurements of `run.py`; needs torchjd and cvxpy beside the package."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import cvxpy as cp
import torch
from torch import Tensor
from torchjd.aggregation import MGDAWeighting

import bipareto as bp
from bipareto.methods import FORUM
from bipareto.methods.parts import simplex
from bipareto.methods.parts.simplex import Weights

M, BATCH, DIM = 4, 16, 100


def interleaved(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median CPU milliseconds per call of each function, taken in turns so that a busy machine
    slows all alike.
    """
    for fn in functions.values():
        fn()
    times: dict[str, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, fn in functions.items():
            start = time.process_time()
            fn()
            times[name].append(time.process_time() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def kkt_slack(grams: Tensor, weights: Tensor) -> float:
    """max over problems of lam^T G lam - min_i (G lam)_i, relative to the largest entry: zero at
    the min-norm weights.
    """
    slopes = (grams @ weights.unsqueeze(-1)).squeeze(-1)
    gaps = (weights * slopes).sum(-1) - slopes.amin(-1)
    return float((gaps / grams.abs().amax((-2, -1))).max())


def min_norm(seconds: float) -> dict[str, float]:
    """16 sets of m = 4 gradients whose lengths differ by up to a factor of two, so that most
    weights are positive.
    """
    stream = torch.Generator().manual_seed(0)
    lengths = 2 ** torch.rand(BATCH, M, 1, generator=stream, dtype=torch.float64)
    common = torch.randn(BATCH, 1, DIM, generator=stream, dtype=torch.float64)
    rows = lengths * (common + torch.randn(BATCH, M, DIM, generator=stream, dtype=torch.float64))
    grams = rows @ rows.mT
    peer = MGDAWeighting()

    def one_by_one() -> Tensor:
        return torch.stack([peer(gram) for gram in grams])

    ms = interleaved(
        {
            "ours, 16 at once": lambda: simplex.quadratic(grams),
            "ours, one": lambda: simplex.quadratic(grams[0]),
            "TorchJD, 16 one by one": one_by_one,
        },
        seconds,
    )
    ours, theirs = simplex.quadratic(grams).weights, one_by_one()
    norms = [(w.unsqueeze(-2) @ grams @ w.unsqueeze(-1)).flatten() for w in (ours, theirs)]
    return {
        **{f"{name} [ms]": value for name, value in ms.items()},
        "TorchJD / ours, 16 (at least 10)": ms["TorchJD, 16 one by one"] / ms["ours, 16 at once"],
        "TorchJD / ours, one": ms["TorchJD, 16 one by one"] / BATCH / ms["ours, one"],
        "KKT slack, ours (at most 1e-9)": kkt_slack(grams, ours),
        "KKT slack, TorchJD": kkt_slack(grams, theirs),
        "squared norm above the optimum, TorchJD, worst": float((norms[1] / norms[0] - 1).max()),
    }


def cvxpy_weights(m: int, keep: bool) -> Callable[[Tensor, Tensor, Tensor], Weights]:
    """FORUM's program in (lam, nu) through cvxpy: stated anew at every call, as published code
    does, or once with parameters.
    """

    def stated() -> tuple[cp.Problem, cp.Variable, cp.Parameter, cp.Parameter, cp.Parameter]:
        lam, nu = cp.Variable(m, nonneg=True), cp.Variable(1, nonneg=True)
        root, along, level = (
            cp.Parameter((m + 1, m + 1)),
            cp.Parameter(m),
            cp.Parameter(1, nonneg=True),
        )
        objective = 0.5 * cp.sum_squares(root @ cp.hstack([lam, nu])) - 0.5 * level @ nu
        return (
            cp.Problem(cp.Minimize(objective), [cp.sum(lam) == 1, nu >= level - along @ lam]),
            lam,
            root,
            along,
            level,
        )

    kept = stated()

    def solve(gram: Tensor, a: Tensor, kappa: Tensor) -> Weights:
        problem, lam, root, along, level = kept if keep else stated()
        both = torch.cat(
            [
                torch.cat([gram, a.unsqueeze(-1)], dim=1),
                torch.cat([a, torch.ones(1, dtype=a.dtype)]).unsqueeze(0),
            ]
        )
        values, vectors = torch.linalg.eigh(both)
        root.value = (values.clamp_min(0).sqrt().unsqueeze(-1) * vectors.T).numpy()
        along.value, level.value = a.numpy(), kappa.reshape(1).numpy()
        problem.solve()
        return Weights(torch.from_numpy(lam.value), torch.zeros((), dtype=a.dtype))

    return solve


def forum(seconds: float) -> dict[str, float]:
    """One eager FORUM step on the quadratic, m = 4, d = 20: ours, and the same step with its
    weights from cvxpy.
    """
    problem = bp.problems.get("quadratic", dim=20, m=M)
    method = FORUM()
    state = method.init(problem, problem.x0, problem.y0)

    def through(weights: Callable[[Tensor, Tensor, Tensor], Weights]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            with mock.patch.object(simplex, "kinked", weights):
                return method.step(problem, state)[0].x

        return step

    steps = {
        "FORUM step, ours": lambda: method.step(problem, state)[0].x,
        "FORUM step, cvxpy stated anew": through(cvxpy_weights(M, keep=False)),
        "FORUM step, cvxpy stated once": through(cvxpy_weights(M, keep=True)),
    }
    ms = interleaved(steps, seconds)
    ours = steps["FORUM step, ours"]()
    apart = max(float((step() - ours).abs().max()) for step in steps.values())
    assert apart < 1e-6, f"the steps differ by {apart}"
    return {
        **{f"{name} [ms]": value for name, value in ms.items()},
        "cvxpy stated anew / ours (at least 2)": ms["FORUM step, cvxpy stated anew"]
        / ms["FORUM step, ours"],
        "cvxpy stated once / ours": ms["FORUM step, cvxpy stated once"] / ms["FORUM step, ours"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="how long each of the two comparisons runs"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {**min_norm(options.seconds), **forum(options.seconds)}
    for name, value in figures.items():
        print(f"{name:50s} {value:12.3g}")
    if options.json:
        peers = {name: version(name) for name in ("torch", "torchjd", "cvxpy")}
        options.json.write_text(
            json.dumps({"figures": figures, "versions": peers, "threads": 1}, indent=1), "utf-8"
        )


if __name__ == "__main__":
    main()
