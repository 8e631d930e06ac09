"""Kernels compiled ahead: every one by exactly one process, once, and a search goes on when that
fails.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
import torch

from bipareto.errors import BiparetoWarning
from bipareto_experiments.nas import fast, kernels, precompiled
from bipareto_experiments.nas.fast import FastDarts, FastNasBench201
from bipareto_experiments.nas.precompiled import Met, precompile
from bipareto_experiments.nas.supernet import NasBench201, Supernet


def met(
    monkeypatch: pytest.MonkeyPatch, network: Supernet, batches: list[int], k: int = 0, of: int = 1
) -> tuple[list[str], Met]:
    """The kernels that one process would compile, and all that it met."""
    found: list[str] = []
    with monkeypatch.context() as context:
        context.setattr(fast, "available", fast.available)
        for module in precompiled._MODULES:
            for name in [name for name in vars(module) if name.endswith("_kernel")]:
                context.setattr(module, name, getattr(module, name))
        seen = Met(
            lambda kernel, grid, values, options: found.append(
                getattr(kernel, "fn", kernel).__name__
            ),
            k,
            of,
        )
        precompiled._go_through(network, batches, seen)
    return found, seen


@pytest.mark.parametrize("network", [FastNasBench201(size=8), FastDarts(size=8, stack="RN")])
def test_processes_share_all_kernels_of_a_pass(
    monkeypatch: pytest.MonkeyPatch, network: Supernet
) -> None:
    whole, seen = met(monkeypatch, network, [4])
    assert len(whole) == len(seen.seen)
    names = {"conv_kernel", "conv_weights_kernel", "finish_kernel"}
    assert names | (
        {"to_state_kernel"}
        if isinstance(network, FastNasBench201)
        else {"gather_kernel", "depthwise_weights_kernel"}
    ) <= set(whole)
    shares = [met(monkeypatch, network, [4], k, 3)[0] for k in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(whole)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_another_batch_is_few_more_kernels_and_another_type_is_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = FastNasBench201(size=8)
    one, two = (len(met(monkeypatch, network, batches)[0]) for batches in ([16], [16, 64]))
    assert one <= two < 1.5 * one
    kinds = [
        met(monkeypatch, FastNasBench201(size=8, half=half), [16])[1].seen for half in (False, True)
    ]
    convolutions = [{key for key in seen if key[0] == "conv_kernel"} for seen in kinds]
    assert not convolutions[0] & convolutions[1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if there were one."""
    monkeypatch.setattr(kernels, "PRESENT", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(precompiled, "_PROCESSES", 2)
    monkeypatch.setattr(precompiled.os, "cpu_count", lambda: 2)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("gpu")
def test_a_failure_is_a_warning_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(precompiled, "_CHILD", "raise SystemExit('no compiler here')")
    for _ in range(2):
        with pytest.warns(BiparetoWarning, match="no compiler here"):
            precompile(FastNasBench201(), [4])
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("gpu")
def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompiled, "_CHILD", "import time; time.sleep(600)")
    monkeypatch.setattr(precompiled, "_PATIENCE", 0.2)
    before = time.monotonic()
    with pytest.warns(BiparetoWarning, match=r"not done after 0\.2 s"):
        precompile(FastNasBench201(), [4])
    assert time.monotonic() - before < 60


@pytest.mark.usefixtures("gpu")
def test_what_is_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precompiled, "_CHILD", "import sys; sys.stdin.buffer.read()")
    precompile(FastNasBench201(), [4, 4])
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(precompiled, "_CHILD", "raise SystemExit('called')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precompile(FastNasBench201(), [4])
        precompile(NasBench201(), [4])  # has no kernels
        precompile(FastNasBench201(channels=12), [4])  # a width that they are not made for
    with pytest.warns(BiparetoWarning, match="called"):
        precompile(FastNasBench201(half=True), [4])
