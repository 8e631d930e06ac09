"""Ctrl-C in the middle: what was cut short is never reported as if it had come to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bipareto as bp
from bipareto.cli import main
from bipareto.run.stepping import Stepper
from bipareto.sweep.comparison import INTERRUPTED, compare
from bipareto.sweep.config import TuneConfig
from bipareto.sweep.tuner import tune
from bipareto.sweep.typed import parse


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C at the n-th step of all that are made."""

    def at(n: int) -> None:
        calls, advance = 0, Stepper.advance

        def interrupted(self: Stepper, packed: Any, batches: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == n:
                raise KeyboardInterrupt
            return advance(self, packed, batches)

        monkeypatch.setattr(Stepper, "advance", interrupted)

    return at


def test_a_comparison_keeps_the_methods_that_came_to_their_end(
    press: Callable[[int], None],
) -> None:
    problem = bp.problems.get("quadratic", dim=3)
    whole = compare(problem, ["momeha"], preferences=2, amount=400, compile=False)
    press(70)  # the first method makes 50 steps
    found = compare(
        problem, ["momeha", "wc-penalty", "moco"], preferences=2, amount=400, compile=False
    )
    assert [c.name for c in found] == ["momeha", "wc-penalty", "moco"]
    assert found[0].figures() | {"seconds": 0} == whole[0].figures() | {"seconds": 0}
    assert all(c.front is None and c.notes == (INTERRUPTED,) for c in found[1:])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["compare", "quadratic", "--dim", "3", "--preferences", "2", "--no-compile"],
            2,
            "nothing was compared; momeha, moml",
        ),
        (
            ["front", "quadratic", "--dim", "3", "--steps", "300", "--no-compile"],
            0,
            "of 300 steps: the points are those reached by then",
        ),
        (
            ["experiment", "nas", "search", "--tiny"],
            2,
            "interrupted, and nothing was kept; with --out FOLDER",
        ),
        (
            ["experiment", "fewshot", "comparison", "--tiny", "--methods", "momeha"],
            2,
            "interrupted, and nothing was kept; with --out FOLDER",
        ),
        (["demo"], 130, ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_says_that_it_was_interrupted(
    press: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    press(2)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("front.*"))


def test_a_search_of_numbers_learns_nothing_from_runs_cut_short(
    press: Callable[[int], None], tmp_path: Path
) -> None:
    optuna = pytest.importorskip("optuna")
    sweep = {
        "problem": {"name": "quadratic", "options": {"dim": 2}},
        "method": {"hyperparameters": "plain"},
        "preferences": {"count": 2},
        "steps": 20,
        "compile": False,
    }
    search = parse(
        TuneConfig,
        {"sweep": sweep, "space": {"mu": {"low": 1, "high": 8}}, "trials": 4, "batch": 2},
    )
    press(30)  # in the second batch
    storage = f"sqlite:///{tmp_path / 'tune.db'}"
    with pytest.raises(KeyboardInterrupt):
        tune(search, tmp_path / "tune", storage=storage)
    told = optuna.load_study(study_name="tune", storage=storage).get_trials()
    assert [trial.state.name for trial in told] == ["COMPLETE", "COMPLETE", "RUNNING", "RUNNING"]


def test_the_doctor_says_when_there_is_nothing_to_look_at(
    press: Callable[[int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    press(2)  # the first is a try
    words = ["front", "quadratic", "--dim", "3", "--no-compile", "--out", str(tmp_path / "a")]
    for command, said in (
        (words, f"go on with: bipareto resume {tmp_path / 'a'}"),
        (["doctor", str(tmp_path / "a")], "is not finished; go on with: bipareto resume"),
    ):
        with pytest.raises(SystemExit) as left:
            main(command)
        assert left.value.code == 2
        assert said in capsys.readouterr().err


def test_a_solution_without_records_is_nothing_to_examine(press: Callable[[int], None]) -> None:
    press(1)
    known = bp.problems.get("quadratic", dim=3)
    found = bp.solve(known, known.x0, known.y0, compile=False)
    with pytest.raises(bp.errors.InvalidInput, match="stopped before anything was recorded"):
        bp.diagnose(found)
