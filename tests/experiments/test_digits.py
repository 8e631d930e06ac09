from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from bipareto.errors import InvalidInput
from bipareto_experiments import demo as command
from bipareto_experiments import digits
from bipareto_experiments.demo import run_demo
from bipareto_experiments.digits import DOMAINS, NOISE, DigitsTask, digits_problem


class Demo(NamedTuple):
    folder: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def task() -> DigitsTask:
    return digits_problem(seed=0)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A short run: far from the end, yet the weights have begun to follow the preferences."""
    folder = tmp_path_factory.mktemp("demo") / "made" / "by demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            digits, "TOLERANCE", 1e-3
        )  # training on takes most of the time of a short run
        return Demo(folder, run_demo(folder, steps=250, preferences=3, seed=0, quiet=True))


def test_splits_are_disjoint(task: DigitsTask) -> None:
    used = torch.cat([part.flatten() for part in (task.train, task.validation, task.test)])
    assert used.unique().numel() == used.numel() == 1796


def test_labels_are_wrong_at_the_declared_rate(task: DigitsTask) -> None:
    from sklearn.datasets import load_digits

    true = torch.as_tensor(load_digits().target)[task.train.flatten()]
    assert torch.equal(task.noisy, task.labels != true)
    for d in range(len(DOMAINS)):
        assert task.noisy[task.domain == d].double().mean() == NOISE


def test_second_domain_is_upside_down(task: DigitsTask) -> None:
    from sklearn.datasets import load_digits

    images = torch.as_tensor(load_digits().images, dtype=torch.float32) / 16
    upright, turned = images[task.test[0]], images[task.test[1]].rot90(2, (1, 2))
    # The mean that was taken from all pixels cancels in differences between images.
    for d, expected in enumerate((upright, turned)):
        columns = task.test_images[d].T
        torch.testing.assert_close(
            columns - columns[:1], expected.flatten(1) - expected[:1].flatten(1)
        )


def test_losses_are_those_of_torch(task: DigitsTask) -> None:
    images, labels, y = task.test_images[0], task.test_labels[0], task.y0
    logits = torch.nn.functional.linear(
        torch.tanh(torch.nn.functional.linear(images.T, y["W1"], y["b1"][:, 0])),
        y["W2"],
        y["b2"][:, 0],
    )
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(digits._losses(y, images, digits._one_hot(labels)), expected)


def test_weights_switch_samples_off(task: DigitsTask) -> None:
    decay = task.problem.lower(torch.full_like(task.x0, -100.0), task.y0)
    torch.testing.assert_close(
        decay, digits.DECAY * sum(leaf.square().sum() for leaf in task.y0.values())
    )
    full = task.problem.lower(torch.full_like(task.x0, 100.0), task.y0)
    torch.testing.assert_close(task.problem.lower(task.x0, task.y0) - decay, 0.5 * (full - decay))


def test_task_is_pure_in_seed(task: DigitsTask) -> None:
    torch.rand(3)  # the global generator plays no part
    again, other = digits_problem(seed=0), digits_problem(seed=1)
    for name in ("train", "validation", "test", "labels", "noisy", "test_images"):
        assert torch.equal(getattr(task, name), getattr(again, name))
        assert not torch.equal(getattr(task, name), getattr(other, name))
    assert all(torch.equal(task.y0[name], again.y0[name]) for name in task.y0)
    assert not torch.equal(task.y0["W1"], other.y0["W1"])


def test_preferences_trade_one_domain_for_the_other(demo: Demo) -> None:
    first, _, last = demo.summary["front"]
    assert first["preference"][0] > 0.7 > 0.3 > last["preference"][0]
    for key, sign in (("objectives", 1), ("accuracy", -1), ("clean_weight", -1)):
        assert sign * first[key][0] < sign * last[key][0]
        assert sign * first[key][1] > sign * last[key][1]
    assert demo.summary["rank_correlation"] == pytest.approx([-1, 1])


def test_learned_weights_beat_equal_ones(demo: Demo) -> None:
    even, baseline = demo.summary["front"][1], demo.summary["baseline"]
    for d in range(2):
        assert even["objectives"][d] < baseline["objectives"][d] - 0.3
        assert even["accuracy"][d] > baseline["accuracy"][d] + 0.05
        assert even["noisy_weight"][d] < baseline["noisy_weight"][d] - 0.2
        assert even["clean_weight"][d] > even["noisy_weight"][d] + 0.2
    assert even["noisy_suppressed"] > 2 * even["clean_suppressed"]


def test_network_was_trained_before_it_was_judged(demo: Demo) -> None:
    assert demo.summary["lower_residual"] <= 1e-3


def test_files(demo: Demo) -> None:
    assert (demo.folder / "front.png").read_bytes().startswith(b"\x89PNG")
    assert "seconds" not in (demo.folder / "front.csv").read_text()
    with (demo.folder / "front.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(demo.summary["front"])
    for row, point in zip(rows, demo.summary["front"], strict=True):
        for name, key in {"w": "preference", "f": "objectives", "accuracy": "accuracy"}.items():
            assert [float(row[f"{name}{i}"]) for i in (1, 2)] == point[key]
        for key in ("clean_weight", "noisy_weight"):
            assert [float(row[f"{key}{i}"]) for i in (1, 2)] == point[key]
        for key in ("noisy_suppressed", "clean_suppressed"):
            assert float(row[key]) == point[key]


def test_summary_is_json(demo: Demo) -> None:
    assert json.loads(json.dumps(demo.summary, allow_nan=False)) == demo.summary
    assert demo.summary["reference"] == [math.log(10)] * 2
    assert 0 < demo.summary["hypervolume"] < math.log(10) ** 2


def test_words_follow_the_numbers(demo: Demo) -> None:
    summary = demo.summary
    assert (
        f"{summary['front'][0]['objectives'][0]:.2f} to {summary['front'][-1]['objectives'][0]:.2f}"
        in summary["words"]
    )
    assert f"{summary['baseline']['accuracy'][0]:.0%} (upright)" in summary["words"]
    flat = {**summary, "rank_correlation": [0.1, -0.2], "better_than_baseline": 0}
    assert "no trade-off shows" in command._words(flat)
    assert "none of the 3 points" in command._words(flat)


def test_run_is_pure_in_seed_and_speaks_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "TOLERANCE", 1e-2)
    quiet = run_demo(tmp_path / "a", steps=5, preferences=2, seed=3, quiet=True)
    assert capsys.readouterr().out == ""
    run_demo(tmp_path / "b", steps=5, preferences=2, seed=3)
    assert " ".join(quiet["words"].split()) in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "a" / "front.csv").read_bytes() == (
        tmp_path / "b" / "front.csv"
    ).read_bytes()
    assert (tmp_path / "a" / "front.png").read_bytes() == (
        tmp_path / "b" / "front.png"
    ).read_bytes()


def test_one_preference_is_no_front(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="preferences = 1"):
        run_demo(tmp_path, preferences=1)
