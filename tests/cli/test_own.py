"""Commands on a problem of one's own, and `bipareto init`, which writes one to begin with."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from bipareto.cli import main
from bipareto.doctor.environment import environment
from bipareto.sweep.contenders import Contender, verdicts

#: On the front x = y in [0, 1]; a second function of the same, whose gradients are drawn.
OWN = """
import torch
import bipareto as bp

def upper(x, y):
    return torch.stack([x.square().sum() + y.square().sum(), (y - 1).square().sum()])

def lower(x, y):
    return (y - x).square().sum()

def make(width=2):
    zero = torch.full((width,), 0.5, dtype=torch.float64)
    return bp.Problem(upper, lower), zero, zero

def drawn():
    rows = torch.arange(40.0).reshape(20, 2) / 40
    sampler = bp.sampler.Minibatches(lower=rows, upper=rows, size=5)
    problem = bp.Problem(
        lambda x, y, batch: upper(x, y) + batch.mean(),
        lambda x, y, batch: (batch * (y - x).square()).sum() / 5 + lower(x, y),
        sampler=sampler,
    )
    return problem, torch.full((2,), 0.5), torch.full((2,), 0.5)
"""


def call(*words: object) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


@pytest.fixture
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_functions.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("_own")
def test_methods_are_compared_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = "own_functions:make --methods momeha,moml --preferences 3 --amount 3000 --no-compile"
    assert call("compare", *words.split(), "--out", "c", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in shown["methods"]} == {"momeha", "moml"}
    # Three preferences cover more than a method without; both are on the front, where f_1 = 2 f_2
    # + 2 - 4 sqrt(f_2/2), so the volumes are those of their points.
    best, other = shown["methods"]
    assert best["method"] == "momeha"
    assert best["hypervolume"] > other["hypervolume"]
    assert "on one seed" in shown["verdicts"][0]
    assert call("report", "c", "--no-certify", "-q") == 0
    assert json.loads(Path("c/comparison.json").read_text())["reference"] == shown["reference"]


@pytest.mark.usefixtures("_own")
def test_seeds_give_errors_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    words = "own_functions:drawn --methods mb-momeha,forum --preferences 2 --amount 900"
    assert call("compare", *words.split(), "--seed", "0,1", "--no-compile", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    for row in shown["methods"]:
        a, b = row["hypervolumes"]
        assert row["hypervolume_mean"] == pytest.approx((a + b) / 2)
        # two values: the standard error of the mean is half of their distance
        assert row["hypervolume_error"] == pytest.approx(abs(a - b) / 2)
    assert len(shown["verdicts"]) == 1
    assert "2 seeds" in shown["verdicts"][0]


def contender(name: str, *volumes: float) -> Contender:
    nan = math.nan
    return Contender(name, None, None, 1, nan, nan, nan, nan, 1, 0, 1.0, (), volumes)


def test_who_is_ahead_is_said_beyond_two_errors_only() -> None:
    near = verdicts([contender("a", 1.0, 1.2), contender("b", 1.1, 1.3)])
    assert near == ["b and a cannot be told apart: 0.1 ± 0.14 over 2 seeds"]
    far = verdicts([contender("a", 1.0, 1.2, 1.1), contender("b", 2.1, 2.3, 2.2)])
    assert far == ["b is ahead of a by 1.1 ± 0.082, beyond two standard errors of 3 seeds"]
    assert "change nothing" in verdicts([contender("a", 1.0, 1.0), contender("b", 2.0, 2.0)])[0]
    assert verdicts([contender("a", 1.0)]) == []


@pytest.mark.usefixtures("_own")
def test_certify_doctor_and_tune_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("certify", "own_functions:make", "--steps", "400", "--json") == 0
    points = json.loads(capsys.readouterr().out)
    assert points["run"] == "own_functions:make"
    assert all(row["lower_curvature"] == "minimum" for row in points["certificates"])
    assert call("doctor", "own_functions:make", "--steps", "400", "--json") in (0, 1)
    assert json.loads(capsys.readouterr().out)["runs"] == 5
    pytest.importorskip("optuna")
    words = "own_functions:make --trials 2 --steps 30 --space mu=1:4 --out t --json"
    assert call("tune", *words.split()) == 0
    assert 1 <= json.loads(capsys.readouterr().out)["hyperparameters"]["mu"] <= 4
    assert call("tune", "own_functions:make", "--space", "mu=4") == 2


def test_init_writes_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("init", tmp_path / "mine", "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(name).name for name in files] == ["problem.py", "front.yaml"]
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = Path("front.yaml").read_text().replace("steps: 300", "steps: 4")
    Path("front.yaml").write_text(
        text.replace("count: 5", "count: 2")
        .replace("hidden: 8", "hidden: 1")
        .replace("tuned ", "plain ")
    )
    assert call("sweep", "front.yaml", "--out", "runs/a", "-q") == 0
    assert Path("runs/a/front.csv").exists()
    assert call("init") == 2
    assert "exists already" in capsys.readouterr().err


def test_the_environment_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    seen = environment()
    assert seen["packages"]["torch"]
    assert seen["cpu"]["cores"] >= 1
    assert any("GPU" in word or "cuda" in word for word in seen["advice"])
    assert call("doctor", "env") == 0
    assert "compiler" in capsys.readouterr().out


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    assert "--install-completion" in capsys.readouterr().out
