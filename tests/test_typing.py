"""py.typed is honest: mypy and pyright understand a user's file, and find its mistakes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOWNSTREAM = HERE / "typing" / "downstream.py"
LINES = DOWNSTREAM.read_text("utf-8").splitlines()
WRONG = {i for i, line in enumerate(LINES, 1) if "# wrong" in line}


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_file_is_understood(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker, reason=f"types are checked with {checker}")
    if checker == "pyright" and not shutil.which("node"):
        pytest.skip("pyright needs node, which is not installed")
    shutil.copy(DOWNSTREAM, tmp_path)
    source = str(HERE.parent / "src")
    words = {"mypy": ["--strict", "--no-incremental"], "pyright": ["--pythonpath", sys.executable]}[
        checker
    ]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [source]}))
    done = subprocess.run(
        [sys.executable, "-m", checker, *words, "downstream.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MYPYPATH": source},
    )
    shown = [line for line in done.stdout.splitlines() if "error" in line and "downstream" in line]
    found = {int(line.partition("downstream.py:")[2].split(":")[0]) for line in shown}
    assert found == WRONG, done.stdout + done.stderr
