"""Many runs side by side, in slices of equal size, and their results as one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, NotBatchable
from bipareto.methods import Method
from bipareto.methods.base import State
from bipareto.problem import Problem, tree
from bipareto.run.loop import Begun, LoopOptions, drive, not_begun
from bipareto.run.results import Run, as_batch
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw

#: Runs of one front at most.
MOST_RUNS = 1_000_000
#: Runs that are stepped side by side at most; larger sweeps go slice by slice.
SLICE = 1024


def run_states(
    problem: Problem,
    method: Method,
    begun: Sequence[State],
    seeds: list[int],
    m: int,
    options: LoopOptions,
    batched: bool = True,
) -> tuple[Run, bool]:
    """All runs in slices of equal size (each new size would compile anew), or one by one where vmap
    cannot batch, and whether it could.

    Ctrl-C ends the slice at hand and all that would come after it.

    Args:
        batched: False where it is known, and has been said, that vmap cannot batch.
    """
    states = list(begun)
    if batched:
        first = tree.stack(states[:1])
        drawn = draw(problem, method.roles(m), 0, seeds[:1])
        try:
            stepper(problem, method, batched=True)(first, drawn)
        except NotBatchable as error:
            batched = False
            warnings.warn(
                f"{error}. Going on with one run after the other", BiparetoWarning, stacklevel=4
            )
    if not batched:
        single: list[Run] = []
        for state, seed in zip(states, seeds, strict=True):
            begun_one = Begun(state, [seed], m, batched=False)
            single.append(
                not_begun(begun_one)
                if _interrupted(single)
                else drive(problem, method, begun_one, options)
            )
        return join_runs([as_batch(run) for run in single]), False
    size = min(SLICE, len(states))
    parts: list[Run] = []
    for begin in range(0, len(states), size):
        part, part_seeds = states[begin : begin + size], seeds[begin : begin + size]
        if _interrupted(parts):
            parts.append(not_begun(Begun(tree.stack(part), part_seeds, m, batched=True)))
            continue
        missing = size - len(part)
        label = f"runs {begin + 1}-{begin + len(part)} of {len(states)}"
        stack = tree.stack(part + part[-1:] * missing)
        together = Begun(stack, part_seeds + part_seeds[-1:] * missing, m, batched=True)
        run = drive(problem, method, together, replace(options, label=label))
        parts.append(rows_of(run, list(range(len(part)))) if missing else run)
    return join_runs(parts), True


def _interrupted(runs: list[Run]) -> bool:
    return bool(runs) and runs[-1].interrupted


def rows_of(run: Run, rows: list[int]) -> Run:
    """Some of the runs, by their places on the run axis."""
    index = torch.tensor(rows, device=run.state.t.device)
    history = {
        name: values if name == "step" else values[:, index.to(values.device)]
        for name, values in run.history.items()
    }
    return replace(
        run,
        state=tree.select(run.state, index),
        best=tree.select(run.best, index),
        history=history,
        steps=[run.steps[r] for r in rows],
        reason=[run.reason[r] for r in rows],
        failure=[run.failure[r] for r in rows],
    )


def join_runs(runs: list[Run]) -> Run:
    """Several runs with a first axis as one, recorded at the same steps as far as they went."""
    if len(runs) == 1:
        return runs[0]

    def cat(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves)

    # Runs that ended early have fewer records, or none; NaN keeps the histories rectangular.
    longest = max(runs, key=lambda run: len(run.history["step"])).history
    history = {
        name: torch.cat(
            [
                _lengthened(
                    run.history.get(name, rows.new_empty(0, len(run.steps), *rows.shape[2:])),
                    len(rows),
                )
                for run in runs
            ],
            dim=1,
        )
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
