"""The same numbers on a GPU: run with `pytest -m gpu` where there is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bipareto as bp
from bipareto.methods.theory.smoothness import Smoothness
from bipareto.problem.oracle import noisy
from bipareto.run.budget import plan_of
from bipareto.run.graph.replay import ReplayedStepper
from bipareto.run.race import race
from helpers import nonconvex

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

METHOD = bp.MOMEHA(gamma=0.2, alpha_theta=0.05, alpha_x=0.05, alpha_y=0.05, c=5.0)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", [METHOD, bp.MBMOMEHA(gamma=0.2, c=5.0)])
def test_a_front_on_the_gpu_is_the_front_on_the_cpu(compile: bool, method: bp.MOMEHA) -> None:
    plain, x, y = nonconvex()
    twin, *_ = nonconvex(device="cuda")
    found = bp.front(
        twin,
        x.cuda(),
        y.cuda(),
        preferences=bp.preferences.grid(2, 5),
        method=method,
        steps=300,
        compile=compile,
    )
    wanted = bp.front(
        plain, x, y, preferences=bp.preferences.grid(2, 5), method=method, steps=300, compile=False
    )
    assert found.x.is_cuda
    torch.testing.assert_close(found.x.cpu(), wanted.x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        found.resolve_lower().objectives.cpu(),
        wanted.resolve_lower().objectives,
        rtol=1e-8,
        atol=1e-8,
    )
    torch.testing.assert_close(
        found[2].best.objectives.cpu(), wanted[2].best.objectives, rtol=1e-8, atol=1e-8
    )


def test_noise_seeds_and_tuning_work_on_the_gpu() -> None:
    twin, x, y = nonconvex(device="cuda")
    loud = noisy(twin, 0.1, x, y)
    method = bp.MBMOMEHA.tuned(loud, x, y, steps=500)
    found = bp.front(
        loud, x, y, preferences=bp.preferences.grid(2, 3), seeds=[0, 1], method=method, steps=500
    )
    assert found.reason == ("steps",) * 6
    assert not torch.allclose(found.x[0], found.x[3])
    found.subset(torch.tensor([0, 2]))


def test_what_can_be_asked_of_a_front_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("moocore")
    twin, x, y = nonconvex(device="cuda")
    found = bp.front(
        twin, x, y, preferences=bp.preferences.grid(2, 3), method=METHOD, steps=300, compile=False
    ).resolve_lower()
    corner = found.objectives.amax(0) + 1
    assert bp.measures.measure(found, corner)["hypervolume"] == pytest.approx(
        found.hypervolume(corner.tolist())
    )
    best = found.nondominated()
    assert best.objectives.is_cuda
    assert len(best.preference) == len(best) > 0
    found.save(tmp_path / "front.npz")
    torch.testing.assert_close(bp.ParetoFront.load(tmp_path / "front.npz").x, found.x.cpu())
    bp.diagnose(found, start=(x, y))
    assert bp.certify(twin, found.x[1], found.y[1]).lower_curvature == "minimum"


def test_admissible_numbers_on_the_gpu_are_those_on_the_cpu() -> None:
    plain, x, y = nonconvex()
    twin, *_ = nonconvex(device="cuda")
    given = {
        "constants": Smoothness(5.0, 2.0, 2.0),
        "mu": 1.0,
        "ideal": 0.0,
        "preference": [0.3, 0.7],
    }
    found, wanted = (
        bp.MOMEHA.admissible(twin, x.cuda(), y.cuda(), **given),
        bp.MOMEHA.admissible(plain, x, y, **given),
    )
    assert found.alpha_x.value == pytest.approx(wanted.alpha_x.value)  # type: ignore[union-attr]


def test_the_newcomers_script_of_the_readme_runs_on_the_gpu() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    space: dict[str, Any] = {}
    exec(
        next(
            block
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
            if "from_modules" in block
        ),
        space,
    )
    front, net = space["front"], space["net_y"]
    assert front.objectives.is_cuda
    assert front.batched
    first, second = front.objectives.T.cpu()
    assert first[0] < first[-1]
    assert second[0] > second[-1]
    assert net[0].weight.is_cuda
    assert int(net[1].num_batches_tracked) == 1


def test_modules_with_dropout_and_mixed_precision_on_the_gpu() -> None:
    y = nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2)
    ).cuda()
    data = torch.randn(32, 3), torch.arange(32) % 2

    def loss(x: Any, y: Any, batch: Any) -> torch.Tensor:
        return x(batch[0]).flatten().softmax(0) @ nn.functional.cross_entropy(
            y(batch[0]), batch[1], reduction="none"
        )

    for autocast in (None, torch.bfloat16):
        problem, x0, y0 = bp.Problem.from_modules(
            x=nn.Linear(3, 1).cuda(),
            y=y,
            lower=loss,
            upper=[loss, loss],
            lower_data=data,
            upper_data=data,
            autocast=autocast,
        )
        found = bp.front(
            problem,
            x0,
            y0,
            preferences=bp.preferences.grid(2, 3),
            method=METHOD,
            steps=10,
            compile=False,
        )
        assert found.batched
        assert found.objectives.dtype == torch.float32
        assert bool(torch.isfinite(found.objectives).all())


def test_a_race_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).cuda()
    target = rows @ torch.tensor([1.0, -2.0, 0.5, 0.0], device="cuda")
    wrong = torch.cat([target[:30], -target[30:]])
    half = (torch.arange(60, device="cuda") >= 30).long()

    def lower(x: Any, y: Any, batch: Any) -> Any:
        return ((batch[0] @ y - batch[1]).square() * x.sigmoid()[batch[2]]).mean()

    def upper(x: Any, y: Any, batch: Any) -> Any:
        error = (batch[0] @ y - batch[1]).square().mean()
        return torch.stack([error, 0.1 * y.square().sum() + 0.01 * x.square().sum()])

    sampler = bp.sampler.Minibatches(lower=(rows, wrong, half), upper=(rows, target), size=20)
    problem = bp.Problem(upper, lower, sampler=sampler)
    start = torch.zeros(2, device="cuda"), torch.zeros(4, device="cuda")
    recorded: list[bool] = []
    record = ReplayedStepper._record

    def noted(self: ReplayedStepper, *args: Any) -> None:
        recorded.append(self.branched)
        record(self, *args)

    monkeypatch.setattr(ReplayedStepper, "_record", noted)
    found = race(problem, *start, plan_of(start[0], m=2, runs=5, steps=240))
    assert recorded == [False]
    assert found.winner.value < found.candidates[-1].value
