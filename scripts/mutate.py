"""Break the core modules at random, one small change at a time, and count what the tests notice.

    python scripts/mutate.py [--seed 0] [--count 200] [--workers 2] [--minutes M] [--json FILE]

First every test of the chosen files runs once, watched: whether it passes, how long it takes and
which functions of the package it calls.  Then `count` mutants are drawn without replacement from
all that the core modules admit: operators, comparisons, constants, swapped arguments, dropped terms
and statements.  A mutant meets the tests that call its function, cheap and specific ones first,
until one fails.  A change within a function is made in a fork of a process that has collected all
tests, by giving the function other code, so that a mutant costs little more than the test that
kills it; a change elsewhere (a default, a constant, a class) in a fresh import.  No file changes.

A mutant that no input can tell from the original is *equivalent*: such are judged by hand and
listed with their reason in scripts/equivalent.json.  The share that is reported is killed /
(killed + survived), with them left out.  Not mutated, since no assertion about mathematics could
tell: messages, tables for people and annotations; seeds, `strict` of a zip and the line that a
warning names; tolerances and guards (floats of at most 1e-3 or at least 1e3, and what multiplies a
machine epsilon); caps on iterations (integers above 12).  Rules of thumb (methods/tuning, and what
`tuned` makes of them) are judged on foreign problems (benchmarks/foreign.py) instead.

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
import gc
import importlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType, FunctionType
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
#: A mutant's tests may be expected to take this long together; slower ones are left out.
PATIENCE = 15.0
#: A test is watched for at most this many seconds.
WATCHED = 10
#: The share of the minutes that is kept for changes outside functions.
SHARE = 0.2
#: What a worker finds loaded: other people's packages, never this one.
LOADED = ("torch._dynamo", "torch.func", "moocore", "hypothesis", "matplotlib.pyplot", "typer")
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
#: calls whose first two arguments may be swapped without effect, or whose effect is no mathematics
SYMMETRIC = ("min", "max", "zip", "maximum", "minimum", "range", "stack", "squares", "hypot")
#: functions that make words for people, and rules of thumb
LEFT_ALONE = ("__str__", "__repr__", "_repr_html_", "_rows", "tuned")
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

    @property
    def inside(self) -> bool:
        """Whether the change is in the body of a function."""
        return "<locals>" in self.function

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
        if node.name in LEFT_ALONE:
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
    return name in SYMMETRIC


def mutants_of(path: Path, module: str) -> Iterator[Mutant]:
    """All mutants of a file that can be parsed and are not the file itself."""
    source = path.read_text("utf-8")
    whole = ast.dump(ast.parse(source))
    for mutant in Changes(module, source).found:
        try:
            changed = ast.dump(ast.parse(mutant.applied(source)))
        except SyntaxError:
            continue
        if changed != whole:
            yield mutant


class Taken:
    """A pytest plugin: tests are collected as always, and `use(items)` decides what is run."""

    def __init__(self, use: Callable[[list[pytest.Item]], None]) -> None:
        self.use = use
        self.failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        with contextlib.suppress(ImportError):  # a failing example need not be made small
            from hypothesis import Phase, settings

            phases = (Phase.explicit, Phase.generate)
            settings.register_profile("mutants", settings.default, phases=phases)
            settings.load_profile("mutants")
        self.use(session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, or a skip."""
        self.failed |= not report.passed

    def passes(self, item: pytest.Item) -> bool:
        """Whether a test passes."""
        self.failed = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed


