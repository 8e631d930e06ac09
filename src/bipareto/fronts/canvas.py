"""A matplotlib figure that notebooks show by themselves."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Canvas(Figure):
    """A figure built by hand, without pyplot's global state and its search for a display; IPython
    asks for its PNG.
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()
