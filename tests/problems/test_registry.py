"""Problems by name."""

from __future__ import annotations

from typing import Any

import pytest

from bipareto import problems
from bipareto.errors import InvalidInput


def test_names_and_summaries() -> None:
    assert problems.names() == (
        "quadratic",
        "pl-sin2",
        "sin",
        "sin-trap",
        "mo-sin",
        "mo-sin2",
        "merely-convex",
        "tp2-s",
        "ds1",
        "ridge",
        "bistable",
    )
    for name, kind in problems.PROBLEMS.items():
        assert kind.name == name
        assert 10 < len(kind.summary) <= 100
        assert "\n" not in kind.summary
        assert isinstance(problems.get(name), kind)


def test_options_are_those_of_the_class() -> None:
    assert problems.options("pl-sin2") == {"dim": 20, "kappa": 1.5, "m": 2, "seed": 0, "noise": 0.0}
    assert problems.options("sin-trap") == {"noise": 0.0}
    assert problems.get("quadratic", dim=3, m=3).x0.shape == (3,)


@pytest.mark.parametrize("call", [problems.get, problems.options])
def test_unknown_names_are_answered_with_the_choices(call: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"'cubic' is not known; choose one of quadratic, pl-sin2"
    ):
        call("cubic")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "quadratic",
            {"kappa": 1.0},
            "'quadratic' has no option 'kappa'; choose from dim, m, seed, noise",
        ),
        ("quadratic", {"m": 5}, "m = 5; choose 2, 3 or 4"),
        ("quadratic", {"m": 1}, "m = 1; choose 2, 3 or 4"),
        ("merely-convex", {"m": 4, "dim": 2}, "dim = 2; the minima of m = 4 objectives"),
        ("pl-sin2", {"kappa": -0.1}, r"kappa = -0.1; it must be >= 0"),
        ("sin", {"n": 0}, "n = 0; it must be >= 1"),
        ("mo-sin", {"n": 1}, "n = 1; it must be >= 2"),
        ("mo-sin", {"a": (0.0, 4.0)}, r"a = \(0.0, 4.0\); pass two different numbers"),
        ("mo-sin2", {"a": (1.0, 1.0)}, r"a = \(1.0, 1.0\); pass two different numbers"),
        ("tp2-s", {"dim": 0}, "dim = 0; it must be >= 1"),
        ("ds1", {"dim": 1}, "dim = 1; it must be >= 2"),
        ("ridge", {"dim": 40}, "dim = 40; choose fewer features than the 40"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        problems.get(name, **options)
