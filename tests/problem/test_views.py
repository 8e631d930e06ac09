"""What a loss may do with a module: everything uses the tensors of the run, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.problem.modules import View


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.named = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
        self.scales = nn.ParameterDict({"s": nn.Parameter(torch.ones(2))})
        self.stack = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        self.values = nn.Linear(1, 1)
        self.listed = [self.stack, self.values]  # known to the module under other names
        self.reading, self.entry = self.encode, self.stack.forward

    def end(self) -> nn.Module:
        return self.values

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return self.stack, self.values

    def encode(self, inputs: Tensor, sign: float = 1.0) -> Tensor:
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return sign * self.named["a"](inputs) * self.scales["s"]

    @property
    def size(self) -> Tensor:
        return sum((p.square().sum() for p in self.parameters()), torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.values(self.stack(self.encode(inputs)))


def in_views(net: View, inputs: Tensor) -> Tensor:
    """`Net.forward`, written with a view's parts."""
    for layer in net.layers:
        inputs = torch.tanh(layer(inputs))
    inputs = net.named["a"](inputs) * net.scales["s"]
    return net.values(net.stack[1:](net.stack[0](inputs)))


#: ways to the same number
WAYS = {
    "a call": lambda net, data: net(data),
    "a method": lambda net, data: net.values(net.stack(net.encode(data))),
    "a method with a keyword": lambda net, data: net.values(net.stack(-net.encode(data, sign=-1))),
    "parts": in_views,
    "a method that hands out a submodule": lambda net, data: net.end()(net.stack(net.encode(data))),
    "a property that does": lambda net, data: net.parts[1](net.parts[0](net.encode(data))),
    "a list": lambda net, data: net.listed[1](net.listed[0](net.encode(data))),
    "methods under other names": lambda net, data: net.values(net.entry(net.reading(data))),
    "places": lambda net, data: net.values(
        net.stack[-1](
            net.stack[:-1](
                net.named["a"](torch.tanh(net.layers[1](torch.tanh(net.layers[0](data)))))
                * next(iter(net.scales.values()))
            )
        )
    ),
    "items": lambda net, data: net.values(
        net.stack(
            dict(net.named.items())["a"](
                torch.tanh(list(net.layers.children())[1](torch.tanh(net.layers[0](data))))
            )
            * dict(net.scales.items())["s"]
        )
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_value_uses_the_tensors_of_the_run(way: str) -> None:
    torch.manual_seed(0)
    net, data = Net(), torch.randn(5, 3)
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=net,
        lower=lambda up, low: WAYS[way](low, data).square().sum() + 0.1 * low.size,
        upper=[lambda up, low: low(data).sum(), lambda up, low: up.weight.sum() * low.size],
    )
    other = {name: torch.randn_like(value) for name, value in y.items()}
    plain = Net()
    plain.load_state_dict(other)
    expected = plain(data).square().sum() + 0.1 * plain.size
    expected.backward()
    found = torch.func.grad(lambda v: problem.lower(x, v))(other)
    torch.testing.assert_close(problem.lower(x, other), expected)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
    many = {name: torch.stack([value, 2 * value]) for name, value in other.items()}
    rows = torch.func.vmap(lambda v: problem.lower(x, v))(many)
    torch.testing.assert_close(rows[0], expected)


@pytest.mark.parametrize("name", ["state_dict", "eval", "modules", "to", "get_parameter"])
def test_what_would_reach_past_the_run_is_refused_by_name(name: str) -> None:
    view = View(Net(), dict(Net().named_parameters()), {})
    with pytest.raises(InvalidInput, match=rf"\.{name}\(\).*named_parameters"):
        getattr(view, name)


def test_containers_have_their_length_and_keys() -> None:
    view = View(Net(), dict(Net().named_parameters()), {})
    assert len(view.layers) == 2
    assert list(view.named) == list(view.named.keys()) == ["a", "b"]
    assert [name for name, _ in view.named_children()] == [
        name for name, _ in Net().named_children()
    ]


def test_dropout_deep_inside_a_network_is_drawn_by_key() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 64), nn.Sequential(nn.Dropout(0.5))))
    data = torch.ones(4, 3)
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=net,
        lower=lambda up, low: (low(data) == 0).double().mean() + 0 * up.weight.sum(),
        upper=[lambda up, low: low(data).sum(), lambda up, low: up.weight.sum()],
    )
    shares = [float(problem.lower(x, y, problem.batch("lower", "train", t))) for t in range(20)]
    assert len(set(shares)) > 5
    assert sum(shares) / 20 == pytest.approx(0.5, abs=0.05)
    assert float(problem.lower(x, y, problem.batch("lower", "full"))) == 0
