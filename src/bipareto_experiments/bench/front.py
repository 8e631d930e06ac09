"""Suite `front`: many preferences side by side against loops over them, and hypervolumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.fronts.measures import hypervolume
from bipareto.methods import MOMEHA
from bipareto.methods.parts.preferences import grid
from bipareto.problem import Problem, tree
from bipareto.run.steppers import stepper
from bipareto_experiments.bench import rivals
from bipareto_experiments.bench.cleaning import by_hand, cleaning, plain_method
from bipareto_experiments.bench.figures import Claim, Figures, Times, interleaved

PREFERENCES = 32
BLOCK = 4


def run(seconds: float, seed: int = 0) -> Figures:
    """Measure, about `seconds` for each of three tables."""
    torch.set_num_threads(1)
    figures = Figures("front")
    case = cleaning(seed)
    w = grid(2, PREFERENCES).float()
    times = _fronts(case.problem, case.x0, case.y0, plain_method(), w, seconds, singles=True)
    figures.timed("a step of 32 preferences, hyper-cleaning 784 -> 10", times, "ours, batched")
    figures.claims += [
        Claim("hyper-cleaning: loop of eager steps / ours",
              times.ratio("loop of eager steps", "ours, batched"), 2.2, "at least"),
        Claim("hyper-cleaning: ours / 32 compiled singles",
              1 / times.ratio("32 compiled singles", "ours, batched"), 1.1),
    ]  # fmt: skip
    small = bp.problems.get("pl-sin2", dim=100)
    method = MOMEHA(c=1.0)
    times = _fronts(small, small.x0, small.y0, method, w.double(), seconds, singles=False)
    figures.timed("a step of 32 preferences, PL-SIN2, d = 100", times, "ours, batched")
    figures.claims.append(
        Claim("small problem: loop of eager steps / ours",
              times.ratio("loop of eager steps", "ours, batched"), 20, "at least")
    )  # fmt: skip
    _hypervolumes(seconds / 2, figures)
    return figures


def _block(problem: Problem, method: Any, state: Any, batched: bool, fast: bool | str) -> Any:
    step = stepper(problem, method, batched=batched, compile=fast)
    packed = step.pack(state, {})
    step.advance(packed, {})

    def go() -> None:
        nonlocal packed
        with step.unguarded():
            for _ in range(BLOCK):
                packed, _ = step.advance(packed, {})

    return go


def _fronts(
    problem: Problem, x0: Tensor, y0: Tensor, method: MOMEHA, w: Tensor, seconds: float,
    singles: bool,
) -> Times:  # fmt: skip
    start = method.prepare(problem, x0, y0)
    states = [method.begin(start, row) for row in w]
    many = tree.stack(states)
    functions: dict[str, Callable[[], object]] = {
        "ours, batched": _block(problem, method, many, True, True),
        "loop of eager steps": _block(problem, method, states[0], False, False),
    }
    if singles:
        functions["32 compiled singles"] = _block(problem, method, states[0], False, True)
    functions["ours, batched, recorded"] = _block(problem, method, many, True, "traced")
    _, functional = by_hand(problem.upper, problem.lower, method)
    fast = torch.compile(torch.func.vmap(functional), fullgraph=True, dynamic=False)
    state = (many.x, many.y, many.theta.clone(), many.t)

    def hand() -> None:
        nonlocal state
        for _ in range(BLOCK):
            state = fast(*state, w)

    functions["by hand, batched and compiled"] = hand
    times = interleaved(functions, seconds)
    # A single run stands for each of the 32 of a loop.
    alone = {"loop of eager steps", "32 compiled singles"}
    return Times(
        {
            name: [v / BLOCK * (PREFERENCES if name in alone else 1) for v in values]
            for name, values in times.items()
        }
    )


def _hypervolumes(seconds: float, figures: Figures) -> None:
    """100 points of four objectives: ours, pymoo and BoTorch."""
    stream = torch.Generator().manual_seed(0)
    points = torch.rand(100, 4, generator=stream, dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True)
    corner = [1.1] * 4
    functions: dict[str, Callable[[], object]] = {"ours": lambda: hypervolume(points, corner)}
    pymoo = rivals.load("pymoo.indicators.hv", figures.missing)
    if pymoo is not None:
        theirs = pymoo.HV(ref_point=torch.tensor(corner).numpy())
        functions["pymoo"] = lambda: theirs(points.numpy())
    botorch = rivals.load("botorch.utils.multi_objective.hypervolume", figures.missing)
    if botorch is not None:
        volume = botorch.Hypervolume(ref_point=-torch.tensor(corner, dtype=torch.float64))
        functions["BoTorch"] = lambda: volume.compute(-points)
    times = interleaved(functions, seconds)
    figures.timed("hypervolume of 100 points, four objectives", times, "ours")
    values = {name: float(fn()) for name, fn in functions.items()}  # type: ignore[arg-type]
    figures.data["hypervolumes agree within"] = max(values.values()) - min(values.values())
