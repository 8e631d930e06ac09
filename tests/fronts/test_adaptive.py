"""Preferences chosen on the way: where they go, where they start, what they cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput
from bipareto.fronts import adaptive
from bipareto.fronts.measures import hypervolume
from bipareto.methods.parts import scalarization
from bipareto.methods.parts.preferences import grid


def circle(w: torch.Tensor) -> torch.Tensor:
    """Points of the convex front f_1 = (1 - s)^2, f_2 = s^2, larger w_1 with smaller f_1."""
    return torch.stack([(1 - w[:, 0]) ** 2, w[:, 0] ** 2], 1)


def test_the_widest_gap_is_proposed_first() -> None:
    first = torch.tensor([0.95, 0.9, 0.85, 0.3, 0.2, 0.1], dtype=torch.float64)
    w = torch.stack([first, 1 - first], 1)
    (best, *_) = found = adaptive.propose(circle(w), w, 3)
    assert set(best.parents) == {2, 3}
    torch.testing.assert_close(best.preference, (w[2] + w[3]) / 2)
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)


def test_a_score_is_the_hypervolume_that_the_expected_point_adds() -> None:
    w = grid(2, 4)
    f = circle(w).numpy()
    expected = {
        (a, b): 0.8 * np.minimum(f[a], f[b]) + 0.2 * np.maximum(f[a], f[b])
        for a in range(4)
        for b in range(4)
    }
    (best,) = adaptive.propose(
        f,
        w,
        1,
        predict=lambda group: (expected[group], w[list(group)].numpy().mean(0)),
        reference=[1.0, 1.0],
    )  # type: ignore[index]
    gains = {
        (a, a + 1): hypervolume(np.vstack([f, expected[tuple(sorted((a, a + 1)))]]), [1.0, 1.0])
        - hypervolume(f, [1.0, 1.0])  # type: ignore[index]
        for a in range(3)
    }
    assert best.score == pytest.approx(max(gains.values()))
    assert tuple(sorted(best.parents)) == max(gains, key=lambda pair: gains[pair])


def test_dominated_broken_and_tried_places_are_left_alone() -> None:
    w = grid(2, 5)
    f = circle(w)
    f[2] = torch.tensor([2.0, 2.0])  # dominated
    f[4] = torch.nan
    parents = {tuple(sorted(p.parents)) for p in adaptive.propose(f, w, 9)}
    assert parents == {(0, 1), (1, 3)}
    tried = [p.parents for p in adaptive.propose(f, w, 1)]
    left = adaptive.propose(f, w, 9, tried=tried)
    assert {tuple(sorted(p.parents)) for p in left} == parents - {tuple(sorted(tried[0]))}
    assert adaptive.propose(f[:1], w[:1], 3) == []


@pytest.mark.parametrize("m", [3, 4])
def test_proposals_for_more_objectives_are_preferences_between_their_parents(m: int) -> None:
    w = grid(m, 3)
    found = adaptive.propose((1 - w) ** 2, w, 7)
    assert len(found) == 7
    for proposal in found:
        torch.testing.assert_close(proposal.preference, w[list(proposal.parents)].mean(0))
        assert float(proposal.preference.sum()) == pytest.approx(1)


def test_the_middle_of_two_branches_is_no_start() -> None:
    problem = bp.problems.get("mo-sin2")
    (low, _), (high, _) = problem.intervals  # one end on each branch of the lower level
    left, right = (
        torch.tensor([low], dtype=torch.float64),
        torch.tensor([high], dtype=torch.float64),
    )
    ends = [(x, problem.lower_solution(x)) for x in (left, right)]
    assert adaptive.between(problem, ends) is None
    near = left + 0.1
    middle = adaptive.between(problem, [ends[0], (near, problem.lower_solution(near))])
    assert middle is not None
    torch.testing.assert_close(middle[0], left + 0.05)
    torch.testing.assert_close(middle[1], problem.lower_solution(left + 0.05))


@pytest.mark.parametrize("name", ["stch", "linear", "tchebycheff"])
def test_aiming_inverts_the_scalarization(name: str) -> None:
    w, f, z = (
        torch.tensor(v, dtype=torch.float64)
        for v in ([0.5, 0.3, 0.2], [1.0, 2.0, 4.0], [-0.5, 0.0, 0.2])
    )
    if name == "tchebycheff":  # its point has equal weighted heights
        w = (f - z).reciprocal() / (f - z).reciprocal().sum()
    for mu in (0.01, 1.0, 50.0):
        normal = scalarization.get(name).weights(f, w, z, torch.tensor(mu, dtype=torch.float64))
        torch.testing.assert_close(scalarization.aim(name, f, normal, z, mu), w)


def test_the_budget_is_kept_and_more_points_come_back() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    method = bp.MOMEHA.tuned(problem, problem.x0, problem.y0, steps=120)
    found = bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences="adaptive",
        budget=6,
        method=method,
        steps=120,
        compile=False,
    )
    plain = bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences=grid(2, 6),
        method=method,
        steps=120,
        compile=False,
    )
    assert found.oracles == plain.oracles
    assert len(found) == 3 + 12
    assert found[0].steps == 120
    assert found[5].steps == 30
    assert found[0].history["step"][-1] == 120
    assert found.run is not None
    assert len(found.run.history["residual"]) == 120  # of the long runs; the short ones end in NaN
    assert bool(found.run.history["residual"][30:, 5].isnan().all())
    resolved = found.resolve_lower()
    assert resolved.hypervolume(problem.reference) > plain.resolve_lower().hypervolume(
        problem.reference
    )
    # The aim is good: every warm run ends near the exact point of its preference, as the cold ones
    # do.
    error = problem.position_error(
        resolved.x, resolved.preference, mu=method.mu, ideal=method.ideal, extent=method.extent
    )
    assert float(error.max()) < 0.02


def test_every_seed_has_the_budget() -> None:
    problem = bp.problems.get("quadratic", dim=2, noise=0.01)
    method = bp.MBMOMEHA.tuned(problem, problem.x0, problem.y0, steps=20)
    found = bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences="adaptive",
        budget=4,
        seeds=[3, 5],
        method=method,
        steps=20,
        compile=False,
    )
    assert found.seed.tolist() == [3] * (len(found) // 2) + [5] * (len(found) // 2)
    assert len(found) == 2 * (3 + 4)


def test_bad_arguments_are_named() -> None:
    problem = bp.problems.get("quadratic", dim=2)
    start = (problem.x0, problem.y0)
    with pytest.raises(InvalidInput, match='preferences="adaptive" and budget=N go together'):
        bp.front(problem, *start, preferences="adaptive")
    with pytest.raises(InvalidInput, match="go together"):
        bp.front(problem, *start, budget=3)
    with pytest.raises(InvalidInput, match="budget = 2, but 3 runs come first"):
        bp.front(problem, *start, preferences="adaptive", budget=2, steps=10)
    with pytest.raises(InvalidInput, match="GMOBA has no preferences to adapt"):
        bp.front(problem, *start, preferences="adaptive", budget=5, method=bp.GMOBA(), steps=10)
    single = bp.Problem(lambda x, y: problem.upper(x, y)[:1], problem.lower)
    with pytest.raises(InvalidInput, match="one objective, so there is one preference"):
        bp.front(single, *start, preferences="adaptive", budget=5, method=bp.MOMEHA(), steps=10)
    with pytest.raises(InvalidInput, match="warm = 2"):
        adaptive.trace(problem, [start], budget=5, method=bp.MOMEHA(), warm=2)
