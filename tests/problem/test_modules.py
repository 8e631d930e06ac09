"""Problems made of modules: what the losses see, what stays pure, and what is written back."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import bipareto as bp
from bipareto.certificate.remaining import unseeable
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from bipareto.problem.layers import NO_DROPOUT, KeyedDropout, mixed
from bipareto.problem.oracle import Counting

DATA = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2
METHOD = bp.MOMEHA(gamma=0.5, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, c=2.0)


def net(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), *middle, nn.Tanh(), nn.Linear(6, 2))


def weighted(x: Any, y: Any, batch: Any) -> Tensor:
    weight = x(batch[0]).squeeze(-1).sigmoid()
    return (weight * F.cross_entropy(y(batch[0]), batch[1], reduction="none")).mean() + 0.01 * sum(
        p.square().sum() for p in y.parameters()
    )


def plain(x: Any, y: Any, batch: Any) -> Tensor:
    return F.cross_entropy(y(batch[0]), batch[1])


def turned(x: Any, y: Any, batch: Any) -> Tensor:
    return F.cross_entropy(y(-batch[0]), batch[1])


def make(y: nn.Module, x: nn.Module | None = None, **changes: Any) -> tuple[Any, Any, Any]:
    given = {
        "x": nn.Linear(3, 1) if x is None else x,
        "y": y,
        "upper": [plain, turned],
        "lower": weighted,
        "lower_data": DATA,
        "upper_data": DATA,
    }
    return bp.Problem.from_modules(**(given | changes))


def test_losses_are_those_of_the_modules() -> None:
    x, y = nn.Linear(3, 1), net()
    problem, x0, y0 = make(y, x)
    batch = problem.batch("lower", "lower")
    assert torch.equal(problem.lower(x0, y0, batch), weighted(x, y, DATA))
    assert torch.equal(
        problem.upper(x0, y0, batch), torch.stack([plain(x, y, DATA), turned(x, y, DATA)])
    )
    gradient = bp.oracle.grad(lambda v: problem.lower(x0, v, batch), y0)
    weighted(x, y, DATA).backward()
    for name, parameter in y.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad)


def test_submodules_and_parameters_are_the_runs_own() -> None:
    y = nn.Sequential()
    y.add_module("trunk", nn.Linear(3, 4))
    y.add_module("head", nn.Linear(4, 2))

    def by_parts(x: Any, y: Any, batch: Any) -> Tensor:
        return (
            F.cross_entropy(y.head(y.trunk(batch[0])), batch[1])
            + y.head.weight.sum()
            + x.weight.sum()
        )

    problem, x0, y0 = make(y, lower=by_parts)
    moved = {name: value + 1 for name, value in y0.items()}
    whole = problem.upper(x0, moved, DATA)[0] + moved["head.weight"].sum() + x0["weight"].sum()
    torch.testing.assert_close(problem.lower(x0, moved, DATA), whole)
    assert {name for name, _ in y.named_parameters()} == set(y0)


def test_frozen_parameters_are_no_variables() -> None:
    y = net()
    y[0].requires_grad_(False)
    _, _, y0 = make(y)
    assert set(y0) == {"2.weight", "2.bias"}
    with pytest.raises(InvalidInput, match=r"y is empty.*not all of them frozen"):
        make(y.requires_grad_(False))


def test_tensors_serve_as_x() -> None:
    x = torch.zeros(24)

    def lower(x: Tensor, y: Any, batch: Any) -> Tensor:
        return (x.sigmoid() * F.cross_entropy(y(batch[0]), batch[1], reduction="none")).mean()

    problem, x0, y0 = make(net(), x=x, lower=lower)
    assert torch.equal(x0, x)
    assert problem.check(x0, y0) == 2


class TestBatchNorm:
    def test_a_front_is_batched_and_leaves_the_modules_alone(self) -> None:
        x, y = nn.Linear(3, 1), net(nn.BatchNorm1d(6))
        before = copy.deepcopy([x.state_dict(), y.state_dict()])
        problem, x0, y0 = make(y, x)
        found = bp.front(
            problem, x0, y0, preferences=[[0.2, 0.8], [0.7, 0.3]], method=METHOD, steps=5
        )
        assert found.batched
        for i, w in enumerate(found.preference):
            alone = bp.solve(problem, x0, y0, preference=w, method=METHOD, steps=5)
            for name, value in alone.y.items():
                torch.testing.assert_close(found.y[name][i], value)
        for held, kept in zip([x.state_dict(), y.state_dict()], before, strict=True):
            assert all(torch.equal(value, kept[name]) for name, value in held.items())

    def test_the_batch_decides_the_statistics(self) -> None:
        y = net(nn.BatchNorm1d(6))
        problem, x0, y0 = make(y)
        torch.testing.assert_close(
            problem.upper(x0, y0, DATA)[0], plain(None, copy.deepcopy(y).train(), DATA)
        )

    def test_write_back_estimates_them_anew(self) -> None:
        x, y = nn.Linear(3, 1), net(nn.BatchNorm1d(6), nn.Dropout(0.5))
        y[1].running_mean += 100  # type: ignore[operator]
        problem, x0, y0 = make(y, x)
        found = bp.front(problem, x0, y0, preferences=[[0.5, 0.5]], method=METHOD, steps=5)
        found[0].write_back(x, y)
        for name, parameter in y.named_parameters():
            assert torch.equal(parameter, found.y[name][0])
        features = y[0](DATA[0])
        torch.testing.assert_close(y[1].running_mean, features.mean(0))
        torch.testing.assert_close(y[1].running_var, features.var(0))
        assert y.training
        assert y[1].training
        assert y[1].momentum == 0.1
        # In use (evaluation mode) the network now does what it did while solving.
        torch.testing.assert_close(
            plain(x, y.eval(), DATA),
            problem.upper(found[0].x, found[0].y, problem.batch("upper", "full"))[0],
            rtol=0.03,
            atol=0,
        )

    def test_a_loss_that_fails_meanwhile_leaves_the_modules_in_order(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x, y = nn.Linear(3, 1), net(nn.BatchNorm1d(6))
        problem, x0, y0 = make(y, x)
        found = bp.solve(problem, x0, y0, method=METHOD, steps=1)

        def failing(*_: Any) -> Tensor:
            raise RuntimeError("out of memory, say")

        monkeypatch.setattr(problem, "_lower", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            found.write_back(x, y)
        assert y.training
        assert y[1].momentum == 0.1

    def test_layers_that_only_the_upper_level_uses_see_its_data(self) -> None:
        x = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        y = net(nn.BatchNorm1d(6))

        def lower(x: Any, y: Any, batch: Any) -> Tensor:
            return plain(x, y, batch) + sum(p.square().sum() for p in x.parameters())

        def upper(x: Any, y: Any, batch: Any) -> Tensor:
            return torch.stack([x(batch[0]).exp().mean(), plain(x, y, batch)])

        other = (DATA[0] + 3, DATA[1])
        problem, x0, y0 = make(y, x, lower=lower, upper=upper, upper_data=other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiparetoWarning)  # the first objective does not use y
            bp.solve(problem, x0, y0, method=METHOD, steps=1).write_back(x, y)
        torch.testing.assert_close(x[1].running_mean, x[0](other[0]).mean(0))
        torch.testing.assert_close(y[1].running_mean, y[0](DATA[0]).mean(0))


class TestDropout:
    def test_masks_are_functions_of_role_step_and_seed(self) -> None:
        problem, x0, y0 = make(net(nn.Dropout(0.5)))
        draws = [
            problem.batch("lower", *where)
            for where in (
                ("theta", 3, 0),
                ("theta", 3, 0),
                ("theta", 4, 0),
                ("x", 3, 0),
                ("theta", 3, 1),
            )
        ]
        values = [float(problem.lower(x0, y0, draw)) for draw in draws]
        assert values[0] == values[1]
        assert len(set(values)) == 4

    def test_all_the_data_is_seen_without(self) -> None:
        y = net(nn.Dropout(0.5))
        problem, x0, y0 = make(y)
        assert torch.equal(
            problem.upper(x0, y0, problem.batch("upper", "full"))[0], plain(None, y.eval(), DATA)
        )

    def test_y_and_theta_share_a_mask(self) -> None:
        problem, x0, y0 = make(net(nn.Dropout(0.5)))
        at_y, at_theta = problem.lower_pair(x0, y0, y0, problem.batch("lower", "lower", 2))
        assert torch.equal(at_y, at_theta)
        assert not torch.equal(at_y, problem.lower(x0, y0, problem.batch("lower", "full")))

    def test_shares_and_means(self) -> None:
        layer = KeyedDropout(0.3, salt=5, channels=False)
        layer.key.fill_(1234567)
        out = layer(torch.ones(400, 500))
        assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
        assert float(out.mean()) == pytest.approx(1, abs=0.01)
        # Rows and columns look independent.
        kept = (out > 0).double()
        assert float((torch.corrcoef(kept[:100]) - torch.eye(100)).abs().max()) < 0.25
        channels = KeyedDropout(0.5, salt=5, channels=True)
        channels.key.fill_(99)
        by_channel = channels(torch.ones(40, 30, 4, 4))
        assert set(by_channel.flatten(2).mean(2).unique().tolist()) == {0.0, 2.0}
        layer.key.fill_(NO_DROPOUT)
        assert torch.equal(layer(out), out)

    def test_neighbouring_keys_give_unrelated_numbers(self) -> None:
        rows = torch.stack(
            [
                mixed(torch.tensor(key), salt, 500, torch.device("cpu")).double()
                for key in range(20)
                for salt in range(5)
            ]
        )
        assert float((torch.corrcoef(rows) - torch.eye(100)).abs().max()) < 0.25
        assert float(rows.mean()) / 2**31 == pytest.approx(0.5, abs=0.01)

    def test_preferences_of_one_seed_share_masks_and_seeds_do_not(self) -> None:
        problem, x0, y0 = make(net(nn.Dropout(0.5)))
        found = bp.front(
            problem,
            x0,
            y0,
            preferences=[[0.5, 0.5], [0.5, 0.5]],
            seeds=[0, 1],
            method=METHOD,
            steps=3,
        )
        y = found.y["0.weight"]
        torch.testing.assert_close(y[0], y[1])
        assert not torch.allclose(y[0], y[2])

    def test_evaluation_mode_switches_it_off(self) -> None:
        problem, x0, y0 = make(net(nn.Dropout(0.5)).eval())
        assert torch.equal(
            problem.lower(x0, y0, problem.batch("lower", "theta", 0)),
            problem.lower(x0, y0, problem.batch("lower", "theta", 1)),
        )

    def test_kinds_that_cannot_be_drawn_are_named(self) -> None:
        with pytest.warns(BiparetoWarning, match=r"1 \(AlphaDropout\) is switched off"):
            make(net(nn.AlphaDropout(0.5)))


class Shared(nn.Module):
    """A trunk that x owns, and a head of its own."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(4, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.trunk(rows).tanh())


