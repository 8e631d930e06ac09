"""Problems made of PyTorch modules, and their answers written back into them.

The losses are written with the modules themselves: `lower(x, y, batch)` calls `y(inputs)` as it
would in any training script. What it gets is a `View`: the module, called through
`torch.func.functional_call` with the parameters of the run at hand, so that one skeleton serves x,
y, theta and every run of a front.  Three things that modules do on the side are made pure:

- *BatchNorm* in training mode normalises by the statistics of the batch it sees and keeps none;
  `write_back` estimates them for the answer.  In evaluation mode it uses its running statistics,
  which stay as they are.
- *Dropout* takes its mask from the draw: a key that is a function of (role, step, seed), mixed with
  the place in the tensor.  g at y and at theta see the same mask; on all the data (role "full")
  nothing is dropped.
- *Parameters in both modules* belong to x.  A trunk that y calls and x owns is declared by being in
  both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from bipareto.problem.sampler import Role, generator
from bipareto.problem.tree import Tree

#: containers whose entries have keys
DICTIONARIES = nn.ModuleDict, nn.ParameterDict

#: the key of a draw on which nothing is dropped
NO_DROPOUT = -1


class View:
    """A module with the parameters of one run: called like the module, and its submodules,
    parameters, methods and properties by their names; entries of containers by place or key.

    `y(inputs)`, `y.head(features)`, `y.encode(inputs)`, `y.head.weight`, `y.layers[0]` and
    `y.parameters()` (for a weight decay, say) all use the run's own tensors.
    """

    def __init__(
        self, module: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        self._module, self._parameters, self._buffers = module, parameters, buffers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._module, {**self._parameters, **self._buffers}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self._parameters:
            return self._parameters[name]
        kind = getattr(type(self._module), name, None)
        if isinstance(kind, property):
            return self._within(name)
        value = getattr(self._module, name)
        owner = getattr(value, "__self__", None)
        if owner is not self._module:
            # A method of a submodule, kept under a name of its own.
            own = self._viewed(owner) if isinstance(owner, nn.Module) else None
            return getattr(own, value.__name__) if isinstance(own, View) else self._viewed(value)
        if isinstance(self._module, DICTIONARIES) and name in ("keys", "values", "items"):
            return getattr({key: self[key] for key in self}, name)
        if kind is not None and kind is getattr(nn.Module, name, None):
            raise InvalidInput(
                f"a loss asks a module for .{name}(), which would hand out or change the module "
                "that the problem was made from, not the tensors of the run; call the module, its "
                "submodules and its own methods, or use parameters(), named_parameters(), "
                "children() and named_children()"
            )
        return partial(self._within, value.__name__)

    def __getitem__(self, index: Any) -> Any:
        part: Any = self._module[index]  # type: ignore[index]
        for name, value in {**self._module._modules, **self._module._parameters}.items():
            if value is part:
                return getattr(self, name)
        if not isinstance(part, nn.Module):
            return part
        # A slice is a container of its own, whose entries keep their names.
        names = {name for name, _ in [*part.named_parameters(), *part.named_buffers()]}
        return View(
            part,
            *(
                {name: value for name, value in held.items() if name in names}
                for held in (self._parameters, self._buffers)
            ),
        )

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._module, DICTIONARIES):
            return iter(self._module.keys())
        return (self[i] for i in range(len(self)))

    def named_children(self) -> Iterator[tuple[str, View]]:
        """Name and submodule of each, with the run's tensors."""
        return ((name, getattr(self, name)) for name, _ in self._module.named_children())

    def children(self) -> Iterator[View]:
        """The submodules with the run's tensors."""
        return (child for _, child in self.named_children())

    def parameters(self) -> Iterator[Tensor]:
        """The run's tensors, those that are trained."""
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each."""
        return iter(self._parameters.items())

    def _sub(self, module: nn.Module, start: str) -> View:
        parts = (
            {key.removeprefix(start): v for key, v in held.items() if key.startswith(start)}
            for held in (self._parameters, self._buffers)
        )
        return View(module, *parts)

    def _within(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A property of the module, or a call of one of its methods, with the run's tensors."""
        held = {f"module.{key}": v for key, v in {**self._parameters, **self._buffers}.items()}
        return self._viewed(functional_call(_Attribute(self._module, name), held, args, kwargs))

    def _viewed(self, value: Any) -> Any:
        """Submodules, also in a list or tuple, with the run's tensors; all else as it is."""
        if isinstance(value, (list, tuple)) and any(isinstance(v, nn.Module) for v in value):
            return [self._viewed(v) for v in value]
        if isinstance(value, nn.Module):
            for name, part in self._module.named_modules():
                if part is value:
                    return self._sub(part, f"{name}." if name else "")
        return value


