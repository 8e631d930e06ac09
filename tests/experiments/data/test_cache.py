"""Decoded pictures are kept, and never outlive a change of the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from bipareto_experiments.data import DataError, cache, folders, load
from experiments.data.makers import noise, write_picture


@pytest.fixture
def decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A folder `zoo` of two pictures, a cache that keeps even these, and the list of pictures
    decoded so far.
    """
    seen: list[Path] = []
    picture = folders._picture

    def spy(file: Path, size: int) -> object:
        seen.append(file)
        return picture(file, size)

    monkeypatch.setattr(folders, "_picture", spy)
    monkeypatch.setattr(cache, "LEAST", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for k in range(2):
        write_picture(tmp_path / "data" / "zoo" / f"c{k}" / "1.png", noise(1, seed=k)[0])
    return seen


def test_pictures_are_decoded_once(decoded: list[Path], tmp_path: Path) -> None:
    first = load("zoo", tmp_path / "data")
    assert len(decoded) == 2
    again = load("zoo", tmp_path / "data")
    assert len(decoded) == 2
    assert torch.equal(first.images, again.images)
    assert load("zoo", tmp_path / "data", size=16).images.shape[-1] == 16
    assert len(decoded) == 4
    assert not list(cache.cache_folder().glob(".*"))


def test_a_changed_picture_is_seen(decoded: list[Path], tmp_path: Path) -> None:
    load("zoo", tmp_path / "data")
    file = tmp_path / "data" / "zoo" / "c1" / "1.png"
    write_picture(file, noise(1, seed=9)[0])
    os.utime(file, ns=(1, 1))
    found = load("zoo", tmp_path / "data")
    assert len(decoded) == 4
    assert torch.equal(found.images[1], torch.from_numpy(noise(1, seed=9)[0]).permute(2, 0, 1))


def test_a_damaged_or_forbidden_cache_is_done_without(
    decoded: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load("zoo", tmp_path / "data")
    (kept,) = cache.cache_folder().iterdir()
    whole = kept.read_bytes()
    for spoiled in (b"", whole[:-100], b"nonsense"):
        kept.write_bytes(spoiled)
        assert torch.equal(load("zoo", tmp_path / "data").images, first.images)
        assert kept.read_bytes() == whole
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert torch.equal(load("zoo", tmp_path / "data").images, first.images)


def test_pictures_that_cannot_be_read_are_not_kept(decoded: list[Path], tmp_path: Path) -> None:
    (tmp_path / "data" / "zoo" / "c1" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="is not a readable picture"):
        load("zoo", tmp_path / "data")
    assert not cache.cache_folder().exists()
