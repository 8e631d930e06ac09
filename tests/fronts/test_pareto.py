from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.batch import SLICE
from bipareto.problem import tree
from bipareto.problem.oracle import noisy
from bipareto.run.results import Failure
from helpers import DICT_PROBLEM, DOUBLE, dict_start, interrupted_at, nonconvex

METHOD = bp.MOMEHA(gamma=0.2, alpha_theta=0.05, alpha_x=0.05, alpha_y=0.05, c=5.0)


@pytest.mark.parametrize("compile", [False, "aot_eager"])
@pytest.mark.parametrize("method", [METHOD, bp.MBMOMEHA(gamma=0.2, c=5.0)])
def test_a_batch_equals_its_single_runs(compile: bool | str, method: bp.MOMEHA) -> None:
    plain, x, y = nonconvex()
    problem = noisy(plain, 0.1, x, y) if isinstance(method, bp.MBMOMEHA) else plain
    weights = bp.preferences.grid(2, 4)
    batch = bp.front(
        problem, x, y, preferences=weights, seeds=[0, 5], method=method, steps=60, compile=compile
    )
    assert batch.objectives.shape == (8, 2)
    assert batch.seed.tolist() == [0] * 4 + [5] * 4
    for i in range(8):
        single = bp.solve(
            problem,
            x,
            y,
            preference=weights[i % 4],
            seed=int(batch.seed[i]),
            method=method,
            steps=60,
            compile=compile,
        )
        torch.testing.assert_close(batch.x[i], single.x, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(batch[i].y, single.y, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            batch[i].history["residual"], single.history["residual"], rtol=1e-8, atol=1e-8
        )
        assert batch[i].best.step == single.best.step
    if isinstance(method, bp.MBMOMEHA):
        assert not torch.allclose(batch.x[0], batch.x[4])  # seeds draw apart


@pytest.mark.slow
def test_a_batch_equals_its_single_runs_under_inductor() -> None:
    problem, x, y = nonconvex()
    weights = bp.preferences.grid(2, 4)
    batch = bp.front(problem, x, y, preferences=weights, method=METHOD, steps=300, compile=True)
    for i in range(4):
        single = bp.solve(
            problem, x, y, preference=weights[i], method=METHOD, steps=300, compile=True
        )
        torch.testing.assert_close(batch.x[i], single.x, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*left the finite numbers")
def test_only_the_bad_run_of_a_batch_stops() -> None:
    # The second objective's pull carries y to where g is infinite; with little weight on it y stays
    # away.
    def lower(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - x).square() + torch.where(y > 2, torch.inf, 0.0)

    problem = bp.Problem(
        lambda x, y: torch.stack([x.square() + y.square(), (x - 5).square() + (y - 5).square()]),
        lower,
    )
    zero = torch.zeros((), dtype=DOUBLE)
    method = bp.MOMEHA(
        gamma=0.5, mu=1.0, alpha_theta=0.1, alpha_x=0.1, alpha_y=0.1, c=1.0, scalarization="linear"
    )
    found = bp.front(
        problem,
        zero,
        zero,
        preferences=[[0.9, 0.1], [0.1, 0.9], [0.8, 0.2]],
        method=method,
        steps=600,
        compile=False,
    )
    assert found.reason == ("steps", "nonfinite", "steps")
    bad = found[1]
    assert bad.failure is not None
    assert bad.failure.term == "g"
    assert bad.steps == bad.failure.step < 600
    assert torch.isfinite(found.x).all()
    alone = bp.solve(
        problem, zero, zero, preference=[0.8, 0.2], method=method, steps=600, compile=False
    )
    torch.testing.assert_close(found.x[2], alone.x, rtol=1e-10, atol=1e-10)


def test_a_loss_that_cannot_be_batched_is_named_and_run_one_by_one() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x[x > -1e9].square().sum() + y.sum(), (y - 1).square().sum()])

    problem = bp.Problem(upper, lambda x, y: (y - x).square().sum())
    x = torch.ones(2, dtype=DOUBLE)
    with pytest.warns(BiparetoWarning, match="aten::nonzero|aten::index|vmap cannot batch"):
        found = bp.front(
            problem, x, x, preferences=bp.preferences.grid(2, 3), method=METHOD, steps=20
        )
    assert found.objectives.shape == (3, 2)
    single = bp.solve(
        problem, x, x, preference=bp.preferences.grid(2, 3)[1], method=METHOD, steps=20
    )
    assert torch.equal(found.x[1], single.x)
    resolved = found.resolve_lower()
    torch.testing.assert_close(resolved.y, resolved.x, rtol=1e-7, atol=1e-7)
    assert found[2].history["objectives"].shape == (20, 2)


