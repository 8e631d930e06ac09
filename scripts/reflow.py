"""Fill the prose of Markdown files to 100 columns; code, tables and headings stay as they are.

    python scripts/reflow.py README.md docs/*.md

A paragraph or list item without a longer line is not touched.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

WIDTH = 100
#: What must not be broken in two: code, formulas, links.
WHOLE = re.compile(r"`[^`]+`|\$[^$]+\$|\[[^\]]*\]\([^)]*\)")
#: Lines that begin a block of their own.
ITEM = re.compile(r"(\s*)([-*+]|\d+\.)\s+")
APART = re.compile(r"\s*(\||#|<|!\[|>|:::|```|~~~|---|\[\^|$)")


def filled(lines: list[str]) -> list[str]:
    """One paragraph or list item, filled where it is too wide."""
    if max(map(len, lines)) <= WIDTH or any(line.endswith(("  ", "\\")) for line in lines):
        return lines
    mark = ITEM.match(lines[0])
    first = mark.group(0) if mark else re.match(r"\s*", lines[0]).group(0)  # type: ignore[union-attr]
    text = " ".join(line.strip() for line in lines)[len(first.strip()) :].strip()
    text = WHOLE.sub(lambda found: found.group(0).replace(" ", "\0"), text)
    wrapped = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in wrapped]


def reflowed(text: str) -> str:
    """A page with its prose filled."""
    done: list[str] = []
    block: list[str] = []
    fenced = False

    def flush() -> None:
        done.extend(filled(block) if block else [])
        block.clear()

    for line in text.split("\n"):
        fence = line.lstrip().startswith(("```", "~~~", ":::"))
        if fenced or fence:
            flush()
            fenced = fenced != fence
            done.append(line)
        elif APART.match(line) or (not block and line.startswith("    ")):
            flush()
            done.append(line)
        else:
            if ITEM.match(line):
                flush()
            block.append(line)
    flush()
    return "\n".join(done)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(reflowed(path.read_text("utf-8")), "utf-8")
