"""Layers that do things on the side, made functions of their inputs, parameters and a draw."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem.sampler import Role, generator

#: the key of a draw on which nothing is dropped
NO_DROPOUT = -1

#: the layers that are drawn by key; a subclass with a forward of its own is not known here
_DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key, the layer, how often it was called before in the
    evaluation at hand, and the place (whole channels if `channels`).

    Args:
        p: the share that is dropped.
        salt: a number for the layer.
    """

    key: Tensor
    p: float
    salt: int
    channels: bool
    calls: int

    def __init__(self, p: float, salt: int, channels: bool) -> None:
        super().__init__()
        self._begin(p, salt, channels, None)

    @staticmethod
    def take_over(layer: nn.Module, salt: int, device: torch.device) -> None:
        """Make a layer of `_DROPOUTS` one of these, in place: hooks stay, and so does whatever
        else holds it.
        """
        channels = not isinstance(layer, nn.Dropout)
        layer.__class__ = KeyedDropout
        layer._begin(layer.p, salt, channels, device)  # type: ignore[operator]

    def _begin(self, p: float, salt: int, channels: bool, device: torch.device | None) -> None:
        self.p, self.salt, self.channels, self.calls = p, salt, channels, 0
        self.register_buffer("key", torch.tensor(NO_DROPOUT, device=device), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return inputs
        salt = self.salt + (self.calls << 32)
        self.calls += 1
        shape = inputs.shape[:2] + (1,) * (inputs.dim() - 2) if self.channels else inputs.shape
        keep = (mixed(self.key, salt, shape.numel(), inputs.device) >= int(self.p * 2**31)).reshape(
            shape
        )
        # p = 1 drops all and must not divide by zero.
        return torch.where(self.key < 0, inputs, inputs * keep / max(1 - self.p, 1e-12))


def mixed(key: Tensor, salt: int, count: int, device: torch.device) -> Tensor:
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


def key_of(role: Role, t: int, seed: int, device: torch.device) -> Tensor:
    """The dropout key of a role and step."""
    return torch.tensor(
        NO_DROPOUT if role.full else generator(f"dropout-{role}", t, seed).initial_seed() >> 1,
        device=device,
    )


class Entries(nn.ParameterList):
    """A list of parameters whose slices are lists.

    Those of torch are lists of parameters, which tensors of a run become by being cut off from it.
    """

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return super().__getitem__(index)


def inside_transform() -> bool:
    """Whether this runs inside a transform of torch.func that is not being compiled."""
    compiling = torch.compiler.is_compiling()
    return not compiling and torch._C._functorch.peek_interpreter_stack() is not None


class TwiceLSTM(nn.LSTM):
    """An LSTM that is made of its operations inside transforms: torch's fused one on a processor
    can be neither batched there nor differentiated twice.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not inside_transform():
            return super().forward(*args, **kwargs)
        fused = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return super().forward(*args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(fused)


class TwiceEmbeddingBag(nn.EmbeddingBag):
    """The same for bags of words, as the sums of their rows."""

    def forward(
        self,
        input: Tensor,  # noqa: A002 - torch's name
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        if offsets is not None and self.mode == "max":
            return super().forward(input, offsets, per_sample_weights)
        keep = torch.ones_like(input, dtype=torch.bool)
        if self.padding_idx is not None:
            keep = input != self.padding_idx
        rows = nn.functional.embedding(input, self.weight, self.padding_idx, None, 2.0,
                                       self.scale_grad_by_freq)  # fmt: skip
        if self.mode == "max":
            largest = rows.masked_fill(~keep[..., None], -torch.inf).max(1).values
            return torch.where(keep.any(1, keepdim=True), largest, 0.0)
        share = keep.to(rows.dtype)
        if per_sample_weights is not None:
            share = share * per_sample_weights
        rows = rows * share[..., None]
        if offsets is None:
            total, count = rows.sum(1), keep.sum(1)
        else:
            bags = len(offsets) - self.include_last_offset
            places = torch.arange(len(input), device=input.device)
            bag = torch.bucketize(places, offsets[:bags], right=True) - 1
            total = rows.new_zeros(bags, rows.shape[1]).index_add(0, bag, rows)
            count = keep.new_zeros(bags, dtype=torch.long).index_add(0, bag, keep.long())
        return total / count.clamp_min(1)[:, None] if self.mode == "mean" else total


#: layers, and what does the same in a way that a run can use
_REPLACED: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: TwiceLSTM,
    nn.EmbeddingBag: TwiceEmbeddingBag,
    nn.ParameterList: Entries,
}


def drawn_layers(module: nn.Module | None) -> list[KeyedDropout]:
    """The dropout layers that are drawn by key."""
    layers = module.modules() if module is not None else ()
    return [
        layer
        for layer in layers
        if isinstance(layer, KeyedDropout) and layer.training and layer.p > 0
    ]


def norm_layers(module: Any) -> list[_NormBase]:
    """The layers that normalise by statistics of a batch."""
    layers = module.modules() if isinstance(module, nn.Module) else ()
    return [layer for layer in layers if isinstance(layer, _NormBase)]


def make_pure(name: str, module: nn.Module) -> None:
    """Batch statistics without running ones, dropout by key, and dense gradients, in place.

    Args:
        name: "x" or "y".
    """
    device = next(iter(module.parameters())).device
    for layer in norm_layers(module):
        if layer.training:
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            layer.track_running_stats = False
    for number, (path, layer) in enumerate(module.named_modules()):
        where = f"{path or name} ({type(layer).__name__})"
        # A step is compiled as a whole, or not; torch.compile inside vmap would compile at each
        # nesting anew.  (What module.compile() made is not copied.)
        if "_orig_mod" in layer._modules:
            vars(layer)["forward"] = layer._orig_mod.__call__
        layer.__class__ = _REPLACED.get(type(layer), type(layer))
        if isinstance(layer, _DROPOUTS):
            if type(layer).forward in [kind.forward for kind in _DROPOUTS]:
                # Layers of x and of y have masks of their own.
                KeyedDropout.take_over(layer, number + (name == "y") * 2**20, device)
        elif isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            # The same numbers; only a dense gradient can be batched and added up with others.
            layer.sparse = False
            if layer.max_norm is not None and layer.weight.requires_grad:
                raise InvalidInput(
                    f"{where} has max_norm={layer.max_norm}, with which every call writes to its "
                    "weight; make it without, and bound the norm where it is used, or by a "
                    "penalty in lower"
                )
        elif layer.training:
            _switch_off_dropout(where, layer)


def _switch_off_dropout(where: str, layer: nn.Module) -> None:
    """Switch off, with a warning, the dropout of layers that no key can draw."""
    if isinstance(layer, (nn.AlphaDropout, nn.FeatureAlphaDropout)) and layer.p > 0:
        layer.eval()
        text = f"{where} is switched off while solving; nn.Dropout is drawn by key"
    elif isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)) and layer.dropout > 0:
        layer.dropout = 0.0
        text = f"the dropout inside {where} is switched off while solving"
    else:
        return
    warnings.warn(text, BiparetoWarning, stacklevel=5)


def in_full_precision(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A hook that hands a layer its inputs in float32."""
    return tuple(value.float() if value.dtype is torch.bfloat16 else value for value in inputs)
