"""Checks that need a CUDA device: the fast supernets against the plain ones, alone, side by side
and replayed.  `pytest -m gpu`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import bipareto as bp
from bipareto.problem import tree
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto_experiments.nas.fast import FastDarts, FastNasBench201
from bipareto_experiments.nas.precompiled import precompile
from bipareto_experiments.nas.problem import Halves, Search
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet
from experiments.nas.supernets import images, judged, start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

#: dtype and place of everything here
ON_GPU: dict[str, Any] = {"dtype": torch.float32, "device": "cuda"}
PAIRS = [
    (NasBench201(), FastNasBench201()),
    (Darts(), FastDarts()),
    (Darts(size=16, stack="RNRN"), FastDarts(size=16, stack="RNRN")),
]
pairs = pytest.mark.parametrize(("plain", "fast"), PAIRS, ids=["201", "NRN", "RNRN"])


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def precise(network: Supernet, point: tuple[dict, dict], batch: torch.Tensor) -> Any:
    """Gradients and value in float64."""
    return judged(network, batch.double())(
        *(tree.map_(torch.Tensor.double, part) for part in point)
    )


@pairs
def test_values_and_gradients_are_as_near_to_the_truth_as_those_of_the_plain_network(
    plain: Supernet, fast: Supernet
) -> None:
    """The median of seven draws: where a ReLU's input is all but zero rounding decides its slope,
    which moves a gradient by up to 3e-3, now that of the one network, now that of the other.  In a
    deep stack every draw may have one, so no smaller bound holds but by luck; wrong arithmetic
    moves gradients by parts of themselves."""
    precompile(fast, [50])
    rows = []
    for seed in range(7):
        torch.manual_seed(seed)
        point, batch = start(plain, seed=seed, **ON_GPU), images(plain, n=50, **ON_GPU)
        (truth, true_value), (wanted, _), (found, value) = (
            precise(plain, point, batch),
            judged(plain, batch)(*point),
            judged(fast, batch)(*point),
        )
        assert tree.relative_distance(value, true_value) <= 1e-5
        rows.append(
            [
                tree.relative_distance(part, true_part)
                for parts in (found, wanted)
                for part, true_part in zip(parts, truth, strict=True)
            ]
        )
    found_x, found_y, wanted_x, wanted_y = torch.tensor(rows).median(0).values.tolist()
    one_slope = 3e-3
    assert found_x <= max(one_slope, 2 * wanted_x)
    assert found_y <= max(one_slope, 2 * wanted_y)


@pairs
def test_half_precision_points_the_same_way(plain: Supernet, fast: Supernet) -> None:
    half = replace(fast, half=True)  # type: ignore[call-arg]
    precompile(half, [50])
    point, batch = start(plain, **ON_GPU), images(plain, n=50, **ON_GPU)
    (wanted, wanted_value), (found, value) = (
        judged(plain, batch)(*point),
        judged(half, batch)(*point),
    )
    assert tree.relative_distance(value, wanted_value) <= 0.02
    for found_part, wanted_part in zip(found, wanted, strict=True):
        norms = tree.norm(found_part) * tree.norm(wanted_part)
        assert tree.dot(found_part, wanted_part) >= 0.8 * norms


@pytest.mark.parametrize("half", [False, True])
def test_as_many_images_as_a_search_is_judged_by_have_the_plain_loss(half: bool) -> None:
    plain, fast = Darts(), FastDarts(half=half)
    point, batch = start(plain, **ON_GPU), images(plain, n=1024, **ON_GPU)
    labels = torch.arange(1024, device="cuda") % 10
    with torch.no_grad():
        wanted, found = (
            torch.nn.functional.cross_entropy(network.logits(*point, batch), labels)
            for network in (plain, fast)
        )
    assert abs(found - wanted) <= (2e-3 if half else 1e-5) * wanted


def test_runs_side_by_side_equal_runs_alone() -> None:
    network = FastDarts(size=16)
    both = judged(network, images(network, n=20, **ON_GPU))
    points = [start(network, seed=seed, **ON_GPU) for seed in (0, 1, 2)]
    together = torch.func.vmap(both)(
        *(tree.stack(list(parts)) for parts in zip(*points, strict=True))
    )
    for r, point in enumerate(points):
        assert tree.relative_distance(tree.select(together, r), both(*point)) <= 1e-5


@pytest.mark.parametrize(
    "network", [FastDarts(size=16), FastNasBench201(size=16)], ids=["darts", "201"]
)
def test_a_replayed_step_is_the_plain_one(network: Supernet) -> None:
    """One run and a batch of two."""
    stream = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (256, 3, 16, 16), dtype=torch.uint8, generator=stream).cuda()
    labels = torch.arange(256, device="cuda") % 10
    halves = Halves(256, 16, margin=2, flip=True, full=32, device="cuda")
    problem = Search(network, pictures, labels, halves, objectives=("loss", "flops"), decay=3e-4)
    method = bp.MBMOMEHA.paper()
    state = method.init(problem, *problem.start(0))
    batches = draw(problem, method.roles(2), 3, [0])
    wanted, _ = stepper(problem, method, batched=False)(state, batches)
    alone, _ = stepper(problem, method, batched=False, compile="replay")(state, batches)
    both, info = stepper(problem, method, batched=True, compile="replay")(
        tree.stack([state, state]), batches
    )
    assert info["objectives"].shape == (2, 2)
    moved = [
        tree.sub(after, before) for after, before in ((wanted.x, state.x), (wanted.y, state.y))
    ]
    for found in (alone, tree.select(both, 1)):
        assert tree.structure(found) == tree.structure(wanted)
        assert tree.relative_distance(tree.sub(found.x, state.x), moved[0]) <= 1e-3
        assert tree.relative_distance(tree.sub(found.y, state.y), moved[1]) <= 1e-3
