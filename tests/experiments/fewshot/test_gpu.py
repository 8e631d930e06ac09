"""Checks that need a CUDA device: the fused kernel, the replayed step, and how fast it is.  `pytest
-m gpu`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
import torch

from bipareto.errors import InvalidInput
from bipareto.problem import oracle, tree
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto_experiments.episodic import Episodic
from bipareto_experiments.fewshot.network import LEARNERS, Learner
from bipareto_experiments.fewshot.settings import configured
from bipareto_experiments.fewshot.task import Task, generated

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def full_size(learner: str, **options: bool) -> Task:
    small = generated(learner, device="cuda")  # type: ignore[arg-type]
    images = replace(
        small.images,
        images=torch.nn.functional.interpolate(small.images.images.float(), 32).to(torch.uint8),
    )
    network = replace(small.network, channels=64, blocks=4, size=32, **options)
    return replace(small, images=images, network=network, queries=15)


@pytest.mark.parametrize("learner", ["linear", "block"])
@pytest.mark.parametrize("level", ["upper", "lower"])
def test_fused_and_plain_networks_have_the_same_gradients(learner: str, level: str) -> None:
    plain, fused = full_size(learner), full_size(learner, fused=True)
    x, y = plain.start(0)
    y = tree.map_(lambda leaf: leaf + 0.05 * torch.randn_like(leaf), y)
    batch = plain.problem.batch(level, "x", 0, 0)
    found = [
        oracle.grad(lambda v, t=task: getattr(t.problem, level)(*v, batch).sum(), (x, y))
        for task in (plain, fused)
    ]
    for a, b in zip(*map(tree.leaves, found), strict=True):
        assert (a - b).norm() <= 1e-4 * a.norm()


def test_a_second_derivative_in_x_is_refused_by_the_fused_backbone() -> None:
    task = full_size("linear", fused=True)
    x, y = task.start(0)
    weight = x["block3"]["weight"].requires_grad_()
    y = tree.map_(torch.randn_like, y)
    loss = task.problem.lower(x, y, task.problem.batch("lower", "x", 0, 0))
    (d,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(InvalidInput, match="first derivatives in x only"):
        d.square().sum().backward()


@pytest.mark.parametrize(("name", "fused"), [("momeha", True), ("wc-penalty", False)])
def test_a_replayed_step_is_the_plain_one(name: str, fused: bool) -> None:
    task = full_size("block", fused=fused)
    method = configured(name, "block", 4)
    state = method.init(task.problem, *task.start(0))
    batches = draw(task.problem, method.roles(4), 3, [0])
    a, _ = stepper(task.problem, method, batched=False)(state, batches)
    b, _ = stepper(task.problem, method, batched=False, compile="replay")(state, batches)
    both = stepper(task.problem, method, batched=True, compile="replay")(
        tree.stack([state, state]), batches
    )[0]
    for u, v, w, start in zip(
        *(tree.leaves(s) for s in (a.x, b.x, tree.select(both.x, 1), state.x)), strict=True
    ):
        # Convolutions do not add in one order, and wc-penalty differentiates twice through ReLU:
        # 1.1e-3 was seen there.
        moved = (u - start).norm() * (1 if fused else 5)
        assert (u - v).norm() <= 1e-3 * moved
        assert (u - w).norm() <= 1e-3 * moved


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_step_takes_at_most_a_millisecond_and_a_half(
    learner: Learner, capsys: pytest.CaptureFixture[str]
) -> None:
    task = full_size(learner, fused=True, half=True)
    method = configured("momeha", learner, 4)
    assert isinstance(method, Episodic)
    roles = method.roles(4)
    began = time.perf_counter()
    with task.arithmetic():
        step = stepper(task.problem, method, batched=False, compile="replay")
        state = step.pack(
            method.init(task.problem, *task.start(0)), draw(task.problem, roles, 0, [0])
        )
    recorded = time.perf_counter() - began
    for t in range(200):
        if t == 20:
            torch.cuda.synchronize()
            began = time.perf_counter()
        state, _ = step.advance(state, draw(task.problem, roles, t, [0]))
    torch.cuda.synchronize()
    spent = (time.perf_counter() - began) / 180 / method.joint * 1e3
    with capsys.disabled():
        sys.stdout.write(
            f"\n{learner}: {spent:.3f} ms per joint step and preference, recorded in "
            f"{recorded:.1f} s\n"
        )
    assert spent <= 1.5
