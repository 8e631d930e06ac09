"""What results show of themselves in a notebook: tables as HTML, and whether there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from bipareto.errors import installed

#: rows of a table that are shown; the middle of a longer one is left out
ROWS = 40


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process, so that a cell can show HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def html_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), caption: str = "") -> str:
    """A table as HTML; texts are escaped, floats have five digits.

    >>> html_table([["gap", 0.123456789], ["kind", "<b>"]])
    '<table><tr><td>gap</td><td>0.12346</td></tr><tr><td>kind</td><td>&lt;b&gt;</td></tr></table>'
    """
    rows = _shortened(rows)
    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{top}{_row(header, 'th')}{''.join(_row(row, 'td') for row in rows)}</table>"


def text_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), caption: str = "") -> str:
    """The same as aligned lines for a terminal, numbers to the right.

    >>> print(text_table([["gap", 0.5], ["residual", 0.125]], ["name", "value"], "two numbers:"))
    two numbers:
    name      value
    gap         0.5
    residual  0.125
    """
    lines = [list(header)] if header else []
    whole = _shortened(rows)
    lines += [[_cell(cell) for cell in row] for row in whole]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(*whole, strict=True)) or [()] * len(header)
    right = [any(isinstance(cell, int | float) for cell in column) for column in columns]
    text = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([caption, *text] if caption else text)


def _shortened(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """The first and the last of many rows."""
    whole = list(rows)
    if len(whole) <= ROWS:
        return whole
    return [*whole[: ROWS // 2], ["…"] * len(whole[0]), *whole[-ROWS // 2 :]]


def _cell(cell: Any) -> str:
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)


def _row(cells: Sequence[Any], kind: str) -> str:
    text = "".join(f"<{kind}>{escape(_cell(cell))}</{kind}>" for cell in cells)
    return f"<tr>{text}</tr>" if cells else ""


def frame(columns: dict[str, Any]) -> Any:
    """Columns as a pandas DataFrame; pandas is an extra."""
    pandas = installed(
        "pandas",
        "a DataFrame needs pandas, which is not installed; get it with: pip install pandas "
        "(to_csv and to_torch do without)",
    )
    return pandas.DataFrame(columns)
