"""Break the core modules at random, one small change at a time, and count what the tests notice.

    python scripts/mutate.py [--seed 0] [--count 200] [--workers 2] [--minutes M] [--json FILE]

First every test of the chosen folders runs once, watched: how long it takes and which functions of
the package it calls.  Then `count` mutants are drawn without replacement from all that the core
modules admit: operators, comparisons, constants, swapped arguments, dropped terms and statements.
A mutant meets the tests that call its function, the fastest first, until one fails.  Each worker
has a copy of the tree of its own; the tree itself is never touched.

A mutant that no input can tell from the original is *equivalent*: such are judged by hand and
listed with their reason in scripts/equivalent.json.  The share that is reported is killed /
(killed + survived), with them left out.  Not mutated, since no assertion about mathematics could
tell: messages, tables for people and annotations; seeds, `strict` of a zip and the line that a
warning names; tolerances and guards (floats of at most 1e-3 or at least 1e3, and what multiplies a
machine epsilon); caps on iterations (integers above 12).  The rules of thumb in methods/tuning are
judged on foreign problems (benchmarks/foreign.py) instead.

Weighed against kept tools: mutmut 3 finds the tests of a function and forks too, but judges all
mutants of a file (no draw), leaves modules and classes alone outside functions (hyperparameters,
presets), and wraps functions whose signatures this package reads and which it compiles.  cosmic-ray
runs one command for every mutant, here an interpreter with torch and the whole suite.  Neither
drops a term of a sum, which is how formulas go wrong.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
PACKAGE = "src/bipareto"
#: Modules that are mutated: what the mathematics rests on.
CORE = (
    "methods/*.py",
    "methods/parts/*.py",
    "methods/theory/*.py",
    "certificate/*.py",
    "fronts/pareto.py",
    "fronts/measures.py",
    "run/loop.py",
    "run/monitors/*.py",
    "problem/tree.py",
    "problem/oracle.py",
    "problem/sampler.py",
)
#: Folders of tests that may kill a mutant.
TESTS = ("methods", "certificate", "fronts", "run", "problem", "problems", "foreign")
DOCTEST = ">>> "
#: A mutant's tests may be expected to take this long together; slower ones are left out.
PATIENCE = 60.0
#: A file of tests is watched for at most this long; what it has not reached is left out.
WATCHED = 150.0
#: What a worker finds loaded: other people's packages, never this one.
LOADED = ("torch._dynamo", "torch.func", "moocore", "hypothesis", "matplotlib.pyplot", "typer")
#: What is copied for a worker.
TREE = ("src", "tests", "benchmarks", "pyproject.toml")

SWAPPED_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
SWAPPED_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
#: arguments that any value would do for: a seed; or that change nothing where all is well: whether
#: zip counts, and which line a warning names
ARBITRARY = ("seed", "strict", "stacklevel")
#: functions that make words for people
WORDS = ("__str__", "__repr__", "_repr_html_", "_rows")
#: what a tolerance is made of
GUARDS = ("eps", "tiny", "TINY", "rounding")
SWAPPED_NAMES = {"min": "max", "amin": "amax", "clamp_min": "clamp_max", "all": "any"}
SWAPPED_NAMES |= {other: name for name, other in SWAPPED_NAMES.items()}


@dataclass(frozen=True)
class Mutant:
    """One change: bytes start ... end of a module become `text`."""

    module: str
    function: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The module with the change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


class Changes(ast.NodeVisitor):
    """All mutants of one module."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source
        self.starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.functions = 0
        self.found: list[Mutant] = []
        self.visit(ast.parse(source))

    def _span(self, node: Any) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _add(self, node: Any, kind: str, text: str) -> None:
        start, end = self._span(node)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.Name):
            text = f"({text})"
        self.found.append(
            Mutant(self.module, "".join(self.names), node.lineno, kind, start, end, text)
        )

    # What is not mutated: messages, annotations, decorators, asserts, words about an object.
    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave messages alone."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave assertions alone: they hold by construction."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value, not the type."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Leave __all__ and the like alone."""
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if not any(name.startswith("__") for name in names):
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Keep the qualified name."""
        self._enter(node, node.name + ".", [*node.body])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Keep the qualified name; leave decorators and annotations alone."""
        if node.name in WORDS:
            return
        given = node.args
        named = [*given.posonlyargs, *given.args][-len(given.defaults) or None :]
        pairs = [
            *zip(named, given.defaults, strict=False),
            *zip(given.kwonlyargs, given.kw_defaults, strict=True),
        ]
        for argument, value in pairs:
            if value is not None and argument.arg not in ARBITRARY:
                self.visit(value)
        self._enter(node, node.name + ".<locals>.", [*node.body])

    def _enter(self, node: ast.AST, name: str, body: list[ast.stmt]) -> None:
        self.names.append(name)
        for child in body:
            self.visit(child)
        self.names.pop()

    def visit_If(self, node: ast.If) -> None:
        """Negate a condition; imports for types are no code."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._add(node.test, "condition", f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Take the other branch."""
        self._add(node.test, "condition", f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Drop a statement that is a call; docstrings stay."""
        if isinstance(node.value, ast.Call):
            if isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "warn":
                return
            self._add(node, "dropped statement", "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """a += b becomes a -= b."""
        other = SWAPPED_OPERATORS.get(type(node.op))
        if other is not None:
            changed = copy.copy(node)
            changed.op = other()
            self._add(node, "operator", ast.unparse(changed))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Another operator, or one of the two terms alone."""
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            return
        if any(guard in ast.unparse(node) for guard in GUARDS) and isinstance(
            node.op, ast.Mult | ast.Pow
        ):
            return
        other = SWAPPED_OPERATORS.get(type(node.op))
        if other is not None:
            changed = copy.copy(node)
            changed.op = other()
            self._add(node, "operator", ast.unparse(changed))
            self._add(node, "dropped term", ast.unparse(node.left))
        if isinstance(node.op, ast.Add | ast.Mult):
            self._add(node, "dropped term", ast.unparse(node.right))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop the sign, or the negation."""
        if isinstance(node.op, ast.USub | ast.Not):
            self._add(node, "dropped sign", ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Turn a comparison round."""
        changed = copy.copy(node)
        changed.ops = [SWAPPED_COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        self._add(node, "comparison", ast.unparse(changed))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """And for or, or the first term alone."""
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, "logic", ast.unparse(changed))
        self._add(node, "dropped term", ast.unparse(node.values[0]))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Another number."""
        value = node.value
        if isinstance(value, bool):
            self._add(node, "constant", str(not value))
        elif isinstance(value, int) and value <= 12:
            self._add(node, "constant", f"({value + 1})")
        elif isinstance(value, float) and (value == 0 or 1e-3 < value < 1e3):
            self._add(node, "constant", f"({value * 3 if value else 1.0!r})")

    def visit_Call(self, node: ast.Call) -> None:
        """The first two arguments swapped; min for max."""
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "cast", "getattr"):
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == "manual_seed":
            return
        plain = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
        if len(plain) >= 2 and plain == node.args and not symmetric(node):
            changed = copy.copy(node)
            changed.args = [node.args[1], node.args[0], *node.args[2:]]
            self._add(node, "swapped arguments", ast.unparse(changed))
        name = node.func.id if isinstance(node.func, ast.Name) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if name in SWAPPED_NAMES:
            changed = copy.deepcopy(node)
            if isinstance(changed.func, ast.Name):
                changed.func.id = SWAPPED_NAMES[name]
            elif isinstance(changed.func, ast.Attribute):
                changed.func.attr = SWAPPED_NAMES[name]
            self._add(node, "swapped function", ast.unparse(changed))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave alone what is arbitrary."""
        if node.arg not in ARBITRARY:
            self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        """Leave annotations alone."""


def symmetric(node: ast.Call) -> bool:
    """Whether the order of a call's first two arguments says nothing."""
    name = node.func.id if isinstance(node.func, ast.Name) else None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else name
    return name in ("min", "max", "zip", "maximum", "minimum", "range", "stack")


def mutants_of(path: Path, module: str) -> Iterator[Mutant]:
    """All mutants of a file that can be parsed and are not the file itself."""
    source = path.read_text("utf-8")
    for mutant in Changes(module, source).found:
        try:
            changed = ast.dump(ast.parse(mutant.applied(source)))
        except SyntaxError:
            continue
        if changed != ast.dump(ast.parse(source)):
            yield mutant


class Watch:
    """A pytest plugin: each test's time, whether it passed, and the package's functions that it
    calls, a line of JSON each.
    """

    def __init__(self, source: str, path: Path) -> None:
        self.source, self.path = source, path
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch one test, its fixtures included."""
        codes: dict[int, CodeType] = {}

        def seen(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                codes[id(frame.f_code)] = frame.f_code

        begin = time.perf_counter()
        sys.setprofile(seen)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            called = {
                f"{code.co_filename.removeprefix(self.source)}:{code.co_qualname}"
                for code in codes.values()
                if code.co_filename.startswith(self.source)
            }
            if item.nodeid not in self.failed:
                seconds = time.perf_counter() - begin
                row = {"test": item.nodeid, "seconds": seconds, "functions": sorted(called)}
                with self.path.open("a") as file:
                    file.write(json.dumps(row) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, or a skip."""
        if not report.passed:
            self.failed.add(report.nodeid)


class Selection:
    """A pytest plugin: only these tests, in this order; a failing example is not made small."""

    def __init__(self, order: list[str]) -> None:
        self.order = {name: place for place, name in enumerate(order)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select and sort."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", settings.default, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order),
            key=lambda item: self.order[item.nodeid],
        )


