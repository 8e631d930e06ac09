"""What every method must pass, present and future: a new entry of METHODS is tested here without a
line being added.

Methods run with their default numbers, on small problems with a strongly convex lower level, a
nonconvex one, and noise.
"""

from __future__ import annotations

import gc
import io
import re
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.methods import METHODS
from bipareto.methods.base import State
from bipareto.problem import Problem, tree
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto_battery.cases import (
    DICT_PROBLEM,
    KINDS,
    Tapped,
    case,
    dict_start,
    made,
    preference_of,
    steps_of,
)

pytestmark = [
    pytest.mark.parametrize("name", METHODS),
    # Methods that invert the lower Hessian say so on the nonconvex problem; that they do is tested
    # beside each.
    pytest.mark.filterwarnings(f"ignore::{BiparetoWarning.__module__}.{BiparetoWarning.__name__}"),
]
kinds = pytest.mark.parametrize("kind", KINDS)


def last(states: Any) -> Any:
    """The last (state, info) of a run."""
    *_, final = states
    return final


def assert_equal(a: State, b: State) -> None:
    """Equal to the last bit."""
    for (path, u), (_, v) in zip(
        tree.named_leaves(a, "state"), tree.named_leaves(b, "state"), strict=True
    ):
        assert torch.equal(u, v), f"{path} differs by {(u - v).abs().max()}"


def assert_near(a: State, b: State, tol: float = 1e-10) -> None:
    for u, v in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(u, v, rtol=tol, atol=tol)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@kinds
def test_shapes_dtypes_devices(name: str, kind: str, dtype: torch.dtype, device: str) -> None:
    given = case(name, kind, dtype=dtype, device=device)
    before = given.init(preference_of(given.method, given.m))
    after, info = last(steps_of(given, before, 0, 3))
    assert tree.structure(before) == tree.structure(after)
    for (path, u), (_, v) in zip(
        tree.named_leaves(before, "state"), tree.named_leaves(after, "state"), strict=True
    ):
        assert (u.shape, u.dtype, u.device) == (v.shape, v.dtype, v.device), path
        assert not v.requires_grad, path
        assert torch.isfinite(v).all(), path
    assert after.t == 3
    assert after.t.shape == ()
    draws = draw(given.problem, given.method.roles(given.m), 2, [0])
    report = given.method.report(given.problem, before, after, info, draws)
    assert report["objectives"].shape == (given.m,)
    assert report["lower"].shape == report["residual"].shape == ()
    for key, value in report.items():
        assert value.dtype == dtype, key
        assert not value.requires_grad, key
        assert torch.isfinite(value).all(), key


@kinds
def test_steps_are_pure(name: str, kind: str) -> None:
    given = case(name, kind)
    state = given.init(preference_of(given.method, given.m))
    state, _ = last(steps_of(given, state, 0, 2))
    copy = tree.map_(torch.clone, state)
    batches = draw(given.problem, given.method.roles(given.m), 2, [0])
    batches_copy = tree.map_(torch.clone, batches)
    first, second = (given.method.step(given.problem, state, batches) for _ in range(2))
    assert_equal(first, second)
    assert_equal(state, copy)
    assert_equal(batches, batches_copy)
    torch.manual_seed(1)
    assert_equal(first, given.method.step(given.problem, state, batches))


def some_states(name: str, kind: str) -> tuple[Any, list[State]]:
    """A case and three of its states, from different starts and preferences."""
    given = case(name, kind)
    w = preference_of(given.method, given.m)
    starts = [
        (given.x + 0.1 * i, given.y - 0.1 * i, w.flip(0) if w is not None and i == 1 else w)
        for i in range(3)
    ]
    return given, [given.method.init(given.problem, x, y, w) for x, y, w in starts]