class _Attribute(nn.Module):
    """A method or property of a module as a module, for `functional_call`."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self._name = module, name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        value = getattr(self.module, self._name)
        kind = getattr(type(self.module), self._name, None)
        return value if isinstance(kind, property) else value(*args, **kwargs)


class _Dropout(nn.Module):
    """Dropout whose mask is a function of a key and the place (whole channels if `channels`)."""

    key: Tensor

    def __init__(self, p: float, salt: int, channels: bool) -> None:
        super().__init__()
        self.p, self.salt, self.channels = p, salt, channels
        self.register_buffer("key", torch.tensor(NO_DROPOUT), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return inputs
        shape = inputs.shape[:2] + (1,) * (inputs.dim() - 2) if self.channels else inputs.shape
        keep = (
            _mixed(self.key, self.salt, shape.numel(), inputs.device) >= int(self.p * 2**31)
        ).reshape(shape)
        # p = 1 drops all and must not divide by zero.
        return torch.where(self.key < 0, inputs, inputs * keep / max(1 - self.p, 1e-12))


def _mixed(key: Tensor, salt: int, count: int, device: torch.device) -> Tensor:
    """`count` whole numbers in [0, 2^31), a well-mixed function of the key and the place:
    splitmix64's finisher on a counter.
    """
    # Tensors wrap around at 64 bits; Python's integers do not, and a tensor refuses larger ones.
    salted = (salt * 0x1D8E4E27C47D124F + 2**63) % 2**64 - 2**63
    z = torch.arange(count, device=device) * 0x9E3779B97F4A7C1 + (key * 0x2545F4914F6CDD1D + salted)
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        # An arithmetic shift would smear the sign; the mask makes it a logical one.
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (z >> 16) & (2**31 - 1)


class Part(NamedTuple):
    """x or y of a problem: a skeleton with the names that a run provides, or a plain tree of
    tensors (skeleton None).

    tied: name in this module -> name in x's, for parameters that x owns; keyed: names of the
    dropout keys.
    """

    skeleton: nn.Module | None
    tied: Mapping[str, str]
    keyed: tuple[str, ...]

    def parameters(self, own: Tree, x: Tree) -> dict[str, Tensor]:
        """All trained parameters of the module by name, tied ones included."""
        return {**own, **{name: x[theirs] for name, theirs in self.tied.items()}}

    def view(self, own: Tree, x: Tree, key: Tensor | None) -> Any:
        """What a loss gets for this part."""
        if self.skeleton is None:
            return own
        return View(
            self.skeleton,
            self.parameters(own, x),
            {} if key is None else dict.fromkeys(self.keyed, key),
        )


def trained(module: nn.Module | None) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return (
        {}
        if module is None
        else {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
    )


def norm_layers(module: Any) -> list[_NormBase]:
    """The layers that normalise by statistics of a batch."""
    return (
        [layer for layer in module.modules() if isinstance(layer, _NormBase)]
        if isinstance(module, nn.Module)
        else []
    )


def keys_of(module: nn.Module | None) -> tuple[str, ...]:
    """The names of the dropout keys."""
    if module is None:
        return ()
    return tuple(
        f"{name}.key" if name else "key"
        for name, layer in module.named_modules()
        if isinstance(layer, _Dropout) and layer.training
    )


def make_pure(module: nn.Module) -> None:
    """Batch statistics without running ones, and dropout by key, in place."""
    for layer in norm_layers(module):
        if layer.training:
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            layer.track_running_stats = False
    for salt, (name, parent) in enumerate(list(module.named_modules())):
        for child_name, child in parent.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if isinstance(child, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
                warnings.warn(
                    f"{path} ({type(child).__name__}) is switched off while solving; nn.Dropout is "
                    "drawn by key",
                    BiparetoWarning,
                    stacklevel=5,
                )
                child.eval()
            elif isinstance(child, nn.modules.dropout._DropoutNd):
                drawn = _Dropout(
                    child.p, 1000 * salt + len(path), not isinstance(child, nn.Dropout)
                )
                setattr(
                    parent,
                    child_name,
                    drawn.train(child.training and child.p > 0).to(_device(module)),
                )
            elif isinstance(child, (nn.MultiheadAttention, nn.RNNBase)) and child.dropout > 0:
                warnings.warn(
                    f"the dropout inside {path} ({type(child).__name__}) is switched off while "
                    "solving",
                    BiparetoWarning,
                    stacklevel=5,
                )
                child.dropout = 0.0


def in_full_precision(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A hook that hands a layer its inputs in float32."""
    return tuple(value.float() if value.dtype is torch.bfloat16 else value for value in inputs)