def in_child(tree: Path, log: Path, arguments: list[str], plugin: object) -> int:
    """Run pytest in a fork of this process, which has torch loaded and the package not: its id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(tree)
    paths = [str(tree / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = ":".join(filter(None, paths))
    sys.dont_write_bytecode = False
    sys.path[:0] = [str(tree / "src"), str(tree / "tests")]
    code = 3
    try:
        code = int(
            pytest.main(
                [
                    *("-q", "-x", "--no-header", "-p", "no:cacheprovider"),
                    # what another Python or torch deprecates is not judged here
                    *("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
                    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # loaded before
                    *(f"--rootdir={tree}", f"--config-file={tree / 'pyproject.toml'}"),
                    *arguments,
                ],
                plugins=[plugin],
            )
        )
    except BaseException:  # noqa: BLE001 - a child has nobody to raise to
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class Task:
    """What a worker is asked to run, and what came of it."""

    begin: Callable[[Path], int]
    end: Callable[[Path, int | None, float], None]
    limit: float


def work(tasks: Iterator[Task], trees: list[Path], until: float) -> None:
    """Run tasks, one per tree at a time; none begins after `until`, and what runs half a minute
    later is given up.
    """
    free, busy = list(trees), {}
    more = True
    while busy or more:
        while free and more:
            task = next(tasks, None) if time.monotonic() < until else None
            if task is None:
                more = False
                break
            tree = free.pop()
            busy[task.begin(tree)] = (task, tree, time.monotonic())
        for child, (task, tree, begin) in list(busy.items()):
            taken = time.monotonic() - begin
            ended, status = os.waitpid(child, os.WNOHANG)
            given_up = not ended and time.monotonic() > until + 30
            late = not ended and taken > task.limit
            if late or given_up:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if ended or late or given_up:
                del busy[child]
                free.append(tree)
            if ended or late:
                task.end(tree, os.waitstatus_to_exitcode(status) if ended else None, taken)
        time.sleep(0.02)


def watched(
    trees: list[Path], folder: Path, modules: list[str], chosen: Sequence[str], kept: dict[str, Any]
) -> dict[str, Any]:
    """File of tests -> its digest, and of every test that passes the seconds and the functions that
    it calls; of files that are as they were, what was kept.
    """
    found: dict[str, Any] = {}
    files = [
        path.relative_to(ROOT).as_posix()
        for name in chosen
        for path in sorted({*(ROOT / "tests" / name).rglob("test_*.py"), ROOT / "tests" / name})
        if path.is_file()
    ]
    files.sort(key=lambda file: -(ROOT / file).stat().st_size)

    def task(number: int, file: str, digest: str) -> Task:
        out = folder / f"watch-{number}.jsonl"

        def begin(tree: Path) -> int:
            plugin = Watch(str(tree / PACKAGE) + "/", out)
            return in_child(tree, out.with_suffix(".log"), ["--maxfail=10000", file], plugin)

        def end(tree: Path, code: int | None, seconds: float) -> None:
            rows = map(json.loads, out.read_text().splitlines() if out.exists() else [])
            found[file] = {"digest": digest, "tests": {row.pop("test"): row for row in rows}}
            print(f"  {file}: exit {code}, {seconds:.0f} s", file=sys.stderr, flush=True)

        return Task(begin, end, WATCHED)

    tasks = []
    for file in files + [f"{PACKAGE}/{module}" for module in modules if DOCTEST in text(module)]:
        digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
        if kept.get(file, {}).get("digest") == digest:
            found[file] = kept[file]
        else:
            tasks.append(task(len(tasks), file, digest))
    work(iter(tasks), trees, float("inf"))
    return found


def chosen_tests(mutant: Mutant, tests: dict[str, Any]) -> list[str]:
    """The tests that call a mutant's function, the fastest first; at the level of a module or a
    class, all that call anything in it; beside them the file that bears the module's name, since
    a compiled step calls nothing.
    """
    function = mutant.function.removesuffix(".<locals>.").removesuffix(".")
    called = f"{mutant.module}:{function}" if "<locals>" in mutant.function else mutant.module
    namesake = f"/test_{Path(mutant.module).stem}.py::"
    covering = [
        name
        for name, row in tests.items()
        if namesake in name or any(item.startswith(called) for item in row["functions"])
    ]
    # A test that calls little else is likely to be about this.
    covering.sort(key=lambda name: tests[name]["seconds"] * (5 + len(tests[name]["functions"])))
    order, total = [], 0.0
    for name in covering:
        total += tests[name]["seconds"]
        if total > PATIENCE:
            break
        order.append(name)
    return order


def difference(mutant: Mutant, source: str) -> str:
    """The change as a diff without context."""
    lines = difflib.unified_diff(
        source.splitlines(), mutant.applied(source).splitlines(), lineterm="", n=0
    )
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def text(module: str) -> str:
    """A module as it is."""
    return (ROOT / PACKAGE / module).read_text("utf-8")


def put(path: Path, source: str) -> None:
    """Write a module; what was compiled of it within the same second would pass for fresh."""
    path.write_text(source, "utf-8")
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        old.unlink()


def judged(
    mutants: list[Mutant],
    tests: dict[str, Any],
    trees: list[Path],
    until: float,
    report: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Judge each mutant: killed (by a test or by taking too long), survived or uncovered."""
    rows: list[dict[str, Any]] = []

    def task(number: int, mutant: Mutant) -> Task:
        order = chosen_tests(mutant, tests)
        source = text(mutant.module)
        log = trees[0].with_name(f"mutant-{number}.log")

        def begin(tree: Path) -> int:
            put(tree / PACKAGE / mutant.module, mutant.applied(source))
            files = sorted({name.split("::")[0] for name in order})
            return in_child(tree, log, files or ["tests/test_package.py"], Selection(order))

        def end(tree: Path, code: int | None, seconds: float) -> None:
            put(tree / PACKAGE / mutant.module, source)
            outcome = "survived" if code == 0 else "uncovered" if not order else "killed"
            killer = re.findall(
                r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE
            )
            rows.append(
                {
                    **{k: v for k, v in asdict(mutant).items() if k not in ("start", "end")},
                    "diff": difference(mutant, source),
                    "outcome": outcome,
                    "by": "time" if code is None else killer[0] if killer else f"exit {code}",
                    "tests": len(order),
                    "seconds": round(seconds, 1),
                }
            )
            if outcome != "killed":
                print(f"{outcome}: {mutant.module}:{mutant.line}\n{rows[-1]['diff']}", flush=True)
            log.unlink()
            report(rows)

        expected = sum(tests[name]["seconds"] for name in order)
        return Task(begin, end, 30 + 3 * expected)

    work((task(i, mutant) for i, mutant in enumerate(mutants)), trees, until)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, the share killed, and the same by folder."""
    known = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else []
    reasons = {(entry["module"], entry["diff"]): entry["reason"] for entry in known}
    for row in rows:
        reason = reasons.get((row["module"], row["diff"]))
        if row["outcome"] != "killed" and reason is not None:
            row |= {"outcome": "equivalent", "reason": reason}

    def share(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        counts = Counter(row["outcome"] for row in chosen)
        alive = counts["survived"] + counts["uncovered"]
        judged = counts["killed"] + alive
        return {**counts, "share killed": round(counts["killed"] / judged, 4) if judged else None}

    folders = sorted({str(Path(row["module"]).parent) for row in rows})
    return share(rows) | {
        "by folder": {
            name: share([row for row in rows if str(Path(row["module"]).parent) == name])
            for name in folders
        }
    }


def main() -> None:
    """Watch the tests, draw mutants, judge them, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the draw of mutants")
    parser.add_argument("--count", type=int, default=200, help="mutants at most")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=600, help="no mutant begins after these")
    parser.add_argument("--modules", nargs="*", default=CORE, help="globs below src/bipareto")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders or files below tests/")
    parser.add_argument("--watch", type=Path, help="keep or take the watched tests here")
    parser.add_argument("--again", type=Path, help="judge the survivors of such a JSON instead")
    parser.add_argument("--json", type=Path, help="where the report goes")
    options = parser.parse_args()
    begin = time.monotonic()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    paths = sorted({path for glob in options.modules for path in (ROOT / PACKAGE).glob(glob)})
    modules = [path.relative_to(ROOT / PACKAGE).as_posix() for path in paths]
    every = [m for path, name in zip(paths, modules, strict=True) for m in mutants_of(path, name)]
    if options.again:
        old = json.loads(options.again.read_text())["survivors"]
        wanted = {(row["module"], row["diff"]) for row in old}
        mutants = [m for m in every if (m.module, difference(m, text(m.module))) in wanted]
    else:
        mutants = random.Random(options.seed).sample(every, min(options.count, len(every)))
    print(f"{len(every)} mutants in {len(modules)} modules; {len(mutants)} drawn", flush=True)

    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = [folder / f"tree-{i}" for i in range(options.workers)]
        for tree in trees:
            tree.mkdir()
            for part in TREE:
                source, target = ROOT / part, tree / part
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                if source.is_dir():
                    shutil.copytree(source, target, ignore=ignored)
                elif source.exists():
                    shutil.copy2(source, target)
        known = options.watch and options.watch.exists()
        kept = json.loads(options.watch.read_text()) if known else {}
        seen = watched(trees, folder, modules, options.tests, kept)
        if options.watch:
            options.watch.write_text(json.dumps(kept | seen))
        tests = {name: row for file in seen.values() for name, row in file["tests"].items()}
        print(f"{len(tests)} tests, after {time.monotonic() - begin:.0f} s", flush=True)
        facts = {
            "seed": options.seed,
            "modules": len(modules),
            "possible": len(every),
            "tests": len(tests),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
        }

        def report(rows: list[dict[str, Any]]) -> None:
            facts.update(summary(rows), seconds=round(time.monotonic() - begin))
            if options.json:
                options.json.write_text(json.dumps(facts | listed(rows), indent=1) + "\n")

        judged(mutants, tests, trees, begin + 60 * options.minutes, report)
    print(json.dumps(facts))


def listed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The mutants themselves: those alive and the equivalent ones whole, of others what killed."""
    return {
        "survivors": [row for row in rows if row["outcome"] in ("survived", "uncovered")],
        "equivalents": [row for row in rows if row["outcome"] == "equivalent"],
        "killed mutants": [
            {key: row[key] for key in ("module", "line", "kind", "by", "seconds")}
            for row in rows
            if row["outcome"] == "killed"
        ],
    }


if __name__ == "__main__":
    main()