@kinds
def test_vmap_equals_a_loop(name: str, kind: str) -> None:
    given, states = some_states(name, kind)
    together = tree.stack(states)
    batched = stepper(given.problem, given.method, batched=True)
    for t in range(3):
        batches = draw(given.problem, given.method.roles(given.m), t, [0])
        before = together
        together, info = batched(together, batches)
        one_by_one = [given.method.step(given.problem, state, batches) for state in states]
        states = [state for state, _ in one_by_one]
        assert_near((together, info), tree.stack(one_by_one))
    rows = [
        given.method.report(
            given.problem,
            tree.select(before, i),
            tree.select(together, i),
            tree.select(info, i),
            batches,
        )
        for i in range(3)
    ]
    report = torch.func.vmap(lambda b, a, i: given.method.report(given.problem, b, a, i, batches))(
        before, together, info
    )
    assert_near(report, tree.stack(rows))


@pytest.mark.parametrize(
    ("batched", "kind"),
    [
        (True, "quadratic"),
        pytest.param(False, "quadratic", marks=pytest.mark.slow),
        pytest.param(True, "noisy", marks=pytest.mark.slow),
    ],
)
def test_compiled_equals_eager(name: str, batched: bool, kind: str) -> None:
    torch._dynamo.reset()
    given, states = some_states(name, kind)
    state = tree.stack(states) if batched else states[0]
    plain = stepper(given.problem, given.method, batched=batched)
    fast = stepper(given.problem, given.method, batched=batched, compile="aot_eager")
    expected = state
    for t in range(2):
        batches = draw(given.problem, given.method.roles(given.m), t, [0])
        expected, expected_info = plain(expected, batches)
        state, info = fast(state, batches)
        assert_near((state, info), (expected, expected_info))


@kinds
def test_resuming_equals_going_on(name: str, kind: str) -> None:
    given = case(name, kind)
    state = given.init(preference_of(given.method, given.m))
    whole, _ = last(steps_of(given, state, 0, 8))
    half, _ = last(steps_of(given, state, 0, 4))
    file = io.BytesIO()
    torch.save(tree.leaves(half), file)
    file.seek(0)
    # A new object of the same class, as another process would make it.
    again = case(name, kind)
    loaded = tree.rebuild(
        again.init(preference_of(again.method, again.m)), torch.load(file, weights_only=True)
    )
    assert_equal(last(steps_of(again, loaded, 4, 8))[0], whole)


@pytest.mark.parametrize("kind", ["quadratic", "nonconvex"])
def test_permuting_objectives_permutes_the_answer(name: str, kind: str) -> None:
    given = case(name, kind, m=3)
    order = list(range(given.m))[::-1]
    permuted = given._replace(
        problem=Problem(lambda x, y: given.problem.upper(x, y)[order], given.problem.lower)
    )
    w = preference_of(given.method, given.m)
    a, info_a = last(steps_of(given, given.init(w), 0, 15))
    b, info_b = last(steps_of(permuted, permuted.init(None if w is None else w[order]), 0, 15))
    torch.testing.assert_close(a.x, b.x, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(a.y, b.y, rtol=1e-9, atol=1e-10)
    for key in ("objectives", "weights"):
        if key in info_a:
            torch.testing.assert_close(info_a[key][order], info_b[key], rtol=1e-7, atol=1e-8)


def test_one_objective_is_simply_minimised(name: str) -> None:
    problem, x, y = made(1)
    method = METHODS[name].tuned(problem, x, y, steps=400)
    given = case(name, m=1)._replace(method=method)
    state, info = last(steps_of(given, method.init(problem, x, y), 0, 400))
    curvature = torch.func.hessian(lambda y_: problem.lower(x, y_))(y)

    def value(x_: Tensor) -> Tensor:
        """f_1(x, y*(x)), quadratic in x: one Newton step from y is y*, and one in x is the
        minimiser.
        """
        return problem.upper(
            x_,
            y - torch.linalg.solve(curvature, torch.func.grad(lambda y_: problem.lower(x_, y_))(y)),
        )[0]

    best = x - torch.linalg.solve(torch.func.hessian(value)(x), torch.func.grad(value)(x))
    assert (state.x - best).norm() < 0.1 * (x - best).norm()
    if "weights_slack" in info:
        torch.testing.assert_close(info["weights"], torch.ones_like(info["weights"]))


@kinds
def test_weights_satisfy_their_optimality_conditions(name: str, kind: str) -> None:
    given = case(name, kind, m=4)
    infos = [
        info for _, info in steps_of(given, given.init(preference_of(given.method, given.m)), 0, 5)
    ]
    if "weights_slack" not in infos[0]:
        pytest.skip("it solves no program for weights")
    for info in infos:
        assert info["weights_slack"] <= 1e-9
        assert (info["weights"] >= 0).all()
        torch.testing.assert_close(info["weights"].sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_steps_take_no_more_memory_or_time(name: str, steps: int) -> None:
    given = case(name, d=2)
    first = state = given.init(preference_of(given.method, given.m))
    held: list[int] = []
    for t in range(steps):
        state, _ = given.method.step(given.problem, state)
        if t + 1 in (100, steps):
            gc.collect()
            held.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))
    assert held[1] <= held[0]
    # In turns, so that a busy machine slows both alike.
    seconds: dict[str, list[float]] = {"first": [], "last": []}
    for _ in range(25):
        for when, point in (("first", first), ("last", state)):
            start = time.process_time()
            given.method.step(given.problem, point)
            seconds[when].append(time.process_time() - start)
    assert min(seconds["last"]) < 1.5 * min(seconds["first"])


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("kind", ["quadratic", "nonconvex"])
def test_declared_oracles_are_what_happens(name: str, kind: str, m: int) -> None:
    given = case(name, kind, m=m)
    state = given.init(preference_of(given.method, given.m))
    tapped = Tapped(given.problem)
    given.method.step(tapped, state)
    found = {
        "lower_gradients": tapped.counts["lower_gradients"],
        "upper_gradients": tapped.counts["upper"],
    }
    found["hessian_products"] = tapped.counts["hessian_products"]
    assert found == given.method.oracles(given.m)
    assert tapped.counts["lower"] == tapped.counts["lower_gradients"], (
        "g was evaluated without being differentiated"
    )


