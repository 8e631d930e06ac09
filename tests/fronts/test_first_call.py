"""What the first front of a process loads."""

from __future__ import annotations

import subprocess
import sys

CALL = """
import sys
import torch
import bipareto as bp

def upper(x, y):
    return torch.stack([((x - 1) ** 2 + y**2).sum(), ((x + 1) ** 2 + y**2).sum()])

def lower(x, y):
    return ((y - x) ** 2).sum() + (1 + y**2).log().sum()

bp.front(bp.Problem(upper, lower), torch.zeros(SIZE), torch.zeros(SIZE), steps=8)
print("torch._dynamo" in sys.modules, "matplotlib" in sys.modules)
"""


def test_a_short_front_loads_no_compiler() -> None:
    """`torch.func.grad` would, and takes longer for it than the whole front."""
    for size in ("3", "20"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CALL.replace("SIZE", size)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["False", "False"]