@pytest.mark.parametrize("record_every", [5, 20])
@pytest.mark.parametrize(("size", "call"), [(1, 150), (2, 45), (2, 140)])
def test_a_keyboard_interrupt_ends_all_runs_of_a_front(
    monkeypatch: pytest.MonkeyPatch, size: int, call: int, record_every: int
) -> None:
    monkeypatch.setattr("bipareto.fronts.batch.SLICE", size)
    problem, x, y = nonconvex()

    def upper(x: Tensor, y: Tensor) -> Tensor:  # one that reads a number cannot be batched
        return problem.upper(x, y) + (0 * float(x.detach().sum()) if size == 1 else 0)

    options: dict[str, Any] = {
        "preferences": bp.preferences.grid(2, 4),
        "method": METHOD,
        "steps": 20,
        "record_every": record_every,
        "compile": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)  # of going on one by one
        found = bp.front(bp.Problem(upper, interrupted_at(problem, call)), x, y, **options)
    steps = [found[i].steps for i in range(4)]
    (at,) = {done for done in steps if 0 < done < 20}
    assert steps == sorted(steps, reverse=True)
    assert steps.count(at) == size
    whole = bp.front(problem, x, y, **options)
    for i, done in enumerate(steps):
        assert found[i].reason == ("steps" if done == 20 else "interrupted")
        torch.testing.assert_close(
            found.x[i],
            bp.solve(problem, x, y, preference=found.preference[i], method=METHOD, steps=done).x
            if done
            else x,
        )
        seen = whole[i].history["residual"][: done // record_every]
        assert found[i].best.residual == (
            pytest.approx(float(seen.min())) if len(seen) else torch.inf
        )


def test_large_sweeps_go_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, x, y = nonconvex()
    weights = bp.preferences.grid(2, 7)
    whole = bp.front(problem, x, y, preferences=weights, method=METHOD, steps=20)
    assert SLICE >= 7
    monkeypatch.setattr("bipareto.fronts.batch.SLICE", 3)
    sliced = bp.front(problem, x, y, preferences=weights, method=METHOD, steps=20)
    torch.testing.assert_close(sliced.x, whole.x, rtol=1e-12, atol=1e-12)
    assert sliced[6].best.step == whole[6].best.step


def test_resolved_points_solve_the_lower_level_and_lie_on_or_above_the_front() -> None:
    problem = bp.problems.get("quadratic")
    method = bp.MOMEHA.tuned(problem, problem.x0, problem.y0, steps=1500)
    found = bp.front(
        problem,
        problem.x0,
        problem.y0,
        preferences=bp.preferences.grid(2, 5),
        method=method,
        steps=1500,
    )
    resolved = found.resolve_lower(tol=1e-10)
    assert resolved.lower_residual is not None
    assert resolved.lower_residual.max() <= 1e-10
    assert found.lower_residual is None
    corner = problem.reference
    exact = torch.func.vmap(problem.upper)(found.x, found.x @ problem.A.T + problem.b)
    torch.testing.assert_close(resolved.objectives, exact)
    dominated = float(bp.ParetoFront.hypervolume(resolved, corner))
    assert 0 < dominated <= problem_hypervolume(problem, corner) * (1 + 1e-9)


def problem_hypervolume(problem: bp.Problem, corner: Tensor) -> float:
    import moocore

    return float(moocore.hypervolume(problem.front(5001).numpy(), ref=corner.numpy())) + 1e-3


def front_of(points: list[list[float]]) -> bp.ParetoFront:
    objectives = torch.tensor(points, dtype=DOUBLE)
    n = len(points)
    return bp.ParetoFront(
        x=torch.arange(n, dtype=DOUBLE),
        y=torch.zeros(n, dtype=DOUBLE),
        objectives=objectives,
        preference=torch.full((n, 2), 0.5, dtype=DOUBLE),
        seed=torch.zeros(n, dtype=torch.int64),
        reason=("steps",) * n,
        failure=(None,) * n,
        seconds=0.0,
    )


@pytest.mark.filterwarnings("ignore:.*hold NaN or infinity")
def test_hypervolume_and_dominance_of_a_small_front() -> None:
    found = front_of(
        [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0], [2.5, 2.5], [2.0, 2.0], [float("nan"), 0.0]]
    )
    assert found.hypervolume([4.0, 4.0]) == pytest.approx(3 + 2 + 1)
    assert found.nondominated().x.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(InvalidInput, match="one number per objective"):
        found.hypervolume([1.0])
    nothing = front_of([[float("nan"), 0.0]]).nondominated()
    assert (len(nothing), nothing.hypervolume([4.0, 4.0])) == (0, 0.0)
    assert len(nothing.resolve_lower(problem=nonconvex()[0])) == 0