class Recorder(dict[str, Any]):
    """A dict that knows which of its keys were read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def test_steps_read_the_draws_they_declare(name: str) -> None:
    given = case(name, "noisy")
    roles = given.method.roles(given.m)
    assert len(set(roles)) == len(roles)
    batches = Recorder(draw(given.problem, roles, 0, [0]))
    given.method.step(given.problem, given.init(preference_of(given.method, given.m)), batches)
    assert batches.read == set(roles)


def test_trees_give_what_the_flat_vector_gives(name: str) -> None:
    x, y = dict_start()

    def nested(u: Tensor, v: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
        return {"a": u[:2], "b": u[2:]}, [v[:2], v[2:]]

    m = case(name).m
    trees = Problem(lambda x, y: DICT_PROBLEM.upper(x, y)[:m], DICT_PROBLEM.lower)
    flat = Problem(lambda u, v: trees.upper(*nested(u, v)), lambda u, v: trees.lower(*nested(u, v)))
    given = case(name)._replace(problem=trees, x=x, y=y)
    w = preference_of(given.method, m)
    a, _ = last(steps_of(given, given.init(w), 0, 10))
    given = given._replace(problem=flat, x=tree.ravel(x), y=tree.ravel(y))
    b, _ = last(steps_of(given, given.init(w), 0, 10))
    torch.testing.assert_close(tree.ravel(a.x), b.x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tree.ravel(a.y), b.y, rtol=1e-12, atol=1e-12)


def test_preferences_are_taken_or_refused_by_name(name: str) -> None:
    given = case(name)
    if given.method.uses_preference:
        torch.testing.assert_close(
            given.init([0.25, 0.75]).preference, torch.tensor([0.25, 0.75], dtype=torch.float64)
        )
    else:
        with pytest.raises(
            InvalidInput, match=rf"{type(given.method).__name__} has no preferences.*MOMEHA"
        ):
            given.init([1 / given.m] * given.m)


def test_a_method_says_where_it_comes_from(name: str) -> None:
    source = sys.modules[METHODS[name].__module__].__doc__ or ""
    assert re.search(r"[A-Z][a-z]+ and [A-Z][a-z]+", source), "its authors"
    assert re.search(r'arXiv \d{4}\.\d{5}|20\d\d|, "[^"]+"', source), "its number, year or title"
    assert "Args:" in (METHODS[name].__doc__ or "")
