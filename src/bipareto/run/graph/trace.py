"""A step run once, with every tensor operation written down: a graph that is run again without the
Python of the step.

`make_fx` writes it down too, but looks at each result through a fake copy in a world of its own,
for the sake of uses that a replayed step does not have: four fifths of its time.  Here operations
run as they are, and a result leaves its node and its `Kind`.

`TracedStepper` runs a batched step from such a recording, with equal work done once: the same bits,
sooner, because most of a small step's time under `vmap` is spent on finding out, again and again,
what is to be done.  Recording takes as long as a dozen steps.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from bipareto.errors import InvalidInput
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


class Kind(NamedTuple):
    """What a graph knows of a tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    contiguous: bool


class Recording(NamedTuple):
    """The operations of a step, and the tensors it uses that are neither given nor computed, by the
    names of their nodes.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]

    def module(self) -> fx.GraphModule:
        """The step as a function of its inputs."""
        return fx.GraphModule(self.constants, self.graph)

    def constant(self, value: Tensor) -> fx.Node:
        """A node for a tensor, at the place where the graph grows."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return _known(self.graph.create_node("get_attr", name), value)


def record(step: Callable[..., Any], *inputs: Sequence[Tensor]) -> Recording:
    """The graph of `step(*inputs)`, which returns tensors in any nesting of lists, tuples and
    dicts.
    """
    recorder = _Recorder()
    for i, values in enumerate(inputs):
        recorder.take_apart(recorder.graph.placeholder(f"inputs{i}"), values)
    with recorder:
        found = step(*inputs)
    recorder.graph.output(recorder.written(found))
    return recorder.recording


def kind(node: Any) -> Kind | None:
    """Of the tensor that a node stands for; None where it stands for something else, or is no
    node.
    """
    return node.meta.get("kind") if isinstance(node, fx.Node) else None


class _Recorder(TorchDispatchMode):
    """Runs each operation and adds it to the graph.  It stands below `vmap` and `grad`: all tensors
    are plain ones.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(fx.Graph(), {})
        self.graph = self.recording.graph
        # By identity, and weakly: what a step has done with must be freed.
        self.nodes = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if not isinstance(found, (Tensor, list, tuple)):
            self._refuse_to_look(func, args)
            return found
        node = self.graph.call_function(func, self.written(args), self.written(kwargs))
        if isinstance(found, Tensor):
            # What was changed in place has a new node from here on.
            self.nodes[found] = _known(node, found)
        else:
            self.take_apart(node, found)
        return found

    def take_apart(self, node: fx.Node, values: Sequence[Any]) -> None:
        """A node for each tensor of a node that stands for several."""
        for i, value in enumerate(values):
            if isinstance(value, Tensor):
                self.nodes[value] = _known(
                    self.graph.call_function(operator.getitem, (node, i)), value
                )

    def written(self, value: Any) -> Any:
        """Arguments or results as the graph has them: nodes for tensors."""
        if isinstance(value, Tensor):
            node = self.nodes.get(value)
            if node is None:
                node = self.nodes[value] = self.recording.constant(value)
            return node
        if isinstance(value, (list, tuple)):
            return type(value)([self.written(item) for item in value])
        if isinstance(value, dict):
            return {name: self.written(item) for name, item in value.items()}
        return value

    def _refuse_to_look(self, func: Any, args: Any) -> None:
        """An error where a number is read from a tensor which will have another one when the graph
        is run again.
        """
        if torch.Tag.data_dependent_output not in func.tags:
            return
        if any(
            isinstance(value, Tensor) and self.written(value).op != "get_attr" for value in args
        ):
            raise InvalidInput(
                "a step that is recorded cannot read a number from a tensor, but this one does "
                f"({func}); write it without .item(), "
                "float() and branches on tensors (torch.where instead), or use compile=False"
            )


def _known(node: fx.Node, value: Tensor) -> fx.Node:
    node.meta["kind"] = Kind(
        value.shape, value.stride(), value.dtype, value.device, value.is_contiguous()
    )
    return node
