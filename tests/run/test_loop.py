from __future__ import annotations

import math
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
from bipareto.methods.momeha import THROWN
from bipareto.methods.parts.schedule import Cosine
from bipareto.problem import tree
from bipareto.run.results import Record
from bipareto.run.steppers import stepper
from helpers import DOUBLE, interrupted_at, nonconvex

METHOD = bp.MOMEHA(gamma=0.2, alpha_theta=0.05, alpha_x=0.05, alpha_y=0.05, c=5.0)


def test_a_solution_says_what_happened() -> None:
    problem, x, y = nonconvex()
    answer = bp.solve(
        problem, x, y, preference=[0.7, 0.3], method=METHOD, steps=100, record_every=7, seed=3
    )
    assert answer.reason == "steps"
    assert answer.steps == 100
    assert answer.seed == 3
    assert answer.oracles == {"lower_gradients": 400, "upper_gradients": 400, "hessian_products": 0}
    assert answer.history["step"].tolist() == [*range(7, 100, 7), 100]
    assert answer.history["objectives"].shape == (15, 2)
    torch.testing.assert_close(answer.objectives, problem.upper(answer.x, answer.y))
    residuals = answer.history["residual"]
    best = int(residuals.argmin())
    assert answer.best.residual == float(residuals[best])
    assert answer.best.step == answer.history["step"][best] - 1
    torch.testing.assert_close(problem.upper(answer.best.x, answer.best.y), answer.best.objectives)


def test_one_s_own_loop_gives_the_same_numbers() -> None:
    problem, x, y = nonconvex()
    answer = bp.solve(problem, x, y, preference=[0.7, 0.3], method=METHOD, steps=33)
    state = METHOD.init(problem, x, y, [0.7, 0.3])
    for _ in range(33):
        state, _ = METHOD.step(problem, state)
    assert torch.equal(answer.x, state.x)
    assert torch.equal(answer.y, state.y)


def test_inputs_are_left_alone() -> None:
    problem, x, y = nonconvex()
    kept = x.clone(), y.clone()
    bp.solve(problem, x, y, method=METHOD, steps=5)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_a_tolerance_and_a_callback_end_a_run() -> None:
    problem, x, y = nonconvex()
    loose = bp.solve(problem, x, y, method=METHOD, steps=1500, tol=0.5, record_every=10)
    assert loose.reason == "converged"
    assert loose.steps < 1500
    assert loose.history["residual"][-1] <= 0.5
    seen: list[int] = []

    def stop(record: Record) -> bool:
        seen.append(record.step)
        return record.step >= 40

    ended = bp.solve(problem, x, y, method=METHOD, steps=100, record_every=20, callbacks=[stop])
    assert ended.reason == "callback"
    assert ended.steps == 40
    assert seen == [20, 40]


def exploding(when: str) -> bp.Problem:
    """Goes bad in the named term once y has drifted below -1."""

    def bad(y: Tensor) -> Tensor:
        return torch.where(y < -1, torch.full_like(y, math.inf), torch.zeros_like(y))

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(
            [(x + 5).square() + y, (y + 5).square() + (bad(y) if when == "f_2" else 0)]
        )

    return bp.Problem(
        upper, lambda x, y: 0.5 * (y + 3).square() + 0.01 * x * y + (bad(y) if when == "g" else 0)
    )


@pytest.mark.filterwarnings("ignore:.*left the finite numbers")
@pytest.mark.parametrize("term", ["f_2", "g"])
@pytest.mark.parametrize("compile", [False, "aot_eager"])
def test_a_run_that_leaves_the_finite_numbers_stops_with_its_last_good_state(
    term: str, compile: bool | str
) -> None:
    problem, zero = exploding(term), torch.zeros((), dtype=DOUBLE)
    answer = bp.solve(
        problem, zero, zero, method=METHOD, steps=400, record_every=50, compile=compile
    )
    assert answer.reason == "nonfinite"
    assert answer.failure is not None
    assert answer.failure.term == term
    # The kept state is the one before the step in which the term went bad: exactly `failure.step`
    # plain steps from the start.
    state = METHOD.init(problem, zero, zero)
    for _ in range(answer.failure.step):
        state, _ = METHOD.step(problem, state)
    torch.testing.assert_close(answer.y, state.y, rtol=1e-12, atol=1e-12)
    assert math.isfinite(float(answer.y))
    assert answer.steps == answer.failure.step
    assert f"step {answer.failure.step}" in str(answer.failure)


