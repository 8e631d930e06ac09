"""The default for networks on problems that no rule of this library was made on
(tests/foreign/networks.py, late_networks.py), against plain PyTorch with as many gradients.

    nice -n 10 python benchmarks/strangers.py [PROBLEM ...] [--seeds 0 1 2] [--json FILE]
    nice -n 10 python benchmarks/strangers.py --again --json docs/results/strangers.json
    python benchmarks/strangers.py --table docs/results/strangers.json

The default is `bp.front(problem, x0, y0, preferences=grid, steps=300)`, as in the README.  Rivals:

- *unrolled*, per preference: y by Adam, x by Adam on the gradient through y's last step (Adam's
  scaling held constant) of the weighted sum of f_i / f_i(x0).  Each of three step sizes of x has
  all of the gradients, and the best on unseen data counts; *one step* is the middle one alone,
  which has as many gradients as the default.
- *random*, where a box for x can be named: full trainings at random points; each preference takes
  the best on f's data.

Every x is judged alike, by the judge's own code: y trained from its start on g by Adam with real
modules, `STEPS` steps with a rate from a ladder at x0, then objectives in eval mode on data that
neither level sees.  Of the rates that take g at x0 nine tenths of the way to its lowest the one
that is best on f's data is taken.  Figures are hypervolumes of f_i / r_i below 1, r_i twice what
x0 has: x0 alone has 2^-m, and a point where all objectives are zero 1.  A gap is how far (in units
of r_i) the default's points are from dominating the best points of all contestants, in the mean.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isnan, nan
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bipareto as bp
from bipareto.fronts.measures import hypervolume

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.foreign.late_networks import LATE
from tests.foreign.networks import NETWORKS, Network, Rows

CASES = NETWORKS | LATE

STEPS = 300
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PACES = (3e-3, 2e-2, 1e-1)
POINTS = {2: 5, 3: 3, 4: 2}  # along each edge of the grid of preferences: 5, 6 and 4 of them


def variables(x: Any, y: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What is trained of x, and of y: parameters in both are x's."""
    outer = [p for p in x.parameters() if p.requires_grad] if isinstance(x, nn.Module) else [x]
    shared = {id(p) for p in outer}
    return outer, [p for p in y.parameters() if p.requires_grad and id(p) not in shared]


