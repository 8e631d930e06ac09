"""Problems made of PyTorch modules, and their answers written back into them.

The losses are written with the modules themselves: `lower(x, y, batch)` calls `y(inputs)` as it
would in any training script. What it gets is a `View`: the module, called through
`torch.func.functional_call` with the parameters of the run at hand, so that one skeleton serves x,
y, theta and every run of a front.  Three things that modules do on the side are made pure:

- *BatchNorm* normalises by the statistics of the batch it sees and keeps none; `write_back`
  estimates them for the answer.
- *Dropout* takes its mask from the draw: a key that is a function of (role, step, seed), mixed with
  the place in the tensor.  g at y and at theta see the same mask; on all the data (role "full")
  nothing is dropped.
- *Parameters in both modules* belong to x.  A trunk that y calls and x owns is declared by being in
  both.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from bipareto.problem.sampler import Sampler, generator
from bipareto.problem.tree import Tree

__all__ = ["Calls", "ModuleCalls", "View", "calls_of", "copy_into"]

#: the key of a draw on which nothing is dropped
NO_DROPOUT = -1

Loss: TypeAlias = Callable[..., Tensor]
#: losses, each with the draw that it is to be evaluated on
Evaluations: TypeAlias = Sequence[tuple[Loss, Any]]


class View:
    """A module with the parameters of one run: called like the module, and its submodules and
    parameters by their names.

    `y(inputs)`, `y.head(features)`, `y.head.weight` and `y.parameters()` (for a weight decay, say)
    all use the run's own tensors.
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
        value = getattr(self._module, name)
        if not isinstance(value, nn.Module):
            return value
        start = f"{name}."
        parts = (
            {key.removeprefix(start): v for key, v in held.items() if key.startswith(start)}
            for held in (self._parameters, self._buffers)
        )
        return View(value, *parts)

    def parameters(self) -> Iterator[Tensor]:
        """The run's tensors, those that are trained."""
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each."""
        return iter(self._parameters.items())


class _Dropout(nn.Module):
    """Dropout whose mask is a function of a key and the place in the tensor (whole channels where
    `channels`).
    """

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
    z = torch.arange(count, device=device) * 0x9E3779B97F4A7C1 + (
        key * 0x2545F4914F6CDD1D + salt * 0x1D8E4E27C47D124F
    )
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        # An arithmetic shift would smear the sign; the mask makes it a logical one.
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (z >> 16) & (2**31 - 1)


class _Part(NamedTuple):
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


class Calls:
    """How the losses of a problem are called: as plain functions of trees, `loss(x, y[,
    batch])`.
    """

    #: whether losses on one draw share work
    shares = False

    def __init__(self, *, takes_batch: bool) -> None:
        self.takes_batch = takes_batch

    def one(self, loss: Loss, x: Tree, y: Tree, batch: Any) -> Tensor:
        """The value of one loss."""
        return loss(x, y, batch) if self.takes_batch else loss(x, y)

    def together(self, losses: Sequence[Loss], x: Tree, y: Tree, batch: Any) -> Tensor:
        """The values of several losses on one draw, (m,)."""
        return torch.stack([self.one(loss, x, y, batch) for loss in losses])

    def pair(self, loss: Loss, x: Tree, y: Tree, theta: Tree, batch: Any) -> tuple[Tensor, Tensor]:
        """The values of one loss at (x, y) and at (x, theta) on one draw."""
        return self.one(loss, x, y, batch), self.one(loss, x, theta, batch)

    def within(self, pick: Callable[[Any], Any], batch: Any) -> Any:
        """A draw of which a part is picked."""
        return pick(batch)

    def with_key(self, role: str, t: int, seed: int, batch: Any) -> Any:
        """A batch in the form of a draw."""
        return batch

    def whole_y(self, x: Tree, y: Tree) -> Tree:
        """All parameters of y's module, those that x owns included."""
        return y

    def estimate_statistics(
        self, module_x: Any, module_y: Any, levels: tuple[Evaluations, Evaluations]
    ) -> None:
        """Estimate the running statistics of norm layers: plain functions have none."""


