"""Engines change no number, survive their workers, and say what they need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bipareto.errors import BiparetoError, BiparetoWarning, InvalidInput
from bipareto.sweep import engines, plan, sweep
from bipareto.sweep.config import EngineConfig, SweepConfig, TuneConfig, dump, load
from bipareto.sweep.durable import StoreError
from bipareto.sweep.engines import ENGINES, Local, Processes
from bipareto.sweep.plan import build
from bipareto.sweep.typed import parse
from helpers import attempts, wait_for
from sweep import engine_work

CONFIG = parse(
    SweepConfig,
    {
        "problem": {"name": "quadratic", "options": {"dim": 3, "noise": 0.1}, "starts": "random"},
        "method": {"name": "mb-momeha", "hyperparameters": "plain"},
        "preferences": {"count": 3},
        "seeds": [0, 1],
        "steps": 40,
        "record_every": 4,
        "slice": 2,
        "compile": False,
        "checkpoint": {"seconds": 0},
    },
)
#: for processes that are started from here: they find the package and the tests, and Ray's workers
#: run at full priority
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(engines.__file__).parents[2]), str(Path(__file__).parents[1])]
    ),
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
}


def test_every_name_has_an_engine() -> None:
    for name in ENGINES:
        assert type(engines.get(parse(EngineConfig, {"name": name}))) is ENGINES[name]


@pytest.mark.parametrize("kind", [Local, Processes])
def test_items_are_done(kind: type[engines.Engine]) -> None:
    engine = kind(EngineConfig(workers=2))
    assert dict(engine.run(engine_work.double, [3, 1, 2])) == {3: 6, 1: 2, 2: 4}


@pytest.mark.parametrize("kind", [Local, Processes])
def test_errors_come_back_as_they_are(kind: type[engines.Engine]) -> None:
    with pytest.raises(InvalidInput, match="item 5 is refused"):
        list(kind(EngineConfig(workers=1)).run(engine_work.refuse, [5]))


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    found = dict(
        Processes(EngineConfig(workers=1)).run(
            partial(engine_work.die_once, str(tmp_path)), [0, 1, 2]
        )
    )
    assert found == {0: 0, 1: 2, 2: 4}
    assert (tmp_path / "died").exists()


def test_workers_that_always_die_are_not_replaced_for_ever() -> None:
    with pytest.raises(BiparetoError, match=r"died 3 times.*engine\.workers"):
        list(Processes(EngineConfig(workers=1)).run(engine_work.vanish, [0]))


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    code = f"""
from sweep import engine_work
from functools import partial
from bipareto.sweep.plan import build
from bipareto.sweep.config import EngineConfig
from bipareto.sweep.engines import Processes
if __name__ == "__main__":
    list(Processes(EngineConfig(workers=1)).run(partial(engine_work.linger, {str(tmp_path)!r}), [0]))
"""
    script = tmp_path / "parent.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, str(script)], env=ENVIRONMENT)
    worker = wait_for(
        lambda: (
            int(text)
            if (tmp_path / "0").exists() and (text := (tmp_path / "0").read_text())
            else None
        )
    )
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not alive(worker))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_without_ray_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"pip install 'bipareto\[ray\]'"):
        list(engines.get(EngineConfig(name="ray")).run(engine_work.double, [1]))


def test_slices_fit_the_memory_and_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = replace(CONFIG, slice=None)
    setup = build(free.problem, free.seeds)
    assert plan.begin(free, setup).manifest["slice"] == 6
    processes = replace(free, engine=EngineConfig("processes", workers=2))
    assert plan.begin(processes, setup).manifest["slice"] == 3
    monkeypatch.setattr("bipareto.sweep.plan.PER_RUN", 10**15)
    assert plan.begin(free, setup).manifest["slice"] == 1


def test_a_problem_of_ones_own(tmp_path: Path) -> None:
    """By the name of a function that returns the problem and its start."""
    config = replace(
        CONFIG,
        problem=parse(
            SweepConfig, {"problem": {"name": "helpers:nonconvex", "options": {"d": 2}}}
        ).problem,
    )
    front = sweep.sweep(
        replace(config, method=replace(config.method, name="momeha")), tmp_path / "run"
    )
    assert len(front) == 6
    measures = json.loads((tmp_path / "run/measures.json").read_text())
    assert "not comparable" in measures["reference_is"]


OWN = """
import torch
from bipareto import Problem

def make(scale):
    def upper(x, y):
        if y.detach().sum() > 10:  # a branch on a tensor: vmap cannot batch it
            y = y * 2
        return torch.stack([(x - 1).square().sum() + y.square().sum(), x.square().sum() + (y - scale).square().sum()])
    zero = torch.zeros(1, dtype=torch.float64)
    return Problem(upper, lambda x, y: (y - x).square().sum()), zero, zero
