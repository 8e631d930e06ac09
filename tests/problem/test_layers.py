"""Building blocks of torch.nn as lower and as upper module: what a problem made of them says is
what plain autograd says of the modules themselves, or it is refused in words.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import rnn as packing

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem import tree

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop",
    "ignore:`torch.jit",
    "ignore:`torch.nn.utils.weight_norm",
    "ignore:`torch.nn.utils.spectral_norm",
    "ignore:lower has no minimum",
    "ignore:Initializing zero-element",
    "ignore:An output with one or more elements was resized",  # torch's PReLU under vmap
)


def _random(*shape: int) -> Tensor:
    stream = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


ROWS, IMAGES, SERIES = _random(5, 4), _random(2, 4, 6, 6), _random(3, 5, 4)
WORDS = torch.arange(15).reshape(5, 3) * 4 % 7


class Made(nn.Module):
    """A module with a forward that is given, as f(module, inputs)."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs: Tensor) -> Any:
        return self.function(self, inputs)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)
        self.outer.weight = self.inner.weight
        self.twice = self.inner

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outer(inputs) * self.twice(inputs).tanh() + self.inner(inputs)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(3)])
        self.b = nn.ParameterDict({"k": nn.Parameter(torch.randn(4))})
        self.c = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.d = nn.ModuleDict({"k": nn.Linear(4, 2)})
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        for weight, layer in zip(self.a[1:], self.c, strict=True):
            inputs = layer(inputs * weight + self.shift).tanh()
        return self.d["k"](inputs * self.b["k"] + self.a[0])


def hooked() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    made[0].register_forward_pre_hook(lambda layer, given: (given[0] * 2,))
    made[0].register_forward_hook(lambda layer, given, out: out + layer.weight.sum())
    return made


def called(module: nn.Module, inputs: Tensor = ROWS) -> nn.Module:
    """The module after a call: shapes of lazy ones are known, and hooks have computed weights."""
    module(inputs)
    return module


def pruned() -> nn.Module:
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def frozen() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    made[0].requires_grad_(False)
    return made


def attention(**options: Any) -> nn.Module:
    need = {"need_weights": False} if options.pop("alone", False) else {}
    return Made(
        lambda s, v: s.part(v, v, v, **need)[0], part=nn.MultiheadAttention(4, 2, **options)
    )


def encoder(layers: int = 1) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return (
        layer if layers == 1 else nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    )


def packed(module: Any, series: Tensor) -> Tensor:
    rows = packing.pack_padded_sequence(series, torch.tensor([3, 2, 2, 1, 1]))
    return packing.pad_packed_sequence(module.part(rows)[0])[0]


def norm(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3), layer)


def compiled_in_place() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.compile(backend="eager")
    return layer


