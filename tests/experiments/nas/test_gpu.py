"""Searches on a GPU: recorded steps against plain ones, and resumption.  `pytest -m gpu
tests/experiments/nas`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bipareto.problem import tree
from bipareto.run.loop import drive
from bipareto_experiments import trials as kept
from bipareto_experiments.nas import search as searching
from bipareto_experiments.nas import standalone_training
from bipareto_experiments.nas.search import Trial, search
from bipareto_experiments.nas.settings import Settings, configured, preset
from bipareto_experiments.nas.spaces import DARTS
from bipareto_experiments.nas.standalone import Recipe
from bipareto_experiments.nas.standalone_training import train_network
from bipareto_experiments.nas.supernet import Darts
from bipareto_experiments.nas.task import Task, generated
from bipareto_experiments.trials import Finished
from experiments.nas.reference import random_genotype

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

#: Branches of a graph with the library's convolutions, and all runs in one launch of our kernels.
SETTINGS = {
    "branches": replace(preset("tiny"), supernet="fast"),
    "folded": replace(preset("tiny"), supernet="fast", channels=16),
}
#: Small steps: what is compared is the arithmetic, not how far its rounding is carried.
STEPS = {"mb-momeha": {"alpha_x": 1.0, "alpha_y": 0.2}, "darts": {"alpha_x": 1e-3, "alpha_y": 0.02}}

kinds = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


class _Broken(RuntimeError):
    pass


def trials(settings: Settings, name: str = "mb-momeha") -> list[Trial]:
    """Two, with a seed and a preference each."""
    method = configured(name, settings, **STEPS[name])
    weights = [(0.75, 0.25), (0.25, 0.75)] if method.uses_preference else [None, None]
    return [Trial(method, w, seed) for seed, w in enumerate(weights)]


def moved(task: Task, found: Finished, run: int) -> tree.Tree:
    """From where a search began to where it ended."""
    return tree.sub(tree.select((found.x, found.y), run), task.problem.start(run))


@kinds
@pytest.mark.parametrize("name", STEPS)
def test_recorded_searches_side_by_side_are_the_plain_ones(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same device: what a GPU draws, a CPU does not."""
    settings = replace(settings, steps=3)
    task = generated(settings, device="cuda")
    recorded = search(task, trials(settings, name))
    monkeypatch.setattr(
        kept, "drive", lambda *given: drive(*given[:-1], replace(given[-1], compile=False))
    )
    plain = search(task, trials(settings, name), together=1)
    torch.testing.assert_close(recorded.objectives, plain.objectives, rtol=1e-3, atol=1e-4)
    for run in (0, 1):
        (x, y), (wanted_x, wanted_y) = moved(task, recorded, run), moved(task, plain, run)
        assert tree.relative_distance(x, wanted_x) <= 0.01
        assert tree.relative_distance(y, wanted_y) <= 0.01


@kinds
def test_a_search_stopped_at_ten_random_steps_ends_the_same(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task, so that its step is recorded once for all attempts."""
    monkeypatch.setattr(kept, "CHECKPOINT", 0.0)
    monkeypatch.setattr(searching, "TELL", -1.0)
    settings = replace(settings, steps=20)
    task, wanted = generated(settings, device="cuda"), trials(settings)
    whole = search(task, wanted, folder=tmp_path / "whole")
    stops = sorted(random.Random(5).sample(range(1, 20), 10))

    def fall(text: str) -> None:
        if stops and int(text.split("step ")[1].split(maxsplit=1)[0]) == stops[0]:
            stops.pop(0)
            raise _Broken

    for _ in range(10):
        with pytest.raises(_Broken):
            search(task, wanted, folder=tmp_path / "broken", say=fall)
    resumed = search(task, wanted, folder=tmp_path / "broken")
    assert not stops
    assert tree.relative_distance(resumed.x, whole.x) <= 1e-2
    assert tree.relative_distance(resumed.y, whole.y) <= 1e-2
    torch.testing.assert_close(resumed.objectives, whole.objectives, rtol=1e-2, atol=1e-3)


def test_a_network_trained_by_a_recorded_pass_is_the_plainly_trained_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genotype, network, images = (
        random_genotype(DARTS, 0),
        Darts(channels=8, size=8, stack="NRNRN", classes=4),
        generated(preset("tiny")).images,
    )
    recipe = Recipe(epochs=2, batch=32, margin=1, cutout=2, rate=0.01)
    recorded = train_network(genotype, network, images, recipe, torch.device("cuda"))
    monkeypatch.setattr(standalone_training, "_recorded", standalone_training._plain)
    plain = train_network(genotype, network, images, recipe, torch.device("cuda"))
    torch.testing.assert_close(recorded["loss"], plain["loss"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded["accuracy"], plain["accuracy"], rtol=0, atol=1.0)
