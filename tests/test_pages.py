"""The pages: tables keep their shape, the floors name every folder, pictures are small."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def tables(text: str) -> Iterator[list[tuple[int, list[str]]]]:
    """The numbered rows of each table, split into cells; blocks of code are no tables."""
    rows: list[tuple[int, list[str]]] = []
    code = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        code ^= line.lstrip().startswith("```")
        if line.startswith("|") and not code:
            inner = line.strip().removeprefix("|").removesuffix("|")
            rows.append((number, [cell.strip() for cell in re.split(r"(?<!\\)\|", inner)]))
        elif rows:
            yield rows
            rows = []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_row_of_a_table_is_as_wide_as_its_head(page: Path) -> None:
    for (_, head), *rows in tables(page.read_text("utf-8")):
        assert rows, f"{head} is a table without rows"
        assert all(re.fullmatch(":?-+:?", cell) for cell in rows[0][1]), rows[0]
        for number, cells in rows:
            assert len(cells) == len(head), f"line {number} has {len(cells)} cells: {cells}"


def test_a_row_of_another_table_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| folder | holds |\n| --- | --- |\n| `a/` | 1 | 2 |\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="line 3 has 3 cells"):
        test_every_row_of_a_table_is_as_wide_as_its_head(page)


def test_the_floors_name_every_folder_and_say_in_words_what_it_knows() -> None:
    found = {
        name: words
        for (_, head), *rows in tables((ROOT / "docs/architecture.md").read_text("utf-8"))
        if head == ["folder", "what it knows"]
        for _, (names, words) in rows
        for name in re.findall("`([a-z]+)/`", names)
    }
    folders = {path.parent.name for path in (ROOT / "src/bipareto").glob("*/__init__.py")}
    assert found.keys() == folders
    assert all(re.match("[a-z]", words) or "`" in words for words in found.values()), found


def test_no_picture_is_larger_than_a_page_wants() -> None:
    large = {
        path.name: path.stat().st_size
        for path in (ROOT / "docs/images").iterdir()
        if path.stat().st_size > 250_000
    }
    assert not large, "give them a palette, fewer dots or a smaller dpi"