#: name -> module, its inputs
LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear": (lambda: nn.Linear(4, 3), ROWS),
    "Bilinear": (lambda: Made(lambda s, v: s.part(v, v), part=nn.Bilinear(4, 4, 3)), ROWS),
    "Conv1d": (lambda: nn.Conv1d(5, 2, 3), SERIES),
    "Conv2d, grouped, circular": (
        lambda: nn.Conv2d(4, 8, 3, groups=4, padding="same", padding_mode="circular"),
        IMAGES,
    ),
    "Conv3d": (lambda: nn.Conv3d(2, 2, 2), IMAGES[None]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 2, 3), IMAGES),
    "lazy": (lambda: called(nn.LazyLinear(3)), ROWS),
    "BatchNorm, train": (lambda: norm(nn.BatchNorm2d(4)), IMAGES),
    "BatchNorm, eval": (lambda: norm(nn.BatchNorm2d(4)).eval(), IMAGES),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), ROWS),
    "GroupNorm": (lambda: norm(nn.GroupNorm(2, 4)), IMAGES),
    "InstanceNorm": (
        lambda: norm(nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        IMAGES,
    ),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.RMSNorm(3)), ROWS),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=4), WORDS),
    "Embedding, sparse": (lambda: nn.Embedding(7, 3, sparse=True), WORDS),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 3, padding_idx=4), WORDS),
    "EmbeddingBag, sum": (lambda: nn.EmbeddingBag(7, 3, mode="sum", sparse=True), WORDS),
    "EmbeddingBag, max": (lambda: nn.EmbeddingBag(7, 3, mode="max", padding_idx=4), WORDS),
    "EmbeddingBag, weighted": (
        lambda: Made(
            lambda s, v: s.part(v, per_sample_weights=v / 3), part=nn.EmbeddingBag(7, 3, mode="sum")
        ),
        WORDS,
    ),
    "EmbeddingBag, offsets": (
        lambda: Made(
            lambda s, v: s.part(v.flatten(), torch.tensor([0, 2, 2, 9])),
            part=nn.EmbeddingBag(7, 3, padding_idx=4),
        ),
        WORDS,
    ),
    "EmbeddingBag, last offset": (
        lambda: Made(
            lambda s, v: s.part(v.flatten(), torch.tensor([0, 2, 9, 15])),
            part=nn.EmbeddingBag(7, 3, include_last_offset=True),
        ),
        WORDS,
    ),
    "RNN": (lambda: nn.RNN(4, 3), SERIES),
    "LSTM, both ways": (lambda: nn.LSTM(4, 3, bidirectional=True, batch_first=True), SERIES),
    "GRU": (lambda: nn.GRU(4, 2, num_layers=2), SERIES),
    "LSTM, packed": (lambda: Made(packed, part=nn.LSTM(4, 3)), SERIES),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), ROWS),
    "GRUCell": (lambda: nn.GRUCell(4, 3), ROWS),
    "attention, train": (attention, SERIES),
    "attention, eval": (lambda: attention(batch_first=True, alone=True).eval(), SERIES),
    "encoder layer, train": (encoder, SERIES),
    "encoder, eval": (lambda: encoder(2).eval(), SERIES),
    "dropout, eval": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(), ROWS),
    "dropout, functional, eval": (
        lambda: Made(
            lambda s, v: F.dropout(s.part(v), 0.5, s.training), part=nn.Linear(4, 3)
        ).eval(),
        ROWS,
    ),
    "RReLU, eval": (lambda: nn.Sequential(nn.Linear(4, 3), nn.RReLU()).eval(), ROWS),
    "PReLU": (nn.PReLU, ROWS),
    "Softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), ROWS),
    "a layer without entries": (
        lambda: Made(
            lambda s, v: s.part.log_prob(v), part=nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4])
        ),
        ROWS,
    ),
    "lists and dicts": (Lists, ROWS),
    "slices": (
        lambda: Made(
            lambda s, v: s.part[1:](s.part[:1](v)),
            part=nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        ),
        ROWS,
    ),
    "weight_norm by a hook": (lambda: nn.utils.weight_norm(nn.Linear(4, 3)), ROWS),
    "weight_norm by a hook, called": (lambda: called(nn.utils.weight_norm(nn.Linear(4, 3))), ROWS),
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), ROWS),
    "spectral_norm by a hook, eval": (
        lambda: called(nn.utils.spectral_norm(nn.Linear(4, 3))).eval(),
        ROWS,
    ),
    "spectral_norm, eval": (lambda: parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), ROWS),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(4, 3)), ROWS),
    "pruned": (pruned, ROWS),
    "hooks": (hooked, ROWS),
    "tied": (Tied, ROWS),
    "frozen": (frozen, ROWS),
    "compiled in place": (compiled_in_place, ROWS),
    "compiled": (lambda: torch.compile(nn.Linear(4, 3), backend="eager"), ROWS),
    "copied": (lambda: copy.deepcopy(nn.Linear(4, 3)), ROWS),
}

