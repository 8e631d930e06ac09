"""What every method and every scalarization must pass, those of other packages included.

`pytest --pyargs bipareto_battery` runs it on all that `bipareto list` shows; `-k NAME` on one.
"""

from __future__ import annotations

__all__: list[str] = []
