"""A step run once, with every tensor operation written down: a graph that is run again without the
Python of the step.

`make_fx` writes it down too, but looks at each result through a fake copy in a world of its own,
for the sake of uses that a replayed step does not have: four fifths of its time.  Here operations
run as they are, and a result leaves its node and its `Kind`.
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
    """The graph of `step(*inputs)`, which returns tensors in any nesting."""
    recorder = _Recorder()
    for i, values in enumerate(inputs):
        recorder.take_apart(recorder.graph.placeholder(f"inputs{i}"), values)
    with recorder:
        found = step(*inputs)
    recorder.graph.output(recorder.written(found))
    return recorder.recording


def kind(node: Any) -> Kind | None:
    """Of the tensor that a node stands for; None where it stands for something else."""
    return node.meta.get("kind") if isinstance(node, fx.Node) else None


class _Recorder(TorchDispatchMode):
    """Runs each operation and adds it to the graph; below `vmap` and `grad`, on plain tensors."""

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
        """An error where a number is read from a tensor that holds another one in the next run."""
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
