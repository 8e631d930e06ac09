"""Hyper-cleaning at a small size, on scikit-learn's digits written as idx files in the place of both sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bipareto.cli import main
from bipareto.errors import InvalidInput
from bipareto.experiments import cleaning
from bipareto.experiments.cleaning import SETS, Sizes
from helpers import write_image_sets

TINY = Sizes(train=150, validation=60, test=100, hidden=16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_image_sets(folder)
    return folder


def test_idx_files_are_read_plain_and_packed(data: Path) -> None:
    upright, turned = (cleaning.read_set(name, data) for name in SETS)
    assert upright[0].shape == (1797, 784)
    assert torch.equal(upright[1], turned[1])
    assert torch.equal(upright[0].reshape(-1, 28, 28).flip(1, 2), turned[0].reshape(-1, 28, 28))
    assert float(upright[0].max()) == pytest.approx(1, abs=0.01)


def test_half_of_the_labels_are_wrong_and_the_rest_are_right(data: Path) -> None:
    task = cleaning.cleaning_problem(0, TINY, data=data)
    assert task.noisy.sum(1).tolist() == [75, 75]
    # With x = -inf on the wrong labels, g is the loss of the right ones: it falls when those are learned.
    trusted = torch.where(task.noisy, -50.0, 50.0).flatten()
    y = {name: value[None] for name, value in task.y0.items()}
    y = cleaning._trained_on(task, trusted[None], y, 300, 0.3)
    assert bool((task.accuracy(y, task.test)[0] > 0.6).all())


def test_seeds_decide_everything(data: Path) -> None:
    first, again, other = (cleaning.cleaning_problem(seed, TINY, data=data) for seed in (0, 0, 1))
    assert torch.equal(first.test[0], again.test[0])
    assert torch.equal(first.noisy, again.noisy)
    assert not torch.equal(first.noisy, other.noisy)


def test_the_weights_find_the_wrong_labels(data: Path, tmp_path: Path) -> None:
    found = cleaning.run_cleaning(tmp_path, seeds=[0], sizes=TINY, preferences=3, steps=120, device="cpu", data=data)
    assert {row["method"] for row in found["rows"]} == {"momeha", "forum"}
    for row in found["rows"]:
        for s in range(2):
            assert row["noisy_weight"][s] < 0.7 * row["clean_weight"][s]
    ours = [row for row in found["rows"] if row["method"] == "momeha"]
    # The preference trades one set for the other.
    assert ours[0]["objectives"][0] < ours[-1]["objectives"][0]
    assert ours[0]["objectives"][1] > ours[-1]["objectives"][1]
    assert set(found["summary"]) == {"momeha", "forum"}
    assert json.loads((tmp_path / "cleaning.json").read_text())["rows"] == found["rows"]
    assert len((tmp_path / "cleaning.csv").read_text().splitlines()) == 5
    assert (tmp_path / "cleaning.png").stat().st_size < 300_000


def test_missing_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BIPARETO_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["experiment", "cleaning", "--small", "--seed", "0"])
    told = capsys.readouterr().err
    assert "the four idx files of mnist are in none of" in told
    assert "BIPARETO_DATA" in told


def test_wrong_questions_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="take an odd number"):
        cleaning.run_cleaning(None, preferences=4, data=data)
    with pytest.raises(InvalidInput, match="has 1797 images, but 17"):
        cleaning.cleaning_problem(0, Sizes(10000, 1000, 5000, 8), data=data)
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(InvalidInput, match="is not an idx file"):
        cleaning.read_idx(tmp_path / "x")
