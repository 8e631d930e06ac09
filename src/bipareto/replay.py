"""A step recorded once as a CUDA graph and replayed: no Python, no launches one by one, equal work done once.

Where `torch.compile` writes new kernels and takes minutes on a network, this records the kernels that are there in seconds.
Use it for networks on a GPU; for many small runs side by side Inductor's fused kernels are faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from bipareto import tree
from bipareto.errors import InvalidInput
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem
from bipareto.sharing import share, writes_in_place
from bipareto.stepping import Stepper

__all__ = ["ReplayedStepper", "traced"]


def traced(step: Any, leaves: list[Tensor], draws: list[Tensor]) -> torch.fx.GraphModule:
    """`step(leaves, draws)` as a graph of tensor operations in which no work is done twice."""
    module = make_fx(step)(leaves, draws)
    if writes_in_place(module.graph):
        # Only now: `functionalize` does not know autograd functions, which are gone from a trace.
        module = make_fx(torch.func.functionalize(module))(leaves, draws)
    share(module.graph)
    module.recompile()
    return module


class ReplayedStepper(Stepper):
    """Keeps the state in memory of its own.  A packed state is a ticket for it: good for the last two states only."""

    def __init__(self, problem: Problem, method: Method, batched: bool, shared_draw: bool) -> None:
        super().__init__(problem, method, batched, shared_draw)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.ticket = 0

    def pack(self, state: State, batches: Draw) -> int:
        if self.graph is None or _sharing(tree.leaves(batches)) != self.pattern:
            self._record(state, batches)
        torch._foreach_copy_(self.now, tree.leaves(state))
        self.ticket += 2  # what was packed before is gone
        return self.ticket

    def unpack(self, packed: int) -> State:
        held = {self.ticket: self.now, self.ticket - 1: self.before}
        if packed not in held:
            raise InvalidInput("this packed state has been overwritten; a replayed step keeps the last two")
        return tree.rebuild(self.template, [leaf.clone() for leaf in held[packed]])

    def advance(self, packed: int, batches: Draw) -> tuple[int, Info]:
        if packed != self.ticket or self.graph is None:
            raise InvalidInput("a replayed step goes on from its last state only; pack the state first")
        draws = tree.leaves(batches)
        if draws:
            torch._foreach_copy_(self.draws, [draws[i] for i in self.kept])
        self.graph.replay()
        self.ticket += 1
        return self.ticket, {name: value.clone() for name, value in self.info.items()}

    def _record(self, state: State, batches: Draw) -> None:
        leaves, draws = tree.leaves(state), tree.leaves(batches)
        if not leaves[0].is_cuda:
            raise InvalidInput(f"compile='replay' records a CUDA graph, but the run is on {leaves[0].device}; use compile=True or False there")
        self.template = tree.map_(lambda leaf: 0, state)
        self.pattern = _sharing(draws)
        # Roles that are given the same memory see the same data: one input for all of them lets their work be shared.
        self.kept = sorted(set(self.pattern))
        self.now = [leaf.clone() for leaf in leaves]
        self.before = [leaf.clone() for leaf in leaves]
        self.draws = [draws[i].clone() for i in self.kept]
        shape = tree.map_(lambda leaf: 0, batches)
        names: list[str] = []

        def flat(leaves: list[Tensor], draws: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            given = tree.rebuild(shape, [draws[self.kept.index(i)] for i in self.pattern])
            after, info = self.plain(tree.rebuild(self.template, leaves), given)
            names[:] = info
            return tree.leaves(after), list(info.values())

        step = traced(flat, self.now, self.draws)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose their kernels and workspaces before the recording
                step(self.now, self.draws)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            after, info = step(self.now, self.draws)
            torch._foreach_copy_(self.before, self.now)
            torch._foreach_copy_(self.now, after)
        self.info = dict(zip(names, info, strict=True))


def _sharing(draws: list[Tensor]) -> tuple[int, ...]:
    """For each tensor the place of the first one that is the same memory."""
    first: dict[Any, int] = {}
    return tuple(first.setdefault((d.data_ptr(), d.shape, d.stride(), d.dtype), i) for i, d in enumerate(draws))
