"""One run, or many side by side: the loop, its steps, what it leaves, what watches it."""

from __future__ import annotations

__all__: list[str] = []
