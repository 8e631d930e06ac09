"""The floors of the house, read off its folders: inside every folder the arrows between its members
go one way.

The source is read, not imported, so that an import inside a function or under TYPE_CHECKING counts
as well. A folder's `__init__` is its face: it may import from everything inside, and nothing inside
imports from it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src"
#: No folder of the library may import from these packages, which lie beside it.
BESIDE = ("bipareto_experiments", "bipareto_battery")


class Arrow(NamedTuple):
    """`source` imports `target`, both dotted modules, at a line of a file."""

    source: str
    target: str
    place: str


def modules() -> dict[str, Path]:
    """Dotted name -> file; a package goes by the name of its face, `package.__init__`."""
    files = [path for package in ("bipareto", *BESIDE) for path in (SOURCE / package).rglob("*.py")]
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in files}


def resolved(name: str, known: Mapping[str, Path]) -> str | None:
    """The module that a dotted name stands for: itself, a face, or the module that holds the
    name.
    """
    while name:
        for candidate in (name, f"{name}.__init__"):
            if candidate in known:
                return candidate
        name = name.rpartition(".")[0]
    return None


def arrows(source: str, text: str, known: Mapping[str, Path]) -> Iterator[Arrow]:
    """Every import of the project's own modules in one module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            target = resolved(name, known)
            if target is not None and target != source:
                yield Arrow(source, target, f"{source}:{node.lineno}")


def below(folder: str, module: str) -> str | None:
    """The member of a folder that a module belongs to: "bipareto", "bipareto.run.loop" -> "run"."""
    if not module.startswith(f"{folder}."):
        return None
    return module.removeprefix(f"{folder}.").split(".")[0]


def members(folder: str, known: list[Arrow]) -> dict[str, dict[str, str]]:
    """member -> the members it imports, each with a place where it does; the face is left out."""
    graph: dict[str, dict[str, str]] = {}
    for arrow in known:
        a, b = below(folder, arrow.source), below(folder, arrow.target)
        if a and b and a != b and a not in ("__init__", "__main__"):
            graph.setdefault(a, {}).setdefault(b, arrow.place)
    return graph


def cycle(graph: Mapping[str, Mapping[str, str]]) -> str | None:
    """A cycle in words, with the lines that make it; None where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1][::-1]
        return ", ".join(f"{a} -> {b} ({graph[a][b]})" for a, b in pairwise(ring))
    return None


KNOWN = modules()
ARROWS = [
    arrow for name, path in KNOWN.items() for arrow in arrows(name, path.read_text("utf-8"), KNOWN)
]
FOLDERS = sorted(name.removesuffix(".__init__") for name in KNOWN if name.endswith(".__init__"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_cycle_between_the_members_of_a_folder(folder: str) -> None:
    found = cycle(members(folder, ARROWS))
    assert found is None, f"in {folder}: {found}"


def test_nothing_inside_a_folder_imports_its_face() -> None:
    wrong = [
        arrow.place
        for arrow in ARROWS
        if arrow.target.endswith(".__init__")
        and arrow.target != "bipareto.__init__"
        and arrow.source.startswith(arrow.target.removesuffix("__init__"))
    ]
    assert not wrong, f"import from the module that holds the name: {wrong}"


def test_the_library_does_not_know_the_experiments() -> None:
    wrong = [
        arrow.place
        for arrow in ARROWS
        if below("bipareto", arrow.source) and any(below(one, arrow.target) for one in BESIDE)
    ]
    assert not wrong


def test_the_package_itself_is_a_face_for_users_and_for_commands_only() -> None:
    """Its names are loaded on demand, so that a reader could not see where an arrow to them
    leads.
    """
    allowed = ("bipareto.cli.", "bipareto_experiments.", "bipareto.__main__")
    wrong = [
        arrow.place
        for arrow in ARROWS
        if arrow.target == "bipareto.__init__" and not arrow.source.startswith(allowed)
    ]
    assert not wrong


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Importing it would put the module in the place of the function."""
    assert not {"solve", "front", "certify", "diagnose"} & {
        below("bipareto", name) for name in KNOWN
    }


def test_the_ground_floor_is_small() -> None:
    entries = [path.name for path in (SOURCE / "bipareto").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 14, sorted(entries)


def bound(text: str) -> list[str]:
    """The names that a module's top level assigns, as often as it does."""
    targets = [
        target
        for node in ast.parse(text).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names = [node.id for t in targets for node in ast.walk(t) if isinstance(node, ast.Name)]
    return [name for name in names if name != "_"]


def test_no_constant_takes_the_place_of_another_of_its_name() -> None:
    """As where two modules are joined that each have one."""
    for name, path in modules().items():
        twice = [
            word for word, count in Counter(bound(path.read_text("utf-8"))).items() if count > 1
        ]
        assert not twice, f"{name} binds {twice} twice"
    assert bound("A, B = 1, 2\nB: int = 3") == ["A", "B", "B"]


def test_every_module_fits_a_readers_head() -> None:
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in KNOWN.items()}
    assert not {name: length for name, length in lengths.items() if length > 400}


@pytest.mark.parametrize(
    ("texts", "ring"),
    [
        ({"a": "from p.b import x", "b": "from p.a import y"}, "a -> b"),
        ({"a": "import p.b", "b": "def f():\n    from p import a"}, "b -> a (p.b:2)"),
        (
            {
                "a": "if TYPE_CHECKING:\n    from p.b import X",
                "b": "from p.a.c import y",
                "a.c": "",
            },
            "b -> a",
        ),
    ],
)
def test_the_check_sees_a_cycle(texts: dict[str, str], ring: str) -> None:
    known = {f"p.{name}": Path() for name in texts}
    found = [arrow for name, text in texts.items() for arrow in arrows(f"p.{name}", text, known)]
    words = cycle(members("p", found))
    assert words is not None
    assert ring in words


def test_the_check_accepts_arrows_that_go_one_way() -> None:
    texts = {"a": "", "b": "from p.a import x", "c": "from p import a, b"}
    known = {f"p.{name}": Path() for name in texts}
    assert (
        cycle(
            members(
                "p",
                [
                    arrow
                    for name, text in texts.items()
                    for arrow in arrows(f"p.{name}", text, known)
                ],
            )
        )
        is None
    )
