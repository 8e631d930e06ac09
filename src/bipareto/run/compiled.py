"""The step of a method through `torch.compile`, on states that are packed flat."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bipareto.errors import BiparetoWarning
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem, tree
from bipareto.run.graph import cse, merge, onednn, products
from bipareto.run.stepping import Step, Stepper

__all__ = ["CompiledStepper"]


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
            self.kinds.append(
                "moved" if u.data_ptr() != v.data_ptr() else "number" if number else "kept"
            )

        contiguous = [leaf.is_contiguous() for leaf in self.pick(before, "moved")]

        def moving(
            moved: list[Tensor], kept: list[Tensor], numbers: Tensor, batches: Draw
        ) -> tuple[list[Tensor], Info]:
            state, info = step(self.join(moved, kept, numbers), batches)
            # Gradients through matrices may come out transposed; a state of other strides than
            # the first would be compiled anew.
            same = zip(self.pick(state, "moved"), contiguous, strict=True)
            return [leaf.contiguous() if whole else leaf for leaf, whole in same], info

        # Dynamo keeps its cache on the code object and refuses the ninth variant of it; each form
        # gets one of its own.
        code = moving.__code__.replace(co_name=f"step_{id(self):x}")
        own = types.FunctionType(
            code, moving.__globals__, code.co_name, moving.__defaults__, moving.__closure__
        )
        options: Any = None
        if backend == "inductor":
            options = {"post_grad_custom_pre_pass": _shared_work()}
        self.fast = torch.compile(
            own, fullgraph=True, dynamic=False, backend=backend, options=options
        )

    def join(self, moved: list[Tensor], kept: list[Tensor], numbers: Tensor) -> State:
        """The state of its parts."""
        parts = {"moved": iter(moved), "kept": iter(kept), "number": iter(numbers.unbind(-1))}
        return tree.rebuild(self.template, [next(parts[kind]) for kind in self.kinds])

    def pick(self, state: State, wanted: str) -> list[Tensor]:
        """The leaves of one kind."""
        return [
            leaf
            for leaf, kind in zip(tree.leaves(state), self.kinds, strict=True)
            if kind == wanted
        ]


@cache
def _shared_work() -> Callable[..., Any]:
    """What Inductor does to a step's graph first: f and g, which a step evaluates at the same point
    for several gradients, are evaluated once, and matrix products are taken as a CPU takes them
    fastest.
    """
    # Loading Inductor takes a while; here it is about to be used.
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Shared(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            cse.share(graph)
            products.turn(graph)
            cse.share(graph)  # a matrix that several products were turned with
            merge.merge(graph)
            onednn.hand_over(graph)

        def uuid(self) -> bytes:
            # Graphs may be kept on a disk that machines with other processors read too.
            processor = f"{products.intel()} {onednn.available()}"
            files = cse.__file__, products.__file__, merge.__file__, onednn.__file__
            return get_hash_for_files(files, processor)

    return Shared()


class _Packed(NamedTuple):
    """A state laid out flat: leaves that move, leaves kept, and all numbers in one (..., count)."""

    form: _Form
    moved: list[Tensor]
    kept: list[Tensor]
    numbers: Tensor


class CompiledStepper(Stepper):
    """The same through `torch.compile`, with the state packed flat.

    Flattening a state and handing constants in and out of the graph at every step would cost more
    than a small step.
    """

    def __init__(
        self, problem: Problem, method: Method, batched: bool, shared_draw: bool, backend: str
    ) -> None:
        super().__init__(problem, method, batched, shared_draw)
        self.backend = backend
        # One problem may be solved from starts of several structures; a dict in another order is
        # another one.
        self.forms: list[_Form] = []
        self.broken = False

    def pack(self, state: State, batches: Draw) -> _Packed:
        structure = pytree.tree_structure(state)
        form = next((form for form in self.forms if form.structure == structure), None)
        if form is None:
            after, _ = super().advance(state, batches)
            form = _Form(self.plain, state, after, self.backend)
            self.forms.append(form)
        # Leaves that share memory (theta_0 is y_0) would compile to a graph of their own, good for
        # the first step only.
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
            except Exception as error:  # noqa: BLE001
                # Whatever compilation stumbles over (NumPy in a closure fails in a guard, with an
                # AssertionError), the plain step decides: it raises what is wrong with a loss.
                found = self._plain(packed, batches)
                self.broken = True
                reason = " ".join(str(error).strip().splitlines()[:2]) or type(error).__name__
                warnings.warn(
                    f"torch.compile could not take this problem ({reason}); going on uncompiled, "
                    "which is slower and gives the same numbers (compile=False says so from the "
                    "start; tensors instead of NumPy arrays in the losses often help)",
                    BiparetoWarning,
                    stacklevel=2,
                )
                return found
        return self._plain(packed, batches)

    def _plain(self, packed: _Packed, batches: Draw) -> tuple[_Packed, Info]:
        state, info = super().advance(self.unpack(packed), batches)
        return packed._replace(moved=packed.form.pick(state, "moved")), info
