"""Problems made of modules, and known problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp
from misuse.data import minibatches, of_data, of_loader, rows, stochastic
from misuse.harness import Case
from misuse.losses import _stepped
from misuse.setting import front, method, no_state_changed, problem, same_x, solve, start, upper
from misuse.values import NEGATIVE, NOT_A_NUMBER, NOT_WHOLE, ZERO, over


def _net(*layers: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 1))


def _weight() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(3, 1)


def _module_loss(x: Any, y: Any, batch: Any) -> Tensor:
    inputs, wanted = batch
    return ((y(inputs).squeeze(-1) - wanted).square() * x(inputs).squeeze(-1).sigmoid()).mean()


def _module_upper(x: Any, y: Any, batch: Any) -> Tensor:
    inputs, wanted = batch
    return torch.stack(
        [
            (y(inputs).squeeze(-1) - wanted).square().mean(),
            (y(inputs).squeeze(-1) + wanted).square().mean()
            + 0.1 * sum(p.square().sum() for p in x.parameters()),
        ]
    )


def _from_modules(**others: Any) -> Any:
    given = {
        "x": _weight(),
        "y": _net(nn.Tanh()),
        "upper": _module_upper,
        "lower": _module_loss,
        "lower_data": rows(),
        "upper_data": rows(),
    } | others
    return bp.Problem.from_modules(**given)


def _of_modules(**others: Any) -> Any:
    of, x0, y0 = _from_modules(**others)
    return bp.solve(of, x0, y0, method=stochastic(), steps=3, progress=False)


def _written_back() -> Any:
    net, weight = _net(nn.BatchNorm1d(4), nn.Dropout(0.5)), _weight()
    _of_modules(x=weight, y=net).write_back(weight, net)


def _as_the_module(*layers: nn.Module) -> bool:
    """Whether a loss of modules in eval mode is what the modules themselves say."""
    net, weight = _net(*layers), _weight()
    for layer in layers:
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
            layer.running_mean.fill_(0.7)
            layer.running_var.fill_(2.0)
    net.eval()
    of, x0, y0 = _from_modules(x=weight, y=net)
    mine, theirs = (
        of.lower(x0, y0, of.batch("lower", "theta", 3, 1)),
        _module_loss(weight, net, rows()),
    )
    return bool(torch.allclose(mine, theirs))


def module_cases() -> Iterator[Case]:
    modules: dict[str, Any] = {
        "None": None,
        "text": "a",
        "number": 3,
        "class": nn.Linear,
        "no parameters": nn.ReLU(),
        "list of modules": [nn.Linear(3, 1)],
        "function": upper,
        "array": np.zeros(3),
        "lazy": nn.LazyLinear(1),
        "frozen": nn.Linear(3, 1).requires_grad_(False),
        "half": nn.Linear(3, 1).half(),
        "meta": nn.Linear(3, 1, device="meta"),
        "integers": torch.zeros(3, dtype=torch.int64),
        "double": nn.Linear(3, 1).double(),
        "compiled text": "resnet18",
    }
    yield from over("from_modules", lambda x: _of_modules(x=x), "x", modules)
    yield from over("from_modules", lambda y: _of_modules(y=y), "y", modules)
    functions: dict[str, Any] = {
        "None": None,
        "number": 3,
        "text": "a",
        "empty list": [],
        "list with number": [_module_loss, 3],
        "two arguments": lambda x, y: x(torch.zeros(1, 3)).sum(),
        "module": nn.Linear(3, 1),
    }
    yield from over("from_modules", lambda upper: _of_modules(upper=upper), "upper", functions)
    yield from over(
        "from_modules",
        lambda lower: _of_modules(lower=lower),
        "lower",
        {k: v for k, v in functions.items() if "list" not in k},
    )
    sources: dict[str, Any] = {
        "text": "a",
        "number": 3,
        "empty": [],
        "array": np.zeros((4, 3)),
        "data set": TensorDataset(*rows()),
        "list of texts": ["a"],
        "empty loader": DataLoader(TensorDataset(torch.zeros(0, 3), torch.zeros(0))),
        "loader of text": DataLoader(["a", "b", "c"]),
        "None": None,
        "generator": (v for v in rows()),
        "function": upper,
        "drop_last": DataLoader(TensorDataset(*rows()), 100, drop_last=True),
    }
    yield from over(
        "from_modules", lambda lower_data: _of_modules(lower_data=lower_data), "lower_data", sources
    )
    yield from over(
        "from_modules", lambda upper_data: _of_modules(upper_data=upper_data), "upper_data", sources
    )
    two = [lambda x, y, b: _module_upper(x, y, b)[0], lambda x, y, b: _module_upper(x, y, b)[1]]
    yield Case(
        "from_modules: three data for two objectives",
        lambda: _of_modules(upper=two, upper_data=[rows(), rows(), rows()]),
    )
    yield Case(
        "from_modules: one of two data is text",
        lambda: _of_modules(upper=two, upper_data=[rows(), "a"]),
    )
    yield from over(
        "from_modules",
        lambda shared: _of_modules(shared=shared),
        "shared",
        {"number": 3, "text": "a", "no arguments": lambda: 0, "list": []},
    )
    yield from over(
        "from_modules",
        lambda autocast: _of_modules(autocast=autocast),
        "autocast",
        {
            "text": "bfloat16",
            "float16": torch.float16,
            "True": True,
            "float64": torch.float64,
            "int": torch.int8,
            "number": 3,
            "class": float,
        },
    )
    yield from over(
        "from_modules",
        lambda evaluate_batches: _of_modules(
            lower_data=DataLoader(TensorDataset(*rows()), 4), evaluate_batches=evaluate_batches
        ),
        "evaluate_batches",
        NOT_A_NUMBER | NOT_WHOLE | NEGATIVE | ZERO,
    )
    yield from over(
        "from_modules",
        lambda names: _of_modules(names=names),
        "names",
        {"one": ["a"], "three": ["a", "b", "c"], "number": 3, "text": "ab"},
    )
    # Modules that do things on the side.
    yield Case(
        "modules: BatchNorm in eval mode",
        lambda: _as_the_module(nn.BatchNorm1d(4)),
        right=bool,
        may_warn=True,
    )
    yield Case(
        "modules: BatchNorm without affine in eval mode",
        lambda: _as_the_module(nn.BatchNorm1d(4, affine=False)),
        right=bool,
        may_warn=True,
    )
    yield Case(
        "modules: BatchNorm without statistics in eval mode",
        lambda: _as_the_module(nn.BatchNorm1d(4, track_running_stats=False)),
        right=bool,
        may_warn=True,
    )
    yield Case("modules: dropout in eval mode", lambda: _as_the_module(nn.Dropout(0.5)), right=bool)
    yield Case(
        "modules: alpha dropout", lambda: _of_modules(y=_net(nn.AlphaDropout(0.5))), may_warn=True
    )
    yield Case(
        "modules: F.dropout inside",
        lambda: same_x(lambda: _of_modules(y=_net(_Functional()))),
        right=bool,
    )
    yield Case(
        "modules: torch.rand inside",
        lambda: same_x(lambda: _of_modules(y=_net(_Random()))),
        right=bool,
    )
    yield Case(
        "modules: NumPy inside",
        lambda: same_x(lambda: _of_modules(y=_net(_NumpyRandom()))),
        right=bool,
    )
    yield Case("modules: counts its calls", lambda: _of_modules(y=_net(_Counting())))
    yield Case("modules: a buffer that moves", lambda: _of_modules(y=_net(_Averaging())))
    yield Case(
        "modules: RReLU", lambda: same_x(lambda: _of_modules(y=_net(nn.RReLU()))), right=bool
    )
    yield Case(
        "modules: spectral norm",
        lambda: _of_modules(
            y=nn.Sequential(
                nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 1)
            )
        ),
        may_warn=True,
        right=lambda s: True,
    )
    yield Case("modules: frozen body", lambda: _frozen_body(), right=bool)
    yield Case("modules: RNN with dropout", lambda: _of_modules(y=_Recurrent()), may_warn=True)
    yield from over(
        "write_back of modules",
        lambda x: _of_modules().write_back(x, None),
        "x",
        {
            "other module": nn.Linear(5, 2),
            "text": "a",
            "number": 3,
            "tensor": torch.zeros(3),
            "list": [],
        },
    )
    yield from over(
        "problems.get",
        bp.problems.get,
        "name",
        {"unknown": "nonsense", "None": None, "number": 3, "list": [], "empty": ""},
    )
    for label, given in {
        "dim text": {"dim": "a"},
        "dim 0": {"dim": 0},
        "dim -1": {"dim": -1},
        "dim half": {"dim": 2.5},
        "dim nan": {"dim": math.nan},
        "dim None": {"dim": None},
        "dim True": {"dim": True},
        "m 0": {"m": 0},
        "m text": {"m": "a"},
        "m half": {"m": 1.5},
        "noise -1": {"noise": -1.0},
        "noise text": {"noise": "a"},
        "noise nan": {"noise": math.nan},
        "noise inf": {"noise": math.inf},
        "seed text": {"seed": "a"},
        "seed half": {"seed": 0.5},
        "unknown option": {"dims": 3},
        "dim huge": {"dim": 10**12},
        "seed None": {"seed": None},
    }.items():
        yield Case(f"problems.get: {label}", lambda g=given: _known(**g))
    for label, value in {
        "0": 0,
        "-1": -1,
        "text": "a",
        "half": 2.5,
        "None": None,
        "nan": math.nan,
        "10^12": 10**12,
    }.items():
        yield Case(f"known.front: {label}", lambda v=value: bp.problems.get("quadratic").front(v))


def _known(**given: Any) -> Any:
    known = bp.problems.get("quadratic", **given)
    return bp.solve(known, *known.start(0), method=method(), steps=3, progress=False)


class _Functional(nn.Module):
    def forward(self, v: Tensor) -> Tensor:
        return nn.functional.dropout(v, 0.5, self.training)


class _Random(nn.Module):
    def forward(self, v: Tensor) -> Tensor:
        return v + 0.1 * torch.rand(v.shape[-1])


class _NumpyRandom(nn.Module):
    def forward(self, v: Tensor) -> Tensor:
        return v + 0.1 * float(np.random.rand())  # noqa: NPY002


class _Counting(nn.Module):
    calls = 0

    def forward(self, v: Tensor) -> Tensor:
        type(self).calls += 1
        return v * (1 + 0.1 * type(self).calls)


class _Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, v: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * v.detach().mean(0)
        return v - self.mean


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.RNN(3, 4, 2, dropout=0.5, batch_first=True), nn.Linear(4, 1)

    def forward(self, v: Tensor) -> Tensor:
        return self.head(self.cells(v[:, None])[0][:, -1])


def _frozen_body() -> bool:
    net = _net(nn.Tanh())
    net[0].requires_grad_(False)
    answer = _of_modules(y=net)
    return set(answer.y) == {"2.weight", "2.bias"}


def state_cases() -> Iterator[Case]:
    """The global random streams are the caller's: nothing in the library moves them."""
    for label, build in {
        "solve": solve,
        "solve, tuned": lambda: solve(method=None),
        "front": front,
        "front, random preferences": lambda: front(preferences="random:3"),
        "adaptive": lambda: front(preferences="adaptive", budget=4),
        "certify": lambda: bp.certify(problem(), *start()),
        "resolve_lower": lambda: front().resolve_lower(),
        "diagnose": lambda: bp.diagnose(front()),
        "tuned": lambda: bp.MOMEHA.tuned(problem(), *start()),
        "preferences.random": lambda: bp.preferences.random(3, 5),
        "Minibatches": lambda: of_data(sampler=minibatches()),
        "loader": lambda: of_loader(),
        "loader with workers": lambda: of_loader(workers=2),
        "optimizer": lambda: _stepped(problem()),
        "known problem": lambda: bp.problems.get("quadratic", noise=0.1).front(5),
        "modules": lambda: _of_modules(),
        "write_back": lambda: _written_back(),
    }.items():
        yield Case(
            f"global random state after {label}", lambda b=build: no_state_changed(b), right=bool
        )
