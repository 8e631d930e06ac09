"""The default call on thirteen small networks against rivals with as many gradients.

    python benchmarks/networks.py [--json FILE] [--problems NAME,...] [--seeds 0,1,2]
        [--who NAME,...] [--parts FOLDER] [--workers N] [--minutes M]

Every x that anybody returns is judged alike: y is trained from its start on g, 200 steps of Adam on
batches of 128, at the rate of a ladder that is best with x at x0, and the objectives are taken on
data that neither f nor g saw.  The budget is what MB-MOMEHA's runs of the given steps would cost,
P steps (4 + 2m) gradients; a training of a rival costs its 200.  One answer per preference:
searches return for each the best x they have trained, by the smooth Tchebycheff scalarization on
f's data.  Two rivals have more than the budget: the one-step unrolled one is run with four step
sizes of x, each with the full budget, and its best figure counts; MB-MOMEHA is run with 60 drawn
sets of hyperparameters, each with the full budget, and the set with the best hypervolume on f's
data counts.  Hypervolume is taken below log 10, the loss of guessing.

Each contestant's answers on each problem with each seed are a file of their own in --parts, so that
what was stopped goes on where it was; --json puts all of them together.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from network_problems import DEVELOPMENT, PROBLEMS, Batch, NetworkProblem
from torch import Tensor
from torch.func import grad, vmap

import bipareto as bp
from bipareto.errors import BiparetoWarning
from bipareto.methods.parts.schedule import Cosine
from bipareto.problem import tree
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto.run.units import value_of

#: steps of a training, and of MB-MOMEHA's runs that set the budget (fewer where a step is slow)
TRAINING, STEPS = 200, {"cnnmix": 200, "shortmix": 200, "transformer": 300}
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
#: steps of x of the unrolled rival
ALPHAS = (1.0, 10.0, 100.0, 1000.0)
#: sets of hyperparameters of MB-MOMEHA
TRIALS = 60

#: a contestant's answers: one stack (P, n) of x for each of its variants
Answers = list[Tensor]


def preferences(m: int) -> Tensor:
    """Five, four and five of them for two, three and four objectives."""
    if m == 2:
        first = torch.tensor([0.2, 0.35, 0.5, 0.65, 0.8])
        return torch.stack([first, 1 - first], 1)
    lean = 0.4 * torch.eye(m) + (0.2 if m == 3 else 0.15)
    return torch.cat([lean, torch.full((1, m), 1 / m)])


def drawn(data: Batch, stream: torch.Generator, size: int) -> Batch:
    """Rows of every part of the data, the same ones."""
    index = torch.randint(len(data[0]), (size,), generator=stream).to(data[0].device)
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
        """The objectives of answers x (P, n) on f's data and on those that nobody saw."""
        x = torch.nan_to_num(x, nan=0.0, posinf=50.0, neginf=-50.0)
        y = self.train(x, seed + 77)
        both = (self.objectives(x, y, data) for data in (self.problem.upper, self.problem.test))
        return {
            name: [[round(v, 6) for v in row] for row in values.tolist()]
            for name, values in zip(("validation", "test"), both, strict=True)
        }


def best_of(x: Tensor, objectives: Tensor, w: Tensor) -> Answers:
    """For each preference the best of the points that a search has trained: by the objectives as
    they are, and by the objectives over the range that the search has found.
    """
    best = nondominated(objectives)
    span = (best.amax(0) - best.amin(0)).clamp_min(1e-9)
    ways = (objectives, (objectives - best.amin(0)) / span)
    return [x[[int(value_of(f, row).argmin()) for row in w]] for f in ways]


def nondominated(f: Tensor) -> Tensor:
    """The rows (n, m) that no other row is at least as good as everywhere and better somewhere."""
    f = f[torch.isfinite(f).all(1)]
    no_worse, better = ((f[:, None] <= f[None]).all(2), (f[:, None] < f[None]).any(2))
    return f[~(no_worse & better).any(0)]


def random_search(judge: Judge, budget: int, seed: int) -> Answers:
    """Points of the box at random, x0 among them."""
    problem = judge.problem
    low, high = problem.box or (problem.x0, problem.x0)
    count, stream = budget // TRAINING, torch.Generator().manual_seed(seed)
    x = low + (high - low) * torch.rand(count, len(problem.x0), generator=stream)
    x[0] = problem.x0
    f = torch.cat([judge.searched(x[i : i + 32], seed) for i in range(0, count, 32)])
    return best_of(x, f, preferences(problem.m))


