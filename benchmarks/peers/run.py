"""Our small quadratic programs against their peers, in one run: TorchJD's MGDA weights and a FORUM
step that calls cvxpy.

    python benchmarks/peers/run.py [--json FILE]

Makes an environment of its own beside this file (torch first, with the pin of constraints.txt, so
that nothing else can pull in another build) and runs `measure.py` in it.  None of what it installs
is a dependency of the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENT = HERE / ".venv"
READY = ENVIRONMENT / ".ready"


def torch_pin() -> str:
    """The torch requirement of constraints.txt, e.g. torch==2.13.0."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return next(line.strip() for line in lines if line.startswith("torch=="))


def main() -> None:
    """Build the environment if it is not there, then measure."""
    python = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not READY.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, torch_pin()], check=True)
        subprocess.run([*pip, "--no-deps", "torchjd"], check=True)
        # torchjd's light requirements, and cvxpy with the solvers that it brings
        subprocess.run([*pip, "numpy", "quadprog", "qpsolvers", "cvxpy"], check=True)
        READY.touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    sys.exit(
        subprocess.run(
            [str(python), str(HERE / "measure.py"), *sys.argv[1:]], env=environment, check=False
        ).returncode
    )


if __name__ == "__main__":
    main()
