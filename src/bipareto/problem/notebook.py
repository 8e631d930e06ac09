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
    rows = list(rows)
    if len(rows) > ROWS:
        rows = [*rows[: ROWS // 2], ["…"] * len(rows[0]), *rows[-ROWS // 2 :]]
    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{top}{_row(header, 'th')}{''.join(_row(row, 'td') for row in rows)}</table>"


def _row(cells: Sequence[Any], kind: str) -> str:
    text = "".join(
        f"<{kind}>{escape(f'{cell:.5g}' if isinstance(cell, float) else str(cell))}</{kind}>"
        for cell in cells
    )
    return f"<tr>{text}</tr>" if cells else ""


def frame(columns: dict[str, Any]) -> Any:
    """Columns as a pandas DataFrame; pandas is an extra."""
    pandas = installed(
        "pandas",
        "a DataFrame needs pandas, which is not installed; get it with: pip install pandas "
        "(to_csv and to_torch do without)",
    )
    return pandas.DataFrame(columns)