def optuna_search(judge: Judge, budget: int, seed: int, kind: str) -> Answers:
    """TPE or NSGA-II over the box, x0 first."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
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


def unrolled(judge: Judge, budget: int, seed: int) -> Answers:
    """Alternating SGD with a one-step unrolled hypergradient, for every step size of x."""
    problem = judge.problem
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


def as_problem(problem: NetworkProblem) -> bp.Problem:
    """As a user writes it."""
    size = min(problem.size, len(problem.lower[0]), len(problem.upper[0]))
    sampler = bp.sampler.Minibatches(lower=problem.lower, upper=problem.upper, size=size)
    return bp.Problem(upper=problem.f, lower=problem.g, sampler=sampler)


def mb_momeha(judge: Judge, budget: int, seed: int) -> Answers:
    """Algorithm 2 with drawn hyperparameters, all of them side by side."""
    problem = judge.problem
    w = preferences(problem.m).double()
    steps = budget // (len(w) * (4 + 2 * problem.m))
    stream = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> float:
        share = float(torch.rand((), generator=stream))
        return math.exp(math.log(low) + share * math.log(high / low))

    methods = []
    for _ in range(TRIALS):
        alpha_y = between(0.02, 2.0)
        kappa = 1.0 if torch.rand((), generator=stream) < 0.5 else 1.5
        methods.append(
            bp.MBMOMEHA(
                gamma=between(1.0, alpha_y * steps),
                c=between(1.0, 300.0),
                alpha_x=Cosine(between(0.01, 3000.0), float(steps)),
                alpha_y=Cosine(alpha_y, float(steps)),
                alpha_theta=Cosine(kappa * alpha_y, float(steps)),
            )
        )
    made = as_problem(problem)
    start = methods[0].prepare(made, problem.x0, problem.y0)
    states = [method.begin(start, row / row.sum()) for method in methods for row in w]
    state, step = tree.stack(states), stepper(made, methods[0], batched=True)
    for t in range(steps):
        state, _ = step(state, draw(made, methods[0].roles(problem.m), t, [seed]))
    return list(state.x.split(len(w)))


def default(judge: Judge, budget: int, seed: int) -> tuple[Answers, dict[str, Any]]:
    """The library's call, without a method."""
    problem = judge.problem
    w = preferences(problem.m).double()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", BiparetoWarning)
        front = bp.front(
            as_problem(problem),
            problem.x0,
            problem.y0,
            preferences=w / w.sum(1, keepdim=True),
            seeds=[seed],
            steps=budget // (len(w) * (4 + 2 * problem.m)),
            progress=False,
        )
    assert front.race is not None
    said = [str(w.message) for w in heard if issubclass(w.category, BiparetoWarning)]
    return [front.x], {
        "race_share": round(front.race.share, 3),
        "winner": list(front.race.winner[:3]),
        "race": str(front.race).splitlines(),
        "training": front.race.training,
        "longer": front.race.longer,
        "own": front.objectives.tolist(),
        "returned": judge.objectives(front.x, front.y, problem.test).tolist(),
        "warnings": said,
    }


CONTESTANTS: dict[str, Callable[[Judge, int, int], Any]] = {
    "default": default,
    "x0": lambda judge, budget, seed: [judge.problem.x0[None]],
    "unrolled": unrolled,
    "random": random_search,
    "tpe": lambda judge, budget, seed: optuna_search(judge, budget, seed, "tpe"),
    "nsga2": lambda judge, budget, seed: optuna_search(judge, budget, seed, "nsga2"),
    "mb-momeha": mb_momeha,
}
#: they search the box that problems with few coordinates have
SEARCHES = ("random", "tpe", "nsga2")


def measured(name: str, seed: int, who: str, device: str = "cpu") -> dict[str, Any]:
    """What one contestant reaches on one problem."""
    problem = PROBLEMS[name](seed)
    if device != "cpu":
        moved = {
            key: tree.map_(lambda leaf: leaf.to(device), getattr(problem, key))
            for key in ("x0", "y0", "lower", "upper", "test")
        }
        problem = replace(problem, **moved)
    judge, steps = Judge(problem), STEPS.get(name, 600)
    budget = len(preferences(problem.m)) * steps * (4 + 2 * problem.m)
    begin = time.perf_counter()
    found = CONTESTANTS[who](judge, budget, seed)
    answers, more = found if isinstance(found, tuple) else (found, {})
    seconds = round(time.perf_counter() - begin, 1)
    # All variants are judged in one batch; each row of it has its own training.
    judged = judge(torch.cat(answers), seed)
    sizes = [len(x) for x in answers]
    return {
        "problem": name,
        "seed": seed,
        "who": who,
        "coordinates": len(problem.x0),
        "m": problem.m,
        "half": "development" if name in DEVELOPMENT else "untouched",
        "steps": steps,
        "gradients": budget,
        "rate": judge.rate,
        "seconds": seconds,
        **{key: _parted(rows, sizes) for key, rows in judged.items()},
        **more,
    }


def _parted(rows: list[Any], sizes: list[int]) -> list[list[Any]]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def below(objectives: list[list[float]]) -> float:
    """Hypervolume below the loss of guessing."""
    from bipareto.fronts.measures import hypervolume

    f = torch.tensor(objectives)
    return hypervolume(f[torch.isfinite(f).all(1)], [math.log(10)] * f.shape[1])


def figure(part: dict[str, Any]) -> float:
    """Hypervolume on data that nobody saw; of variants the best, of MB-MOMEHA's sets the one that
    is best on f's data.
    """
    test = [below(f) for f in part["test"]]
    if part["who"] != "mb-momeha":
        return max(test)
    valid = [below(f) for f in part["validation"]]
    return test[valid.index(max(valid))]


