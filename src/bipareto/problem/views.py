"""Modules as losses see them: with the tensors of a run in place of their own.

A skeleton is a copy of a user's module whose trained parameters are taken out (`Slots.take`): NaN
stands in their places, so that what reaches past the tensors of a run is never mistaken for an
answer, and `bipareto.problem.reach` names it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from functools import partial
from types import FunctionType, GeneratorType, MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bipareto.errors import InvalidInput
from bipareto.problem.stand_in import StandIn

#: containers whose entries have keys
DICTIONARIES = nn.ModuleDict, nn.ParameterDict

#: the name of the dropout key among the tensors of a run
KEY = "dropout key"

#: what a method or property may hand out one by one, when the run's tensors are gone again
_LAZY = GeneratorType, map, filter, zip


class Slots:
    """Where the tensors of a run belong in a skeleton: tied weights have several places.

    Args:
        module: the skeleton.
        trained: its trained parameters by name.
        drawn: its layers that take a dropout key.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        drawn: Iterable[nn.Module] = (),
    ) -> None:
        keyed = set(drawn)
        names = {id(parameter): name for name, parameter in trained.items()}
        #: submodule -> its attributes, and the names of the run's tensors there
        self._names = {
            part: {
                attribute: names[id(parameter)]
                for attribute, parameter in part._parameters.items()
                if id(parameter) in names
            }
            | ({"key": KEY} if part in keyed else {})
            for part in module.modules()
        }
        #: whether a loss has asked for the kind of a module
        self.asked = False
        self._module = module
        self._places: dict[nn.Module, list[tuple[str, str, bool]]] = {}
        #: id -> parameter that was taken out, and its name: something may hold it beside the module
        self.former = {
            id(parameter): (weakref.ref(parameter), name) for name, parameter in trained.items()
        }

    def places(self, module: nn.Module) -> list[tuple[str, str, bool]]:
        """Places in a part of the skeleton, such as "head.weight", the names of what belongs there,
        and whether it is the first place of that name (tied weights have several).
        """
        known = self._places.get(module)
        if known is None:
            known, seen = [], set()
            # Once each: `functional_call` would not put back a submodule that is held twice.
            for start, part in module.named_modules():
                for attribute, name in self._names.get(part, {}).items():
                    place = f"{start}.{attribute}" if start else attribute
                    known.append((place, name, name not in seen))
                    seen.add(name)
            if module in self._names:  # a slice is made anew each time
                self._places[module] = known
        return known

    def name(self, value: Tensor) -> str | None:
        """The name of a parameter that was taken out."""
        held, name = self.former.get(id(value), (None, None))
        return name if held is not None and held() is value else None

    def take(self) -> None:
        """Put NaN in the places of the trained parameters, and drop what was computed from them
        (such as a weight that a hook makes before every call).
        """
        self._put(lambda held, name: nn.Parameter(held.new_full((), torch.nan).expand(held.shape)))
        for part in self._module.modules():
            for name in [name for name, value in vars(part).items() if computed(value)]:
                delattr(part, name)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse in here whatever computes with what stands in for a parameter."""
        # Not always: torch.compile looks at the parameters of a module in ways of its own.
        held = [(part, dict(part._parameters)) for part in self._module.modules()]
        self._put(StandIn)
        try:
            yield
        finally:
            for part, parameters in held:
                part._parameters.update(parameters)

    def _put(self, make: Callable[[Tensor, str], nn.Parameter]) -> None:
        stands: dict[str, nn.Parameter] = {}
        for part in self._module.modules():
            for attribute, name in self._names[part].items():
                held = part._parameters.get(attribute)
                if held is not None:
                    if name not in stands:
                        with torch._C.DisableTorchFunctionSubclass():  # x's stand-in in a trunk
                            stands[name] = make(held.detach(), name)
                    part._parameters[attribute] = stands[name]


def computed(value: Any) -> bool:
    """Whether a value is a tensor that was computed from others, with a graph."""
    return isinstance(value, Tensor) and value.grad_fn is not None


class View:
    """A module with the parameters of one run: called like the module, and its submodules,
    parameters, methods, properties and other attributes by their names; entries of containers by
    place or key.

    `y(inputs)`, `y.head(features)`, `y.encode(inputs)`, `y.head.weight`, `y.layers[0]` and
    `y.parameters()` (for a weight decay, say) all use the run's own tensors.

    Args:
        module: a skeleton, or a part of it.
        slots: where what belongs in the skeleton.
        run: the tensors of the run by name, the dropout key (`KEY`) among them where there is one.
    """

    _module: nn.Module
    _slots: Slots
    _run: Mapping[str, Tensor]
    _tensors: Mapping[str, Tensor]

    def __init__(self, module: nn.Module, slots: Slots, run: Mapping[str, Tensor]) -> None:
        places = [place for place in slots.places(module) if place[1] in run]
        vars(self).update(
            _module=module,
            _slots=slots,
            _run=run,
            _tensors={place: run[name] for place, name, _ in places},
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._module, {**self._tensors}, args, kwargs, tie_weights=False)

    def __getattr__(self, name: str) -> Any:
        module = self._module
        if name.startswith("__"):
            raise AttributeError(f"a view of {type(module).__name__} has no {name}")
        if name in self._tensors:
            return self._tensors[name]
        if name == "_parameters":
            return dict(self.named_parameters(recurse=False, remove_duplicate=False))
        for held in (module._modules, module._buffers, vars(module)):
            if name in held:
                return self._viewed(held[name])
        kind = getattr(type(module), name, None)
        if isinstance(module, DICTIONARIES) and name in ("keys", "values", "items"):
            return getattr({key: self[key] for key in self}, name)
        if callable(kind) and kind is getattr(nn.Module, name, None):
            raise InvalidInput(
                f"a loss asks a module for .{name}(), which would hand out or change the module "
                "that the problem was made from, not the tensors of the run; call the module, its "
                "submodules and its own methods, or use parameters(), modules(), children() and "
                "these with names"
            )
        if isinstance(kind, FunctionType):
            return partial(self._within, getattr(module, name))
        return self._within(partial(_attribute, module, name))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise InvalidInput(
            f"a loss sets .{name} of a module, which no run would keep; give what changes to the "
            "module's call, or set it before Problem.from_modules"
        )

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidInput(
            "a loss copies a module, and a copy would be a constant: no gradient reaches it; call "
            "the module itself, or copy it before Problem.from_modules"
        )

    def __getitem__(self, index: Any) -> Any:
        part: Any = self._module[index]  # type: ignore[index]
        for name, value in {**self._module._modules, **self._module._parameters}.items():
            if value is part:
                return getattr(self, name)
        if isinstance(part, list):
            return [self[i] for i in range(*index.indices(len(self)))]
        # A slice is a container of its own, of the same submodules.
        return type(self)(part, self._slots, self._run) if isinstance(part, nn.Module) else part

    def __bool__(self) -> bool:
        return bool(self._module)

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._module, DICTIONARIES):
            return iter(self._module.keys())
        return (self[i] for i in range(len(self)))

    def get_submodule(self, target: str) -> View:
        """A submodule by its path, such as "head.0"."""
        return type(self)(self._module.get_submodule(target), self._slots, self._run)

    def named_modules(self) -> Iterator[tuple[str, View]]:
        """Path and submodule of each, the module itself included."""
        return ((path, self.get_submodule(path)) for path, _ in self._module.named_modules())

    def modules(self) -> Iterator[View]:
        """The module and its submodules."""
        return (part for _, part in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, View]]:
        """Name and submodule of each, with the run's tensors."""
        return ((name, getattr(self, name)) for name, _ in self._module.named_children())

    def children(self) -> Iterator[View]:
        """The submodules with the run's tensors."""
        return (child for _, child in self.named_children())

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """The run's tensors, those that are trained."""
        return (tensor for _, tensor in self.named_parameters(recurse=recurse))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each."""
        start = f"{prefix}." if prefix else ""
        return (
            (start + place, self._tensors[place])
            for place, name, first in self._slots.places(self._module)
            if name in self._run and name != KEY and (first or not remove_duplicate)
            if recurse or "." not in place
        )

    def _within(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a function of the module returns, with the run's tensors in their places."""
        held = {f"module.{place}": tensor for place, tensor in self._tensors.items()}
        call = _Call(self._module, function)
        return self._viewed(functional_call(call, held, args, kwargs, tie_weights=False))

    def _viewed(self, value: Any) -> Any:
        """Submodules, their methods and parameters, also in containers, with the run's tensors; all
        else as it is.
        """
        if issubclass(type(value), View):
            return value
        if isinstance(value, nn.Module):
            return type(self)(value, self._slots, self._run)
        if isinstance(value, Tensor):
            return self._run.get(self._slots.name(value), value)  # type: ignore[arg-type]
        if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
            return partial(self._viewed(value.__self__)._within, value)
        if isinstance(value, _Lazy):
            return iter([self._viewed(item) for item in value])
        items, rebuilt = _opened(value)
        seen = [self._viewed(item) for item in items]
        changed = any(a is not b for a, b in zip(items, seen, strict=True))
        return rebuilt(*seen) if changed else value


