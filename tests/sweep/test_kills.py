"""Commands that are killed and called again come to what they would have come to: see
benchmarks/kills.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bipareto as bp

ROOT = Path(__file__).parents[2]
PROCESSES, NODES = "sweep, processes", "sweep, two Ray nodes"


def killed(home: Path, name: str, kills: int) -> dict[str, Any]:
    """What the benchmark says of a command; in a process of its own, which forks before torch has
    threads.
    """
    command = [sys.executable, str(ROOT / "benchmarks/kills.py"), "--only", name]
    command += ["--kills", str(kills), "--json", str(home / "kills.json")]
    source = str(Path(bp.__file__).parents[1])
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=home,
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((home / "kills.json").read_text())[name]


def test_a_front_that_is_killed_a_few_times(tmp_path: Path) -> None:
    found = killed(tmp_path, "front", 4)
    assert (found["kills"], found["SIGKILL"], found["SIGTERM"], found["SIGINT"]) == (4, 2, 1, 1)
    assert found["bit-identical"] == found["ends"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sweep", PROCESSES, "front", "compare", "few-shot", "search"])
def test_eighteen_kills(tmp_path: Path, name: str) -> None:
    found = killed(tmp_path, name, 18)
    assert found["kills"] == 18
    assert found["bit-identical"] == found["ends"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the ray engine needs ray")
def test_kills_of_one_of_two_ray_nodes(tmp_path: Path) -> None:
    found = killed(tmp_path, NODES, 6)
    assert found["kills"] == 6
    assert found["bit-identical"] == found["ends"]