#: those that run one preference after the other
ALONE = {"LSTM, packed", "RReLU, eval", "a layer without entries"}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def number(value: Any) -> Tensor:
    """One number of whatever a layer gives, with a slope in every entry."""
    value = value[0] if isinstance(value, tuple) else value
    return (value * torch.cos(torch.arange(value.numel())).reshape(value.shape)).sum().sigmoid()


def losses(side: str, data: Tensor) -> tuple[Callable[..., Any], ...]:
    """g, f_1, f_2 with the layer as x or as y and a linear one as the other."""

    def of(x: Any, y: Any) -> tuple[Tensor, Any]:
        return (number(x(data)), y) if side == "x" else (number(y(data)), x)

    def g(x: Any, y: Any) -> Tensor:
        value, other = of(x, y)
        return (other.weight.sum() - value).square() + other.bias.square().sum()

    def f_1(x: Any, y: Any) -> Tensor:
        value, other = of(x, y)
        return value * (2 + other.weight.sum().sin())

    def f_2(x: Any, y: Any) -> Tensor:
        value, other = of(x, y)
        return other.weight.square().sum() + value

    return g, f_1, f_2


def reference(loss: Callable[..., Any], modules: dict[str, nn.Module]) -> tuple[Tensor, Any]:
    """The value and gradients of plain autograd on the modules themselves."""
    for module in modules.values():
        module.zero_grad()
    value = loss(modules["x"], modules["y"])
    value.backward()
    gradients = tuple(
        {
            name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
            for name, p in modules[side].named_parameters()
            if p.requires_grad and p.numel()
        }
        for side in ("x", "y")
    )
    return value.detach(), gradients


@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_what_it_is_to_autograd(name: str, side: str) -> None:
    make, data = LAYERS[name]
    other = "y" if side == "x" else "x"
    modules = {side: make(), other: nn.Linear(2, 2)}
    torch.manual_seed(0)
    plain = {side: make(), other: nn.Linear(2, 2)}
    held = {side: {k: v.clone() for k, v in modules[side].state_dict().items()}}
    g, *f = losses(side, data)
    problem, x0, y0 = bp.Problem.from_modules(x=modules["x"], y=modules["y"], lower=g, upper=f)
    assert problem.check(x0, y0) == 2
    point = tree.map_(lambda leaf: leaf + 0.1 * torch.randn_like(leaf), (x0, y0))
    with torch.no_grad():
        for module, values in zip((plain["x"], plain["y"]), point, strict=True):
            for key, parameter in module.named_parameters():
                if key in values:
                    parameter.copy_(values[key])
            module.load_state_dict(  # buffers, such as those of spectral_norm
                {**module.state_dict(), **modules_buffers(modules, plain, module)}
            )
    many = tree.stack([point, tree.map_(lambda leaf: 2 * leaf, point)])
    evaluations = [lambda p: problem.lower(*p)]
    evaluations += [lambda p, i=i: problem.upper(*p)[i] for i in range(2)]
    for loss, evaluate in zip([g, *f], evaluations, strict=True):
        value, gradients = reference(loss, plain)
        torch.testing.assert_close(evaluate(point), value)
        torch.testing.assert_close(bp.oracle.grad(evaluate, point), gradients)
        if name in ALONE:
            continue
        torch.testing.assert_close(torch.func.vmap(evaluate)(many)[0], value)
        rows = torch.func.vmap(torch.func.grad(evaluate))(many)
        torch.testing.assert_close(tree.select(rows, 0), gradients)
    method = bp.MOMEHA(gamma=0.5, alpha_theta=0.1, alpha_y=0.1, alpha_x=0.1, c=1.0)
    answer, _ = method.step(problem, method.init(problem, x0, y0, [0.5, 0.5]))
    slopes = {
        "x": bp.oracle.grad(lambda x: problem.upper(x, y0).sum(), x0),
        "y": bp.oracle.grad(lambda y: problem.lower(x0, y), y0),
    }
    for moved, begun, slope in ((answer.x, x0, slopes["x"]), (answer.theta, y0, slopes["y"])):
        steep = [key for key, value in slope.items() if float(value.abs().max()) > 1e-9]
        assert steep
        assert not any(torch.equal(moved[key], begun[key]) for key in steep)
    assert all(torch.equal(v, held[side][k]) for k, v in modules[side].state_dict().items())


