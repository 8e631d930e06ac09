"""Jobs on data: what the methods are for, ready to run."""

from __future__ import annotations

__all__: list[str] = []
