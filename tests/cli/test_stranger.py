"""A run folder of somebody else: reading it imports and runs nothing that lies in it or that it
names; what `sweep` and `resume` import is said first.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bipareto.sweep import checksums
from helpers import call

#: A problem of one's own; that it was imported and called is seen on stderr.
OWN = """
import sys
import torch
import bipareto as bp

print("(imported)", file=sys.stderr)


def make(scale=1.0):
    print("(called)", file=sys.stderr)
    problem = bp.Problem(
        lambda x, y: torch.stack([((x - 1) ** 2 + y**2).sum(), ((y + scale) ** 2).sum()]),
        lambda x, y: ((y - x) ** 2).sum(),
    )
    return problem, torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
"""
SWEEP = """
problem: {name: %s}
method: {hyperparameters: plain}
preferences: {count: 3}
steps: 8
compile: false
"""
#: Modules that reading commands look for, here with a payload.
MODULES = (
    "sitecustomize",
    "usercustomize",
    "bipareto",
    "bipareto_experiments",
    "torch",
    "numpy",
    "yaml",
    "safetensors",
    "matplotlib",
    "plotly",
    "moocore",
    "rich",
    "typer",
    "own_problem",
    "poison",
)
#: Runs command lines in one process as the `bipareto` command does, with an ear at every door
#: through which code comes in.
READER = """
import json, os, sys
from contextlib import suppress

folder, heard = os.getcwd(), []


def hear(event, arguments):
    if event in ("os.system", "subprocess.Popen", "pickle.find_class", "os.exec", "os.posix_spawn"):
        heard.append([event, repr(arguments)[:200]])
    if event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(folder):
        heard.append([event, repr(arguments)[:200]])
    if event == "import" and str(arguments[1] or "").startswith(folder):
        heard.append([event, repr(arguments)[:200]])


from bipareto.cli import main
import torch, matplotlib.figure, plotly.offline, moocore

sys.addaudithook(hear)
codes = []
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        codes.append(end.code or 0)
print(json.dumps({"codes": codes, "heard": heard, "path": folder in sys.path or "" in sys.path}))
"""


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A finished run of a problem of one's own."""
    (tmp_path / "own_problem.py").write_text(OWN)
    (tmp_path / "front.yaml").write_text(SWEEP % '"own_problem:make"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_problem", raising=False)
    assert call("sweep", "front.yaml", "--out", "own", "-q") == 0
    said = capsys.readouterr().err
    file = tmp_path / "own_problem.py"
    note = f"note: the problem is code: own_problem ({file}) is imported and make() called"
    assert said.index(note) < said.index("(imported)") < said.index("(called)"), said
    return tmp_path / "own"


def test_what_resume_imports_is_said_before_it_happens(
    own_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bipareto.sweep import plan

    monkeypatch.delitem(sys.modules, "own_problem")
    plan._PLANS.clear()
    assert call("resume", own_run, "-q") == 0
    said = capsys.readouterr().err
    assert said.index("note: the problem is code: own_problem") < said.index("(imported)")
    for command in ("certify", "doctor"):
        assert call(command, own_run) == 2
        assert "names code as its problem, own_problem:make" in capsys.readouterr().err
    assert call("certify", own_run, "--trust", "-q") == 0


def test_reading_a_folder_runs_nothing_of_it(own_run: Path, tmp_path: Path) -> None:
    marker, home = tmp_path / "marker", tmp_path / "given"
    plain = home / "plain"
    (tmp_path / "plain.yaml").write_text(SWEEP % "quadratic, options: {dim: 2}")
    assert call("sweep", tmp_path / "plain.yaml", "--out", plain, "-q") == 0
    shutil.copytree(own_run, home / "own")
    # A function of the standard library with an argument of the stranger's choice.
    shutil.copytree(own_run, home / "system")
    (home / "system/config.yaml").write_text(
        SWEEP % f'"os:system", options: {{command: "touch {marker}"}}'
    )
    # Pickles where data is expected.
    for name, files in (
        ("front", ["front.npz"]),
        ("slices", ["slices/00000/result.safetensors"]),
        ("text", ["manifest.json"]),
    ):
        shutil.copytree(plain, home / name)
        for file in files:
            (home / name / file).write_bytes(pickle.dumps(Payload(marker)))
    runs = sorted(path for path in home.iterdir())
    for run in runs:
        checksums.seal(run)  # what is wrong is not to be found by a checksum
    for folder in [home, *runs]:
        for name in MODULES:
            (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\nmake = open\n")
        (folder / "matplotlibrc").write_text("backend: module://poison\n")
        (folder / "bipareto.yaml").write_text(
            f'!!python/object/apply:os.system ["touch {marker}"]\n'
        )
    # A page is written in the place of a link, not through it.
    (plain / "report.html").symlink_to(marker)
    lines = [["ls", str(home)], ["ls", "."], ["watch", ".", "--once"], ["report", "."]]
    for run in runs:
        lines += [[command, str(run)] for command in ("certify", "doctor", "report")]
        lines.append(["watch", str(run), "--once"])
    lines.append(["report", str(plain), "--figures", str(tmp_path / "figures")])
    script = tmp_path / "reader" / "reader.py"
    script.parent.mkdir()
    script.write_text(READER)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(lines)],
        cwd=home / "own",
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(Path(checksums.__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["heard"], found["path"]) == ([], False)
    assert len(found["codes"]) == len(lines)
    assert found["codes"][-1] == 0
    assert not marker.exists()
    assert (plain / "report.html").stat().st_size > 1_000_000
    # The same doors let code through where they are opened: the payloads are live.
    assert pickle.loads(pickle.dumps(Payload(marker))) == 0
    assert marker.exists()