def modules_buffers(modules: Any, plain: Any, module: nn.Module) -> dict[str, Tensor]:
    source = next(modules[side] for side in plain if plain[side] is module)
    return {k: v for k, v in source.named_buffers() if k in source.state_dict()}


#: layers with fused forms that torch differentiates once
FUSED = [
    "LSTM, both ways",
    "EmbeddingBag",
    "EmbeddingBag, max",
    "EmbeddingBag, offsets",
    "attention, eval",
    "encoder, eval",
    "GRU",
]


@pytest.mark.parametrize("name", FUSED)
def test_second_derivatives_are_slopes_of_the_first(name: str) -> None:
    make, data = LAYERS[name]
    g, *f = losses("y", data)
    problem, x, y = bp.Problem.from_modules(x=nn.Linear(2, 2), y=make(), lower=g, upper=f)

    def slope(point: Any) -> Tensor:
        return tree.ravel(torch.func.grad(lambda v: problem.lower(x, v))(point))

    way = tree.map_(torch.randn_like, y)
    _, pull = torch.func.vjp(slope, y)
    weight, length = torch.randn_like(slope(y)), 1e-7  # shorter than the way to a kink
    (product,) = pull(weight)
    ahead, behind = (slope(tree.add_scaled(y, sign * length, way)) for sign in (1, -1))
    expected = weight @ (ahead - behind) / (2 * length)
    torch.testing.assert_close(tree.dot(product, way), expected, rtol=1e-4, atol=1e-6)


def test_a_fused_lstm_in_single_precision_too() -> None:
    """The one that torch has for a processor."""
    net = nn.LSTM(4, 3, bidirectional=True).float()
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(2, 2).float(),
        y=net,
        lower=lambda up, low: low(SERIES.float())[0].square().sum() * up.weight.square().sum(),
        upper=[lambda up, low: low(SERIES.float())[0].square().sum() * up.weight.sum()] * 2,
    )
    slope = torch.func.grad(lambda v: problem.lower(x, v))
    with torch.no_grad():  # as a solver of the lower level does
        _, pull = torch.func.vjp(slope, y)
        assert torch.isfinite(tree.ravel(pull(y))).all()
    many = tree.stack([y, y])
    torch.testing.assert_close(
        torch.func.vmap(lambda v: problem.lower(x, v))(many)[0], problem.lower(x, y)
    )


@pytest.mark.parametrize("name", ["GRU", "LSTM, both ways", "attention, eval"])
def test_losses_that_share_work_are_batched_too(name: str) -> None:
    make, data = LAYERS[name]
    g = lambda up, low, rows: number(low(rows)) * up.weight.sum()  # noqa: E731
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(2, 2),
        y=make(),
        lower=g,
        upper=[g, g],
        lower_data=data,
        upper_data=data,
        shared=lambda up, rows: rows,
    )
    rows = problem.batch("lower", "full")
    points = [y, tree.map_(lambda leaf: 2 * leaf, y)]
    pairs = torch.func.vmap(lambda v: problem.lower_pair(x, v, y, rows))(tree.stack(points))
    for i, values in enumerate(zip(*pairs, strict=True)):
        expected = problem.lower(x, points[i], rows), problem.lower(x, y, rows)
        torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_module_is_called_as_it_is(in_place: bool) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    net = nn.Linear(4, 3)
    if in_place:
        net.compile(backend=backend)
    g, *f = losses("y", ROWS)
    made = net if in_place else torch.compile(net, backend=backend)
    checked(*bp.Problem.from_modules(x=nn.Linear(2, 2), y=made, lower=g, upper=f))
    assert not graphs


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))


