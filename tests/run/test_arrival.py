"""What was not looked at says so where users look; what is wrong with the look itself is raised."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.certificate.remaining import MOST
from bipareto.errors import BiparetoWarning
from bipareto.run import arrival as module
from bipareto.run.arrival import TRAINED, arrival
from helpers import DOUBLE

WORDS = "was not looked at, because"


def upper(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack(
        [(x - 1).square().sum() + y.square().sum(), x.square().sum() + (y + 1).square().sum()]
    )


def near(x: Tensor, y: Tensor) -> Tensor:
    return (y - x).square().sum()


def branching(x: Tensor, y: Tensor) -> Tensor:
    """A lower level that asks for a value: vmap cannot batch it."""
    return near(x, y) if float(y.detach().sum()) > -1e9 else 2 * near(x, y)


def start(n: int = 2) -> tuple[Tensor, Tensor]:
    return torch.zeros(n, dtype=DOUBLE), torch.zeros(n, dtype=DOUBLE)


@pytest.mark.parametrize(
    ("lower", "n", "why"), [(near, MOST // 2 + 1, f"than {MOST:,}"), (branching, 2, "batched")]
)
def test_a_solution_that_was_not_looked_at_says_why(lower, n: int, why: str) -> None:  # type: ignore[no-untyped-def]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        answer = bp.solve(bp.Problem(upper, lower), *start(n), steps=2, compile=False)
    (said,) = [str(w.message) for w in caught if WORDS in str(w.message)]
    assert why in said
    assert "certify" in said
    assert answer.remaining is None
    assert answer.unseen is not None
    assert why in answer.unseen
    assert "not looked at, because the" in answer._repr_html_()


def test_a_front_that_was_not_looked_at_says_why(tmp_path: Path) -> None:
    problem = bp.Problem(upper, branching)
    weights = bp.preferences.covering(2)[:2]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiparetoWarning)
        found = bp.front(problem, *start(), preferences=weights, steps=2, compile=False)
    assert len([w for w in caught if WORDS in str(w.message)]) == 1
    assert found.remaining is None
    assert f"{WORDS} the losses cannot be batched" in found._repr_html_()
    assert found[0].unseen == found.subset([1]).unseen == found.unseen
    found.save(tmp_path / "front.npz")
    loaded = bp.ParetoFront.load(tmp_path / "front.npz")
    assert loaded.unseen == found.unseen
    again = loaded.resolve_lower(problem=problem)  # one run after the other, as it was made
    torch.testing.assert_close(again.objectives, found.resolve_lower().objectives)


def test_a_front_of_a_method_of_one_s_own_says_that_nobody_looked() -> None:
    problem = bp.Problem(upper, near)
    method = bp.MOMEHA()
    found = bp.front(problem, *start(), method=method, steps=2, compile=False)
    assert found.unseen is not None
    assert "default" in found.unseen
    assert bp.solve(problem, *start(), method=method, steps=2).unseen == found.unseen


def test_only_what_can_fail_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DOUBLE)
    problem = bp.Problem(upper, near)

    def fails(error: Exception) -> None:
        def raising(*arguments: object) -> Tensor:
            raise error

        monkeypatch.setattr(module, "remaining", raising)

    assert arrival(problem, None, x, x, [None] * 2).unseen is None
    fails(torch.linalg.LinAlgError("eigh did not converge"))
    seen = arrival(problem, None, x, x, [None] * 2)
    assert seen.remaining is None
    assert "eigh did not converge" in str(seen.unseen)
    fails(RuntimeError("shape '[2]' is invalid for input of size 3"))
    with pytest.raises(RuntimeError, match="shape"):
        arrival(problem, None, x, x, [None] * 2)


def test_a_certificate_says_what_it_did_not_look_at() -> None:
    x = torch.full((2,), 0.5, dtype=DOUBLE)
    whole = bp.certify(bp.Problem(upper, near), x, x)
    with pytest.warns(BiparetoWarning, match="beyond the span of the gradients, because"):
        part = bp.certify(bp.Problem(upper, branching), x, x)
    assert not whole.notes
    assert [note for note in part.notes if "cannot be batched" in note]
    assert part.common_descent == whole.common_descent is False


def test_a_trained_y_needs_no_lower_solution_and_hides_nothing_else() -> None:
    """g falls for ever where x < 0: the second answer has no lower solution, the first one is far
    from where both objectives are lower.
    """

    def lower(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, 1.0, 0.0) * (y - x) ** 2 + torch.where(x > 0, 0.0, 1.0) * y

    problem = bp.Problem(lambda x, y: torch.stack([x**2 + y**2, (x - 1) ** 2 + y**2]), lower)
    x, failure = torch.tensor([5.0, -5.0], dtype=torch.float64), [None, None]
    plain = arrival(problem, None, x, x.clone(), failure)
    raced = arrival(problem, None, x, x.clone(), failure, trained=True)
    unsolved = [said for said in plain.said if "could not be solved at 1 of 2" in said]
    late = [said for said in plain.said if "1 of 2 runs have not converged" in said]
    assert unsolved
    assert late
    assert raced.said == [said for said in plain.said if said not in unsolved]
    assert raced.remaining is not None
    assert raced.remaining.isnan().tolist() == [False, True]
    alone = arrival(problem, None, x[1:], x[1:].clone(), [None], trained=True)
    assert (alone.remaining, alone.said, alone.unseen) == (None, [], TRAINED)
