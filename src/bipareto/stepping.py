"""The step of a method on a problem as the loop takes it: one run or a batch of them, plain or compiled."""

from __future__ import annotations

import re
import types
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bipareto import tree
from bipareto.errors import BiparetoWarning, NotBatchable
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem

__all__ = ["CompiledStepper", "Stepper", "stepper"]

Step = Callable[[State, Draw], tuple[State, Info]]


class Stepper:
    """The step of a method on a problem, batched as asked: `stepper(state, draw) -> (state, info)`.

    Between steps the loop holds a *packed* state, which only the stepper understands: here the state itself.
    """

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool) -> None:
        # A stepper is kept as long as its problem (below); holding the problem here would keep both for ever.
        find = weakref.ref(problem)
        self.batched, self.shared_draw = batched, shared_draw

        def step(state: State, batches: Draw) -> tuple[State, Info]:
            return method.step(find(), state, batches)  # type: ignore[arg-type]

        def report(before: State, after: State, info: Info, batches: Draw) -> Info:
            return method.report(find(), before, after, info, batches)  # type: ignore[arg-type]

        draw_axis = None if shared_draw else 0
        self.plain: Step = torch.func.vmap(step, in_dims=(0, draw_axis)) if batched else step
        #: `method.report`, batched like the step
        self.report = torch.func.vmap(report, in_dims=(0, 0, 0, draw_axis)) if batched else report

    def pack(self, state: State, batches: Draw) -> Any:
        """A state in the form that `advance` takes; `batches` is a draw to look at, nothing is stepped."""
        return state

    def unpack(self, packed: Any) -> State:
        """The state that was packed."""
        return packed

    def advance(self, packed: Any, batches: Draw) -> tuple[Any, Info]:
        """One step of a packed state."""
        try:
            return self.plain(packed, batches)
        except RuntimeError as error:
            raise _batching_error(error) from error

    def unguarded(self) -> AbstractContextManager[object]:
        """Steps taken in here may assume that nothing but the state has changed since the last one."""
        return nullcontext()

    def __call__(self, state: State, batches: Draw) -> tuple[State, Info]:
        packed, info = self.advance(self.pack(state, batches), batches)
        return self.unpack(packed), info


class _Form:
    """States of one structure: what each leaf is, and their compiled step.

    Args:
        step: plain, on states.
        before, after: the states of one step, to be looked at.
        backend: of torch.compile.
    """

    def __init__(self, step: Step, before: State, after: State, backend: str) -> None:
        self.structure = pytree.tree_structure(before)
        self.template = tree.map_(lambda leaf: 0, before)
        self.kinds: list[str] = []
        for u, v in zip(tree.leaves(before), tree.leaves(after), strict=True):
            # Preference, numbers and the like come out of a step as the very memory that went in.
            number = u.dim() == before.t.dim() and u.dtype == before.t.dtype
            self.kinds.append("moved" if u.data_ptr() != v.data_ptr() else "number" if number else "kept")

        def moving(moved: list[Tensor], kept: list[Tensor], numbers: Tensor, batches: Draw) -> tuple[list[Tensor], Info]:
            state, info = step(self.join(moved, kept, numbers), batches)
            return self.pick(state, "moved"), info

        # Dynamo keeps its cache on the code object and refuses the ninth variant of it; each form gets one of its own.
        code = moving.__code__.replace(co_name=f"step_{id(self):x}")
        own = types.FunctionType(code, moving.__globals__, code.co_name, moving.__defaults__, moving.__closure__)
        self.fast = torch.compile(own, fullgraph=True, dynamic=False, backend=backend)

    def join(self, moved: list[Tensor], kept: list[Tensor], numbers: Tensor) -> State:
        """The state of its parts."""
        parts = {"moved": iter(moved), "kept": iter(kept), "number": iter(numbers.unbind(-1))}
        return tree.rebuild(self.template, [next(parts[kind]) for kind in self.kinds])

    def pick(self, state: State, wanted: str) -> list[Tensor]:
        """The leaves of one kind."""
        return [leaf for leaf, kind in zip(tree.leaves(state), self.kinds, strict=True) if kind == wanted]


class _Packed(NamedTuple):
    """A state laid out flat: leaves that move, leaves that are kept, and all numbers in one, (..., count)."""

    form: _Form
    moved: list[Tensor]
    kept: list[Tensor]
    numbers: Tensor