"""


def test_a_loss_that_cannot_be_batched_runs_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_problem.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Another test's problem may go by that name.
    monkeypatch.delitem(sys.modules, "own_problem", raising=False)
    own = parse(
        SweepConfig, {"problem": {"name": "own_problem:make", "options": {"scale": 1.0}}}
    ).problem
    config = replace(CONFIG, problem=own, method=replace(CONFIG.method, name="momeha"), seeds=(0,))
    with pytest.warns(BiparetoWarning, match="one run after the other"):
        whole = sweep.sweep(config, tmp_path / "whole")
    assert len(whole) == 3
    written = (tmp_path / "whole/front.csv").read_bytes()
    # As after a crash in the middle of the second run.
    (tmp_path / "whole/slices/00001/result.safetensors").unlink()
    (tmp_path / "whole/slices/00001/step-000000000040.safetensors").unlink()
    with pytest.warns(BiparetoWarning, match="is gone; the slice is computed again"):
        sweep.resume(tmp_path / "whole")
    assert (tmp_path / "whole/front.csv").read_bytes() == written
    assert [
        item["step"] for part in attempts(tmp_path / "whole") for item in part if item["step"]
    ] == [36]


def test_an_interrupted_sweep_says_how_to_go_on(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bipareto.run.stepping import Stepper

    calls, advance = 0, Stepper.advance

    def interrupted(self: Stepper, packed: Any, batches: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 60:
            raise KeyboardInterrupt
        return advance(self, packed, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "advance", interrupted)
        with pytest.raises(StoreError, match="interrupted; go on with: bipareto resume"):
            sweep.sweep(CONFIG, tmp_path / "run")
    sweep.resume(tmp_path / "run")
    assert (tmp_path / "run/front.csv").read_bytes() == (reference / "front.csv").read_bytes()


def test_worker_processes_give_the_same_front(reference: Path, tmp_path: Path) -> None:
    sweep.sweep(
        replace(CONFIG, engine=EngineConfig("processes", workers=1)), tmp_path / "run"
    )  # one: each takes seconds to load torch
    assert (tmp_path / "run/front.csv").read_bytes() == (reference / "front.csv").read_bytes()


def test_trials_of_a_search_run_as_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="tuning needs optuna")
    from bipareto.run import loop
    from bipareto.sweep import tuner

    search = parse(
        TuneConfig,
        {
            "sweep": {
                "problem": {"name": "quadratic", "options": {"dim": 2}},
                "method": {"hyperparameters": "plain"},
                "preferences": {"count": 2},
                "steps": 20,
            },
            "space": {
                "mu": {"low": 1, "high": 8, "log": True},
                "alpha_x": {"choices": [0.01, 0.1]},
            },
            "trials": 6,
            "batch": 4,
        },
    )
    sizes = []

    def counting(problem: Any, method: Any, begun: Any, options: Any) -> Any:
        sizes.append(len(begun.seeds))
        return loop.drive(problem, method, begun, options)

    monkeypatch.setattr(tuner, "drive", counting)
    found = tuner.tune(search, tmp_path)
    assert sizes == [8, 4]
    assert found.trials == 6
    assert found.hyperparameters.keys() == {"mu", "alpha_x"}
    best = sweep.sweep(
        replace(load(SweepConfig, tmp_path / "best.yaml"), compile=False), tmp_path / "run"
    )
    assert best.hypervolume(found.reference) == pytest.approx(found.value, rel=1e-9)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidInput, match=r"pip install 'bipareto\[tune\]'"):
        tuner.tune(search, tmp_path)


# Ray: minutes on a small machine, so these are slow tests.


@pytest.mark.parametrize(("asked", "given"), [(0.25, 1.0), (0.25, 0.0), (2.0, 1.0)])
def test_a_share_of_a_gpu_that_no_node_has_is_refused(asked: float, given: float) -> None:
    """Ray would wait for it for ever."""

    class Nodes:
        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            return [
                {"Alive": True, "Resources": {"CPU": 4.0, "GPU": given}},
                {"Alive": False, "Resources": {"GPU": 8.0}},
            ]

    engine = engines.get(EngineConfig(name="ray", gpus=asked))
    refused = asked > given
    with pytest.raises(InvalidInput, match="no node with more") if refused else nullcontext():
        engine._check_gpus(Nodes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("gpus", "here", "address", "expected"),
    [
        (0.25, 1, None, 4),
        (0.3, 2, None, 6),
        (2.0, 5, None, 2),
        (0.01, 1, None, 16),
        (0.0, 1, None, 16),
        (0.25, 1, "auto", 16),
        (0.25, 0, None, 16),
    ],
    ids=["quarters", "no part on two", "whole", "cores", "no share", "a cluster", "no GPU"],
)
def test_no_more_slices_at_a_time_than_gpus_here_have_shares_for(
    gpus: float, here: int, address: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    config = EngineConfig("ray", workers=16, gpus=gpus, address=address)
    assert engines.get(config).workers(100) == expected


@pytest.mark.parametrize(
    ("gpus", "nodes", "kept"), [(0.5, [1.0, 1.0], True), (0.5, [1.0, 4.0], False), (0, [0], False)]
)
def test_processes_go_on_to_the_next_slice_where_a_node_has_one_gpu(
    gpus: float, nodes: list[float], kept: bool
) -> None:
    """Ray would take a new one for each task with a share; among several GPUs it must."""
    asked: dict[str, Any] = {}

    class Begun:
        def __call__(self, function: Any) -> Any:
            return self

        def remote(self, work: Any, item: int) -> int:
            return item

    class Fake:
        is_initialized = staticmethod(lambda: True)
        get = staticmethod(lambda item: 2 * item)
        wait = staticmethod(lambda pending, num_returns: (pending[:1], pending[1:]))

        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            return [{"Alive": True, "Resources": {"GPU": has}} for has in nodes]

        @staticmethod
        def remote(**options: Any) -> Begun:
            asked.update(options)
            return Begun()

    engine = engines.get(EngineConfig("ray", gpus=gpus))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_require_ray", lambda: Fake)
        assert list(engine.run(engine_work.double, [1, 2])) == [(1, 2), (2, 4)]
    assert asked["num_gpus"] == gpus
    assert asked.get("max_calls") == (0 if kept else None)


def on_ray(
    path: Path, address: str | None = None, steps: int = 40, gpus: float = 0, **environment: str
) -> None:
    """A sweep in a process of its own: Ray leaves files and threads open, which pytest would call
    errors.
    """
    pytest.importorskip("ray", reason="the ray engine needs ray")
    config = path.with_suffix(".yaml")
    engine = EngineConfig("ray", workers=2, address=address, gpus=gpus)
    config.write_text(dump(replace(CONFIG, steps=steps, engine=engine)))
    command = [
        sys.executable,
        "-m",
        "bipareto",
        "sweep",
        str(config),
        "--out",
        str(path),
        "--quiet",
    ]
    subprocess.run(command, check=True, env=ENVIRONMENT | environment)


@contextmanager
def beside(look: Any) -> Iterator[None]:
    """Call something again and again while the body runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_ray_gives_the_same_front_though_a_worker_is_killed(tmp_path: Path) -> None:
    steps = 160
    sweep.sweep(replace(CONFIG, steps=steps), tmp_path / "reference")
    killed: list[int] = []

    def kill() -> None:
        for part in (tmp_path / "run/slices").glob("*"):
            if (
                not killed
                and list(part.glob("step-*"))
                and not (part / "result.safetensors").exists()
            ):
                killed.append(
                    json.loads((part / "attempts.jsonl").read_text().splitlines()[-1])["pid"]
                )
                os.kill(killed[0], signal.SIGKILL)

    with beside(kill):
        on_ray(tmp_path / "run", steps=steps)
    taken = [item for part in attempts(tmp_path / "run") for item in part]
    assert killed
    assert len(taken) == 4, "three slices, one of them twice"
    assert max(item["step"] for item in taken) > 0, "the slice went on from its checkpoint"
    assert (tmp_path / "run/front.csv").read_bytes() == (
        tmp_path / "reference/front.csv"
    ).read_bytes()


