"""Searches on a GPU: recorded steps against plain ones, and resumption.  `pytest -m gpu tests/experiments/nas`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bipareto.experiments.nas import search as searching
from bipareto.experiments.nas.search import Trial, search
from bipareto.experiments.nas.settings import configured, preset
from bipareto.experiments.nas.task import generated

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SETTINGS = replace(preset("tiny"), steps=20, supernet="plain")
#: TF32 convolutions and other orders of summation, carried through twenty steps
TOLERANCE = {"rtol": 5e-2, "atol": 2e-2}


class _Broken(RuntimeError):
    pass


@pytest.mark.parametrize("name", ["mb-momeha", "darts"])
def test_recorded_searches_side_by_side_are_those_on_the_cpu(name: str) -> None:
    method = configured(name, replace(SETTINGS, steps=4))
    weights = [(0.75, 0.25), (0.25, 0.75)] if method.uses_preference else [None, None]
    trials = [Trial(method, w, seed) for seed, w in enumerate(weights)]
    on_gpu, on_cpu = (search(generated(replace(SETTINGS, steps=4), device=device), trials) for device in ("cuda", "cpu"))
    torch.testing.assert_close(on_gpu.objectives, on_cpu.objectives, **TOLERANCE)
    torch.testing.assert_close(on_gpu.x["cell"].cpu(), on_cpu.x["cell"], **TOLERANCE)


def test_a_search_stopped_and_resumed_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "CHECKPOINT", 0.0)
    monkeypatch.setattr(searching, "TELL", -1.0)
    task, method = generated(SETTINGS, device="cuda"), configured("mb-momeha", SETTINGS)
    trials = [Trial(method, w, 0) for w in ((0.75, 0.25), (0.25, 0.75))]
    whole = search(task, trials, folder=tmp_path / "whole")

    def fall(text: str) -> None:
        if "step 7 " in text:
            raise _Broken

    with pytest.raises(_Broken):
        search(task, trials, folder=tmp_path / "broken", say=fall)
    resumed = search(generated(SETTINGS, device="cuda"), trials, folder=tmp_path / "broken")
    torch.testing.assert_close(resumed.x["cell"], whole.x["cell"], **TOLERANCE)
    torch.testing.assert_close(resumed.objectives, whole.objectives, **TOLERANCE)
