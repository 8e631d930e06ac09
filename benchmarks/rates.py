"""Measured rates of both theorems: fit C in C T^-r on the first decade, look for violations on the
later ones.

    python benchmarks/rates.py [--out DIR] [--steps T] [--quick] [--redraw]

For every case the theorem's r is taken, C is the smallest constant for which the bound holds for T
= 10 ... 100, and the largest ratio of what is measured to C T^-r beyond is reported: at most 1
where the theorem's order is kept (a thousandth more is no violation: a constant order is met by a
limit that may be approached from below).  Measured are the gap g - v_gamma at T and min_{t <= T}
H_p with the paper's multipliers, both exact (proximal points solved to 1e-10); for Theorem 2 their
means over 20 seeds.  The steps are those of `MOMEHA.tuned` on the theorems' schedules: with the
admissible ones, which are thousands of times smaller, the first decade would show a run that has
not moved.  (The choice matters: with steps so small that the first hundred iterations are
transient, the constant fitted there is too small, and says nothing against the theorem.)  A last
case runs the admissible steps, on the quadratic, against Theorem 1's bound with the constant that
its proof gives.

Writes rates.json and one picture per theorem into DIR (docs/results); `--redraw` only makes the
pictures, from rates.json.
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
from bipareto.fronts.drawing import COLOURS, save
from bipareto.methods.momeha import MomehaState
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.schedule import theorem1, theorem2
from bipareto.methods.theory.admissible import bounds_of
from bipareto.methods.theory.constants import Deterministic
from bipareto.methods.theory.smoothness import lower_bound, start_merit
from bipareto.problem import tree
from bipareto.problem.sampler import Role, generator
from bipareto.run.monitors import Gap, Stationarity
from bipareto.run.steppers import stepper

FIRST, SECOND = 10, 100
PREFERENCES = [[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]]
SEEDS, NOISE, DELTA = 20, 0.1, 0.05
#: The nonconvex lower level is entered from its own solution: from elsewhere the gap has stationary
#: points of its own, and P is not bounded.
WARMUP = {"quadratic": 0, "pl-sin2": 300}
#: noise is drawn for this many steps at a time
BLOCK = 1000

Draws = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Order:
    """T^-power, times sqrt(ln T) where `log`."""

    power: float
    log: bool = False

    def __call__(self, T: Tensor) -> Tensor:
        return T**-self.power * (T.log().sqrt() if self.log else 1)

    def __str__(self) -> str:
        return ("O(1)" if not self.power else f"T^-{self.power:g}") + (
            " sqrt(ln T)" if self.log else ""
        )


@dataclass(frozen=True)
class Case:
    """One theorem on one problem: the method, its runs, and the orders that the theorem gives."""

    theorem: int
    name: str
    problem: bp.Problem
    method: bp.MOMEHA
    states: list[MomehaState]
    draws: Draws
    gap: Order
    stationarity: Order


def deterministic(name: str, growing: bool) -> Case:
    """Theorem 1: c_t = c_0 (1 + t)^(1/4), or constant; three preferences."""
    problem = bp.problems.get(name)
    tuned = bp.MOMEHA.tuned(problem, problem.x0, problem.y0)
    method = replace(tuned, warmup=WARMUP[name], **theorem1(float(tuned.c.scale), growing=growing))  # type: ignore[arg-type, union-attr]
    start = method.prepare(problem, problem.x0, problem.y0)
    states = [method.begin(start, w) for w in PREFERENCES]
    orders = (Order(0.25), Order(0.25)) if growing else (Order(0.0), Order(0.5))
    label = f"{name}, d = {problem.x0.numel()}, c " + (
        "grows as (1+t)^1/4" if growing else "constant"
    )
    return Case(1, label, problem, method, states, lambda t: {}, *orders)


def stochastic(name: str, growing: bool) -> Case:
    """Theorem 2 with noise on every gradient coordinate: c_t = c_0 (1 + t)^(1/16), or constant with
    delta; one run per seed.
    """
    options: dict[str, Any] = {"dim": 5, "kappa": 1.0} if name == "pl-sin2" else {"dim": 5}
    known, problem = bp.problems.get(name, **options), bp.problems.get(name, noise=NOISE, **options)
    tuned = bp.MOMEHA.tuned(known, known.x0, known.y0)
    # x moves by sum alpha_x,t/c_t, which grows like T^(1/4) at best: the largest steps that y
    # bears, and a penalty no larger than it needs.
    alpha = (1.5 if name == "pl-sin2" else 1.0) * float(tuned.alpha_y.value)  # type: ignore[union-attr]
    schedules = theorem2(
        alpha, alpha, alpha, c0=2.0, k=alpha ** (-2 / 3), delta=None if growing else DELTA
    )
    method = bp.MBMOMEHA(
        gamma=tuned.gamma, mu=tuned.mu, ideal=tuned.ideal, warmup=WARMUP[name], **schedules
    )
    states = [method.init(problem, known.x0, known.y0)] * SEEDS
    orders = (
        (Order(1 / 16), Order(1 / 16, log=True)) if growing else (Order(0.0), Order(1 / 8 - DELTA))
    )
    label = f"{name}, d = 5, c " + (
        "grows as (1+t)^1/16" if growing else f"constant, delta = {DELTA}"
    )
    return Case(
        2, label, problem, method, states, noise(method.roles(known.m), known.x0, known.y0), *orders
    )


def noise(roles: tuple[Role, ...], x0: Tensor, y0: Tensor) -> Draws:
    """Draws of all seeds side by side, a block of steps at a time: `oracle.noisy` would draw (role,
    step, seed) one by one.
    """
    block: dict[tuple[Role, str], Tensor] = {}

    def draw(t: int) -> dict[Role, Any]:
        if t % BLOCK == 0:
            for role in roles:
                stream = generator(f"noise-{role}", t // BLOCK, 0)
                for name, like in (("x", x0), ("y", y0)):
                    block[role, name] = NOISE * torch.randn(
                        BLOCK, SEEDS, *like.shape, generator=stream, dtype=like.dtype
                    )
        return {
            role: {"batch": (), "x": block[role, "x"][t % BLOCK], "y": block[role, "y"][t % BLOCK]}
            for role in roles
        }

    return draw


def watched(case: Case, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """T (40 per decade), the gap and H_p at each (T, R)."""
    wanted = sorted(
        {min(steps, round(10 ** (i / 40))) for i in range(40 * math.ceil(math.log10(steps)) + 1)}
    )
    gap, stationarity = Gap(case.problem), Stationarity(case.problem)
    state = tree.stack(case.states)
    step = stepper(
        case.problem, case.method, batched=True, shared_draw=case.theorem == 1, compile=True
    )
    t = 0
    for T in wanted:
        packed = step.pack(state, case.draws(t))
        with step.unguarded():
            while t < T:
                packed, _ = step.advance(packed, case.draws(t))
                t += 1
        state = step.unpack(packed)
        gap.see(state)
        stationarity.see(state)
    return torch.tensor(gap.steps, dtype=torch.float64), gap.values, stationarity.values


def judge(T: Tensor, values: Tensor, order: Order) -> dict[str, Any]:
    """C on the first decade for every column, the worst ratio to C T^-r after it, and the slope
    measured over the last two decades.
    """
    shape = order(T)[:, None]
    first, later = (T >= FIRST) & (T <= SECOND), T > SECOND
    C = (values[first] / shape[first]).amax(0)
    ratio = values[later] / (C * shape[later])
    tail = T[-1] / 100 <= T
    x = T[tail].log() - T[tail].log().mean()
    y = values[tail].clamp_min(1e-300).log()
    slope = (x[:, None] * (y - y.mean(0))).sum(0) / x.square().sum()
    return {
        "order": str(order),
        "power": order.power,
        "log": order.log,
        "C": C.tolist(),
        "worst ratio after the first decade": float(ratio.max()),
        "violations": int((ratio > 1.001).sum()),
        "measured slope of the last two decades": slope.tolist(),
        "last": values[-1].tolist(),
    }


def run(case: Case, steps: int) -> dict[str, Any]:
    """Measure one case: its row of rates.json, with its curves."""
    begin = time.perf_counter()
    T, gap, stationarity = watched(case, steps)
    if case.theorem == 2:
        gap, stationarity = gap.mean(1, keepdim=True), stationarity.mean(1, keepdim=True)
    best = stationarity.cummin(0).values
    row = {
        "theorem": case.theorem,
        "case": case.name,
        "steps": steps,
        "runs": len(case.states),
        "method": {
            name: str(getattr(case.method, name))
            for name in ("gamma", "mu", "alpha_theta", "alpha_x", "alpha_y", "c", "warmup")
        },
        "gap": judge(T, gap, case.gap),
        "stationarity": judge(T, best, case.stationarity),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(case.name, row["seconds"], "s", flush=True)
    curves = {"T": T, "gap": gap, "stationarity": best}
    # Ten points a decade, and all of the first one, are enough to draw the picture again.
    kept = [i for i, t in enumerate(T.tolist()) if t <= FIRST or i % 4 == 0 or i == len(T) - 1]
    row["curves"] = {
        key: [
            [float(f"{v:.4g}") for v in line]
            for line in values[kept].reshape(len(kept), -1).tolist()
        ]
        for key, values in curves.items()
    }
    return row


def admissible(steps: int) -> list[dict[str, Any]]:
    """Admissible steps on the quadratic against Theorem 1's bound for min H_p with the constant
    that its proof gives.
    """
    problem = bp.problems.get("quadratic")
    rows = []
    for growing in (True, False):
        c = theorem1(growing=growing)["c"]
        method = bp.MOMEHA.admissible(
            problem, problem.x0, problem.y0, constants=problem.constants, c=c
        )
        bounds = bounds_of(method, problem, problem.x0, problem.y0, constants=problem.constants)
        assert isinstance(bounds, Deterministic)
        state = method.init(problem, problem.x0, problem.y0)
        T, gap, stationarity = watched(
            Case(1, "admissible", problem, method, [state], lambda t: {}, Order(0), Order(0)), steps
        )
        form = scalarization.get("stch")
        F = float(
            form.value(
                problem.upper(state.x, state.y), state.preference, state.ideal, state.knobs.mu
            )
        )
        merit = (F - lower_bound(form, 2, method.mu)) / bounds.c0 + start_merit(
            problem, state.x, state.y, bounds.L_g, method.gamma
        )
        best = stationarity[:, 0].cummin(0).values
        alpha_x, alpha_y = (float(s.value) for s in (method.alpha_x, method.alpha_y))  # type: ignore[union-attr]
        promised = [
            bounds.stationarity_bound(
                int(t), merit, alpha_x, alpha_y, power=0.25 * growing, smallest_weight=0.5
            )
            for t in T
        ]
        rows.append(
            {
                "problem": "quadratic",
                "steps": steps,
                "c": str(method.c),
                "alpha_x": alpha_x,
                "alpha_y": alpha_y,
                "V_0": merit,
                "largest ratio to the bound": float(
                    (best / torch.tensor(promised, dtype=torch.float64)).max()
                ),
                "min H": float(best[-1]),
                "bound": promised[-1],
                "gap never above V_0": bool((gap <= merit).all()),
            }
        )
    return rows


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Two panels, gap and best stationarity, every case of one theorem with its fitted bound."""
    from matplotlib.figure import Figure

    theorem = rows[0]["theorem"]
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for axes, key, label in zip(
        panels,
        ("gap", "stationarity"),
        ("gap  g − v_γ  at T", "smallest H_p up to T  (drawn from 1e-12)"),
        strict=True,
    ):
        for row, colour in zip(rows, COLOURS[: len(rows)], strict=True):
            T = torch.tensor(row["curves"]["T"], dtype=torch.float64).flatten()
            values = torch.tensor(row["curves"][key], dtype=torch.float64).clamp_min(1e-12)
            axes.loglog(
                T,
                values,
                color=colour,
                lw=1.3,
                label=[row["case"], *[None] * (values.shape[1] - 1)],
            )
            after, order = T[T >= FIRST], Order(row[key]["power"], row[key]["log"])
            axes.loglog(
                after,
                max(row[key]["C"]) * order(after),
                "--",
                color=colour,
                lw=1,
                label=f"its bound, {order}",
            )
        axes.axvspan(FIRST, SECOND, color="0.92", zorder=0)
        axes.set_xlabel("T   (the constants are fitted on the shaded decade)")
        axes.set_ylabel(label)
        axes.grid(visible=True, which="major", lw=0.4)
        axes.legend(
            fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False
        )  # inside it would cover curves
    runs = (
        f"means over {SEEDS} seeds, noise {NOISE} on every gradient coordinate"
        if theorem == 2
        else "three preferences"
    )
    figure.suptitle(f"Theorem {theorem}, measured against its orders ({runs})")
    save(figure, path)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="3,000 steps, to see that it runs")
    parser.add_argument("--redraw", action="store_true", help="only draw what rates.json holds")
    options = parser.parse_args()
    if options.redraw:
        draw(json.loads((options.out / "rates.json").read_text())["rows"], options.out)
        return
    steps = 3_000 if options.quick else options.steps
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    everything = []
    for make in (deterministic, stochastic):
        cases = [make(name, growing) for name in WARMUP for growing in (True, False)]
        everything += [run(case, steps) for case in cases]
    for row in everything:
        worst = "; ".join(
            f"{key} {row[key]['order']}: worst ratio "
            f"{row[key]['worst ratio after the first decade']:.3f}"
            for key in ("gap", "stationarity")
        )
        print(f"theorem {row['theorem']}, {row['case']}: {worst}")
    proved = admissible(min(steps, 20_000))
    for row in proved:
        print(
            f"admissible steps, {row['c']}: at most {row['largest ratio to the bound']:.2e} of "
            "Theorem 1's bound"
        )
    facts = {
        "first decade": [FIRST, SECOND],
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": 1,
    }
    draw(everything, options.out)
    write({"rows": everything, "admissible": proved, **facts}, options.out / "rates.json")


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """One picture per theorem."""
    for theorem in (1, 2):
        picture(
            [row for row in rows if row["theorem"] == theorem],
            folder / f"rates-theorem-{theorem}.png",
        )


def write(facts: dict[str, Any], path: Path) -> None:
    """JSON with one line per row: the curves are long."""
    lines = [
        f'"{key}": '
        + (
            "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
            if key == "rows"
            else json.dumps(value)
        )
        for key, value in facts.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
