"""`bp.Optimizer` in an Accelerate loop, which has the devices, the loaders and the checkpoints.

python examples/loops/accelerate_loop.py        needs accelerate: pip install accelerate
"""

from __future__ import annotations

import sys
import tempfile

import torch
from accelerate import Accelerator

import bipareto as bp
from problem import loaders, method, problem_of

accelerator = Accelerator(cpu="--cpu" in sys.argv)
net = torch.nn.Linear(64, 10).to(accelerator.device)
problem, x0, y0 = problem_of(net)
runs = bp.Optimizer(problem, x0, y0, method(), preferences=[[0.8, 0.2], [0.2, 0.8]])
accelerator.register_for_checkpointing(runs)

train, upright, turned = (accelerator.prepare(loader) for loader in loaders().values())
for _ in range(4):
    for one, two, three in zip(train, upright, turned, strict=False):
        runs.step({"lower": one, "upper": [two, three]})

with tempfile.TemporaryDirectory() as folder:
    before = runs.state.x.clone()
    accelerator.save_state(folder)
    runs.step({"lower": one, "upper": [two, three]})
    accelerator.load_state(folder)  # as if that step had never been
    assert torch.equal(runs.state.x, before)
print(f"{runs.steps} steps")
print("weights of upright and turned images, one row per preference:")
print(runs.state.x.softmax(1))
