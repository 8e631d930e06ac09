"""Suite `methods`: gradients to 99 % of the hypervolume of the exact points of the same
preferences.

Every method is tuned by its own defaults for a budget of gradients per run; budgets double until
one suffices.  A method's figure is the fewest gradients, of all its runs together, after which the
resolved points have the hypervolume; what tuning, preparation and renewals of coordinates evaluate
is counted too: backward passes, of which a gradient is one and a product with a Hessian two, and
evaluations without any.  Methods without preferences get as many runs, each from a random start of
its own.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoError, BiparetoWarning
from bipareto.fronts.measures import hypervolume
from bipareto.methods import METHODS, Method
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


class _Pass(torch.autograd.Function):
    """The identity of (x, y), which counts backward passes through it, and those through a backward
    pass: one for a gradient, two for a product with a Hessian whose forward pass is there.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, count: Callable[..., None]) -> tuple[Tensor, Tensor]:
        return x.clone(), y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.count = inputs[2]

    @staticmethod
    def backward(ctx: Any, in_x: Tensor, in_y: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.count(in_x, in_y)
        return *_passed(in_x, in_y, ctx.count), None


def _passed(x: Tensor, y: Tensor, count: Callable[..., None]) -> tuple[Tensor, Tensor]:
    return _Pass.apply(x, y, count)  # type: ignore[no-untyped-call]


class Counted:
    """A loss that counts the backward passes through it, each row under `vmap` by itself, and
    evaluations without one.
    """

    def __init__(self, fn: Callable[..., Tensor]) -> None:
        self.fn, self.values, self.gradients = fn, 0, 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if _tracked(x) or _tracked(y):
            return self.fn(*_passed(x, y, self._count))
        value = self.fn(x, y)
        self.values += _rows(value)
        return value

    def _count(self, *slopes: Tensor) -> None:
        self.gradients += _rows(*slopes)

    @property
    def spent(self) -> int:
        """Evaluations and backward passes together."""
        return self.values + self.gradients


def _tracked(value: Tensor) -> bool:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        if not functorch.is_batchedtensor(value) and value.requires_grad:
            return True
        value = functorch.get_unwrapped(value)
    return value.requires_grad


def _rows(*values: Tensor) -> int:
    """The product of the sizes of all batches under `vmap` that one of the tensors is in."""
    functorch = torch._C._functorch
    sizes: dict[int, int] = {}
    for tensor in values:
        value = tensor
        while functorch.is_functorch_wrapped_tensor(value):
            inner = functorch.get_unwrapped(value)
            if functorch.is_batchedtensor(value):
                size = inner.shape[functorch.maybe_get_bdim(value)]
                sizes[functorch.maybe_get_level(value)] = size
            value = inner
    return math.prod(sizes.values())


def _watched(method: Method, losses: Sequence[Counted]) -> tuple[Method, Callable[[], int]]:
    """The same method, and what its preparation and renewals have evaluated so far."""
    kind, spent = type(method), 0

    def counted(evaluate: Callable[..., Any], *args: Any) -> Any:
        nonlocal spent
        before = sum(loss.spent for loss in losses)
        found = evaluate(*args)
        spent += sum(loss.spent for loss in losses) - before
        return found

    class Watched(kind):  # type: ignore[misc, valid-type]
        def prepare(self, problem: Problem, x0: Any, y0: Any) -> Any:
            return counted(super().prepare, problem, x0, y0)

        def renewed(self, problem: Problem, state: Any) -> Any:
            return counted(super().renewed, problem, state)

    values = {f.name: getattr(method, f.name) for f in fields(method) if f.init}
    return Watched(**values), lambda: spent


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
    losses = Counted(problem.upper), Counted(problem.lower)
    counted = Problem(*losses)
    kind = METHODS[name]
    with warnings.catch_warnings(action="ignore", category=BiparetoWarning):
        first = kind.tuned(problem, problem.x0, problem.y0)
        cost = gradient_cost(first, problem.m)
        steps = max(1, (budget - sum(first.preparation(problem.m).values())) // cost)
        method = kind.tuned(counted, problem.x0, problem.y0, steps=steps)
        probes = sum(loss.spent for loss in losses)
        method, beside = _watched(method, losses)
        rows: list[tuple[int, Any, Any]] = []

        def look(record: Record) -> None:
            spent = len(weights) * record.step * cost + beside()
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