def _device(module: nn.Module) -> torch.device:
    return next(iter(module.parameters())).device


def key_of(role: Role, t: int, seed: int, device: torch.device) -> Tensor:
    """The dropout key of a role and step."""
    return torch.tensor(
        NO_DROPOUT if role.full else generator(f"dropout-{role}", t, seed).initial_seed() >> 1,
        device=device,
    )


@contextmanager
def estimating(layers: Sequence[_NormBase], modules: Sequence[nn.Module]) -> Iterator[None]:
    """The modules in evaluation mode but for their norm layers, whose statistics start anew and are
    averaged without forgetting.
    """
    modes = {part: part.training for module in modules for part in module.modules()}
    momenta = [layer.momentum for layer in layers]
    try:
        for module in modules:
            module.eval()
        for layer in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = None
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def copy_into(name: str, values: Tree, target: Any) -> None:
    """Copy a tree into a module or tensors of the same make; None is left out."""
    if target is None:
        return
    held = dict(target.named_parameters()) if isinstance(target, nn.Module) else target
    if isinstance(held, dict) and isinstance(values, dict):
        unknown = sorted(set(values) - set(held))
        if unknown:
            raise InvalidInput(
                f"{name} has parameters {unknown} that the module given for it does not have; pass "
                "the module it was made from"
            )
        held = {key: held[key] for key in values}
    if tree.structure(held) != tree.structure(values):
        raise InvalidInput(
            f"{name} is {tree.structure(values)}, but what was given to be written is "
            f"{tree.structure(held)}"
        )
    with torch.no_grad():
        for (path, source), leaf in zip(
            tree.named_leaves(values, name), tree.leaves(held), strict=True
        ):
            if not isinstance(leaf, Tensor) or leaf.is_meta or not leaf.is_floating_point():
                kind = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
                where = " on the device meta" if isinstance(leaf, Tensor) and leaf.is_meta else ""
                raise InvalidInput(
                    f"{path} cannot be written to a {kind}{where}; pass a tensor of a floating "
                    "dtype that holds values"
                )
            if source.shape != leaf.shape:
                raise InvalidInput(
                    f"{path} has shape {tuple(source.shape)}, but the one to be written has "
                    f"{tuple(leaf.shape)}; pass the module it was made from"
                )
            try:
                leaf.copy_(source)
            except RuntimeError as error:  # expanded, say: several entries in one place of memory
                raise InvalidInput(
                    f"{path} cannot be written ({str(error).splitlines()[0]}); pass a tensor with "
                    "memory of its own"
                ) from error
