"""A step recorded once as a CUDA graph and replayed: no Python, no launches one by one, equal work
done once.

Where `torch.compile` writes new kernels and takes minutes on a network, this records the kernels
that are there in seconds. Use it for networks on a GPU; for many small runs side by side Inductor's
fused kernels are faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bipareto.errors import InvalidInput
from bipareto.methods import Method
from bipareto.methods.base import Draw, Info, State
from bipareto.problem import Problem, tree
from bipareto.run.graph.cse import settle, share, without_writes
from bipareto.run.graph.fused import gather
from bipareto.run.graph.pieces import put_together
from bipareto.run.graph.trace import record
from bipareto.run.stepping import Stepper

__all__ = ["ReplayedStepper", "traced"]


def traced(step: Any, leaves: list[Tensor], draws: list[Tensor]) -> torch.fx.GraphModule:
    """`step(leaves, draws)` as a graph of tensor operations in which no work is done twice, and
    leaves are moved together.
    """
    recording = record(step, leaves, draws)
    if not without_writes(recording.graph):
        # Only now: `functionalize` does not know autograd functions, which are gone from a
        # recording.
        recording = record(torch.func.functionalize(recording.module()), leaves, draws)
    share(recording.graph)
    put_together(recording.graph)
    settle(recording)
    gather(recording.graph)
    return recording.module()


class ReplayedStepper(Stepper):
    """Keeps the states in memory of its own.  A packed state is a ticket for it, good for the last
    two states only.

    A batch of runs becomes branches of one graph that run side by side, each with the kernels of a
    single run: large convolutions lose nothing, and the small kernels of one run fill the gaps of
    another.  Nothing needs to be batchable. A batch that is `folded`, as the problem says or the
    caller, is one branch, the step under `vmap`: its kernels take all runs at once.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        batched: bool,
        shared_draw: bool,
        folded: bool = False,
    ) -> None:
        super().__init__(problem, method, False, shared_draw)
        self.batched = batched
        self.single_report = self.report
        self.report = self._report
        self.graph: torch.cuda.CUDAGraph | None = None
        self.traced: torch.fx.GraphModule | None = None
        self.ticket = 0
        self.branched = batched and not (folded or problem.folded)

    def pack(self, state: State, batches: Draw) -> int:
        leaves, draws = tree.leaves(state), tree.leaves(batches)
        if self.graph is None or _sharing(draws) != self.pattern or self._differs(state):
            self._record(state, batches)
        torch._foreach_copy_(self.now, leaves)
        self.ticket += 2  # what was packed before is gone
        return self.ticket

    def _differs(self, state: State) -> bool:
        """Whether a state is of another structure or other shapes than those recorded."""
        shapes = [leaf.shape for leaf in tree.leaves(state)]
        return tree.structure(state) != tree.structure(self.template) or shapes != [
            leaf.shape for leaf in self.now
        ]

    def unpack(self, packed: int) -> State:
        held = {self.ticket: self.now, self.ticket - 1: self.before}
        if packed not in held:
            raise InvalidInput(
                "this packed state has been overwritten; a replayed step keeps the last two"
            )
        return tree.rebuild(self.template, [leaf.clone() for leaf in held[packed]])

    def advance(self, packed: int, batches: Draw) -> tuple[int, Info]:
        if packed != self.ticket or self.graph is None:
            raise InvalidInput(
                "a replayed step goes on from its last state only; pack the state first"
            )
        draws = tree.leaves(batches)
        if _sharing(draws) != self.pattern:
            return self.advance(self.pack(self.unpack(packed), batches), batches)
        if draws:
            torch._foreach_copy_(self.draws, [draws[i] for i in self.kept])
        self.graph.replay()
        self.ticket += 1
        return self.ticket, {name: value.clone() for name, value in self.info.items()}

    def _report(self, before: State, after: State, info: Info, batches: Draw) -> Info:
        if not self.batched:
            return self.single_report(before, after, info, batches)
        runs = range(tree.flat_axis(before))
        picked = [tree.select((before, after, info), r) for r in runs]
        return tree.stack(
            [
                self.single_report(*parts, self._draw_of(batches, r))
                for r, parts in enumerate(picked)
            ]
        )

    def _draw_of(self, batches: Any, run: int) -> Any:
        return batches if self.shared_draw else tree.select(batches, run)

    def _record(self, state: State, batches: Draw) -> None:
        leaves, draws = tree.leaves(state), tree.leaves(batches)
        if not leaves[0].is_cuda:
            raise InvalidInput(
                f"compile='replay' records a CUDA graph, but the run is on {leaves[0].device}; use "
                "compile=True or False there"
            )
        self.template = tree.map_(lambda leaf: 0, state)
        self.pattern = _sharing(draws)
        # Roles that are given the same memory see the same data: one input for all of them lets
        # their work be shared.
        self.kept = sorted(set(self.pattern))
        self.now = [leaf.clone() for leaf in leaves]
        self.before = [leaf.clone() for leaf in leaves]
        self.draws = [draws[i].clone() for i in self.kept]
        branches = [(self.now, self.draws)]
        if self.branched:
            branches = [
                ([leaf[r] for leaf in self.now], [self._draw_of(draw, r) for draw in self.draws])
                for r in range(len(leaves[0]))
            ]
        shape = tree.map_(lambda leaf: 0, batches)
        names: list[str] = []
        plain = self.plain
        if self.batched and not self.branched:
            plain = torch.func.vmap(plain, in_dims=(0, None if self.shared_draw else 0))

        def flat(leaves: list[Tensor], draws: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            given = tree.rebuild(shape, [draws[self.kept.index(i)] for i in self.pattern])
            after, info = plain(tree.rebuild(self.template, leaves), given)
            names[:] = info
            return tree.leaves(after), list(info.values())

        # Kept as long as the recording, which reads the constants of the graph where they lie.
        step = self.traced = traced(flat, *branches[0])
        main = torch.cuda.Stream()
        main.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(main):
            # Libraries choose their kernels and workspaces before the recording; Triton has one for
            # each alignment of the leaves.
            for own, drawn in [branches[0], *branches]:
                step(own, drawn)
        torch.cuda.current_stream().wait_stream(main)
        self.graph = torch.cuda.CUDAGraph()
        seen: list[list[Tensor]] = []
        with torch.cuda.graph(self.graph, stream=main):
            torch._foreach_copy_(self.before, self.now)
            # All branches leave before any is waited for: else each would begin where the one
            # before it ends.
            streams = [torch.cuda.Stream() for _ in branches]
            for stream in streams:
                stream.wait_stream(main)
            for stream, (own, drawn) in zip(streams, branches, strict=True):
                with torch.cuda.stream(stream):
                    after, info = step(own, drawn)
                    torch._foreach_copy_(own, after)
                    seen.append(info)
            for stream in streams:
                main.wait_stream(stream)
            gathered = [
                torch.stack(values) if self.branched else values[0]
                for values in zip(*seen, strict=True)
            ]
        self.info = dict(zip(names, gathered, strict=True))


def _sharing(draws: list[Tensor]) -> tuple[int, ...]:
    """For each tensor the place of the first one that is the same memory."""
    first: dict[Any, int] = {}
    return tuple(
        first.setdefault((d.data_ptr(), d.shape, d.stride(), d.dtype), i)
        for i, d in enumerate(draws)
    )