class TestSharedTrunk:
    def test_parameters_in_both_belong_to_x(self) -> None:
        trunk = nn.Linear(3, 4)
        y = Shared(trunk)
        problem, x0, y0 = make(y, trunk, lower=plain)
        assert set(x0) == {"weight", "bias"}
        assert set(y0) == {"head.weight", "head.bias"}
        gradient = bp.oracle.grad(lambda v: problem.lower(v, y0, DATA), x0)
        plain(None, y, DATA).backward()
        torch.testing.assert_close(gradient["weight"], trunk.weight.grad)

    def test_an_answer_reaches_modules_that_do_not_share(self) -> None:
        trunk = nn.Linear(3, 4)
        problem, x0, y0 = make(Shared(trunk), trunk, lower=plain)
        found = bp.solve(problem, x0, y0, method=METHOD, steps=3)
        other_trunk, other = nn.Linear(3, 4), Shared(nn.Linear(3, 4))
        found.write_back(other_trunk, other)
        assert torch.equal(other.trunk.weight, found.x["weight"])  # type: ignore[arg-type]
        assert torch.equal(other_trunk.weight, found.x["weight"])

    def test_work_declared_as_shared_is_done_once_and_changes_nothing(self) -> None:
        calls = []

        def features(x: Any, batch: Any) -> Any:
            calls.append(1)
            return x(batch[0]).tanh(), batch[1]

        def head_loss(x: Any, y: Any, batch: Any) -> Tensor:
            return F.cross_entropy(y(batch[0]), batch[1])

        trunk, head = nn.Linear(3, 4), nn.Linear(4, 2)
        once, x0, y0 = make(
            head, trunk, lower=head_loss, upper=[head_loss, head_loss], shared=features
        )
        literal, *_ = make(
            head,
            trunk,
            lower=lambda x, y, b: plain(x, lambda v: y(x(v).tanh()), b),
            upper=[head_loss, head_loss],
        )
        theta = {name: value + 0.1 for name, value in y0.items()}
        calls.clear()
        pair = once.lower_pair(x0, y0, theta, DATA)
        assert len(calls) == 1
        for a, b in zip(pair, literal.lower_pair(x0, y0, theta, DATA), strict=True):
            torch.testing.assert_close(a, b)
        a, b = (
            bp.oracle.grad(lambda v, p=p: torch.stack(p.lower_pair(v, y0, theta, DATA)).sum(), x0)
            for p in (once, literal)
        )
        torch.testing.assert_close(a, b)


