"""The run folder: crashes, damage, full disks and two hands on one run."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bipareto import MOMEHA
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree
from bipareto.problems import get
from bipareto.run.loop import Begun, LoopOptions, drive
from bipareto.run.results import Record, Run, Snapshot
from bipareto.sweep import reading, sweep
from bipareto.sweep.config import SweepConfig
from bipareto.sweep.durable import Damaged, RunLocked, StoreError, read_tensors, write_tensors
from bipareto.sweep.progress import status
from bipareto.sweep.store import RunFolder, SliceFolder
from bipareto.sweep.typed import parse
from helpers import attempts, wait_for

DATA: dict[str, Any] = {
    "problem": {"name": "quadratic", "options": {"dim": 2}},
    "method": {"hyperparameters": "plain"},
    "preferences": {"count": 4},
    "seeds": [0, 1],
    "steps": 40,
    "record_every": 4,
    "slice": 3,
    "compile": False,
    "checkpoint": {"seconds": 0},
}
CONFIG = parse(SweepConfig, DATA)


def taken_up(path: Path) -> list[list[int]]:
    """Per slice: the steps at which it was taken up."""
    return [[item["step"] for item in part] for part in attempts(path)]


def stop_at(monkeypatch: pytest.MonkeyPatch, index: int, step: int) -> None:
    """Let a sweep die in a slice after the checkpoint of a step."""
    save = SliceFolder._save

    def saving(self: SliceFolder, seen: Record, *rest: Any) -> None:
        save(self, seen, *rest)
        if self.path.name == f"{index:05d}" and seen.step == step:
            raise KeyError("stopped by the test")

    monkeypatch.setattr(SliceFolder, "_save", saving)


def stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int = 1, step: int = 24
) -> Path:
    with monkeypatch.context() as patch:
        stop_at(patch, index, step)
        with pytest.raises(KeyError):
            sweep.sweep(CONFIG, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_folder_holds_what_it_promises(reference: Path) -> None:
    manifest = RunFolder(reference).manifest()
    assert manifest["slices"] == 3
    assert {"threads", "slice", "compile", "versions"} <= manifest.keys()
    part = RunFolder(reference).slice(0)
    assert len(part.checkpoints()) == CONFIG.checkpoint.keep
    assert len((part.path / "metrics.jsonl").read_text().splitlines()) == 10
    measures = json.loads((reference / "measures.json").read_text())
    assert len(measures["reference"]) == 2
    assert measures["lower_level"] == "solved"
    assert (reference / "front.csv").read_text().count("\n") == 9
    assert not list(reference.rglob("*.partial"))
    assert status(reference).state == "done"


@pytest.mark.parametrize("compile", [False, "aot_eager"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_drive_goes_on_bit_for_bit(compile: bool | str, noise: float) -> None:
    problem = get("quadratic", dim=3, noise=noise)
    method = MOMEHA()
    state = tree.stack(
        [method.init(problem, problem.x0, problem.y0, w) for w in ([0.3, 0.7], [0.6, 0.4])]
    )
    seen: list[Record] = []

    def run(resume: Snapshot | None = None, callbacks: Any = ()) -> Run:
        return drive(
            problem,
            method,
            Begun(state, [0, 1], 2, batched=True),
            LoopOptions(23, compile, 5, callbacks=callbacks, progress=False, resume=resume),
        )

    whole = run(callbacks=[seen.append])
    at = seen[1]
    history = {name: values[:2] for name, values in whole.history.items()}
    again = run(Snapshot(at.step, at.state, at.best, dict(at.ended), history))
    for name in ("state", "best", "history"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                tree.leaves(getattr(whole, name)), tree.leaves(getattr(again, name)), strict=True
            )
        ), name
    assert again.steps == whole.steps


def test_a_stopped_run_goes_on_where_it_was(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(tmp_path, monkeypatch)
    found = status(path)
    assert (found.state, found.slices_done) == ("stopped", 1)
    sweep.resume(path)
    assert taken_up(path) == [[0], [0, 24], [0]]
    for name in ("front.csv", "measures.json", "slices/00001/metrics.jsonl"):
        assert (path / name).read_bytes() == (reference / name).read_bytes(), name


def test_runs_that_ended_early_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps far too large leave the finite numbers; what is known of such runs outlives a crash."""
    wild = replace(
        CONFIG,
        method=replace(CONFIG.method, set={"alpha_x": 1e9}),
        preferences=replace(CONFIG.preferences, count=1),
        steps=60,
    )
    whole = sweep.sweep(wild, tmp_path / "whole")
    assert all(whole.failure)
    stop = max(failure.step for failure in whole.failure if failure)
    monkeypatch.setattr(
        "bipareto.run.watching.Watch.finished", lambda self: False
    )  # so that the sweep goes on, to be stopped
    with monkeypatch.context() as patch:
        stop_at(patch, 0, stop // 4 * 4 + 8)
        with pytest.raises(KeyError):
            sweep.sweep(wild, tmp_path / "run")
    again = sweep.resume(tmp_path / "run")
    assert again.failure == whole.failure
    assert (tmp_path / "run/front.csv").read_bytes() == (tmp_path / "whole/front.csv").read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "header", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    damage: str, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(tmp_path, monkeypatch)
    newest = RunFolder(path).slice(1).checkpoints()[-1]
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[-5] ^= 4
    elif damage == "header":
        data[40] ^= 1
    newest.write_bytes({"truncated": data[: len(data) // 2], "empty": b""}.get(damage, data))
    with pytest.warns(BiparetoWarning, match="damaged.*the one before it was used"):
        sweep.resume(path)
    assert taken_up(path)[1] == [0, 20]
    assert (path / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()


def test_damaged_metrics_begin_the_slice_anew(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(tmp_path, monkeypatch)
    metrics = RunFolder(path).slice(1).path / "metrics.jsonl"
    data = bytearray(metrics.read_bytes())
    data[10] ^= 1
    metrics.write_bytes(data)
    with pytest.warns(BiparetoWarning, match=r"metrics.jsonl is damaged"):
        sweep.resume(path)
    assert taken_up(path)[1] == [0, 0]
    assert (path / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()


def test_a_damaged_result_is_computed_again(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(tmp_path, monkeypatch)
    result = RunFolder(path).slice(0).path / "result.safetensors"
    result.write_bytes(result.read_bytes()[:-3])
    with pytest.warns(BiparetoWarning, match="computed again"):
        sweep.resume(path)
    assert (path / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()


@pytest.mark.parametrize("where", ["metrics", "checkpoint"])
def test_a_full_disk_is_one_clear_error(
    where: str, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    calls = 0

    def full(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    target = (
        "bipareto.sweep.durable.os.fsync" if where == "metrics" else "bipareto.sweep.durable._sync"
    )
    with monkeypatch.context() as patch:
        patch.setattr(target, full)
        with pytest.raises(StoreError, match=r"the disk is full.*bipareto resume"):
            sweep.sweep(CONFIG, path)
    assert not list(path.rglob("*.partial"))
    sweep.resume(path)
    assert (path / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()


def test_the_second_hand_is_refused(reference: Path) -> None:
    folder = RunFolder(reference)
    with folder.locked():
        assert status(reference).state == "running"
        with pytest.raises(RunLocked, match=rf"process {os.getpid()} on "):
            sweep.resume(reference)


def test_a_folder_in_use_and_an_empty_one_are_refused(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds a run already"):
        sweep.sweep(CONFIG, reference)
    with pytest.raises(InvalidInput, match="holds no run"):
        sweep.resume(tmp_path)


def test_a_slice_is_kept_for_what_it_was_begun_with(tmp_path: Path) -> None:
    part = SliceFolder(tmp_path / "slice")
    long = [list(range(50))]
    owner = {
        "data": "digits",
        "settings": {"batch": 6, "sizes": (3, 4), "clip": None},
        "trials": long,
    }
    with part.held():
        part.claim({"data": "letters"}, "search")
        part.claim(owner, "search")  # nothing was computed yet, so nothing is lost
        (part.path / "step-000000000001.safetensors").touch()
        part.claim(owner, "search")
    other = {
        "data": "digits",
        "settings": {"batch": 8, "sizes": (3, 5), "clip": None},
        "trials": [*long, []],
        "new": 1,
    }
    said = (
        r"slice holds another search \(batch = 6, not 8; sizes = \[3, 4\], not \[3, 5\]; trials; "
        r"new\), begun with bipareto 0\.1\.0 \(this is 0\.1\.0\); "
        "use another folder, or the same settings"
    )
    written = (part.path / "owner.json").read_bytes()
    for done in (False, True):
        if done:
            part.write_result({}, {})
        with pytest.raises(InvalidInput, match=said):
            part.claim(other, "search")
        part.claim(owner, "search")
        assert (part.path / "owner.json").read_bytes() == written
    (part.path / "owner.json").unlink()
    unnoted = r"another search \(data; settings; trials\), begun with bipareto before 0\.1\.0"
    with pytest.raises(InvalidInput, match=unnoted):
        part.claim(owner, "search")


def test_other_versions_are_told(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(tmp_path, monkeypatch)
    now = sweep.versions()
    monkeypatch.setattr(sweep, "versions", lambda: now | {"torch": "9.9"})
    with pytest.warns(BiparetoWarning, match=r"torch .* -> 9\.9"):
        sweep.resume(path)


def test_a_result_of_another_slice_or_run_is_computed_again(
    reference: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    sweep.sweep(CONFIG, path)
    parts = [RunFolder(path).slice(i).path / "result.safetensors" for i in range(2)]
    first, second = (part.read_bytes() for part in parts)
    parts[0].write_bytes(second)
    parts[1].write_bytes(first)
    with pytest.raises(Damaged, match=r"00000/result.safetensors is damaged"):
        reading.read_runs(path)
    with pytest.warns(BiparetoWarning, match="belongs to another run or slice"):
        sweep.resume(path)
    assert (path / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()


def test_reading_writes_nothing(reference: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(reference, path)
    (path / "lock").unlink()
    before = sorted(path.rglob("*"))
    status(path)
    reading.read_runs(path)
    reading.case(path)
    assert sorted(path.rglob("*")) == before


def test_tensor_files_keep_values_kinds_and_strides(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    given = {
        "t": torch.arange(6.0).reshape(2, 3).T,
        "wide": torch.tensor([1.0, 2.0])[:, None].expand(2, 5),
        "zero": torch.tensor(3, dtype=torch.int64),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 4),
    }
    write_tensors(path, given, {"a": [1, None]})
    found, meta = read_tensors(path)
    assert meta == {"a": [1, None]}
    for name, value in given.items():
        assert torch.equal(found[name], value)
        assert found[name].dtype == value.dtype
        assert found[name].numel() == 0 or found[name].stride() == value.stride()


def test_without_safetensors_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for ask in (
        lambda: write_tensors(tmp_path / "a", {}, {}),
        lambda: read_tensors(tmp_path / "a"),
    ):
        with pytest.raises(InvalidInput, match="pip install safetensors"):
            ask()
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"t": torch.arange(3.0)}, {"step": 7})
    data = path.read_bytes()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        with pytest.raises(Damaged):
            read_tensors(path)


#: goes on with argv[1], but only when the file argv[3] is there; says by argv[2] that it holds the
#: run
HELD = """
import sys, time
from pathlib import Path
from bipareto.sweep import sweep

def held(*arguments, run_slice=sweep.run_slice, **options):
    Path(sys.argv[2]).touch()
    while not Path(sys.argv[3]).exists():
        time.sleep(0.02)
    return run_slice(*arguments, **options)

sweep.run_slice = held
sweep.resume(sys.argv[1])
"""


def test_of_two_processes_that_resume_one_run_one_refuses(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(tmp_path, monkeypatch)
    entered, go = tmp_path / "entered", tmp_path / "go"
    first = subprocess.Popen([sys.executable, "-c", HELD, run, entered, go])
    try:
        wait_for(lambda: entered.exists() or first.poll() is not None)
        assert entered.exists()
        second = subprocess.run(
            [sys.executable, "-m", "bipareto", "resume", run, "-q"],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert second.returncode == 2
        assert f"is being run by process {first.pid} on" in second.stderr
        assert "Traceback" not in second.stderr
        go.touch()
        assert first.wait(timeout=600) == 0
    finally:
        first.kill()
        first.wait()
    assert (run / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()
    assert taken_up(run) == [[0], [0, 24], [0]]


# Death by signal, at moments that nobody chose.


def child(path: Path) -> int:
    """A forked process that runs the sweep; it has torch already, so its time goes into the
    sweep.
    """
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(
            1
        )  # the parent's other threads are not forked: work given to them would never end
        try:
            sweep.sweep(CONFIG, path)
        finally:
            os._exit(0)
    return pid


def kill_and_resume(path: Path, reference: Path, seconds: float) -> bool:
    """Kill after that time, resume, compare; whether the kill met a living sweep."""
    pid = child(path)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    finished = {
        file.parent.name: file.stat().st_mtime_ns
        for file in path.glob("slices/*/result.safetensors")
    }
    if RunFolder(path).exists():
        sweep.resume(path)
    else:
        sweep.sweep(CONFIG, path)
    assert (path / "front.csv").read_bytes() == (reference / "front.csv").read_bytes()
    for name, written in finished.items():
        assert (path / "slices" / name / "result.safetensors").stat().st_mtime_ns == written
    taken = taken_up(path)
    assert sum(len(steps) for steps in taken) <= len(taken) + 1, taken
    return os.WIFSIGNALED(status)


def lifetime(path: Path) -> float:
    began = time.perf_counter()
    os.waitpid(child(path), 0)
    return time.perf_counter() - began


def test_kill_at_a_few_moments(reference: Path, tmp_path: Path) -> None:
    whole = lifetime(tmp_path / "timed")
    for index, share in enumerate((0.15, 0.5, 0.8)):
        kill_and_resume(tmp_path / str(index), reference, share * whole)


@pytest.mark.slow
def test_kill_at_twenty_random_moments(reference: Path, tmp_path: Path) -> None:
    whole, moments = lifetime(tmp_path / "timed"), random.Random(0)
    alive = sum(
        kill_and_resume(tmp_path / str(index), reference, moments.uniform(0.02, 1) * whole)
        for index in range(20)
    )
    assert alive >= 10


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A small tmpfs in a namespace of its own, where the system allows one."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(DATA))
    run = f"{sys.executable} -m bipareto"
    script = f"mount -t tmpfs -o size=96k none /mnt && {{ {run} sweep {config} --out /mnt/run -q; echo code $?; "
    script += f"mount -o remount,size=64m /mnt && {run} resume /mnt/run -q --json; }}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if "code" not in done.stdout:
        pytest.skip(f"no private tmpfs here: {done.stderr.strip()}")
    assert "code 2" in done.stdout
    assert done.stderr.count("the disk is full") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["runs"] == 8


def test_the_newest_of_several_checkpoints_is_the_step(tmp_path: Path) -> None:
    part = SliceFolder(tmp_path)
    assert part.step == 0
    for step in (30, 10, 20):
        (tmp_path / f"step-{step:09d}.safetensors").touch()
    assert part.step == 30
