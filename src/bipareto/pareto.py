"""Fronts: many preferences and seeds as one batch, and what can be asked of the result."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from bipareto import drawing, envelope, measures, tree
from bipareto.errors import BiparetoWarning, InvalidInput, NotBatchable
from bipareto.loop import choose_method, drive, not_begun, solution_of
from bipareto.methods import Method
from bipareto.methods.base import State
from bipareto.preferences import as_preference, grid, named
from bipareto.problem import Problem
from bipareto.records import Callback, Failure, Reason, Run, Solution
from bipareto.sampler import draw
from bipareto.stepping import stepper
from bipareto.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ParetoFront", "front", "front_of", "join_runs", "run_states"]

#: Runs that are stepped side by side at most; larger sweeps go slice by slice.
SLICE = 1024


def front(
    problem: Problem,
    x0: Tree | nn.Module,
    y0: Tree | nn.Module,
    *,
    preferences: Any = None,
    budget: int | None = None,
    seeds: Sequence[int] = (0,),
    method: Method | None = None,
    steps: int = 20_000,
    compile: bool | str | None = None,
    record_every: int | None = None,
    tol: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> ParetoFront:
    """Solve a problem for many preferences and seeds, all side by side.

    Args:
        preferences: (P, m) rows on the simplex, e.g. `preferences.grid(2, 11)`; None is a grid of 11 per edge; a text is read by
            `preferences.named` ("random:20", "strong", a file); "adaptive" chooses them on the way, see `bipareto.adaptive.trace`.
            For methods without preferences leave it out: one run per seed.
        budget: with "adaptive" only, the work of so many full runs for each seed.
        seeds: every preference is run once with each seed; preferences of one seed share their draws.
        others: as in `solve`.

    Returns:
        a `ParetoFront` of R = P * len(seeds) runs, seed by seed; of as many as the budget allows with "adaptive".

    >>> import torch
    >>> problem = Problem(upper=lambda x, y: torch.stack([(x - 1)**2 + y**2, x**2 + (y - 1)**2]), lower=lambda x, y: (y - x)**2)
    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> found = front(problem, zero, zero, preferences=grid(2, 3), steps=2000).resolve_lower()
    >>> found.objectives.shape
    torch.Size([3, 2])
    """
    method = choose_method(method, problem, x0, y0, steps)
    seeds = [int(seed) for seed in seeds]
    if not seeds:
        raise InvalidInput("seeds is empty; pass at least one, e.g. seeds=[0]")
    options: dict[str, Any] = {
        "steps": steps, "compile": compile, "record_every": record_every, "tol": tol, "callbacks": callbacks, "progress": progress,
    }  # fmt: skip
    if (budget is not None) != (isinstance(preferences, str) and preferences == "adaptive"):
        raise InvalidInput(f'budget = {budget} with preferences = {preferences!r}; preferences="adaptive" and budget=N go together')
    if budget is not None:
        from bipareto.adaptive import trace

        return trace(problem, [(x0, y0)], budget=budget, method=method, seeds=seeds, **options)
    start = method.prepare(problem, x0, y0)
    m = start.objectives.shape[0]
    if isinstance(preferences, str):
        preferences = named(preferences, m, seeds[0])
    if method.uses_preference:
        wanted = list(as_preference(grid(m, 11) if preferences is None else preferences, m).reshape(-1, m))
    elif preferences is None:
        wanted = [None]
    else:
        raise InvalidInput(f"{type(method).__name__} has no preferences; call front without them (one run per seed), or use MOMEHA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)  # zeros were warned of above, once for all
        begun = [method.begin(start, w) for w in wanted]
    states = begun * len(seeds)
    run_seeds = [seed for seed in seeds for _ in begun]
    run, batched = run_states(problem, method, states, run_seeds, options | {"m": m})
    preference = torch.stack([torch.full((m,), torch.nan, dtype=torch.float64) if w is None else w for w in wanted]).repeat(len(seeds), 1)
    return front_of(problem, method, run, preference, run_seeds, batched)


def front_of(problem: Problem, method: Method, run: Run, preference: Tensor, seeds: Sequence[int], batched: bool) -> ParetoFront:
    """A run with a first axis R as a front, its objectives those at the returned (x, y).

    Args:
        preference: (R, m), NaN for methods without.
        seeds: R of them.
        batched: whether the problem's functions can be batched by vmap.
    """
    with torch.no_grad():
        objectives = _objectives(problem, run.state.x, run.state.y, batched)
    return ParetoFront(
        x=run.state.x,
        y=run.state.y,
        objectives=objectives,
        preference=preference,
        seed=torch.tensor(seeds),
        reason=tuple(run.reason),
        failure=tuple(run.failure),
        seconds=run.seconds,
        method=method,
        problem=problem,
        run=run,
        batched=batched,
    )


@dataclass(frozen=True)
class ParetoFront:
    """R runs stacked along a first axis: x, y (trees), objectives (R, m), preference (R, m; NaN for methods without), seed (R,).

    `front[i]` is the i-th run as a `Solution`.  Objectives at the returned (x, y) can lie *below* the true front, because the
    lower level is only approximately solved; call `resolve_lower()` before measuring or comparing.
    """

    x: Tree
    y: Tree
    objectives: Tensor
    preference: Tensor
    seed: Tensor
    reason: tuple[Reason, ...]
    failure: tuple[Failure | None, ...]
    seconds: float
    method: Method | None = None
    problem: Problem | None = None
    run: Run | None = None
    batched: bool = True
    #: ||grad_y g|| (R,) after `resolve_lower`, else None
    lower_residual: Tensor | None = None

    def __len__(self) -> int:
        return self.objectives.shape[0]

    def __getitem__(self, index: int) -> Solution:
        if self.run is None or self.problem is None or self.method is None:
            raise InvalidInput("this front holds no run states (it was loaded from a file or filtered); use front.x, front.y and front.objectives")
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for a front of {len(self)} runs")
        i = index % len(self)
        found = solution_of(self.problem, self.method, self.run, i, int(self.seed[i]))
        return replace(found, y=tree.select(self.y, i), objectives=self.objectives[i])

    def point(self, index: int) -> tuple[Tree, Tree]:
        """(x, y) of one run; of any front, loaded and filtered ones included."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for a front of {len(self)} runs")
        return tree.select(self.x, index % len(self)), tree.select(self.y, index % len(self))

    @property
    def oracles(self) -> dict[str, int]:
        """What all runs have cost together: gradients of g and of the f_i, Hessian products."""
        if self.run is None or self.method is None:
            raise InvalidInput("this front holds no run states (it was loaded from a file or filtered), so its cost is not known")
        steps = sum(self.run.steps)
        return {name: count * steps for name, count in self.method.oracles(self.objectives.shape[1]).items()}

    def resolve_lower(self, tol: float = 1e-8, max_iter: int = 200, problem: Problem | None = None) -> ParetoFront:
        """The same x with y re-solved to ||grad_y g(x, y)|| <= tol from the returned y, and the objectives there.

        Args:
            tol, max_iter: tolerance and Newton steps at most; runs that miss it are warned of, and `lower_residual` says by how much.
            problem: needed for a front that was loaded from a file.
        """
        problem = problem or self.problem
        if problem is None:
            raise InvalidInput("this front was loaded from a file and does not know its problem; pass resolve_lower(problem=...)")
        if not len(self):
            return replace(self, lower_residual=self.objectives.new_empty(0))
        solved = envelope.solve_lower(problem, self.x, self.y, tol=tol, max_iter=max_iter, batched=self.batched)
        missed = [r for r, ok in enumerate(solved.converged.tolist()) if not ok and self.reason[r] != "nonfinite"]
        if missed:
            worst = float(solved.residual[missed].max())
            warnings.warn(
                f"the lower level of {len(missed)} of {len(self)} runs was not solved to {tol:g} in {max_iter} Newton steps "
                f"(worst ||grad_y g|| = {worst:.3g}); allow more with max_iter, or a larger tol",
                BiparetoWarning,
                stacklevel=2,
            )
        with torch.no_grad():
            objectives = _objectives(problem, self.x, solved.y, self.batched)
        return replace(self, y=solved.y, objectives=objectives, lower_residual=solved.residual)

    def hypervolume(self, reference: Any) -> float:
        """The volume of objective space that the front dominates, up to `reference` (m numbers, worse than the front)."""
        return measures.hypervolume(self.objectives, reference)

    def nondominated(self) -> ParetoFront:
        """The runs that no other run dominates (finite ones only); of equal points the first is kept."""
        import moocore

        finite = torch.isfinite(self.objectives).all(1)
        index = finite.nonzero().flatten()
        if len(index):
            points = self.objectives[finite].detach().to("cpu", torch.float64).numpy()
            index = index.cpu()[torch.as_tensor(moocore.is_nondominated(points))]
        return self.subset(index)

    def subset(self, index: Tensor) -> ParetoFront:
        """The runs of that index tensor, in its order, without their run states."""
        index = index.cpu()  # preferences and seeds lie there
        rows = index.tolist()
        return replace(
            self,
            x=tree.select(self.x, index.to(tree.first_leaf(self.x).device)),
            y=tree.select(self.y, index.to(tree.first_leaf(self.y).device)),
            objectives=self.objectives[index.to(self.objectives.device)],
            preference=self.preference[index],
            seed=self.seed[index],
            reason=tuple(self.reason[r] for r in rows),
            failure=tuple(self.failure[r] for r in rows),
            lower_residual=None if self.lower_residual is None else self.lower_residual[index.to(self.lower_residual.device)],
            run=None,
        )

    def plot(
        self, path: str | PathLike[str] | None = None, *, exact: Tensor | None = None, names: Sequence[str] | None = None, title: str = ""
    ) -> Figure:
        """A matplotlib figure of the front: one axis per objective up to three, parallel coordinates beyond.

        Args:
            path: also save it there; the ending decides the format, e.g. "front.pdf".
            exact: points of the exact front (n, m), drawn beneath.
            names: a label per objective; None takes the problem's.
            title: a heading.
        """
        labels = names or (None if self.problem is None else self.problem.names)
        figure = drawing.draw_front(self.objectives, preference=self.preference, exact=exact, names=labels, title=title)
        if path is not None:
            drawing.save(figure, path)
        return figure

    def save(self, path: str | PathLike[str]) -> None:
        """Write the front to one .npz file (plain arrays and JSON, nothing that unpickles)."""
        arrays: dict[str, Any] = {}
        layout: dict[str, Any] = {}
        for name in ("x", "y"):
            value = getattr(self, name)
            layout[name] = tree.layout(value)
            for i, leaf in enumerate(tree.leaves(value)):
                arrays[f"{name}.{i}"] = leaf.detach().cpu().numpy()
        for name in ("objectives", "preference", "seed", "lower_residual"):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name).detach().cpu().numpy()
        meta = {
            "format": 1,
            "layout": layout,
            "reason": self.reason,
            "failure": [None if f is None else [f.step, f.term] for f in self.failure],
            "seconds": self.seconds,
            "method": None if self.method is None else repr(self.method),
        }
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            np.savez(file, meta=np.array(json.dumps(meta)), **arrays)
        partial.replace(path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ParetoFront:
        """Read what `save` wrote; the front then has no problem, method or run states."""
        try:
            with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(str(arrays.pop("meta")))
        except FileNotFoundError as error:
            raise InvalidInput(f"there is no front at {path}") from error
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            kind = type(error).__name__  # numpy's own words advise to read such files unsafely
            raise InvalidInput(f"{path} is not a front written by ParetoFront.save, or was cut short ({kind}); write it again") from error
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        trees = {name: tree.from_layout(meta["layout"][name], (tensors[f"{name}.{i}"] for i in count())) for name in ("x", "y")}
        return cls(
            x=trees["x"],
            y=trees["y"],
            objectives=tensors["objectives"],
            preference=tensors["preference"],
            seed=tensors["seed"],
            reason=tuple(meta["reason"]),
            failure=tuple(None if f is None else Failure(*f) for f in meta["failure"]),
            seconds=meta["seconds"],
            lower_residual=tensors.get("lower_residual"),
        )


def run_states(problem: Problem, method: Method, states: list[State], seeds: list[int], options: dict[str, Any]) -> tuple[Run, bool]:
    """All runs in slices of equal size (each new size would compile anew), or one by one where vmap cannot batch.

    Ctrl-C ends the slice at hand and all that would come after it.
    """
    first = tree.stack(states[:1])
    try:
        stepper(problem, method, batched=True)(first, draw(problem, method.roles(options["m"]), 0, seeds[:1]))
    except NotBatchable as error:
        warnings.warn(f"{error}. Going on with one run after the other", BiparetoWarning, stacklevel=4)
        single: list[Run] = []
        for state, seed in zip(states, seeds, strict=True):
            stopped = _interrupted(single)
            single.append(not_begun(state, 1, options["m"], False) if stopped else drive(problem, method, state, [seed], batched=False, **options))
        return join_runs([_as_batch(run) for run in single]), False
    size = min(SLICE, len(states))
    parts: list[Run] = []
    for begin in range(0, len(states), size):
        part, part_seeds = states[begin : begin + size], seeds[begin : begin + size]
        if _interrupted(parts):
            parts.append(not_begun(tree.stack(part), len(part), options["m"], batched=True))
            continue
        missing = size - len(part)
        label = f"runs {begin + 1}-{begin + len(part)} of {len(states)}"
        run = drive(
            problem, method, tree.stack(part + part[-1:] * missing), part_seeds + part_seeds[-1:] * missing, batched=True, label=label, **options
        )
        parts.append(_first(run, len(part)))
    return join_runs(parts), True


def _interrupted(runs: list[Run]) -> bool:
    return bool(runs) and "interrupted" in runs[-1].reason


def _as_batch(run: Run) -> Run:
    def lead(value: Any) -> Any:
        return tree.map_(lambda leaf: leaf[None], value)

    history = {name: values if name == "step" else values[:, None] for name, values in run.history.items()}
    return replace(run, state=lead(run.state), best=lead(run.best), history=history)


def _first(run: Run, count: int) -> Run:
    history = {name: values if name == "step" else values[:, :count] for name, values in run.history.items()}
    return replace(
        run, state=tree.select(run.state, slice(count)), best=tree.select(run.best, slice(count)), history=history,
        steps=run.steps[:count], reason=run.reason[:count], failure=run.failure[:count],
    )  # fmt: skip


def join_runs(runs: list[Run]) -> Run:
    """Several runs with a first axis as one; they were recorded at the same steps, as far as they went."""
    if len(runs) == 1:
        return runs[0]

    def cat(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves)

    # Runs that ended early have fewer records, or none; NaN keeps the histories rectangular.
    longest = max(runs, key=lambda run: len(run.history["step"])).history
    history = {
        name: torch.cat([_lengthened(run.history.get(name, rows.new_empty(0, len(run.steps), *rows.shape[2:])), len(rows)) for run in runs], dim=1)
        for name, rows in longest.items()
        if name != "step"
    } | {"step": longest["step"]}
    return Run(
        state=tree.map_(cat, *(run.state for run in runs)),
        steps=[s for run in runs for s in run.steps],
        reason=[r for run in runs for r in run.reason],
        failure=[f for run in runs for f in run.failure],
        best=tree.map_(cat, *(run.best for run in runs)),
        history=history,
        seconds=sum(run.seconds for run in runs),
        compiled=all(run.compiled for run in runs),
    )


def _lengthened(rows: Tensor, length: int) -> Tensor:
    missing = rows.new_full((length - len(rows), *rows.shape[1:]), torch.nan)
    return torch.cat([rows, missing]) if len(missing) else rows


def _objectives(problem: Problem, x: Tree, y: Tree, batched: bool) -> Tensor:
    batch = problem.batch("upper", "full")
    if batched:
        return torch.func.vmap(lambda a, b: problem.upper(a, b, batch))(x, y)
    return torch.stack([problem.upper(tree.select(x, i), tree.select(y, i), batch) for i in range(tree.flat_axis(x))])
