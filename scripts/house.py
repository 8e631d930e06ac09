"""Measure the house: what a newcomer sees, how long modules are, where a command runs.

    python scripts/house.py            # a table, and one JSON object last

Run it in the repository root.  Nothing is changed.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from pathlib import Path

#: Tokens that are no code.
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
#: The code beside this script is measured, whichever is installed.
HERE = os.environ | {"PYTHONPATH": str(SOURCE)}
#: Prints how many files of the two packages have a function that ran during a command.
TOUCHED = """
import sys
from bipareto.cli import main
files = set()
def seen(frame, event, argument):
    code = frame.f_code
    name = code.co_name.lstrip("_")
    if event == "call" and "/src/bipareto" in code.co_filename and not name[:1].isupper():
        if name != "<module>":
            files.add(code.co_filename)
sys.setprofile(seen)
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.setprofile(None)
print("TOUCHED", len(files))
"""
CONFIG = "problem: {name: quadratic}\nsteps: 5\ncompile: false\npreferences: {count: 2}\n"


def lines(folder: Path) -> dict[str, int]:
    """Module -> lines."""
    return {
        path.relative_to(SOURCE).as_posix(): len(path.read_text("utf-8").splitlines())
        for path in sorted(folder.rglob("*.py"))
    }


def kinds(folder: Path) -> dict[str, int]:
    """Lines of code, imports among it, of docstrings, of comments, and blank ones."""
    total = dict.fromkeys(("lines", "code", "imports", "docstrings", "comments", "blank"), 0)
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        code: set[int] = set()
        comments: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments.add(token.start[0])
            elif token.type not in SILENT:
                code.update(range(token.start[0], token.end[0] + 1))
        strings, imports = set[int](), set[int]()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        code, every = code - strings, len(text.splitlines())
        blank = every - len(code | strings | comments)
        sizes = (every, len(code), len(imports), len(strings), len(comments - code), blank)
        for name, size in zip(total, sizes, strict=True):
            total[name] += size
    return total


def code_lines(folder: Path) -> int:
    """Lines that hold code: no blanks, no comments, no docstrings."""
    return kinds(folder)["code"]


def formatted(folder: Path, width: int) -> int:
    """Lines of a package if it were formatted to another width, comments and docstrings as is."""
    total = 0
    for path in folder.rglob("*.py"):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--line-length", str(width), "-"],
            input=path.read_text("utf-8"),
            capture_output=True,
            text=True,
            check=True,
        )
        total += len(done.stdout.splitlines())
    return total


def touched(*words: str) -> int:
    """In how many files of the source a command runs a function."""
    done = subprocess.run(
        [sys.executable, "-c", TOUCHED, *words],
        capture_output=True,
        text=True,
        check=True,
        env=HERE,
    )
    return int(re.search(r"TOUCHED (\d+)", done.stdout).group(1))  # type: ignore[union-attr]


def seconds_of_help() -> float:
    """The best of five."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "bipareto", "--help"], capture_output=True, check=True, env=HERE
        )
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Measure and print."""
    library, beside = lines(SOURCE / "bipareto"), lines(SOURCE / "bipareto_experiments")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "c.yaml"
        config.write_text(CONFIG)
        small = ["front", "quadratic", "--steps", "5", "--no-compile", "--preferences", "2", "-q"]
        found = {
            "entries of src/bipareto": len(
                [path for path in (SOURCE / "bipareto").iterdir() if path.name != "__pycache__"]
            ),
            "modules of the library": len(library),
            "lines of the library": sum(library.values()),
            "lines of the library at 150 columns": formatted(SOURCE / "bipareto", 150),
            "lines of code of the library": code_lines(SOURCE / "bipareto"),
            "lines of the experiments": sum(beside.values()),
            "lines of code of the experiments": code_lines(SOURCE / "bipareto_experiments"),
            "lines of the battery": sum(lines(SOURCE / "bipareto_battery").values()),
            "library modules over 400 lines": {k: n for k, n in library.items() if n > 400},
            "experiment modules over 400 lines": {k: n for k, n in beside.items() if n > 400},
            "files run by front --out": touched(*small, "--out", f"{folder}/front"),
            "files run by sweep --out": touched(
                "sweep", str(config), "--out", f"{folder}/sweep", "-q"
            ),
            "seconds of --help": round(seconds_of_help(), 3),
        }
    for name, value in found.items():
        print(f"{name:40} {value}")
    for folder in sorted(SOURCE.glob("*/*/")):
        if folder.name != "__pycache__":
            counted = "  ".join(f"{size:6} {name}" for name, size in kinds(folder).items())
            print(f"{folder.relative_to(SOURCE).as_posix():30} {counted}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
