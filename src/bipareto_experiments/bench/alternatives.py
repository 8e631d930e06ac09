"""Suite `alternatives`: who reaches which hypervolume when, in gradients and in seconds.

Every contender gets the same seconds of one core for each step size it tries.  Rivals that need a
step size of x try a ladder of them and are charged for all, as if tried side by side: with k step
sizes each has had s/k seconds after s.  Ours is called anew for each length of a run, tuning, races
and compilation included.  Seconds are CPU time; judging is not counted.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bipareto_experiments.bench import contenders, rivals
from bipareto_experiments.bench.cases import CASES, Case
from bipareto_experiments.bench.figures import Claim, Figures

#: CPU seconds of a rival for each step size, unless said otherwise
SECONDS = 4.0
#: the share of the best hypervolume that is timed
SHARE = 0.95
#: and one that is timed too, of which nothing is asked
CLOSE = 0.99
#: CPU seconds to the first mark, and every further one so many times longer
FIRST, SPACING = 0.02, 1.6
OURS = "bipareto"
NAMES = (OURS, "BOAT loop", "TorchOpt loop", "alternating SGD", "TPE", "NSGA-II", "random search")


def clock() -> float:
    """CPU seconds of this process and of the compilers it has waited for."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def marks(case: Case, found: contenders.Found, seconds: float) -> list[dict[str, Any]]:
    """Drive a contender for so many seconds and judge its answers on the way."""
    rows: list[dict[str, Any]] = []
    spent, due, last = 0.0, FIRST, None

    def judged(used: float, gradients: int, answers: Callable[[], torch.Tensor]) -> None:
        objectives = case.judge(answers())
        rows.append({"seconds": used, "gradients": gradients, "objectives": objectives.tolist()})

    begin = clock()
    for gradients, answers in found:
        now = spent + clock() - begin
        last = (now, gradients, answers)
        if now >= due:
            judged(*last)
            last, due = None, max(due * SPACING, now * SPACING)
            spent, begin = now, clock()
        if now >= seconds:
            break
    if last is not None:
        judged(*last)
    return rows


def tasks(
    case: Case, seed: int, missing: dict[str, str]
) -> Iterator[tuple[str, float | None, Callable[[], contenders.Found]]]:
    """(contender, its step size or length, how it is begun), all that apply to a case."""
    for steps in case.steps:
        yield OURS, steps, partial(contenders.ours, case, seed, steps)
    boat, torchopt, optuna = (
        rivals.load(name, missing) for name in ("boat_torch", "torchopt", "optuna")
    )
    for alpha in case.alpha_x:
        yield "alternating SGD", alpha, partial(contenders.alternating, case, seed, alpha)
        if boat is not None:
            yield "BOAT loop", alpha, partial(contenders.boat, case, seed, alpha, boat)
        if torchopt is not None:
            yield "TorchOpt loop", alpha, partial(contenders.implicit, case, seed, alpha, torchopt)
    if case.box is not None:
        yield "random search", None, partial(contenders.random_search, case, seed)
        if optuna is not None:
            for name, kind in (("TPE", "tpe"), ("NSGA-II", "nsga2")):
                yield name, None, partial(contenders.optuna_search, case, seed, kind, optuna)


def measure(
    name: str, seed: int, folder: Path, seconds: float, say: Callable[[str], None],
    wanted: Sequence[str] = NAMES,
) -> dict[str, str]:  # fmt: skip
    """Measure one case of one seed, contender by contender; those that are there are kept.

    Returns:
        rivals that could not be measured, with the reason.
    """
    torch.set_num_threads(1)
    missing: dict[str, str] = {}
    case = CASES[name](seed)
    folder.mkdir(parents=True, exist_ok=True)
    for contender, number, begin in tasks(case, seed, missing):
        label = contender if number is None else f"{contender} {number:g}"
        path = folder / f"{name}-{seed}-{label.replace(' ', '_')}.json"
        if path.exists() or contender not in wanted:
            continue
        gc.collect()
        started = time.perf_counter()
        try:
            rows, error = marks(case, begin(), seconds), ""
        except Exception as problem:  # noqa: BLE001
            # A contender that breaks off is a finding, not the end of the suite.
            rows, error = [], f"{type(problem).__name__}: {problem}"
        data = {
            "case": name, "seed": seed, "contender": contender, "number": number, "marks": rows,
            "error": error, "coordinates": case.x0.numel(), "reference": case.reference,
            "cap": seconds,
        }  # fmt: skip
        path.write_text(json.dumps(data) + "\n", "utf-8")
        say(f"{name} {seed} {label}: {time.perf_counter() - started:.0f} s {error[:80]}")
    return missing