@pytest.mark.parametrize(
    "method",
    [METHOD, bp.WCMHGD(alpha_x=0.05), bp.FORUM(alpha_x=0.05)],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.filterwarnings("ignore:WCMHGD needs a strongly convex")
def test_a_step_that_has_come_to_zero_is_no_failure_and_no_convergence(
    method: bp.methods.Method,
) -> None:
    """x stays where it is; how stationary it is cannot be read off a move that is none."""
    problem, x, y = nonconvex()
    ending = replace(method, alpha_x=Cosine(0.05, 20.0))
    longer, ended = (
        bp.solve(problem, x, y, method=ending, steps=steps, record_every=1, tol=1e-30)
        for steps in (30, 20)
    )
    assert (longer.reason, longer.steps) == ("steps", 30)
    assert torch.equal(longer.x, ended.x)
    assert torch.equal(longer.history["residual"].isnan(), torch.arange(30) >= 20)
    assert longer.best.step < 20


@pytest.mark.filterwarnings("ignore:.*left the finite numbers")
def test_steps_that_are_too_large_leave_the_last_finite_state() -> None:
    problem, x, y = nonconvex()
    answer = bp.solve(
        problem,
        x,
        y,
        method=bp.MOMEHA(gamma=0.2, alpha_theta=50.0, alpha_x=50.0, alpha_y=50.0),
        steps=2000,
    )
    assert answer.reason == "nonfinite"
    assert answer.failure is not None
    assert all(torch.isfinite(leaf).all() for leaf in (answer.x, answer.y))


@pytest.mark.filterwarnings("ignore:.*left the finite numbers")
@pytest.mark.parametrize("name", ["theta", "x", "y"])
def test_a_gradient_that_is_not_finite_is_named_as_an_update(name: str) -> None:
    """The square root of a square has a value at zero and no derivative."""

    def cusp(v: Tensor, where: str) -> Tensor | float:
        return v.square().sqrt() if where == name else 0.0

    problem = bp.Problem(
        lambda x, y: torch.stack(
            [(x - 1).square() + y.square() + cusp(y, "y"), (x + y - 1).square() + 1]
        ),
        lambda x, y: (y - x).square() + cusp(y, "theta") + cusp(x, "x"),
    )
    zero = torch.zeros((), dtype=DOUBLE)
    answer = bp.solve(problem, zero, zero, method=METHOD, steps=3)
    assert answer.failure is not None
    assert (answer.failure.step, answer.failure.term) == (0, f"the update of {name}")
    assert torch.equal(answer.x, zero)


def test_one_graph_serves_all_numbers() -> None:
    problem, x, y = nonconvex()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for k in range(4):
        scale = 1 + 0.1 * k
        method = bp.MOMEHA(
            gamma=0.1 * scale,
            mu=scale,
            alpha_theta=0.01 * scale,
            alpha_x=0.02 * scale,
            alpha_y=0.03 * scale,
            c=bp.schedule.Power(scale, 0.1 * scale),
        )
        bp.solve(
            problem,
            x,
            y,
            method=method,
            preference=[0.5 + 0.01 * k, 0.5 - 0.01 * k],
            steps=3,
            compile="aot_eager",
        )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_many_problems_can_be_compiled_in_one_process() -> None:
    # torch.compile refuses the ninth variant of one code object; each problem must have its own.
    for seed in range(9):
        problem, x, y = nonconvex(seed=seed)
        fast = bp.solve(problem, x, y, method=METHOD, steps=4, compile="aot_eager")
        torch.testing.assert_close(
            fast.x,
            bp.solve(problem, x, y, method=METHOD, steps=4, compile=False).x,
            rtol=1e-10,
            atol=1e-12,
        )


def test_a_change_of_the_problem_between_runs_is_seen_by_compiled_steps() -> None:
    problem, x, y = nonconvex()
    factor = {"value": 1.0}
    changing = bp.Problem(lambda x, y: factor["value"] * problem.upper(x, y), problem.lower)
    first = bp.solve(changing, x, y, method=METHOD, steps=10, compile="aot_eager")
    factor["value"] = 3.0
    second = bp.solve(changing, x, y, method=METHOD, steps=10, compile="aot_eager")
    assert not torch.equal(first.x, second.x)
    torch.testing.assert_close(
        second.x,
        bp.solve(changing, x, y, method=METHOD, steps=10, compile=False).x,
        rtol=1e-10,
        atol=1e-12,
    )


def test_what_cannot_be_compiled_goes_on_uncompiled() -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        scale = (
            1.0 if float(y.detach().sum()) < 1e9 else 2.0
        )  # reads a number: no graph can hold that
        return torch.stack([x.square().sum() + y.sum(), scale * y.square().sum()])

    problem = bp.Problem(upper, lambda x, y: (y - x).square().sum())
    x = torch.ones(2, dtype=DOUBLE)
    with pytest.warns(BiparetoWarning, match="going on uncompiled"):
        answer = bp.solve(problem, x, x, method=METHOD, steps=5, compile="aot_eager")
    assert torch.equal(answer.x, bp.solve(problem, x, x, method=METHOD, steps=5, compile=False).x)


def test_a_keyboard_interrupt_keeps_what_is_there() -> None:
    problem, x, y = nonconvex()
    answer = bp.solve(
        bp.Problem(problem.upper, interrupted_at(problem, 200)),
        x,
        y,
        method=METHOD,
        steps=1000,
        record_every=10,
    )
    assert answer.reason == "interrupted"
    assert 0 < answer.steps < 1000
    again = bp.solve(problem, x, y, method=METHOD, steps=answer.steps)
    assert torch.equal(answer.x, again.x)


def test_a_keyboard_interrupt_before_the_first_record_keeps_the_state(tmp_path: Path) -> None:
    problem, x, y = nonconvex()
    answer = bp.solve(
        bp.Problem(problem.upper, interrupted_at(problem, 40)),
        x,
        y,
        method=METHOD,
        steps=1000,
        record_every=500,
    )
    assert answer.reason == "interrupted"
    assert answer.best.step == answer.steps == 9  # one look at the start, four evaluations a step
    assert torch.equal(answer.x, bp.solve(problem, x, y, method=METHOD, steps=9).x)
    assert torch.equal(answer.best.x, answer.x)
    assert answer.best.residual == math.inf
    assert answer.best.objectives.isnan().tolist() == [True, True]
    assert len(answer.history["step"]) == 0
    with pytest.raises(InvalidInput, match="before anything was recorded"):
        bp.diagnose(answer)


def test_progress_goes_to_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    problem, x, y = nonconvex()
    bp.solve(problem, x, y, method=METHOD, steps=20, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "20/20" in shown.err
    bp.solve(problem, x, y, method=METHOD, steps=20)
    assert capsys.readouterr().err == ""


def test_bad_arguments_are_named() -> None:
    problem, x, y = nonconvex()
    with pytest.raises(InvalidInput, match="steps = 0"):
        bp.solve(problem, x, y, method=METHOD, steps=0)
    with pytest.raises(InvalidInput, match="record_every = 0"):
        bp.solve(problem, x, y, method=METHOD, steps=5, record_every=0)
    with pytest.raises(InvalidInput, match="method is 'momeha'"):
        bp.solve(problem, x, y, method="momeha", steps=5)  # type: ignore[arg-type]


def test_a_packed_state_unpacks_to_itself() -> None:
    problem, x, y = nonconvex()
    state = METHOD.init(problem, x, y, [0.7, 0.3])
    fast = stepper(problem, METHOD, batched=False, compile="aot_eager")
    back = fast.unpack(fast.pack(state, {}))
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(back), tree.leaves(state), strict=True)
    )