def batches(rows: Rows, size: int, seed: int) -> Iterator[Rows]:
    """Batches without end; all the rows in their order where a batch holds them all."""
    draw = torch.Generator().manual_seed(seed)
    while len(rows[0]) <= size:
        yield rows
    while True:
        order = torch.randperm(len(rows[0]), generator=draw)
        for index in order.split(size)[: len(order) // size]:
            yield tuple(column[index] for column in rows)


class Judge:
    """Trains y from its start on g, and says what the objectives are then."""

    def __init__(self, case: Network) -> None:
        self.case = case
        self.start = copy.deepcopy((case.x, case.y))
        self.rate = 0.0
        trained = {rate: self.trained(None, rate) for rate in RATES}
        with torch.no_grad():
            values = {rate: float(case.lower(*at, case.train)) for rate, at in trained.items()}
            low = min(values.values())
            enough = low + 0.1 * (float(case.lower(case.x, case.y, case.train)) - low)
        seen = {rate: self.objectives(*trained[rate]) for rate in RATES if values[rate] <= enough}
        scale = torch.stack([valid for valid, _ in seen.values()]).amin(0)
        self.rate = min(seen, key=lambda rate: float((seen[rate][0] / scale).mean()))
        self.valid, self.unseen = seen[self.rate]

    def trained(self, x: list[Tensor] | None, rate: float | None = None) -> tuple[Any, nn.Module]:
        """The modules with x (None: x0) and y trained."""
        inner, y = copy.deepcopy(self.start)
        outer, params = variables(inner, y)
        if x is not None:
            for mine, value in zip(outer, x, strict=True):
                mine.data.copy_(value)
        optimizer = torch.optim.Adam(params, rate or self.rate)
        y.train()
        for _, batch in zip(
            range(STEPS), batches(self.case.train, self.case.size, 1), strict=False
        ):
            slopes = torch.autograd.grad(self.case.lower(inner, y, batch), params)
            for p, slope in zip(params, slopes, strict=True):
                p.grad = slope
            optimizer.step()
        return inner, y

    def objectives(self, x: Any, y: nn.Module) -> tuple[Tensor, Tensor]:
        """On f's data and on unseen data, (m,) each."""
        y.eval()
        with torch.no_grad():
            pairs = [
                torch.stack([f(x, y, rows) for f, rows in zip(self.case.upper, data, strict=True)])
                for data in (self.case.valid, self.case.unseen)
            ]
        return pairs[0], pairs[1]

    def __call__(self, x: list[Tensor] | None, rate: float | None = None) -> tuple[Tensor, Tensor]:
        return self.objectives(*self.trained(x, rate))


def unrolled(
    case: Network, judge: Judge, preference: Tensor, pace: float, steps: int
) -> list[Tensor]:
    """x after alternating Adam steps; `preference` is divided by f_i(x0)."""
    x, y = copy.deepcopy(judge.start)
    outer, params = variables(x, y)
    for p in outer:
        p.requires_grad_()
    first = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params]
    optimizer = torch.optim.Adam(outer, pace)
    draws = batches(case.train, case.size, 2)
    sees = [batches(rows, 100, 3 + i) for i, rows in enumerate(case.valid)]
    y.train()
    for t in range(1, steps + 1):
        slopes = torch.autograd.grad(case.lower(x, y, next(draws)), params, create_graph=True)
        ahead_x, ahead = copy.deepcopy((x, y))
        moved_x, moved = variables(ahead_x, ahead)
        scales = []
        with torch.no_grad():
            for p, m, v, slope in zip(moved, first, second, slopes, strict=True):
                m.lerp_(slope, 0.1)
                v.lerp_(slope * slope, 1e-3)
                scales.append(judge.rate / ((v / (1 - 0.999**t)).sqrt() + 1e-8))
                p.sub_(scales[-1] * m / (1 - 0.9**t))
        seen = [f(ahead_x, ahead, next(draw)) for f, draw in zip(case.upper, sees, strict=True)]
        total = (preference * torch.stack(seen)).sum()
        given = torch.autograd.grad(total, [*moved_x, *moved], allow_unused=True)
        direct, pulls = given[: len(outer)], given[len(outer) :]
        weighed = [
            -scale * pull if pull is not None else torch.zeros_like(scale)
            for scale, pull in zip(scales, pulls, strict=True)
        ]
        through = torch.autograd.grad(slopes, outer, weighed, allow_unused=True)
        for p, a, b in zip(outer, direct, through, strict=True):
            p.grad = sum((part for part in (a, b) if part is not None), torch.zeros_like(p))
        optimizer.step()
        y.load_state_dict({**ahead.state_dict(), **_own(x, y)})
    return [p.detach() for p in outer]


def _own(x: Any, y: nn.Module) -> dict[str, Tensor]:
    """The entries of y's state that are x's."""
    shared = {id(p) for p in variables(x, y)[0]}
    return {name: p.detach() for name, p in y.named_parameters() if id(p) in shared}


def rank_correlation(weights: Tensor, objectives: Tensor) -> float:
    """Spearman's, of w_i with f_i, in the mean over i."""

    def ranks(v: Any) -> Any:
        return [(v < a).sum() + ((v == a).sum() - 1) / 2 for a in v]

    w, f = weights.numpy(), objectives.numpy()
    with np.errstate(invalid="ignore"):  # answers that are all the same follow nothing: zero
        each = [
            np.corrcoef(ranks(a), ranks(b.round(6)))[0, 1] for a, b in zip(w.T, f.T, strict=True)
        ]
    return float(np.nan_to_num(each).mean())