def collected(files: Sequence[str], use: Callable[[Taken, list[pytest.Item]], None]) -> None:
    """Let pytest collect these files and `use` what it found."""
    plugin = Taken(lambda items: use(plugin, items))
    os.chdir(ROOT)
    pytest.main(
        [
            *("-q", "-s", "--no-header", "-p", "no:cacheprovider", f"--rootdir={ROOT}"),
            # what another Python or torch deprecates is not judged here
            *("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
            "--assert=plain",  # nothing is rewritten, and no loader comes before `Changed`
            "--continue-on-collection-errors",
            *files,
        ],
        plugins=[plugin],
    )


def forked(log: Path, do: Callable[[], int]) -> int:
    """Run `do` in a fork of this process, its output to a file; the id of the fork."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 3
    try:
        code = do()
    except BaseException:  # noqa: BLE001 - a child has nobody to raise to
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class Task:
    """What a worker is asked to run, and what came of it."""

    begin: Callable[[], int]
    end: Callable[[int | None, float], None]
    limit: float


def work(tasks: Iterator[Task], workers: int, until: float) -> None:
    """Run tasks side by side; none begins after `until`, and what runs half a minute later is given
    up.
    """
    busy: dict[int, tuple[Task, float]] = {}
    more = True
    while busy or more:
        while len(busy) < workers and more:
            task = next(tasks, None) if time.monotonic() < until else None
            more = task is not None
            if task is not None:
                busy[task.begin()] = (task, time.monotonic())
        for child, (task, begin) in list(busy.items()):
            taken = time.monotonic() - begin
            ended, status = os.waitpid(child, os.WNOHANG)
            given_up = not ended and time.monotonic() > until + 30
            late = not ended and taken > task.limit
            if late or given_up:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if ended or late or given_up:
                del busy[child]
                # what is given up has passed all tests so far
                code = os.waitstatus_to_exitcode(status) if ended else 0 if given_up else None
                task.end(code, taken)
        time.sleep(0.005)


def own_folder(items: list[pytest.Item], folder: Path) -> None:
    """Temporary files of a fork's tests go to a folder of their own."""
    if items:
        items[0].config._tmp_path_factory._given_basetemp = folder / f"tmp-{os.getpid()}"  # type: ignore[attr-defined]


def watched(plugin: Taken, items: list[pytest.Item], folder: Path, workers: int) -> None:
    """Run every test once; of those that pass the seconds and the functions that they call, a line
    of JSON each.
    """
    source = str(ROOT / PACKAGE) + "/"
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::")[0], []).append(item)

    def look(item: pytest.Item) -> dict[str, Any] | None:
        codes: dict[int, CodeType] = {}

        def seen(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                codes[id(frame.f_code)] = frame.f_code

        begin = time.perf_counter()
        signal.alarm(WATCHED)
        sys.setprofile(seen)
        passed = plugin.passes(item)
        sys.setprofile(None)
        signal.alarm(0)
        called = {
            f"{code.co_filename.removeprefix(source)}:{code.co_qualname}"
            for code in codes.values()
            if code.co_filename.startswith(source)
        }
        seconds = time.perf_counter() - begin
        row = {"test": item.nodeid, "seconds": seconds, "functions": sorted(called)}
        return row if passed else None

    def task(number: int, share: list[pytest.Item]) -> Task:
        def do() -> int:
            signal.signal(signal.SIGALRM, _too_long)
            own_folder(share, folder)
            with (folder / f"watch-{number}.jsonl").open("w") as file:
                for item in share:
                    if (row := look(item)) is not None:
                        file.write(json.dumps(row) + "\n")
                        file.flush()
            return 0

        return Task(
            lambda: forked(folder / f"watch-{number}.log", do), lambda code, seconds: None, 300.0
        )

    # few tests at a time, the files with most first
    shares = [rows[i : i + 12] for rows in files.values() for i in range(0, len(rows), 12)]
    work(iter([task(i, share) for i, share in enumerate(shares)]), workers, float("inf"))


def _too_long(*_: object) -> None:
    raise TimeoutError("a test that is too long to be watched")


def chosen_tests(mutant: Mutant, tests: dict[str, Any]) -> list[str]:
    """The tests that call a mutant's function; beside them the file that bears the module's name,
    since a compiled step calls nothing.  At the level of a module or a class, all that call
    anything in it, and those of its folder: what reads a default calls nothing.
    """
    function = mutant.function.removesuffix(".<locals>.").removesuffix(".")
    called = f"{mutant.module}:{function}" if mutant.inside else mutant.module
    namesake = f"/test_{Path(mutant.module).stem}.py::"
    folder = f"tests/{Path(mutant.module).parent}/test_"
    covering = [
        name
        for name, row in tests.items()
        if namesake in name
        or (name.startswith(folder) and not mutant.inside)
        or any(item.startswith(called) for item in row["functions"])
    ]

    def place(name: str) -> tuple[bool, float]:
        """Those that call it come first; one that calls little else is likely to be about it."""
        functions = tests[name]["functions"]
        apart = not any(item.startswith(called) for item in functions)
        return apart, tests[name]["seconds"] * (5 + len(functions))

    covering.sort(key=place)
    order, total = [], 0.0
    for name in covering:
        total += tests[name]["seconds"]
        if total > PATIENCE:
            break
        order.append(name)
    return order


def codes_of(code: CodeType) -> list[CodeType]:
    """A code object and all within it, in a fixed order."""
    return [code, *(c for k in code.co_consts if isinstance(k, CodeType) for c in codes_of(k))]


def change(mutant: Mutant) -> None:
    """Give the functions of a loaded module the mutant's code."""
    path, source = str(ROOT / PACKAGE / mutant.module), text(mutant.module)
    old, new = (
        codes_of(compile(words, path, "exec", dont_inherit=True))
        for words in (source, mutant.applied(source))
    )
    other = dict(zip(old, new, strict=True))
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == path:
            function.__code__ = other[function.__code__]


class Changed(SourceFileLoader):
    """Loads a mutant in place of a module."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(ROOT / PACKAGE / mutant.module))
        self.words = mutant.applied(text(mutant.module))

    def get_code(self, fullname: str) -> CodeType:
        """Not what was compiled before."""
        return compile(self.words, self.path, "exec", dont_inherit=True)


def imports_changed(mutant: Mutant) -> None:
    """Let the module be imported as the mutant."""
    wanted = "bipareto." + mutant.module.removesuffix(".py").replace("/", ".")
    wanted = wanted.removesuffix(".__init__")

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name != wanted:
                return None
            file = ROOT / PACKAGE / mutant.module
            inner = [str(file.parent)] if file.stem == "__init__" else None
            return spec_from_file_location(
                name, file, loader=Changed(name, mutant), submodule_search_locations=inner
            )

    sys.meta_path.insert(0, Finder())


def alive(plugin: Taken, items: list[pytest.Item], order: list[str], folder: Path) -> int:
    """0 where all these tests pass, 1 at the first that fails."""
    known = {item.nodeid: item for item in items}
    own_folder(items, folder)
    for name in order:
        if name not in known or not plugin.passes(known[name]):
            os.write(1, f"\nKILLED BY {name}\n".encode())  # past pytest's capture
            return 1
    return 0


def difference(mutant: Mutant, source: str) -> str:
    """The change as a diff without context, of the lines that it touches."""
    data, word = source.encode(), mutant.text.encode()
    first = data.rfind(b"\n", 0, mutant.start) + 1
    last = data.find(b"\n", mutant.end) % (len(data) + 1)
    parts = data[first:last], data[first : mutant.start] + word + data[mutant.end : last]
    before, after = (part.decode().splitlines() for part in parts)
    lines = difflib.unified_diff(before, after, lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def text(module: str) -> str:
    """A module as it is."""
    return (ROOT / PACKAGE / module).read_text("utf-8")


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


def judge(
    mutants: list[Mutant],
    tests: dict[str, Any],
    folder: Path,
    run: Callable[[Mutant, list[str]], int],
    options: argparse.Namespace,
    until: float,
) -> None:
    """Judge each mutant, killed (by a test or by taking too long), survived or uncovered: a line of
    JSON each in folder/rows.jsonl.
    """

    def task(mutant: Mutant) -> Task:
        order = chosen_tests(mutant, tests)
        log = folder / f"mutant-{mutant.line}-{mutant.start}-{time.monotonic_ns()}.log"

        def end(code: int | None, seconds: float) -> None:
            if code == 3 and mutant.inside:
                return  # other code does not fit the functions there are; the import will tell
            killer = re.findall(r"^KILLED BY (\S+)", log.read_text(errors="replace"), re.MULTILINE)
            row = {
                **asdict(mutant),
                "diff": difference(mutant, text(mutant.module)),
                "outcome": "uncovered" if not order else "survived" if code == 0 else "killed",
                "by": "time" if code is None else killer[0] if killer else f"exit {code}",
                "tests": len(order),
                "seconds": round(seconds, 2),
            }
            with (folder / "rows.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            if row["outcome"] != "killed":
                print(f"{row['outcome']}: {mutant.module}:{mutant.line}\n{row['diff']}", flush=True)
            log.unlink()
            report(folder, options)

        expected = sum(tests[name]["seconds"] for name in order)
        return Task(lambda: forked(log, lambda: run(mutant, order)), end, 20 + 3 * expected)

    work((task(mutant) for mutant in mutants), options.workers, until)


def report(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What is known so far, also as a file."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    facts = json.loads((folder / "facts.json").read_text())
    facts |= summary(rows) | {"seconds": round(time.monotonic() - facts.pop("begin"))}
    if options.json:
        options.json.write_text(json.dumps(facts | listed(rows), indent=1) + "\n")
    return facts


def main() -> None:
    """Watch the tests, draw mutants, judge them, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the draw of mutants")
    parser.add_argument("--count", type=int, default=200, help="mutants at most")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=600, help="no mutant begins after these")
    parser.add_argument("--modules", nargs="*", default=CORE, help="globs below src/bipareto")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders or files below tests/")
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
    files = [
        path.relative_to(ROOT).as_posix()
        for name in options.tests
        for path in sorted({*(ROOT / "tests" / name).rglob("test_*.py"), ROOT / "tests" / name})
        if path.is_file()
    ] + [f"{PACKAGE}/{module}" for module in modules if ">>> " in text(module)]
    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    until = begin + 60 * options.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.jsonl").touch()
        tests: dict[str, Any] = {}

        def loaded(plugin: Taken, items: list[pytest.Item]) -> None:
            """Watch all tests, then judge the mutants within functions."""
            out = os.fdopen(os.dup(terminal), "w")
            sys.stdout = out
            watched(plugin, items, folder, options.workers)
            for file in sorted(folder.glob("watch-*.jsonl")):
                tests.update(
                    (row["test"], row) for row in map(json.loads, file.read_text().splitlines())
                )
            (folder / "tests.json").write_text(json.dumps(tests))
            print(f"{len(tests)} tests, after {time.monotonic() - begin:.0f} s", flush=True)
            left_out = [item.nodeid for item in items if item.nodeid not in tests]
            print(f"left out, since they fail or take long: {left_out}", flush=True)
            facts = {"seed": options.seed, "modules": len(modules), "possible": len(every)}
            facts |= {"tests": len(tests), "python": sys.version.split()[0]}
            facts |= {"torch": torch.__version__, "begin": begin}
            (folder / "facts.json").write_text(json.dumps(facts))

            def run(mutant: Mutant, order: list[str]) -> int:
                change(mutant)
                return alive(plugin, items, order, folder)

            inside = [mutant for mutant in mutants if mutant.inside]
            judge(inside, tests, folder, run, options, until - 60 * SHARE * options.minutes)

        def fresh(mutant: Mutant, order: list[str]) -> int:
            found = []
            imports_changed(mutant)
            collected(
                sorted({name.split("::")[0] for name in order}),
                lambda plugin, items: found.append(alive(plugin, items, order, folder)),
            )
            return found[0] if found else 1

        terminal = os.dup(1)
        child = forked(folder / "log", lambda: collected(files, loaded) or 0)
        os.waitpid(child, 0)
        if not (folder / "tests.json").exists():
            sys.exit((folder / "log").read_text()[-3000:])
        tests.update(json.loads((folder / "tests.json").read_text()))
        rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
        done = {(row["module"], row["start"], row["end"], row["text"]) for row in rows}
        rest = [m for m in mutants if (m.module, m.start, m.end, m.text) not in done]
        rest.sort(key=lambda mutant: mutant.inside)
        judge(rest, tests, folder, fresh, options, until)
        print(json.dumps(report(folder, options)))


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