def checkpointed(reentrant: bool) -> nn.Module:
    def forward(module: Any, inputs: Tensor) -> Tensor:
        first = module.first(inputs)
        return torch.utils.checkpoint.checkpoint(module.part, first, use_reentrant=reentrant)

    return Made(forward, first=nn.Linear(4, 4), part=nn.Sequential(nn.Linear(4, 3), nn.Tanh()))


class ByLambda(nn.Module):
    """A module with a function that holds the module it was written in."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 3)
        self.read = lambda inputs: 2 * self.part(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.read(inputs)


class Counting(nn.Module):
    """A module with a buffer that is written in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.part(inputs)
        with torch.no_grad():
            self.mean.lerp_(outputs.mean(0), 0.1)
        return outputs - self.mean


class Dropping(nn.Dropout):
    """A dropout with a forward of its own, which no key draws."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (torch.rand_like(inputs) > self.p)


class Locked(nn.Linear):
    """A module that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.stream = (value for value in range(3))


#: name -> module, words of the error
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lazy": (lambda: nn.LazyLinear(3), "call the module once"),
    "scripted": (scripted, r"scripted or traced module.*pass the module that it was made of"),
    "scripted inside": (lambda: nn.Sequential(scripted()), r"\(0\) is a scripted"),
    "traced": (lambda: torch.jit.trace(nn.Linear(4, 3), ROWS), "scripted or traced"),
    "parallel": (lambda: nn.DataParallel(nn.Linear(4, 3)), r"DataParallel; pass its \.module"),
    "spectral_norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
        r"writes to its buffer _u in every call.*\.eval\(\)",
    ),
    "spectral_norm by a hook": (
        lambda: nn.utils.spectral_norm(nn.Linear(4, 3)),
        r"writes to its buffer weight_u in every call",
    ),
    "means of its own": (Counting, "writes to its buffer mean"),
    "half": (lambda: nn.Linear(4, 3).half(), "dtype torch.float16"),
    "complex": (lambda: nn.Linear(4, 3, dtype=torch.complex128), "floating dtype"),
    "two dtypes": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).float()), "one dtype"),
    "functional dropout": (
        lambda: Made(lambda s, v: F.dropout(s.part(v)), part=nn.Linear(4, 3)),
        "random stream.*nn.Dropout",
    ),
    "a dropout of its own": (
        lambda: nn.Sequential(nn.Linear(4, 3), Dropping(0.5)),
        "random stream.*nn.Dropout",
    ),
    "RReLU": (lambda: nn.Sequential(nn.Linear(4, 3), nn.RReLU()), "random stream"),
    "checkpoint": (lambda: checkpointed(False), r"computes with part\.0\.weight.*checkpointing"),
    "a lambda": (ByLambda, r"uses part\.\w+ of the module that was given as \w.*make it a method"),
    "uncopyable": (Locked, "cannot be copied.*generator"),
}


def checked(problem: bp.Problem, x0: Any, y0: Any) -> None:
    assert problem.check(x0, y0) == 2


@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_run_could_use_is_refused_in_words(name: str, side: str) -> None:
    make, words = REFUSED[name]
    g, *f = losses(side, ROWS)
    modules = {"x": nn.Linear(2, 2), "y": nn.Linear(2, 2), side: make()}
    with pytest.raises(InvalidInput, match=words):
        checked(*bp.Problem.from_modules(**modules, lower=g, upper=f))


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_a_bounded_norm_is_refused_but_where_it_is_frozen(layer: Any) -> None:
    g, *f = losses("y", WORDS)
    with pytest.raises(InvalidInput, match=r"max_norm=1\.0, with which every call writes"):
        bp.Problem.from_modules(x=nn.Linear(2, 2), y=layer(7, 3, max_norm=1.0), lower=g, upper=f)
    still = layer(7, 3, max_norm=1.0).requires_grad_(False)
    net = nn.Sequential(still, nn.Linear(3, 2))
    checked(*bp.Problem.from_modules(x=nn.Linear(2, 2), y=net, lower=g, upper=f))
