"""The default call on ten small networks against rivals with as many gradients.

    python benchmarks/networks.py [--json FILE] [--problems NAME,...] [--seeds 0,1,2]

Every x that anybody returns is judged alike: y is trained from its start on g, 200 steps of Adam on
batches of 128, at the rate of a ladder that is best with x at x0, and the objectives are taken on
data that neither f nor g saw.  The budget is what MB-MOMEHA's runs of the given steps would cost,
P steps (4 + 2m) gradients; a training of a rival costs its 200.  One answer per preference:
searches return for each the best x they have trained, by the smooth Tchebycheff scalarization on
f's data.  The one-step unrolled rival is run with four step sizes of x, each with the full budget;
its best figure counts.  Hypervolume is taken below log 10, the loss of guessing.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
import torch
from network_problems import DEVELOPMENT, PROBLEMS, Batch, NetworkProblem
from scipy.stats import spearmanr
from torch import Tensor
from torch.func import grad, vmap

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.fronts.measures import hypervolume
from bipareto.run.race import value_of

#: steps of a training, and of MB-MOMEHA's runs that set the budget (fewer where a step is slow)
TRAINING, STEPS = 200, {"cnnmix": 200, "transformer": 300}
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
#: steps of x of the unrolled rival
ALPHAS = (1.0, 10.0, 100.0, 1000.0)


def preferences(m: int) -> Tensor:
    """Five, four and five of them for two, three and four objectives."""
    if m == 2:
        first = torch.tensor([0.2, 0.35, 0.5, 0.65, 0.8])
        return torch.stack([first, 1 - first], 1)
    lean = 0.4 * torch.eye(m) + (0.2 if m == 3 else 0.15)
    return torch.cat([lean, torch.full((1, m), 1 / m)])


def drawn(data: Batch, stream: torch.Generator, size: int) -> Batch:
    """Rows of every part of the data, the same ones."""
    index = torch.randint(len(data[0]), (size,), generator=stream)
    return tuple(part[index] for part in data)


class Judge:
    """Trains y from scratch and takes the objectives."""

    def __init__(self, problem: NetworkProblem) -> None:
        self.problem = problem
        centre = torch.full((problem.m,), 1 / problem.m)
        values = []
        for rate in RATES:
            y = self.train(problem.x0[None], 4242, rate)
            values.append(float(value_of(problem.f(problem.x0, y[0], problem.upper), centre)))
        self.rate = RATES[values.index(min(values))]

    def train(self, x: Tensor, seed: int, rate: float | None = None) -> Tensor:
        stream = torch.Generator().manual_seed(9000 + seed)
        y = self.problem.y0.expand(len(x), -1).clone()
        mean, square = torch.zeros_like(y), torch.zeros_like(y)
        gradient = vmap(grad(self.problem.g, argnums=1), in_dims=(0, 0, None))
        rate = self.rate if rate is None else rate
        for t in range(TRAINING):
            d = gradient(x, y, drawn(self.problem.lower, stream, 128))
            mean, square = 0.9 * mean + 0.1 * d, 0.999 * square + 0.001 * d * d
            step = rate * 0.5 * (1 + math.cos(math.pi * t / TRAINING))
            root = torch.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8
            y = y - step * (mean / (1 - 0.9 ** (t + 1))) / root
        return y

    def objectives(self, x: Tensor, y: Tensor, data: Batch) -> Tensor:
        with torch.no_grad():
            parts = [
                vmap(self.problem.f, in_dims=(0, 0, None))(x[i : i + 16], y[i : i + 16], data)
                for i in range(0, len(x), 16)
            ]
        return torch.cat(parts)

    def searched(self, x: Tensor, seed: int) -> Tensor:
        """What a search sees of its points: f's data, after a training."""
        return self.objectives(x, self.train(x, seed), self.problem.upper)

    def __call__(self, x: Tensor, seed: int) -> dict[str, Any]:
        x = torch.nan_to_num(x, nan=0.0, posinf=50.0, neginf=-50.0)
        y = self.train(x, seed + 77)
        valid, test = (
            self.objectives(x, y, data) for data in (self.problem.upper, self.problem.test)
        )
        row: dict[str, Any] = {
            "hypervolume": round(below(test), 4),
            "validation": round(below(valid), 4),
        }
        w = preferences(self.problem.m)
        if len(x) == len(w):
            ranks = [spearmanr(w[:, i], test[:, i]).statistic for i in range(w.shape[1])]
            row["rank_correlation"] = round(statistics.mean(map(float, ranks)), 3)
        return row


