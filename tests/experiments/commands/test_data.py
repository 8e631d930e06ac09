"""`bipareto data` as it is typed."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer

from bipareto.cli import app, main
from bipareto_experiments.data import KNOWN, load
from bipareto_experiments.data.packed import read_packed
from bipareto_experiments.data.remotes import REMOTES
from experiments.data.makers import noise, write_container, write_idx, write_picture


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.delenv("BIPARETO_DATA", raising=False)

    def call(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as left:
            main(["data", *map(str, arguments)])
        shown = capsys.readouterr()
        return Done(int(left.value.code or 0), shown.out, shown.err)

    return call


@pytest.mark.parametrize(("name", "known"), [("fetch", REMOTES), ("domains", KNOWN)])
def test_examples_name_sets_that_are_known(name: str, known: dict[str, object]) -> None:
    command = typer.main.get_command(app).commands["data"].commands[name]
    examples = [
        line.strip()
        for line in inspect.getdoc(command.callback).splitlines()
        if line.strip().startswith("bipareto ")
    ]
    assert examples
    for line in examples:
        assert command.make_context(name, shlex.split(line)[3:]).params["name"] in known


def test_list(tmp_path: Path, run: Callable[..., Done]) -> None:
    write_container(
        tmp_path / "cifar100_pm2.zip",
        {"train": [noise(2)], "test": [noise(1)]},
        train_y=[0, 1],
        test_y=[0],
        class_names=["a", "b"],
    )
    write_container(
        tmp_path / "mine.zip",
        {"all": [noise(2, 16)]},
        all_y=[0, 1],
        class_names=["a", "b"],
        note="as drawn",
    )
    write_picture(tmp_path / "photos" / "cat" / "1.png", noise(1)[0])
    (tmp_path / "caltech101_32px.zip").write_bytes(b"half a file")
    (tmp_path / "papers").mkdir()
    (tmp_path / "letters.zip").write_bytes(b"not ours")
    (tmp_path / "resnet18-0.pth").write_bytes(b"")
    for split in ("train", "t10k"):
        write_idx(tmp_path / "mnist" / f"{split}-images-idx3-ubyte", noise(2, 28)[..., 0].copy())
        write_idx(tmp_path / "mnist" / f"{split}-labels-idx1-ubyte", noise(2, 1)[:, 0, 0, 0] % 10)
    done = run("list", "--data", tmp_path, "--json")
    assert done.code == 0
    found = json.loads(done.stdout)
    sets = {entry["name"]: entry for entry in found["sets"]}
    assert set(sets) == {*KNOWN, "mine", "photos"}
    cifar = sets["cifar100"]
    assert (cifar["images"], cifar["test"], cifar["classes"], cifar["side"]) == (3, 1, 2, 32)
    assert "±2" in cifar["note"]
    assert sets["mine"]["note"] == "as drawn"
    assert (sets["photos"]["images"], sets["photos"]["side"]) == (1, None)
    assert (sets["mnist"]["images"], sets["mnist"]["test"], sets["mnist"]["side"]) == (4, 2, 28)
    assert not sets["caltech101"]["found"]
    assert "caltech101_32px.zip is not a readable zip file" in sets["caltech101"]["problem"]
    assert sets["caltech101"]["fetch"] == "bipareto data fetch caltech101"
    assert "caltech256/256_ObjectCategories" in sets["caltech256"]["wanted"]
    assert found["weights"].endswith("resnet18-0.pth")
    for name in ("mine", "photos"):
        load(name, tmp_path, size=16)

    shown = run("list", "--data", tmp_path)
    assert shown.code == 0
    assert "as drawn" in shown.stdout
    assert "bipareto data fetch caltech256" in shown.stdout
    assert "is not a readable zip file" in shown.stderr


def test_list_without_a_folder(run: Callable[..., Done], tmp_path: Path) -> None:
    assert "set BIPARETO_DATA to a folder, or pass --data DIR" in run("list").stdout
    wrong = run("list", "--data", tmp_path / "none")
    assert wrong.code == 2
    assert "is not a folder" in wrong.stderr


def test_pack(tmp_path: Path, run: Callable[..., Done]) -> None:
    pixels = noise(700, 24)
    for k, image in enumerate(pixels):
        write_picture(
            tmp_path / "zoo" / ("land" if k % 2 else "sea") / f"class{k % 4}" / f"{k:03}.png", image
        )
    done = run("pack", tmp_path / "zoo", tmp_path / "zoo_24px.zip", "--size", "24", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["images"] == 700
    packed, plain = (
        read_packed(tmp_path / "zoo_24px.zip", "zoo", 24),
        load("zoo", tmp_path, size=24),
    )
    assert torch.equal(packed.images, plain.images)  # 700 are more than one strip
    assert torch.equal(packed.labels, plain.labels)
    assert (
        packed.class_names
        == plain.class_names
        == ("land/class1", "land/class3", "sea/class0", "sea/class2")
    )
    assert torch.equal(packed.group, plain.group)
    assert packed.group_names == ("land", "sea")
    assert packed.note == plain.note
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zoo", "zoo_24px.zip"]

    again = run("pack", tmp_path / "zoo", tmp_path / "zoo_24px.zip")
    assert again.code == 2
    assert "exists; choose another name" in again.stderr
    assert "does not end in .zip" in run("pack", tmp_path / "zoo", tmp_path / "zoo.npz").stderr
    assert "cannot be read" in run("pack", tmp_path / "none", tmp_path / "none.zip").stderr
    assert (
        "cannot be written" in run("pack", tmp_path / "zoo", tmp_path / "no" / "where.zip").stderr
    )
    (tmp_path / "zoo" / "sea" / "class0" / "x.png").write_bytes(b"no picture")
    assert (
        "x.png is not a readable picture"
        in run("pack", tmp_path / "zoo", tmp_path / "bad.zip").stderr
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zoo", "zoo_24px.zip"]


def test_pack_keeps_the_test_split(tmp_path: Path, run: Callable[..., Done]) -> None:
    root = tmp_path / "tiny-imagenet-200"
    write_picture(root / "train" / "n01" / "images" / "a.png", noise(1, 64)[0])
    write_picture(root / "val" / "images" / "b.png", noise(1, 64, seed=1)[0])
    (root / "val" / "val_annotations.txt").write_text("b.png\tn01\n")
    (root / "words.txt").write_text("n01\tgoldfish\n")
    plain = load("tiny-imagenet", tmp_path)
    assert run("pack", root, tmp_path / "tiny-imagenet_32px.zip", "--quiet").code == 0
    packed = load("tiny-imagenet", tmp_path)  # the container comes first now
    assert torch.equal(packed.images, plain.images)
    assert packed.test.tolist() == [False, True]
    assert packed.class_names == ("n01 goldfish",)


def test_fetch_needs_a_folder_and_a_known_name(tmp_path: Path, run: Callable[..., Done]) -> None:
    assert "no data folder: set BIPARETO_DATA" in run("fetch", "cifar100").stderr
    unknown = run("fetch", "nonsense", "--data", tmp_path)
    assert unknown.code == 2
    assert "what can be fetched: cifar10, cifar100" in unknown.stderr
    (tmp_path / "file").write_text("")
    assert "--data" in run("fetch", "cifar100", "--data", tmp_path / "file").stderr


def test_domains_need_weights(tmp_path: Path, run: Callable[..., Done]) -> None:
    write_picture(tmp_path / "photos" / "cat" / "1.png", noise(1)[0])
    done = run("domains", "photos", "--data", tmp_path)
    assert done.code == 2
    assert "no pretrained weights in" in done.stderr
    assert "bipareto data fetch resnet18" in done.stderr
    assert run("domains", "absent", "--data", tmp_path).code == 2


def test_domains_of_a_small_set(tmp_path: Path, run: Callable[..., Done]) -> None:
    """With weights of a network that never saw an image: dark and bright classes still fall
    apart.
    """
    from bipareto_experiments.fewshot.features import MobileNetV2

    torch.manual_seed(0)
    torch.save(MobileNetV2().state_dict(), tmp_path / "mobilenet_v2-0.pth")
    for k in range(6):
        write_picture(
            tmp_path / "photos" / f"c{k}" / "1.png", noise(1, seed=k)[0] // (1 if k < 3 else 8)
        )
    out = tmp_path / "d.json"
    done = run(
        "domains",
        "photos",
        "--data",
        tmp_path,
        "--domains",
        "2",
        "--least",
        "3",
        "--out",
        out,
        "--json",
        "--seed",
        "0",
    )
    assert done.code == 0, done.stderr
    table = json.loads(out.read_text("utf-8"))
    assert table == {
        key: value for key, value in json.loads(done.stdout).items() if key != "warnings"
    }
    assert sorted(table["domains"].values()) == [["c0", "c1", "c2"], ["c3", "c4", "c5"]]
    assert table["command"] == "bipareto data domains photos --seed 0 --domains 2 --least 3"
    assert not list(tmp_path.glob(".*.partial"))
