"""The arrows of the house: each room imports only from rooms above it (see docs/architecture.md).

The source is read, not imported, so an import inside a function or under TYPE_CHECKING counts as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "bipareto"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

#: Rooms from top to bottom; modules of one room may import each other.
ROOMS: list[tuple[str, ...]] = [
    ("errors", "tree", "sections", "drawing", "bars", "triton_kernels"),
    ("problem", "sampler", "modules", "loaders"),
    ("oracle", "parallel"),
    ("scalarization", "simplex", "schedule", "envelope", "hypergradient", "preferences", "probes", "smoothness", "constants"),
    ("methods",),
    ("inspection", "certificate"),
    ("stepping", "records", "recording", "sharing", "pieces", "gathering", "replay"),
    ("loop",),
    ("optimizer",),
    ("monitors", "trackers"),
    ("durable", "typed"),
    ("config", "store"),
    ("engines",),
    ("pareto", "measures", "adaptive"),
    ("doctor",),
    ("problems",),
    ("data",),
    ("experiments",),
    ("report",),
    ("plans",),
    ("sweeps",),
    ("tuner", "progress"),
    ("cli", "__init__", "__main__"),
]
FLOOR = {module: floor for floor, room in enumerate(ROOMS) for module in room}

#: (importing file, imported module) pairs that may point upwards, each with its reason.  None so far.
EXCEPTIONS: dict[tuple[str, str], str] = {}


class Arrow(NamedTuple):
    """`file` (relative to the package) imports `target`, a dotted module below the package, at `line`."""

    file: str
    line: int
    target: str


def room(path: str) -> str:
    """The room of a file ("methods/base.py" -> "methods") or of a dotted module ("methods.base" -> "methods")."""
    return path.removesuffix(".py").replace("/", ".").split(".")[0]


def arrows(file: str, source: str) -> Iterator[Arrow]:
    """Every import of the package's own modules in one file."""
    for node in ast.walk(ast.parse(source, filename=file)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = [PACKAGE, *file.split("/")[:-1]]
            base = ".".join([*package[: len(package) + 1 - node.level], *filter(None, [node.module])]) if node.level else node.module or ""
            # `from bipareto import tree` names a module, `from bipareto.tree import Tree` a thing inside one.
            targets = [f"{base}.{alias.name}" for alias in node.names] if base == PACKAGE else [base]
        else:
            continue
        for target in targets:
            head, _, rest = target.partition(".")
            if head == PACKAGE:
                # What is not a room is a name of the lazy package, whose home the reader could not see.
                yield Arrow(file, node.lineno, rest if room(rest) in FLOOR else "__init__")


def complaint(arrow: Arrow) -> str | None:
    """What is wrong with an arrow, or None."""
    here, there = room(arrow.file), room(arrow.target)
    if (arrow.file, arrow.target) in EXCEPTIONS or FLOOR[there] <= FLOOR[here]:
        return None
    return (
        f"src/{PACKAGE}/{arrow.file}:{arrow.line} imports {PACKAGE}.{arrow.target}: room {here!r} ({FLOOR[here]}) "
        f"may not import from room {there!r} ({FLOOR[there]}), which lies below it"
    )


def files() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def all_arrows() -> list[Arrow]:
    return [arrow for file in files() for arrow in arrows(file, (SOURCE / file).read_text("utf-8"))]


def test_every_file_has_a_room() -> None:
    homeless = [file for file in files() if room(file) not in FLOOR]
    assert not homeless, f"give these a room in ROOMS and in docs/architecture.md: {homeless}"


def test_arrows_point_down() -> None:
    complaints = [text for arrow in all_arrows() if room(arrow.file) in FLOOR and (text := complaint(arrow))]
    assert not complaints, "\n".join(complaints)


def test_exceptions_are_still_needed() -> None:
    assert EXCEPTIONS.keys() <= {(arrow.file, arrow.target) for arrow in all_arrows()}


def test_no_module_has_the_name_of_a_public_function() -> None:
    shadows = {"solve", "front", "certify"} & {room(file) for file in files()}
    assert not shadows, f"importing these modules would replace the functions of the same name in the lazy package: {shadows}"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("import bipareto.loop", "loop"),
        ("from bipareto.loop import solve", "loop"),
        ("from bipareto import loop", "loop"),
        ("from .. import loop", "loop"),
        ("def f():\n    from ..loop import solve", "loop"),
        ("if TYPE_CHECKING:\n    from bipareto.pareto import ParetoFront", "pareto"),
        ("from bipareto import solve", "__init__"),
        ("import bipareto", "__init__"),
    ],
)
def test_check_sees_wrong_imports(source: str, target: str) -> None:
    (arrow,) = arrows("methods/x.py", source)
    assert arrow.target == target
    message = complaint(arrow)
    assert message is not None
    assert f"methods/x.py:{source.count(chr(10)) + 1} " in message
    assert "'methods'" in message
    assert repr(room(target)) in message


@pytest.mark.parametrize(
    "source", ["from bipareto.tree import Tree", "from bipareto import oracle, tree", "from .base import Method", "import torch"]
)
def test_check_accepts_right_imports(source: str) -> None:
    assert not [text for arrow in arrows("methods/x.py", source) if (text := complaint(arrow))]
