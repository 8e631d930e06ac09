"""What a loss may do with a module: everything uses the tensors of the run, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem.oracle import Counting
from bipareto.problem.views import KindView, Slots, View


class Ends(NamedTuple):
    stack: nn.Module
    values: nn.Module


@dataclass
class Held:
    values: nn.Module
    scale: float = 1.0


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
        self.by_name = {"stack": self.stack, "more": {"values": self.values}}
        self.ends, self.held = Ends(self.stack, self.values), Held(self.values)
        self.kept = [{"weight": self.values.weight}]
        self.shifts = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])
        self.reversed = partial(self.encode, sign=-1.0)
        self.again = self.stack  # one submodule under two names
        self.tied = nn.Linear(1, 1)
        self.tied.weight, self.tied.bias = self.values.weight, self.values.bias
        self.seen: Any = None

    def __getattr__(self, name: str) -> Any:
        return self.values.weight if name == "last" else super().__getattr__(name)

    @cached_property
    def doubled(self) -> Tensor:
        return 2 * self.values.weight

    def each(self) -> Iterator[nn.Module]:
        yield from (self.stack, self.values)

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
        self.seen = self.encode(inputs)
        return self.values(self.stack(self.seen))


def in_views(net: View, inputs: Tensor) -> Tensor:
    """`Net.forward`, written with a view's parts."""
    for layer in net.layers:
        inputs = torch.tanh(layer(inputs))
    inputs = net.named["a"](inputs) * net.scales["s"]
    return net.values(net.stack[1:](net.stack[0](inputs)))


def view_of(net: nn.Module) -> View:
    trained = dict(net.named_parameters())
    return KindView(net, Slots(net, trained), trained)


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
    "a dict": lambda net, data: net.by_name["more"]["values"](
        net.by_name["stack"](net.encode(data))
    ),
    "a named tuple": lambda net, data: net.ends.values(net.ends.stack(net.encode(data))),
    "a data class": lambda net, data: net.held.values(net.stack(net.encode(data))),
    "a partial": lambda net, data: net.values(net.stack(-net.reversed(data))),
    "second names": lambda net, data: net.tied(net.again(net.encode(data))),
    "a parameter in a dict": lambda net, data: (
        net.stack(net.encode(data)) @ net.kept[0]["weight"].T + net.values.bias
    ),
    "slices of parameters": lambda net, data: (
        net(data) + sum(net.shifts[1:]) - net.shifts[1] - net.shifts[2]
    ),
    "a generator": lambda net, data: list(net.each())[1](next(net.each())(net.encode(data))),
    "a cached property": lambda net, data: (
        net.stack(net.encode(data)) @ net.doubled.T / 2 + net.values.bias
    ),
    "a __getattr__ of its own": lambda net, data: (
        net.stack(net.encode(data)) @ net.last.T + net.values.bias
    ),
    "a private dict": lambda net, data: net._modules["values"](net.stack(net.encode(data))),
    "a private dict of parameters": lambda net, data: (
        net.stack(net.encode(data)) @ net.values._parameters["weight"].T
        + net.tied._parameters["bias"]
    ),
    "what a call leaves behind": lambda net, data: 0 * net(data) + net.values(net.stack(net.seen)),
    "a list's slices": lambda net, data: net.values(
        net.stack(
            net.named["a"](torch.tanh(net.layers[1:][0](torch.tanh(net.layers[:1][0](data)))))
            * net.scales["s"]
        )
    ),
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
    plain.load_state_dict(other, strict=False)
    expected = plain(data).square().sum() + 0.1 * plain.size
    expected.backward()
    found = torch.func.grad(lambda v: problem.lower(x, v))(other)
    torch.testing.assert_close(problem.lower(x, other), expected)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
    many = {name: torch.stack([value, 2 * value]) for name, value in other.items()}
    rows = torch.func.vmap(lambda v: problem.lower(x, v))(many)
    torch.testing.assert_close(rows[0], expected)


@pytest.mark.parametrize(
    "name", ["state_dict", "eval", "train", "zero_grad", "to", "buffers", "get_parameter"]
)
def test_what_would_reach_past_the_run_is_refused_by_name(name: str) -> None:
    view = view_of(Net())
    with pytest.raises(InvalidInput, match=rf"\.{name}\(\).*use parameters\(\)"):
        getattr(view, name)


def test_containers_have_their_length_and_keys() -> None:
    view = view_of(Net())
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


def test_tied_weights_are_one_parameter_and_second_names_find_it() -> None:
    view = view_of(Net())
    assert {name for name, _ in view.named_parameters()} == set(dict(Net().named_parameters()))
    assert view.tied.weight is view.values.weight
    assert [name for name, _ in view.tied.named_parameters("t")] == ["t.weight", "t.bias"]
    assert [name for name, _ in view.named_parameters(recurse=False)] == []


