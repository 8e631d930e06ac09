"""A batched step recorded as tensor operations and run from there: the same bits, sooner.

Most of a small step's time under `vmap` is spent on finding out, again and again, what is to be
done.  Recording takes as long as a dozen steps; what is recorded is run with equal work done once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem, tree
from bipareto.run.graph.replay import traced
from bipareto.run.stepping import Stepper

#: so many steps after it was last seen to be right, a recording is held against the plain step
EVERY = 50


class TracedStepper(Stepper):
    """The plain step where it cannot be recorded, and on draws of other shapes than the recorded.

    Losses are pure functions.  One that is changed all the same (a closure's number, say) is
    noticed at the first step of a block, as with `torch.compile`, and recorded anew.
    """

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool) -> None:
        super().__init__(problem, method, batched, shared_draw)
        self.graph: torch.fx.GraphModule | None = None
        self.refused = False
        self.taken = 0
        self.names: list[str] = []

    def pack(self, state: State, batches: Draw) -> list[Tensor]:
        self.template = tree.map_(lambda leaf: 0, state)
        leaves = tree.leaves(state)
        if self.graph is not None and [leaf.shape for leaf in leaves] != self.shapes:
            self.graph = None
        elif self.graph is not None and self.taken >= EVERY:
            self._verify(leaves, batches)
        return leaves

    def unpack(self, packed: list[Tensor]) -> State:
        return tree.rebuild(self.template, packed)

    def advance(self, packed: list[Tensor], batches: Draw) -> tuple[list[Tensor], Info]:
        draws = tree.leaves(batches)
        if self.graph is None and not self.refused:
            self._record(packed, batches)
        if self.graph is None or [draw.shape for draw in draws] != self.drawn:
            after, info = super().advance(self.unpack(packed), batches)
            return tree.leaves(after), info
        self.taken += 1
        # Tensors that the losses hold may be parameters.
        with torch.no_grad():
            moved, seen = self.graph(packed, draws)
        return moved, dict(zip(self.names, seen, strict=True))

    def _record(self, packed: list[Tensor], batches: Draw) -> None:
        shape = tree.map_(lambda leaf: 0, batches)

        def flat(leaves: list[Tensor], draws: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            state, info = self.plain(
                tree.rebuild(self.template, leaves), tree.rebuild(shape, draws)
            )
            self.names = list(info)
            return tree.leaves(state), list(info.values())

        leaves, draws = _apart(packed), _apart(tree.leaves(batches))
        try:
            self.graph = traced(flat, leaves, draws)
        except Exception:  # noqa: BLE001
            # The plain step is right whatever cannot be written down, and raises what is wrong.
            self.refused = True
            return
        self.shapes = [leaf.shape for leaf in packed]
        self.drawn = [draw.shape for draw in draws]
        self.taken = 0

    def _verify(self, packed: list[Tensor], batches: Draw) -> None:
        """Forget a recording that no longer does what the plain step does."""
        mine, seen = self.advance(packed, batches)
        state, info = super().advance(self.unpack(packed), batches)
        pairs = zip([*mine, *seen.values()], [*tree.leaves(state), *info.values()], strict=True)
        if all(_same(a, b) for a, b in pairs):
            self.taken = 0
        else:
            self.graph = None


def _apart(tensors: list[Tensor]) -> list[Tensor]:
    """The same with each tensor an object of its own: a recording tells inputs apart by that."""
    seen: set[int] = set()
    found = []
    for tensor in tensors:
        found.append(tensor.clone() if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return found


def _same(a: Any, b: Any) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())