def test_one_problem_is_compiled_for_starts_of_every_structure() -> None:
    """A dict in another order is the same start; a graph made for the first order must not take one
    leaf for another.
    """

    def total(x: Any) -> Tensor:
        return (
            x
            if isinstance(x, Tensor)
            else sum(factor * x[name] for name, factor in (("a", 1.0), ("b", 0.3)) if name in x)
        )

    problem = bp.Problem(
        lambda x, y: torch.stack([(total(x) - 1).square() + y.square() + 1, (y - 2).square() + 1]),
        lambda x, y: (y - total(x)) ** 2,
    )
    a, b = torch.tensor(0.5, dtype=DOUBLE), torch.tensor(-1.0, dtype=DOUBLE)
    for start in ({"a": a, "b": b}, {"b": b, "a": a}, {"a": a}, a):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiparetoWarning)
            fast, plain = (
                bp.solve(problem, start, b, method=METHOD, steps=20, compile=compile)
                for compile in ("aot_eager", False)
            )
        assert tree.structure(fast.x) == tree.structure(start)
        torch.testing.assert_close(fast.x, plain.x, rtol=1e-10, atol=1e-10)


def test_a_module_s_parameters_are_a_start() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1).double()
    data = torch.randn(8, 2, dtype=DOUBLE)

    def predict(p: dict[str, Tensor], weight: Tensor) -> Tensor:
        return torch.func.functional_call(net, p, (data,)).squeeze(1) * weight.sigmoid()

    problem = bp.Problem(
        lambda x, y: torch.stack(
            [(predict(y, x) - 1).square().mean(), predict(y, x).square().mean()]
        ),
        lambda x, y: (predict(y, x) - data[:, 0]).square().mean(),
    )
    starts = net, {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    answer, wanted = (
        bp.solve(problem, torch.zeros(8, dtype=DOUBLE), start, method=METHOD, steps=20)
        for start in starts
    )
    assert set(answer.y) == {"weight", "bias"}
    assert all(torch.equal(answer.y[name], value) for name, value in wanted.y.items())
    assert all(
        torch.equal(parameter, starts[1][name]) for name, parameter in net.named_parameters()
    )


@pytest.mark.filterwarnings("ignore:.*hold NaN or infinity")
def test_runs_that_leave_the_finite_numbers_are_spoken_of() -> None:
    problem, zero = exploding("f_2"), torch.zeros((), dtype=DOUBLE)
    with pytest.warns(BiparetoWarning, match=r"the run left the finite numbers \(f_2; first at"):
        bp.solve(problem, zero, zero, method=METHOD, steps=400)
    with pytest.warns(BiparetoWarning, match=r"[0-9]+ of 11 runs left the finite numbers \(f_2"):
        found = bp.front(problem, zero, zero, method=METHOD, steps=400)
    with pytest.warns(BiparetoWarning, match=r"[0-9]+ of 11 runs left the finite numbers"):
        found.resolve_lower()
    with pytest.warns(BiparetoWarning, match=r"[0-9]+ of 11 runs left the finite numbers"):
        found.hypervolume([1e3, 1e3])


def test_numpy_in_a_loss_is_no_reason_to_fail() -> None:
    root, where = np.sqrt(2), np.array([0, 1])

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(x - root).square().sum() + y.sum(), y[where].square().sum()])

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return (y - root * x).square().sum()

    problem, zero = bp.Problem(upper, lower), torch.zeros(2, dtype=DOUBLE)
    plain = bp.solve(problem, zero, zero, method=METHOD, steps=20, compile=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = bp.solve(problem, zero, zero, method=METHOD, steps=20, compile="eager")
        bp.solve(problem, zero, zero, method=METHOD, steps=20, compile="eager")
    torch.testing.assert_close(compiled.x, plain.x)
    said = [str(w.message) for w in caught if "could not take this problem" in str(w.message)]
    assert len(said) <= 1  # once for a problem, however often it is solved


def test_what_fails_uncompiled_too_is_raised_as_it_is() -> None:
    calls: list[int] = []

    def lower(x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise ValueError("the data ran out")
        return (y - x).square().sum()

    problem = bp.Problem(lambda x, y: torch.stack([x.sum() + y.sum(), y.sum()]), lower)
    with pytest.raises(ValueError, match="the data ran out"):
        bp.solve(
            problem,
            torch.zeros(2, dtype=DOUBLE),
            torch.zeros(2, dtype=DOUBLE),
            method=METHOD,
            steps=20,
            compile="eager",
        )


@pytest.mark.filterwarnings(
    "ignore:.*not converged", "ignore:.*end at one point", "ignore:.*dominated by another"
)
def test_a_sampler_without_a_method_gets_algorithm_2() -> None:
    data = torch.ones(8, 2, dtype=DOUBLE)
    problem = bp.Problem(
        lambda x, y, rows: torch.stack([(x - 1).square() + y.square(), (y - 1).square() + x * 0]),
        lambda x, y, rows: (y - x * rows.mean()).square(),
        sampler=lambda role, t, seed: data,  # batches of data are raced: test_race.py
    )
    zero = torch.zeros((), dtype=DOUBLE)
    assert type(bp.solve(problem, zero, zero, steps=5).method) is bp.MBMOMEHA
    assert type(bp.front(problem, zero, zero, steps=5).method) is bp.MBMOMEHA
    assert type(bp.solve(problem, zero, zero, steps=5, method=bp.MOMEHA()).method) is bp.MOMEHA


def test_warm_up_gradients_are_counted() -> None:
    problem, x, y = nonconvex()
    method = replace(METHOD, warmup=30)
    assert bp.solve(problem, x, y, method=method, steps=10).oracles["lower_gradients"] == 70
    counted = bp.oracle.Counting(problem)
    method.prepare(counted, x, y)
    plain = bp.oracle.Counting(problem)
    METHOD.prepare(plain, x, y)
    assert counted.counts["lower"] - plain.counts["lower"] == 30
    found = bp.front(problem, x, y, preferences=bp.preferences.grid(2, 3), method=method, steps=10)
    assert found.oracles["lower_gradients"] == 3 * 40 + 30


def test_a_block_that_throws_a_run_far_off_is_taken_again_with_shorter_steps() -> None:
    """Steps of x forty times as long as they can be make x grow without end; blocks in which an
    objective rises by more than ten times its range over the front do not count.
    """
    problem = bp.Problem(
        lambda x, y: torch.stack([(x - 1).square() + y.square(), x.square() + (y + 1).square()]),
        lambda x, y: (y - x).square(),
    )
    zero = torch.zeros((), dtype=DOUBLE)
    tuned = bp.MOMEHA.tuned(problem, zero, zero, steps=200)
    weights = bp.preferences.grid(2, 3)
    long = replace(tuned, alpha_x=40.0)
    with pytest.warns(BiparetoWarning, match="not converged"):
        found = bp.front(
            problem, zero, zero, preferences=weights, method=long, steps=200, record_every=4,
            compile=False,
        )  # fmt: skip
    extent = torch.tensor(tuned.extent, dtype=DOUBLE)
    seen = found.run.history["objectives"]
    assert found.failure == (None,) * 3
    assert float((seen.diff(dim=0) / extent).max()) < 2 * THROWN
    assert bool((found.objectives < 5 * extent).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "lower",
    [
        lambda x, y: (y**2).sum() / 2 + (x**2).sum(),  # x acts on the value of g alone
        lambda x, y: ((y - x**2) ** 2).sum() / 2,  # at x0 nothing changes with x
    ],
)
def test_an_x_that_nothing_depends_on_stays_finite_and_is_named(lower: Any, dtype: Any) -> None:
    def upper(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(y - 1).square().sum(), (y + 1).square().sum()])

    zero = torch.zeros(3, dtype=dtype)
    problem = bp.Problem(upper, lower)
    with pytest.warns(BiparetoWarning, match="x has not moved from x0 in 2 of 2 runs"):
        found = bp.front(problem, zero, zero, preferences=bp.preferences.grid(2, 2), steps=50)
    assert torch.equal(found.x, torch.zeros(2, 3, dtype=dtype))
    assert found.objectives.isfinite().all()
