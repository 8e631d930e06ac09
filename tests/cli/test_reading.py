"""Every reading command on every kind of run folder, as docs/architecture.md has it in a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import call, write_image_sets

SMALL = ("--steps", "8", "--preferences", "2", "--no-compile")
SWEEP = "problem: {name: quadratic}\nsteps: 8\ncompile: false\npreferences: {count: 2}\n"
MADE = {
    "front": ("front", "quadratic", *SMALL),
    "solve": ("solve", "quadratic", "--steps", "8", "--no-compile"),
    "sweep": ("sweep", "config.yaml"),
    "compare": ("compare", "quadratic", "--methods", "momeha,moco", "--amount", "60"),
    "few-shot": ("experiment", "fewshot", "comparison", "--tiny", "--methods", "momeha"),
    "nas": ("experiment", "nas", "search", "--tiny", "--steps", "4"),
    "cleaning": ("experiment", "cleaning", "--small", "--steps", "4", "--seed", "0"),
}
READERS = ("resume", "ls", "watch", "certify", "doctor", "report")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_every_reading_command_reads_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIPARETO_DATA", str(tmp_path / "data"))
    (tmp_path / "config.yaml").write_text(SWEEP)
    (tmp_path / "data").mkdir()
    if kind == "cleaning":
        write_image_sets(tmp_path / "data")
    assert call(*MADE[kind], "--out", "run", "-q") == 0
    for command in READERS:
        capsys.readouterr()
        before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
        code = call(command, "run")
        told = capsys.readouterr()
        # The doctor leaves with 1 where it finds something: runs of eight steps are ill.
        assert code in ((0, 1) if command == "doctor" else (0,)), (command, told.err)
        if command == "certify":
            assert "certificates of" in told.out
            assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before
