"""The fast supernets against the plain ones: values, gradients, batching, and how much work a pass
is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bipareto as bp
from bipareto.problem import tree
from bipareto.run.graph.replay import traced
from bipareto.run.stepping import draw
from bipareto_experiments.nas import (
    bench_cell,
    conv,
    kernels,
    kernels_backward,
    kernels_gather,
    kernels_weights,
)
from bipareto_experiments.nas import fast as fast_module
from bipareto_experiments.nas.fast import FastDarts, FastNasBench201
from bipareto_experiments.nas.problem import Halves, Search, _cross_entropy
from bipareto_experiments.nas.sections import Layout
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet
from experiments.nas.supernets import images, judged, start

PAIRS = [
    (
        NasBench201(channels=4, size=8, classes=3, cells=2),
        FastNasBench201(channels=4, size=8, classes=3, cells=2),
    ),
    (Darts(channels=4, size=8, classes=3), FastDarts(channels=4, size=8, classes=3)),
    (
        Darts(channels=2, size=8, classes=3, stack="RNRN"),
        FastDarts(channels=2, size=8, classes=3, stack="RNRN"),
    ),
]
pairs = pytest.mark.parametrize(("plain", "fast"), PAIRS, ids=["201", "NRN", "RNRN"])


@pairs
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_values_and_gradients_are_those_of_the_plain_network(
    plain: Supernet, fast: Supernet, dtype: torch.dtype, tolerance: float
) -> None:
    point, batch = start(plain, dtype), images(plain, dtype)
    for a, b in zip(start(fast, dtype), point, strict=True):
        assert all(torch.equal(u, v) for u, v in zip(tree.leaves(a), tree.leaves(b), strict=True))
    expected, found = judged(plain, batch)(*point), judged(fast, batch)(*point)
    (x_gradient, y_gradient), value = found
    assert tree.relative_distance(value, expected[1]) < tolerance
    assert tree.relative_distance(x_gradient, expected[0][0]) < tolerance
    assert tree.relative_distance(y_gradient, expected[0][1]) < tolerance


@pairs
def test_runs_side_by_side_equal_runs_alone(plain: Supernet, fast: Supernet) -> None:
    both = judged(fast, images(fast, n=3))
    points = [start(fast, seed=seed) for seed in (0, 1)]
    together = torch.func.vmap(both)(
        *(tree.stack(list(parts)) for parts in zip(*points, strict=True))
    )
    for r, point in enumerate(points):
        for a, b in zip(tree.leaves(both(*point)), tree.leaves(together), strict=True):
            torch.testing.assert_close(a, b[r], rtol=1e-8, atol=1e-10)


@pairs
def test_half_precision_stays_near(plain: Supernet, fast: Supernet) -> None:
    """bfloat16 keeps 8 bits, so a loss is right to about a percent; logits and gradients come back
    in float32.
    """
    half = replace(fast, half=True)  # type: ignore[call-arg]
    batch = images(plain, torch.float32)
    point = start(plain, torch.float32)
    (_, expected), (gradients, value) = judged(plain, batch)(*point), judged(half, batch)(*point)
    assert all(leaf.dtype == torch.float32 for leaf in tree.leaves(gradients))
    assert tree.relative_distance(value, expected) < 0.05


class Calls(TorchDispatchMode):
    """Counts calls that do work; views do none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += all(result.alias_info is None for result in func._schema.returns)
        return func(*args, **(kwargs or {}))


@pairs
def test_a_pass_is_fewer_calls(plain: Supernet, fast: Supernet) -> None:
    counts = []
    for network in (plain, fast):
        point, batch = start(network, torch.float32), images(network, torch.float32)
        with Calls() as calls:
            judged(network, batch)(*point)
        counts.append(calls.count)
    assert counts[1] < 0.6 * counts[0], counts


