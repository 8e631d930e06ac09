"""Measured rates of both theorems, with the steps of `tuned` and with admissible ones.

    python benchmarks/rates.py [--out DIR] [--steps T] [--quick] [--redraw]

*Tuned steps on the theorems' schedules.*  For every case the theorem's r is taken and C is the
smallest constant for which C T^-r (with the theorem's logarithm) holds for T = 10 ... 100.  A line
holds where two things do:

- *bound*: nothing measured beyond exceeds C T^-r (a thousandth more is no violation: a constant
  order is met by a limit that may be approached from below);
- *fall*: from T = 100 to the end the quantity falls at least as T^-r, without the logarithm.
  Orders such as T^-1/16 sqrt(ln T) are so flat that a run which never improves keeps the bound; it
  does not fall.  An order O(1) asks for no fall.

Measured are the gap g - v_gamma at T and min_{t <= T} H_p with the paper's multipliers, both exact
(proximal points solved to 1e-10); for Theorem 2 their means over 20 seeds.

*Admissible steps*, thousands of times smaller: no run of 10^5 steps comes far, so the inequality is
measured that the rate follows from.  Theorem 1: || grad (F/c_t + g - v_gamma) ||^2 <= C_D (V_t -
V_t+1), at every t, both sides with one c_t, and best H_p against its bound with the proof's own
constant.  Theorem 2: the mean merit's excess over what the lemma allows.  A run that stands still
has a gradient and no fall of V, and fails both.

*Assumption 4* grants the directions a bias b = O(alpha_theta^(2/3)): it comes from weights tau that
are taken from noisy values.  It is measured on the algorithm's own first step, for several batch
sizes, with values drawn and with exact weights.

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
from bipareto.methods.parts.schedule import Power, theorem1, theorem2
from bipareto.methods.theory.constants import Deterministic, Order, momeha_orders, stochastic_orders
from bipareto.methods.theory.smoothness import lower_bound, start_merit
from bipareto.methods.theory.stochastic import Stochastic
from bipareto.methods.tuning.envelope_methods import tune_momeha
from bipareto.problem import tree
from bipareto.problem.sampler import Role, generator
from bipareto.run.monitors import Gap, Stationarity, StochasticMerit, Tracking
from bipareto.run.steppers import stepper

FIRST, SECOND = 10, 100
PREFERENCES = [[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]]
SEEDS, NOISE, DELTA = 20, 0.1, 0.05
#: The nonconvex lower level is entered from its own solution: from elsewhere the gap has stationary
#: points of its own, and P is not bounded.
WARMUP = {"quadratic": 0, "pl-sin2": 300}
#: what is smaller is rounding, and has fallen
ROUNDING = 1e-11
#: steps of runs with admissible steps, of Theorems 1 and 2
PROVED = (2000, 200)
#: noise of Theorem 2's lemma: with more, what the lemma allows for it would also cover a run that
#: stands still
SMALL_NOISE = 1e-3
#: noise is drawn for this many steps at a time
BLOCK = 1000

Draws = Callable[[int], dict[str, Any]]


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
    tuned = bp.MOMEHA(**tune_momeha(problem, problem.x0, problem.y0))
    method = replace(tuned, warmup=WARMUP[name], **theorem1(float(tuned.c.scale), growing=growing))  # type: ignore[arg-type, union-attr]
    start = method.prepare(problem, problem.x0, problem.y0)
    states = [method.begin(start, w) for w in PREFERENCES]
    orders = momeha_orders(0.25 * growing)
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
    tuned = bp.MOMEHA(**tune_momeha(known, known.x0, known.y0))
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
    orders = stochastic_orders(3 / 8, 1 / 16) if growing else stochastic_orders(3 / 8 + DELTA, 0)
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
    """Whether what is measured (T, R) keeps its bound and falls, with the figures that say so."""
    shape = order(T)[:, None]
    first, later = (T >= FIRST) & (T <= SECOND), T > SECOND
    C = (values[first] / shape[first]).amax(0)
    ratio = values[later] / (C * shape[later])
    begin, end = values[first][-1], values[-1]
    asked = (float(T[-1]) / float(T[first][-1])) ** -order.power
    fall = torch.where(end <= ROUNDING, 0.0, end / begin)
    tail = T[-1] / 100 <= T
    x = T[tail].log() - T[tail].log().mean()
    y = values[tail].clamp_min(1e-300).log()
    slope = (x[:, None] * (y - y.mean(0))).sum(0) / x.square().sum()
    bound, falls = bool((ratio <= 1.001).all()), bool((fall <= asked).all()) or not order.power
    return {
        "order": str(order),
        "power": order.power,
        "log": order.log,
        "C": C.tolist(),
        "worst ratio after the first decade": float(ratio.max()),
        "violations": int((ratio > 1.001).sum()),
        "left of the value at T = 100": fall.tolist(),
        "asked to be left, at most": asked,
        "measured slope of the last two decades": slope.tolist(),
        "last": end.tolist(),
        "bound": bound,
        "falls": falls,
        "holds": bound and falls,
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


def descent(problem: bp.Problem, method: bp.MOMEHA, states: MomehaState) -> dict[str, Any]:
    """Theorem 1's lemma on consecutive states (T + 1, ...) of one run: the largest ratio of || grad
    (F/c_t + g - v_gamma) ||^2 at t + 1 to C_D (V_t - V_t+1), both with c_t, and best H_p.
    """
    bounds = method.bounds(
        problem,
        tree.select(states.x, 0),
        tree.select(states.y, 0),
        constants=problem.constants,  # type: ignore[attr-defined]
    )
    assert isinstance(bounds, Deterministic)
    gap, lag, stationarity = Gap(problem), Tracking(problem), Stationarity(problem)
    for monitor in (gap, lag, stationarity):
        for t in range(len(states.t)):
            monitor.see(tree.select(states, t))
    form, knobs = scalarization.get("stch"), tree.select(states.knobs, 0)
    f = torch.func.vmap(problem.upper)(states.x, states.y)
    w, z = states.preference[0], states.ideal[0]
    F = torch.stack([form.value(row, w, z, knobs.mu) for row in f])
    s = torch.stack([form.weights(row, w, z, knobs.mu).sum() for row in f])
    c = knobs.c(states.t).expand(len(states.t))
    rest = gap.values + bounds.C_V * lag.values.square()
    above = F - lower_bound(form, f.shape[1], method.mu)
    fall = above[:-1] / c[:-1] + rest[:-1] - above[1:] / c[:-1] - rest[1:]
    gradient = stationarity.values[1:] * s[1:] / c[:-1]
    alpha_x, alpha_y = (float(a.value) for a in (method.alpha_x, method.alpha_y))  # type: ignore[union-attr]
    ratio = gradient.square() / (bounds.C_D(alpha_x, alpha_y) * fall.clamp_min(1e-300))
    merit = float(above[0]) / bounds.c0 + start_merit(
        problem, tree.select(states.x, 0), tree.select(states.y, 0), bounds.L_g, method.gamma
    )
    power = float(getattr(method.c, "power", 0.0))
    promised = torch.tensor(
        [
            bounds.stationarity_bound(
                t, merit, alpha_x, alpha_y, power=power, smallest_weight=float(w.min())
            )
            for t in range(1, len(states.t))
        ]
    )
    best = stationarity.values[1:].cummin(0).values
    return {
        "steps": len(states.t) - 1,
        "c": str(method.c),
        "alpha_x": alpha_x,
        "alpha_y": alpha_y,
        "V_0": merit,
        "largest ratio in the lemma": float(ratio.max()),
        "largest ratio to the bound": float((best / promised).max()),
        "min H": float(best[-1]),
        "bound": float(promised[-1]),
        "gap never above V_0": bool((gap.values <= merit).all()),
        "holds": bool((ratio <= 1).all()) and bool((best <= promised).all()),
    }


def iterates(problem: bp.Problem, method: bp.MOMEHA, steps: int) -> MomehaState:
    """All states of a run of equal preference, stacked."""
    state = method.init(problem, problem.x0, problem.y0)  # type: ignore[attr-defined]
    states = [state]
    for _ in range(steps):
        states.append(method.step(problem, states[-1])[0])
    return tree.stack(states)


def admissible(steps: int) -> list[dict[str, Any]]:
    """Theorem 1 with admissible steps: see `descent`."""
    rows = []
    for name in WARMUP:
        problem = bp.problems.get(name)
        for growing in (True, False):
            method = bp.MOMEHA.admissible(
                problem,
                problem.x0,
                problem.y0,
                constants=problem.constants,
                c=theorem1(growing=growing)["c"],
            )
            row = descent(problem, method, iterates(problem, method, steps))
            rows.append({"theorem": 1, "problem": name} | row)
    return rows


def noisy_merit(problem: Any, method: bp.MBMOMEHA, states: list[MomehaState]) -> dict[str, Any]:
    """Theorem 2's lemma on consecutive states of many runs: the largest excess of the mean merit
    over what the lemma allows, in shares of it, and what a descent must show besides: F/c_t + g -
    v_gamma falls, in the mean, by a quarter of alpha ||its gradient||^2 at least (the merit's own
    weights fall with the steps, so that alone would also fall for a run that stands still).
    """
    bounds = method.bounds(problem, problem.x0, problem.y0, constants=problem.constants)
    assert isinstance(bounds, Stochastic)
    variance = problem.noise**2 * problem.x0.numel()
    # Noise on every coordinate of grad_y g and of every grad f_i (weights at most 1/2 each, over
    # c >= 1); none is left of g in x, where both terms share their draw.
    merit = StochasticMerit(problem, bounds, (variance, 0.5 * variance, 1.5 * variance), tol=1e-12)
    for state in states:
        merit.see(state)
    excess, V = merit.mean_excess, merit.values.mean(-1)
    rows, shape = merit._rows(tree.stack(states))
    look, k = merit._look(rows), rows.knobs
    c = k.c(rows.t).expand(rows.t.shape)
    F, gap = look.scalarized.reshape(shape), look.gap.reshape(shape)
    c_t = c.reshape(shape)[:-1]
    fall = F[:-1] / c_t + gap[:-1] - F[1:] / c_t - gap[1:]
    slope = (look.gradient / c[:, None] + look.normal).square()
    n = problem.x0.numel()
    promised = k.alpha_x(rows.t) * slope[:, :n].sum(1) + k.alpha_y(rows.t) * slope[:, n:].sum(1)
    share = float(fall.mean(1).sum() / promised.reshape(shape)[:-1].mean(1).sum())
    return {
        "steps": len(states) - 1,
        "runs": len(states[0].t),
        "c": str(method.c),
        "alpha_theta": str(method.alpha_theta),
        "largest excess": float(excess.max()),
        "V at the end over V_0": float(V[-1] / V[0]),
        "fall over alpha ||gradient||^2": share,
        "holds": bool((excess <= 0).all()) and share >= 0.25,
    }


def noisy_admissible(steps: int) -> list[dict[str, Any]]:
    """Theorem 2 with admissible steps: see `noisy_merit`."""
    rows = []
    for name in WARMUP:
        problem = bp.problems.get(name, dim=3, noise=SMALL_NOISE)
        for delta in (None, DELTA):
            method = bp.MBMOMEHA.admissible(
                problem, problem.x0, problem.y0, constants=problem.constants, delta=delta
            )
            kept = [tree.stack([method.init(problem, problem.x0, problem.y0)] * SEEDS)]
            front = bp.front(
                problem,
                problem.x0,
                problem.y0,
                preferences=[[0.5, 0.5]],
                seeds=range(SEEDS),
                method=method,
                steps=steps,
                record_every=1,
                callbacks=[lambda record, kept=kept: kept.append(record.state)],
                compile=False,
                progress=False,
            )
            assert len(front) == SEEDS
            rows.append({"theorem": 2, "problem": name} | noisy_merit(problem, method, kept))
    return rows


def bias(draws: int = 4000) -> list[dict[str, Any]]:
    """Assumption 4: || E d_y - d_y || of the first step's direction, over batch sizes and with
    exact weights; its standard error beside it, and alpha_theta^(2/3) of Theorem 2's schedule.

    512 samples shift the centres of two quadratic objectives; a draw of b of them serves an
    objective's value, and so its weight, and its gradient.
    """
    stream = torch.Generator().manual_seed(0)
    shifts = torch.randn(512, 2, 2, generator=stream, dtype=torch.float64)
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    zero, theta = torch.zeros(2, dtype=torch.float64), Power(0.3, -3 / 8)

    def upper(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return ((y - centres - shifts[batch]).square().sum(-1)).mean(0) + 0 * x.sum()

    def lower(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (y - x).square().sum() + 0 * batch.sum()

    rows = []
    for exact in (False, True):
        for size in (1, 4, 16, 64):

            def sampler(role: Role, t: int, seed: int, size: int = size) -> Tensor:
                if role.full:
                    return torch.arange(512)
                return torch.randint(512, (size,), generator=generator(str(role), t, seed))

            problem = bp.Problem(upper, lower, sampler=sampler)
            method = bp.MBMOMEHA(
                gamma=0.5,
                mu=1.0,
                alpha_theta=0.3,
                alpha_x=0.1,
                alpha_y=0.1,
                c=1.0,
                beta=0.0,
                exact_weights=exact,
            )
            state = method.init(problem, zero, zero, [0.5, 0.5])
            roles = method.roles(2)
            batches = tuple(
                torch.stack([sampler(role, 0, seed) for seed in range(draws)]) for role in roles
            )

            def direction(
                state: MomehaState, *drawn: Tensor, method: Any = method, problem: Any = problem
            ) -> Tensor:
                batch = dict(zip(method.roles(2), drawn, strict=True))
                return (state.y - method.step(problem, state, batch)[0].y) / 0.1

            exactly = direction(state, *[torch.arange(512) for _ in roles])
            seen = torch.func.vmap(direction)(tree.stack([state] * draws), *batches)
            rows.append(
                {
                    "exact weights": exact,
                    "batch": size,
                    "bias": float((seen.mean(0) - exactly).norm()),
                    "standard error": float((seen.var(0).sum() / draws).sqrt()),
                    "direction": float(exactly.norm()),
                }
            )
    t = torch.tensor([0.0, 1e2, 1e4], dtype=torch.float64)
    rows.append({"alpha_theta^(2/3) at t = 0, 100, 10000": (theta(t) ** (2 / 3)).tolist()})
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
            f"{row[key]['worst ratio after the first decade']:.3f}, left "
            f"{max(row[key]['left of the value at T = 100']):.2g} of {asked(row[key])}, "
            f"{'holds' if row[key]['holds'] else 'FAILS'}"
            for key in ("gap", "stationarity")
        )
        print(f"theorem {row['theorem']}, {row['case']}: {worst}")
    first, second = (min(steps, most) for most in PROVED)
    proved = admissible(first) + noisy_admissible(second)
    for row in proved:
        figure = row.get("largest ratio in the lemma", row.get("largest excess"))
        print(
            f"theorem {row['theorem']}, {row['problem']}, admissible steps, {row['c']}: "
            f"{'holds' if row['holds'] else 'FAILS'} ({figure:.3g})"
        )
    biases = bias(200 if options.quick else 4000)
    print(*biases, sep="\n")
    facts = {
        "first decade": [FIRST, SECOND],
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": 1,
        "command": f"python benchmarks/rates.py --steps {steps}",
        "date": time.strftime("%Y-%m-%d"),
    }
    draw(everything, options.out)
    write(
        {"rows": everything, "admissible": proved, "bias": biases, **facts},
        options.out / "rates.json",
    )


def asked(row: dict[str, Any]) -> str:
    """How much of its value at T = 100 a quantity may have left at the end."""
    return f"at most {row['asked to be left, at most']:.2g}" if row["power"] else "anything"


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
