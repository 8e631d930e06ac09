"""What a step costs against the same arithmetic written by hand, and what batching and compiling
gain.

    python benchmarks/step.py [--json FILE]

Prints ratios taken in one run on PL-SIN2, d = 100, float64, one thread.  "By hand" is Algorithm 1
written out for this problem with `torch.autograd.grad` (eager) or `torch.func.grad` (compiled),
with no tree, no record and no info; the same for `Twin`.
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


def twin_by_hand(
    problem: bp.Problem, method: bp.Twin, w: Tensor
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`Twin`'s step for this problem, on flat vectors: eager, and for `compile`.

    The state is (x, y, v, m_x, m_y, m_v, square_x, square_y, source, t).
    """
    f, g = problem.upper, problem.lower
    mu, beta, rho = method.mu, method.beta, method.rho
    alpha_x, alpha_y = (float(s.value) for s in (method.alpha_x, method.alpha_y))

    def step(grads: Callable[..., Any], *state: Tensor) -> tuple[Tensor, ...]:
        x, y, v, m_x, m_y, m_v, square_x, square_y, source, t = state

        def scalarized(x: Tensor, y: Tensor) -> Tensor:
            values = f(x, y)
            return (w * torch.softmax(mu * w * values.detach(), 0)) @ values

        f_x, f_y = grads(scalarized, x, y)
        g_x, g_y = grads(g, x, y)
        length = v.norm()
        e = torch.where(
            length > 0, method.epsilon * y.norm().clamp_min(1e-8) / length.clamp_min(1e-32), 1.0
        )
        t_x, t_y = grads(g, x, y + e * v)
        h_x, h_y = f_x - (t_x - g_x) / e, f_y - (t_y - g_y) / e
        first = 1 - beta ** (t + 1)
        square_y = 0.999 * square_y + 0.001 * g_y * g_y
        metric = (square_y / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
        m_y = beta * m_y + (1 - beta) * g_y
        m_v = beta * m_v + (1 - beta) * h_y
        y = y - alpha_y / first * m_y / metric
        v = (1 - rho) * v + alpha_y * m_v / metric
        source = torch.maximum(0.99 * source, alpha_y * (f_y / metric).norm())
        v = v * (source / rho / v.norm().clamp_min(1e-32)).clamp(max=1.0)
        square_x = 0.99 * square_x + 0.01 * h_x * h_x
        m_x = beta * m_x + (1 - beta) * h_x
        root = (square_x / (1 - 0.99 ** (t + 1))).sqrt()
        least = 1e-6 * root.norm() / x.numel() ** 0.5 + 1e-32
        x = x - alpha_x / first * m_x / (root + least)
        return x, y, v, m_x, m_y, m_v, square_x, square_y, source, t + 1

    def autograd(fn: Callable[..., Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        return torch.autograd.grad(fn(x, y), (x, y))

    def functional(fn: Callable[..., Tensor], x: Tensor, y: Tensor) -> Any:
        return torch.func.grad(fn, argnums=(0, 1))(x, y)

    return lambda *state: step(autograd, *state), lambda *state: step(functional, *state)


def measure_twin(problem: bp.Problem, w: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds and ratios of `Twin`, one run, eager and compiled."""
    method = bp.Twin(rho=0.03, alpha_x=0.01, alpha_y=0.003)
    state = method.init(problem, problem.x0, problem.y0, w)
    eager, functional = twin_by_hand(problem, method, w)
    zero_x, zero_y = torch.zeros_like(problem.x0), torch.zeros_like(problem.y0)
    hand = (problem.x0, problem.y0, zero_y, zero_x, zero_y, zero_y, zero_x, zero_y)
    hand = (*hand, zero_x.new_zeros(()), zero_x.new_zeros(()))
    after, seen = state, hand
    plain = stepper(problem, method, batched=False)
    for _ in range(3):  # the same arithmetic
        after, _ = plain(after, {})
        seen = eager(*seen)
    torch.testing.assert_close(seen[0], after.x)
    torch.testing.assert_close(seen[1], after.y)
    compiled = torch.compile(functional, fullgraph=True, dynamic=False)
    fast = stepper(problem, method, batched=False, compile=True)
    packed = fast.pack(state, {})
    fast.advance(packed, {})

    def repeated(fn: Callable[[], object]) -> Callable[[], object]:
        def block() -> None:
            for _ in range(REPEATS):
                fn()

        return block

    def unguarded() -> None:
        with fast.unguarded():
            for _ in range(REPEATS):
                fast.advance(packed, {})

    ms = interleaved(
        {
            "Twin: eager step": repeated(lambda: plain.advance(state, {})),
            "Twin: eager by hand": repeated(lambda: eager(*hand)),
            "Twin: compiled step": unguarded,
            "Twin: compiled by hand": repeated(lambda: compiled(*hand)),
        },
        seconds=12,
    )
    return ms, {
        f"Twin: {kind} step / by hand (at most 1.15)": ms[f"Twin: {kind} step"]
        / ms[f"Twin: {kind} by hand"]
        for kind in ("eager", "compiled")
    }


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
    more_ms, more_ratios = measure_twin(problem, w)
    ms, ratios = ms | more_ms, ratios | more_ratios
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