def below(objectives: Tensor) -> float:
    """Hypervolume below the loss of guessing."""
    good = torch.isfinite(objectives).all(1)
    return hypervolume(objectives[good], [math.log(10)] * objectives.shape[1])


def best_of(x: Tensor, objectives: Tensor, w: Tensor) -> Tensor:
    """For each preference the best of the points that a search has trained."""
    return x[[int(value_of(objectives, row).argmin()) for row in w]]


def random_search(judge: Judge, budget: int, seed: int) -> Tensor:
    """Points of the box at random, x0 among them."""
    problem = judge.problem
    low, high = problem.box or (problem.x0, problem.x0)
    count, stream = budget // TRAINING, torch.Generator().manual_seed(seed)
    x = low + (high - low) * torch.rand(count, len(problem.x0), generator=stream)
    x[0] = problem.x0
    f = torch.cat([judge.searched(x[i : i + 32], seed) for i in range(0, count, 32)])
    return best_of(x, f, preferences(problem.m))


def optuna_search(judge: Judge, budget: int, seed: int, kind: str) -> Tensor:
    """TPE or NSGA-II over the box, x0 first."""
    problem, count = judge.problem, budget // TRAINING
    low, high = (side.tolist() for side in problem.box or (problem.x0, problem.x0))
    sampler: optuna.samplers.BaseSampler
    if kind == "tpe":
        sampler, side_by_side = optuna.samplers.TPESampler(seed=seed, constant_liar=True), 8
    else:
        sampler, side_by_side = optuna.samplers.NSGAIISampler(seed=seed, population_size=16), 16
    study = optuna.create_study(directions=["minimize"] * problem.m, sampler=sampler)
    study.enqueue_trial({f"x{i}": float(v) for i, v in enumerate(problem.x0)})
    points: list[Tensor] = []
    values: list[Tensor] = []
    while len(points) < count:
        trials = [study.ask() for _ in range(min(side_by_side, count - len(points)))]
        x = torch.tensor(
            [[t.suggest_float(f"x{i}", low[i], high[i]) for i in range(len(low))] for t in trials]
        )
        f = judge.searched(x, seed)
        for trial, row in zip(trials, f, strict=True):
            study.tell(trial, [float(v) for v in row.nan_to_num(nan=50.0)])
        points += list(x)
        values += list(f)
    return best_of(torch.stack(points), torch.stack(values), preferences(problem.m))


def unrolled(problem: NetworkProblem, budget: int, seed: int) -> list[Tensor]:
    """Alternating SGD with a one-step unrolled hypergradient, for every step size of x."""
    w = preferences(problem.m)
    runs = len(w)
    steps = budget // (runs * (3 + problem.m))
    stream = torch.Generator().manual_seed(seed)
    alpha = torch.tensor(ALPHAS).repeat_interleave(runs)[:, None]
    w = w.repeat(len(ALPHAS), 1)
    x, y = (v.expand(len(w), -1).clone() for v in (problem.x0, problem.y0))
    velocity, rate, momentum = torch.zeros_like(y), 0.1, 0.9

    def ahead(x: Tensor, y: Tensor, w: Tensor, lower: Batch, upper: Batch) -> Tensor:
        f = problem.f(x, y - rate * grad(problem.g, 1)(x, y, lower), upper)
        return (w * torch.softmax(4 * w * f.detach(), -1) * f).sum()

    along = vmap(grad(ahead), in_dims=(0, 0, 0, None, None))
    learn = vmap(grad(problem.g, 1), in_dims=(0, 0, None))
    for t in range(steps):
        lower = drawn(problem.lower, stream, problem.size)
        upper = drawn(problem.upper, stream, problem.size)
        fall = 0.5 * (1 + math.cos(math.pi * t / steps))
        x = x - alpha * fall * along(x, y, w, lower, upper)
        velocity = momentum * velocity + learn(x, y, lower)
        y = y - rate * (1 - momentum) * fall * velocity
    return list(x.split(runs))


