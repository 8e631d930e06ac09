from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem.oracle import Counting
from helpers import DOUBLE, nonconvex

ONE = torch.ones(2, dtype=DOUBLE)


def upper(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack(
        [(x - 1).square().sum() + y.square().sum(), x.square().sum() + (y - 1).square().sum()]
    )


def lower(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum()


@pytest.mark.parametrize(
    ("f", "g", "words"),
    [
        (upper, lambda x, y: (x - y).square(), ["lower", r"\(2,\)", "sum"]),
        (upper, lambda x, y: x.square().sum(), ["lower does not depend on y"]),
        (lambda x, y: (x + y).sum(), lower, ["upper", r"\(\)", "stack"]),
        (lambda x, y: [x.sum(), y.sum()], lower, ["upper returned a list", "stack"]),
        (
            lambda x, y: torch.stack([y.sum(), torch.zeros((), dtype=DOUBLE)]),
            lower,
            ["objective 1", "neither"],
        ),
        (lambda x, y: x.new_empty(0), lower, [r"upper returned shape \(0,\)"]),
        (
            lambda x, y: upper(x, y).float(),
            lower,
            ["upper returned dtype torch.float32", "x0 has torch.float64"],
        ),
        (upper, lambda x, y: lower(x, y).float(), ["lower returned dtype torch.float32"]),
        (lambda x, y: y.sum()[None], lambda x, y: y.square().sum(), ["depends on x"]),
        (lambda x, y: upper(x, y)[:1].expand(3), lower, ["m = 3", "2 entries"]),
    ],
)
def test_functions_no_method_could_use_are_named(
    f: Callable[..., Tensor], g: Callable[..., Tensor], words: list[str]
) -> None:
    with pytest.raises(InvalidInput) as error:
        bp.MOMEHA().init(bp.Problem(f, g), ONE, ONE, [0.5, 0.5])
    for word in words:
        assert re.search(word, str(error.value)), (word, str(error.value))


@pytest.mark.parametrize(
    ("f", "g", "words"),
    [
        (upper, lambda x, y: lower(x, y) + torch.nan * y.sum(), "lower is nan at the start"),
        (
            lambda x, y: upper(x, y) * torch.tensor([1.0, torch.inf], dtype=DOUBLE),
            lower,
            "objective 1 is inf at the start",
        ),
    ],
)
def test_a_start_at_nan_is_not_called_too_large_a_step(
    f: Callable[..., Tensor], g: Callable[..., Tensor], words: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{words}.*in the data"):
        bp.solve(bp.Problem(f, g), ONE, ONE, preference=[0.5, 0.5], steps=2)


def test_a_start_at_the_edge_of_the_domain_is_allowed() -> None:
    """`check` looks a little off the start, where sqrt(x - 1) may be NaN; only the start itself
    counts.
    """
    problem = bp.Problem(lambda x, y: upper(x, y) + 0.1 * (x - 1).sqrt().sum(), lower)
    assert problem.check(ONE, ONE) == 2


def test_an_objective_without_y_is_warned_of() -> None:
    problem = bp.Problem(lambda x, y: torch.stack([x.square().sum(), y.square().sum()]), lower)
    with pytest.warns(BiparetoWarning, match="objective 0 does not depend on y"):
        assert problem.check(ONE, ONE) == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [(lambda v: v, r"\(2,\)"), (lambda v: 1.0, "float"), (lambda v: None, "NoneType")],
)
@pytest.mark.parametrize("data", [None, "shared", "own"])
def test_an_objective_that_is_no_number_is_named(value: Any, words: str, data: str | None) -> None:
    """Beside others that are: torch's words were of a stack."""
    f = [lambda x, y, *b: (x - y).square().sum(), lambda x, y, *b: value((x + y).square())]
    rows = torch.ones(3, 1)
    given = {} if data is None else {"lower_data": rows, "upper_data": rows}
    if data == "own":
        given["upper_data"] = [rows, rows]
    problem, x0, y0 = bp.Problem.from_modules(
        x=torch.ones(2), y=torch.ones(2), upper=f, lower=lambda x, y, *b: (x - y).norm(), **given
    )
    with pytest.raises(InvalidInput, match=f"objective 1 returned ({words}); it must be a scalar"):
        problem.check(x0, y0)
    plain = bp.Problem(f, lower)
    with pytest.raises(InvalidInput, match=f"objective 1 returned ({words}); it must be a scalar"):
        plain.check(ONE, ONE)


def test_an_objective_at_its_floor_is_warned_of() -> None:
    """One that is met at the start is an objective like any other."""
    problem = bp.Problem(
        lambda x, y: torch.stack([(x - y).square().sum(), (y - 3).relu().sum()]), lower
    )
    with pytest.warns(BiparetoWarning, match=r"objective 1 has no slope.*where it is 0;.*relu"):
        assert problem.check(ONE, ONE) == 2

    def budget(x: Tensor, y: Tensor) -> Tensor:  # far from where it says anything
        return torch.stack([(x - y).square().sum(), (y.square().sum() - 1e3).relu()])

    with pytest.warns(BiparetoWarning, match=r"objective 1 has no slope"):
        assert bp.Problem(budget, lower).check(ONE, ONE) == 2

    def undefined(x: Tensor, y: Tensor) -> Tensor:
        if float(y.detach().norm()) > 2:
            raise ValueError("far away")
        return torch.stack([(x - y).square().sum(), (y - 9).relu().sum()])

    with pytest.raises(InvalidInput, match="objective 1 depends neither"):
        bp.Problem(undefined, lower).check(ONE, ONE)


@pytest.mark.parametrize(
    ("x0", "y0", "words"),
    [
        (ONE, ONE.float(), ["y0", "float32", "x0", "float64"]),
        (ONE, torch.empty(2, dtype=DOUBLE, device="meta"), ["y0", "meta", "cpu"]),
        (torch.tensor([1.0, torch.nan], dtype=DOUBLE), ONE, ["x0", "NaN"]),
        (ONE.bfloat16(), ONE.bfloat16(), ["x0", "bfloat16", "count its steps", "autocast"]),
        (ONE.half(), ONE.half(), ["x0", "float16", "count its steps"]),
    ],
)
def test_starts_that_do_not_fit_are_named(x0: Tensor, y0: Tensor, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as error:
        bp.Problem(upper, lower).check(x0, y0)
    for word in words:
        assert word in str(error.value)


def test_inference_mode_is_named_and_no_grad_does_no_harm() -> None:
    problem = bp.Problem(upper, lower)
    with torch.inference_mode(), pytest.raises(InvalidInput, match="inference_mode"):
        problem.check(ONE, ONE)
    with torch.no_grad():
        quiet = bp.solve(problem, ONE, ONE, method=bp.MOMEHA(), steps=3)
    assert torch.equal(quiet.x, bp.solve(problem, ONE, ONE, method=bp.MOMEHA(), steps=3).x)


def test_what_is_not_a_function_is_named() -> None:
    with pytest.raises(InvalidInput, match="lower is 3"):
        bp.Problem(upper, 3)  # type: ignore[arg-type]


def test_a_sequence_of_objectives_is_the_stacked_function() -> None:
    problem, x, y = nonconvex()
    parts = bp.Problem([lambda x, y, i=i: problem.upper(x, y)[i] for i in range(2)], problem.lower)
    assert torch.equal(parts.upper(x, y), problem.upper(x, y))
    assert torch.equal(parts.objective(1, x, y), problem.upper(x, y)[1])


def test_names_must_fit() -> None:
    with pytest.raises(InvalidInput, match="3 entries"):
        bp.Problem(upper, lower, names=["a", "b", "c"]).check(ONE, ONE)


@pytest.mark.parametrize(
    ("parts", "words"),
    [((None, None), "but objective 1 depends on y"), ((None, 0, 0), "m = 2 objectives")],
)
def test_an_objective_that_is_wrongly_said_not_to_use_y_is_named(
    parts: tuple[int | None, ...], words: str
) -> None:
    """Its dependence on y would be left out of every hypergradient without a word."""
    problem = bp.Problem(
        lambda x, y: torch.stack([x.square().sum(), (x - y).square().sum()]), lower
    )
    problem.parts = parts
    with pytest.raises(InvalidInput, match=words):
        bp.MOMEHA().init(problem, ONE, ONE, [0.5, 0.5])
    problem.parts = (None, 0)
    bp.MOMEHA().init(
        problem, ONE, ONE, [0.5, 0.5]
    )  # without the warning that objective 0 does not depend on y


class InParts(bp.Problem):
    """g = (y_0 - x)^2 + factor (y_1 + x)^2, f_0 = y_0^2, f_1 = (y_1 - 1)^2 + tie y_0."""

    parts = (0, 1)

    def __init__(self, factor: float = 1.0, tie: float = 0.0) -> None:
        super().__init__(
            lambda x, y: torch.stack([y[0].square(), (y[1] - 1).square() + tie * y[0]]),
            lambda x, y: (y[0] - x).square().sum() + factor * (y[1] + x).square().sum(),
        )

    def lower_part(self, part: int, x: Tensor, y: Tensor, batch: object = None) -> Tensor:
        return (y[part] - (x, -x)[part]).square().sum()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [({"factor": 2.0}, "do not add up to lower"), ({"tie": 0.1}, "the same coordinates of y")],
)
def test_wrong_parts_are_refused(numbers: dict[str, float], words: str) -> None:
    start = ONE, torch.tensor([0.5, 0.2], dtype=DOUBLE)
    assert InParts().check(*start) == 2
    assert Counting(InParts()).check(*start) == 2
    with pytest.raises(InvalidInput, match=words):
        InParts(**numbers).check(*start)


@pytest.mark.parametrize(
    ("upper", "lower", "words"),
    [
        (
            lambda x: torch.stack([x, x]),
            lambda x, y: (y - x) ** 2,
            r"upper\(x\) cannot be called as upper\(x, y\)",
        ),
        (
            lambda x, y: torch.stack([x, y]),
            lambda x, y, batch: (y - x) ** 2,
            r"lower\(x, y, batch\) cannot be called as lower\(x, y\); pass sampler=",
        ),
        ([torch.add, lambda y: y], lambda x, y: (y - x) ** 2, r"upper\(y\) cannot be called"),
    ],
)
def test_functions_of_other_arguments_are_named(upper: Any, lower: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bp.Problem(upper, lower).check(torch.tensor(0.0), torch.tensor(0.0))


def test_with_data_a_function_must_take_the_draw() -> None:
    problem = bp.Problem(
        lambda x, y, batch: torch.stack([x, y]),
        lambda x, y: (y - x) ** 2,
        sampler=lambda role, t, seed: 0.0,
    )
    with pytest.raises(
        InvalidInput,
        match=r"lower\(x, y\) cannot be called as lower\(x, y, batch\); the last is the draw",
    ):
        problem.check(torch.tensor(0.0), torch.tensor(0.0))
