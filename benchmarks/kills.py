"""Commands killed at random moments and called again: is what they come to, bit for bit, what an
unkilled one comes to, and what does a kill cost?

    python benchmarks/kills.py [--only NAME ...] [--kills N] [--json FILE]

Each kill is SIGKILL, SIGTERM or Ctrl-C in turn, at a moment drawn uniformly from the time that the
command takes; what is left goes on as a user would let it (`bipareto resume`, or the same command
again), and is killed again, up to four times in a row.  Commands run in forks of this process,
which has imported torch but not used it, so that they are killed at their work, not at imports.
Checkpoints are taken every `PERIOD` seconds.

Of two Ray nodes on this machine one is killed, its raylet and its workers, in the middle of a
sweep, which goes on by itself on the other; the next sweep has two again.  What it comes to is held
against a sweep without Ray.

The seconds lost per kill are those of all attempts together, less those of the unkilled command, by
the number of kills: wall, and of the processor.  In a FILE that holds kills of another seed the
new ones are added to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bipareto.cli import add_command
from bipareto.cli import main as command_line
from bipareto.sweep import sweep
from bipareto.sweep.config import EngineConfig, SweepConfig, load
from bipareto.sweep.slices import SliceFolder

#: seconds between checkpoints, where a user would have half a minute
PERIOD = 0.1
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
IN_A_ROW = 4
#: a command that does not end within so many seconds of a signal hangs
PATIENCE = 120.0

CONFIG = """
problem: {name: pl-sin2, options: {dim: 20}}
preferences: {count: 5}
seeds: [0, 1]
slice: 4
steps: 200
record_every: 10
compile: false
threads: 1
"""


class Case(NamedTuple):
    """A command, `RUN` in place of its folder; what goes on with it; the files that it comes to."""

    begin: list[str]
    again: list[str]
    files: tuple[str, ...]


FRONT = ("front.csv", "slices/*/metrics.jsonl")
RESUME = ["resume", "RUN", "-q"]
TINY = ["--tiny", "--out", "RUN", "-q"]
SWEEP = ["sweep", "CONFIG", "--out", "RUN", "-q"]
FRONTS = "front pl-sin2 --dim 10 --preferences 5 --steps 400 --no-compile"
COMPARE = "compare quadratic --dim 4 --preferences 3 --methods momeha,wc-penalty --amount 2000"
FEWSHOT = "experiment fewshot comparison --learner linear --methods momeha,moml --steps 24"
CASES = {
    "sweep": Case(SWEEP, RESUME, FRONT),
    "sweep, processes": Case([*SWEEP, "--engine", "processes", "--workers", "2"], RESUME, FRONT),
    "front": Case([*FRONTS.split(), "--out", "RUN", "-q"], RESUME, FRONT),
    "compare": Case(
        [*COMPARE.split(), "--no-compile", "--out", "RUN", "-q"],
        [*COMPARE.split(), "--no-compile", "--out", "RUN", "-q"],
        ("methods/*/front.csv", "methods/*/slices/*/metrics.jsonl", "comparison.json"),
    ),
    "few-shot": Case(
        [*FEWSHOT.split(), *TINY], [*FEWSHOT.split(), *TINY], ("results.json", "*/metrics.jsonl")
    ),
    "search": Case(
        ["experiment", "nas", "search", *TINY],
        ["experiment", "nas", "search", *TINY],
        ("results.json", "*/*/metrics.jsonl", "genotype-*.json"),
    ),
}


class Ended(NamedTuple):
    """How an attempt ended: by which signal or exit code, after how long, with how much work."""

    killed: bool
    code: int
    seconds: float
    cpu: float


def attempt(words: list[str], log: Path, number: signal.Signals | None, after: float) -> Ended:
    """Run a command in a fork; send it, and its processes, a signal after so many seconds."""
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        _child(words, log)
    sent = None
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        now = time.perf_counter() - began
        if done:
            break
        if sent is None and number is not None and now >= after:
            # Ctrl-C reaches all processes of a terminal, a kill only the one that is named.
            (os.killpg if number == signal.SIGINT else os.kill)(pid, number)
            sent = now
        if sent is not None and now - sent > PATIENCE:
            os.killpg(pid, signal.SIGKILL)
            raise TimeoutError(f"{words} did not end within {PATIENCE} s of {number!r}")
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    if code == 70:
        raise RuntimeError(f"{words} ended in a traceback:\n{log.read_text()[-3000:]}")
    return Ended(sent is not None and code != 0, code, now, used.ru_utime + used.ru_stime)


def _child(words: list[str], log: Path) -> None:
    code = 70
    try:
        os.setsid()
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)
        command_line(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
        traceback.print_exc()
    finally:
        os._exit(code)


def answer(run: Path, case: Case) -> dict[str, Any]:
    """What a command has come to, without times."""
    found: dict[str, Any] = {}
    for pattern in case.files:
        for path in sorted(run.glob(pattern)):
            text = path.read_text("utf-8")
            data = _timeless(json.loads(text)) if path.suffix == ".json" else text
            found[str(path.relative_to(run))] = data
    return found


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _timeless(v) for k, v in data.items() if k not in ("seconds", "date", "notes")}
    return [_timeless(item) for item in data] if isinstance(data, list) else data


@contextmanager
def frequent_checkpoints() -> Iterator[None]:
    """Let every command of this process, and its forks, save each `PERIOD` seconds."""
    usual = SliceFolder.recording

    def recording(self: SliceFolder, snapshot: Any, seconds: float, keep: int) -> Any:
        return usual(self, snapshot, min(seconds, PERIOD), keep)

    SliceFolder.recording = recording  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SliceFolder.recording = usual  # type: ignore[method-assign]


def kill(name: str, home: Path, kills: int, seed: int) -> dict[str, Any]:
    """So many kills of the command of that name; how many of the ends were those of an unkilled
    one.
    """
    case, chance, log = CASES[name], random.Random(seed), home / "log.txt"
    config = home / "config.yaml"
    # Workers are no forks: they read what they are told.
    config.write_text(CONFIG + f"checkpoint: {{seconds: {PERIOD}}}\n")

    def words(given: list[str], run: Path) -> list[str]:
        return [{"RUN": str(run), "CONFIG": str(config)}.get(word, word) for word in given]

    whole = attempt(words(case.begin, home / "whole"), log, None, 0.0)
    assert whole.code == 0, log.read_text()[-3000:]
    wanted = answer(home / "whole", case)
    assert wanted
    done, ends, equal = 0, 0, 0
    wall = cpu = 0.0
    signals: dict[str, int] = {}
    while done < kills:
        run, row = home / "run", 0
        shutil.rmtree(run, ignore_errors=True)
        while True:
            begun = (run / "manifest.json").exists() or case.begin == case.again
            if (run / "comparison.json").exists():
                break  # killed between its last file and its end
            last = row == IN_A_ROW or done == kills
            number = None if last else SIGNALS[done % len(SIGNALS)]
            moment = chance.uniform(0.02, 1.0) * whole.seconds
            given = case.again if begun else case.begin
            ended = attempt(words(given, run), log, number, moment)
            wall, cpu = wall + ended.seconds, cpu + ended.cpu
            if not ended.killed:
                assert ended.code == 0, log.read_text()[-3000:]
                break
            assert number is not None
            done, row = done + 1, row + 1
            signals[number.name] = signals.get(number.name, 0) + 1
        ends, wall, cpu = ends + 1, wall - whole.seconds, cpu - whole.cpu
        equal += answer(run, case) == wanted
    return {
        "kills": done,
        **signals,
        "ends": ends,
        "bit-identical": equal,
        "seconds of the unkilled command": round(whole.seconds, 2),
        "seconds lost per kill": round(wall / done, 2),
        "processor seconds lost per kill": round(cpu / done, 2),
    }


def kill_nodes(home: Path, kills: int, seed: int) -> dict[str, Any]:
    """So many kills of one of two Ray nodes in the middle of a sweep."""
    # Workers that yield to everything else on the machine would not get to their work.
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    import ray
    from ray.cluster_utils import Cluster

    config, chance = home / "config.yaml", random.Random(seed)
    config.write_text(CONFIG + f"checkpoint: {{seconds: {PERIOD}}}\nengine: {{name: ray}}\n")
    asked = load(SweepConfig, config)
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    # Before there are others to join: the head stays, and works on nothing.
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    done, ends, equal, lost = 0, 0, 0, 0.0
    try:
        sweep.sweep(replace(asked, engine=EngineConfig()), home / "local", progress=False)
        wanted = answer(home / "local", CASES["sweep"])
        sweep.sweep(asked, home / "warm", progress=False)  # workers start and import here
        began = time.perf_counter()
        sweep.sweep(asked, home / "whole", progress=False)
        seconds = time.perf_counter() - began
        assert answer(home / "whole", CASES["sweep"]) == wanted
        while done < kills:
            run, over = home / f"run{ends}", threading.Event()
            if len(nodes) < 2:
                nodes.append(cluster.add_node(num_cpus=1))

            def strike(over: threading.Event = over) -> None:
                nonlocal done
                if not over.wait(chance.uniform(0.05, 0.9) * seconds):
                    cluster.remove_node(nodes.pop(chance.randrange(2)), allow_graceful=False)
                    done += 1

            striker = threading.Thread(target=strike)
            striker.start()
            began = time.perf_counter()
            sweep.sweep(asked, run, progress=False)
            over.set()
            striker.join()
            lost += time.perf_counter() - began - seconds
            ends += 1
            equal += answer(run, CASES["sweep"]) == wanted
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {
        "kills": done,
        "raylet": done,
        "ends": ends,
        "bit-identical": equal,
        "seconds of the unkilled command": round(seconds, 2),
        "seconds lost per kill": round(lost / max(done, 1), 2),
    }


def add(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Kills of several seeds as one row: counts added, seconds per kill averaged over kills."""
    if not before:
        return new
    if set(before["seeds"]) & set(new["seeds"]):
        raise SystemExit(f"the kills of seeds {new['seeds']} are in the file already")
    found = before | new
    for key in ("kills", "SIGKILL", "SIGTERM", "SIGINT", "raylet", "ends", "bit-identical"):
        if key in found:
            found[key] = before.get(key, 0) + new.get(key, 0)
    for key in ("seconds lost per kill", "processor seconds lost per kill"):
        if key in found:
            both = before[key] * before["kills"] + new[key] * new["kills"]
            found[key] = round(both / found["kills"], 2)
    return found | {"seeds": before["seeds"] + new["seeds"]}


def main() -> None:
    """Kill, print and write."""
    names = [*CASES, "sweep, two Ray nodes"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--kills", type=int, help="of each command; else 18, and 6 of nodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    target = None if given.json is None else given.json.resolve()
    data = json.loads(target.read_text("utf-8")) if target and target.exists() else {}
    from bipareto_experiments.commands import experiment

    # From a source tree that is not installed there are no entry points.
    add_command("experiment", experiment)
    with frequent_checkpoints():
        for name in given.only or names:
            with tempfile.TemporaryDirectory() as home:
                if name in CASES:
                    found = kill(name, Path(home), given.kills or 18, given.seed)
                else:
                    found = kill_nodes(Path(home), given.kills or 6, given.seed)
            found |= {
                "seeds": [given.seed],
                "date": time.strftime("%Y-%m-%d"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
                f"torch {torch.__version__}",
            }
            data[name] = add(data.get(name, {}), found)
            print(name, json.dumps(data[name]), flush=True)
            if target is not None:
                target.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    if any(data[name]["bit-identical"] != data[name]["ends"] for name in given.only or names):
        sys.exit("some ends differ from that of the unkilled command")


if __name__ == "__main__":
    main()
