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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.problem.views import KEY, KindView, Slots, View


@dataclass(frozen=True)
class Part:
    """x or y of a problem: a skeleton and where the tensors of a run belong in it, or a plain tree
    of tensors (both None).

    tied: name in this module -> name in x's, for parameters that x owns.
    """

    skeleton: nn.Module | None = None
    slots: Slots | None = None
    tied: Mapping[str, str] = field(default_factory=dict)

    def parameters(self, own: Tree, x: Tree) -> dict[str, Tensor]:
        """All trained parameters of the module by name, tied ones included."""
        return {**own, **{name: x[theirs] for name, theirs in self.tied.items()}}

    def view(self, own: Tree, x: Tree, key: Tensor | None) -> Any:
        """What a loss gets for this part."""
        if self.skeleton is None or self.slots is None:
            return own
        run = self.parameters(own, x)
        if key is not None:
            run = {**run, KEY: key}
        if not torch.compiler.is_compiling():
            return KindView(self.skeleton, self.slots, run)
        if self.slots.asked:
            raise InvalidInput("a loss asks for the kind of a module, which cannot be compiled")
        return View(self.skeleton, self.slots, run)


def trained(module: nn.Module | None) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    named = module.named_parameters() if module is not None else ()
    return {
        name: parameter
        for name, parameter in named
        if parameter.requires_grad and (nn.parameter.is_lazy(parameter) or parameter.numel())
    }


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
