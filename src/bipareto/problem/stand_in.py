"""What stands in for a parameter of a module, so that computing with it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bipareto.errors import InvalidInput

#: what may be asked of a stand-in: nothing of its values
_OUTSIDE = {
    "dim", "ndimension", "size", "numel", "nelement", "stride", "is_floating_point", "is_complex",
    "element_size", "get_device", "__len__", "__hash__", "__repr__", "__format__", "type",
    "is_contiguous", "__set__",
}  # fmt: skip
#: properties that hand out values
_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}


class StandIn(nn.Parameter):
    """What stands in for a parameter while losses are looked at for the first time: computing with
    it is refused by the name of the parameter.
    """

    place: str

    def __new__(cls, like: Tensor, name: str) -> StandIn:
        made: StandIn = torch.Tensor._make_subclass(cls, like, True)
        made.place = name
        return made

    def __init__(self, like: Tensor, name: str) -> None:
        """Nothing is left to do."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", name)
            allowed = name not in _VALUES
        else:
            allowed = name in _OUTSIDE
        if allowed:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        places = [leaf.place for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StandIn)]
        raise InvalidInput(
            f"a loss computes with {', '.join(places)} of the module itself ({name}), not of the "
            "run: its gradient would be zero. Reach it from the argument of the loss, and by a "
            "method of the module, not by an object that holds the module. Gradient checkpointing "
            "computes again when the tensors of the run are gone: switch it off"
        )