def set_a_flag(view: View) -> None:
    view.training = False


def delete_a_part(view: View) -> None:
    del view.values


#: what a loss may try with a module, and words of the error
TRIED = {
    "a copy": (copy.deepcopy, "copies a module.*before Problem.from_modules"),
    "a flat copy": (copy.copy, "copies a module"),
    "to set an attribute": (set_a_flag, "sets .training of a module"),
    "to delete one": (delete_a_part, "sets .values of a module"),
    "a functional call": (
        lambda view: torch.func.functional_call(view, {}, torch.ones(1, 3)),
        r"named_buffers\(\)",
    ),
}


@pytest.mark.parametrize("way", TRIED)
def test_what_no_run_would_keep_is_refused(way: str) -> None:
    attempt, words = TRIED[way]
    with pytest.raises(InvalidInput, match=words):
        attempt(view_of(Net()))


def test_a_hooks_weight_is_made_of_the_tensors_of_the_run() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        net = nn.utils.weight_norm(nn.Linear(3, 1))
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=net,
        lower=lambda up, low: low.weight.square().sum(),  # before any call
        upper=[lambda up, low: low.weight.sum(), lambda up, low: up.weight.sum()],
    )
    moved = {name: value + 1 for name, value in y.items()}
    weight = moved["weight_g"] * nn.functional.normalize(moved["weight_v"], dim=1)
    torch.testing.assert_close(problem.lower(x, moved), weight.square().sum())


