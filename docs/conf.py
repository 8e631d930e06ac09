"""The documentation as a site: `make docs`, which is `sphinx-build -W docs site`.

The pages are docs/*.md and docs/notebooks; README, CHANGELOG and CONTRIBUTING lie in the root,
where people look for them, and are read from there.  A page for every public name is written to
docs/reference (not committed) from `bipareto.__all__` before Sphinx reads anything, and one for
every example to docs/gallery.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import bipareto

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = DOCS / "reference"
GALLERY = DOCS / "gallery"

project = "bipareto"
author = "the bipareto authors"
release = version = bipareto.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["results/**"]
html_theme = "furo"
html_title = f"bipareto {release}"
highlight_language = "none"  # literal blocks are formulas
# A page that no table of contents names is found by search; a docstring is written for `help`
# first, and an indentation that reStructuredText does not like is no error.
suppress_warnings = ["toc.not_included", "docutils", "mystnb.unknown_mime_type"]
# Docstrings write names in single backticks: those that are known become links.
default_role = "py:obj"
autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
myst_heading_anchors = 4
nb_output_stderr = "remove"
nb_execution_mode = "off"  # notebooks are executed by their tests, and kept with what they showed
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

#: A line of an aligned formula: what is defined, and how.
FORMULA = re.compile(r"\S+( \S+)?\s*(=|<-|:) ")
#: Pages whose text lies in the root of the repository.
FROM_ROOT = {"index": "README.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
#: Links of those texts, as seen from docs/.
MOVED = {
    "](docs/": "](",
    "](README.md)": "](index.md)",
    "](CHANGELOG.md)": "](changelog.md)",
    "](CONTRIBUTING.md)": "](contributing.md)",
    "](../CHANGELOG.md)": "](changelog.md)",
    "](../CONTRIBUTING.md)": "](contributing.md)",
    "](../README.md)": "](index.md)",
    "](../examples)": "](examples.md)",
    "](results/compare)": "](results/compare/pl-sin2.json)",
    "](examples/loops)": "](../examples/loops/lightning_loop.py)",
    "](examples/": "](../examples/",
    "](LICENSE)": "](../LICENSE)",
}


def write_reference(_: Any) -> None:
    """One page for every public name; a module's page has all its public names."""
    pages = {name: _page(name) for name in bipareto.__all__}
    index = ["# Reference\n\nEvery public name, with its whole docstring.\n"]
    index += [f"- {{py:obj}}`bipareto.{name}`: {_first(getattr(bipareto, name))}" for name in pages]
    entries = "\n".join(pages)
    index += [f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"]
    REFERENCE.mkdir(exist_ok=True)
    wanted = {"index.md": "\n".join(index)} | {f"{name}.rst": text for name, text in pages.items()}
    for path in REFERENCE.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text("utf-8") != text:  # else Sphinx reads it anew
            path.write_text(text, "utf-8")


def write_gallery(_: Any) -> None:
    """One page for every example: what it is, its picture, its code and what it prints."""
    GALLERY.mkdir(exist_ok=True)
    paths = sorted((ROOT / "examples").glob("*.py"))
    for path in paths:
        code = path.read_text("utf-8")
        told = inspect.cleandoc(code.split('"""')[1]).split("\n\n")
        title = told[0].split(":")[0].strip()
        picture = DOCS / "images" / f"example-{path.stem.replace('_', '-')}.png"
        output = DOCS / "results" / "examples" / f"{path.stem}.txt"
        parts = [f"# {title}", *told[:-1], f"```\n{told[-1]}\n```"]
        parts += [f"![{title}](../images/{picture.name})"] if picture.exists() else []
        parts += [f"```python\n{code}```"]
        if output.exists():
            parts += ["It prints, with `--small`:", f"```\n{output.read_text('utf-8')}```"]
        text = "\n\n".join(parts) + "\n"
        page = GALLERY / f"{path.stem}.md"
        if not page.exists() or page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")


def _page(name: str) -> str:
    value = getattr(bipareto, name)
    title = f"bipareto.{name}"
    lines = [title, "=" * len(title), ""]
    if not inspect.ismodule(value):
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        # What a class inherits stands on its own page, and not again in the pages of modules.
        inherits = ["   :inherited-members:"] if inspect.isclass(value) else []
        return "\n".join([*lines, f".. {kind}:: bipareto.{name}", *inherits, ""])
    lines += [f".. py:module:: bipareto.{name}", "", *(inspect.getdoc(value) or "").split("\n"), ""]
    for inner in value.__all__:
        thing = getattr(value, inner)
        if getattr(bipareto, inner, None) is thing:
            lines += [f"- :py:obj:`bipareto.{inner}`, which has its own page", ""]
        elif inspect.isclass(thing):
            lines += [f".. autoclass:: bipareto.{name}.{inner}", ""]
        elif inspect.isroutine(thing):
            lines += [f".. autofunction:: bipareto.{name}.{inner}", ""]
        else:
            lines += [f".. py:data:: {inner}", "", f"   {_shown(thing)}", ""]
    return "\n".join(lines)


def _shown(thing: Any) -> str:
    """The names in a table, or what a type stands for."""
    if isinstance(thing, (dict, list, tuple)):
        return ", ".join(f"``{getattr(entry, 'name', entry)}``" for entry in thing)
    return f"``{thing}``"


def _first(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def read_from_root(_: Any, page: str, source: list[str]) -> None:
    """Put a text of the root before what its page in docs/ adds (the table of contents)."""
    if page in FROM_ROOT:
        source[0] = (ROOT / FROM_ROOT[page]).read_text("utf-8") + "\n" + source[0]
    if not page.startswith(("reference", "notebooks", "gallery")):
        for old, new in MOVED.items():
            source[0] = source[0].replace(old, new)


def as_markup(_: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written for `help`: formulas, aligned, become literal blocks, and stars, bars
    and trailing underscores outside backticks are mathematics, not markup.
    """
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(map(_literal_or_escaped, paragraphs)).split("\n")


def _literal_or_escaped(paragraph: str) -> str:
    if re.match(r"\s*>>> ", paragraph):
        return paragraph
    rows = paragraph.split("\n")
    margins = [len(row) - len(row.lstrip()) for row in rows]
    left = [row.strip() for row, margin in zip(rows, margins, strict=True) if margin == margins[0]]
    ragged = len(set(margins)) > 1 and not re.match(r"\s*(Args|Returns|Raises):|\s*- ", paragraph)
    formulas = len(rows) > 1 and all(map(FORMULA.match, left))
    if margins[0] == 0 and (ragged or formulas):
        return "::\n\n" + "\n".join(f"    {row}" for row in rows)
    pieces = re.split(r"(`+[^`]*`+)", paragraph)
    pieces[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", write_gallery)
    app.connect("source-read", read_from_root)
    app.connect("autodoc-process-docstring", as_markup, priority=400)  # before napoleon
