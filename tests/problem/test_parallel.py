"""Two processes give the answer of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bipareto as bp
from bipareto.errors import InvalidInput

#: the processes must find the package that is tested here, and share two cores with others
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(bp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

SCRIPT = """
import sys
import torch
from torch import distributed as dist, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
import bipareto as bp

device = bp.parallel.join()
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 3), torch.randint(2, (48,)))
x, y = nn.Linear(3, 1).double().to(device), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.0), nn.Linear(6, 2)).double().to(device)

def lower(x, y, batch):
    losses = cross_entropy(y(batch[0]), batch[1], reduction="none")
    return (x(batch[0]).flatten().sigmoid() * losses).mean() + 0.01 * sum(p.square().sum() for p in y.parameters())

def upper(sign):
    return lambda x, y, batch: cross_entropy(y(sign * batch[0]), batch[1])

problem, x0, y0 = bp.Problem.from_modules(
    x=x, y=y, lower=lower, upper=[upper(1), upper(-1)], lower_data=DataLoader(data, 8, shuffle=True), upper_data=DataLoader(data, 16, shuffle=True))
problem = bp.parallel.data_parallel(problem)
method = bp.MBMOMEHA(gamma=0.5, alpha_theta=0.3, alpha_x=0.5, alpha_y=0.3, c=3.0, warmup=20)
front = bp.front(problem, x0, y0, preferences=bp.preferences.grid(2, 3), method=method, steps=15, compile=False)
part = problem.lower_part(0, x0, y0, problem.batch("lower", "full"))
front[0].write_back(x, y)
assert torch.equal(y[0].weight, front.y["0.weight"][0])
if not dist.is_initialized() or dist.get_rank() == 0:
    torch.save({"x": front.x, "y": front.y, "objectives": front.objectives, "part": part.detach(), "kind": type(problem).__name__}, sys.argv[1])
"""


def run(folder: Path, processes: int, text: str = SCRIPT) -> dict[str, object]:
    script = folder / "train.py"
    script.write_text(text)
    out = folder / f"{processes}.pt"
    launch = (
        []
        if processes == 1
        else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    )
    done = subprocess.run(
        [sys.executable, *launch, str(script), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(out, weights_only=True)


def test_two_processes_give_the_front_of_one(tmp_path: Path) -> None:
    one, two = run(tmp_path, 1), run(tmp_path, 2)
    assert one["kind"] == "Problem"
    assert two["kind"] == "DataParallel"
    for name in ("objectives", "part"):
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-9)
    for name in ("x", "y"):
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)


def test_one_process_needs_nothing() -> None:
    problem = bp.Problem(
        lambda x, y, b: b, lambda x, y, b: b, sampler=lambda role, t, seed: torch.zeros(2)
    )
    assert bp.parallel.join().type in ("cpu", "cuda")
    assert bp.parallel.data_parallel(problem) is problem
    with pytest.raises(InvalidInput, match="no data to share out"):
        bp.parallel.data_parallel(bp.Problem(lambda x, y: x, lambda x, y: y))


@pytest.mark.slow
def test_processes_race_alike(tmp_path: Path) -> None:
    """Without a method every process sees the same race and ends with the same x."""
    script = SCRIPT.replace("method=method, steps=15, compile=False", "steps=120, compile=False")
    script = script.replace(
        "if not dist", "assert front.race is not None\nother = front.x['weight'].clone()\n"
        "if dist.is_initialized(): dist.broadcast(other, 0)\n"
        "assert torch.equal(other, front.x['weight'])\nif not dist", 1,
    )  # fmt: skip
    found = run(tmp_path, 2, script)
    assert found["kind"] == "DataParallel"
