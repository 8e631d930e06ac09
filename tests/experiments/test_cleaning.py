"""Hyper-cleaning at a small size, on scikit-learn's digits written as idx files in the place of
both sets.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bipareto.cli import main
from bipareto.errors import BiparetoError, InvalidInput
from bipareto_experiments import cleaning, cleaning_run
from bipareto_experiments.cleaning import SETS, Sizes
from bipareto_experiments.points import of_cleaning
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
    # With x = -inf on the wrong labels, g is the loss of the right ones: it falls when those are
    # learned.
    trusted = torch.where(task.noisy, -50.0, 50.0).flatten()
    y = {name: value[None] for name, value in task.y0.items()}
    y = cleaning_run._trained_on(task, trusted[None], y, 300, 0.3)
    assert bool((task.accuracy(y, task.test)[0] > 0.6).all())


def test_seeds_decide_everything(data: Path) -> None:
    first, again, other = (cleaning.cleaning_problem(seed, TINY, data=data) for seed in (0, 0, 1))
    assert torch.equal(first.test[0], again.test[0])
    assert torch.equal(first.noisy, again.noisy)
    assert not torch.equal(first.noisy, other.noisy)


@pytest.mark.parametrize(
    ("name", "steps", "changes"), [("momeha", 50, {"warmup": 200}), ("forum", 25, {})]
)
def test_the_weights_find_the_wrong_labels(
    name: str, steps: int, changes: dict[str, int], data: Path
) -> None:
    found = cleaning_run.run_cleaning(
        None,
        seeds=[0],
        sizes=TINY,
        methods=[name],
        preferences=3,
        steps=steps,
        changes=changes,
        device="cpu",
        data=data,
    )
    assert {row["method"] for row in found["rows"]} == {name}
    for row in found["rows"]:
        for s in range(2):
            assert row["noisy_weight"][s] < 0.7 * row["clean_weight"][s]
    if name == "momeha":
        # The preference trades one set for the other.
        ours = found["rows"]
        assert ours[0]["objectives"][0] < ours[-1]["objectives"][0]
        assert ours[0]["objectives"][1] > ours[-1]["objectives"][1]


def test_both_methods_are_written_down(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        cleaning.METHODS, "momeha", lambda sizes: replace(cleaning.momeha(sizes), warmup=0)
    )
    found = cleaning_run.run_cleaning(
        tmp_path, seeds=[0], sizes=TINY, preferences=3, steps=2, device="cpu", data=data
    )
    assert [row["method"] for row in found["rows"]] == ["momeha"] * 3 + ["forum"]
    assert set(found["summary"]) == {"momeha", "forum"}
    assert found["summary"]["forum"]["test"] == pytest.approx(found["rows"][3]["test"], abs=0.005)
    assert json.loads((tmp_path / "cleaning.json").read_text())["rows"] == found["rows"]
    assert len((tmp_path / "cleaning.csv").read_text().splitlines()) == 5
    assert (tmp_path / "cleaning.png").stat().st_size < 300_000
    # The points that are kept for `certify` are those that were judged.
    monkeypatch.setenv("BIPARETO_DATA", str(data))
    task = cleaning.cleaning_problem(0, TINY, data=data)
    for end, row in zip(of_cleaning(tmp_path), found["rows"], strict=True):
        y = {name: leaf[None] for name, leaf in end.y.items()}
        assert (100 * task.accuracy(y, task.test))[0].tolist() == pytest.approx(
            row["test"], abs=0.01
        )
    (tmp_path / "points-forum-0.safetensors").unlink()
    with pytest.raises(InvalidInput, match="earlier versions kept no points"):
        of_cleaning(tmp_path)


def test_each_set_has_a_head_of_its_own_on_a_network_for_both(data: Path) -> None:
    task = cleaning.cleaning_problem(0, TINY, data=data)
    assert {name: tuple(leaf.shape) for name, leaf in task.y0.items()} == {
        "W1": (784, 16),
        "b1": (16,),
        "W2": (2, 16, 10),
        "b2": (2, 1, 10),
    }
    for s in range(2):
        slope = torch.func.grad(lambda y, s=s: task.problem.upper(task.x0, y)[s])(task.y0)
        assert slope["W1"].norm() > 0
        for name in ("W2", "b2"):
            assert slope[name][s].norm() > 0
            assert slope[name][1 - s].norm() == 0
    # With its heads exchanged a network that reads both sets reads neither: the sets are turned
    # against each other.
    trusted = torch.where(task.noisy, -50.0, 50.0).flatten()
    y = cleaning_run._trained_on(
        task, trusted[None], {name: value[None] for name, value in task.y0.items()}, 100, 0.3
    )
    turned = y | {name: y[name].flip(1) for name in ("W2", "b2")}
    assert bool((task.accuracy(turned, task.test) < task.accuracy(y, task.test) - 0.2).all())


def test_missing_data_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BIPARETO_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["experiment", "cleaning", "--small", "--seed", "0"])
    told = capsys.readouterr().err
    assert "the four idx files of mnist are in none of" in told
    assert "BIPARETO_DATA" in told


def test_wrong_questions_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="take an odd number"):
        cleaning_run.run_cleaning(None, preferences=4, data=data)
    with pytest.raises(
        InvalidInput, match="method 'moml' is not known here; choose one of momeha, forum"
    ):
        cleaning_run.run_cleaning(None, methods=["momeha", "moml"], data=data)
    with pytest.raises(InvalidInput, match="device 'gpu0' is not known; use cpu or cuda"):
        cleaning_run.run_cleaning(None, device="gpu0", data=data)
    with pytest.raises(InvalidInput, match="has 1797 images, but 17"):
        cleaning.cleaning_problem(0, Sizes(10000, 1000, 5000, 8), data=data)
    broken = tmp_path / "mnist"
    broken.mkdir()
    for part in cleaning._FILES:
        (broken / f"{part}-ubyte").write_bytes(b"nonsense")
    with pytest.raises(BiparetoError, match="is not an idx file"):
        cleaning.read_set("mnist", tmp_path)


def test_the_default_sees_the_same_losses_in_batches(data: Path) -> None:
    task = cleaning.cleaning_problem(0, TINY, data=data)
    x = torch.randn(task.x0.shape, generator=torch.Generator().manual_seed(1))
    lower, upper = (task.batches.batch(level, "full") for level in ("lower", "upper"))
    torch.testing.assert_close(
        task.batches.lower(x, task.y0, lower), task.problem.lower(x, task.y0)
    )
    torch.testing.assert_close(
        task.batches.upper(x, task.y0, upper), task.problem.upper(x, task.y0)
    )


@pytest.mark.filterwarnings("ignore::bipareto.errors.BiparetoWarning")  # too few steps for a race
def test_the_default_is_run_without_numbers(data: Path) -> None:
    found = cleaning_run.run_cleaning(
        None, seeds=[0], sizes=TINY, methods=["default"], preferences=1, steps=4, device="cpu",
        data=data,
    )  # fmt: skip
    assert found["numbers"] == {}
    assert found["rows"][0]["test"] == found["rows"][0]["last"]
