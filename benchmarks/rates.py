"""Measured rates of both theorems: fit C in C T^-r on the first decade, look for violations on the later ones.

    python benchmarks/rates.py [--out DIR] [--steps T] [--quick]

For every case the theorem's r is taken, C is the smallest constant for which the bound holds for T = 10 ... 100, and the
largest ratio of what is measured to C T^-r beyond is reported: at most 1 where the theorem's order is kept.  Measured are the gap
g - v_gamma at T and min_{t <= T} H_p with the paper's multipliers, both exact (proximal points solved to 1e-10); for Theorem 2 their
means over 20 seeds.  The steps are those of `MOMEHA.tuned` on the theorems' schedules: with the admissible ones, which are
thousands of times smaller, the first decade would show a run that has not moved.  A last case runs those, on the quadratic, against
Theorem 1's bound with its own constant.

Writes rates.json and one picture per theorem into DIR (docs/results).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto import tree
from bipareto.loop import stepper
from bipareto.methods.admissible import bounds_of
from bipareto.methods.momeha import MomehaState
from bipareto.monitors import Gap, Stationarity
from bipareto.problems import KnownProblem
from bipareto.sampler import generator
from bipareto.schedule import theorem1, theorem2

FIRST, SECOND = 10, 100
PREFERENCES = [[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]]
SEEDS, NOISE, DELTA = 20, 0.1, 0.05
#: noise is drawn for this many steps at a time
BLOCK = 1000
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")

Draws = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Order:
    """T^-power, times sqrt(ln T) where `log`."""

    power: float
    log: bool = False

    def __call__(self, T: Tensor) -> Tensor:
        return T**-self.power * (T.log().sqrt() if self.log else 1)

    def __str__(self) -> str:
        return ("O(1)" if not self.power else f"O(T^-{self.power:g})") + (" sqrt(ln T)" if self.log else "")


@dataclass(frozen=True)
class Case:
    """One theorem on one problem: the method, its runs, and the orders that the theorem gives."""

    theorem: int
    name: str
    problem: bp.Problem
    known: KnownProblem
    method: bp.MOMEHA
    states: list[MomehaState]
    draws: Draws
    gap: Order
    stationarity: Order


def deterministic(name: str, growing: bool, **options: Any) -> Case:
    """Theorem 1: c_t = c_0 (1 + t)^(1/4), or constant; three preferences."""
    problem = bp.problems.get(name, **options)
    tuned = bp.MOMEHA.tuned(problem, problem.x0, problem.y0)
    method = replace(tuned, **theorem1(float(tuned.c.scale), growing=growing))  # type: ignore[union-attr]
    start = method.prepare(problem, problem.x0, problem.y0)
    states = [method.begin(start, w) for w in PREFERENCES]
    orders = (Order(0.25), Order(0.25)) if growing else (Order(0.0), Order(0.5))
    label = f"{name}, d = {problem.x0.numel()}, " + ("c growing as (1+t)^1/4" if growing else "c constant")
    return Case(1, label, problem, problem, method, states, lambda t: {}, *orders)


def stochastic(name: str, growing: bool, **options: Any) -> Case:
    """Theorem 2 with noise on every gradient coordinate: c_t = c_0 (1 + t)^(1/16), or constant with delta; one run per seed."""
    known = bp.problems.get(name, **options)
    problem = bp.problems.get(name, noise=NOISE, **options)
    tuned = bp.MOMEHA.tuned(known, known.x0, known.y0)
    alpha = float(tuned.alpha_y.value)  # type: ignore[union-attr]
    c0 = 0.5 * float(tuned.c.scale)  # type: ignore[union-attr]
    schedules = theorem2(alpha, alpha, alpha, c0=c0, k=alpha ** (-2 / 3), delta=None if growing else DELTA)
    method = bp.MBMOMEHA(gamma=tuned.gamma, mu=tuned.mu, ideal=tuned.ideal, warmup=tuned.warmup, **schedules)
    states = [method.init(problem, known.x0, known.y0)] * SEEDS
    draws = noise(method.roles(known.m), known.x0, known.y0)
    orders = (Order(1 / 16), Order(1 / 16, log=True)) if growing else (Order(0.0), Order(1 / 8 - DELTA))
    label = f"{name}, d = {known.x0.numel()}, " + ("c growing as (1+t)^1/16" if growing else f"c constant, delta = {DELTA}")
    return Case(2, label, problem, known, method, states, draws, *orders)


def noise(roles: tuple[str, ...], x0: Tensor, y0: Tensor) -> Draws:
    """Draws of all seeds side by side, a block of steps at a time: `oracle.noisy` would draw (role, step, seed) one by one."""
    block: dict[tuple[str, str], Tensor] = {}

    def draw(t: int) -> dict[str, Any]:
        if t % BLOCK == 0:
            for role in roles:
                stream = generator(f"noise-{role}", t // BLOCK, 0)
                for name, like in (("x", x0), ("y", y0)):
                    block[role, name] = NOISE * torch.randn(BLOCK, SEEDS, *like.shape, generator=stream, dtype=like.dtype)
        return {role: {"batch": (), "x": block[role, "x"][t % BLOCK], "y": block[role, "y"][t % BLOCK]} for role in roles}

    return draw


def watched(case: Case, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """T (40 per decade), the gap and H_p at each (T, R)."""
    wanted = sorted({min(steps, round(10 ** (i / 40))) for i in range(40 * math.ceil(math.log10(steps)) + 1)})
    gap, stationarity = Gap(case.problem), Stationarity(case.problem)
    state = tree.stack(case.states)
    step = stepper(case.problem, case.method, batched=True, shared_draw=case.theorem == 1, compile=True)
    t = 0
    for T in wanted:
        packed = step.pack(state, case.draws(t) if case.theorem == 1 else case.draws(t - t % BLOCK) and case.draws(t))
        with step.unguarded():
            while t < T:
                packed, _ = step.advance(packed, case.draws(t))
                t += 1
        state = step.unpack(packed)
        gap.see(state)
        stationarity.see(state)
    return torch.tensor(gap.steps, dtype=torch.float64), gap.values, stationarity.values


def judge(T: Tensor, values: Tensor, order: Order) -> dict[str, Any]:
    """C on the first decade for every column, the worst ratio to C T^-r after it, and the slope measured over the last two decades."""
    shape = order(T)[:, None]
    first, later = (T >= FIRST) & (T <= SECOND), T > SECOND
    C = (values[first] / shape[first]).amax(0)
    ratio = values[later] / (C * shape[later])
    tail = T >= T[-1] / 100
    x = T[tail].log() - T[tail].log().mean()
    y = values[tail].clamp_min(1e-300).log()
    slope = (x[:, None] * (y - y.mean(0))).sum(0) / x.square().sum()
    return {
        "order": str(order), "C": C.tolist(), "worst ratio after the first decade": float(ratio.max()), "violations": int((ratio > 1).sum()),
        "measured slope of the last two decades": slope.tolist(), "last": values[-1].tolist(),
    }  # fmt: skip


def run(case: Case, steps: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Measure one case: its row of rates.json, and its curves."""
    begin = time.perf_counter()
    T, gap, stationarity = watched(case, steps)
    if case.theorem == 2:
        gap, stationarity = gap.mean(1, keepdim=True), stationarity.mean(1, keepdim=True)
    best = stationarity.cummin(0).values
    row = {
        "theorem": case.theorem, "case": case.name, "steps": steps, "runs": len(case.states),
        "method": {name: str(getattr(case.method, name)) for name in ("gamma", "mu", "alpha_theta", "alpha_x", "alpha_y", "c", "warmup")},
        "gap": judge(T, gap, case.gap), "stationarity": judge(T, best, case.stationarity), "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    curves = {"T": T, "gap": gap, "stationarity": best}
    return row, curves


def admissible(steps: int) -> dict[str, Any]:
    """Admissible steps on the quadratic against Theorem 1's bound for min H_p with the constant that its proof gives."""
    problem = bp.problems.get("quadratic")
    rows = []
    for growing in (True, False):
        method = bp.MOMEHA.admissible(problem, problem.x0, problem.y0, constants=problem.constants, **theorem1(growing=growing))  # type: ignore[arg-type]
        bounds = bounds_of(method, problem, problem.x0, problem.y0, constants=problem.constants)
        state = method.init(problem, problem.x0, problem.y0)
        case = Case(1, "admissible", problem, problem, method, [state], lambda t: {}, Order(0), Order(0))
        T, gap, stationarity = watched(case, steps)
        alpha_x, alpha_y = (float(s.value) for s in (method.alpha_x, method.alpha_y))  # type: ignore[union-attr]
        merit = float(bp.monitors.Merit(problem, bounds)._evaluate(tree.stack([state]), 0)[0])  # type: ignore[arg-type]
        best = stationarity[:, 0].cummin(0).values
        promised = [bounds.stationarity_bound(int(t), merit, alpha_x, alpha_y, power=0.25 * growing, smallest_weight=0.5) for t in T]  # type: ignore[union-attr]
        ratio = best / torch.tensor(promised, dtype=torch.float64)
        rows.append({"c": str(method.c), "alpha_x": alpha_x, "alpha_y": alpha_y, "V_0": merit, "largest ratio to the bound": float(ratio.max()), "last H": float(best[-1]), "last bound": promised[-1], "gap never above V_0": bool((gap <= merit).all())})
    return {"problem": "quadratic", "steps": steps, "cases": rows}


def picture(theorem: int, rows: list[dict[str, Any]], curves: list[dict[str, Tensor]], path: Path) -> None:
    """Two panels, gap and best stationarity, every case with its fitted bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for axes, key, label in zip(panels, ("gap", "stationarity"), ("gap  g − v_γ  at T", "min over t ≤ T of H_p"), strict=True):
        for row, curve, colour in zip(rows, curves, COLOURS, strict=False):
            T = curve["T"]
            worst = int(torch.tensor(row[key]["C"]).argmax())
            axes.loglog(T, curve[key].clamp_min(1e-12), color=colour, lw=1.3, alpha=0.9, label=[row["case"], *[None] * (curve[key].shape[1] - 1)])
            order = [o for o in ORDERS if str(o) == row[key]["order"]][0]
            bound = row[key]["C"][worst] * order(T[T >= FIRST])
            axes.loglog(T[T >= FIRST], bound, "--", color=colour, lw=1, label=f"C {row[key]['order']}")
        axes.axvspan(FIRST, SECOND, color="0.92", zorder=0)
        axes.set_xlabel("T  (C is fitted on the shaded decade)")
        axes.set_ylabel(label)
        axes.grid(visible=True, which="major", lw=0.4)
        axes.legend(fontsize=7)
    figure.suptitle(f"Theorem {theorem}: measured against its orders" + (f", means over {SEEDS} seeds, noise {NOISE}" if theorem == 2 else ""))
    figure.savefig(path, dpi=130, metadata={"Software": None})


ORDERS = (Order(0.25), Order(0.0), Order(0.5), Order(1 / 16), Order(1 / 16, log=True), Order(1 / 8 - DELTA))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="3,000 steps, to see that it runs")
    options = parser.parse_args()
    steps = 3_000 if options.quick else options.steps
    torch.set_num_threads(1)
    cases = [make(name, growing, **choice) for make in (deterministic, stochastic) for name, choice in (("quadratic", {}), ("pl-sin2", {"dim": 20 if make is deterministic else 5})) for growing in (True, False)]
    rows, curves = [], []
    for case in cases:
        row, curve = run(case, steps)
        rows.append(row)
        curves.append(curve)
        print(f"theorem {case.theorem}  {case.name}: " + "; ".join(f"{key} {row[key]['order']}: worst ratio {row[key]['worst ratio after the first decade']:.3f}" for key in ("gap", "stationarity")) + f"  ({row['seconds']} s)", flush=True)
    proved = admissible(min(steps, 20_000))
    for row in proved["cases"]:
        print(f"admissible steps, {row['c']}: at most {row['largest ratio to the bound']:.2e} of Theorem 1's bound")
    options.out.mkdir(parents=True, exist_ok=True)
    for theorem in (1, 2):
        chosen = [i for i, case in enumerate(cases) if case.theorem == theorem]
        picture(theorem, [rows[i] for i in chosen], [curves[i] for i in chosen], options.out / f"rates-theorem-{theorem}.png")
    facts = {"first decade": [FIRST, SECOND], "torch": torch.__version__, "machine": platform.machine(), "threads": 1}
    (options.out / "rates.json").write_text(json.dumps({"rows": rows, "admissible": proved, **facts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
