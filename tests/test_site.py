"""The pages of the documentation: every link and picture of theirs leads somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_links_and_pictures_of_all_pages_exist(tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert specification is not None
    assert specification.loader is not None
    build = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(build)
    build.pages(tmp_path)
    pages = {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.html")}
    assert {"readme.html", "nas.html", "api.html", "changelog.html"} <= set(pages)
    names = {name: set(re.findall(r'id="([^"]+)"', text)) for name, text in pages.items()}
    lost = []
    for name, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            target, _, anchor = link.partition("#")
            target = target or name
            if "://" not in link and not (
                (tmp_path / target).exists() and (not anchor or anchor in names[target])
            ):
                lost.append(f"{name}: {link}")
    assert not lost
