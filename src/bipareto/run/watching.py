"""What the loop gathers while it goes: it looks at the end of each block only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bipareto.methods.base import Info, State
from bipareto.problem import tree
from bipareto.run.results import Ended, Failure, Reason, Run, Snapshot

__all__ = ["Watch"]


class Watch:
    """What the loop sees at the end of each block, and the runs that have already ended.

    large: the best x and y are kept in the memory of the host, not in that of a GPU.
    """

    def __init__(self, runs: int, m: int, batched: bool, records: int, large: bool = False) -> None:
        self.runs, self.m, self.batched, self.records = runs, m, batched, records
        self.large = large
        self.ended: dict[int, Ended] = {}
        self.history: dict[str, Tensor] = {}
        self.steps: list[int] = []
        self.best: dict[str, Any] = {}

    def finished(self) -> bool:
        """Whether every run has ended."""
        return len(self.ended) == self.runs

    def restore(self, snapshot: Snapshot) -> None:
        """Be as at the end of the snapshot's block."""
        self.ended, self.best = dict(snapshot.ended), self._placed(snapshot.best, "cpu")
        rows = dict(snapshot.history)
        self.steps = rows.pop("step").tolist()
        self.history = {
            name: values.new_zeros((self.records, *values.shape[1:]))
            for name, values in rows.items()
        }
        for name, values in rows.items():
            self.history[name][: len(self.steps)] = values

    def look(self, done: int, previous: State, state: State, info: Info, tol: float | None) -> None:
        """Record, keep the best iterate, end the runs that have converged."""
        self._record(done, info)
        self._keep_best(done - 1, previous, info)
        if tol is not None:
            small = (info["residual"].reshape(-1) <= tol).tolist()
            self._end([r for r in range(self.runs) if small[r]], "converged", state, done)

    def check(
        self,
        t: int,
        first: State,
        state: State,
        info: Info,
        step: Callable[[State, int], tuple[State, Info]],
        count: int,
    ) -> None:
        """End the runs that `count` steps from `first` on, at step t, took from the finite numbers.

        Args:
            t: the first of the steps.
            first: where they began.
            state, info: what the last of them left.
            step: takes one of them again.
            count: how many.
        """
        good = self._finite(state, info)
        bad = [r for r in range(self.runs) if not good[r] and r not in self.ended]
        if bad:
            self._locate(bad, first, t, count, step)

    def lost(self, state: State, info: Info, thrown: Tensor) -> Tensor:
        """The runs, as a mask of the run axis, that still go and are thrown or finite no more."""
        good, off = self._finite(state, info), thrown.reshape(-1).tolist()
        mask = [(off[r] or not good[r]) and r not in self.ended for r in range(self.runs)]
        return torch.tensor(mask, device=state.t.device).reshape(state.t.shape)

    def stop_all(self, reason: Reason, state: State, done: int) -> None:
        """End the runs that still go, for that reason."""
        self._end(range(self.runs), reason, state, done)

    def _end(
        self,
        runs: Sequence[int] | range,
        reason: Reason,
        state: State,
        done: int,
        failure: Failure | None = None,
    ) -> None:
        for r in runs:
            self.ended.setdefault(r, Ended(self._take(state, r), done, reason, failure))

    def _take(self, value: Any, r: int) -> Any:
        return tree.select(value, r) if self.batched else value

    def _record(self, done: int, info: Info) -> None:
        if not self.history:
            # Room for all records at once: appending never moves what is there.
            self.history = {
                name: value.new_zeros((self.records, *value.shape)) for name, value in info.items()
            }
        for name, value in info.items():
            self.history[name][len(self.steps)] = value
        self.steps.append(done)

    def _keep_best(self, t: int, point: State, info: Info) -> None:
        residual = torch.nan_to_num(info["residual"], nan=math.inf)
        better = residual < self.best["residual"] if self.best else residual == residual
        if self.large and not bool(better.any()):
            return  # nothing to copy
        step = torch.full_like(residual, t)
        seen = {
            "x": point.x,
            "y": point.y,
            "objectives": info["objectives"],
            "residual": residual,
            "step": step,
        }
        seen = self._placed(seen, "cpu")
        if self.best and (self.batched or not self.large):
            there = better.cpu() if self.large else better
            seen = {
                name: tree.where_run(
                    there if name in ("x", "y") else better, value, self.best[name]
                )
                for name, value in seen.items()
            }
        self.best = seen

    def _placed(self, best: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
        """The best iterates, of large runs with x and y on that device."""
        if not self.large:
            return dict(best)
        return {
            name: tree.map_(lambda leaf: leaf.to(device), value) if name in ("x", "y") else value
            for name, value in best.items()
        }

    def _finite(self, state: State, info: Info) -> list[bool]:
        # What is read off a move is not known where the step was zero, as at the end of a schedule:
        # that is no failure.
        seen = [
            torch.where(v.isnan(), 0, v) if name in ("stationarity", "residual") else v
            for name, v in info.items()
        ]
        values = [*tree.leaves(state.x), *tree.leaves(state.y), *seen]
        flags = [torch.isfinite(v).reshape(self.runs, -1).all(1) for v in values]
        return torch.stack(flags).all(0).tolist()

    def _locate(
        self,
        bad: list[int],
        first: State,
        t: int,
        count: int,
        step: Callable[[State, int], tuple[State, Info]],
    ) -> None:
        """Replay the block to find, for each bad run, the first step whose info or new state is not
        finite.
        """
        waiting, state = set(bad), first
        for at in range(t, t + count):
            new, info = step(state, at)
            good = self._finite(new, info)
            for r in [r for r in waiting if not good[r]]:
                failure = Failure(at, _term(self._take(info, r), self._take(new, r)))
                self._end([r], "nonfinite", state, at, failure)
                waiting.discard(r)
            if not waiting:
                return
            state = new

    def run(self, seconds: float, compiled: bool) -> Run:
        """What was gathered, once every run has ended."""
        ended = [self.ended[r] for r in range(self.runs)]
        states = [state for state, *_ in ended]
        state = tree.stack(states) if self.batched else states[0]
        best = self._placed(self.best, state.t.device) or self._unseen(
            state, [done for _, done, _, _ in ended]
        )
        history = {name: values[: len(self.steps)] for name, values in self.history.items()} or {
            "objectives": best["objectives"][None][:0]
        }
        history["step"] = torch.tensor(self.steps, dtype=torch.int64)
        return Run(
            state=state,
            steps=[done for _, done, _, _ in ended],
            reason=[reason for _, _, reason, _ in ended],
            failure=[failure for *_, failure in ended],
            best=best,
            history=history,
            seconds=seconds,
            compiled=compiled,
        )

    def _unseen(self, state: State, steps: list[int]) -> dict[str, Any]:
        """The best iterate where nothing was recorded: the last one, of which nothing is known."""
        residual = torch.full_like(state.t, math.inf)
        return {
            "x": state.x,
            "y": state.y,
            "objectives": residual.new_full((*residual.shape, self.m), math.nan),
            "residual": residual,
            "step": residual.new_tensor(steps).reshape(residual.shape),
        }


def _term(info: Info, state: State) -> str:
    """Which quantity of one run is not finite: an objective, g, or the update of a variable."""
    for i, value in enumerate(info["objectives"].reshape(-1).tolist()):
        if not math.isfinite(value):
            return f"f_{i + 1}"
    values = info | {name: getattr(state, name, ()) for name in ("theta", "x", "y")}
    # The gap holds g at the new theta, so theta is looked at first.
    for name in ("lower", "theta", "gap", "x", "y"):
        if not all(torch.isfinite(leaf).all() for leaf in tree.leaves(values.get(name, ()))):
            return "g" if name in ("lower", "gap") else f"the update of {name}"
    return next(
        (name for name, value in info.items() if not torch.isfinite(value).all()), "the state"
    )
