"""What can be said of a point, whoever computed it, within a budget of gradients."""

from __future__ import annotations

__all__: list[str] = []
