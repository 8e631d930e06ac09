"""`bp.Optimizer` in the loops of Lightning and Accelerate, with the real packages."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning", "accelerate"])
def test_a_loop_moves_the_weights_as_the_preferences_say(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    script = ROOT / "examples" / "loops" / f"{package}_loop.py"
    done = subprocess.run(
        [sys.executable, script, "--cpu"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ":".join([str(ROOT / "src"), *sys.path[1:]])},
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"\[(0\.\d+), +(0\.\d+)\]", done.stdout)
    (upright, _), (other, _) = [(float(a), float(b)) for a, b in rows]
    assert upright > other  # the run that prefers upright images gives them more weight