def run(
    seconds: float,
    seeds: Sequence[int],
    only: Sequence[str] | None,
    folder: Path,
    say: Callable[[str], None],
) -> Figures:
    """Measure what is not there yet, and make the tables of all that is."""
    figures, place = Figures("alternatives"), folder / "alternatives"
    for name in CASES if only is None else only:
        for seed in seeds:
            figures.missing |= measure(name, seed, place, seconds or SECONDS, say)
    collect(figures, place)
    return figures


def collect(figures: Figures, place: Path) -> None:
    """Put together the curves, the table and the claims of the files in a folder."""
    from bipareto.fronts.measures import hypervolume

    held: dict[str, dict[int, dict[str, list[list[tuple[float, float, float]]]]]] = {}
    about: dict[str, dict[str, Any]] = {}
    for path in sorted(place.glob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        curve = [
            (row["seconds"], row["gradients"], _volume(hypervolume, row, data["reference"]))
            for row in data["marks"]
        ]
        runs = held.setdefault(data["case"], {}).setdefault(data["seed"], {})
        runs.setdefault(data["contender"], []).append(curve)
        about[data["case"]] = {"coordinates": data["coordinates"], "cap": data["cap"]}
    curves = {
        case: {seed: {name: _joined(name, runs) for name, runs in of.items()}
               for seed, of in seeds.items()}
        for case, seeds in held.items()
    }  # fmt: skip
    rows, close, reached = [], [], {}
    for case in (name for name in CASES if name in curves):
        times = _seconds_to(curves[case])
        reached[case] = times
        about[case]["longest"] = max(
            curve[-1][0] for of in curves[case].values() for curve in of.values() if curve
        )
        label = f"{case} ({about[case]['coordinates']})"
        rows.append((label, *(_cell(times.get(name)) for name in NAMES)))
        closer = _seconds_to(curves[case], CLOSE)
        close.append((label, *(_cell(closer.get(name)) for name in NAMES)))
    for share, table in ((SHARE, rows), (CLOSE, close)):
        title = (
            f"CPU seconds to {share:.0%} of the best hypervolume anyone reached, median of seeds"
        )
        figures.tables[title] = (("problem (coordinates of x)", *NAMES), table)
    shares = []
    for case in reached:
        finals = _finals(curves[case])
        shares.append((case, *(f"{finals[n]:.3f}" if n in finals else "-" for n in NAMES)))
    figures.tables["the best hypervolume of each, a share of the best of all, mean of seeds"] = (
        ("problem", *NAMES), shares,
    )  # fmt: skip
    figures.claims += _claims(reached, about)
    figures.data |= {"about": about, "seconds": reached, "curves": curves}
    names = list(reached)

    def draw(axes: Sequence[Any]) -> None:
        for i, name in enumerate(names):
            for by in (0, 1):
                _draw(axes[2 * i + by], name, curves[name], by)

    figures.draw, figures.columns = (2 * len(names), draw), 4


Curve = list[tuple[float, float, float]]


def _volume(hypervolume: Any, row: dict[str, Any], reference: list[float]) -> float:
    points = torch.tensor(
        [[math.nan if v is None else v for v in point] for point in row["objectives"]]
    )
    good = points[torch.isfinite(points).all(1)]
    return float(hypervolume(good, reference)) if len(good) else 0.0


def _joined(name: str, runs: list[Curve]) -> Curve:
    """The curves of all step sizes as one: (seconds, gradients, best hypervolume so far)."""
    factor = 1 if name == OURS else len(runs)
    every = sorted((factor * s, factor * n, v) for curve in runs for s, n, v in curve)
    best, joined = 0.0, []
    for s, n, v in every:
        best = max(best, v)
        joined.append((s, n, best))
    return joined


def _seconds_to(
    seeds: dict[int, dict[str, Curve]], share: float = SHARE
) -> dict[str, list[float | None]]:
    """For each contender the seconds of each seed, None where it never got there."""
    found: dict[str, list[float | None]] = {}
    for of in seeds.values():
        target = share * max(curve[-1][2] for curve in of.values() if curve)
        for name, curve in of.items():
            found.setdefault(name, []).append(next((s for s, _, v in curve if v >= target), None))
    return found


def _finals(seeds: dict[int, dict[str, Curve]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for of in seeds.values():
        best = max(curve[-1][2] for curve in of.values() if curve)
        for name, curve in of.items():
            found.setdefault(name, []).append(curve[-1][2] / best if curve else 0.0)
    return {name: statistics.mean(values) for name, values in found.items()}


def _median(times: list[float | None]) -> float:
    return statistics.median(math.inf if t is None else t for t in times)


def _cell(times: list[float | None] | None) -> str:
    if times is None:
        return "-"
    middle = _median(times)
    missed = sum(t is None for t in times)
    words = "never" if math.isinf(middle) else f"{middle:.3g}"
    return words + (f" ({missed} of {len(times)} never)" if missed and missed < len(times) else "")


def _claims(
    reached: dict[str, dict[str, list[float | None]]], about: dict[str, dict[str, Any]]
) -> list[Claim]:
    claims = []
    for case, times in reached.items():
        if about[case]["coordinates"] > 20 and OURS in times:
            rivals_best = min(_median(t) for name, t in times.items() if name != OURS)
            mine = _median(times[OURS])
            ratio = mine / rivals_best if math.isfinite(mine) else math.inf
            claims.append(Claim(f"{case}: ours / fastest rival", ratio, 1.0))
    names = {name for times in reached.values() for name in times}

    def mean(name: str) -> float:
        logs = []
        for case, times in reached.items():
            middle = _median(times.get(name, [None]))
            # never is counted as if it came with the last second that anybody had
            logs.append(math.log(middle if math.isfinite(middle) else about[case]["longest"]))
        return math.exp(statistics.mean(logs))

    if OURS in names and len(names) > 1:
        others = min(mean(name) for name in names if name != OURS)
        claims.append(
            Claim("geometric mean over all problems: ours / best rival", mean(OURS) / others, 1.0)
        )
    return claims


def _draw(axis: Any, case: str, seeds: dict[int, dict[str, Curve]], by: int) -> None:
    """Medians of the seeds with bands from least to most; over seconds or gradients."""
    names = [name for name in NAMES if any(of.get(name) for of in seeds.values())]
    best = {seed: max(c[-1][2] for c in of.values() if c) for seed, of in seeds.items()}
    for name in names:
        curves = [(seed, of[name]) for seed, of in seeds.items() if of.get(name)]
        places = sorted({row[by] for _, curve in curves for row in curve})
        begin = max(curve[0][by] for _, curve in curves)
        places = [p for p in places if p >= begin]
        table = [
            [max(v for *at, v in curve if at[by] <= p) / best[seed] for seed, curve in curves]
            for p in places
        ]
        colour = f"C{NAMES.index(name)}"
        middle = [statistics.median(row) for row in table]
        width = 2.2 if name == OURS else 1.1
        axis.plot(places, middle, color=colour, label=name, linewidth=width, marker=".")
        axis.fill_between(
            places, [min(r) for r in table], [max(r) for r in table], color=colour, alpha=0.15
        )
    axis.axhline(SHARE, color="black", linewidth=0.5, linestyle=":")
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter("")
    axis.set_title(case, fontsize=9)
    axis.set_xlabel(("CPU seconds", "gradients")[by], fontsize=8)
    axis.set_ylabel("hypervolume / best", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.set_ylim(0.0, 1.03)
    if by == 0:
        axis.legend(fontsize=6)
