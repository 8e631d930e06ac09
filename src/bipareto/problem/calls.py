"""How the losses of a problem are called: with trees, or with modules in their place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from bipareto.errors import InvalidInput
from bipareto.problem import tree, validation
from bipareto.problem.layers import (
    drawn_layers,
    in_full_precision,
    inside_transform,
    key_of,
    make_pure,
    norm_layers,
)
from bipareto.problem.modules import Part, estimating, trained
from bipareto.problem.reach import Origin, State
from bipareto.problem.sampler import Role, Sampler
from bipareto.problem.tree import Tree
from bipareto.problem.views import Slots, computed

Loss: TypeAlias = Callable[..., Tensor]
T = TypeVar("T")


#: where a dropout layer begins to count its calls in `shared`; in a loss it begins at 0
_IN_SHARED = 2**16

#: losses, each with the draw that it is to be evaluated on
Evaluations: TypeAlias = Sequence[tuple[Loss, Any]]


def evaluated(value: Callable[..., T], *at: Tree) -> T:
    """value(*at), also where `vmap` has no rule for an operator that is made of others, such as
    those of recurrent layers: differentiation takes them apart, and then each part has one.
    """
    with _attention_of_products(*at):
        try:
            return value(*at)
        except RuntimeError as error:
            if "Batching rule not implemented" not in str(error):
                raise
        return torch.func.vjp(value, *at)[0]


def objectives(values: Sequence[Any]) -> Tensor:
    """The values of m objectives as one tensor (m,)."""
    for i, value in enumerate(values):
        if not isinstance(value, Tensor) or value.dim():
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(
                f"objective {i} returned {found}; it must be a scalar tensor of shape (): reduce "
                "it with .sum() or .mean()"
            )
    return torch.stack(list(values))


def _attention_of_products(*at: Tree) -> AbstractContextManager[object]:
    """Attention made of products inside transforms on a processor: torch's fused one is taken there
    row by row, and cannot be differentiated twice.
    """
    if not inside_transform() or tree.first_leaf(at).is_cuda:
        return nullcontext()
    return _unfused_attention()


@contextmanager
def _unfused_attention() -> Iterator[None]:
    # `torch.nn.attention.sdpa_kernel` takes a tenth of the time of a small loss.
    fused = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(fused)


class Calls:
    """How the losses of a problem are called: plain functions of trees, `loss(x, y[, batch])`."""

    #: whether losses on one draw share work
    shares = False
    #: what losses may not use past their arguments
    origin: Origin | None = None

    def __init__(self, *, takes_batch: bool) -> None:
        self.takes_batch = takes_batch

    def one(self, loss: Loss, x: Tree, y: Tree, batch: Any) -> Tensor:
        """The value of one loss."""
        more = (batch,) if self.takes_batch else ()
        return evaluated(lambda x_, y_: loss(x_, y_, *more), x, y)

    def together(self, losses: Sequence[Loss], x: Tree, y: Tree, batch: Any) -> Tensor:
        """The values of several losses on one draw, (m,)."""
        return objectives([self.one(loss, x, y, batch) for loss in losses])

    def pair(self, loss: Loss, x: Tree, y: Tree, theta: Tree, batch: Any) -> tuple[Tensor, Tensor]:
        """The values of one loss at (x, y) and at (x, theta) on one draw."""
        return self.one(loss, x, y, batch), self.one(loss, x, theta, batch)

    def watching(self) -> AbstractContextManager[object]:
        """While losses are looked at for the first time: refuse what plain functions cannot do."""
        return nullcontext()

    def within(self, pick: Callable[[Any], Any], batch: Any) -> Any:
        """A draw of which a part is picked."""
        return pick(batch)

    def with_key(self, role: Role, t: int, seed: int, batch: Any) -> Any:
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
        origin: the modules that were given.
    """

    def __init__(
        self,
        x: Part,
        y: Part,
        *,
        origin: Origin,
        has_data: bool,
        shared: Callable[..., Any] | None,
        autocast: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self._x, self._y, self._has_data = x, y, has_data
        self._shared, self._autocast, self._device = shared, autocast, device
        self.origin = origin
        self._drawn = [*drawn_layers(x.skeleton), *drawn_layers(y.skeleton)]
        self._has_keys = bool(self._drawn)
        skeletons = {"x": x.skeleton, "y": y.skeleton}
        self._state = State({name: part for name, part in skeletons.items() if part is not None})
        super().__init__(takes_batch=has_data or self._has_keys)
        self.shares = shared is not None

    def keyed(self, sampler: Sampler | None) -> Sampler | None:
        """The same draws with a dropout key beside each, where there is dropout."""
        if not self._has_keys:
            return sampler

        def draw(role: Role, t: int, seed: int) -> Any:
            return self.with_key(role, t, seed, () if sampler is None else sampler(role, t, seed))

        return draw

    def one(self, loss: Loss, x: Tree, y: Tree, batch: Any) -> Tensor:
        return self._evaluated(loss, batch, x, y)[0]

    def together(self, losses: Sequence[Loss], x: Tree, y: Tree, batch: Any) -> Tensor:
        def every(*given: Any) -> Tensor:
            values = objectives([self._begun(loss, *given) for loss in losses])
            return values.to(tree.first_leaf(x).dtype)

        return self._evaluated(every, batch, x, y)[0]

    def pair(self, loss: Loss, x: Tree, y: Tree, theta: Tree, batch: Any) -> tuple[Tensor, Tensor]:
        at_y, at_theta = self._evaluated(loss, batch, x, y, theta)
        return at_y, at_theta

    def _evaluated(self, loss: Loss, batch: Any, x: Tree, *ys: Tree) -> list[Tensor]:
        """The values of a loss at x and each y, on one evaluation of what is `shared`."""

        def values(x_: Tree, *ys_: Tree) -> list[Tensor]:
            key, given = self._key(batch), self._data(batch)
            of_x = self._x.view(x_, x_, key)
            if self._shared is not None:
                given = (self._begun(self._shared, of_x, *given, calls=_IN_SHARED),)
            return [self._begun(loss, of_x, self._y.view(y, x_, key), *given) for y in ys_]

        with self._precision(x):
            found = evaluated(values, x, *ys)
        self._state.forget()
        return [self._as_run(value, x) for value in found]

    def _begun(self, function: Callable[..., Any], *arguments: Any, calls: int = 0) -> Any:
        """What a function returns when dropout layers count their calls from there, so that losses
        see one mask whichever were evaluated before.
        """
        for layer in self._drawn:
            layer.calls = calls
        return function(*arguments)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in (self._x, self._y):
                if part.slots is not None:
                    stack.enter_context(part.slots.guarded())
            stack.enter_context(self._state.watching())
            yield

    def within(self, pick: Callable[[Any], Any], batch: Any) -> Any:
        return batch | {"batch": pick(batch["batch"])} if self._has_keys else pick(batch)

    def with_key(self, role: Role, t: int, seed: int, batch: Any) -> Any:
        return (
            {"key": key_of(role, t, seed, self._device), "batch": batch}
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
            for part, module in ((self._x, module_x), (self._y, module_y))
            for layer, used in zip_longest(norm_layers(module), norm_layers(part.skeleton))
            # Layers that were in evaluation mode have been used with the statistics that they have.
            if layer is not None
            and layer.track_running_stats
            and (used is None or not used.track_running_stats)
        ]
        if not layers:
            return
        lower, upper = levels
        with (
            estimating(layers, [m for m in (module_x, module_y) if isinstance(m, nn.Module)]),
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

    def _key(self, batch: Any) -> Tensor | None:
        return batch["key"] if self._has_keys else None

    def _data(self, batch: Any) -> tuple[Any, ...]:
        return (batch["batch"] if self._has_keys else batch,) if self._has_data else ()

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
    if autocast not in (None, torch.bfloat16):
        raise InvalidInput(f"autocast is {validation.shown(autocast)}; pass torch.bfloat16 or None")
    if shared is not None:
        validation.function(
            shared, "shared", ("x", "batch") if has_data else ("x",), "see Problem.from_modules"
        )
    modules = _copies({"x": x, "y": y})
    bare_x, bare_y = modules.get("x"), modules.get("y")
    owned, theirs = trained(bare_x), trained(bare_y)
    names_of_x = {id(parameter): name for name, parameter in owned.items()}
    tied = {
        name: names_of_x[id(parameter)]
        for name, parameter in theirs.items()
        if id(parameter) in names_of_x
    }
    x0 = tree.as_tree(x if bare_x is None else owned, "x")
    y0 = tree.as_tree(
        y if bare_y is None else {name: p for name, p in theirs.items() if name not in tied}, "y"
    )
    for name, module in modules.items():
        make_pure(name, module)
        if autocast is not None:
            for layer in norm_layers(module):
                # Normalising in half precision loses the variance, and its derivative cannot be
                # batched with float32 weights.
                layer.register_forward_pre_hook(in_full_precision)
    slots = {
        name: Slots(module, trained(module), drawn_layers(module))
        for name, module in modules.items()
    }
    for held in slots.values():
        held.take()
    parts = Part(bare_x, slots.get("x")), Part(bare_y, slots.get("y"), tied)
    calls = ModuleCalls(
        *parts,
        origin=Origin({"x": x, "y": y}, slots),
        has_data=has_data,
        shared=shared,
        autocast=autocast,
        device=tree.first_leaf(x0).device,
    )
    return calls, x0, y0


def _copies(given: dict[str, Any]) -> dict[str, nn.Module]:
    """The modules among x and y, copied together, so that what they share stays shared; those that
    were given are never touched.
    """
    modules = {name: module for name, module in given.items() if isinstance(module, nn.Module)}
    memo: dict[int, Any] = {}
    for name, module in modules.items():
        for path, part in module.named_modules():
            where = f"{name} ({path})" if path else name
            if isinstance(part, torch.jit.ScriptModule):
                raise InvalidInput(
                    f"{where} is a scripted or traced module, whose parameters cannot be taken "
                    "from a run; pass the module that it was made of"
                )
            if isinstance(part, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
                raise InvalidInput(
                    f"{where} is a {type(part).__name__}; pass its .module. Runs share a device "
                    "by themselves, processes by bipareto.parallel.data_parallel"
                )
            for value in vars(part).values():
                # What was computed from parameters cannot be copied by torch; `take` drops it.
                if computed(value):
                    memo[id(value)] = value.detach().clone().requires_grad_() * 1
    try:
        return copy.deepcopy(modules, memo)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise InvalidInput(
            f"{' or '.join(modules)} cannot be copied ({error}); a run works on a copy of the "
            "modules: keep out of them what copy.deepcopy refuses, such as open files, locks, "
            "generators and tensors with a graph"
        ) from error