@pytest.mark.slow
def test_a_process_of_ray_with_a_share_of_a_gpu_takes_several_slices(tmp_path: Path) -> None:
    sweep.sweep(CONFIG, tmp_path / "reference")
    # Tasks on the CPU, on a node that Ray takes for one with a GPU: its share is one at a time.
    on_ray(tmp_path / "run", gpus=0.75, RAY_OVERRIDE_RESOURCES='{"GPU": 1}')
    taken = attempts(tmp_path / "run")
    assert [len(part) for part in taken] == [1, 1, 1]
    assert len({part[0]["pid"] for part in taken}) < 3
    assert (tmp_path / "run/front.csv").read_bytes() == (
        tmp_path / "reference/front.csv"
    ).read_bytes()


@pytest.mark.slow
def test_two_ray_nodes_share_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the ray engine needs ray")
    ray = str(Path(sys.executable).with_name("ray"))
    port, steps, nodes = 6399, 160, set()
    sweep.sweep(replace(CONFIG, steps=steps), tmp_path / "reference")

    def note() -> None:
        for item in (item for part in attempts(tmp_path / "run") for item in part):
            try:
                nodes.add(
                    Path(f"/proc/{item['pid']}/stat").read_text().rpartition(")")[2].split()[1]
                )  # the parent: its raylet
            except FileNotFoundError:
                continue

    common = ["--num-cpus", "1", "--block", "--disable-usage-stats"]
    starts = [
        ["--head", "--port", str(port), "--include-dashboard", "false"],
        ["--address", f"127.0.0.1:{port}"],
    ]
    running = []
    try:
        for words in starts:
            running.append(
                subprocess.Popen(
                    [ray, "start", *words, *common],
                    env=ENVIRONMENT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            time.sleep(15)
        with beside(note):
            on_ray(tmp_path / "run", address=f"127.0.0.1:{port}", steps=steps)
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
    assert len(nodes) == 2
    assert (tmp_path / "run/front.csv").read_bytes() == (
        tmp_path / "reference/front.csv"
    ).read_bytes()