def followed(f: Tensor) -> float:
    """Spearman's correlation of w_i with f_i of the answers (P, m), in the mean over i."""
    from scipy.stats import spearmanr

    w = preferences(f.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # answers that are all the same follow nothing: zero
        found = [float(spearmanr(w[:, i], f[:, i]).statistic) for i in range(w.shape[1])]
    return statistics.mean(0.0 if math.isnan(value) else value for value in found)


def followed_by_best(parts: list[dict[str, Any]]) -> float:
    """How well preferences would be followed if each took, of the answers of all contestants, the
    one that is best for it on data that nobody saw.
    """
    pool = torch.tensor([row for part in parts for answers in part["test"] for row in answers])
    best = [int(value_of(pool, w).argmin()) for w in preferences(pool.shape[1])]
    return followed(pool[best])


def together(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each problem and seed: the figures of all who were measured there."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    shared = ("problem", "seed", "coordinates", "m", "half", "steps", "gradients", "rate")
    for part in parts:
        row = rows.setdefault((part["problem"], part["seed"]), {key: part[key] for key in shared})
        row[part["who"]] = {"hypervolume": round(figure(part), 4), "seconds": part["seconds"]}
        if part["who"] == "default":
            row["default"] |= {
                "rank_correlation": round(followed(torch.tensor(part["test"][0])), 3),
                "validation": round(below(part["validation"][0]), 4),
                "own": round(below(part["own"]), 4),
                "returned": round(below(part["returned"]), 4),
                **{key: part[key] for key in ("race_share", "winner", "training", "longer")},
            }
    for place, row in rows.items():
        here = [part for part in parts if (part["problem"], part["seed"]) == place]
        row["rank_correlation_of_best"] = round(followed_by_best(here), 3)
    order = list(PROBLEMS)
    return sorted(rows.values(), key=lambda row: (order.index(row["problem"]), row["seed"]))


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds: hypervolume of the default and of each rival, and the share of the best."""
    names = [name for name in CONTESTANTS if name != "default"]
    lines = [
        "| problem | half | coordinates, m | seeds | default | "
        + " | ".join(names)
        + " | share | by seed | correlation | of the best |",
        "| --- " * (9 + len(names)) + "|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        own = [row for row in rows if row["problem"] == problem and "default" in row]
        if not own:
            continue
        there = [name for name in names if all(name in row for row in own)]
        mine = statistics.mean(row["default"]["hypervolume"] for row in own)
        others = {name: statistics.mean(row[name]["hypervolume"] for row in own) for name in there}
        cells = [f"{others[name]:.3f}" if name in others else "-" for name in names]
        best = max(others.values(), default=math.nan)
        by_seed = ", ".join(
            f"{row['default']['hypervolume'] / max(row[n]['hypervolume'] for n in there):.2f}"
            for row in own
            if there
        )
        follows = statistics.mean(row["default"]["rank_correlation"] for row in own)
        most = statistics.mean(row["rank_correlation_of_best"] for row in own)
        lines.append(
            f"| {problem} | {own[0]['half']} | {own[0]['coordinates']}, {own[0]['m']} | {len(own)} "
            f"| {mine:.3f} | {' | '.join(cells)} | {mine / best:.2f} | {by_seed} | {follows:.2f} "
            f"| {most:.2f} |"
        )
    return "\n".join(lines)


def work(unit: tuple[str, int, str], folder: str, device: str, until: float) -> None:
    """One file of the folder, if it is not there yet and there is time."""
    name, seed, who = unit
    path = Path(folder) / f"{name}-{seed}-{who}.json"
    if path.exists() or time.time() > until:
        return
    torch.set_num_threads(1)
    found = measured(name, seed, who, device if who == "mb-momeha" else "cpu")
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found) + "\n", encoding="utf-8")
    partial.replace(path)
    print(f"{time.strftime('%H:%M:%S')} {name} {seed} {who} {found['seconds']} s", flush=True)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--who", default=",".join(CONTESTANTS))
    parser.add_argument("--parts", type=Path, help="what was measured, a file each")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after these")
    parser.add_argument("--device", default="cpu", help="for MB-MOMEHA's many runs side by side")
    parser.add_argument("--only-measure", action="store_true", help="leave out the table")
    options = parser.parse_args()
    folder = options.parts or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    names, seeds = options.problems.split(","), [int(s) for s in options.seeds.split(",")]
    units = [
        (name, seed, who)
        for who in options.who.split(",")
        for seed in seeds
        for name in names
        if who not in SEARCHES or PROBLEMS[name](seed).box is not None
    ]
    rest = (str(folder), options.device, time.time() + 60 * options.minutes)
    if options.workers == 1:
        for unit in units:
            work(unit, *rest)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
            for done in [pool.submit(work, unit, *rest) for unit in units]:
                done.result()
    if options.only_measure:
        return
    parts = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    rows = together([part for part in parts if part["problem"] in names and part["seed"] in seeds])
    if options.json:
        about = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1}
        text = json.dumps({"about": about, "rows": rows}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