def measure(name: str, seed: int, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """All contestants on one problem with one seed; with `before`, a row, the default alone is
    measured anew, and what it had there is kept apart.
    """
    case = CASES[name](seed)
    judge = Judge(case)
    m = len(case.upper)
    grid = bp.preferences.grid(m, POINTS[m])
    x, y = copy.deepcopy(judge.start)
    begin = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        front = bp.front(
            case.problem, case.x0, case.y0, preferences=grid, steps=STEPS, progress=False
        )
    seconds = time.process_time() - begin
    answers, own = [], []
    for i in range(len(front)):
        front[i].write_back(x, y)
        answers.append([p.detach().clone() for p in variables(x, y)[0]])
        own.append(judge.objectives(x, y)[1])
    points = {"default": [judge(answer)[1] for answer in answers], "own": own}
    if before is None:
        points |= rivals(case, judge, grid, seed)
    else:
        kept = before["objectives"]
        points["before"] = kept.get("before", kept["default"])
        points["own before"] = kept.get("own before", kept["own"])
        points |= {who: rows for who, rows in before["objectives"].items() if who not in points}

    reference = 2 * judge.unseen
    rows = {who: torch.stack([torch.as_tensor(f) for f in fs]) for who, fs in points.items()}
    scaled = {who: (f / reference).double() for who, f in rows.items()}
    volumes = {who: hypervolume(f, [1.0] * m) for who, f in scaled.items()}
    volumes["x0"] = 2.0**-m
    among = torch.cat([f for who, f in scaled.items() if "own" not in who])
    best_of_all = among[bp.pareto_optimal(among)]
    gaps = (scaled["default"] - best_of_all[:, None]).clamp(min=0).amax(2).amin(1)
    follows = {
        who: round(rank_correlation(grid, rows[who]), 3)
        for who in ("default", "before")
        if who in rows
    }
    return {
        "problem": name, "seed": seed, "seconds": round(seconds, 1), "rate": judge.rate,
        "x0": judge.unseen.tolist(), "volumes": {k: round(v, 4) for k, v in volumes.items()},
        "gap": round(float(gaps.mean()), 4), "follows": follows,
        "objectives": {
            who: [[float(f"{v:.5g}") for v in row] for row in f.tolist()]
            for who, f in rows.items()
        },
        "said": sorted({f"{w.category.__name__}: {w.message}" for w in caught}),
        "race": str(front.race).splitlines(),
    }  # fmt: skip


def rivals(case: Network, judge: Judge, grid: Tensor, seed: int) -> dict[str, list[Tensor]]:
    """The objectives of their answers on unseen data."""
    budget, points = len(grid) * STEPS * (4 + 2 * grid.shape[1]), {}
    weights = (grid / judge.valid).float()
    length = budget // (len(grid) * (grid.shape[1] + 3))
    for pace in PACES:
        ends = [unrolled(case, judge, row, pace, length) for row in weights]
        points[f"unrolled {pace:g}"] = [judge(end)[1] for end in ends]
    if case.box is not None:
        draw = torch.Generator().manual_seed(1000 + seed)
        low, high = case.box
        like = variables(*judge.start)[0]
        tried = [
            judge([low + (high - low) * torch.rand(p.shape, generator=draw) for p in like])
            for _ in range(budget // STEPS)
        ]
        valid = torch.stack([seen for seen, _ in tried])
        best = [int((row * valid).amax(1).argmin()) for row in weights]
        points["random"] = [tried[i][1] for i in best]
    return points


def best_rival(row: dict[str, Any]) -> tuple[str, float]:
    """The contestant with the largest hypervolume, the default's own figures aside."""
    others = {
        who: v
        for who, v in row["volumes"].items()
        if who in ("x0", "random") or who.startswith("unrolled")
    }
    who = max(others, key=lambda name: others[name])
    return who, others[who]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The figures as lines of Markdown: means over the seeds."""
    head = ["problem", "coordinates, m", "x0", "unrolled", "one step", "random", "before",
            "default", "own y",
            "share before", "share", "by seed", "gap", "follows before", "follows", "seconds",
            "said"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name in CASES:
        # Where x0 has nothing to lose of an objective there is no unit to measure it by.
        seeds = [row for row in rows if row["problem"] == name and min(row["x0"]) > 0]
        if not seeds:
            continue
        case = CASES[name](0)
        size = sum(p.numel() for p in variables(case.x, case.y)[0])
        volumes = [row["volumes"] for row in seeds]
        best = mean(best_rival(row)[1] for row in seeds)

        def volume(who: str, volumes: list[dict[str, float]] = volumes) -> str:
            there = [v[who] for v in volumes if who in v]
            return f"{mean(there):.3f}" if there else "-"

        unrolled = [max(v for who, v in each.items() if who[0] == "u") for each in volumes]
        warned = sorted({_words(text) for row in seeds for text in row["said"]})
        shares = [row["volumes"]["default"] / best_rival(row)[1] for row in seeds]
        before, now = ([v.get(who, nan) for v in volumes] for who in ("before", "default"))
        followed = [
            [row["follows"].get(who, nan) for row in seeds] for who in ("before", "default")
        ]
        cells = [
            name, f"{size}, {len(case.upper)}", volume("x0"), f"{mean(unrolled):.3f}",
            volume(f"unrolled {PACES[1]:g}"), volume("random"), volume("before"),
            volume("default"), volume("own"),
            shown(mean(before) / best), shown(mean(now) / best),
            ", ".join(f"{share:.2f}" for share in shares),
            f"{mean(row['gap'] for row in seeds):.3f}", *(shown(mean(f)) for f in followed),
            f"{mean(row['seconds'] for row in seeds):.0f}", "; ".join(warned) or "-",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def shown(value: float) -> str:
    """Two digits, or a dash where nothing was measured."""
    return "-" if isnan(value) else f"{value:.2f}"


def _words(text: str) -> str:
    """The first clause of a warning, without its numbers."""
    clause = re.split(r"[:;(]| whose|, by| for ", text.split(": ", 1)[1], maxsplit=1)[0]
    return re.sub(r"\b\d+\b", "n", clause)[:60].strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help=f"of {', '.join(CASES)}; all without")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--again", action="store_true", help="the default alone; what it had is kept as `before`"
    )
    parser.add_argument("--json", type=Path, help="figures are added to this file")
    parser.add_argument("--table", type=Path, help="print the figures of this file as a table")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text())["rows"])))
        return
    torch.set_num_threads(1)
    written = options.json and options.json.exists()
    rows = json.loads(options.json.read_text())["rows"] if written else []
    for seed in options.seeds:
        for name in options.problems or CASES:
            there = [r for r in rows if (r["problem"], r["seed"]) == (name, seed)]
            row = measure(name, seed, there[0] if options.again else None)
            rows = [r for r in rows if (r["problem"], r["seed"]) != (name, seed)] + [row]
            figures = {**row["volumes"], "best rival": best_rival(row)[1]}
            shown = ("before", "default", "own", "best rival")
            print(
                f"{name:12s} {seed} "
                + " ".join(f"{who} {figures[who]:.3f}" for who in shown if who in figures)
                + f" follows {row['follows']['default']:.2f} {row['seconds']:.0f} s",
                [text[:90] for text in row["said"]],
                flush=True,
            )
            if options.json:
                facts = {
                    "command": "python benchmarks/strangers.py",
                    "torch": torch.__version__,
                    "machine": f"{platform.machine()}, one thread",
                    "date": datetime.now(UTC).date().isoformat(),
                }
                options.json.write_text(json.dumps({"rows": rows, **facts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