class KindView(View):
    """A view of which `isinstance(layer, nn.Linear)` says what it says of the module; one that is
    asked so cannot be compiled.
    """

    def __getattribute__(self, name: str) -> Any:
        if name != "__class__":
            return super().__getattribute__(name)
        vars(self)["_slots"].asked = True
        return type(vars(self)["_module"])


def _opened(value: Any) -> tuple[list[Any], Callable[..., Any]]:
    """The items of a container, and what makes one of others; of anything else there are none."""
    if isinstance(value, (ValuesView, ItemsView)):
        return list(value), lambda *items: list(items)
    if isinstance(value, dict):
        return list(value.values()), lambda *items: dict(zip(value, items, strict=True))
    if isinstance(value, (list, tuple)):
        named = hasattr(value, "_fields")
        return list(value), type(value) if named else lambda *items: type(value)(items)
    if isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
        return parts, lambda function, args, keywords: partial(function, *args, **keywords)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        held = {name: getattr(value, name) for name in names}
        return [held], lambda fields: dataclasses.replace(value, **fields)
    return [], tuple


class _Call(nn.Module):
    """A function of a module as a module, for `functional_call`."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self._function = module, function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        value = self._function(*args, **kwargs)
        return _Lazy(value) if isinstance(value, _LAZY) else value


class _Lazy(list[Any]):
    """What an iterator handed out."""


def _attribute(module: nn.Module, name: str) -> Any:
    """An attribute of a module: a property, or what a `__getattr__` of its own finds."""
    # Older forms of weight normalisation, and pruning, make a weight before every call.
    for hook in module._forward_pre_hooks.values():
        if name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None)):
            hook(module, ())
    return getattr(module, name)
