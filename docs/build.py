"""Build the documentation: docs/api.md from the docstrings, and every page as HTML.

python docs/build.py            # writes docs/api.md and site/
python docs/build.py --check    # fails when docs/api.md is not what the docstrings say
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
SITE = DOCS.parent / "site"
STYLE = "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 sans-serif}pre{background:#f4f4f4;padding:1rem;overflow:auto}td,th{padding:.2rem .6rem;text-align:left;vertical-align:top}img{max-width:100%}nav{font-size:.85rem;border-bottom:1px solid #ccc;padding-bottom:.5rem}"


def api() -> str:
    """Every public name: what it is, its signature, and the first paragraph of its docstring."""
    import bipareto

    lines = [
        "# API reference",
        "",
        "Made from the docstrings by `python docs/build.py`; `help(name)` has the whole of each.",
        "",
    ]
    for name in sorted(bipareto.__all__, key=str.lower):
        value = getattr(bipareto, name)
        if inspect.ismodule(value):
            lines += [
                f"## bipareto.{name}",
                "",
                _first(value),
                "",
                "| name | what it is |",
                "| --- | --- |",
            ]
            lines += [
                f"| `{_call(inner, getattr(value, inner))}` | {_cell(getattr(value, inner))} |"
                for inner in value.__all__
            ]
        else:
            lines += [f"## bipareto.{_call(name, value)}", "", _first(value)]
            if inspect.isclass(value):
                members = [
                    m
                    for m, v in vars(value).items()
                    if not m.startswith("_")
                    and (inspect.isfunction(v) or isinstance(v, (property, classmethod)))
                ]
                rows = [f"| `{member}` | {_cell(getattr(value, member))} |" for member in members]
                lines += ["", "| member | what it does |", "| --- | --- |", *rows] if rows else []
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _call(name: str, value: object) -> str:
    if not callable(value):
        return name
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return name
    return f"{name}({', '.join(p.name for p in parameters if p.name != 'self')})"


def _first(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def _cell(value: object) -> str:
    described = callable(value) or inspect.ismodule(value) or isinstance(value, property)
    return _first(value).replace("|", "\\|") if described else type(value).__name__


def pages(site: Path = SITE) -> None:
    """Every page of docs/ and the README as HTML in site/, with the pictures and results they
    show.
    """
    markdown = importlib.import_module("markdown_it").MarkdownIt("commonmark").enable("table")
    root = DOCS.parent
    paths = [
        root / "README.md",
        *sorted(DOCS.glob("*.md")),
        root / "CONTRIBUTING.md",
        root / "CHANGELOG.md",
    ]
    site.mkdir(exist_ok=True)
    shutil.copy(root / "LICENSE", site)
    for folder in (DOCS / "images", DOCS / "results", root / "examples"):
        shutil.copytree(folder, site / folder.name, dirs_exist_ok=True)
    links = " · ".join(
        f'<a href="{path.stem.lower()}.html">{path.stem.lower()}</a>' for path in paths
    )
    for path in paths:
        body = re.sub(
            r'(href|src)="(?:docs|\.\.)/', r'\1="', markdown.render(path.read_text("utf-8"))
        )
        body = re.sub(
            r'href="([\w-]+)\.md(#[\w-]+)?"',
            lambda found: f'href="{found[1].lower()}.html{found[2] or ""}"',
            body,
        )
        body = re.sub(
            r"<(h\d)>(.*?)</h\d>",
            lambda found: f'<{found[1]} id="{_anchor(found[2])}">{found[2]}</{found[1]}>',
            body,
        )
        title = path.stem.lower()
        (site / f"{title}.html").write_text(
            "<!doctype html><meta charset=utf-8><title>bipareto: "
            f"{title}</title><style>{STYLE}</style><nav>{links}</nav>{body}",
            "utf-8",
        )


def _anchor(heading: str) -> str:
    """The name by which a heading is linked to: its words in small letters, joined by hyphens."""
    words = re.sub(r"<[^>]+>|&\w+;", "", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


if __name__ == "__main__":
    if "--check" in sys.argv:
        if (DOCS / "api.md").read_text("utf-8") != api():
            sys.exit("docs/api.md is not what the docstrings say; run python docs/build.py")
    else:
        (DOCS / "api.md").write_text(api(), "utf-8")
        pages()
