"""The step of a method on a problem as the loop takes it: its draws, one run or a batch of them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from textwrap import shorten
from typing import Any, TypeAlias

import torch

from bipareto.errors import InvalidInput, NotBatchable
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem, tree
from bipareto.problem.sampler import Role

#: torch's words for it, of a GPU and of a processor
NO_MEMORY = ("out of memory", "can't allocate memory")


def draw(problem: Problem, roles: Sequence[Role], t: int, seeds: Sequence[int]) -> dict[Role, Any]:
    """The draws of one step, role -> batch; with several seeds every leaf has one row per seed."""
    if problem.sampler is None:
        return {}
    per_seed = [{role: problem.sampler(role, t, seed) for role in roles} for seed in seeds]
    if len(seeds) == 1:
        return per_seed[0]
    # Roles that were given one and the same batch go on sharing its memory.
    same = {role: tuple(id(drawn[role]) for drawn in per_seed) for role in roles}
    stacked: dict[Any, Any] = {}
    for role in reversed(roles):
        try:
            stacked[same[role]] = tree.stack([drawn[role] for drawn in per_seed])
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"the draws of role {str(role)!r} differ in shape from seed to seed "
                f"({str(error).splitlines()[0]}); runs side by side need batches of one shape: "
                "make them so, or solve one seed after the other"
            ) from error
    return {role: stacked[same[role]] for role in roles}


#: a step on states, of one run or of a batch
Step: TypeAlias = Callable[[State, Draw], tuple[State, Info]]


class Stepper:
    """The step of a method on a problem, batched as asked: `stepper(state, draw) -> (state, info)`.

    Between steps the loop holds a *packed* state, which only the stepper understands: here the
    state itself.
    """

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool) -> None:
        # A stepper is kept as long as its problem (below); holding the problem here would keep both
        # for ever.
        find = weakref.ref(problem)
        self.batched, self.shared_draw = batched, shared_draw

        def step(state: State, batches: Draw) -> tuple[State, Info]:
            return method.step(find(), state, batches)  # type: ignore[arg-type]

        def report(before: State, after: State, info: Info, batches: Draw) -> Info:
            return method.report(find(), before, after, info, batches)  # type: ignore[arg-type]

        draw_axis = None if shared_draw else 0
        self._single = step
        self.plain: Step = torch.func.vmap(step, in_dims=(0, draw_axis)) if batched else step
        #: `method.report`, batched like the step
        self.report = torch.func.vmap(report, in_dims=(0, 0, 0, draw_axis)) if batched else report

    def pack(self, state: State, batches: Draw) -> Any:
        """A state in the form that `advance` takes; `batches` is a draw to look at, no more."""
        return state

    def unpack(self, packed: Any) -> State:
        """The state that was packed."""
        return packed

    def advance(self, packed: Any, batches: Draw) -> tuple[Any, Info]:
        """One step of a packed state."""
        try:
            return self.plain(packed, batches)
        except RuntimeError as error:
            known = batching_error(error)
            if known is error and self.batched and self._one_works(packed, batches):
                known = not_batchable("", str(error))
            raise known from error

    def _one_works(self, states: State, batches: Draw) -> bool:
        """Whether the first run alone takes a step; torch's words for what vmap cannot are many."""
        drawn = batches if self.shared_draw else tree.select(batches, 0)
        try:
            self._single(tree.select(states, 0), drawn)
        except RuntimeError:
            return False
        return True

    def unguarded(self) -> AbstractContextManager[object]:
        """Steps taken in here may assume that only the state has changed since the last one."""
        return nullcontext()

    def __call__(self, state: State, batches: Draw) -> tuple[State, Info]:
        packed, info = self.advance(self.pack(state, batches), batches)
        return self.unpack(packed), info


def over_runs(function: Callable[..., Any], axes: Sequence[int | None], batched: bool) -> Any:
    """A function of stacks of runs, from one of single runs.

    Args:
        axes: 0 for each argument that is a stack, None for one that all runs share.
        batched: False calls it for one run after the other, for losses that vmap cannot batch.
    """

    def one(arguments: Sequence[Any], r: int) -> Any:
        pairs = zip(arguments, axes, strict=True)
        return function(*(tree.select(v, r) if axis == 0 else v for v, axis in pairs))

    def each(*arguments: Any) -> Any:
        runs = tree.flat_axis(arguments[list(axes).index(0)])
        return tree.stack([one(arguments, r) for r in range(runs)])

    def together(*arguments: Any) -> Any:
        try:
            return torch.func.vmap(function, in_dims=tuple(axes))(*arguments)
        except RuntimeError as error:
            known = batching_error(error)
            if known is error:
                one(arguments, 0)  # a loss that fails by itself says so better
                known = not_batchable("", str(error))
            raise known from error

    return together if batched else each


def batching_error(error: RuntimeError) -> Exception:
    """A functorch failure as an error that names the operator; any other error as it is."""
    text = str(error)
    if not any(word in text for word in ("vmap", "functorch", "Batching rule")):
        return error
    written = re.search(r"(\w+_)\(self", text)
    if written:
        return not_batchable(f"{written.group(1)}, which writes in place (take the form without _)")
    found = re.search(r"aten::\w+|\.item\(\)|data-dependent control flow|in-place", text)
    return not_batchable(found.group(0) if found else "", text)


def not_batchable(operator: str, text: str = "") -> NotBatchable:
    """The error for an operator, or by torch's words where these do not name one."""
    words = shorten(text, 120, placeholder=" ...")
    if any(word in text for word in NO_MEMORY):
        return NotBatchable(f"runs side by side need more memory than there is ({words})")
    said = (
        f"a loss uses {operator}, which " if operator else f"in a loss is something ({words}) that "
    )
    return NotBatchable(
        f"{said}torch.func.vmap cannot batch; write it without boolean masks, .item(), in-place "
        "writes and running statistics (torch.where instead of indexing by a mask)"
    )
