"""What a loss of modules reaches beside the tensors of the run.

A loss is given modules with the tensors of a run in their places.  There are ways past it: a module
that a function has caught from around it, a method kept as a lambda, a forward that is evaluated
again in the backward pass.  What is found there is a constant: its gradient is zero without a word.
So while the losses are looked at for the first time,

- whatever computes with the stand-in of a parameter is refused where it does (`Slots.guarded`);
- the graphs of f and g are followed to their leaves: parameters of the modules that were given are
  refused, other parameters are named as the constants that they are (`check_leaves`).
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem.purity import same
from bipareto.problem.views import Slots, computed


class Origin:
    """The trained parameters of the modules that a problem was made from, and those that were taken
    out of their copies, kept weakly.

    Args:
        modules: what was given, by "x" and "y".
        slots: of their copies.
    """

    def __init__(self, modules: Mapping[str, Any], slots: Mapping[str, Slots]) -> None:
        self._held = [
            (weakref.ref(parameter), f"{name} of the module that was given as {whose}")
            for whose, module in modules.items()
            if isinstance(module, nn.Module)
            for name, parameter in module.named_parameters()
        ] + [
            (held, f"{name} of {whose} by something that holds it beside the module")
            for whose, one in slots.items()
            for held, name in one.former.values()
        ]

    def name(self, tensor: Tensor) -> str | None:
        """What a tensor is called there."""
        return next((name for held, name in self._held if held() is tensor), None)


def leaves_of(value: Any) -> list[Tensor]:
    """The leaves of a tensor's graph that gradients would be accumulated in."""
    if not isinstance(value, Tensor):
        return []
    todo: list[Any] = [value.grad_fn]
    seen, found = set(), [value] if value.requires_grad and value.grad_fn is None else []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [parent for parent, _ in node.next_functions]
    return found


def check_leaves(
    name: str,
    value: Any,
    known: Iterable[Any],
    origin: Origin | None,
    functions: Iterable[Callable[..., Any]],
) -> None:
    """Refuse a loss that uses a parameter of a module that was given past its arguments, and name
    other parameters that it holds constant.

    Args:
        name, value: of the loss, with a graph.
        known: leaves that may be there: those of x, y and the draw.
        functions: the losses as they were given, in whose surroundings names are looked up.
    """
    expected = {id(leaf) for leaf in known}
    strange = [leaf for leaf in leaves_of(value) if id(leaf) not in expected and leaf.numel()]
    if not strange:
        return
    for leaf in strange:
        if origin is not None and (own := origin.name(leaf)) is not None:
            raise InvalidInput(
                f"{name} uses {own}, not the argument that it is called with: it would be a "
                "constant in every run. Use the argument; a lambda kept in a module holds the "
                "module that it was written in (make it a method), a list or dict holds the "
                "parameter itself (use nn.ParameterList, nn.ParameterDict). If a constant is "
                "meant, use .detach()"
            )
    around = _around(functions)
    named = [around.get(id(leaf)) for leaf in strange]
    # A loss may make leaves of its own, to differentiate by inputs, say.
    meant = [
        text or f"a parameter of shape {tuple(leaf.shape)}"
        for text, leaf in zip(named, strange, strict=True)
        if text is not None or isinstance(leaf, nn.Parameter)
    ]
    if meant:
        more = f" and {len(meant) - 3} more" if len(meant) > 3 else ""
        warnings.warn(
            f"{name} uses {', '.join(meant[:3])}{more}, with requires_grad=True, which belongs "
            "neither to x nor to y: it stays as it is. If it is to be trained, put it into x or y "
            "(modules in a plain list or dict are unknown to PyTorch: use nn.ModuleList, "
            "nn.ModuleDict); if not, requires_grad_(False) says so",
            BiparetoWarning,
            stacklevel=6,
        )


def _around(functions: Iterable[Callable[..., Any]]) -> dict[int, str]:
    """Names of the tensors that functions have caught from around them, by id."""
    found: dict[int, str] = {}
    for function in functions:
        try:
            scope = inspect.getclosurevars(function)
        except TypeError:  # a partial, or an object that can be called
            continue
        for name, value in {**scope.globals, **scope.nonlocals}.items():
            if isinstance(value, Tensor):
                found[id(value)] = name
            elif isinstance(value, nn.Module):
                for place, parameter in value.named_parameters():
                    found[id(parameter)] = f"{name}.{place}"
    return found


class State:
    """What modules write down while they are called: attributes and buffers.

    A feature or an auxiliary loss that a forward leaves in an attribute is a product of one run, so
    it is taken away again after every evaluation.  A buffer that is written in place would make an
    evaluation depend on those before.

    Args:
        modules: the skeletons, by "x" and "y".
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        #: (module, whether a buffer, name) -> what stood there before it was written
        self._written: dict[tuple[nn.Module, bool, str], Any] = {}
        #: while watching: module, its attributes and its buffers before
        self._kept: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out what the evaluations in here write; nothing is taken away before the end."""
        paths = [
            f"{whose}'s {path}" if path else whose
            for whose, module in self._modules.items()
            for path, _ in module.named_modules()
        ]
        self._kept = [
            (part, dict(vars(part)), dict(part._buffers))
            for module in self._modules.values()
            for part in module.modules()
        ]
        buffers = [
            (path, part, {name: value.clone() for name, value in held.items() if _floating(value)})
            for path, (part, _, held) in zip(paths, self._kept, strict=True)
        ]
        try:
            yield
        except InvalidInput as error:
            _refuse_writing(buffers, error)
            raise
        else:
            _refuse_writing(buffers, None)
        finally:
            self._kept = []
            self.forget()

    def forget(self) -> None:
        """Take away what an evaluation has written; while watching, note it."""
        for part, *kept in self._kept:
            for buffers, before in enumerate(kept):
                for name, value in _held(part, bool(buffers)).items():
                    new = value is not before.get(name, _Nothing)
                    if new and any(map(computed, tree_leaves(value))):
                        self._written[part, bool(buffers), name] = before.get(name, _Nothing)
        if self._kept:
            return
        for (part, buffer, name), before in self._written.items():
            if before is _Nothing:
                _held(part, buffer).pop(name, None)
            else:
                _held(part, buffer)[name] = before


def _held(part: nn.Module, buffers: bool) -> dict[str, Any]:
    return part._buffers if buffers else vars(part)


def _refuse_writing(
    buffers: list[tuple[str, nn.Module, dict[str, Tensor]]], cause: InvalidInput | None
) -> None:
    for path, part, before in buffers:
        for name, old in before.items():
            if not same(part._buffers[name], old):
                raise InvalidInput(
                    f"{path} ({type(part).__name__}) writes to its buffer {name} in every call, so "
                    "that losses would depend on the calls before; switch it to evaluation mode "
                    "(.eval(), which keeps the buffer as it is) before Problem.from_modules, or "
                    "leave it out. For spectral_norm, torch.nn.utils.parametrizations.orthogonal "
                    "and weight_norm are functions of the weight alone"
                ) from cause


class _Nothing:
    """Stands for what was not there: a class, which is itself in a copy of a problem too."""


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not value.is_meta
