"""Fetching from a server on this machine: whole, broken off, without ranges, wrong, absent."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bipareto.errors import InvalidInput
from bipareto_experiments.data import DataError, load
from bipareto_experiments.data.fetch import FetchError, download, fetch
from bipareto_experiments.data.remotes import REMOTES, Remote
from experiments.data.makers import noise, write_cifar100, write_picture

BODY = bytes(range(256)) * 4000  # about 1 MB


class Server(BaseHTTPRequestHandler):
    """Serves `files`; `cuts` holds how many bytes each of the next answers lets through before the
    line drops.
    """

    files: ClassVar[dict[str, bytes]] = {}
    cuts: ClassVar[list[int]] = []
    asked: ClassVar[list[str | None]] = []
    ranges: ClassVar[bool] = True
    broken: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Range"))
        if self.broken:
            self.send_error(self.broken.pop(0))
            return
        body = self.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = (
            int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if self.ranges and self.headers.get("Range")
            else 0
        )
        if start >= len(body) and start:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start:][: self.cuts.pop(0) if self.cuts else None])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    for name, value in (
        ("files", {"/a.bin": BODY}),
        ("cuts", []),
        ("asked", []),
        ("ranges", True),
        ("broken", []),
    ):
        monkeypatch.setattr(Server, name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def get(server: str, path: Path, checksum: str = md5(BODY)) -> None:
    download(f"{server}/a.bin", path, checksum, progress=False, pause=0.0)


def test_whole(server: str, tmp_path: Path) -> None:
    get(server, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    get(server, tmp_path / "a.bin")
    assert Server.asked == [None]  # what is there and right is not asked for again
    sha = hashlib.sha256(BODY).hexdigest()
    get(server, tmp_path / "b.bin", f"sha256:{sha[:8]}")


def test_goes_on_where_the_line_dropped(server: str, tmp_path: Path) -> None:
    Server.cuts[:] = [300_000, 0, 0, 200_000]
    get(server, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert Server.asked == [
        None,
        "bytes=300000-",
        "bytes=300000-",
        "bytes=300000-",
        "bytes=500000-",
    ]


def test_the_next_process_goes_on(server: str, tmp_path: Path) -> None:
    Server.cuts[:] = [300_000, 0, 0, 0, 0]
    with pytest.raises(
        FetchError,
        match=r"broke off after 300000 bytes .*1024000 bytes were announced.*the same command goes "
        r"on from there",
    ):
        get(server, tmp_path / "a.bin")
    assert [path.name for path in tmp_path.iterdir()] == [".a.bin.part"]
    Server.asked.clear()
    get(server, tmp_path / "a.bin")
    assert Server.asked == ["bytes=300000-"]
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_server_without_ranges_begins_again(server: str, tmp_path: Path) -> None:
    Server.ranges = False
    Server.cuts[:] = [300_000]
    get(server, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_part_that_is_already_whole(server: str, tmp_path: Path) -> None:
    (tmp_path / ".a.bin.part").write_bytes(BODY)
    get(server, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_another_file_is_refused_and_removed(server: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"gave another file than expected: its md5 is .*, not 00; it was removed"
    ):
        get(server, tmp_path / "a.bin", "md5:00")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match="is there, but it is another file"):
        get(server, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"mine"


def test_a_spoiled_part_is_found_out_and_then_fetched_anew(server: str, tmp_path: Path) -> None:
    (tmp_path / ".a.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="fetch again"):
        get(server, tmp_path / "a.bin")
    get(server, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_busy_servers_are_asked_again_and_absent_files_are_not(server: str, tmp_path: Path) -> None:
    Server.broken[:] = [503, 429]
    get(server, tmp_path / "a.bin")
    Server.asked.clear()
    with pytest.raises(
        FetchError,
        match=r"none\.bin answers 404 Not Found; is there a newer address, or a mirror\?",
    ):
        download(f"{server}/none.bin", tmp_path / "none.bin", md5(b""), progress=False, pause=0.0)
    assert len(Server.asked) == 1


def test_no_server_and_no_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(FetchError, match=r"broke off after 0 bytes \(.*refused"):
        download(
            "http://127.0.0.1:9/a.bin", tmp_path / "a.bin", md5(b""), progress=False, pause=0.0
        )
    with pytest.raises(InvalidInput, match="no http or https address"):
        download("file:///etc/passwd", tmp_path / "a.bin", md5(b""))


def test_two_processes_do_not_write_one_file(server: str, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".a.bin.part").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FetchError, match="another process is fetching"):
            get(server, tmp_path / "a.bin")


def test_a_folder_that_cannot_be_written(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot be written"):
        get(server, tmp_path / "file" / "a.bin")


def tarred(folder: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as box:
        box.add(folder, folder.name)
    return data.getvalue()


def test_fetched_sets_load(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path / "made" / "cifar-100-python", noise(3), [0, 1, 2], [0, 1, 1])
    for name in ("ant", "bass", "BACKGROUND_Google"):
        write_picture(tmp_path / "made" / "101_ObjectCategories" / name / "1.png", noise(1)[0])
    cifar = tarred(tmp_path / "made" / "cifar-100-python")
    nested = io.BytesIO()
    with zipfile.ZipFile(nested, "w") as box:
        box.writestr(
            "caltech-101/101_ObjectCategories.tar.gz",
            tarred(tmp_path / "made" / "101_ObjectCategories"),
        )
    Server.files.update(
        {"/x/cifar-100-python.tar.gz": cifar, "/x/caltech-101.zip": nested.getvalue()}
    )
    for name, body in (("cifar100", cifar), ("caltech101", nested.getvalue())):
        (remote,) = REMOTES[name]
        monkeypatch.setitem(
            REMOTES, name, (Remote(remote.url, md5(body), 1, remote.target, remote.members),)
        )
    said: list[str] = []
    folder = tmp_path / "data"
    for name in ("cifar100", "caltech101"):
        fetch(name, folder, mirror=f"{server}/x/", progress=False, told=said.append)
    assert load("cifar100", folder).class_names == ("apple", "bee", "cup")
    assert load("caltech101", folder).class_names == ("ant", "bass")
    assert sorted(path.name for path in folder.iterdir()) == [
        "caltech101",
        "cifar-100-python",
    ]  # no archive, nothing half-unpacked
    assert [path.name for path in (folder / "caltech101").iterdir()] == ["101_ObjectCategories"]
    Server.asked.clear()
    fetch("cifar100", folder, mirror=server, told=said.append)
    assert not Server.asked
    assert "there already" in said[-1]


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"no archive", "cannot be unpacked"), (None, "holds no cifar-100-python")],
)
def test_archives_that_disappoint_leave_no_half_set(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes | None, message: str
) -> None:
    if body is None:
        (tmp_path / "other").mkdir()
        body = tarred(tmp_path / "other")
    Server.files["/cifar-100-python.tar.gz"] = body
    (remote,) = REMOTES["cifar100"]
    monkeypatch.setitem(
        REMOTES, "cifar100", (Remote(remote.url, md5(body), 1, remote.target, remote.members),)
    )
    with pytest.raises(DataError, match=message):
        fetch("cifar100", tmp_path / "data", mirror=server, progress=False)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-100-python.tar.gz"]


def test_archives_may_not_leave_their_folder(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as box:
        box.addfile(tarfile.TarInfo("../../escaped"), io.BytesIO())
    Server.files["/cifar-100-python.tar.gz"] = data.getvalue()
    (remote,) = REMOTES["cifar100"]
    monkeypatch.setitem(
        REMOTES,
        "cifar100",
        (Remote(remote.url, md5(data.getvalue()), 1, remote.target, remote.members),),
    )
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch("cifar100", tmp_path / "data", mirror=server, progress=False)
    assert not list(tmp_path.rglob("escaped"))


def test_the_table_of_public_files() -> None:
    with pytest.raises(
        InvalidInput, match="'secret' is not public, or not known; what can be fetched: cifar10"
    ):
        fetch("secret", Path())
    for remotes in REMOTES.values():
        for remote in remotes:
            algorithm, _, digest = remote.checksum.partition(":")
            assert (algorithm, len(digest)) in {("md5", 32), ("sha256", 8)}
            assert not Path(remote.target).is_absolute()
