"""Suite `methods`: gradients to 99 % of the hypervolume of the exact points of the same
preferences.

Every method is tuned by its own defaults for a budget of gradients per run; budgets double until
one suffices.  A method's figure is the fewest gradients, of all its runs together, after which the
resolved points have the hypervolume; what tuning evaluates is counted too.  A loss that is
differentiated twice is charged as its whole Hessian, two gradients for each variable: so are the
renewals of MOMEHA's coordinates, and Lanczos iterations at more than their cost.  Methods without
preferences get as many runs, each from a random start of its own.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoError, BiparetoWarning
from bipareto.fronts.measures import hypervolume
from bipareto.methods import METHODS
from bipareto.methods.parts import envelope
from bipareto.problem import Problem, tree
from bipareto.problems.base import KnownProblem
from bipareto.run.results import Record
from bipareto.sweep.comparison import applicable, gradient_cost
from bipareto_experiments.bench.figures import Claim, Figures

#: problem -> its options and what its lower level is
PROBLEMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "quadratic-5": ("quadratic", {"dim": 5}, "strongly convex"),
    "quadratic-50": ("quadratic", {"dim": 50}, "strongly convex"),
    "ridge": ("ridge", {}, "strongly convex"),
    "pl-sin2-3": ("pl-sin2", {"dim": 3}, "nonconvex"),
    "pl-sin2-20": ("pl-sin2", {"dim": 20}, "nonconvex"),
    "mo-sin": ("mo-sin", {}, "nonconvex"),
}
#: gradients of a run, a Hessian product counted as two
BUDGETS = (1_000, 4_000, 16_000)
SHARE, PREFERENCES, RECORDS = 0.99, 8, 40


def target(problem: KnownProblem, weights: Tensor) -> float:
    """The hypervolume of the exact points of the preferences."""
    exact = torch.stack([problem.solution(w).objectives for w in weights])
    return hypervolume(exact, problem.reference)


class _Counted:
    """A loss that counts what is asked of it, each row under `vmap` by itself.

    Args:
        outputs: how many losses it returns.
    """

    def __init__(self, fn: Callable[..., Tensor], outputs: int) -> None:
        self.fn, self.outputs, self.values, self.gradients = fn, outputs, 0, 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        depth, size = 0, 0
        rows: dict[int, int] = {}
        for leaf in (x, y):
            levels, batches = _layers(leaf)
            rows |= batches
            size += leaf.numel() if levels > 1 else 0
            depth = max(depth, levels)
        each = (0, 1, 2 * size)[min(depth, 2)]
        count = self.outputs * math.prod(rows.values())
        self.gradients += count * each
        self.values += count * (depth == 0)
        return self.fn(x, y)


def _layers(leaf: Tensor) -> tuple[int, dict[int, int]]:
    """How often a tensor is being differentiated by `torch.func`, and the sizes of the batches that
    it is in, by level.
    """
    functorch = torch._C._functorch
    depth = 0
    rows: dict[int, int] = {}
    while functorch.is_functorch_wrapped_tensor(leaf):
        inner = functorch.get_unwrapped(leaf)
        if functorch.is_batchedtensor(leaf):
            rows[functorch.maybe_get_level(leaf)] = inner.shape[functorch.maybe_get_bdim(leaf)]
        else:  # everything that a differentiated function is given is wrapped
            depth += leaf.requires_grad
        leaf = inner
    return depth, rows


def gradients_to(problem: KnownProblem, name: str, share: float = SHARE) -> dict[str, Any]:
    """The gradients that the method of that name needs; None where no budget sufficed."""
    weights = bp.preferences.grid(problem.m, PREFERENCES)
    wanted = share * target(problem, weights)
    best: dict[str, Any] = {"gradients": None, "hypervolume": 0.0, "budget": None, "note": ""}
    for budget in BUDGETS:
        try:
            rows = _curve(problem, name, weights, budget)
        except BiparetoError as error:
            return best | {"note": str(error)[:200]}
        best["hypervolume"] = max(best["hypervolume"], *(v / wanted * share for _, v in rows))
        reached = [spent for spent, volume in rows if volume >= wanted]
        if reached:
            return best | {"gradients": min(reached), "budget": budget}
    return best


def _curve(
    problem: KnownProblem, name: str, weights: Tensor, budget: int
) -> list[tuple[int, float]]:
    """(gradients of all runs, hypervolume of the resolved points) along runs of that budget."""
    upper, lower = _Counted(problem.upper, problem.m), _Counted(problem.lower, 1)
    counted = Problem(upper, lower)
    kind = METHODS[name]
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        first = kind.tuned(problem, problem.x0, problem.y0)
        cost = gradient_cost(first, problem.m)
        steps = max(1, (budget - sum(first.preparation(problem.m).values())) // cost)
        method = kind.tuned(counted, problem.x0, problem.y0, steps=steps)
        probes = sum(loss.values + loss.gradients for loss in (upper, lower))
        before = sum(method.preparation(problem.m).values())
        begun = upper.gradients + lower.gradients
        rows: list[tuple[int, Any, Any]] = []

        def look(record: Record) -> None:
            # The oracles of a method are those of its steps; renewals are seen in the losses.
            spent = len(weights) * (before + record.step * cost)
            if method.renewals(steps):
                spent = max(spent, upper.gradients + lower.gradients - begun)
            rows.append((spent, record.state.x, record.state.y))

        options: dict[str, Any] = {
            "method": method, "steps": steps, "record_every": max(1, steps // RECORDS),
            "callbacks": [look], "progress": False, "compile": False,
        }  # fmt: skip
        if method.uses_preference:
            bp.front(counted, problem.x0, problem.y0, preferences=weights, **options)
            runs = rows
        else:
            parts = []
            for k in range(len(weights)):
                rows.clear()
                x0, y0 = problem.start(k + 1)
                bp.solve(problem, x0, y0, **options)
                parts.append(list(rows))
            runs = [
                (same[0][0], *(tree.stack([part[i] for part in same]) for i in (1, 2)))
                for same in zip(*parts, strict=False)
            ]
        return [(probes + spent, _volume(problem, x, y)) for spent, x, y in runs]


def _volume(problem: KnownProblem, x: Any, y: Any) -> float:
    good = torch.isfinite(tree.ravel((x, y), 1)).all(1)
    if not good.any():
        return 0.0
    x, y = tree.select((x, y), good)
    y = envelope.solve_lower(problem, x, y, tol=1e-6, max_iter=50, batched=True).y
    with torch.no_grad():
        values = torch.func.vmap(problem.upper)(x, y)
    return hypervolume(values, problem.reference)


def run(
    seconds: float,
    seeds: Sequence[int],
    only: Sequence[str] | None,
    folder: Path,
    say: Callable[[str], None],
) -> Figures:
    """Measure what is not there yet, and make the table of all that is."""
    torch.set_num_threads(1)
    figures, place = Figures("methods"), folder / "methods"
    place.mkdir(parents=True, exist_ok=True)
    held: dict[str, dict[str, Any]] = {}
    for case, (problem_name, options, _) in PROBLEMS.items():
        if only is not None and case not in only:
            continue
        problem = bp.problems.get(problem_name, **options)
        for name in applicable(problem):
            path = place / f"{case}-{name}.json"
            if not path.exists():
                path.write_text(json.dumps(gradients_to(problem, name)) + "\n", "utf-8")
                say(f"{case} {name}: {path.read_text('utf-8').strip()}")
            held.setdefault(case, {})[name] = json.loads(path.read_text("utf-8"))
    names = list(dict.fromkeys(name for rows in held.values() for name in rows))
    table = [
        (f"{case} ({PROBLEMS[case][2]})", *(_cell(rows.get(name)) for name in names))
        for case, rows in held.items()
    ]
    title = "gradients of 8 runs to 99 % of the exact points' hypervolume (or the share reached)"
    figures.tables[title] = (("problem (lower level)", *names), table)
    for case, rows in held.items():
        mine = rows["momeha"]["gradients"]
        others = [r["gradients"] for n, r in rows.items() if n != "momeha" and r["gradients"]]
        bound = 1.0 if PROBLEMS[case][2] == "nonconvex" else 2.0
        ratio = math.inf if mine is None else mine / min(others) if others else 0.0
        figures.claims.append(
            Claim(f"{case} ({PROBLEMS[case][2]}): MOMEHA / fewest of the others", ratio, bound)
        )
    figures.data["gradients"] = held
    figures.draw = (len(held), lambda axes: _draw(axes, held))
    return figures


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{row['gradients']:,}" if row["gradients"] else f"({row['hypervolume']:.3f})"


def _draw(axes: Sequence[Any], held: dict[str, dict[str, Any]]) -> None:
    for axis, (case, rows) in zip(axes, held.items(), strict=True):
        names = [name for name, row in rows.items() if row["gradients"]][::-1]
        never = [name for name, row in rows.items() if not row["gradients"]]
        axis.barh(
            names, [rows[name]["gradients"] for name in names],
            color=["#1f6f8b" if name == "momeha" else "#b8c4cc" for name in names],
        )  # fmt: skip
        axis.set_title(case, fontsize=9)
        axis.set_xlabel("gradients, 8 runs\nnever: " + ", ".join(never), fontsize=7)
        axis.tick_params(labelsize=7)