class ModuleCalls(Calls):
    """Losses that are called with modules in place of trees; made by `calls_of`.

    Args:
        x, y: the two parts.
        has_data: the losses take a batch.
        shared, autocast: as in `Problem.from_modules`.
        device: where the modules are.
    """

    def __init__(
        self,
        x: _Part,
        y: _Part,
        *,
        has_data: bool,
        shared: Callable[..., Any] | None,
        autocast: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self._x, self._y, self._has_data = x, y, has_data
        self._shared, self._autocast, self._device = shared, autocast, device
        self._has_keys = bool(x.keyed or y.keyed)
        super().__init__(takes_batch=has_data or self._has_keys)
        self.shares = shared is not None

    def keyed(self, sampler: Sampler | None) -> Sampler | None:
        """The same draws with a dropout key beside each, where there is dropout."""
        if not self._has_keys:
            return sampler

        def draw(level: str, role: str, t: int, seed: int) -> Any:
            return self.with_key(
                role, t, seed, () if sampler is None else sampler(level, role, t, seed)
            )

        return draw

    def one(self, loss: Loss, x: Tree, y: Tree, batch: Any) -> Tensor:
        with self._precision(x):
            value = loss(
                self._view_x(x, batch), self._view_y(x, y, batch), *self._arguments(x, batch)
            )
        return self._as_run(value, x)

    def together(self, losses: Sequence[Loss], x: Tree, y: Tree, batch: Any) -> Tensor:
        def every(*arguments: Any) -> Tensor:
            return torch.stack([loss(*arguments).to(tree.first_leaf(x).dtype) for loss in losses])

        return self.one(every, x, y, batch)

    def pair(self, loss: Loss, x: Tree, y: Tree, theta: Tree, batch: Any) -> tuple[Tensor, Tensor]:
        with self._precision(x):
            arguments = self._arguments(x, batch)
            at_y, at_theta = (
                loss(self._view_x(x, batch), self._view_y(x, v, batch), *arguments)
                for v in (y, theta)
            )
        return self._as_run(at_y, x), self._as_run(at_theta, x)

    def within(self, pick: Callable[[Any], Any], batch: Any) -> Any:
        return batch | {"batch": pick(batch["batch"])} if self._has_keys else pick(batch)

    def with_key(self, role: str, t: int, seed: int, batch: Any) -> Any:
        return (
            {"key": _key_of(role, t, seed, self._device), "batch": batch}
            if self._has_keys
            else batch
        )

    def whole_y(self, x: Tree, y: Tree) -> Tree:
        return self._y.parameters(y, x) if self._y.tied else y

    def estimate_statistics(
        self, module_x: Any, module_y: Any, levels: tuple[Evaluations, Evaluations]
    ) -> None:
        layers = [
            layer
            for layer in _norm_layers(module_x) + _norm_layers(module_y)
            if layer.track_running_stats
        ]
        if not layers:
            return
        lower, upper = levels
        with (
            _estimating(layers, [m for m in (module_x, module_y) if isinstance(m, nn.Module)]),
            torch.no_grad(),
        ):
            self._pass(lower, module_x, module_y)
            if any(int(layer.num_batches_tracked or 0) == 0 for layer in layers):
                for layer in layers:
                    # Layers that are done keep what they have: momentum 0 adds nothing.
                    layer.momentum = 0.0 if int(layer.num_batches_tracked or 0) else None
                self._pass(upper, module_x, module_y)

    def _pass(self, evaluations: Evaluations, module_x: Any, module_y: Any) -> None:
        """Evaluate losses with the modules themselves."""
        for loss, batch in evaluations:
            data = self._data(batch)
            loss(
                module_x,
                module_y,
                *(data if self._shared is None else (self._shared(module_x, *data),)),
            )

    def _view_x(self, x: Tree, batch: Any) -> Any:
        return self._x.view(x, x, self._key(batch))

    def _view_y(self, x: Tree, y: Tree, batch: Any) -> Any:
        return self._y.view(y, x, self._key(batch))

    def _key(self, batch: Any) -> Tensor | None:
        return batch["key"] if self._has_keys else None

    def _data(self, batch: Any) -> tuple[Any, ...]:
        return (batch["batch"] if self._has_keys else batch,) if self._has_data else ()

    def _arguments(self, x: Tree, batch: Any) -> tuple[Any, ...]:
        """What a loss takes beside x and y: nothing, the batch, or what the shared part made of
        it.
        """
        data = self._data(batch)
        return data if self._shared is None else (self._shared(self._view_x(x, batch), *data),)

    def _precision(self, x: Tree) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        # The cache of cast weights would outlive a functional call.
        return torch.autocast(
            tree.first_leaf(x).device.type, dtype=self._autocast, cache_enabled=False
        )

    def _as_run(self, value: Any, x: Tree) -> Any:
        return (
            value.to(tree.first_leaf(x).dtype)
            if isinstance(value, Tensor) and self._autocast is not None
            else value
        )


def calls_of(
    x: Any,
    y: Any,
    *,
    has_data: bool,
    shared: Callable[..., Any] | None,
    autocast: torch.dtype | None,
) -> tuple[ModuleCalls, Tree, Tree]:
    """How losses are called with these modules (or tensors), and their trained parameters x0, y0;
    arguments as in `Problem.from_modules`.
    """
    if autocast is torch.float16:
        raise InvalidInput(
            "autocast is torch.float16, whose small range needs loss scaling; use torch.bfloat16"
        )
    # Copied together, so that what they share stays shared; the caller's modules are never touched.
    modules = copy.deepcopy([m for m in (x, y) if isinstance(m, nn.Module)])
    skeletons = iter(modules)
    bare_x, bare_y = (next(skeletons) if isinstance(m, nn.Module) else None for m in (x, y))
    owned = _trained(bare_x)
    names_of_x = {id(parameter): name for name, parameter in owned.items()}
    tied = {
        name: names_of_x[id(parameter)]
        for name, parameter in _trained(bare_y).items()
        if id(parameter) in names_of_x
    }
    x0 = tree.as_tree(x if bare_x is None else owned, "x")
    y0 = tree.as_tree(
        y
        if bare_y is None
        else {name: p for name, p in _trained(bare_y).items() if name not in tied},
        "y",
    )
    for module in modules:
        _make_pure(module)
        if autocast is not None:
            for layer in _norm_layers(module):
                # Normalising in half precision loses the variance, and its derivative cannot be
                # batched with float32 weights.
                layer.register_forward_pre_hook(_in_full_precision)
    parts = _Part(bare_x, {}, _keys(bare_x)), _Part(bare_y, tied, _keys(bare_y))
    calls = ModuleCalls(
        *parts,
        has_data=has_data,
        shared=shared,
        autocast=autocast,
        device=tree.first_leaf(x0).device,
    )
    return calls, x0, y0


def _trained(module: nn.Module | None) -> dict[str, nn.Parameter]:
    return (
        {}
        if module is None
        else {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
    )


def _norm_layers(module: Any) -> list[_NormBase]:
    return (
        [layer for layer in module.modules() if isinstance(layer, _NormBase)]
        if isinstance(module, nn.Module)
        else []
    )


def _keys(module: nn.Module | None) -> tuple[str, ...]:
    if module is None:
        return ()
    return tuple(
        f"{name}.key" if name else "key"
        for name, layer in module.named_modules()
        if isinstance(layer, _Dropout) and layer.training
    )


def _make_pure(module: nn.Module) -> None:
    """Batch statistics without running ones, and dropout by key, in place."""
    for layer in _norm_layers(module):
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


def _in_full_precision(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(value.float() if value.dtype is torch.bfloat16 else value for value in inputs)


def _device(module: nn.Module) -> torch.device:
    return next(iter(module.parameters())).device


def _key_of(role: str, t: int, seed: int, device: torch.device) -> Tensor:
    return torch.tensor(
        NO_DROPOUT if role == "full" else generator(f"dropout-{role}", t, seed).initial_seed() >> 1,
        device=device,
    )


@contextmanager
def _estimating(layers: Sequence[_NormBase], modules: Sequence[nn.Module]) -> Iterator[None]:
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
            if source.shape != leaf.shape:
                raise InvalidInput(
                    f"{path} has shape {tuple(source.shape)}, but the one to be written has "
                    f"{tuple(leaf.shape)}; pass the module it was made from"
                )
            leaf.copy_(source)
