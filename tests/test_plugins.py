"""A package of forty lines, installed beside this one, adds a method, a scalarization, a diagnosis
and a command; the battery runs on what it adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from bipareto.errors import BiparetoWarning
from bipareto.problem import plugins

ROOT = Path(__file__).parent.parent
PLUGIN = Path(__file__).parent / "plugin"


def with_plugin(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the package is installed: a folder of the path that holds its dist-info."""
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{PLUGIN}"},
    )


def test_the_package_is_small() -> None:
    code = (PLUGIN / "bipareto_example.py").read_text("utf-8")
    assert len([line for line in code.splitlines() if line.strip()]) <= 40


def test_everything_it_adds_is_listed_and_its_command_runs() -> None:
    done = with_plugin("-m", "bipareto", "list", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert "patient" in [method["name"] for method in shown["methods"]]
    assert "too-few-records" in [diagnosis["name"] for diagnosis in shown["diagnoses"]]
    assert "power-mean" in shown["scalarizations"]
    assert "greet" in shown["commands"]
    assert with_plugin("-m", "bipareto", "greet", "--name", "you").stdout == "hello, you\n"


@pytest.mark.slow
def test_its_method_and_scalarization_trace_a_front() -> None:
    words = "-m bipareto front quadratic --dim 2 --preferences 2 --steps 40 --hyperparameters plain"
    named = ["--method", "patient", "--set", "scalarization=power-mean", "--json"]
    done = with_plugin(*words.split(), *named)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)["method"]
    assert (shown["name"], shown["scalarization"]) == ("patient", "power-mean")


@pytest.mark.slow
def test_the_battery_runs_on_it() -> None:
    words = "-m pytest -q -p no:cacheprovider --pyargs bipareto_battery"
    done = with_plugin(*words.split(), "-k", "patient or power-mean")
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 30


def test_a_package_that_cannot_be_imported_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = types.SimpleNamespace(name="lost", group="g", value="no.such:Thing", dist=None)

    def fail() -> None:
        raise ImportError("no module named no")

    entry.load = fail
    monkeypatch.setattr(plugins, "declared", lambda group: {"lost": entry, "own": entry})
    table = plugins.Registry("methods", {"own": 1})
    with pytest.warns(BiparetoWarning, match=r"lost of a package .* left out"):
        assert list(table) == ["own"]
    assert table["own"] == 1
