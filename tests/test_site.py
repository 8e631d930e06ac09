"""The documentation as a site: built without a warning, every link and picture leads somewhere, and
every public name is found by search and has its whole docstring.
"""

from __future__ import annotations

import html
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import bipareto

ROOT = Path(__file__).parent.parent


def test_the_site(tmp_path: Path) -> None:
    """One test: building takes longer than everything that is asked of the result."""
    pytest.importorskip("myst_nb", reason="the site is built with Sphinx: pip install '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", ROOT / "docs", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    pages = {
        path.relative_to(tmp_path).as_posix(): path.read_text("utf-8")
        for path in tmp_path.rglob("*.html")
    }
    assert {"index.html", "nas.html", "reference/MOMEHA.html", "changelog.html"} <= set(pages)
    assert lost_links(tmp_path, pages) == []
    assert fetched(pages) == set()
    index = json.loads(
        (tmp_path / "searchindex.js").read_text("utf-8").removeprefix("Search.setIndex(")[:-1]
    )
    searchable = found_by_search(index)
    assert {name: home for name, home in public().items() if home != searchable.get(name)} == {}
    for name, home in public().items():
        assert lost_words(name, pages[f"{home}.html"]) == set(), name


def lost_links(site: Path, pages: dict[str, str]) -> list[str]:
    names = {name: set(re.findall(r'id="([^"]+)"', text)) for name, text in pages.items()}
    lost = []
    for name, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            path, _, anchor = unquote(html.unescape(link)).partition("#")
            if re.match(r"\w+:", path):
                continue
            place = os.path.normpath((Path(name).parent / path.partition("?")[0]) if path else name)
            if not (site / place).is_file() or (
                anchor and anchor not in names.get(place, {anchor})
            ):
                lost.append(f"{name}: {link}")
    return lost


def fetched(pages: dict[str, str]) -> set[str]:
    """What a browser would fetch from elsewhere: the site works without a network."""
    text = "".join(pages.values())
    return set(re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', text)) | set(
        re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)"', text)
    )


def public() -> dict[str, str]:
    """Every public name, and the page that has it."""
    names = {}
    for name in bipareto.__all__:
        value = getattr(bipareto, name)
        names[f"bipareto.{name}"] = f"reference/{name}"
        for inner in value.__all__ if inspect.ismodule(value) else ():
            if getattr(bipareto, inner, None) is not getattr(value, inner):
                names[f"bipareto.{name}.{inner}"] = f"reference/{name}"
    return names


def found_by_search(index: dict[str, Any]) -> dict[str, str]:
    """Name -> page of Sphinx's search index, whose objects are prefix -> [page, ..., name]."""
    return {
        f"{prefix}.{entry[4]}".lstrip("."): index["docnames"][entry[0]]
        for prefix, entries in index["objects"].items()
        for entry in entries
    }


def lost_words(name: str, page: str) -> set[str]:
    """The words of a docstring that its page does not have."""
    value: Any = bipareto
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    if not callable(value) and not inspect.ismodule(value):
        return set()
    docstring = (inspect.getdoc(value) or "") if getattr(value, "__module__", "bip") else ""
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    return set(re.findall(r"\w{3,}", docstring)) - set(re.findall(r"\w{3,}", text)) - {"Args"}