class Leaving(nn.Module):
    """A module that leaves a penalty behind in an attribute, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 1)
        self.penalty: Any = torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        self.penalty = self.part.weight.square().sum()
        return self.part(inputs)


def leaving(early: bool) -> tuple[bp.Problem, Any, Any]:
    def lower(up: Any, low: Any) -> Tensor:
        before = low.penalty
        value = low(torch.ones(2, 3)).square().sum()
        return value + (before if early else low.penalty)

    return bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=Leaving(),
        lower=lower,
        upper=[lambda up, low: low.part.weight.sum() * up.weight.sum()] * 2,
    )


def test_what_a_call_leaves_behind_belongs_to_one_evaluation() -> None:
    problem, x, y = leaving(early=False)
    assert problem.check(x, y) == 2
    skeleton = problem._calls._y.skeleton  # type: ignore[attr-defined]
    for point in (y, {name: 2 * value for name, value in y.items()}):
        weight, bias = point["part.weight"], point["part.bias"]
        expected = 2 * (weight.sum() + bias).square().sum() + weight.square().sum()
        torch.testing.assert_close(problem.lower(x, point), expected)
        torch.func.vmap(torch.func.grad(lambda v: problem.lower(x, v)))(
            {name: value[None] for name, value in point.items()}
        )
        assert float(skeleton.penalty) == 0


def test_what_an_earlier_call_left_behind_is_refused() -> None:
    problem, x, y = leaving(early=True)
    with pytest.raises(InvalidInput, match=r"lower was .* and then .* at the same x and y"):
        problem.check(x, y)


UPPER = [lambda up, low: low.weight.sum() * up.weight.sum()] * 2


def around(parameter: bool) -> tuple[bp.Problem, Any, Any]:
    """A problem whose lower loss uses a module that was not given."""
    features = nn.Linear(3, 3).requires_grad_(parameter)
    return bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=nn.Linear(3, 1),
        lower=lambda up, low: low(features(torch.ones(2, 3))).square().sum(),
        upper=UPPER,
    )


def test_a_module_from_around_a_loss_is_named_where_it_looks_trained() -> None:
    problem, x, y = around(parameter=True)
    with pytest.warns(BiparetoWarning, match=r"lower uses features\.\w+, .*requires_grad_"):
        assert problem.check(x, y) == 2
    problem, x, y = around(parameter=False)
    assert problem.check(x, y) == 2


def slope_by_autograd(low: Any) -> Tensor:
    inputs = torch.ones(2, 3, requires_grad=True)
    return torch.autograd.grad(low(inputs).tanh().sum(), inputs, create_graph=True)[0]


def slope_by_func(low: Any) -> Tensor:
    slope: Tensor = torch.func.grad(lambda inputs: low(inputs).tanh().sum())(torch.ones(2, 3))
    return slope


@pytest.mark.parametrize("slope", [slope_by_autograd, slope_by_func])
def test_a_loss_may_differentiate_by_its_inputs(slope: Any) -> None:
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=nn.Linear(3, 1),
        lower=lambda up, low: slope(low).square().sum() + (low.weight * up.weight).square().sum(),
        upper=UPPER,
    )
    if slope is slope_by_func:
        assert problem.check(x, y) == 2
    else:
        with pytest.raises(InvalidInput, match=r"lower differentiates inside.*torch\.func\.grad"):
            problem.check(x, y)


@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize("entry", ["check", "check_pure"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_module_itself_in_place_of_the_argument_is_refused(
    side: str, entry: str, wrapped: bool
) -> None:
    modules = {"x": nn.Linear(1, 1), "y": nn.Linear(3, 1)}
    inner, outer = modules["y"], modules["x"]

    def lower(up: Any, low: Any) -> Tensor:
        held = up if side == "y" else outer, low if side == "x" else inner
        value: Tensor = held[0](held[1](torch.ones(2, 3))).square().sum()
        return value + low.weight.square().sum()

    problem, x, y = bp.Problem.from_modules(**modules, lower=lower, upper=UPPER)
    with pytest.raises(InvalidInput, match=f"lower uses .* of the module that was given as {side}"):
        getattr(Counting(problem) if wrapped else problem, entry)(x, y)


def test_unknown_submodules_are_named() -> None:
    """Modules in a plain list are no part of a module to PyTorch."""
    net = nn.Sequential(nn.Linear(3, 1))
    net.hidden = [nn.Linear(3, 3)]  # type: ignore[assignment]
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=net,
        lower=lambda up, low: low(low.hidden[0](torch.ones(2, 3))).square().sum(),
        upper=[lambda up, low: low[0].weight.sum() * up.weight.sum()] * 2,
    )
    with pytest.warns(BiparetoWarning, match="use nn.ModuleList"):
        problem.check(x, y)


def test_submodules_are_found_by_their_kind() -> None:
    """A weight decay on linear layers only, say."""
    net = Net()
    view = view_of(net)
    kinds = [
        [path for path, part in one.named_modules() if isinstance(part, nn.Linear)]
        for one in (net, view)
    ]
    assert kinds[0] == kinds[1] != []
    assert isinstance(view, Net)
    assert view.get_submodule("stack.0").weight is view.stack[0].weight
    assert sum(isinstance(part, nn.Linear) for part in view.stack) == 2
    chain = nn.Sequential(*view.stack.children())
    torch.testing.assert_close(chain(torch.ones(2, 2)), net.stack(torch.ones(2, 2)))
    assert len(list(view.modules())) == len(list(net.modules()))


def test_a_loss_that_asks_for_kinds_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=nn.Sequential(nn.Linear(3, 1), nn.Tanh()),
        lower=lambda up, low: sum(
            part.weight.square().sum() for part in low if isinstance(part, nn.Linear)
        ),
        upper=[lambda up, low: (low(torch.ones(1, 3)) * up.weight).sum()] * 2,
    )
    plain = problem.lower(x, y)
    assert plain == y["0.weight"].square().sum()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(InvalidInput, match="asks for the kind of a module"):
        problem.lower(x, y)


class Clamping(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-9, 9)
        return super().forward(inputs)


def test_a_write_that_changes_nothing_yet_is_refused() -> None:
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=Clamping(3, 1),
        lower=lambda up, low: low(torch.ones(2, 3)).square().sum(),
        upper=UPPER,
    )
    with pytest.raises(InvalidInput, match=r"lower writes to y\['weight'\]"):
        problem.check(x, y)


def test_slices_are_told_apart() -> None:
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    trained = {name: i + torch.zeros_like(p) for i, (name, p) in enumerate(net.named_parameters())}
    view = View(net, Slots(net, dict(net.named_parameters())), trained)
    for i in range(8):  # slices live shortly, and one may have the place of another
        expected = trained[f"{i}.weight"].sum(1) + trained[f"{i}.bias"]
        torch.testing.assert_close(view[i : i + 1](torch.ones(2)), expected)
    assert len(view._slots._places) == 1


def test_a_parameter_in_a_dict_that_the_forward_uses_is_refused() -> None:
    class Keeping(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.kept = {"weight": self.weight}

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ self.kept["weight"].T + self.bias

    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=Keeping(),
        lower=lambda up, low: low(torch.ones(2, 3)).square().sum(),
        upper=UPPER,
    )
    with pytest.raises(InvalidInput, match=r"uses weight of y by something.*nn\.ParameterList"):
        problem.check(x, y)


def test_a_copy_of_a_problem_is_one() -> None:
    problem, x, y = leaving(early=False)
    problem.check(x, y)
    other = copy.deepcopy(problem)
    assert other.check(x, y) == 2
    assert other.lower(x, y) == problem.lower(x, y)


class Growing(nn.Linear):
    """A module that leaves something behind that was not there before."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = super().forward(inputs)
        return self.seen


def test_what_was_not_there_before_is_not_there_in_a_copy_either() -> None:
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1),
        y=Growing(3, 1),
        lower=lambda up, low: low(torch.ones(2, 3)).square().sum(),
        upper=UPPER,
    )
    problem.check(x, y)
    other = copy.deepcopy(problem)
    for one in (problem, other):
        one.lower(x, y)
        assert not hasattr(one._calls._y.skeleton, "seen")  # type: ignore[attr-defined]
