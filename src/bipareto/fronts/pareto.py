"""What `front` returns: many runs stacked along a first axis, and what can be asked of them."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args, overload
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts import drawing, measures
from bipareto.fronts.tables import Tabular
from bipareto.methods import Method
from bipareto.methods.parts import envelope
from bipareto.problem import Problem, tree, validation
from bipareto.problem.base import as_problem
from bipareto.problem.tree import Tree
from bipareto.problem.validation import Places, place, places
from bipareto.run.loop import solution_of
from bipareto.run.race import Race
from bipareto.run.results import Failure, Leak, Reason, Run, Solution
from bipareto.run.training import TRAINING, judged, train_on

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ParetoFront", "front_of"]


def front_of(
    problem: Problem,
    method: Method,
    run: Run,
    preference: Tensor,
    seeds: Sequence[int],
    batched: bool,
) -> ParetoFront:
    """A run with a first axis R as a front, its objectives those at the returned (x, y).

    Args:
        preference: (R, m), NaN for methods without.
        seeds: R of them.
        batched: whether the problem's functions can be batched by vmap.
    """
    objectives, test = judged(problem, run.state.x, run.state.y, batched)
    return ParetoFront(
        x=run.state.x,
        y=run.state.y,
        objectives=objectives,
        test=test,
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


@dataclass(frozen=True, repr=False)
class ParetoFront(Tabular):
    """R runs stacked along a first axis: x, y (trees), objectives (R, m), preference (R, m; NaN for
    methods without), seed (R,).

    `front[i]` is the i-th run as a `Solution`.  Objectives at the returned (x, y) can lie *below*
    the true front, because the lower level is only approximately solved; call `resolve_lower()`
    before measuring or comparing.
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
    #: what all objectives can still gain together, a share of the extent (R,): `run.arrival`
    remaining: Tensor | None = None
    #: why that was not looked at, in words, where it was not
    unseen: str | None = None
    #: the objectives (R, m) at the y that the runs returned, where y has been replaced since
    own: Tensor | None = None
    #: the objectives (R, m) on `test_data`, which no step has seen, where there is any
    test: Tensor | None = None
    #: what was tried before the runs, where the method was found by a race, else None
    race: Race | None = None

    def __len__(self) -> int:
        return self.objectives.shape[0]

    @property
    def leak(self) -> Leak:
        """What y and x have learned of the upper level's data, in the mean over the runs."""
        own, test = (None if f is None else f.mean(0) for f in (self.own, self.test))
        return Leak(own, self.objectives.mean(0), test)

    @property
    def interrupted(self) -> bool:
        """Whether somebody pressed Ctrl-C before all runs had ended."""
        return "interrupted" in self.reason

    @overload
    def __getitem__(self, index: int) -> Solution: ...

    @overload
    def __getitem__(self, index: Places) -> ParetoFront: ...

    def __getitem__(self, index: Any) -> Solution | ParetoFront:
        """The run at a place as a `Solution`; a slice, mask or list of places as a front."""
        if isinstance(index, (slice, list, range)) or (
            isinstance(index, (Tensor, np.ndarray)) and index.ndim
        ):
            return self.subset(index)
        i = place(index, len(self))
        if self.run is None or self.problem is None or self.method is None:
            raise InvalidInput(
                "this front holds no run states (it was loaded from a file or filtered); use "
                "front.x, front.y and front.objectives"
            )
        found = solution_of(self.problem, self.method, self.run, i, int(self.seed[i]))
        rows: dict[str, Any] = {
            name: None if (v := getattr(self, name)) is None else v[i] for name in ("own", "test")
        }
        rows["unseen"] = self.unseen
        rows["remaining"] = None if self.remaining is None else float(self.remaining[i])
        y, f = tree.select(self.y, i), self.objectives[i]
        return replace(found, y=y, objectives=f, race=self.race, **rows)

    def point(self, index: int) -> tuple[Tree, Tree]:
        """(x, y) of one run; of any front, loaded and filtered ones included."""
        i = place(index, len(self))
        return tree.select(self.x, i), tree.select(self.y, i)

    @property
    def oracles(self) -> dict[str, int]:
        """What all runs have cost together: one warm-up of y for all; probes of `tuned`, or a race
        and its trainings, aside.
        """
        if self.run is None or self.method is None:
            raise InvalidInput(
                "this front holds no run states (it was loaded from a file or filtered), so its "
                "cost is not known"
            )
        return self.method.cost(self.objectives.shape[1], sum(self.run.steps))

    def resolve_lower(
        self, tol: float = 1e-8, max_iter: int = 200, problem: Problem | None = None
    ) -> ParetoFront:
        """The same x with y re-solved, grad_y g(x, y) = 0, from the returned y, and the objectives
        there.

        Args:
            tol, max_iter: how exactly, relative to the size of y (see `envelope.solve_lower`), and
                Newton steps at most; runs that miss it are warned of, and `lower_residual` is
                ||grad_y g||.
            problem: needed for a front that was loaded from a file.

        Networks are not solved exactly, they are trained: where data comes from loaders, y is
        trained on by Adam until g stops falling, and `lower_residual` stays None.
        """
        problem = self.problem if problem is None else as_problem(problem)
        tol = validation.number(tol, "tol", least=0)
        max_iter = validation.count(max_iter, "max_iter", most=validation.MOST_STEPS)
        if problem is None:
            raise InvalidInput(
                "this front was loaded from a file and does not know its problem; pass "
                "resolve_lower(problem=...)"
            )
        if not len(self):
            return replace(self, lower_residual=self.objectives.new_empty(0))
        if self.race is not None or problem.draws is not None:
            rate, steps = (self.race.rate, self.race.training) if self.race else TRAINING
            y = train_on(problem, self.x, self.y, rate=rate, steps=steps, batched=self.batched)
            return self.with_y(y, None, problem)
        solved = envelope.solve_lower(
            problem, self.x, self.y, tol=tol, max_iter=max_iter, batched=self.batched
        )
        solved_to = solved.converged.tolist()
        missed = [r for r, ok in enumerate(solved_to) if not ok and self.reason[r] != "nonfinite"]
        if missed:
            worst = float(solved.residual[missed].max())
            warnings.warn(
                f"the lower level of {len(missed)} of {len(self)} runs was not solved to {tol:g} "
                f"in {max_iter} Newton steps (worst ||grad_y g|| = {worst:.3g}); allow more with "
                "max_iter, or a larger tol",
                BiparetoWarning,
                stacklevel=2,
            )
        self._remind("their objectives are no answer, with the lower level solved or not")
        return self.with_y(solved.y, solved.residual, problem)

    def with_y(self, y: Tree, residual: Tensor | None, problem: Problem) -> ParetoFront:
        """The same x with another y (a stack), whose ||grad_y g|| (R,) are `residual`."""
        f, test = judged(problem, self.x, y, self.batched)
        own = self.objectives if self.own is None else self.own
        return replace(self, y=y, objectives=f, own=own, test=test, lower_residual=residual)

    def hypervolume(self, reference: Any) -> float:
        """The volume that the front dominates, up to `reference` (m numbers, worse than all)."""
        self._remind("their last values are counted like any other's")
        return measures.hypervolume(self.objectives, reference)

    def _remind(self, consequence: str) -> None:
        failed = sum(failure is not None for failure in self.failure)
        if failed:
            warnings.warn(
                f"{failed} of {len(self)} runs left the finite numbers (front.failure): "
                f"{consequence}; front.subset takes the others",
                BiparetoWarning,
                stacklevel=3,
            )

    def nondominated(self) -> ParetoFront:
        """The finite runs that no other run dominates; of equal points the first is kept."""
        import moocore

        finite = torch.isfinite(self.objectives).all(1)
        index = finite.nonzero().flatten()
        if len(index):
            points = self.objectives[finite].detach().to("cpu", torch.float64).numpy()
            index = index.cpu()[torch.as_tensor(moocore.is_nondominated(points))]
        return self.subset(index)

    def subset(self, index: Places) -> ParetoFront:
        """Some of the runs, without their run states.

        Args:
            index: a boolean mask (R,), places in any order (negative ones count from the end), or a
                slice.
        """
        rows = places(index, len(self))
        index = torch.tensor(rows, dtype=torch.int64)
        measured: dict[str, Any] = {
            name: None if (v := getattr(self, name)) is None else v[index.to(v.device)]
            for name in ("own", "test", "lower_residual", "remaining")
        }
        return replace(
            self,
            x=tree.select(self.x, index.to(tree.first_leaf(self.x).device)),
            y=tree.select(self.y, index.to(tree.first_leaf(self.y).device)),
            objectives=self.objectives[index.to(self.objectives.device)],
            preference=self.preference[index],
            seed=self.seed[index],
            reason=tuple(self.reason[r] for r in rows),
            failure=tuple(self.failure[r] for r in rows),
            **measured,
            run=None,
        )

    def plot(
        self,
        path: str | PathLike[str] | None = None,
        *,
        exact: Tensor | None = None,
        names: Sequence[str] | None = None,
        title: str = "",
    ) -> Figure:
        """A matplotlib figure of the front: one axis per objective up to three, parallel
        coordinates beyond.

        Args:
            path: also save it there; the ending decides the format, e.g. "front.pdf".
            exact: points of the exact front (n, m), drawn beneath.
            names: a label per objective; None takes the problem's.
            title: a heading.
        """
        labels = getattr(self.problem, "names", None) if names is None else names
        figure = drawing.draw_front(
            self.objectives, preference=self.preference, exact=exact, names=labels, title=title
        )
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
        names = ("objectives", "preference", "seed", "lower_residual", "own", "test", "remaining")
        for name in names:
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name).detach().cpu().numpy()
        meta = {
            "format": 1,
            "layout": layout,
            "reason": self.reason,
            "failure": [None if f is None else [f.step, f.term] for f in self.failure],
            "seconds": self.seconds,
            "method": None if self.method is None else repr(self.method),
            "unseen": self.unseen,
            "batched": self.batched,
        }
        path = validation.path(path, "front.npz")
        partial = path.with_name((path.name or "front") + ".partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, meta=np.array(json.dumps(meta)), **arrays)
            partial.replace(path)
        except OSError as error:
            raise InvalidInput(
                f"the front cannot be written to {path} ({error.strerror}); give a file in a "
                "folder that exists"
            ) from error

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ParetoFront:
        """Read what `save` wrote; the front then has no problem, method or run states."""
        path = validation.path(path, "front.npz")
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            found = cls._from_arrays(arrays)
        except FileNotFoundError as error:
            raise InvalidInput(f"there is no front at {path}") from error
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            StopIteration,
            BadZipFile,
            zlib.error,
        ) as error:
            kind = type(error).__name__  # numpy's own words advise to read such files unsafely
            raise InvalidInput(
                f"{path} is not a front written by ParetoFront.save, or was cut short or damaged "
                f"({kind}); write it again"
            ) from error
        return found

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> ParetoFront:
        """What `load` read, put together; one of several errors where it does not fit together."""
        meta = json.loads(str(arrays.pop("meta")))
        if meta["format"] != 1:
            raise ValueError(meta["format"])
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        trees = {
            name: tree.from_layout(meta["layout"][name], (tensors[f"{name}.{i}"] for i in count()))
            for name in ("x", "y")
        }
        front = cls(
            x=trees["x"],
            y=trees["y"],
            objectives=tensors["objectives"],
            preference=tensors["preference"],
            seed=tensors["seed"],
            reason=tuple(meta["reason"]),
            failure=tuple(None if f is None else Failure(*f) for f in meta["failure"]),
            seconds=float(meta["seconds"]),
            lower_residual=tensors.get("lower_residual"),
            own=tensors.get("own"),
            test=tensors.get("test"),
            remaining=tensors.get("remaining"),
            unseen=meta.get("unseen"),
            batched=meta.get("batched", True),
        )
        runs, m = front.objectives.shape
        columns: list[Any] = [front.preference, front.seed, front.reason, front.failure]
        columns += tree.leaves((front.x, front.y))
        if any(len(column) != runs for column in columns) or front.preference.shape != (runs, m):
            raise ValueError(runs)
        if set(front.reason) - set(get_args(Reason)):
            raise ValueError(front.reason)
        return front