def test_any_front_has_points() -> None:
    x, y = dict_start()
    found = bp.front(
        DICT_PROBLEM, x, y, preferences=bp.preferences.grid(2, 3), method=METHOD, steps=10
    )
    for index, same in ((0, 0), (2, 2), (-1, 2)):
        at_x, at_y = found.point(index)
        assert torch.equal(at_x["a"], found.x["a"][same])
        assert torch.equal(at_y[0], found.y[0][same])
    assert torch.equal(found.subset(torch.tensor([2])).point(0)[0]["a"], found.x["a"][2])
    with pytest.raises(IndexError, match="index 3 is out of range"):
        found.point(3)


def test_a_front_survives_a_file(tmp_path: Path) -> None:
    x, y = dict_start()
    found = bp.front(
        DICT_PROBLEM, x, y, preferences=bp.preferences.grid(2, 3), method=METHOD, steps=10
    ).resolve_lower()
    found.save(tmp_path / "front.npz")
    back = bp.ParetoFront.load(tmp_path / "front.npz")
    assert tree.structure(back.x) == tree.structure(found.x)
    assert tree.structure(back.y) == tree.structure(found.y)
    for name in ("x", "y", "objectives", "preference", "seed", "lower_residual"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                tree.leaves(getattr(back, name)), tree.leaves(getattr(found, name)), strict=True
            )
        )
    assert back.reason == found.reason
    with np.load(tmp_path / "front.npz") as file:
        meta = json.loads(str(file["meta"]))
    assert (meta["method"], meta["seconds"]) == (repr(METHOD), found.seconds)
    assert [p.name for p in tmp_path.iterdir()] == ["front.npz"]
    again = back.resolve_lower(problem=DICT_PROBLEM)
    assert torch.equal(again.objectives, found.objectives)
    for ask in (lambda: back[0], back.resolve_lower):
        with pytest.raises(InvalidInput, match="loaded"):
            ask()


def test_files_that_are_not_fronts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no front at"):
        bp.ParetoFront.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InvalidInput, match="not a front") as refused:
        bp.ParetoFront.load(tmp_path / "text.npz")
    assert "unsafely" not in str(refused.value)  # as numpy would have it
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(InvalidInput, match="not a front"):
        bp.ParetoFront.load(tmp_path / "other.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:60])
    with pytest.raises(InvalidInput, match="cut short"):
        bp.ParetoFront.load(tmp_path / "cut.npz")


def test_methods_without_preferences_run_once_per_seed() -> None:
    problem, x, y = nonconvex(m=1)
    found = bp.front(problem, x, y, seeds=[0, 1], method=bp.MEHA(gamma=0.2, c=5.0), steps=20)
    assert len(found) == 2
    assert bool(found.preference.isnan().all())
    with pytest.raises(InvalidInput, match="MEHA has no preferences"):
        bp.front(problem, x, y, preferences=[[1.0]], method=bp.MEHA(), steps=20)


def test_bad_arguments_are_named() -> None:
    problem, x, y = nonconvex()
    with pytest.raises(InvalidInput, match="seeds is empty"):
        bp.front(problem, x, y, seeds=[], method=METHOD, steps=5)
    with pytest.raises(InvalidInput, match="3 entries"):
        bp.front(problem, x, y, preferences=bp.preferences.grid(3, 3), method=METHOD, steps=5)
    with pytest.raises(IndexError, match="front of 11 runs"):
        bp.front(problem, x, y, method=METHOD, steps=5)[11]


def made(**others: Any) -> bp.ParetoFront:
    """Three runs that nobody ran: y* = x, f = (||y||^2, ||y - 1||^2); the last failed."""
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=DOUBLE)
    problem = bp.Problem(
        lambda x, y: torch.stack([y.square().sum(), (y - 1).square().sum()]),
        lambda x, y: (y - x).square().sum(),
    )
    fields: dict[str, Any] = {
        "x": x,
        "y": x + 0.1,
        "objectives": torch.tensor([[0.01, 0.81], [1.21, 0.01], [9.61, 4.41]], dtype=DOUBLE),
        "preference": bp.preferences.grid(2, 3),
        "seed": torch.tensor([0, 1, 2]),
        "reason": ("steps", "converged", "nonfinite"),
        "failure": (None, None, Failure(7, "f_2")),
        "seconds": 1.5,
        "problem": problem,
        "remaining": torch.tensor([0.0, 0.5, float("nan")], dtype=DOUBLE),
        "test": torch.full((3, 2), 4.0, dtype=DOUBLE),
        "own": torch.full((3, 2), 5.0, dtype=DOUBLE),
        "lower_residual": torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE),
        "unseen": "nobody looked",
    }
    return bp.ParetoFront(**fields | others)


