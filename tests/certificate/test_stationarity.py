"""epsilon-Pareto stationarity against closed forms and a grid."""

from __future__ import annotations

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from certificate.points import dense, numbers
from helpers import DOUBLE


def test_two_gradients_have_the_closed_form() -> None:
    for seed in range(10):
        a, b = numbers(2, 4, seed=seed)
        share = (((b - a) @ b) / (b - a).square().sum()).clamp(0, 1)
        found = bp.pareto_stationarity([a.tolist(), b.tolist()])
        assert found.epsilon == pytest.approx(float((share * a + (1 - share) * b).norm()))
        assert found.weights[0] == pytest.approx(float(share), abs=1e-9)


def test_constraints_take_away_what_they_forbid() -> None:
    """grad F = (1, 2, 3): an active h <= 0 with gradient -e_1 stops the first entry, +e_1 does not;
    an equality stops either way.
    """
    rows = [[1.0, 2.0, 3.0]]
    e = torch.eye(3, dtype=DOUBLE)
    stopped = bp.pareto_stationarity(rows, inequality=-e[:1], equality=e[2:])
    assert stopped.epsilon == pytest.approx(2.0)
    assert stopped.inequality.tolist() == pytest.approx([1.0])
    assert stopped.equality.tolist() == pytest.approx([-3.0])
    free = bp.pareto_stationarity(rows, inequality=e[:1])
    assert free.epsilon == pytest.approx(14**0.5)
    assert free.inequality.tolist() == [0.0]


def test_the_minimum_over_a_cone_is_that_of_a_grid() -> None:
    for seed in range(4):
        rows, cone = numbers(2, 3, seed=seed), numbers(2, 3, seed=seed + 50)
        found = bp.pareto_stationarity(rows, inequality=cone)
        t = torch.linspace(0, 1, 81, dtype=DOUBLE)
        mu = torch.linspace(0, 8, 81, dtype=DOUBLE)
        a, b, c = torch.meshgrid(t, mu, mu, indexing="ij")
        values = (
            a[..., None] * rows[0]
            + (1 - a)[..., None] * rows[1]
            + b[..., None] * cone[0]
            + c[..., None] * cone[1]
        ).norm(dim=-1)
        assert found.epsilon <= float(values.min()) + 1e-12
        assert found.epsilon >= float(values.min()) - 0.1
        reached = found.weights @ rows + found.inequality @ cone
        assert float(reached.norm()) == pytest.approx(found.epsilon)


def test_a_bilevel_point_is_stationary_with_the_lower_level_as_a_constraint() -> None:
    problem = bp.problems.get("quadratic")
    point = problem.solution(torch.tensor([0.3, 0.7], dtype=DOUBLE))
    rows, B = dense(problem, point.x, point.y)
    assert bp.pareto_stationarity(rows).epsilon > 0.1
    found = bp.pareto_stationarity(rows, equality=B.T)
    assert found.epsilon < 1e-10
    weights = torch.tensor(bp.certify(problem, point.x, point.y).kkt_multipliers)
    assert found.weights.tolist() == pytest.approx(weights.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1.0]], {"inequality": [[1.0, 2.0]]}), "inequality has shape"),
        (([1.0], {}), "gradients has shape"),
        (([[float("nan")]], {}), "gradients holds NaN"),
        (([[1.0]], {"inequality": [[1.0]] * 13}), "inequality has 13 rows"),
        ((torch.zeros(0, 3), {}), "gradients is empty"),
    ],
)
def test_what_it_cannot_judge_it_says(arguments: tuple, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bp.pareto_stationarity(arguments[0], **arguments[1])