class Launches:
    """Stands in for every kernel: does nothing but count, so that what is around the kernels can be
    tested without a GPU.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        monkeypatch.setattr(fast_module, "available", lambda *_: True)
        for module in (
            bench_cell,
            conv,
            kernels,
            kernels_backward,
            kernels_gather,
            kernels_weights,
        ):
            for name in [name for name in vars(module) if name.endswith("_kernel")]:
                monkeypatch.setattr(module, name, self._stand_in(name))

    def _stand_in(self, name: str) -> Any:
        launch = lambda *_, **__: self.names.append(name)  # noqa: E731
        return type("Kernel", (), {"__getitem__": lambda _, grid: launch})()


@pytest.mark.parametrize(
    ("plain", "network", "share"),
    [(Darts(size=8), FastDarts(size=8), 0.15), (NasBench201(size=8), FastNasBench201(size=8), 0.7)],
)
def test_the_fused_network_is_few_launches(
    monkeypatch: pytest.MonkeyPatch, plain: Supernet, network: Supernet, share: float
) -> None:
    launches = Launches(monkeypatch)
    point, batch = start(network, torch.float32), images(network, torch.float32)
    with Calls() as calls:
        gradients, _ = judged(network, batch)(*point)
    assert [leaf.shape for leaf in tree.leaves(gradients)] == [
        leaf.shape for leaf in tree.leaves(point)
    ]
    with Calls() as plain_calls:
        judged(plain, batch)(*point)
    assert len(launches.names) + calls.count < share * plain_calls.count, (
        len(launches.names),
        calls.count,
        plain_calls.count,
    )
    alone = len(launches.names)
    # Eight runs side by side are no more launches than one.
    launches.names.clear()
    torch.func.vmap(judged(network, batch))(*(tree.stack([part] * 8) for part in point))
    assert len(launches.names) == alone


def test_a_gradient_in_x_alone_does_not_pay_for_that_in_y(monkeypatch: pytest.MonkeyPatch) -> None:
    launches, network = Launches(monkeypatch), FastDarts(size=8, stack="RN")
    (x, y), batch = start(network, torch.float32), images(network, torch.float32)
    step = traced(
        lambda leaves, _: tree.leaves(
            torch.func.grad(lambda v: network.logits(v, y, batch).square().sum())(
                tree.rebuild(x, leaves)
            )
        ),
        tree.leaves(x),
        [],
    )
    launches.names.clear()
    step(tree.leaves(x), [])
    assert "gather_kernel" in launches.names
    assert not [name for name in launches.names if "weights" in name]


@pairs
def test_a_step_with_weights_in_one_vector_is_that_on_the_tree(
    plain: Supernet, fast: Supernet
) -> None:
    stream = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8, generator=stream)
    problem = Search(
        fast,
        pictures,
        torch.arange(40) % 3,
        Halves(40, batch=4),
        objectives=("loss", "flops"),
        decay=1e-3,
    )
    method = bp.MBMOMEHA.paper()
    x, y = start(fast)
    batches = draw(problem, method.roles(2), 0, [0])
    wanted, _ = method.step(problem, method.init(problem, x, y), batches)
    found, _ = method.step(problem, method.init(problem, x, tree.ravel(y)), batches)
    assert isinstance(found.y, torch.Tensor)
    torch.testing.assert_close(found.y, tree.ravel(wanted.y), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.x, wanted.x, rtol=1e-9, atol=1e-11)


def test_even_and_odd_pixels_with_their_gradients() -> None:
    def sliced(z: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        pixels = z.unflatten(1, (n, 4, 4))
        return pixels[:, :, ::2, ::2].flatten(1, 3), pixels[:, :, 1::2, 1::2].flatten(1, 3)

    z = torch.randn(1, 3 * 16, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, wanted = (
        torch.func.vjp(lambda z, cut=cut: cut(z, 3), z) for cut in (fast_module._parities, sliced)
    )
    for a, b in zip(found[0], wanted[0], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(found[1](wanted[0])[0], wanted[1](wanted[0])[0])


def test_columns_are_the_neighbourhoods_of_pixels() -> None:
    batch = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    columns = fast_module._columns(batch)
    assert columns.shape == (1, 32, 32)
    products = columns @ fast_module._stem({"stem": [weight]}).T
    wanted = (
        torch.nn.functional.conv2d(batch, weight, padding=1).permute(0, 2, 3, 1).reshape(1, 32, 5)
    )
    torch.testing.assert_close(products, wanted)


def test_the_loss_is_the_mean_cross_entropy() -> None:
    scores = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 2, 3, 3])
    found, wanted = (
        torch.func.grad_and_value(loss)(scores, labels)
        for loss in (_cross_entropy, torch.nn.functional.cross_entropy)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_weights_of_a_cell_in_one_piece() -> None:
    """From a vector without a copy, unless its edges lie in another order."""
    y = FastDarts(channels=2, size=8).start(0)[1]
    sections = Layout.of(y).split(tree.ravel(y))
    for name in ("cell0", "cell1"):
        pieces = fast_module._flat(FastDarts.space, sections[name])
        assert pieces.data_ptr() == sections[name].base.data_ptr()
        assert torch.equal(pieces, fast_module._flat(FastDarts.space, y[name]))
        shuffled = {edge: y[name][edge] for edge in reversed(y[name])}
        other = Layout.of({"cell": shuffled}).split(tree.ravel(shuffled))
        assert torch.equal(fast_module._flat(FastDarts.space, other["cell"]), pieces)


def test_y_and_theta_go_through_a_folded_network_together() -> None:
    network = FastDarts(channels=16, size=4, classes=3)
    pictures = torch.randint(
        256, (12, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    problem = Search(network, pictures, torch.arange(12) % 3, Halves(12, batch=3), decay=1e-3)
    assert problem.folded
    x, y = start(network)
    theta = start(network, seed=1)[1]
    batch = problem.batch("lower", "x", 0, 0)
    wanted = torch.stack([problem.lower(x, weights, batch) for weights in (y, theta)])
    for pair in ((y, theta), (tree.ravel(y), tree.ravel(theta))):
        torch.testing.assert_close(
            torch.stack(problem.lower_pair(x, *pair, batch)), wanted, rtol=1e-9, atol=1e-12
        )


def test_a_pass_leaves_the_heap_whole_on_processors_without_avx512() -> None:
    """oneDNN's gradient of a strided 1x1 convolution wrote beyond its buffers there; the allocator
    is asked to check itself.
    """
    program = (
        "import torch; from bipareto_experiments.nas.fast import FastDarts; from "
        "experiments.nas.supernets import images, judged, start\n"
        "network = FastDarts(channels=2, size=8, classes=3, stack='RNRN')\n"
        "for _ in range(5): judged(network, images(network, torch.float32))(*start(network, "
        "torch.float32))"
    )
    environment = os.environ | {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MALLOC_CHECK_": "3",
        "PYTHONPATH": os.pathsep.join(["src", "tests"]),
    }
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env=environment,
        cwd=Path(__file__).parents[3],
        timeout=120,
    )
