"""How a loop is asked to run, at the limits of what it takes, and its parts one by one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from bipareto.problem.sampler import Role
from bipareto.run import loop
from bipareto.run.loop import Begun, LoopOptions, drive, not_begun, warn_of_runaways
from helpers import nonconvex


@pytest.mark.parametrize(("steps", "block"), [(1, 1), (200, 1), (201, 2), (401, 3), (20_000, 100)])
def test_about_two_hundred_records(steps: int, block: int) -> None:
    assert LoopOptions(steps).block == block
    assert LoopOptions(steps, record_every=7).block == 7


def test_what_cannot_be_is_refused() -> None:
    most = 10**7
    assert LoopOptions(most, record_every=1).steps == most
    assert LoopOptions(tol=0.0).tol == 0.0
    assert LoopOptions(compile="aot_eager").compile == "aot_eager"
    assert LoopOptions(compile="replay").compile == "replay"
    wrong: list[dict[str, Any]] = [
        {"steps": 0},
        {"steps": 2 * most + 2, "record_every": 2},
        {"record_every": 0},
        {"tol": -1e-9},
        {"compile": ""},
        {"compile": 1},
        {"compile": "no backend"},
        {"callbacks": "print"},
        {"callbacks": print},
        {"progress": 1},
    ]
    for options in wrong:
        with pytest.raises(InvalidInput, match=max(options, key=lambda name: name != "steps")):
            LoopOptions(**options)
    assert LoopOptions(2 * most + 1, record_every=2).block == 2
    for callback in (3, lambda: None):
        with pytest.raises(InvalidInput, match="callback"):
            LoopOptions(callbacks=[callback])
    # What counts is an int from here on, whatever stood for it.
    whole = LoopOptions(np.int64(9), record_every=np.int64(3), tol=np.float32(0.5))
    assert [type(v) for v in (whole.steps, whole.record_every, whole.tol)] == [int, int, float]


def test_a_single_run_is_renewed_as_one_of_many() -> None:
    problem, x, y = nonconvex()

    class Doubling(bp.MOMEHA):
        def renewed(self, problem: Any, state: Any) -> Any:
            assert state.t.shape == (1,)
            return state._replace(y=2 * state.y)

    state = bp.MOMEHA().init(problem, x, y)
    torch.testing.assert_close(loop._renewed(problem, Doubling(), state, False).y, 2 * y)


def test_how_steps_are_taken_where_nobody_says() -> None:
    problem, x, y = nonconvex()
    state = bp.MOMEHA().init(problem, x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SAFE_ON_CPU", (1, 0))
        for batched in (False, True):
            enough = loop.COMPILE_FROM[batched]
            assert loop._how(state, batched, LoopOptions(enough)) is True
            assert loop._how(state, batched, LoopOptions(enough, compile=False)) is False
            fewer = "traced" if batched else False
            assert loop._how(state, batched, LoopOptions(enough - 1)) == fewer
        # Large arrays make it pay sooner.
        patch.setattr(loop, "COMPILE_WORK", 150 * (x.numel() + y.numel()))
        assert loop._how(state, False, LoopOptions(150)) is True
        assert loop._how(state, False, LoopOptions(149)) is False
        # Before this version a compiled step may damage the heap of a processor.
        patch.setattr(loop, "SAFE_ON_CPU", (99, 0))
        assert loop._how(state, True, LoopOptions(10**6)) == "traced"
        assert loop._how(state, True, LoopOptions(10**6, compile=True)) is True
        assert loop.pays_to_compile(10**6, 1, True, torch.device("cuda"))
        assert not loop.pays_to_compile(1, 10**12, True, torch.device("cuda"))
    few = LoopOptions(loop.TRACE_FROM)
    assert loop._how(state, True, few) == "traced"
    assert loop._how(state, True, LoopOptions(loop.TRACE_FROM - 1)) is False
    assert loop._how(state, True, replace(few, callbacks=[lambda record: None])) is False


def test_a_run_that_was_not_begun_has_its_start() -> None:
    problem, x, y = nonconvex()
    state = bp.MOMEHA().init(problem, x, y)
    run = not_begun(Begun(state, [3], 2, batched=False))
    assert (run.reason, run.steps, run.failure, run.seconds) == (["interrupted"], [0], [None], 0.0)
    assert torch.equal(run.state.x, x)
    assert run.interrupted


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_y_that_has_gone_far_is_warned_of(factor: float) -> None:
    """Beyond so many times 1 + ||y_0||, in runs that are still finite."""
    problem, x, y = nonconvex()
    state = bp.MOMEHA().init(problem, x, y)
    run = drive(problem, bp.MOMEHA(), Begun(state, [0], 2, batched=False), LoopOptions(1))
    size = factor * loop.AWAY * (1 + float(y.norm()))
    far = replace(run, state=run.state._replace(y=y / y.norm() * size))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_runaways(y, far, batched=False)
        warn_of_runaways(y, replace(far, reason=["nonfinite"]), batched=False)
        warn_of_runaways(y, run, batched=False)
    assert [w.category for w in caught] == [BiparetoWarning] * (factor > 1)


def test_draws_are_those_of_the_seeds() -> None:
    problem = bp.Problem(
        lambda x, y, b: b,
        lambda x, y, b: b,
        sampler=lambda role, t, seed: torch.tensor([float(t), float(seed)]),
    )
    role = Role("lower")
    several = loop._Draws(problem, [role], [5, 3, 5])
    assert not several.shared
    assert several(7)[role].tolist() == [[7, 5], [7, 3], [7, 5]]
    one = loop._Draws(problem, [role], [4, 4])
    assert one.shared
    assert one(7)[role].flatten().tolist() == [7, 4]
    assert loop._Draws(nonconvex()[0], [role], [1, 2])(0) == {}


def test_records_stand_where_they_were_asked_for() -> None:
    problem, x, y = nonconvex()
    seen: list[int] = []
    answer = bp.solve(
        problem, x, y, method=bp.MOMEHA(), steps=10, record_every=4,
        callbacks=[lambda record: seen.append(record.step)],
    )  # fmt: skip
    assert seen == answer.history["step"].tolist() == [4, 8, 10]
    assert (answer.steps, answer.reason) == (10, "steps")
    again = bp.MOMEHA().init(problem, x, y)
    for _ in range(10):
        again, _ = bp.MOMEHA().step(problem, again)
    torch.testing.assert_close(answer.x, again.x)
    torch.testing.assert_close(answer.objectives, problem.upper(again.x, again.y))


def test_the_method_that_suits_a_problem() -> None:
    losses = (lambda x, y, *b: torch.stack([x.sum(), y.sum()]), lambda x, y, *b: (y - x).sum())
    rows = torch.ones(4, 2)
    batches = bp.sampler.Minibatches(lower=(rows,), upper=(rows,), size=2)
    kinds = [None, lambda role, t, seed: rows, batches]
    found = [loop.method_kind(bp.Problem(*losses, sampler=kind)) for kind in kinds]
    assert found == [bp.MOMEHA, bp.MBMOMEHA, bp.Twin]
    race = bp.Problem(*losses, sampler=batches)
    assert loop.choose_method(None, race, rows, rows, 50) == bp.Twin.tuned(race, rows, rows, 50)
    given = bp.GMOBA()
    assert loop.choose_method(given, bp.Problem(*losses), rows, rows, 5) is given
    with pytest.raises(InvalidInput, match="not its name or class"):
        loop.choose_method(bp.GMOBA, bp.Problem(*losses), rows, rows, 5)


class Renewing(bp.MOMEHA):
    """Renewed after steps 3 and 7; the second of two runs is thrown at every block."""

    log: ClassVar[list[tuple[str, int]]] = []

    def renewals(self, steps: int) -> tuple[int, ...]:
        return (3, 7)

    def renewed(self, problem: Any, state: Any) -> Any:
        self.log.append(("renewed", int(state.t[0])))
        return state

    def shortened(self, state: Any) -> Any:
        self.log.append(("shortened", int(state.t.max())))
        return state

    def thrown(self, state: Any, before: Any, after: Any) -> Any:
        assert before["objectives"].shape == after["objectives"].shape
        mask = torch.zeros_like(state.t, dtype=torch.bool)
        if mask.dim():
            mask[1] = True
        return mask


@pytest.mark.parametrize("runs", [1, 2])
def test_renewals_come_after_their_step_and_lost_blocks_are_taken_again(runs: int) -> None:
    problem, x, y = nonconvex(m=2)
    weights = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)[:runs]
    Renewing.log.clear()
    method = Renewing(gamma=0.2, alpha_theta=0.05, alpha_x=0.05, alpha_y=0.05, c=5.0)
    states = [method.init(problem, x, y, w) for w in weights]
    state = states[0] if runs == 1 else tree.stack(states)
    begun = Begun(state, [0] * runs, 2, batched=runs > 1)
    run = drive(problem, method, begun, LoopOptions(10, record_every=2, compile=False))
    assert [t for word, t in Renewing.log if word == "renewed"] == [4, 8]
    lost = [t for word, t in Renewing.log if word == "shortened"]
    assert lost == [0] * loop.RETRIES * (runs - 1)
    assert run.steps == [10] * runs
    for r in range(runs):
        alone = states[r]
        for _ in range(10):
            alone, _ = method.step(problem, alone)
        found = tree.select(run.state.x, r) if runs > 1 else run.state.x
        torch.testing.assert_close(found, alone.x)


def test_one_run_of_many_as_a_solution() -> None:
    problem, x, y = nonconvex(m=2)
    method = bp.MOMEHA(gamma=0.2, c=5.0)
    weights = [[0.3, 0.7], [0.6, 0.4]]
    found = bp.front(problem, x, y, preferences=weights, method=method, steps=6, record_every=2)
    for i, w in enumerate(weights):
        alone = bp.solve(problem, x, y, preference=w, method=method, steps=6, record_every=2)
        one = found[i]
        for name in ("x", "y", "theta", "objectives", "preference"):
            torch.testing.assert_close(getattr(one, name), getattr(alone, name))
        assert (one.reason, one.steps, one.oracles) == (alone.reason, alone.steps, alone.oracles)
        assert (one.best.step, one.seed) == (alone.best.step, 0)
        assert one.best.residual == pytest.approx(alone.best.residual)
        for name in ("step", "objectives", "residual", "gap"):
            torch.testing.assert_close(one.history[name], alone.history[name])


@pytest.mark.parametrize("batched", [False, True])
def test_a_report_is_of_the_last_step_s_draw(batched: bool) -> None:
    """g is (t + 1) y^2 on the draw of step t, and x and y hardly move."""
    problem = bp.Problem(
        lambda x, y, b: torch.stack([x.sum() + y.sum(), x.sum() - y.sum()]),
        lambda x, y, b: b * y.square().sum() + 0 * x.sum(),
        sampler=lambda role, t, seed: torch.tensor(1.0 + t).double(),
    )
    one, tiny = torch.ones(1, dtype=torch.float64), 1e-14
    method = bp.MOMEHA(alpha_theta=tiny, alpha_x=tiny, alpha_y=tiny, ideal=-9.0)
    options: dict[str, Any] = {"method": method, "steps": 7, "record_every": 3, "compile": False}
    if batched:
        found = bp.front(problem, one, one, preferences=[[0.5, 0.5]], **options).run.history
    else:
        found = bp.solve(problem, one, one, **options).history
    assert found["step"].tolist() == [3, 6, 7]
    assert found["lower"].flatten().tolist() == pytest.approx([3.0, 6.0, 7.0])


def test_nothing_is_compiled_on_a_processor_before_torch_2_13() -> None:
    assert loop.SAFE_ON_CPU == (2, 13)
