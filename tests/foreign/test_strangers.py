"""Other people's networks are well-posed, and the default takes all of them."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.problem import tree
from bipareto.run.training import objectives_of, train
from foreign.networks import NETWORKS, Network

pytestmark = pytest.mark.filterwarnings("ignore:the dropout inside", "ignore:objective 1 does not")

#: prompt takes a while to look at
SLOW = [pytest.param(n, marks=pytest.mark.slow if n == "prompt" else ()) for n in NETWORKS]


@pytest.fixture(scope="module", params=SLOW)
def case(request: pytest.FixtureRequest) -> Network:
    return NETWORKS[request.param](0)


def test_networks_are_what_their_judge_takes_them_for(case: Network) -> None:
    """Objectives of the problem are the plain functions' at the modules as they were given: batch
    statistics as in training, and nothing dropped.
    """
    normed = any("BatchNorm" in type(layer).__name__ for layer in case.y.modules())
    case.y.train(normed)
    f = [loss(case.x, case.y, rows) for loss, rows in zip(case.upper, case.valid, strict=True)]
    full = case.problem.batch("upper", "full")
    torch.testing.assert_close(case.problem.upper(case.x0, case.y0, full), torch.stack(f).detach())


@pytest.mark.filterwarnings("ignore:the budget of")  # too small for a race: the rules are taken
@pytest.mark.filterwarnings("ignore:.*not converged")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch, of multi_margin_loss
def test_the_default_takes_every_network(case: Network) -> None:
    """And does not ask of a network that its lower level be solved exactly."""
    front = bp.front(
        case.problem, case.x0, case.y0, preferences=bp.preferences.grid(len(case.upper), 2),
        steps=3, progress=False, compile=False,
    )  # fmt: skip
    assert front.objectives.isfinite().all()
    front[0].write_back(case.x, case.y)


@pytest.mark.parametrize("name", ["sensors", "distil"])
@pytest.mark.filterwarnings(
    "ignore:.*not converged", "ignore:.*are dominated", "ignore:all 4 preferences"
)
def test_the_default_is_no_worse_than_x0(name: str) -> None:
    case = NETWORKS[name](0)
    problem, x0, y0 = case.problem, case.x0, case.y0
    w = bp.preferences.grid(2, 4)
    front = bp.front(problem, x0, y0, preferences=w, steps=120, progress=False, compile=False)
    race = front.race
    assert race is not None
    x, y = tree.expand(x0, 1), tree.expand(y0, 1)
    y = train(problem, x, y, rate=race.rate, steps=race.training)
    nothing = objectives_of(problem, x, y, problem.batch("upper", "full"))
    better = race.units.value(front.objectives, w) <= race.units.value(nothing, w) + 1e-6
    assert better.all()
