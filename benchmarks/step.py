"""What a step costs against the same arithmetic written by hand, and what batching and compiling
gain.

    python benchmarks/step.py [--json FILE]

Prints ratios taken in one run on PL-SIN2, d = 100, float64, one thread.  "By hand" is Algorithm 1
written out for this problem with `torch.autograd.grad` (eager) or `torch.func.grad` (compiled),
with no tree, no record and no info.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.problem import tree
from bipareto.run.steppers import stepper

DIM, PREFERENCES = 100, 32
#: calls per measurement; the loop takes its steps in blocks, as here
REPEATS = 50


def interleaved(
    functions: dict[str, Callable[[], object]], seconds: float = 6.0
) -> dict[str, float]:
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
            times[name].append((time.process_time() - start) / REPEATS)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def by_hand(
    problem: bp.Problem, method: bp.MOMEHA, w: Tensor
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Algorithm 1 for this problem: an eager form and a form for `vmap` and `compile`."""
    f, g = problem.upper, problem.lower
    alpha_theta, alpha_x, alpha_y = (
        float(s.value) for s in (method.alpha_theta, method.alpha_x, method.alpha_y)
    )
    c0, p = method.c

    def scalarized(values: Tensor, weight: Tensor) -> Tensor:
        return torch.logsumexp(method.mu * weight * values, 0) / method.mu

    def eager(x: Tensor, y: Tensor, theta: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
        c = c0 * (1 + t) ** p
        theta = theta.detach().requires_grad_()
        (d,) = torch.autograd.grad(g(x, theta), theta)
        theta = (theta - alpha_theta * (d + (theta - y) / method.gamma)).detach()
        x = x.detach().requires_grad_()
        (d,) = torch.autograd.grad(scalarized(f(x, y), w) / c + g(x, y) - g(x, theta), x)
        x = (x - alpha_x * d).detach()
        y = y.detach().requires_grad_()
        (d,) = torch.autograd.grad(scalarized(f(x, y), w) / c + g(x, y), y)
        return x, (y - alpha_y * (d + (theta - y) / method.gamma)).detach(), theta

    def functional(
        x: Tensor, y: Tensor, theta: Tensor, t: Tensor, weight: Tensor
    ) -> tuple[Tensor, ...]:
        c = c0 * (1 + t) ** p
        theta = theta - alpha_theta * (
            torch.func.grad(lambda v: g(x, v))(theta) + (theta - y) / method.gamma
        )
        x = x - alpha_x * torch.func.grad(
            lambda v: scalarized(f(v, y), weight) / c + g(v, y) - g(v, theta)
        )(x)
        d = torch.func.grad(lambda v: scalarized(f(x, v), weight) / c + g(x, v))(y)
        return x, y - alpha_y * (d + (theta - y) / method.gamma), theta, t + 1

    return eager, functional


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = bp.problems.get("pl-sin2", dim=DIM)
    method = bp.MOMEHA.tuned(problem, problem.x0, problem.y0)
    w = torch.tensor([0.7, 0.3], dtype=torch.float64)
    single = method.init(problem, problem.x0, problem.y0, w)
    start = method.prepare(problem, problem.x0, problem.y0)
    weights = bp.preferences.grid(2, PREFERENCES)
    many = tree.stack([method.begin(start, v) for v in weights])
    eager_hand, functional = by_hand(problem, method, w)
    compiled_hand = torch.compile(torch.func.vmap(functional), fullgraph=True, dynamic=False)
    compiled_hand_one = torch.compile(functional, fullgraph=True, dynamic=False)
    one = stepper(problem, method, batched=False)
    one_compiled = stepper(problem, method, batched=False, compile=True)
    batch_compiled = stepper(problem, method, batched=True, compile=True)
    hand = (many.x, many.y, many.theta, many.t, weights)
    hand_one = (single.x, single.y, single.theta, single.t, w)
    packed_one, packed_many = one_compiled.pack(single, {}), batch_compiled.pack(many, {})
    for fast, packed in ((one_compiled, packed_one), (batch_compiled, packed_many)):
        fast.advance(packed, {})

    def unguarded(fast: Any, packed: Any) -> Callable[[], object]:
        def block() -> None:
            with fast.unguarded():
                for _ in range(REPEATS):
                    fast.advance(packed, {})

        return block

    def repeat(fn: Callable[[], object]) -> Callable[[], object]:
        def block() -> None:
            for _ in range(REPEATS):
                fn()

        return block

    ms = interleaved(
        {
            "eager step": repeat(lambda: one.advance(single, {})),
            "eager by hand": repeat(lambda: eager_hand(single.x, single.y, single.theta, 0)),
            "compiled step": unguarded(one_compiled, packed_one),
            "compiled by hand": repeat(lambda: compiled_hand_one(*hand_one)),
            "compiled step, 32 preferences": unguarded(batch_compiled, packed_many),
            "compiled by hand, 32 preferences": repeat(lambda: compiled_hand(*hand)),
        },
        seconds=20,
    )
    ratios = {
        "eager step / by hand (at most 1.15)": ms["eager step"] / ms["eager by hand"],
        "compiled step / by hand (at most 1.15)": ms["compiled step"] / ms["compiled by hand"],
        "compiled step / by hand, 32 preferences (at most 1.15)": ms[
            "compiled step, 32 preferences"
        ]
        / ms["compiled by hand, 32 preferences"],
        "32 preferences / one, compiled (at most 3)": ms["compiled step, 32 preferences"]
        / ms["compiled step"],
        "loop of 32 eager steps / compiled batch (at least 20)": PREFERENCES
        * ms["eager step"]
        / ms["compiled step, 32 preferences"],
    }
    for name, value in {**{f"{k} [ms]": v for k, v in ms.items()}, **ratios}.items():
        print(f"{name:62s} {value:8.3f}")
    if options.json:
        Path(options.json).write_text(
            json.dumps(
                {"ms": ms, "ratios": ratios, "torch": torch.__version__, "threads": 1}, indent=1
            )
        )


if __name__ == "__main__":
    main()
