"""The page on methods says what the code says, and the code says what the papers say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import bipareto as bp
from bipareto.methods import METHODS
from bipareto.sweep.comparison import compare
from bipareto_experiments.methods_page import declared, methods_page

DOCS = Path(__file__).parents[2] / "docs"

#: Table 1 as printed in the MOMEHA paper: scenario, lower level, loop, Hessian-free, preference;
#: its last row stands for two methods
PRINTED = {
    "moml": ("deterministic", "one minimiser", "nested", "no", "no"),
    "gmoba": ("deterministic", "strongly convex", "single", "no", "no"),
    "forum": ("deterministic", "strongly convex", "nested", "yes", "no"),
    "moco": ("stochastic", "strongly convex", "nested", "no", "no"),
    "wc-mhgd": ("both", "strongly convex", "nested", "no", "yes"),
    "wc-penalty": ("both", "convex", "single", "no", "yes"),
    "momeha": ("deterministic", "nonconvex", "single", "yes", "yes"),
    "mb-momeha": ("stochastic", "nonconvex", "single", "yes", "yes"),
}

#: methods that solve with g_yy
INVERTING = ("moco", "wc-mhgd", "gmoba")


def test_the_page_is_what_the_code_and_the_results_give() -> None:
    assert (DOCS / "methods.md").read_text("utf-8") == methods_page(DOCS / "results" / "compare"), (
        "run: python benchmarks/compare.py --page"
    )


@pytest.mark.parametrize("name", PRINTED)
def test_the_declarations_are_those_of_the_papers_table(name: str) -> None:
    row = declared(name)
    assert (
        tuple(
            row[column]
            for column in ("scenario", "lower level", "loop", "Hessian-free", "preference")
        )
        == PRINTED[name]
    )


@pytest.mark.parametrize("name", METHODS)
def test_nested_methods_are_those_with_a_number_of_inner_steps(name: str) -> None:
    method = METHODS[name]()
    field = next((f for f in ("inner_steps", "lower_steps") if hasattr(method, f)), None)
    assert (field is not None) == method.traits.nested
    if field is not None:
        more = replace(method, **{field: getattr(method, field) + 3})
        assert more.oracles(2)["lower_gradients"] == method.oracles(2)["lower_gradients"] + 3


def test_results_become_columns_and_a_section(tmp_path: Path) -> None:
    row = {
        "start": 0,
        "kkt": 0.25,
        "gradients": 8,
        "hessian_products": 0,
        "seconds": 1.5,
        "notes": [],
        "steps": 1,
        "runs": 2,
    }
    rows = [
        row | {"method": "moco", "distance_to_front": 0.5, "notes": ["MoCo is lost here"]},
        row | {"method": "momeha", "distance_to_front": 0.125},
        row | {"method": "momeha", "distance_to_front": 1e-3, "start": 1},
        row | {"method": "forum", "distance_to_front": None},
    ]
    about = {
        "problem": "toy",
        "summary": "a toy",
        "command": "make toys",
        "machine": "abacus",
        "date": "today",
        "amount": 1000,
        "preferences": 2,
    }
    (tmp_path / "toy.json").write_text(json.dumps(about | {"starts": [0, 1], "rows": rows}))
    page = methods_page(tmp_path)
    assert "| `MOMEHA` | 1.2e-01 |" in page  # the worse of two starts
    assert "| `MoCo` | 5.0e-01† |" in page
    assert "- `MoCo`: MoCo is lost here" in page
    assert page.index("| `MOMEHA` | 1.2e-01 | 1.0e-03 |") < page.rindex("| `FORUM` | diverged |")
    assert "`make toys`, abacus, today" in page


def test_on_a_singular_lower_level_the_hessian_inverting_methods_fail_and_say_so() -> None:
    problem = bp.problems.get("merely-convex", dim=3)
    found = {
        c.name: c
        for c in compare(
            problem, ["momeha", "wc-penalty", *INVERTING], preferences=2, amount=4000, compile=False
        )
    }
    assert found["momeha"].distance < 1e-4
    assert found["wc-penalty"].distance < 0.1
    for name in ("momeha", "wc-penalty"):
        assert not found[name].notes
    for name in INVERTING:
        assert found[name].distance > 0.2
        assert found[name].kkt > 0.5
        assert "needs a strongly convex lower level" in found[name].notes[0]
        assert "MOMEHA and WCPenalty do without" in found[name].notes[0]


def test_methods_begin_at_the_start_that_is_asked_for() -> None:
    problem = bp.problems.get("quadratic", dim=2)
    x0 = problem.start(2)[0]
    (near,) = compare(problem, ["momeha"], preferences=2, amount=8, start=2, compile=False)
    assert near.front is not None
    assert math.isfinite(near.distance)
    assert (near.front.x - x0).norm() < 0.5 * (near.front.x - problem.x0).norm()