def default(problem: NetworkProblem, steps: int, seed: int) -> bp.ParetoFront:
    """The library's call, without a method."""
    w = preferences(problem.m).double()
    size = min(problem.size, len(problem.lower[0]), len(problem.upper[0]))
    sampler = bp.sampler.Minibatches(lower=problem.lower, upper=problem.upper, size=size)
    made = bp.Problem(upper=problem.f, lower=problem.g, sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        return bp.front(
            made,
            problem.x0,
            problem.y0,
            preferences=w / w.sum(1, keepdim=True),
            seeds=[seed],
            steps=steps,
            progress=False,
        )


def measured(name: str, seed: int) -> dict[str, Any]:
    """One row of the table."""
    problem = PROBLEMS[name](seed)
    judge, steps = Judge(problem), STEPS.get(name, 600)
    budget = len(preferences(problem.m)) * steps * (4 + 2 * problem.m)
    row: dict[str, Any] = {
        "problem": name,
        "seed": seed,
        "coordinates": len(problem.x0),
        "m": problem.m,
        "half": "development" if name in DEVELOPMENT else "untouched",
        "steps": steps,
        "gradients": budget,
        "rate": judge.rate,
    }
    begin = time.perf_counter()
    front = default(problem, steps, seed)
    assert front.race is not None
    row["default"] = judge(front.x, seed) | {
        "seconds": round(time.perf_counter() - begin, 1),
        "race_share": round(front.race.share, 3),
        "winner": list(front.race.winner[:2]),
        "own": round(below(front.objectives), 4),
    }
    row["x0"] = judge(problem.x0[None], seed)
    if problem.box is not None:
        row["random"] = judge(random_search(judge, budget, seed), seed)
        for kind in ("tpe", "nsga2"):
            row[kind] = judge(optuna_search(judge, budget, seed, kind), seed)
    for alpha, x in zip(ALPHAS, unrolled(problem, budget, seed), strict=True):
        row[f"unrolled_{alpha:g}"] = judge(x, seed)
    return row


def rivals_of(row: dict[str, Any]) -> dict[str, float]:
    """Hypervolume by rival, the unrolled one with its best step."""
    found = {k: row[k]["hypervolume"] for k in ("x0", "random", "tpe", "nsga2") if k in row}
    return found | {"unrolled": max(row[f"unrolled_{a:g}"]["hypervolume"] for a in ALPHAS)}


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds: hypervolume of the default and of each rival, and the share of the best."""
    names = ["x0", "random", "tpe", "nsga2", "unrolled"]
    lines = [
        "| problem | half | coordinates, m | seeds | default | " + " | ".join(names) + " | share |",
        "| --- " * (6 + len(names)) + "|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        own = [row for row in rows if row["problem"] == problem]
        mine = statistics.mean(row["default"]["hypervolume"] for row in own)
        others = {
            name: statistics.mean(rivals_of(row)[name] for row in own)
            for name in names
            if name in rivals_of(own[0])
        }
        cells = [f"{others[name]:.3f}" if name in others else "-" for name in names]
        lines.append(
            f"| {problem} | {own[0]['half']} | {own[0]['coordinates']}, {own[0]['m']} | {len(own)} "
            f"| {mine:.3f} | {' | '.join(cells)} | {mine / max(others.values()):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows there, after each")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows: list[dict[str, Any]] = []
    for seed in map(int, options.seeds.split(",")):
        for name in options.problems.split(","):
            rows.append(measured(name, seed))
            mine = rows[-1]["default"]["hypervolume"]
            print(name, seed, "default", mine, rivals_of(rows[-1]), flush=True)
            if options.json:
                about = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1}
                found = {"about": about, "rows": rows}
                options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
