"""The figure that fronts are drawn on; importing this module loads matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Canvas(Figure):
    """A figure without pyplot's global state and search for a display; IPython asks for its PNG."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()
