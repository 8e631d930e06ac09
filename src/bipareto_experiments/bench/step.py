"""Suite `step`: one step of ours against the same by hand and against other libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bipareto as bp
from bipareto.methods import MOMEHA, Twin
from bipareto.methods.parts import simplex
from bipareto.problem import Problem
from bipareto.run.steppers import stepper
from bipareto_experiments.bench import rivals
from bipareto_experiments.bench.boat import Boat
from bipareto_experiments.bench.cleaning import Cleaning, by_hand, cleaning, in_jax, plain_method
from bipareto_experiments.bench.figures import Claim, Figures, Times, interleaved
from bipareto_experiments.bench.twin import twin_by_hand, twin_start

#: after so many steps BOAT is looked at again
LATER = 10_000
#: steps in one timing: the loop takes its steps in blocks too
BLOCK = 20


def run(seconds: float, seed: int = 0) -> Figures:
    """Measure, about `seconds` for each of four tables."""
    torch.set_num_threads(1)
    figures = Figures("step")
    w = torch.tensor([0.7, 0.3])
    case = cleaning(seed)
    times, compiled = _envelope_step(case, w, seconds, figures.missing)
    title = "Moreau-envelope step, hyper-cleaning 784 -> 10, 1,000 + 1,000 points"
    figures.timed(title, times, "ours, compiled")
    figures.data["log of BOAT"] = (
        f"'after {LATER} steps' is BOAT with the log of its losses as long as after so many steps, "
        "which it writes anew at every one; the steps themselves were not taken"
    )
    figures.claims += [
        Claim("BOAT, fresh / ours, compiled", _ratio(times, "BOAT, fresh"), 3.5, "at least"),
        Claim(
            f"BOAT after {LATER:,} steps / ours, compiled",
            _ratio(times, f"BOAT, after {LATER} steps"), 30, "at least",
        ),
        Claim("ours / by hand, compiled", 1 / times.ratio("by hand, compiled", compiled), 1.1),
        Claim("ours / by hand, eager", times.ratio("ours, eager", "by hand, eager"), 1.15),
    ]  # fmt: skip
    small = bp.problems.get("pl-sin2", dim=100)
    times = _by_hand_only(small, small.x0, small.y0, MOMEHA(c=1.0), w.double(), seconds)
    figures.timed("PL-SIN2, d = 100: little arithmetic", times, "ours, compiled")
    times = _twin(small, small.x0, small.y0, w.double(), seconds)
    figures.timed("Twin, PL-SIN2, d = 100", times, "ours, compiled")
    figures.claims += [
        Claim(f"Twin: ours / by hand, {kind}",
              times.ratio(f"ours, {kind}", f"by hand, {kind}"), 1.15)
        for kind in ("compiled", "eager")
    ]  # fmt: skip
    _weights(seconds, figures)
    # Last: what is small takes several times as long once JAX is loaded beside it.
    times = _implicit(case, w, seconds, figures)
    figures.timed("implicit gradients on hyper-cleaning", times, "ours, one step")
    return figures


def _ratio(times: Times, name: str) -> float | None:
    return times.ratio(name, "ours, compiled") if name in times else None


def ours(
    problem: Problem, method: Any, x0: Any, y0: Any, w: Tensor, compile: bool, block: int = BLOCK
) -> Callable[[], object]:
    """A block of steps as the loop takes them."""
    state = method.init(problem, x0, y0, w)
    step = stepper(problem, method, batched=False, compile=compile)
    packed = step.pack(state, {})
    step.advance(packed, {})

    def go() -> None:
        nonlocal packed
        with step.unguarded():
            for _ in range(block):
                packed, _ = step.advance(packed, {})

    return go


def _hand(
    step: Callable[..., Any], x0: Tensor, y0: Tensor, w: Tensor, t: Any
) -> Callable[[], object]:
    # theta has memory of its own, as in later steps: else a second graph would be compiled
    state = (x0.clone(), y0.clone(), y0.clone(), t)

    def go() -> None:
        nonlocal state
        for _ in range(BLOCK):
            state = step(*state, w)

    return go


def _per_step(times: Times, names: list[str]) -> Times:
    """Blocks as steps."""
    return Times(
        {k: [v / BLOCK for v in values] if k in names else values for k, values in times.items()}
    )


def _both(
    problem: Problem, x0: Tensor, y0: Tensor, method: MOMEHA, w: Tensor
) -> dict[str, Callable[[], object]]:
    eager, functional = by_hand(problem.upper, problem.lower, method)
    fast = torch.compile(functional, fullgraph=True, dynamic=False)
    t = torch.zeros((), dtype=x0.dtype)
    return {
        "ours, compiled": ours(problem, method, x0, y0, w, True),
        "by hand, compiled": _hand(fast, x0, y0, w, t),
        "ours, eager": ours(problem, method, x0, y0, w, False),
        "by hand, eager": _hand(eager, x0, y0, w, t),
    }


def _by_hand_only(
    problem: Problem, x0: Tensor, y0: Tensor, method: MOMEHA, w: Tensor, seconds: float
) -> Times:
    functions = _both(problem, x0, y0, method, w)
    return _per_step(interleaved(functions, seconds), list(functions))


def _twin(problem: Problem, x0: Tensor, y0: Tensor, w: Tensor, seconds: float) -> Times:
    method = Twin(rho=0.03, alpha_x=0.01, alpha_y=0.003)
    eager, functional = twin_by_hand(problem, method, w)

    def repeated(step: Callable[..., Any]) -> Callable[[], object]:
        state = twin_start(x0, y0)

        def go() -> None:
            nonlocal state
            for _ in range(BLOCK):
                state = step(*state)

        return go

    functions = {
        "ours, compiled": ours(problem, method, x0, y0, w, True),
        "by hand, compiled": repeated(torch.compile(functional, fullgraph=True, dynamic=False)),
        "ours, eager": ours(problem, method, x0, y0, w, False),
        "by hand, eager": repeated(eager),
    }
    return _per_step(interleaved(functions, seconds), list(functions))


def _envelope_step(
    case: Cleaning, w: Tensor, seconds: float, missing: dict[str, str]
) -> tuple[Times, str]:
    functions = _both(case.problem, case.x0, case.y0, plain_method(), w)
    blocks = list(functions)
    boat = rivals.load("boat_torch", missing)
    with tempfile.TemporaryDirectory() as folder:
        if boat is not None:
            for name, age in (("BOAT, fresh", 0), (f"BOAT, after {LATER} steps", LATER)):
                functions[name] = _boat(boat, case, w, age, Path(folder) / f"{age}.json")
        times = interleaved(functions, seconds)
    return _per_step(times, blocks), "ours, compiled"


def _boat(boat: Any, case: Cleaning, w: Tensor, age: int, log: Path) -> Callable[[], object]:
    method = plain_method()
    mu = method.mu

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(mu * w * case.f(x, y), 0) / mu

    def fresh() -> Boat:
        one = Boat(
            boat, case.x0, case.y0, alpha_x=100.0, alpha_y=0.1, alpha_theta=0.1, gamma=1.0,
            c0=2.0, log=log,
        )  # fmt: skip
        if age:
            one.age(age)
        return one

    now = fresh()

    def go() -> None:
        nonlocal now
        if now.t > age + 100:
            now = fresh()  # a fresh start stays fresh
        now.step(case.g, upper)

    return go


def _implicit(case: Cleaning, w: Tensor, seconds: float, figures: Figures) -> Times:
    """One hypergradient by conjugate gradients, 10 steps, y as it is: other libraries."""
    mu = plain_method().mu

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(mu * w * case.f(x, y), 0) / mu

    functions = {
        "ours, one step": ours(case.problem, plain_method(), case.x0, case.y0, w, True, block=1)
    }
    torchopt = rivals.load("torchopt", figures.missing)
    if torchopt is not None:
        from bipareto_experiments.bench.implicit import hypergradient

        along = hypergradient(torchopt, case.g, upper, inner=1, rate=0.1, iterations=10)
        functions["TorchOpt, implicit"] = lambda: along(case.x0, case.y0)
    jaxopt = rivals.load("jaxopt", figures.missing)
    if jaxopt is not None:
        functions["JAXopt, implicit, compiled"] = _jaxopt(jaxopt, case, w)
    if torchopt is not None and jaxopt is not None:
        one, other = (
            np.array(functions[name]()[0])  # type: ignore[index]
            for name in ("TorchOpt, implicit", "JAXopt, implicit, compiled")
        )
        distance = np.linalg.norm(one - other) / np.linalg.norm(one)
        figures.data["JAXopt's implicit gradient, distance from TorchOpt's"] = float(distance)
    return interleaved(functions, seconds / 2)


def _jaxopt(jaxopt: Any, case: Cleaning, w: Tensor) -> Callable[[], object]:
    import jax

    from bipareto_experiments.bench.implicit import jax_hypergradient

    mu, weights = plain_method().mu, w.numpy()

    def scalarized(values: Any) -> Any:
        return jax.scipy.special.logsumexp(mu * weights * values) / mu

    along = jax_hypergradient(
        jax, jaxopt, *in_jax(case, scalarized), inner=1, rate=0.1, iterations=10
    )
    return lambda: along(case.x0.numpy(), case.y0.numpy())


def _weights(seconds: float, figures: Figures) -> None:
    """Min-norm weights of 16 sets of four gradients whose lengths differ by up to two."""
    torchjd = rivals.load("torchjd.aggregation", figures.missing)
    if torchjd is None:
        return
    stream = torch.Generator().manual_seed(0)
    lengths = 2 ** torch.rand(16, 4, 1, generator=stream, dtype=torch.float64)
    common = torch.randn(16, 1, 100, generator=stream, dtype=torch.float64)
    rows = lengths * (common + torch.randn(16, 4, 100, generator=stream, dtype=torch.float64))
    grams = rows @ rows.mT
    peer = torchjd.MGDAWeighting()

    def one_by_one() -> Tensor:
        return torch.stack([peer(gram) for gram in grams])

    times = interleaved(
        {"ours": lambda: simplex.quadratic(grams), "TorchJD, one by one": one_by_one}, seconds / 2
    )
    figures.timed("min-norm weights of 16 x 4 gradients", times, "ours")
    norms = [
        (v.unsqueeze(-2) @ grams @ v.unsqueeze(-1)).flatten()
        for v in (simplex.quadratic(grams).weights, one_by_one())
    ]
    figures.data["squared norm above ours, TorchJD, worst"] = float((norms[1] / norms[0] - 1).max())