def test_mixed_precision_keeps_the_runs_dtype() -> None:
    y = net(nn.BatchNorm1d(6))
    torch.manual_seed(3)
    x = nn.Linear(3, 1)
    exact, x0, y0 = make(y, x)
    mixed, *_ = make(y, x, autocast=torch.bfloat16)
    seen = mixed.upper(x0, y0, DATA)
    assert seen.dtype == torch.float32
    assert not torch.equal(seen, exact.upper(x0, y0, DATA))
    torch.testing.assert_close(seen, exact.upper(x0, y0, DATA), rtol=0.02, atol=0.02)
    fronts = [
        bp.front(p, x0, y0, preferences=[[0.3, 0.7], [0.7, 0.3]], method=METHOD, steps=10)
        for p in (exact, mixed)
    ]
    assert fronts[1].batched
    assert tree.first_leaf(fronts[1].y).dtype == torch.float32
    why = unseeable(Counting(mixed), tree.expand(x0, 1), tree.expand(y0, 1))
    assert why is not None
    assert "mixed precision" in why
    torch.testing.assert_close(fronts[1].objectives, fronts[0].objectives, rtol=0.03, atol=0.03)


@pytest.mark.slow
def test_compiled_and_plain_fronts_agree() -> None:
    problem, x0, y0 = make(net(nn.BatchNorm1d(6), nn.Dropout(0.2)))
    plain_front, compiled = (
        bp.front(
            problem, x0, y0, preferences=[[0.3, 0.7], [0.7, 0.3]], method=METHOD, steps=4, compile=c
        )
        for c in (False, "aot_eager")
    )
    torch.testing.assert_close(compiled.objectives, plain_front.objectives, rtol=1e-4, atol=1e-5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"autocast": torch.float16}, "use torch.bfloat16"),
            ({"upper_data": None}, "lower_data was given but not upper_data"),
            ({"upper_data": [DATA] * 3}, "upper_data has 3 entries, but upper has 2"),
            ({"lower_data": "train"}, "lower_data is a str; pass a torch.utils.data.DataLoader"),
            (
                {"upper_data": (DataLoader([torch.ones(3)]),) * 2},
                "upper_data is a tuple; .* for each objective is a list",
            ),
        ],
    )
    def test_the_message_names_the_remedy(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            make(net(), **changes)

    def test_a_module_without_parameters_has_nothing_to_train(self) -> None:
        with pytest.raises(InvalidInput, match="y is empty"):
            make(nn.Tanh())

    def test_another_module_cannot_be_written(self) -> None:
        problem, x0, y0 = make(net())
        found = bp.solve(problem, x0, y0, method=METHOD, steps=1)
        with pytest.raises(
            InvalidInput, match=r"parameters .* that the module given for it does not have"
        ):
            found.write_back(nn.Linear(3, 1), nn.Linear(3, 1, bias=False))
        with pytest.raises(InvalidInput, match="has shape"):
            found.write_back(nn.Linear(4, 1), net())


def test_plain_problems_write_back_too() -> None:
    problem = bp.Problem(
        lambda x, y: torch.stack(
            [(x - 1).square().sum() + y.square().sum(), (y - x).square().sum()]
        ),
        lambda x, y: (y - x).square().sum(),
    )
    found = bp.solve(problem, torch.zeros(2), torch.zeros(2), method=METHOD, steps=5)
    x, y = torch.zeros(2), nn.Parameter(torch.zeros(2))
    found.write_back(x, y)
    assert torch.equal(x, found.x)
    assert torch.equal(y, found.y)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_values_of_recurrent_layers_are_batched_although_torch_has_no_rule_for_them(kind):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(3, 4, batch_first=True)

        def forward(self, batch):
            return self.layer(batch)[0].square().mean()

    data = torch.randn(5, 6, 3)
    problem, x, y = bp.Problem.from_modules(
        x=nn.Linear(1, 1), y=Net(), lower=lambda up, low: low(data) + up.weight.square().sum(),
        upper=[lambda up, low: low(data), lambda up, low: up.weight.sum() * low(data)],
    )  # fmt: skip
    xs, ys = (tree.map_(lambda v: torch.stack([v, 2 * v]), part) for part in (x, y))
    with torch.no_grad():
        f, g = torch.func.vmap(problem.upper)(xs, ys), torch.func.vmap(problem.lower)(xs, ys)
        for i in range(2):
            own = tree.select(xs, i), tree.select(ys, i)
            torch.testing.assert_close(f[i], problem.upper(*own))
            torch.testing.assert_close(g[i], problem.lower(*own))
