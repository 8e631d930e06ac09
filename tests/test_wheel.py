"""The wheel builds, installs into an empty environment and works there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_wheel_works() -> None:
    script = Path(__file__).parents[1] / "scripts" / "wheel.sh"
    done = subprocess.run(
        ["sh", script, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the wheel works\n")