class CompiledStepper(Stepper):
    """The same through `torch.compile`, with the state packed flat.

    Flattening a state and handing constants in and out of the graph at every step would cost more than a small step.
    """

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool, backend: str) -> None:
        super().__init__(problem, method, batched, shared_draw)
        self.backend = backend
        # One problem may be solved from starts of several structures; a dict in another order is another one.
        self.forms: list[_Form] = []
        self.broken = False

    def pack(self, state: State, batches: Draw) -> _Packed:
        structure = pytree.tree_structure(state)
        form = next((form for form in self.forms if form.structure == structure), None)
        if form is None:
            after, _ = super().advance(state, batches)
            form = _Form(self.plain, state, after, self.backend)
            self.forms.append(form)
        # Leaves that share memory (theta_0 is y_0) would compile to a graph of their own, good for the first step only.
        seen: set[int] = set()

        def alone(leaf: Tensor) -> Tensor:
            shared = leaf.data_ptr() in seen
            seen.add(leaf.data_ptr())
            return leaf.clone() if shared else leaf

        state = tree.map_(alone, state)
        numbers = form.pick(state, "number")
        stacked = torch.stack(numbers, -1) if numbers else state.t.new_zeros((*state.t.shape, 0))
        return _Packed(form, form.pick(state, "moved"), form.pick(state, "kept"), stacked)

    def unpack(self, packed: _Packed) -> State:
        return packed.form.join(*packed[1:])

    def unguarded(self) -> AbstractContextManager[object]:
        # Checking hundreds of guards takes longer than a small step.
        return torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)

    def _call(self, packed: _Packed, batches: Draw) -> tuple[list[Tensor], Info]:
        fast, *parts = packed.form.fast, *packed[1:]
        try:
            return fast(*parts, batches)
        except RuntimeError as error:
            if "skip_guard_eval_unsafe" not in str(error):
                raise
            with torch.compiler.set_stance("default"):
                return fast(*parts, batches)

    def advance(self, packed: _Packed, batches: Draw) -> tuple[_Packed, Info]:
        if not self.broken:
            try:
                moved, info = self._call(packed, batches)
                return packed._replace(moved=moved), info
            except torch._dynamo.exc.TorchDynamoException as error:
                self.broken = True
                reason = " ".join(str(error).strip().splitlines()[:2])
                warnings.warn(f"torch.compile could not take this problem ({reason}); going on uncompiled", BiparetoWarning, stacklevel=2)
        state, info = super().advance(self.unpack(packed), batches)
        return packed._replace(moved=packed.form.pick(state, "moved")), info


_COMPILED: WeakKeyDictionary[Problem, dict[Any, Stepper]] = WeakKeyDictionary()


def stepper(problem: Problem, method: Method, *, batched: bool, shared_draw: bool = True, compile: bool | str = False) -> Stepper:
    """The step of a method on a problem, batched and compiled as asked.

    Args:
        batched: states carry a first run axis.
        shared_draw: all runs see the same draw (one seed); else draws carry the run axis too.
        compile: True for Inductor, a backend's name, or "replay" for a CUDA graph of the kernels that are there (`bipareto.replay`).

    Compiled steps are kept per problem and structure of method: numbers live in the state, so gamma, mu, steps and penalties
    of any value share one graph.
    """
    if not compile:
        return Stepper(problem, method, batched, shared_draw)
    backend = "inductor" if compile is True else compile
    known = _COMPILED.setdefault(problem, {})
    key = (method.structure(), batched, shared_draw, backend)
    if key not in known:
        if backend == "replay":
            from bipareto.replay import ReplayedStepper

            known[key] = ReplayedStepper(problem, method, batched, shared_draw)
        else:
            known[key] = CompiledStepper(problem, method, batched, shared_draw, backend)
    return known[key]


def _batching_error(error: RuntimeError) -> Exception:
    """A functorch failure as an error that names the operator; any other error as it is."""
    text = str(error)
    if "vmap" not in text and "functorch" not in text:
        return error
    found = re.search(r"aten::\w+|\.item\(\)|data-dependent control flow|in-place", text)
    operator = found.group(0) if found else text.splitlines()[0]
    return NotBatchable(
        f"a loss uses {operator}, which torch.func.vmap cannot batch; write it without boolean masks, .item(), in-place "
        "writes and running statistics (torch.where instead of indexing by a mask)"
    )
