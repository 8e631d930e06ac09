"""The default for data in batches: its budget, an honest y, x0 as a rival, the refining model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts import networks
from bipareto.fronts.networks import _trained_on, no_worse_than_nothing, warn_of_one_answer
from bipareto.fronts.refine import fit, propose
from bipareto.problem import tree
from bipareto.problem.oracle import Counting
from bipareto.run import arrival
from bipareto.run.budget import plan_of
from bipareto.run.race import race
from bipareto.run.training import objectives_of, train
from bipareto.run.units import Units

ROWS = torch.randn(90, 3, generator=torch.Generator().manual_seed(1))
FIRST, SECOND = ROWS @ torch.tensor([1.0, 2.0, 0.0]), ROWS @ torch.tensor([-1.0, 0.5, 1.0])


def mixing(size: int = 15) -> tuple[bp.Problem, Tensor, Tensor]:
    """x mixes two tasks that one linear model y cannot both do; f_i is the error on task i."""

    def lower(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        rows, first, second = batch
        w = x.softmax(0)
        return (
            w[0] * (rows @ y - first).square().mean() + w[1] * (rows @ y - second).square().mean()
        )

    def upper(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        rows, first, second = batch
        return torch.stack(
            [(rows @ y - first).square().mean(), (rows @ y - second).square().mean()]
        )

    data = (ROWS, FIRST, SECOND)
    sampler = bp.sampler.Minibatches(lower=data, upper=data, size=size)
    return bp.Problem(upper, lower, sampler=sampler), torch.zeros(2), torch.zeros(3)


@pytest.fixture(scope="module")
def solved() -> tuple[Counting, bp.ParetoFront]:
    problem, x0, y0 = mixing()
    counted = Counting(problem)
    w = bp.preferences.grid(2, 5)[1:-1]
    return counted, bp.front(counted, x0, y0, preferences=w, steps=300, progress=False)


def test_preferences_are_followed_without_a_hyperparameter(
    solved: tuple[Counting, bp.ParetoFront],
) -> None:
    _, front = solved
    order = front.preference[:, 0].argsort()
    f = front.objectives[order]
    assert f[0, 0] > f[1, 0] > f[2, 0]
    assert f[0, 1] < f[1, 1] < f[2, 1]
    assert front.race is not None
    assert front.race.share <= 0.25


def test_the_budget_is_that_of_mb_momeha(solved: tuple[Counting, bp.ParetoFront]) -> None:
    counted, front = solved
    per_step = sum(bp.MBMOMEHA().oracles(2).values())
    # What vmap evaluates once serves all runs of a batch, so evaluations are a lower bound only;
    # the plan's own sum is what must hold.
    assert front.race is not None
    spent = front.race.gradients + sum(front.run.steps) * sum(front.method.oracles(2).values())  # type: ignore[union-attr]
    assert spent <= 3 * 300 * per_step
    assert counted.counts["lower"] > 0


def test_the_returned_y_was_trained_on_g_alone(solved: tuple[Counting, bp.ParetoFront]) -> None:
    _, front = solved
    assert front.race is not None
    problem, _, y0 = mixing()
    rate, steps = front.race.rate, front.race.training
    missing = set(range(len(front)))
    for seed in range(20):  # each round of trainings has draws of its own
        ways = [train(problem, front.x, tree.expand(y0, 3), rate=rate, steps=steps, seed=seed)]
        for k in range(front.race.longer):  # trained on, or not
            ways += [
                train(problem, front.x, y, rate=rate, steps=steps, seed=k + 1) for y in ways[:]
            ]
        for y in ways:
            missing -= {r for r in missing if torch.allclose(y[r], front.y[r], atol=1e-4)}
        if not missing:
            return
    assert not missing


def test_answers_are_trained_on_while_that_helps() -> None:
    problem, _, y0 = mixing()
    x, w = torch.tensor([[0.0, 0.0], [0.2, 0.0]]), torch.full((2, 2), 0.5).double()
    raced = replace(race(problem, x[0], y0, plan_of(x[0], 2, 2, 300)), training=10, rate=0.1)
    start = train(problem, x, tree.expand(y0, 2), rate=0.1, steps=10)
    units = Units.plain(2)

    def value(y: Tensor) -> Tensor:
        return units.value(objectives_of(problem, x, y, problem.batch("upper", "full")), w)

    y, rounds = _trained_on(problem, x, start, w, raced, units, [0], 2)
    assert rounds == 2
    assert bool((value(y) < 0.9 * value(start)).all())
    # Of the 200 rounds that are allowed it takes those that help, and keeps what is best.
    best, rounds = _trained_on(problem, x, start, w, raced, units, [0], 200)
    assert 2 <= rounds < 200
    assert bool((value(best) <= value(y)).all())
    # Where a round makes it worse, the y from before stays.
    spoilt = replace(raced, rate=30.0)
    kept, rounds = _trained_on(problem, x, best, w, spoilt, units, [0], 2)
    assert rounds == 1
    assert torch.equal(kept, best)


@pytest.mark.filterwarnings("ignore:x0, with y trained alike")  # where a run ends worse
def test_a_level_does_not_decide_for_every_preference() -> None:
    """With 1000 + f_2 every preference would take the point where f_2 is least."""
    problem, x0, y0 = mixing()
    level = torch.tensor([0.0, 1000.0])
    raised = bp.Problem(
        lambda x, y, b: level + problem.upper(x, y, b), problem.lower, sampler=problem.sampler
    )
    w = [[0.8, 0.2], [0.5, 0.5], [0.2, 0.8]]
    f = bp.front(raised, x0, y0, preferences=w, steps=300, progress=False).objectives
    assert f[0, 0] < f[1, 0] < f[2, 0]
    assert f[0, 1] > f[1, 1] > f[2, 1]


def test_one_answer_for_all_preferences_is_said(solved: tuple[Counting, bp.ParetoFront]) -> None:
    race = solved[1].race
    assert race is not None
    one = torch.tensor([[700.0, 30.0], [701.0, 30.1], [702.0, 30.0]])
    with pytest.warns(BiparetoWarning, match=r"all 3 preferences.*objective 0 \(about 7e\+02\)"):
        warn_of_one_answer(one, race)
    with pytest.warns(BiparetoWarning, match="all 3 preferences.*more steps"):
        warn_of_one_answer(one / one[0], race)
    measured = replace(race, units=race.units._replace(extent=one[0].double()))
    with pytest.warns(BiparetoWarning, match="all 3 preferences.*more steps"):  # not their sizes
        warn_of_one_answer(one, measured)
    warn_of_one_answer(one * torch.tensor([[1.0], [1.02], [1.0]]), race)  # one of them differs
    warn_of_one_answer(one[:1], race)


def test_x0_takes_the_place_of_worse_answers_and_says_so(
    solved: tuple[Counting, bp.ParetoFront],
) -> None:
    _, front = solved
    assert front.race is not None
    problem, x0, _ = mixing()
    # The answer to the opposite preference is worse than doing nothing for the first run.
    x, y = (torch.stack([value[2], value[2]]) for value in (front.x, front.y))
    w = front.preference[[0, 2]]
    with pytest.warns(BiparetoWarning, match=r"1 of 2 runs \(\[0\]\), and is returned"):
        kept_x, kept_y, stayed = no_worse_than_nothing(problem, x, y, w, front.race, Units.plain(2))
    assert torch.equal(kept_x, torch.stack([x0, x[1]]))
    assert torch.equal(kept_y[1], y[1])
    assert stayed == (0,)
    assert "x0 is returned for runs [0]" in str(replace(front.race, stayed=stayed))
    # For one of three x0 may simply be best: kept, and no warning.
    x, y, w = (torch.cat([value, value[1:]]) for value in (x, y, w))
    kept_x, _, stayed = no_worse_than_nothing(problem, x, y, w, front.race, Units.plain(2))
    assert torch.equal(kept_x[0], x0)
    assert stayed == (0,)
    w = front.preference[[0, 2]]
    # So is an answer that is x0 by itself: a run that did not move, or the race's training there.
    still = x0.expand(2, 2)
    y = front.race.y[-1:].expand(2, 3)
    with pytest.warns(BiparetoWarning, match="x0, with y trained alike"):
        *_, stayed = no_worse_than_nothing(problem, still, y, w, front.race, Units.plain(2))
    assert stayed == (0, 1)
    # Where another run has the better answer, that one is taken, and nothing is said.
    x, y = (torch.stack([value[2], value[0]]) for value in (front.x, front.y))
    kept_x, _, _ = no_worse_than_nothing(problem, x, y, w[[0, 0]], front.race, Units.plain(2))
    assert torch.equal(kept_x, torch.stack([x[1], x[1]]))
    # So may a candidate of the race, here the answer to the first preference in its place.
    better = replace(
        front.race,
        x=torch.cat([front.x[:1], front.race.x[-1:]]),
        y=torch.cat([front.y[:1], front.race.y[-1:]]),
    )
    kept_x, _, _ = no_worse_than_nothing(
        problem, front.x[2:], front.y[2:], w[:1], better, Units.plain(2)
    )
    assert torch.equal(kept_x, front.x[:1])


def test_preferences_are_followed_where_objectives_are_negative() -> None:
    """A log density is negative as often as not, and with an ideal point of zero preferences work
    the wrong way round there: who asks for more of an objective had less of it.
    """
    problem, _, y0 = mixing()
    w = [[0.8, 0.2], [0.2, 0.8]]

    def lowered(level: float) -> bp.Problem:
        return bp.Problem(
            lambda x, y, b: problem.upper(x, y, b) - level,
            lambda x, y, b: problem.lower(x.reshape(2, -1).mean(1), y, b),
            sampler=problem.sampler,
        )

    for copies in (1, 15):  # few coordinates and many
        start = torch.zeros(2 * copies)
        with warnings.catch_warnings():
            warnings.simplefilter("error", BiparetoWarning)
            front = bp.front(lowered(20.0), start, y0, preferences=w, steps=300)
        assert (front.objectives < 0).all()
        assert front.objectives[0, 0] < front.objectives[1, 0]
        assert front.objectives[0, 1] > front.objectives[1, 1]


def test_objectives_that_fall_below_the_ideal_point_are_warned_of() -> None:
    with pytest.warns(BiparetoWarning, match=r"objective 1 \(-3\) fell below .* \(0, -2\)"):
        networks.warn_below_ideal(
            torch.tensor([[1.0, -3.0], [2.0, 0.0]]), torch.tensor([0.0, -2.0]).double()
        )


@pytest.mark.filterwarnings("ignore:x0, with y trained alike")
def test_runs_that_leave_the_finite_numbers_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are trained ones, but nothing of the search for x has worked; nor is one answer
    for all preferences returned without a word.
    """
    monkeypatch.setattr(networks, "ALIKE", 1e9)  # any two
    problem, x0, y0 = mixing()

    def broken(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        size = torch.where(x.abs() > 0, x.abs().sqrt(), x)  # its gradient at zero is NaN
        return problem.upper(x, y, batch) + size.sum()

    other = bp.Problem(broken, problem.lower, sampler=problem.sampler)
    w = [[0.3, 0.7], [0.7, 0.3]]
    left, alike = "2 of 2 runs left the finite .*was trained and judge", "all 2 preferences"
    with pytest.warns(BiparetoWarning, match=left), pytest.warns(BiparetoWarning, match=alike):
        front = bp.front(other, x0, y0, preferences=w, steps=200, progress=False)
    assert bool(torch.isfinite(front.objectives).all())
    assert front.reason == ("nonfinite", "nonfinite")


def test_ctrl_c_keeps_what_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the trainings that a model proposes, and in the look at the answers."""
    problem, x0, y0 = mixing()
    calls, proposed = 0, propose

    def pressed(*args: Any, **options: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return proposed(*args, **options)

    monkeypatch.setattr(networks, "propose", pressed)
    w = [[0.3, 0.7], [0.7, 0.3]]
    front = bp.front(problem, x0, y0, preferences=w, steps=200, progress=False)
    assert calls == 3
    assert front.interrupted
    assert front.race is not None
    assert front.objectives[0, 1] < front.race.objectives[-1, 1]
    assert front.objectives[1, 0] < front.race.objectives[-1, 0]

    def stopped(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arrival, "_look", stopped)
    with pytest.warns(BiparetoWarning, match="the look was interrupted"):
        front = bp.front(problem, x0, y0, preferences=w, steps=200, progress=False)
    assert not front.interrupted
    assert front.unseen == "the look was interrupted"


def test_with_many_coordinates_half_of_the_way_is_tried_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, _, y0 = mixing()
    tried: list[tuple[Tensor, Tensor]] = []

    def noted(problem: bp.Problem, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        tried.append((x, train(problem, x, y, **options)))
        return tried[-1][1]

    monkeypatch.setattr(networks, "train", noted)
    w = torch.tensor([[0.3, 0.7], [0.7, 0.3]])
    front = bp.front(problem, torch.zeros(22), y0, preferences=w, steps=300, progress=False)
    assert front.race is not None
    judged = tried[-2 - front.race.longer :][:2]
    ends, halves = (x for x, _ in judged)
    assert torch.allclose(halves, 0.5 * ends)
    full = problem.batch("upper", "full")
    units = Units.plain(2)
    best = torch.minimum(*(units.value(objectives_of(problem, *pair, full), w) for pair in judged))
    assert bool((units.value(front.objectives, w) <= best + 1e-6).all())
    trained = sum(len(x) for x, _ in tried) * front.race.training
    stepped = sum(front.run.steps) * sum(front.method.oracles(2).values())  # type: ignore[union-attr]
    assert front.race.gradients + stepped + trained <= 2 * 300 * 8


# Any scale of the layer before BatchNorm gives the same network: lower solutions are a surface, and
# rounding decides along which of its directions something is found to gain.
@pytest.mark.filterwarnings("ignore:.* not converged")
def test_modules_need_no_hyperparameter() -> None:
    torch.manual_seed(0)
    net_x, net_y = (
        nn.Linear(3, 1),
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
    )
    data = DataLoader(TensorDataset(ROWS, FIRST, SECOND), 30, shuffle=True)

    def training(x: nn.Module, y: nn.Module, batch: list[Tensor]) -> Tensor:
        share = x(batch[0]).flatten().sigmoid()
        out = y(batch[0]).flatten()
        return (share * (out - batch[1]).square() + (1 - share) * (out - batch[2]).square()).mean()

    problem, x0, y0 = bp.Problem.from_modules(
        x=net_x,
        y=net_y,
        lower=training,
        lower_data=data,
        upper=[
            lambda x, y, b: (y(b[0]).flatten() - b[1]).square().mean(),
            lambda x, y, b: (y(b[0]).flatten() - b[2]).square().mean(),
        ],
        upper_data=data,
        test_data=DataLoader(TensorDataset(ROWS[:9], FIRST[:9], SECOND[:9]), 9),
    )
    front = bp.front(
        problem, x0, y0, preferences=[[0.2, 0.8], [0.8, 0.2]], steps=150, progress=False
    )

    def exact(x: dict[str, Tensor]) -> Tensor:
        """f at (x, y*(x)): the network is affine in its input, and so is what g is least for."""
        rows = torch.cat([ROWS, torch.ones(len(ROWS), 1)], 1)
        share = torch.func.functional_call(net_x, x, ROWS).sigmoid()[:, 0]
        target = share * FIRST + (1 - share) * SECOND
        out = rows @ torch.linalg.lstsq(rows, target[:, None]).solution[:, 0]
        return torch.stack([(out - FIRST).square().mean(), (out - SECOND).square().mean()])

    ends = torch.stack([exact(front.point(i)[0]) for i in range(2)])
    assert ends[0, 1] < 0.5 * exact(x0)[1]
    assert ends[1, 0] < 0.5 * exact(x0)[0]
    assert front.test is not None
    expected = problem.upper(front.point(1)[0], front.point(1)[1], problem.batch("test", "full"))
    torch.testing.assert_close(front.test[1], expected.detach())
    front[0].write_back(net_x, net_y)
    with torch.no_grad():
        assert torch.isfinite(net_y(ROWS)).all()


def test_resolving_trains_on_until_g_stops_falling(solved: tuple[Counting, bp.ParetoFront]) -> None:
    _, front = solved
    resolved = front.resolve_lower()
    problem, _, _ = mixing()
    full = problem.batch("lower", "full")
    for i in range(len(front)):
        before, after = (problem.lower(*f.point(i), full) for f in (front, resolved))
        assert after <= before
        least = torch.linalg.lstsq(
            ROWS, (front.x[i].softmax(0)[:, None] * torch.stack([FIRST, SECOND])).sum(0)
        ).solution
        assert after < 1.05 * problem.lower(front.x[i], least, full)
    assert torch.equal(tree.ravel(resolved.x), tree.ravel(front.x))


def test_the_model_learns_a_bowl_and_proposes_its_bottom() -> None:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=stream, dtype=torch.float64)
    bottoms = torch.tensor([[0.5, 0.0], [-0.5, 0.3]], dtype=torch.float64)

    def bowls(points: Tensor) -> Tensor:
        return (points[:, None] - bottoms).square().sum(-1)

    model = fit(x, bowls(x) + 0.01 * torch.randn(40, 2, generator=stream))
    assert (model.expected() - bowls(x)).abs().median() < 0.05
    w = torch.tensor([[0.95, 0.05], [0.05, 0.95]], dtype=torch.float64)
    plain = Units.plain(2)
    chosen = propose(model, w, plain, stream)
    assert bowls(chosen)[0, 0] < 0.3
    assert bowls(chosen)[1, 1] < 0.3
    # By its mean it goes to the bottom itself; equal weights end between the two.
    assert bowls(propose(model, w, plain, stream, greedy=True)).diagonal().max() < 0.02
    between = propose(model, torch.full((1, 2), 0.5), plain, stream, greedy=True)
    assert (between - bottoms.mean(0)).norm() < 0.15


def modules(**others: Any) -> tuple[bp.Problem, Any, Any]:
    """x weighs rows, y is a linear model; a part of it can be replaced."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(ROWS, FIRST, SECOND), 30, shuffle=True)

    def error(y: nn.Module, rows: Tensor, target: Tensor) -> Tensor:
        return (y(rows).flatten() - target).square()

    usual: dict[str, Any] = {
        "x": nn.Linear(3, 1),
        "y": nn.Linear(3, 1),
        "lower": lambda x, y, b: (
            (x(b[0]).flatten().sigmoid() * error(y, b[0], b[1])).mean()
            + error(y, b[0], b[2]).mean()
        ),
        "upper": [
            lambda x, y, b: error(y, b[0], b[1]).mean(),
            lambda x, y, b: error(y, b[0], b[2]).mean(),
        ],
        "lower_data": data,
        "upper_data": data,
    }
    return bp.Problem.from_modules(**usual | others)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"upper_data": DataLoader(TensorDataset(ROWS[:4]), 10, drop_last=True)}, "no batches"),
        ({"y": nn.Linear(3, 1).requires_grad_(False)}, "not all of them frozen"),
        (
            {"upper": [lambda x, y, b: y(b[0]).square().mean(), lambda x, y, b: b[1].mean()]},
            "objective 1 depends neither on x nor on y",
        ),
    ],
)
def test_what_cannot_be_raced_is_refused(others: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        bp.front(*modules(**others), preferences=[[0.5, 0.5]], steps=150, progress=False)


def test_mixed_precision_and_accumulated_gradients_race_too() -> None:
    """A loss may go through its batch piece by piece; under autocast variables stay float32."""

    def in_pieces(x: nn.Module, y: nn.Module, batch: list[Tensor]) -> Tensor:
        parts = zip(*(part.chunk(2) for part in batch), strict=True)
        values = [(y(r).flatten() - x(r).flatten() - a).square().mean() for r, a, _ in parts]
        return torch.stack(values).mean()

    problem, x0, y0 = modules(lower=in_pieces, autocast=torch.bfloat16)
    with pytest.warns(BiparetoWarning, match="mixed precision"):  # arrival was not looked at
        front = bp.front(problem, x0, y0, preferences=[[0.5, 0.5]], steps=280, progress=False)
    assert front.race is not None
    assert tree.first_leaf(front.y).dtype == torch.float32
    assert torch.isfinite(front.objectives).all()


def test_a_schedule_of_y_can_be_given() -> None:
    problem, x0, y0 = mixing()
    method = bp.Twin(alpha_y=bp.schedule.Power(0.1, -0.5), alpha_x=0.01)
    answer = bp.solve(problem, x0, y0, method=method, steps=60, progress=False)
    assert torch.isfinite(answer.objectives).all()
    assert answer.race is None


def test_the_leak_is_told() -> None:
    """The objectives at the returned y, after training on g, and on held-out data."""
    problem, x0, y0 = modules(
        test_data=DataLoader(TensorDataset(ROWS[:9], FIRST[:9], SECOND[:9]), 9)
    )
    raw = bp.front(
        problem, x0, y0, preferences=[[0.5, 0.5]], method=bp.MBMOMEHA(), steps=20, progress=False
    )
    front = raw.resolve_lower()
    assert front.own is not None
    assert front.test is not None
    assert torch.equal(front.own, raw.objectives)
    told = front.leak
    assert torch.equal(told.objectives, front.objectives.mean(0))
    assert [line[:15].strip() for line in str(told).splitlines()] == [
        "y as returned", "y trained on g", "held-out data",
    ]  # fmt: skip
    assert torch.equal(front[0].leak.test, front.test[0])  # type: ignore[arg-type]
    assert {"own1", "own2", "test1", "test2"} <= set(front.columns())