def test_everything_that_is_known_of_a_front_survives_a_file(tmp_path: Path) -> None:
    found = made()
    found.save(tmp_path / "front.npz")
    back = bp.ParetoFront.load(tmp_path / "front.npz")
    for name in ("x", "y", "objectives", "preference", "seed", "lower_residual", "own", "test"):
        assert torch.equal(getattr(back, name), getattr(found, name)), name
    torch.testing.assert_close(back.remaining, found.remaining, equal_nan=True)
    for name in ("reason", "failure", "seconds", "unseen"):
        assert getattr(back, name) == getattr(found, name), name
    assert (back.problem, back.method, back.run, back.race) == (None,) * 4
    made(own=None, test=None, remaining=None).save(tmp_path / "front.npz")
    back = bp.ParetoFront.load(tmp_path / "front.npz")
    assert (back.own, back.test, back.remaining) == (None,) * 3
    # Parts that do not fit together are no front.
    for broken in (
        {"seed": torch.tensor([0, 1])},
        {"reason": ("steps",) * 2},
        {"reason": ("steps", "steps", "tired")},
        {"failure": (None,)},
        {"preference": torch.zeros(3, 3)},
        {"preference": torch.zeros(2, 2)},
        {"x": torch.zeros(2, 1)},
        {"y": torch.zeros(4, 1)},
    ):
        made(**broken).save(tmp_path / "front.npz")
        with pytest.raises(InvalidInput, match="not a front"):
            bp.ParetoFront.load(tmp_path / "front.npz")


def test_some_runs_of_a_front() -> None:
    found = made()
    for chosen in (found.subset([2, 0]), found[torch.tensor([2, 0])], found[::-2]):
        assert len(chosen) == 2
        assert chosen.seed.tolist() == [2, 0]
        assert chosen.x.flatten().tolist() == [3.0, 0.0]
        assert chosen.y.flatten().tolist() == pytest.approx([3.1, 0.1])
        assert chosen.reason == ("nonfinite", "steps")
        assert [failure is None for failure in chosen.failure] == [False, True]
        assert chosen.lower_residual is not None
        assert chosen.lower_residual.tolist() == [3.0, 1.0]
        assert chosen.preference.tolist() == [[0.25, 0.75], [0.75, 0.25]]
        assert chosen.run is None
    assert found.nondominated().seed.tolist() == [0, 1]
    nothing = made(objectives=torch.full((3, 2), torch.nan)).nondominated()
    assert len(nothing) == 0
    assert not found.interrupted
    assert made(reason=("steps", "interrupted", "steps")).interrupted


def test_a_failed_run_is_reminded_of_where_objectives_are_used() -> None:
    found = made(own=None)
    with pytest.warns(BiparetoWarning, match=r"1 of 3 runs left the finite numbers.*counted"):
        volume = found.hypervolume([2.0, 2.0])
    assert volume == pytest.approx(1.99 * 1.19 + 0.79 * 0.8)
    with pytest.warns(BiparetoWarning, match="no answer"):
        solved = found.resolve_lower()
    wanted = torch.tensor([[0.0, 1.0], [1.0, 0.0], [9.0, 4.0]], dtype=DOUBLE)
    torch.testing.assert_close(solved.objectives, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(solved.own, found.objectives)
    assert solved.lower_residual is not None
    assert float(solved.lower_residual.max()) < 1e-9
    with pytest.warns(BiparetoWarning, match="no answer"):
        assert torch.equal(solved.resolve_lower().own, found.objectives)  # type: ignore[arg-type]
    assert len(found.subset([]).resolve_lower()) == 0


def test_a_lower_level_that_was_not_solved_is_counted() -> None:
    found = made(failure=(None,) * 3, y=torch.tensor([[9.0], [5.0], [12.0]], dtype=DOUBLE))
    found = replace(
        found,
        problem=bp.Problem(
            lambda x, y: torch.stack([y.sum(), -y.sum()]), lambda x, y: torch.cosh(y - x).sum()
        ),
    )
    # The last run failed, and is not counted among those that could have been solved.
    with pytest.warns(BiparetoWarning, match=r"2 of 3 runs was not solved to 1e-08") as caught:
        left = found.resolve_lower(max_iter=1).lower_residual
    assert left is not None
    assert float(left[0]) > 2 * float(left[1])
    assert f"in 1 Newton steps (worst ||grad_y g|| = {float(left[0]):.3g})" in str(
        caught[0].message
    )
