from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bipareto as bp
from bipareto.cli import main
from bipareto.errors import InvalidInput
from bipareto.run.stepping import Stepper
from bipareto.sweep.comparison import applicable, compare, gradient_cost
from helpers import call


def test_every_run_gets_the_same_budget_and_the_best_comes_first() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    found = compare(problem, ["momeha", "gmoba"], preferences=3, amount=2400, compile=False)
    assert [c.distance for c in found] == sorted(c.distance for c in found)
    for c in found:
        assert c.method is not None
        assert c.front is not None
        spent = c.gradients + 2 * c.hessian_products
        assert 2400 - gradient_cost(c.method, 2) < spent <= 2400
        assert len(c.front) == (3 if c.method.uses_preference else 1)
        assert c.front.lower_residual is not None
        assert c.front.lower_residual.max() < 1e-7


def test_a_method_that_refuses_is_listed_last_with_its_reason() -> None:
    problem = bp.problems.get("quadratic", dim=3)
    found = compare(problem, ["meha", "momeha"], preferences=2, amount=400, compile=False)
    assert [c.name for c in found] == ["momeha", "meha"]
    assert found[1].front is None
    assert "use MOMEHA" in found[1].notes[0]


def test_who_applies_and_what_is_refused() -> None:
    assert "meha" not in applicable(bp.problems.get("quadratic"))
    assert "mb-momeha" in applicable(bp.problems.get("quadratic", noise=0.1))
    assert "meha" in applicable(bp.problems.get("sin"))
    problem = bp.problems.get("quadratic")
    with pytest.raises(InvalidInput, match="'best' is not known"):
        compare(problem, ["best"])
    with pytest.raises(InvalidInput, match="choose oracles or seconds"):
        compare(problem, ["momeha"], budget="steps")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="it must be > 0"):
        compare(problem, ["momeha"], amount=0)


def test_the_command_writes_a_table_a_file_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "compare",
        "quadratic",
        "--dim",
        "3",
        "--methods",
        "momeha,wc-penalty",
        "--preferences",
        "2",
        "--amount",
        "400",
        "--no-compile",
    ]
    with pytest.raises(SystemExit) as left:
        main([*words, "--json", "--out", str(tmp_path)])
    assert left.value.code == 0
    shown = capsys.readouterr()
    data = json.loads(shown.out.strip().splitlines()[-1])
    assert {row["method"] for row in data["methods"]} == {"momeha", "wc-penalty"}
    assert "hypervolume" in shown.err
    written = {"command.json", "comparison.json", "comparison.png", "methods"}
    assert {p.name for p in tmp_path.iterdir()} == written


def test_a_front_can_be_certified_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "front",
        "quadratic",
        "--dim",
        "3",
        "--preferences",
        "2",
        "--steps",
        "400",
        "--no-compile",
        "--quiet",
    ]
    with pytest.raises(SystemExit):
        main([*words, "--out", str(tmp_path / "run")])
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["certify", str(tmp_path / "run"), "--json"])
    assert left.value.code == 0
    data = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [c["lower_curvature"] for c in data["certificates"]] == ["minimum", "minimum"]
    assert all(c["gradients"] <= 200 for c in data["certificates"])
    for wrong in (["certify", str(tmp_path)], ["certify", str(tmp_path / "run"), "--index", "7"]):
        with pytest.raises(SystemExit) as left:
            main(wrong)
        assert left.value.code == 2
        assert "error:" in capsys.readouterr().err


def test_a_comparison_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the second method: the same command finishes it, and comes to the same digits."""
    words = ["compare", "quadratic", "--dim", "2", "--preferences", "3", "--amount", "600"]
    words += ["--methods", "momeha,gmoba", "--no-compile", "-q", "--out"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert call(*words, whole) == 0
    advance = Stepper.advance

    def stopping(self: Stepper, *given: Any) -> Any:
        if (run / "methods/gmoba/slices/00000/attempts.jsonl").exists():
            raise KeyboardInterrupt
        return advance(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", stopping)
        assert call(*words, run) == 2
    assert "the same command" in capsys.readouterr().err
    assert not (run / "comparison.json").exists()
    assert call("watch", run, "--once") == 0
    assert "gmoba on quadratic, 1 runs, stopped" in capsys.readouterr().out
    note = (run / "command.json").read_text()
    (run / "command.json").unlink()
    assert call("resume", run) == 2
    assert "bipareto compare is called again" in capsys.readouterr().err
    (run / "command.json").write_text(note)
    assert call(*words, run, "--seed", "1") == 2
    assert "holds runs of another comparison (seeds" in capsys.readouterr().err
    written = (run / "methods/momeha/slices/00000/result.safetensors").stat().st_mtime_ns
    assert call("resume", run) == 0  # by the words it was begun with, not by those it refused
    assert (run / "methods/momeha/slices/00000/result.safetensors").stat().st_mtime_ns == written
    for name in ("momeha", "gmoba"):
        front = f"methods/{name}/front.csv"
        assert (run / front).read_bytes() == (whole / front).read_bytes()

    def figures(folder: Path) -> list[dict[str, Any]]:
        rows = json.loads((folder / "comparison.json").read_text())["methods"]
        return [{k: v for k, v in row.items() if k not in ("seconds", "notes")} for row in rows]

    assert figures(run) == figures(whole)
    assert call(*words, run) == 2
    assert "holds a comparison already" in capsys.readouterr().err
